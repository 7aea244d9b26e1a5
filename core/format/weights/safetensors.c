/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory of safetensors files, as DCP's HuggingFaceStorageWriter or Hugging Face's own
 * save_pretrained() writes it.
 *
 *	*.safetensors                        whole tensors, or shards with DCP_SHARDING_INFO
 *	<model>.safetensors.index.json       which file holds which key; only with whole tensors
 *	sharded/<shard>.safetensors          read only when no file stands beside it: a
 *	                                     consolidated save keeps its shards there
 *
 * Such a save has no commit file. The names <model>-<i>-of-<n> tell the number of parts, which may
 * be spread over the files of all ranks (shard-<rank>-<model>-<i>-of-<n>).
 *
 * The files of one model are a set (name.h). If the sets of a directory belong together, they are
 * one version: a sole model keeps its keys, and keys of every other set have the set's name in
 * front (adapter_model.<key>). A set with the same model again is left out, be it a variant (the
 * fact "variant" names the shown variant) or under Mistral's names (consolidated*.safetensors
 * beside model*.safetensors). If nothing shows that the sets belong together, each set is a
 * version, as in a folder of downloaded models.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/format/format.h"
#include "core/format/formats.h"
#include "core/format/weights/files.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/json.h"
#include "core/parse/parse.h"

static int add_shard(struct dcp_weights *h, const struct dcp_weights_shard *s)
{
	uint32_t at = (uint32_t)(h->shards.n / sizeof(*s)), number;
	struct dcp_weights_key *k, fresh = { at, at, 0 };
	const char *key = dcp_weights_key(h, &h->sets[h->files[s->file].set], s->e->name);
	int rc = key ? dcp_intern_str(&h->names, key, &number) : -ENOMEM;

	if (rc < 0)
		return -ENOMEM;
	if (rc == 1)
		dcp_buf_add(&h->keys, &fresh, sizeof(fresh));
	dcp_buf_add(&h->shards, s, sizeof(*s));
	if (dcp_buf_error(&h->keys) || dcp_buf_error(&h->shards))
		return -ENOMEM;
	k = DCP_ITEMS(h->keys, struct dcp_weights_key) + number;
	if (k->n > 0)
		DCP_ITEMS(h->shards, struct dcp_weights_shard)[k->last].next = at;
	k->last = at;
	k->n++;
	return 0;
}

/* Read saved_offsets of one key, which are as many as its shape has dimensions. */
static int read_offsets(struct dcp_weights *h, const struct dcp_json *info,
			struct dcp_weights_shard *s)
{
	const struct dcp_json *saved =
		dcp_json_get(dcp_json_get(info, s->e->name), "saved_offsets");
	uint64_t *lo;

	if (!saved)
		return 0; /* whole, as torch takes it */
	if (!dcp_json_is_array(saved) || dcp_json_len(saved) != s->e->ndim) {
		s->error = "its saved_offsets and its shape differ in length";
		return 0;
	}
	lo = dcp_arena_calloc(&h->arena, s->e->ndim + 1, sizeof(*lo));
	if (!lo)
		return -ENOMEM;
	for (uint32_t k = 0; k < s->e->ndim; k++)
		if (!dcp_json_u64(dcp_json_at(saved, k), &lo[k]))
			s->error = "its saved_offsets are not numbers";
	s->lo = lo;
	return 0;
}

static int add_entries(struct dcp_weights *h, uint32_t i, const struct dcp_safetensors *st)
{
	const char *text = dcp_safetensors_meta(st, "DCP_SHARDING_INFO");
	const char *broken = NULL;
	dcp_auto_json struct dcp_json *info = NULL;
	int rc = 0;

	if (text) {
		struct dcp_err why = { 0 };

		h->dcp = h->files[i].placed = true;
		if (dcp_json_parse(text, strlen(text), &info, &why) < 0)
			broken = dcp_arena_strdup(&h->arena, why.msg);
	}
	if (dcp_safetensors_meta(st, "DCP_VERSION"))
		h->dcp = true;
	for (size_t e = 0; e < st->n && rc == 0; e++) {
		struct dcp_weights_shard s = {
			.e = &st->entries[e],
			.error = broken,
			.file = i,
			.next = DCP_INTERN_NONE,
		};

		if (info)
			rc = read_offsets(h, info, &s);
		if (rc == 0)
			rc = add_shard(h, &s);
	}
	return rc;
}

/* Read the header of file @i. A damaged file is kept with its error. */
static int read_header(struct dcp_weights *h, uint32_t i, struct dcp_err *err)
{
	struct dcp_weights_file *f = &h->files[i];
	struct dcp_err why = { 0 };
	dcp_auto_input struct dcp_input input = { 0 };
	int rc = dcp_emit_file(h->in->sink, f->name, &f->number);

	if (rc < 0)
		return rc;
	rc = dcp_dir_input(h->in->dir, f->name, &input, &why);
	if (rc == 0) {
		rc = dcp_safetensors_read(&input.src, &h->arena, &f->header, &why);
		if (rc < 0)
			dcp_err_where(&why, rc, "%s", f->name);
	}
	if (rc == 0 || rc == -ENOMEM)
		return rc;
	*(rc == -ENODATA ? &f->cut : &f->error) = dcp_arena_strdup(&h->arena, why.msg);
	if (!f->cut && !f->error)
		return -ENOMEM;
	*(f->cut ? &h->ncut : &h->nbroken) += 1;
	if (h->nbroken + h->ncut == h->nfiles) /* no file is whole: the save may still run */
		return dcp_err_give(err, &why, rc);
	return 0;
}

/* Add the entries of set @i, whose files were read, to the keys. */
static int add_set(struct dcp_weights *h, uint32_t i)
{
	struct dcp_weights_set *set = &h->sets[i];
	int rc = 0;

	for (uint32_t k = set->first; rc == 0 && k < set->first + set->n; k++)
		rc = add_entries(h, k, &h->files[k].header);
	return rc;
}

static const struct dcp_weights_set *set_of(const struct dcp_weights *h,
					    const struct dcp_weights_shard *s)
{
	return &h->sets[h->files[s->file].set];
}

static const struct dcp_weights_shard *shard_at(const struct dcp_weights *h, uint32_t i)
{
	return DCP_ITEMS(h->shards, struct dcp_weights_shard) + i;
}

static uint32_t next_shard(const struct dcp_weights *h, uint32_t i)
{
	return shard_at(h, i)->next;
}

/* Take the dtype and the size of elements from an entry. */
static void describe_tensor(struct dcp_tensor *t, const struct dcp_safetensors_entry *e)
{
	uint64_t volume;

	t->key = e->name;
	t->dtype = e->dtype;
	t->dtype_name =
		e->dtype == DCP_DTYPE_OTHER ? e->dtype_name : dcp_dtype_info(e->dtype)->name;
	t->itemsize = dcp_dtype_info(e->dtype)->size;
	t->ndim = e->ndim;
	t->shape = e->shape;
	if (t->itemsize == 0 && dcp_shape_volume(e->shape, e->ndim, &volume) && volume > 0 &&
	    e->nbytes % volume == 0 && e->nbytes / volume <= UINT32_MAX)
		t->itemsize = (uint32_t)(e->nbytes / volume);
}

/* Make a piece for a shard at @lo (ndim zeros or its saved_offsets); false: the shard has no
 * elements. */
static bool make_piece(const struct dcp_weights *h, const struct dcp_weights_shard *s,
		       const uint64_t *lo, struct dcp_piece *p)
{
	*p = (struct dcp_piece){
		.lo = lo,
		.len = s->e->shape,
		.off = s->e->off,
		.nbytes = s->e->nbytes,
		.file = h->files[s->file].number,
		.enc = DCP_ENC_PLAIN,
	};
	return dcp_shape_volume(s->e->shape, s->e->ndim, &p->run_n) && p->run_n > 0;
}

static int emit_whole(struct dcp_weights *h, const struct dcp_weights_shard *s,
		      const char *error)
{
	struct dcp_tensor t = { 0 };
	struct dcp_piece p;

	describe_tensor(&t, s->e);
	t.pieces = &p;
	t.npieces = make_piece(h, s, dcp_origin, &p);
	if (!error && t.npieces && !t.itemsize)
		error = "a dtype whose element size is not known";
	return dcp_weights_emit_tensor(h, set_of(h, s), &t, error);
}

/* Choose between files without sharding info that hold the same key: the file that the index names
 * counts. Without such a file the first counts, and the others are errors. */
static int emit_single(struct dcp_weights *h, const struct dcp_weights_key *k)
{
	const struct dcp_weights_shard *s = shard_at(h, k->first);
	const char *mapped = dcp_weights_index_file(&set_of(h, s)->index, s->e->name);
	uint32_t i, chosen = k->first;
	bool named = false;
	int rc;

	for (i = k->first; mapped && !named && i != DCP_INTERN_NONE; i = next_shard(h, i))
		if (strcmp(h->files[shard_at(h, i)->file].name, mapped) == 0) {
			chosen = i;
			named = true;
		}
	rc = emit_whole(h, shard_at(h, chosen), shard_at(h, chosen)->error);
	for (i = k->first; rc == 0 && !named && i != DCP_INTERN_NONE; i = next_shard(h, i)) {
		struct dcp_err why;

		if (i == chosen)
			continue;
		dcp_fail(&why, -EBADMSG, "both %s and %s hold it, and neither says which part",
			 h->files[shard_at(h, chosen)->file].name,
			 h->files[shard_at(h, i)->file].name);
		rc = emit_whole(h, shard_at(h, i), why.msg);
	}
	return rc;
}

/* Find the smallest shape that all shards fit in: DCP does not record the whole shape. */
static const char *cover_shards(const struct dcp_weights *h, const struct dcp_weights_key *k,
				uint64_t *shape)
{
	const struct dcp_safetensors_entry *first = shard_at(h, k->first)->e;

	memset(shape, 0, first->ndim * sizeof(*shape));
	for (uint32_t i = k->first; i != DCP_INTERN_NONE; i = next_shard(h, i)) {
		const struct dcp_weights_shard *s = shard_at(h, i);
		const uint64_t *lo = s->lo ? s->lo : dcp_origin;

		if (!h->files[s->file].placed)
			continue;
		if (s->error)
			return s->error;
		if (s->e->ndim != first->ndim || s->e->dtype != first->dtype ||
		    strcmp(s->e->dtype_name, first->dtype_name) != 0)
			return "its shards disagree about dtype or number of dimensions";
		for (uint32_t d = 0; d < first->ndim; d++) {
			uint64_t end;

			if (dcp_ckd_add(&end, lo[d], s->e->shape[d]))
				return "a shard ends beyond any shape";
			shape[d] = DCP_MAX(shape[d], end);
		}
	}
	return NULL;
}

/*
 * The error of an unreadable file that may hold more shards of the key of @s, or NULL. A tensor's
 * size follows only from its shards. So if a shard cannot be read, the others would look like a
 * smaller tensor. With an index every key is in one file, which was read.
 */
static const char *lost_shard(const struct dcp_weights *h, const struct dcp_weights_shard *s)
{
	const struct dcp_weights_set *set = set_of(h, s);

	if (!h->nbroken || dcp_weights_index_file(&set->index, s->e->name))
		return NULL;
	for (uint32_t i = set->first; i < set->first + set->n; i++)
		if (h->files[i].error)
			return h->files[i].error;
	return NULL;
}

static int emit_sharded(struct dcp_weights *h, const struct dcp_weights_key *k)
{
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_tensor t = { 0 };
	const char *error = lost_shard(h, shard_at(h, k->first));

	if (!error)
		error = cover_shards(h, k, shape);
	dcp_join_begin(&h->join);
	describe_tensor(&t, shard_at(h, k->first)->e);
	for (uint32_t i = k->first; i != DCP_INTERN_NONE && !error; i = next_shard(h, i)) {
		const struct dcp_weights_shard *s = shard_at(h, i);
		struct dcp_tensor one = { 0 };
		struct dcp_piece p;

		if (!h->files[s->file].placed ||
		    !make_piece(h, s, s->lo ? s->lo : dcp_origin, &p))
			continue;
		describe_tensor(&one, s->e);
		t.itemsize = one.itemsize;
		dcp_join_add(&h->join, &p);
	}
	if (!error) {
		t.shape = shape;
		if (dcp_join_end(&h->join, &t, NULL, NULL, NULL) < 0)
			return -ENOMEM;
		if (t.npieces && !t.itemsize)
			error = "a dtype whose element size is not known";
	}
	return dcp_weights_emit_tensor(h, set_of(h, shard_at(h, k->first)), &t, error);
}

/* Emit a key from shards of ranks or from a whole tensor. If both are there, a consolidated file
 * was written beside the shards, and the index names this file once it is complete. */
static int emit_key(struct dcp_weights *h, const struct dcp_weights_key *k)
{
	const struct dcp_weights_shard *s = shard_at(h, k->first);
	const char *mapped = dcp_weights_index_file(&set_of(h, s)->index, s->e->name);
	bool placed = false, whole = false;

	for (uint32_t i = k->first; i != DCP_INTERN_NONE; i = next_shard(h, i)) {
		const struct dcp_weights_file *f = &h->files[shard_at(h, i)->file];

		placed |= f->placed;
		whole |= !f->placed && mapped && strcmp(f->name, mapped) == 0;
	}
	return placed && !whole ? emit_sharded(h, k) : emit_single(h, k);
}

/* Emit tied weights under all names: safetensors' save_model() stores them once, and the metadata
 * has for each dropped name the name that was kept. */
static int emit_tied(struct dcp_weights *h, const struct dcp_weights_set *set,
		     const char *dropped, const char *kept)
{
	const char *shown = dcp_weights_key(h, set, dropped);
	struct dcp_tensor t = { 0 };
	const struct dcp_weights_key *keys = DCP_ITEMS(h->keys, struct dcp_weights_key);
	uint32_t number;
	int rc;

	if (!shown)
		return -ENOMEM;
	if (dcp_intern_has(&h->names, shown))
		return 0;
	rc = dcp_intern_str(&h->aliases, shown, &number);
	if (rc < 0)
		return -ENOMEM;
	shown = dcp_weights_key(h, set, kept);
	if (!shown)
		return -ENOMEM;
	number = rc ? dcp_intern_find(&h->names, shown, strlen(shown)) : DCP_INTERN_NONE;
	if (number == DCP_INTERN_NONE)
		return 0; /* any other fact */
	describe_tensor(&t, shard_at(h, keys[number].first)->e);
	t.key = dropped;
	t.alias_of = dcp_intern_text(&h->names, number);
	return dcp_weights_emit_tensor(h, set, &t, NULL);
}

static int emit_all_tied(struct dcp_weights *h, const struct dcp_weights_file *f)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && !f->placed && i < f->header.nmeta; i++)
		rc = emit_tied(h, &h->sets[f->set], f->header.meta[2 * i],
			       f->header.meta[2 * i + 1]);
	return rc;
}

/* Emit every key that was found, and the keys that only the index names. */
static int emit_keys(struct dcp_weights *h)
{
	const struct dcp_weights_key *keys = DCP_ITEMS(h->keys, struct dcp_weights_key);
	int rc = 0;

	for (uint32_t i = 0; i < h->names.n && rc == 0; i++)
		rc = emit_key(h, &keys[i]);
	for (uint32_t i = 0; i < h->nfiles && rc == 0; i++)
		rc = emit_all_tied(h, &h->files[i]);
	for (uint32_t i = 0; i < h->nsets && rc == 0; i++)
		rc = dcp_weights_emit_promised(h, &h->sets[i]);
	return rc;
}

/* ---- which directories ---- */

/* Are the files of @dir unrelated to each other? */
static bool is_loose(const struct dcp_dir *dir)
{
	return (dcp_weights_many_sets(dir, DCP_WEIGHTS_SAFETENSORS) ||
		dcp_weights_has_torch(dir)) &&
	       !dcp_weights_is_home(dir);
}

/* The first file of a rank in sharded_state form, if no model stands beside it; or NULL. Its
 * tensors were fused and cut by vLLM and have vLLM's names, but would look like a model. */
static const char *rank_part(const struct dcp_dir *dir)
{
	struct dcp_weights_name name;

	if (dcp_weights_has_model(dir, DCP_WEIGHTS_SAFETENSORS))
		return NULL;
	for (size_t i = 0; i < dir->n; i++)
		if (!dir->entries[i].is_dir &&
		    dcp_weights_name(dir->entries[i].name, &name) == DCP_WEIGHTS_SAFETENSORS &&
		    dcp_weights_is_rank_part(name.set))
			return dir->entries[i].name;
	return NULL;
}

static enum dcp_match probe_safetensors(const struct dcp_dir *dir, char *why, size_t n)
{
	const char *index = dcp_weights_index_name(dir, DCP_WEIGHTS_SAFETENSORS_INDEX);
	const char *part = rank_part(dir);
	enum dcp_match match, sharded_match;
	dcp_auto_dir struct dcp_dir sharded = { 0 };

	if (part) {
		snprintf(why, n,
			 "%s is of vLLM's sharded_state: what one rank holds of tensors that "
			 "vLLM "
			 "fused and cut, which dcpfs does not put together; vLLM loads it "
			 "(load_format sharded_state)",
			 part);
		return DCP_MATCH_INCOMPLETE;
	}
	match = dcp_weights_check_parts(dir, DCP_WEIGHTS_SAFETENSORS, why, n);
	if (match != DCP_MATCH_NO)
		return is_loose(dir) ? DCP_MATCH_MANY : match;
	if (index) {
		snprintf(why, n, "%s is there, but no safetensors file", index);
		match = DCP_MATCH_INCOMPLETE;
	}
	if (!dcp_dir_has_dir(dir, "sharded") ||
	    dcp_dir_open_at(dir, "sharded", &sharded, NULL) < 0)
		return match;
	sharded_match = dcp_weights_check_parts(&sharded, DCP_WEIGHTS_SAFETENSORS, why, n);
	return sharded_match == DCP_MATCH_NO ? match : sharded_match;
}

static bool group_by_set(const char *file, char *version)
{
	enum { ROOM = DCP_GROUP_MAX - sizeof(".safetensors") };
	struct dcp_weights_name name;

	if (dcp_weights_name(file, &name) != DCP_WEIGHTS_SAFETENSORS &&
	    name.kind != DCP_WEIGHTS_SAFETENSORS_INDEX)
		return false;
	snprintf(version, DCP_GROUP_MAX, "%.*s.safetensors", (int)ROOM, name.set);
	return true;
}

static bool begins_as_safetensors(const uint8_t *head, size_t n)
{
	return dcp_magic_is_safetensors(head, n);
}

static const char *commit_file(const struct dcp_dir *dir)
{
	return dcp_weights_index_name(dir, DCP_WEIGHTS_SAFETENSORS_INDEX);
}

/* ---- which files ---- */

static int list_files(struct dcp_weights *h, struct dcp_err *err)
{
	dcp_auto_dir struct dcp_dir sharded = { 0 };
	int rc = dcp_weights_add_files(h, h->in->dir, "", DCP_WEIGHTS_SAFETENSORS);

	if (rc == 0 && h->nfiles == 0) {
		rc = dcp_dir_open_at(h->in->dir, "sharded", &sharded, err);
		if (rc < 0)
			return rc;
		rc = dcp_weights_add_files(h, &sharded, "sharded/", DCP_WEIGHTS_SAFETENSORS);
	}
	if (rc == 0 && h->nfiles == 0)
		return dcp_fail(err, -ENOENT, "no safetensors file");
	return rc;
}

static int read_all(struct dcp_weights *h, struct dcp_err *err)
{
	int rc = list_files(h, err);

	if (rc == 0)
		rc = dcp_weights_make_sets(h);
	if (rc == 0)
		rc = dcp_weights_read_indexes(h, h->in->dir, DCP_WEIGHTS_SAFETENSORS_INDEX,
					      true, err);
	for (uint32_t i = 0; i < h->nfiles && rc == 0; i++) {
		rc = h->files[i].left_over ? 0 : read_header(h, i, err);
		dcp_load_progress(h->in, i + 1, h->nfiles, "files");
	}
	for (uint32_t i = 0; i < h->nsets && rc == 0; i++)
		rc = add_set(h, i);
	return rc;
}

/* ---- deltas ---- */

static bool is_true(const char *text)
{
	return text && strcasecmp(text, "false") != 0 && strcmp(text, "0") != 0 && *text;
}

/* The encoding of a delta to another version, as the metadata spells it; NULL: it is no delta. */
static const char *delta_encoding(const char *said)
{
	static const char *const whole[] = { "", "none", "full" };

	for (size_t i = 0; said && i < DCP_LEN(whole); i++)
		if (strcasecmp(said, whole[i]) == 0)
			return NULL;
	return said;
}

static int fail_delta(const char *file, const char *encoding, const char *base,
		      struct dcp_err *err)
{
	return dcp_fail(
		err, -ENOTSUP,
		"%s says that it is a delta (%.60s) of %s%.100s: changes, not the weights of "
		"a model, and dcpfs does not apply them yet",
		file, encoding, base ? "version " : "another version", base ? base : "");
}

/* Refuse deltas, which are saved between whole models and hold only the changes to another
 * version. */
static int refuse_deltas(const struct dcp_weights *h, struct dcp_err *err)
{
	for (size_t i = 0; i < h->nsets; i++) {
		const struct dcp_weights_index *ix = &h->sets[i].index;
		const struct dcp_json *meta = dcp_json_get(ix->json, "metadata");
		const char *how =
			delta_encoding(dcp_json_str(dcp_json_get(meta, "delta_encoding")));

		if (how)
			return fail_delta(ix->name, how,
					  dcp_json_str(dcp_json_get(meta, "base_version")),
					  err);
	}
	for (size_t i = 0; i < h->nfiles; i++) {
		const struct dcp_safetensors *st = &h->files[i].header;
		const char *how = delta_encoding(dcp_safetensors_meta(st, "delta_encoding"));

		if (!how && is_true(dcp_safetensors_meta(st, "sparse")))
			how = "sparse: indices and values";
		if (how)
			return fail_delta(h->files[i].name, how,
					  dcp_safetensors_meta(st, "base_version"), err);
	}
	return 0;
}

/* ---- load ---- */

/* The header of the first file that has __metadata__, or NULL. */
static const struct dcp_safetensors *with_metadata(const struct dcp_weights *h)
{
	for (size_t i = 0; i < h->nfiles; i++)
		if (h->files[i].header.nmeta)
			return &h->files[i].header;
	return NULL;
}

/*
 * The framework that wrote the files; NULL: not known. Files without metadata may come from
 * Paddle's own merging, with linear weights as Paddle has them, or from other programs, with linear
 * weights as torch has them. Format np is written by PaddleFormers, and by numpy for arrays of any
 * origin.
 */
static const char *find_framework(const struct dcp_weights *h)
{
	const struct dcp_safetensors *st = with_metadata(h);
	const char *format = st ? dcp_safetensors_meta(st, "format") : NULL;

	if (h->dcp)
		return "torch";
	if (!st || (format && strcmp(format, "np") == 0))
		return NULL;
	return format && strcmp(format, "pd") == 0 ? "paddle" : "safetensors";
}

static int emit_facts(struct dcp_weights *h)
{
	const struct dcp_sink *sink = h->in->sink;
	const char *from = find_framework(h);
	int rc = dcp_emit_fact(sink, 0, "framework", "%s", from ? from : "");

	rc = dcp_emit_fact(sink, rc, "world_files", "%zu", h->nfiles);
	for (size_t i = 0; i < h->nfiles && rc == 0; i++)
		rc = dcp_emit_metadata(sink, h->files[i].name, &h->files[i].header);
	for (size_t i = 0; i < h->nsets && rc == 0; i++)
		if (dcp_weights_variant(h->sets[i].name))
			rc = dcp_emit_meta(sink, "variant",
					   dcp_weights_variant(h->sets[i].name));
	for (size_t i = 0; i < h->nfiles && rc == 0; i++) {
		const struct dcp_weights_file *f = &h->files[i];
		const char *why = f->error ? f->error : f->cut;

		if (!why)
			continue;
		dcp_log(h->in->log, DCP_LOG_WARN, "%s", why);
		rc = dcp_emit_meta(sink, "broken_file", why);
	}
	return rc;
}

static bool is_shown(void *ctx, const char *name)
{
	return dcp_weights_find_file(ctx, name) != NULL;
}

static int load_safetensors(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_weights h = { .in = in };
	int rc;

	dcp_arena_init(&h.arena, DCP_WEIGHTS_MEMORY);
	rc = read_all(&h, err);
	if (rc == 0)
		rc = refuse_deltas(&h, err);
	if (rc == 0)
		rc = emit_keys(&h);
	if (rc == 0)
		rc = dcp_weights_emit_rest(in, is_shown, &h);
	if (rc == 0)
		rc = emit_facts(&h);
	dcp_weights_finish(&h);
	return rc;
}

const struct dcp_format dcp_format_torch_hf = {
	.name = "safetensors",
	.what = "safetensors files (Hugging Face, or DCP's HuggingFaceStorageWriter)",
	.probe = probe_safetensors,
	.group = group_by_set,
	.begins = begins_as_safetensors,
	.apart = true,
	.commit_file = commit_file,
	.load = load_safetensors,
	.marks =
		(const struct dcp_mark[]){
			{ "@(*.safetensors|*.safetensors.index.json)",
			  "a directory of safetensors files", .general = true },
			{ 0 },
		},
};
