/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/dcp/dcp_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/hash.h"
#include "core/base/text.h"
#include "core/format/gather/join.h"
#include "core/format/torch/torch.h"
#include "core/parse/torch/torch.h"

/*
 * The chunks of one tensor (what state_dict_metadata says) and its records (where
 * storage_data says they lie), ready to be matched by offsets. Both are sorted once, so a key
 * with n chunks costs n log n. Chunks without elements are left out: torch stores all of them
 * as one.
 */

static void set_dtype(struct dcp_dcp_emitter *w, struct dcp_dcp_join *j, uint32_t dtype,
		      uint32_t dname)
{
	const char *name = w->m->dtypes.n ? dcp_intern_text(&w->m->dtypes, dname) : "";

	j->t.dtype = (enum dcp_dtype)dtype;
	if (dtype != DCP_DTYPE_OTHER) {
		j->t.dtype_name = dcp_dtype_info(j->t.dtype)->name;
		j->t.itemsize = dcp_dtype_info(j->t.dtype)->size;
		return;
	}
	snprintf(j->dtype_name, sizeof(j->dtype_name), "%s", name);
	j->t.dtype_name = j->dtype_name;
	j->t.itemsize = dcp_torch_itemsize(name);
}

/* Take the head of the first entry, and compare the heads of later entries with it. */
static void read_head(struct dcp_dcp_emitter *w, struct dcp_dcp_join *j,
		      struct dcp_dcp_meta_entry *e, bool first)
{
	uint32_t dtype = (uint32_t)dcp_cur_varint(&e->c);
	uint32_t dname = (uint32_t)dcp_cur_varint(&e->c);
	uint32_t ndim = (uint32_t)dcp_cur_varint(&e->c);
	bool same = !first && ndim == j->t.ndim && dtype == j->t.dtype;
	uint64_t len;

	if (first) {
		set_dtype(w, j, dtype, dname);
		j->t.ndim = ndim;
	}
	for (uint32_t k = 0; k < ndim; k++) {
		uint64_t d = dcp_cur_varint(&e->c);

		if (first)
			j->shape[k] = d;
		else
			same = same && j->shape[k] == d;
	}
	len = dcp_cur_varint(&e->c);
	if (len) {
		const uint8_t *text = dcp_cur_take(&e->c, len);

		dcp_fail(&j->why, -EBADMSG, "%.*s", (int)len, (const char *)text);
	} else if (!first && !same) {
		dcp_fail(&j->why, -EBADMSG, "ranks disagree about its dtype or shape");
	}
}

/* Add chunks with elements to w->join; lo is a place in dims until all are added. */
static int read_chunks(struct dcp_dcp_emitter *w, struct dcp_dcp_join *j,
		       struct dcp_dcp_meta_entry *e)
{
	uint64_t n = dcp_cur_varint(&e->c);
	uint32_t ndim = j->t.ndim;

	for (uint64_t i = 0; i < n; i++) {
		struct dcp_piece c = { .file = e->rank_file, .enc = DCP_ENC_TORCH };
		uintptr_t at = w->dims.n;
		uint64_t *d = dcp_buf_grow(&w->dims, 2 * sizeof(uint64_t) * ndim);

		if (!d && ndim)
			return -ENOMEM;
		for (uint32_t k = 0; k < 2 * ndim; k++)
			d[k] = dcp_cur_varint(&e->c);
		if (!dcp_shape_volume(d + ndim, ndim, &c.run_n)) {
			dcp_fail(&j->why, -EBADMSG,
				 "a chunk's number of elements does not fit in 64 bits");
			return 0;
		}
		if (c.run_n == 0) {
			w->dims.n = at;
			continue;
		}
		c.lo = (uint64_t *)at;
		dcp_join_add(&w->join, &c);
	}
	return dcp_buf_error(&w->join.added);
}

/* Read the entries of a key from the first rank file to the last; the chain begins at the last. */
static int read_entries(struct dcp_dcp_emitter *w, struct dcp_dcp_join *j, uint32_t key)
{
	uint32_t at = w->m->keys[key].entry;
	struct dcp_buf *order = &w->places; /* not needed yet */
	int rc = 0;

	dcp_buf_reset(order);
	for (; at; at = dcp_dcp_meta_entry(w->m, at).before)
		dcp_buf_add(order, &at, sizeof(at));
	if (dcp_buf_error(order))
		return -ENOMEM;
	for (size_t i = order->n / sizeof(at); i-- > 0 && rc == 0 && !dcp_dcp_is_broken(j);) {
		struct dcp_dcp_meta_entry e;

		memcpy(&at, order->p + i * sizeof(at), sizeof(at));
		e = dcp_dcp_meta_entry(w->m, at);
		if (e.kind != DCP_DCP_META_TENSOR) {
			dcp_fail(&j->why, -EBADMSG,
				 "some ranks stored a tensor, others an object");
			return 0;
		}
		read_head(w, j, &e, (i + 1) * sizeof(at) == order->n);
		if (!dcp_dcp_is_broken(j))
			rc = read_chunks(w, j, &e);
	}
	return rc;
}

static int read_places(struct dcp_dcp_emitter *w, struct dcp_dcp_join *j, uint32_t key)
{
	const struct dcp_dcp_meta *m = w->m;
	uint64_t lo[DCP_MAX_NDIM];

	for (uint32_t i = m->keys[key].first; i < m->keys[key + 1].first; i++) {
		struct dcp_dcp_meta_record r = dcp_dcp_meta_record(m, i, lo);
		struct dcp_dcp_place p = { .rank_file = r.rank_file, .i = i };

		if (r.ndim != j->t.ndim)
			continue; /* an index of another shape belongs to no chunk */
		p.lo = (const uint64_t *)(uintptr_t)w->dims.n;
		dcp_buf_add(&w->dims, lo, sizeof(*lo) * r.ndim);
		dcp_buf_add(&w->places, &p, sizeof(p));
	}
	if (dcp_buf_error(&w->dims) || dcp_buf_error(&w->places))
		return -ENOMEM;
	return 0;
}

static void point_at_dims(struct dcp_dcp_emitter *w, struct dcp_dcp_join *j)
{
	char *dims = w->dims.p;
	struct dcp_piece *chunk = DCP_ITEMS(w->join.added, struct dcp_piece);

	j->place = DCP_ITEMS(w->places, struct dcp_dcp_place);
	j->nplaces = w->places.n / sizeof(*j->place);
	for (size_t i = 0; i < DCP_NITEMS(w->join.added, struct dcp_piece); i++) {
		chunk[i].lo = (uint64_t *)(void *)(dims + (uintptr_t)chunk[i].lo);
		chunk[i].len = chunk[i].lo + j->t.ndim;
	}
	for (size_t i = 0; i < j->nplaces; i++)
		j->place[i].lo =
			(const uint64_t *)(const void *)(dims + (uintptr_t)j->place[i].lo);
}

static int compare_places(const void *pa, const void *pb, void *ndim)
{
	const struct dcp_dcp_place *a = pa, *b = pb;

	return DCP_CMP(a->rank_file, b->rank_file)
		       ?: dcp_dims_compare(a->lo, b->lo, *(const uint32_t *)ndim);
}

static void sort_places(struct dcp_dcp_join *j)
{
	for (size_t i = 1; i < j->nplaces; i++)
		if (compare_places(&j->place[i - 1], &j->place[i], &j->t.ndim) > 0) {
			qsort_r(j->place, j->nplaces, sizeof(*j->place), compare_places,
				&j->t.ndim);
			return;
		}
}

/* Find the last of equal places: a later pair replaces an earlier one in a dict. */
static const struct dcp_dcp_place *dcp_dcp_find_place(const struct dcp_dcp_join *j,
						      const struct dcp_piece *c, size_t *hint)
{
	struct dcp_dcp_place want = { .lo = c->lo, .rank_file = c->file };
	uint32_t ndim = j->t.ndim;
	size_t n = j->nplaces, end;

	if (*hint < n && compare_places(&j->place[*hint], &want, &ndim) == 0 &&
	    (*hint + 1 == n || compare_places(&j->place[*hint + 1], &want, &ndim) > 0))
		return &j->place[(*hint)++];
	DCP_BISECT(end, 0, n, compare_places(&j->place[end], &want, &ndim) <= 0);
	*hint = end;
	if (end == 0 || compare_places(&j->place[end - 1], &want, &ndim) != 0)
		return NULL;
	return &j->place[end - 1];
}

int dcp_dcp_join(struct dcp_dcp_emitter *w, uint32_t key, struct dcp_dcp_join *j)
{
	int rc;

	*j = (struct dcp_dcp_join){ 0 };
	j->t.dtype_name = "";
	j->t.shape = j->shape;
	dcp_buf_reset(&w->dims);
	dcp_join_begin(&w->join);
	rc = read_entries(w, j, key);
	dcp_buf_reset(&w->places);
	if (rc == 0 && !dcp_dcp_is_broken(j))
		rc = read_places(w, j, key);
	if (rc < 0 || dcp_dcp_is_broken(j))
		return rc;
	point_at_dims(w, j);
	sort_places(j);
	return dcp_join_end(&w->join, &j->t, NULL, w->d->missing, &j->why);
}

/*
 * Two tensor-parallel ranks share the rows of a tensor of shape [4, 18, 6], flattened and cut again
 * by data-parallel rank. Megatron 0.12 stores it as [4, 2, 1, 54]: a grid of blocks of 1 x 9 x 6,
 * each of 54 elements in a row. Chunks are runs of one block.
 *
 * Source: megatron/core/dist_checkpointing/strategies/torch.py of core_r0.12.0.
 */

/* The sides of a block: @shape divided by the grid. The grid's last dimension, which @shape lacks,
 * counts a block's elements. */
static bool block_of(const struct dcp_dcp_join *j, const uint64_t *shape, uint32_t ndim,
		     uint64_t *block)
{
	uint64_t volume;

	if (j->t.ndim != ndim + 1)
		return false;
	for (uint32_t k = 0; k < ndim; k++) {
		if (j->shape[k] == 0 || shape[k] % j->shape[k] != 0)
			return false;
		block[k] = shape[k] / j->shape[k];
	}
	return dcp_shape_volume(block, ndim, &volume) && volume == j->shape[ndim];
}

/* Replace the piece's box in the grid by the box of its block and a run of that block. */
static bool unfold_piece(struct dcp_piece *p, const uint64_t *block, uint32_t ndim,
			 uint64_t *dims)
{
	for (uint32_t k = 0; k < ndim; k++) {
		if (p->len[k] != 1 || dcp_ckd_mul(&dims[k], p->lo[k], block[k]))
			return false;
		dims[ndim + k] = block[k];
	}
	p->run_lo = p->lo[ndim];
	p->run_n = p->len[ndim];
	p->lo = dims;
	p->len = dims + ndim;
	p->enc = DCP_ENC_TORCH_FLAT;
	return true;
}

/*
 * Undo the grid in which Megatron 0.12 to 0.15 stored the flat state of its distributed optimizer:
 * blocks along each axis, then the elements of a block. @shape is the tensor's. Pieces become runs
 * of their blocks.
 */
static void dcp_dcp_unfold(struct dcp_dcp_emitter *w, struct dcp_dcp_join *j,
			   const uint64_t *shape, uint32_t ndim)
{
	struct dcp_piece *p = (struct dcp_piece *)(uintptr_t)j->t.pieces;
	size_t each = 2 * sizeof(uint64_t) * ndim, i = 0;
	uint64_t block[DCP_MAX_NDIM], *dims;

	if (!block_of(j, shape, ndim, block)) {
		dcp_fail(&j->why, -EBADMSG,
			 "mcore_data gives it %u dimension%s, which the %u it is stored with "
			 "are "
			 "not a grid of blocks of",
			 ndim, dcp_s(ndim), j->t.ndim);
		return;
	}
	dcp_buf_reset(&w->blocks);
	dims = dcp_buf_grow(&w->blocks, each * j->t.npieces + 1);
	if (!dims) {
		dcp_fail(&j->why, -ENOMEM, "out of memory for its pieces");
		return;
	}
	while (i < j->t.npieces && unfold_piece(&p[i], block, ndim, dims + 2 * ndim * i))
		i++;
	if (i < j->t.npieces) {
		dcp_fail_at(&j->why, -ENOTSUP, p[i].off,
			    "a chunk of several blocks of Megatron's flattened tensors");
		return;
	}
	j->t.ndim = ndim;
	j->t.ncopies = 0; /* their boxes are those of the grid */
	for (uint32_t k = 0; k < ndim; k++)
		j->shape[k] = shape[k];
}

/*
 * A torch.save stream is longer than the tensor in it. An item that is only as long as its elements
 * may come from the plain writer with SerializationFormat.SAFETENSORS, where all items claim the
 * place of one blob. Only such items are examined here.
 */
static void check_envelope(struct dcp_dcp_emitter *w, struct dcp_dcp_join *j,
			   const struct dcp_dcp_meta_record *r, uint64_t elements)
{
	struct dcp_dcp_item item;
	unsigned char head[9];
	uint64_t plain;

	if (r->filter != DCP_FILTER_NONE || r->nbytes < sizeof(head) ||
	    dcp_ckd_mul(&plain, elements, j->t.itemsize) || plain != r->nbytes)
		return;
	if (dcp_dcp_item_open(&w->files, r->file, dcp_intern_text(&w->m->files, r->file),
			      r->off, sizeof(head), DCP_FILTER_NONE, 0, &item, NULL) == 0 &&
	    dcp_source_read(&item.src, 0, head, sizeof(head)) == 0 && head[8] == '{' &&
	    dcp_load_le64(head) <= 100000000)
		dcp_fail_at(
			&j->why, -ENOTSUP, r->off,
			"stored in SerializationFormat.SAFETENSORS by the plain file writer, "
			"which records no usable offsets: save it with torch_save, or "
			"with the HuggingFace writer");
	dcp_dcp_item_finish(&item);
}

/* What a look into an item found. */
enum look { PLAIN, PARTS, REFUSED };

enum { MISSES = 1000 };

/* Items of one dtype, shape and length are alike. */
static uint64_t kind_of_item(const struct dcp_dcp_join *j, const uint64_t *len,
			     const struct dcp_dcp_meta_record *r)
{
	uint64_t kind = dcp_hash64_more(r->nbytes, j->t.dtype_name, strlen(j->t.dtype_name));

	kind = dcp_hash64_more(kind, len, j->t.ndim * sizeof(*len));
	return kind ? kind : 1;
}

static enum look look_inside(const struct dcp_dcp_join *j, const struct dcp_torch *t,
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
 * Is the item as long as the torch.save stream of a plain tensor? A stream of another class differs
 * by at least 1800 bytes. Asked only where examining an item costs a request; an item of another
 * class is then an error when it is read.
 */
static bool is_as_long_as_plain(const struct dcp_dcp_emitter *w, const struct dcp_dcp_join *j,
				const uint64_t *len, const struct dcp_dcp_meta_record *r)
{
	enum { AROUND_MIN = 640, AROUND_MAX = 1720 };
	uint64_t volume, bytes;

	return w->files.dir && w->files.dir->at.row && w->files.dir->at.row->settled &&
	       dcp_shape_volume(len, j->t.ndim, &volume) &&
	       !dcp_ckd_mul(&bytes, volume, j->t.itemsize) && r->nbytes >= bytes + AROUND_MIN &&
	       r->nbytes <= bytes + AROUND_MAX;
}

/*
 * Metadata has the dtype and shape of a tensor, but not its class: torchao's quantized weights and
 * optimizer states, which store their elements otherwise, look like any other tensor. So an item of
 * each kind is examined. Items that are compressed, or whose file cannot be opened, are reported
 * when they are read. After MISSES failures no more items are examined.
 */
static enum look look_at_kind(struct dcp_dcp_emitter *w, const struct dcp_dcp_join *j,
			      const uint64_t *len, const struct dcp_dcp_meta_record *r,
			      struct dcp_err *why)
{
	uint64_t kind = kind_of_item(j, len, r);
	uint64_t *known = &w->plain[kind % DCP_LEN(w->plain)];
	enum look found = PLAIN;
	dcp_auto_torch struct dcp_torch *t = NULL;
	struct dcp_dcp_item item;
	const char *name; /* r->file is valid only if the filter is not an error */

	if (r->filter != DCP_FILTER_NONE || *known == kind || w->misses == MISSES ||
	    is_as_long_as_plain(w, j, len, r))
		return PLAIN;
	name = dcp_intern_text(&w->m->files, r->file);
	if (dcp_dcp_item_open(&w->files, r->file, name, r->off, r->nbytes, DCP_FILTER_NONE, 0,
			      &item, NULL) == 0 &&
	    dcp_torch_open(&item.src, 0, &t, NULL) == 0)
		found = look_inside(j, t, why);
	if (t && found == PLAIN)
		*known = kind;
	w->misses += !t;
	if (found != PLAIN)
		dcp_err_where(why, -ENOTSUP, "%s, item at byte %" PRIu64, name, r->off);
	dcp_dcp_item_finish(&item);
	return found;
}

/* The state of the join of a key's parts. */
struct parting {
	struct dcp_shard_parts parts;
	struct dcp_copies copies;
	struct dcp_shard_parts_shard shard;
};

/* Add chunk @c, a tensor made of several tensors. Faults go to @j. */
static int add_shard(struct dcp_dcp_emitter *w, struct dcp_dcp_join *j,
		     const struct dcp_piece *c, const struct dcp_dcp_place *at,
		     struct parting *p)
{
	uint64_t dims[DCP_MAX_NDIM];
	struct dcp_dcp_meta_record r = dcp_dcp_meta_record(w->m, at->i, dims);
	const char *name = dcp_intern_text(&w->m->files, r.file);
	struct dcp_torch_placement_box box = { .lo = c->lo, .at = dcp_origin, .len = c->len };
	dcp_auto_torch struct dcp_torch *t = NULL;
	struct dcp_torch_parts parts;
	struct dcp_dcp_item item;
	int rc;

	if (r.filter != DCP_FILTER_NONE) {
		dcp_fail(&j->why, -ENOTSUP,
			 "a shard that consists of several tensors and is "
			 "stored compressed");
		return 0;
	}
	rc = dcp_dcp_item_open(&w->files, r.file, name, r.off, r.nbytes, DCP_FILTER_NONE, 0,
			       &item, &j->why);
	if (rc == 0)
		rc = dcp_torch_open(&item.src, 0, &t, &j->why);
	if (rc == 0 && (!dcp_torch_parts(dcp_torch_root(t), &parts) || !parts.wraps ||
			parts.ndim != j->t.ndim ||
			memcmp(parts.shape, box.len, j->t.ndim * sizeof(*box.len)) != 0))
		rc = dcp_fail(&j->why, -EBADMSG,
			      "a shard that is not a tensor of several, of the shape that the "
			      "metadata has");
	if (rc == 0)
		rc = dcp_dcp_file_number(w, r.file, &p->shard.file);
	p->shard.local = box.len;
	p->shard.box = &box;
	p->shard.nbox = 1;
	p->shard.base = r.off;
	p->shard.who = r.file;
	p->shard.name = name;
	if (rc == 0)
		rc = dcp_shard_parts_add(&p->parts, t, dcp_torch_root(t), &p->shard);
	dcp_dcp_item_finish(&item);
	if (rc == -ENOMEM || !dcp_dcp_is_broken(j))
		return rc;
	dcp_err_where(&j->why, rc, "%s, item at byte %" PRIu64, name, r.off);
	return 0;
}

/* Join the shards of a tensor made of parts, part by part. 1: joined; 0: @j has the reason. */
static int emit_shards(struct dcp_dcp_emitter *w, struct dcp_dcp_join *j, const char *key,
		       const char *const *path, size_t npath)
{
	struct parting p = { .shard = { .key = key,
					.path = path,
					.npath = npath,
					.ndim = j->t.ndim,
					.shape = j->shape } };
	size_t hint = 0;
	int rc = 0;

	dcp_shard_parts_init(&p.parts);
	dcp_copies_init(&p.copies);
	for (size_t i = 0; i < j->t.npieces && rc == 0 && !dcp_dcp_is_broken(j); i++) {
		const struct dcp_piece *c = &j->t.pieces[i];
		const struct dcp_dcp_place *at = dcp_dcp_find_place(j, c, &hint);

		if (at)
			rc = add_shard(w, j, c, at, &p);
		else
			dcp_fail(&j->why, -EBADMSG, "storage_data has no entry for a chunk");
	}
	if (rc == 0 && !dcp_dcp_is_broken(j)) {
		rc = dcp_shard_parts_join(&p.parts, &p.copies, w->sink);
		for (uint32_t k = 0; k < p.copies.names.n && rc == 0; k++)
			rc = dcp_copies_emit(&p.copies, k, w->sink, NULL);
		rc = rc < 0 ? rc : 1;
	}
	dcp_shard_parts_finish(&p.parts);
	dcp_copies_finish(&p.copies);
	return rc;
}

/* Emit a tensor of a subclass as torch.save's are: an object, and the tensors in it by themselves.
 * 1: emitted. */
static int emit_subclass(struct dcp_dcp_emitter *w, struct dcp_dcp_join *j, uint32_t key)
{
	const struct dcp_dcp_place *at;
	const char *const *path;
	const char *name = dcp_intern_text(&w->m->names, key);
	struct dcp_dcp_meta_record r;
	struct dcp_err why = { 0 };
	uint64_t dims[DCP_MAX_NDIM];
	size_t hint = 0, npath;
	int rc;

	at = j->t.npieces ? dcp_dcp_find_place(j, j->t.pieces, &hint) : NULL;
	if (!at)
		return 0;
	r = dcp_dcp_meta_record(w->m, at->i, dims);
	if (look_at_kind(w, j, j->t.pieces->len, &r, &why) != PARTS)
		return 0;
	npath = dcp_dcp_meta_path(w->m, key, &w->path_text, &w->path_ptrs, &path);
	if (!npath)
		return -ENOMEM;
	if (j->t.npieces > 1 ||
	    memcmp(j->t.pieces->len, j->shape, j->t.ndim * sizeof(*j->shape)) != 0)
		return emit_shards(w, j, name, path, npath);
	rc = dcp_dcp_emit_parts(w, name, path, npath, &r);
	return rc < 0 ? rc : 1;
}

/* Set the file number and the place of chunk @p. */
static int locate_chunk(struct dcp_dcp_emitter *w, struct dcp_dcp_join *j, struct dcp_piece *p,
			const struct dcp_dcp_place *at)
{
	uint64_t dims[DCP_MAX_NDIM];
	struct dcp_dcp_meta_record r = dcp_dcp_meta_record(w->m, at->i, dims);

	if (r.filter > DCP_FILTER_ZSTD) {
		dcp_fail(&j->why, -EBADMSG, "%s", dcp_dcp_meta_error(w->m, r.filter));
		return 0;
	}
	p->off = r.off;
	p->nbytes = r.nbytes;
	p->filter = (uint8_t)r.filter;
	check_envelope(w, j, &r, p->run_n);
	return look_at_kind(w, j, p->len, &r, &j->why) == PLAIN
		       ? dcp_dcp_file_number(w, r.file, &p->file)
		       : 0;
}

/* Locate the copies of pieces. A fault of a copy does not concern the tensor. */
static int locate_copies(struct dcp_dcp_emitter *w, struct dcp_dcp_join *j)
{
	struct dcp_piece *copy = DCP_ITEMS(w->join.copies, struct dcp_piece);
	size_t hint = 0, n = j->t.ncopies;
	int rc = 0;

	j->t.ncopies = 0;
	for (size_t i = 0; i < n && rc == 0; i++) {
		const struct dcp_dcp_place *at = dcp_dcp_find_place(j, &copy[i], &hint);

		rc = at ? locate_chunk(w, j, &copy[i], at) : 0;
		if (at && !dcp_dcp_is_broken(j))
			copy[j->t.ncopies++] = copy[i];
		j->why = (struct dcp_err){ 0 };
	}
	return rc;
}

static int locate_pieces(struct dcp_dcp_emitter *w, struct dcp_dcp_join *j)
{
	struct dcp_piece *p = (struct dcp_piece *)(uintptr_t)j->t.pieces; /* in w->join */
	struct dcp_err missing = j->why;
	size_t hint = 0, n = 0;
	int rc = 0;

	j->why = (struct dcp_err){ 0 };
	for (size_t i = 0; i < j->t.npieces && rc == 0 && !dcp_dcp_is_broken(j); i++) {
		const struct dcp_dcp_place *at = dcp_dcp_find_place(j, &p[i], &hint);
		char text[256];

		if (at)
			rc = locate_chunk(w, j, &p[i], at);
		else
			dcp_fail(&j->why, -EBADMSG,
				 "storage_data has no entry for its chunk at %s",
				 dcp_dims_text(text, sizeof(text), p[i].lo, j->t.ndim));
		n += rc == 0 && !dcp_dcp_is_broken(j);
	}
	if (missing.code)
		j->why = missing;
	if (rc == 0 && !dcp_dcp_is_broken(j))
		return locate_copies(w, j);
	j->t.npieces = n; /* the rest have no place in a file */
	j->t.ncopies = 0;
	return rc;
}

/* Read the element size of an unknown type from an item. */
static int learn_itemsize(struct dcp_dcp_emitter *w, struct dcp_dcp_join *j)
{
	const struct dcp_dcp_place *at;
	struct dcp_dcp_item item;
	struct dcp_torch_tensor tt;
	dcp_auto_torch struct dcp_torch *t = NULL;
	struct dcp_dcp_meta_record r;
	uint64_t dims[DCP_MAX_NDIM];
	size_t hint = 0;
	int rc;

	if (j->t.itemsize || j->t.npieces == 0)
		return 0;
	at = dcp_dcp_find_place(j, j->t.pieces, &hint);
	if (!at)
		return 0;
	r = dcp_dcp_meta_record(w->m, at->i, dims);
	if (r.filter > DCP_FILTER_ZSTD)
		return 0;
	rc = dcp_dcp_item_open(&w->files, r.file, dcp_intern_text(&w->m->files, r.file), r.off,
			       r.nbytes, (enum dcp_filter)r.filter, DCP_DCP_MAX_DECODED, &item,
			       &j->why);
	if (rc == 0)
		rc = dcp_torch_open(&item.src, 0, &t, &j->why);
	if (rc == 0 && dcp_torch_tensor(t, dcp_torch_root(t), &tt, &j->why) == 1)
		j->t.itemsize = tt.itemsize;
	if (!j->t.itemsize && !dcp_dcp_is_broken(j))
		dcp_fail(&j->why, -ENOTSUP,
			 "torch dtype %s: the size of its elements is not known",
			 j->t.dtype_name);
	dcp_dcp_item_finish(&item);
	return rc == -ENOMEM ? -ENOMEM : 0;
}

int dcp_dcp_emit_tensor(struct dcp_dcp_emitter *w, uint32_t key)
{
	struct dcp_dcp_join j;
	uint64_t shape[DCP_MAX_NDIM];
	uint32_t ndim;
	int rc = dcp_dcp_join(w, key, &j);

	if (rc == 0 && !dcp_dcp_is_broken(&j))
		rc = learn_itemsize(w, &j);
	if (rc == 0 && !dcp_dcp_is_broken(&j))
		rc = emit_subclass(w, &j, key);
	if (rc > 0)
		return 0;
	if (rc == 0 && j.t.npieces)
		rc = locate_pieces(w, &j);
	if (rc < 0)
		return rc;
	if (!dcp_dcp_is_broken(&j) && dcp_dcp_meta_shape(w->m, key, shape, &ndim))
		dcp_dcp_unfold(w, &j, shape, ndim);
	j.t.key = dcp_intern_text(&w->m->names, key);
	j.t.entry = !w->d->missing;
	j.t.npath = dcp_dcp_meta_path(w->m, key, &w->path_text, &w->path_ptrs, &j.t.path);
	if (!j.t.npath)
		return -ENOMEM;
	if (dcp_dcp_is_broken(&j))
		j.t.error = j.why.msg;
	return dcp_emit_tensor(w->sink, &j.t);
}
