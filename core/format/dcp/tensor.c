/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/base/endian.h"
#include "core/base/hash.h"
#include "core/format/dcp/dcp_int.h"
#include "core/format/gather/copies.h"
#include "core/format/torch/shard/parts.h"
#include "core/parse/torch/torch.h"

/*
 * A torch.save stream is longer than the tensor in it. One that is exactly as long as its
 * elements may be what the plain writer makes of SerializationFormat.SAFETENSORS, where every
 * item claims the place of one common blob. Only then is an item looked at here.
 */
static void check_envelope(struct dcp_tdcp_emitter *w, struct dcp_tdcp_join *j,
			   const struct dcp_tmeta_record *r, uint64_t elements)
{
	struct dcp_titem item;
	unsigned char head[9];
	uint64_t plain;

	if (r->filter != DCP_FILTER_NONE || r->nbytes < sizeof(head) ||
	    dcp_ckd_mul(&plain, elements, j->t.itemsize) || plain != r->nbytes)
		return;
	if (dcp_titem_open(&w->files, r->file, dcp_intern_text(&w->m->files, r->file), r->off,
			   sizeof(head), DCP_FILTER_NONE, 0, &item, NULL) == 0 &&
	    dcp_source_read(&item.src, 0, head, sizeof(head)) == 0 && head[8] == '{' &&
	    dcp_load_le64(head) <= 100000000)
		dcp_fail_at(
			&j->why, -ENOTSUP, r->off,
			"stored in SerializationFormat.SAFETENSORS by the plain file writer, "
			"which records no usable offsets: save it with torch_save, or "
			"with the HuggingFace writer");
	dcp_titem_finish(&item);
}

/* What a look into an item found. */
enum look { PLAIN, PARTS, REFUSED };

enum { MISSES = 1000 };

/* Items of one dtype, shape and length are alike. */
static uint64_t kind_of_item(const struct dcp_tdcp_join *j, const uint64_t *len,
			     const struct dcp_tmeta_record *r)
{
	uint64_t kind = dcp_hash64_more(r->nbytes, j->t.dtype_name, strlen(j->t.dtype_name));

	kind = dcp_hash64_more(kind, len, j->t.ndim * sizeof(*len));
	return kind ? kind : 1;
}

static enum look look_inside(const struct dcp_tdcp_join *j, const struct dcp_torch *t,
			     struct dcp_err *why)
{
	struct dcp_torch_tensor tt;
	struct dcp_pv root = dcp_torch_root(t);
	int rc = dcp_torch_tensor(t, root, &tt, why);

	if (rc == -ENOTSUP)
		return PARTS;
	if (rc > 0 && !dcp_torch_is_tensor(root)) {
		dcp_fail(why, -ENOTSUP, "a tensor of several: it has no dense strided bytes");
		return PARTS;
	}
	if (rc > 0 && strcmp(tt.dtype_name, j->t.dtype_name) == 0)
		return PLAIN;
	if (rc > 0)
		dcp_fail(why, -EBADMSG, "stored as %s, the metadata says %s", tt.dtype_name,
			 j->t.dtype_name);
	else if (rc == 0)
		dcp_fail(why, -EBADMSG, "the stored item is not a tensor");
	return REFUSED;
}

/*
 * Is the item as long as torch.save makes it of a plain tensor? One of another class has other
 * bytes, and at least 1800 around them. Only asked where looking costs a request: an item that is
 * something else after all is an error when it is read.
 */
static bool is_as_long_as_plain(const struct dcp_tdcp_emitter *w, const struct dcp_tdcp_join *j,
				const uint64_t *len, const struct dcp_tmeta_record *r)
{
	enum { AROUND_MIN = 640, AROUND_MAX = 1720 };
	uint64_t volume, bytes;

	return w->files.dir && w->files.dir->at.row && w->files.dir->at.row->settled &&
	       dcp_shape_volume(len, j->t.ndim, &volume) &&
	       !dcp_ckd_mul(&bytes, volume, j->t.itemsize) && r->nbytes >= bytes + AROUND_MIN &&
	       r->nbytes <= bytes + AROUND_MAX;
}

/*
 * Metadata has the dtype and shape that a tensor shows, and not its class: one that keeps its
 * elements otherwise (torchao's quantized weights and optimizer states) looks as any other. So
 * one item of each kind is looked at; files that cannot be opened are reported when they are
 * read, and so are compressed items. Where MISSES items could not be, no more are tried.
 */
static enum look look(struct dcp_tdcp_emitter *w, const struct dcp_tdcp_join *j,
		      const uint64_t *len, const struct dcp_tmeta_record *r,
		      struct dcp_err *why)
{
	uint64_t kind = kind_of_item(j, len, r);
	uint64_t *known = &w->plain[kind % DCP_LEN(w->plain)];
	enum look found = PLAIN;
	dcp_auto_torch struct dcp_torch *t = NULL;
	struct dcp_titem item;
	const char *name; /* r->file is one only where the record has no error for a filter */

	if (r->filter != DCP_FILTER_NONE || *known == kind || w->misses == MISSES ||
	    is_as_long_as_plain(w, j, len, r))
		return PLAIN;
	name = dcp_intern_text(&w->m->files, r->file);
	if (dcp_titem_open(&w->files, r->file, name, r->off, r->nbytes, DCP_FILTER_NONE, 0,
			   &item, NULL) == 0 &&
	    dcp_torch_open(&item.src, 0, &t, NULL) == 0)
		found = look_inside(j, t, why);
	if (t && found == PLAIN)
		*known = kind;
	w->misses += !t;
	if (found != PLAIN)
		dcp_err_where(why, -ENOTSUP, "%s, item at byte %" PRIu64, name, r->off);
	dcp_titem_finish(&item);
	return found;
}

/* What the join of a key's parts works with. */
struct parting {
	struct dcp_tparts parts;
	struct dcp_copies copies;
	struct dcp_tparts_shard shard;
};

/* Chunk @c is a tensor of several. What is wrong with it goes to @j. */
static int add_shard(struct dcp_tdcp_emitter *w, struct dcp_tdcp_join *j,
		     const struct dcp_piece *c, const struct dcp_tdcp_place *at,
		     struct parting *p)
{
	uint64_t dims[DCP_MAX_NDIM];
	struct dcp_tmeta_record r = dcp_tmeta_record(w->m, at->i, dims);
	const char *name = dcp_intern_text(&w->m->files, r.file);
	struct dcp_tplace_box box = { .lo = c->lo, .at = dcp_origin, .len = c->len };
	dcp_auto_torch struct dcp_torch *t = NULL;
	struct dcp_torch_parts parts;
	struct dcp_titem item;
	int rc;

	if (r.filter != DCP_FILTER_NONE) {
		dcp_fail(&j->why, -ENOTSUP,
			 "a shard that consists of several tensors and is "
			 "stored compressed");
		return 0;
	}
	rc = dcp_titem_open(&w->files, r.file, name, r.off, r.nbytes, DCP_FILTER_NONE, 0, &item,
			    &j->why);
	if (rc == 0)
		rc = dcp_torch_open(&item.src, 0, &t, &j->why);
	if (rc == 0 && (!dcp_torch_parts(dcp_torch_root(t), &parts) || !parts.wraps ||
			parts.ndim != j->t.ndim ||
			memcmp(parts.shape, box.len, j->t.ndim * sizeof(*box.len)) != 0))
		rc = dcp_fail(&j->why, -EBADMSG,
			      "a shard that is not a tensor of several, of the shape that the "
			      "metadata has");
	if (rc == 0)
		rc = dcp_tdcp_file_number(w, r.file, &p->shard.file);
	p->shard.local = box.len;
	p->shard.box = &box;
	p->shard.nbox = 1;
	p->shard.base = r.off;
	p->shard.who = r.file;
	p->shard.name = name;
	if (rc == 0)
		rc = dcp_tparts_add(&p->parts, t, dcp_torch_root(t), &p->shard);
	dcp_titem_finish(&item);
	if (rc == -ENOMEM || !dcp_tdcp_is_broken(j))
		return rc;
	dcp_err_where(&j->why, rc, "%s, item at byte %" PRIu64, name, r.off);
	return 0;
}

/* The shards of such a tensor are joined part by part. 1: they were; 0: @j says why not. */
static int emit_shards(struct dcp_tdcp_emitter *w, struct dcp_tdcp_join *j, const char *key,
		       const char *const *path, size_t npath)
{
	struct parting p = { .shard = { .key = key,
					.path = path,
					.npath = npath,
					.ndim = j->t.ndim,
					.shape = j->shape } };
	size_t hint = 0;
	int rc = 0;

	dcp_tparts_init(&p.parts);
	dcp_copies_init(&p.copies);
	for (size_t i = 0; i < j->t.npieces && rc == 0 && !dcp_tdcp_is_broken(j); i++) {
		const struct dcp_piece *c = &j->t.pieces[i];
		const struct dcp_tdcp_place *at = dcp_tdcp_find_place(j, c, &hint);

		if (at)
			rc = add_shard(w, j, c, at, &p);
		else
			dcp_fail(&j->why, -EBADMSG, "storage_data has no entry for a chunk");
	}
	if (rc == 0 && !dcp_tdcp_is_broken(j)) {
		rc = dcp_tparts_join(&p.parts, &p.copies, w->sink);
		for (uint32_t k = 0; k < p.copies.names.n && rc == 0; k++)
			rc = dcp_copies_emit(&p.copies, k, w->sink, NULL);
		rc = rc < 0 ? rc : 1;
	}
	dcp_tparts_finish(&p.parts);
	dcp_copies_finish(&p.copies);
	return rc;
}

/* A tensor of such a class is emitted as torch.save's are: an object, and the tensors in it
 * by themselves. 1: it was. */
static int emit_subclass(struct dcp_tdcp_emitter *w, struct dcp_tdcp_join *j, uint32_t key)
{
	const struct dcp_tdcp_place *at;
	const char *const *path;
	const char *name = dcp_intern_text(&w->m->names, key);
	struct dcp_tmeta_record r;
	struct dcp_err why = { 0 };
	uint64_t dims[DCP_MAX_NDIM];
	size_t hint = 0, npath;
	int rc;

	at = j->t.npieces ? dcp_tdcp_find_place(j, j->t.pieces, &hint) : NULL;
	if (!at)
		return 0;
	r = dcp_tmeta_record(w->m, at->i, dims);
	if (look(w, j, j->t.pieces->len, &r, &why) != PARTS)
		return 0;
	npath = dcp_tmeta_path(w->m, key, &w->path_text, &w->path_ptrs, &path);
	if (!npath)
		return -ENOMEM;
	if (j->t.npieces > 1 ||
	    memcmp(j->t.pieces->len, j->shape, j->t.ndim * sizeof(*j->shape)) != 0)
		return emit_shards(w, j, name, path, npath);
	rc = dcp_tdcp_emit_parts(w, name, path, npath, &r);
	return rc < 0 ? rc : 1;
}

/* Chunk @p as it lies in its data file, whose number it gets. */
static int locate(struct dcp_tdcp_emitter *w, struct dcp_tdcp_join *j, struct dcp_piece *p,
		  const struct dcp_tdcp_place *at)
{
	uint64_t dims[DCP_MAX_NDIM];
	struct dcp_tmeta_record r = dcp_tmeta_record(w->m, at->i, dims);

	if (r.filter > DCP_FILTER_ZSTD) {
		dcp_fail(&j->why, -EBADMSG, "%s", dcp_tmeta_error(w->m, r.filter));
		return 0;
	}
	p->off = r.off;
	p->nbytes = r.nbytes;
	p->filter = (uint8_t)r.filter;
	check_envelope(w, j, &r, p->run_n);
	return look(w, j, p->len, &r, &j->why) == PLAIN
		       ? dcp_tdcp_file_number(w, r.file, &p->file)
		       : 0;
}

/* Where else pieces are stored; what is wrong with a copy does not concern the tensor. */
static int locate_copies(struct dcp_tdcp_emitter *w, struct dcp_tdcp_join *j)
{
	struct dcp_piece *copy = DCP_ITEMS(w->join.copies, struct dcp_piece);
	size_t hint = 0, n = j->t.ncopies;
	int rc = 0;

	j->t.ncopies = 0;
	for (size_t i = 0; i < n && rc == 0; i++) {
		const struct dcp_tdcp_place *at = dcp_tdcp_find_place(j, &copy[i], &hint);

		rc = at ? locate(w, j, &copy[i], at) : 0;
		if (at && !dcp_tdcp_is_broken(j))
			copy[j->t.ncopies++] = copy[i];
		j->why = (struct dcp_err){ 0 };
	}
	return rc;
}

static int locate_pieces(struct dcp_tdcp_emitter *w, struct dcp_tdcp_join *j)
{
	struct dcp_piece *p = (struct dcp_piece *)(uintptr_t)j->t.pieces; /* in w->join */
	struct dcp_err missing = j->why;
	size_t hint = 0, n = 0;
	int rc = 0;

	j->why = (struct dcp_err){ 0 };
	for (size_t i = 0; i < j->t.npieces && rc == 0 && !dcp_tdcp_is_broken(j); i++) {
		const struct dcp_tdcp_place *at = dcp_tdcp_find_place(j, &p[i], &hint);
		char text[256];

		if (at)
			rc = locate(w, j, &p[i], at);
		else
			dcp_fail(&j->why, -EBADMSG,
				 "storage_data has no entry for its chunk at %s",
				 dcp_dims_text(text, sizeof(text), p[i].lo, j->t.ndim));
		n += rc == 0 && !dcp_tdcp_is_broken(j);
	}
	if (missing.code)
		j->why = missing;
	if (rc == 0 && !dcp_tdcp_is_broken(j))
		return locate_copies(w, j);
	j->t.npieces = n; /* others have no place in a file */
	j->t.ncopies = 0;
	return rc;
}

/* A type that no table knows: the size of its elements is read off an item. */
static int learn_itemsize(struct dcp_tdcp_emitter *w, struct dcp_tdcp_join *j)
{
	const struct dcp_tdcp_place *at;
	struct dcp_titem item;
	struct dcp_torch_tensor tt;
	dcp_auto_torch struct dcp_torch *t = NULL;
	struct dcp_tmeta_record r;
	uint64_t dims[DCP_MAX_NDIM];
	size_t hint = 0;
	int rc;

	if (j->t.itemsize || j->t.npieces == 0)
		return 0;
	at = dcp_tdcp_find_place(j, j->t.pieces, &hint);
	if (!at)
		return 0;
	r = dcp_tmeta_record(w->m, at->i, dims);
	if (r.filter > DCP_FILTER_ZSTD)
		return 0;
	rc = dcp_titem_open(&w->files, r.file, dcp_intern_text(&w->m->files, r.file), r.off,
			    r.nbytes, (enum dcp_filter)r.filter, DCP_TDCP_MAX_DECODED, &item,
			    &j->why);
	if (rc == 0)
		rc = dcp_torch_open(&item.src, 0, &t, &j->why);
	if (rc == 0 && dcp_torch_tensor(t, dcp_torch_root(t), &tt, &j->why) == 1)
		j->t.itemsize = tt.itemsize;
	if (!j->t.itemsize && !dcp_tdcp_is_broken(j))
		dcp_fail(&j->why, -ENOTSUP,
			 "torch dtype %s: the size of its elements is not known",
			 j->t.dtype_name);
	dcp_titem_finish(&item);
	return rc == -ENOMEM ? -ENOMEM : 0;
}

int dcp_tdcp_emit_tensor(struct dcp_tdcp_emitter *w, uint32_t key)
{
	struct dcp_tdcp_join j;
	uint64_t shape[DCP_MAX_NDIM];
	uint32_t ndim;
	int rc = dcp_tdcp_join(w, key, &j);

	if (rc == 0 && !dcp_tdcp_is_broken(&j))
		rc = learn_itemsize(w, &j);
	if (rc == 0 && !dcp_tdcp_is_broken(&j))
		rc = emit_subclass(w, &j, key);
	if (rc > 0)
		return 0;
	if (rc == 0 && j.t.npieces)
		rc = locate_pieces(w, &j);
	if (rc < 0)
		return rc;
	if (!dcp_tdcp_is_broken(&j) && dcp_tmeta_shape(w->m, key, shape, &ndim))
		dcp_tdcp_unfold(w, &j, shape, ndim);
	j.t.key = dcp_intern_text(&w->m->names, key);
	j.t.entry = !w->d->missing;
	j.t.npath = dcp_tmeta_path(w->m, key, &w->path_text, &w->path_ptrs, &j.t.path);
	if (!j.t.npath)
		return -ENOMEM;
	if (dcp_tdcp_is_broken(&j))
		j.t.error = j.why.msg;
	return dcp_emit_tensor(w->sink, &j.t);
}
