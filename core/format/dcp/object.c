/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Emits one byte item, which is a torch.save stream of any Python value, as an object; the tensors
 * inside it are emitted beside it.
 *
 * If every rank wrote its own metadata, the same key may stand for different values, such as a
 * random state or the position of a data loader. The first rank's value is emitted under the key.
 * A different value of another rank is emitted as <key>.@rank<r>, so that nothing is lost. Values
 * are compared by their bytes, which torch.save writes equally for equal values.
 */
#include "core/format/dcp/dcp_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/base/text.h"
#include "core/format/torch/torch.h"
#include "core/origin/archive/archive.h"
#include "core/parse/torch/torch.h"

/* SLACK: bytes forgiven to small files. RATIO: decoded bytes that count as much as a stored one. */
enum { SLACK = 1 << 20, RATIO = 64 };

void dcp_dcp_item_files_init(struct dcp_dcp_item_files *f, const struct dcp_dir *dir)
{
	*f = (struct dcp_dcp_item_files){ .dir = dir };
}

static void dcp_dcp_item_files_finish(struct dcp_dcp_item_files *f)
{
	for (int i = 0; i < DCP_DCP_ITEM_SLOTS; i++)
		if (f->slot[i].number)
			dcp_input_close(&f->slot[i].input);
	dcp_buf_finish(&f->claimed);
	*f = (struct dcp_dcp_item_files){ 0 };
}

static int get_file(struct dcp_dcp_item_files *f, uint32_t number, const char *name,
		    struct dcp_source *out, struct dcp_err *err)
{
	int i = (int)(number % DCP_DCP_ITEM_SLOTS), rc;
	struct dcp_input input;

	if (f->slot[i].number != 1 + (uint64_t)number) {
		if (!f->dir)
			return dcp_fail(err, -ENOENT, "%s: no directory to look in", name);
		rc = dcp_dir_input(f->dir, name, &input, err);
		if (rc < 0)
			return rc;
		if (f->slot[i].number)
			dcp_input_close(&f->slot[i].input);
		f->slot[i].number = 1 + (uint64_t)number;
		f->slot[i].input = input;
	}
	*out = f->slot[i].input.src;
	return 0;
}

/*
 * Count the bytes of an item against the size of its file. Items of one file do not overlap, so
 * together they are not longer than the file; a few items are read twice. Without this limit,
 * metadata in which a million keys share one item would take hours to read.
 */
static int claim_bytes(struct dcp_dcp_item_files *f, uint32_t number, const char *name,
		       uint64_t nbytes, uint64_t size, struct dcp_err *err)
{
	uint64_t *claimed = dcp_buf_at(&f->claimed, number, sizeof(*claimed));

	if (!claimed)
		return dcp_fail(err, -ENOMEM, "out of memory");
	if (*claimed / 4 > size + SLACK)
		return dcp_fail(
			err, -E2BIG,
			"%s: its bytes are claimed by too many keys, more than four times "
			"over",
			name);
	*claimed += nbytes;
	return 0;
}

int dcp_dcp_item_open(struct dcp_dcp_item_files *f, uint32_t number, const char *name,
		      uint64_t off, uint64_t nbytes, enum dcp_filter filter, uint64_t limit,
		      struct dcp_dcp_item *out, struct dcp_err *err)
{
	int rc;

	*out = (struct dcp_dcp_item){ 0 };
	rc = get_file(f, number, name, &out->file, err);
	if (rc < 0)
		return rc;
	if (!dcp_range_ok(off, nbytes, out->file.size))
		return dcp_fail_at(
			err, -EBADMSG, off,
			"%s: item of %llu bytes at %llu ends past the end of the file, "
			"which has %llu",
			name, (unsigned long long)nbytes, (unsigned long long)off,
			(unsigned long long)out->file.size);
	rc = claim_bytes(f, number, name, nbytes, out->file.size, err);
	if (rc < 0)
		return rc;
	out->window = dcp_source_window(&out->file, off, nbytes);
	out->src = out->window;
	if (filter == DCP_FILTER_NONE)
		return 0;
	rc = dcp_inflate_zstd(&out->window, &out->decoded, limit, err);
	DCP_ITEMS(f->claimed, uint64_t)[number] += (rc < 0 ? limit : out->decoded.n) / RATIO;
	if (rc < 0)
		return dcp_err_where(err, rc, "%s at byte %llu", name, (unsigned long long)off);
	out->src = dcp_source_mem(out->decoded.p, out->decoded.n);
	return 0;
}

void dcp_dcp_item_finish(struct dcp_dcp_item *item)
{
	dcp_buf_finish(&item->decoded);
}

/* emitter: numbers of the files of a checkpoint, and release. */

int dcp_dcp_file_number(struct dcp_dcp_emitter *w, uint32_t file, uint32_t *number)
{
	uint32_t *known = dcp_buf_at(&w->emitted, file, sizeof(*known));
	int rc = known ? 0 : -ENOMEM;

	if (known && *known)
		*number = *known - 1;
	else if (known)
		rc = dcp_emit_file(w->sink, dcp_intern_text(&w->m->files, file), number);
	if (rc == 0)
		*known = *number + 1;
	return rc;
}

void dcp_dcp_emitter_finish(struct dcp_dcp_emitter *w)
{
	dcp_dcp_item_files_finish(&w->files);
	dcp_buf_finish(&w->emitted);
	dcp_buf_finish(&w->path_text);
	dcp_buf_finish(&w->path_ptrs);
	dcp_buf_finish(&w->containers);
	dcp_buf_finish(&w->dims);
	dcp_buf_finish(&w->places);
	dcp_join_finish(&w->join);
	dcp_buf_finish(&w->blocks);
}

/*
 * Megatron-Core's sharded objects: byte items that are parts of one object.
 *
 *	<key>/shard_<offset>_<shape>        rng_state/shard_0.1_2.4: rank (0, 1) of 2 x 4
 *
 * Offset and shape are numbers joined by dots; releases of 2024 may leave out the last number of
 * the shape. The item is a list of one value, which Megatron takes out of the list when it loads.
 * The names are unchanged. A part that the shape has, but that no key names, is emitted as broken.
 */

enum { MAX_DIMS = DCP_LEN(((struct dcp_dcp_shard *)0)->at), MAX_LOST = 256 };

/* Read numbers such as "0.1_". Returns how many there are, 0 if none; @p is left after them. */
static uint32_t read_numbers(const char **p, char end, uint64_t n[MAX_DIMS])
{
	uint32_t count = 0;
	bool more = true, good;

	for (; more; *p += more) {
		if (count == MAX_DIMS || !dcp_take_number(p, NULL, 18, &n[count++]))
			return 0;
		more = **p == '.';
	}
	good = **p == end;
	*p += **p != '\0';
	return good ? count : 0;
}

static bool dcp_dcp_is_shard(const char *key, struct dcp_dcp_shard *s)
{
	const char *p = strrchr(key, '/');
	uint32_t ndim;

	if (!p || strncmp(p, "/shard_", 7) != 0)
		return false;
	s->nkey = (size_t)(p - key);
	p += 7;
	s->ndim = read_numbers(&p, '_', s->at);
	s->shape = p;
	ndim = s->ndim ? read_numbers(&p, '\0', s->of) : 0;
	s->cut = ndim + 1 == s->ndim;
	if (ndim != s->ndim && !s->cut)
		return false;
	for (uint32_t k = 0; k < ndim; k++)
		if (s->at[k] >= s->of[k])
			return false;
	return ndim > 0;
}

/* The name of part @at of the object that @s is a part of. */
static int name_part(const char *key, const struct dcp_dcp_shard *s, const uint64_t *at,
		     struct dcp_buf *out)
{
	dcp_buf_reset(out);
	dcp_buf_add(out, key, s->nkey);
	for (uint32_t k = 0; k < s->ndim; k++)
		dcp_buf_printf(out, "%s%llu", k ? "." : "/shard_", (unsigned long long)at[k]);
	return dcp_buf_printf(out, "_%s", s->shape);
}

static bool is_emitted(const struct dcp_dcp_meta *m, const char *name, size_t n)
{
	uint32_t number = dcp_intern_find(&m->names, name, n);

	return number != DCP_INTERN_NONE && m->keys[number].entry != 0;
}

/* Move @at to the next part in row-major order; false after the last part. */
static bool next_part(const struct dcp_dcp_shard *s, uint64_t *at)
{
	for (uint32_t k = s->ndim; k-- > 0; at[k] = 0)
		if (++at[k] < s->of[k])
			return true;
	return false;
}

/* Emit the missing parts of the object of @key, at most *@left. The loop ends, because each part
 * either has a key or takes one from *@left. */
static int emit_parts(struct dcp_dcp_emitter *w, const char *key, const struct dcp_dcp_shard *s,
		      unsigned *left)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	uint64_t at[MAX_DIMS] = { 0 };
	int rc = 0;

	do {
		struct dcp_object o = { .npath = 1, .type = "" };
		char why[160];

		if (name_part(key, s, at, &name))
			return -ENOMEM;
		if (is_emitted(w->m, name.p, name.n))
			continue;
		snprintf(why, sizeof(why),
			 ".metadata has no such part of the object, whose parts are %s: a rank "
			 "did not save it",
			 s->shape);
		o.key = name.p;
		o.path = &o.key;
		o.error = why;
		rc = dcp_emit_object(w->sink, &o);
		--*left;
	} while (rc == 0 && *left && next_part(s, at));
	return rc;
}

int dcp_dcp_emit_lost_shards(struct dcp_dcp_emitter *w)
{
	struct dcp_intern seen = DCP_INTERN_INIT;
	dcp_auto_buf struct dcp_buf object = DCP_BUF_INIT;
	unsigned left = MAX_LOST;
	int rc = 0;

	for (uint32_t k = 0; k < w->m->names.n && left && rc == 0; k++) {
		const char *key = dcp_intern_text(&w->m->names, k);
		struct dcp_dcp_shard s;

		if (!w->m->keys[k].entry ||
		    dcp_dcp_meta_entry(w->m, w->m->keys[k].entry).kind != DCP_DCP_META_BYTES ||
		    !dcp_dcp_is_shard(key, &s) || s.cut)
			continue;
		dcp_buf_reset(&object);
		dcp_buf_add(&object, key, s.nkey + 1);
		dcp_buf_str(&object, s.shape);
		rc = dcp_buf_error(&object)
			     ? -ENOMEM
			     : dcp_intern_add(&seen, object.p, object.n, DCP_INTERN_NONE, NULL);
		if (rc < 0)
			rc = -ENOMEM;
		else if (rc == 1)
			rc = emit_parts(w, key, &s, &left);
	}
	dcp_intern_finish(&seen);
	return rc;
}

static int emit_broken(struct dcp_dcp_emitter *w, const char *key, const char *const *path,
		       size_t npath, const char *why, const struct dcp_stretch *stored,
		       bool entry)
{
	struct dcp_object o = { .key = key,
				.path = path,
				.npath = npath,
				.type = "",
				.error = why,
				.stored = stored,
				.entry = entry };

	return dcp_emit_object(w->sink, &o);
}

/* Is @key also stored by itself? Then the stored tensor is emitted, and not the tensor inside an
 * object. */
static bool is_stored(void *ctx, const char *key)
{
	const struct dcp_dcp_emitter *w = ctx;
	uint32_t number = dcp_intern_find(&w->m->names, key, strlen(key));

	return number != DCP_INTERN_NONE && w->m->keys[number].entry != 0;
}

static int check_record(struct dcp_dcp_emitter *w, const struct dcp_dcp_meta_record *r,
			struct dcp_err *why)
{
	if (r->filter > DCP_FILTER_ZSTD)
		return dcp_fail(why, -EBADMSG, "%s", dcp_dcp_meta_error(w->m, r->filter));
	if (r->nbytes > DCP_DCP_MAX_OBJECT)
		return dcp_fail_at(why, -E2BIG, r->off,
				   "an object of %llu bytes, at most %u are read",
				   (unsigned long long)r->nbytes, DCP_DCP_MAX_OBJECT);
	return 0;
}

/* Is @v a container whose parts are keys by Composer's rule, although DCP stored it whole? */
static bool has_parts(struct dcp_pv v)
{
	return v.type == DCP_PV_LIST || dcp_pv_is_mapping(v);
}

/*
 * Emit the value of a stream. A part of a sharded object is the only value of a list. Megatron's
 * common_state is a dict with the other values of the run: they are emitted without its name, as
 * those of common.pt were until 2026. If a value is shown in another form than torch's readers see,
 * their form is emitted, too.
 */
static int emit_value(struct dcp_dcp_emitter *w, struct dcp_torch_state *s, const char *key)
{
	const char *const *path = s->prefix;
	struct dcp_pv root = dcp_torch_root(s->t);
	struct dcp_dcp_shard shard;
	struct dcp_torch_tensor tt;
	bool entry = s->entry, common;
	size_t npath = s->nprefix, n = 0;
	int rc;

	if (dcp_dcp_is_shard(key, &shard) && root.type == DCP_PV_LIST) {
		const struct dcp_pv *items = dcp_pv_items(root, &n);

		if (n == 1) {
			root = items[0];
			s->root = &root;
		}
	}
	common = n == 1 && strncmp(key, "common_state/", shard.nkey + 1) == 0 &&
		 dcp_pv_is_mapping(root);
	if (common)
		s->nprefix = 0;
	else
		s->lists = w->lists && has_parts(root);
	s->entry = entry && n != 1 && !s->lists && dcp_torch_tensor(s->t, root, &tt, NULL) == 0;
	rc = common || s->lists ? dcp_torch_state_emit(s) : dcp_torch_state_emit_whole(s, key);
	if (rc == 0 && entry && !s->entry)
		rc = dcp_torch_state_emit_item(s, key, path, npath, n == 1);
	return rc;
}

/* @leaf: emit a leaf of torch.save's streams; a tensor that is not plain is emitted as its parts.
 * @entry: the metadata has the key. */
static int emit_stream(struct dcp_dcp_emitter *w, const char *key, const char *const *path,
		       size_t npath, const struct dcp_dcp_meta_record *r, bool leaf, bool entry)
{
	struct dcp_torch_state s = {
		.sink = w->sink,
		.prefix = path,
		.nprefix = npath,
		.base = r->off,
		.skip = leaf ? NULL : is_stored, /* a leaf is the stored key itself */
		.containers = &w->containers,
		.entry = entry,
		.ctx = w,
	};
	const char *name = w->m->files.n ? dcp_intern_text(&w->m->files, r->file) : "";
	struct dcp_stretch stored = { .filter = (uint8_t)r->filter,
				      .off = r->off,
				      .nbytes = r->nbytes };
	struct dcp_dcp_item item = { 0 };
	dcp_auto_torch struct dcp_torch *t = NULL;
	struct dcp_err why = { 0 };
	int rc = 0;

	/* Emit the file before it is read, even if it is broken, to notice its change. */
	if (w->m->files.n)
		rc = dcp_dcp_file_number(w, r->file, &s.file);
	if (rc < 0)
		return rc;
	rc = check_record(w, r, &why);
	if (rc == 0)
		rc = dcp_dcp_item_open(&w->files, r->file, name, r->off, r->nbytes,
				       (enum dcp_filter)r->filter, DCP_DCP_MAX_DECODED, &item,
				       &why);
	if (rc == 0) { /* the object has these bytes, even if they are damaged */
		stored.file = s.file;
		stored.n = item.src.size;
		s.stored = &stored;
		rc = dcp_torch_open(&item.src, 0, &t, &why);
		if (rc < 0)
			dcp_err_where(&why, rc, "%s, item at byte %llu", name,
				      (unsigned long long)r->off);
	}
	if (rc == -ENOMEM) {
		rc = -ENOMEM;
	} else if (rc < 0) {
		rc = emit_broken(w, key, path, npath, why.msg, s.stored, entry);
	} else {
		s.t = t;
		if (r->filter != DCP_FILTER_NONE)
			s.sealed = "lies inside an object that is stored compressed";
		rc = leaf ? dcp_torch_state_emit(&s) : emit_value(w, &s, key);
	}
	dcp_dcp_item_finish(&item);
	return rc;
}

static int emit_item(struct dcp_dcp_emitter *w, const char *key, const char *const *path,
		     size_t npath, const struct dcp_dcp_meta_record *r, bool entry)
{
	return emit_stream(w, key, path, npath, r, false, entry);
}

int dcp_dcp_emit_parts(struct dcp_dcp_emitter *w, const char *key, const char *const *path,
		       size_t npath, const struct dcp_dcp_meta_record *r)
{
	return emit_stream(w, key, path, npath, r, true, false);
}

/* Hash an item's stored bytes; false if they cannot be read. */
static bool hash_item(struct dcp_dcp_emitter *w, const struct dcp_dcp_meta_record *r,
		      uint64_t *hash)
{
	struct dcp_dcp_item item;
	unsigned char block[4096];
	bool ok;

	if (check_record(w, r, NULL) < 0)
		return false;
	*hash = 0;
	ok = dcp_dcp_item_open(&w->files, r->file, dcp_intern_text(&w->m->files, r->file),
			       r->off, r->nbytes, DCP_FILTER_NONE, 0, &item, NULL) == 0;
	for (uint64_t at = 0; ok && at < r->nbytes; at += sizeof(block)) {
		size_t n = DCP_MIN(sizeof(block), r->nbytes - at);

		ok = dcp_source_read(&item.src, at, block, n) == 0;
		if (ok)
			*hash = dcp_hash64_more(*hash, block, n);
	}
	dcp_dcp_item_finish(&item);
	return ok;
}

/* Emit the value of another rank under a key of its own. */
static int emit_variant(struct dcp_dcp_emitter *w, const char *key, const char *const *path,
			size_t npath, const struct dcp_dcp_meta_record *r)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT, longer = DCP_BUF_INIT;
	const char *component;
	size_t n = strlen(key) + 1;

	dcp_buf_printf(&text, "%s.@%s", key, w->d->rank[r->rank_file]);
	dcp_buf_add(&longer, path, npath * sizeof(*path));
	if (dcp_buf_error(&text))
		return -ENOMEM;
	component = text.p + n;
	if (dcp_buf_add(&longer, &component, sizeof(component)) < 0)
		return -ENOMEM;
	return emit_item(w, text.p, DCP_ITEMS(longer, const char *), npath + 1, r, false);
}

int dcp_dcp_emit_bytes(struct dcp_dcp_emitter *w, uint32_t key)
{
	const char *name = dcp_intern_text(&w->m->names, key);
	const char *const *path;
	size_t npath = dcp_dcp_meta_path(w->m, key, &w->path_text, &w->path_ptrs, &path);
	struct dcp_dcp_meta_record first = { 0 };
	uint64_t dims[DCP_MAX_NDIM], hash = 0, other;
	bool found = false, hashed = false;
	int rc = 0;

	if (!npath)
		return -ENOMEM;
	for (uint32_t i = w->m->keys[key].first; i < w->m->keys[key + 1].first && rc == 0;
	     i++) {
		struct dcp_dcp_meta_record r = dcp_dcp_meta_record(w->m, i, dims);

		if (r.ndim != DCP_DCP_META_NO_OFFSETS)
			continue;
		if (!found) {
			found = true;
			first = r;
			rc = emit_item(w, name, path, npath, &r, !w->d->missing);
			continue;
		}
		if (r.rank_file == first.rank_file)
			continue; /* one dict has the same key twice */
		if (!hashed)
			hashed = hash_item(w, &first, &hash);
		if (hashed && r.nbytes == first.nbytes && hash_item(w, &r, &other) &&
		    other == hash)
			continue;
		rc = emit_variant(w, name, path, npath, &r);
	}
	if (rc == 0 && !found)
		rc = emit_broken(w, name, path, npath,
				 "storage_data has no entry for this object", NULL,
				 !w->d->missing);
	return rc;
}
