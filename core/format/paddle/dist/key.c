/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Emits one key: joins the arrays of its records into the pieces that its entries list. Metadata
 * can list two cuts of one tensor. So a piece that cannot be read is an error only if no other
 * piece covers its elements.
 */
#include "core/format/paddle/dist/dist_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/format/format.h"

/* The dtype and the shape of a key, which all its pieces have in common. */

static void set_dtype(struct dcp_paddle_join *j, const char *name)
{
	enum dcp_dtype dtype = dcp_dtype_from_torch(name, strlen(name));

	if (j->sized && dtype == j->t.dtype)
		return;
	if (j->sized)
		dcp_paddle_join_fail(j, "its pieces are of different dtypes, %.32s among them",
				     name);
	j->sized = true;
	j->t.dtype = dtype;
	j->t.dtype_name = dtype == DCP_DTYPE_OTHER ? name : dcp_dtype_info(dtype)->name;
	j->t.itemsize = dcp_dtype_info(dtype)->size;
}

/* Take the dtype of a stored array if metadata records none. Then u2 is bfloat16, because those
 * versions of Paddle had no uint16. */
static void dcp_paddle_join_stored_dtype(struct dcp_paddle_dist *d, struct dcp_paddle_join *j,
					 const struct dcp_paddle_array *loc)
{
	enum dcp_dtype dtype = loc->dtype == DCP_DTYPE_U16 ? DCP_DTYPE_BF16 : loc->dtype;

	if (j->sized && j->t.dtype != dtype)
		dcp_paddle_join_fail(j, "its pieces are stored as different dtypes, %s and %s",
				     j->t.dtype_name, loc->dtype_name);
	j->sized = true;
	j->t.dtype = dtype;
	j->t.dtype_name =
		dtype == DCP_DTYPE_OTHER ? loc->dtype_name : dcp_dtype_info(dtype)->name;
	j->t.itemsize = loc->itemsize;
}

static void join_shape(struct dcp_paddle_join *j, const uint64_t *shape, bool *said)
{
	if (*said && memcmp(j->shape, shape, j->t.ndim * sizeof(*shape)) != 0)
		dcp_paddle_join_fail(j, "its pieces disagree about global_shape");
	memcpy(j->shape, shape, j->t.ndim * sizeof(*shape));
	*said = true;
}

/* Grow the shape of the key so that the piece @box fits in. */
static void grow_shape(struct dcp_paddle_dist *d, struct dcp_paddle_join *j,
		       const struct dcp_paddle_meta_box *box)
{
	const uint64_t *lo = dcp_paddle_meta_dims(&d->meta, box->lo);
	const uint64_t *len = dcp_paddle_meta_dims(&d->meta, box->len);

	for (uint32_t k = 0; k < j->t.ndim; k++) {
		uint64_t end;

		if (dcp_ckd_add(&end, lo[k], len[k]))
			dcp_paddle_join_fail(j, "a piece ends beyond any shape");
		else
			j->shape[k] = DCP_MAX(j->shape[k], end);
	}
}

/* Find the dtype and the shape of the key from its entries. */
static void dcp_paddle_join_head(struct dcp_paddle_dist *d, struct dcp_paddle_join *j,
				 const struct dcp_paddle_meta_key *k)
{
	bool said = false;
	uint64_t volume;
	uint32_t i;

	if (k->entry == DCP_PADDLE_META_NONE) {
		dcp_paddle_join_fail(j, "%.100s lists no piece of it", d->meta_name);
		return;
	}
	j->t.ndim = dcp_paddle_meta_entry(&d->meta, k->entry)->box.ndim;
	for (i = k->entry; i != DCP_PADDLE_META_NONE && !dcp_paddle_join_broken(j);) {
		const struct dcp_paddle_meta_entry *e = dcp_paddle_meta_entry(&d->meta, i);

		i = e->next;
		if (e->box.ndim != j->t.ndim)
			dcp_paddle_join_fail(
				j, "its pieces are of different numbers of dimensions");
		else if (e->shape != DCP_PADDLE_META_NO_DIMS)
			join_shape(j, dcp_paddle_meta_dims(&d->meta, e->shape), &said);
		if (e->dtype != DCP_PADDLE_META_NONE)
			set_dtype(j, dcp_intern_text(&d->meta.dtypes, e->dtype));
	}
	for (i = k->entry; i != DCP_PADDLE_META_NONE && !dcp_paddle_join_broken(j) && !said;) {
		const struct dcp_paddle_meta_entry *e = dcp_paddle_meta_entry(&d->meta, i);

		i = e->next;
		grow_shape(d, j, &e->box);
	}
	if (!dcp_paddle_join_broken(j) && !dcp_shape_volume(j->shape, j->t.ndim, &volume))
		dcp_paddle_join_fail(j, "its shape does not fit in 64 bits");
}

/*
 * Explains an array whose shape differs from the metadata. From 3.2 on, a save that finds metadata
 * of its id does not replace it, so an array that does not fit is of another save. Earlier
 * versions always wrote their own metadata; there the shape was recorded wrongly, for one of two
 * reasons.
 *
 * Either several mesh dimensions cut one dimension of the tensor. 2.6 refuses to make such a
 * tensor. 3.0 records the shape that the last of these mesh dimensions alone would give, and of
 * the ranks that differ in the other mesh dimensions only the lowest stores its piece. 3.1 does
 * both right.
 *
 * Or ranks saved tensors of several shapes under one key: an offset has only one file, so the
 * lowest rank's file stands for all.
 */

/* Does another entry at the same place have the shape @shape? */
static bool meant_by_other(const struct dcp_paddle_dist *d, const struct dcp_paddle_join *j,
			   const struct dcp_paddle_meta_entry *e, const uint64_t *shape)
{
	const struct dcp_paddle_meta *m = &d->meta;

	for (uint32_t i = j->key->entry; i != DCP_PADDLE_META_NONE;) {
		const struct dcp_paddle_meta_entry *o = dcp_paddle_meta_entry(m, i);

		i = o->next;
		if (o != e && o->box.ndim == e->box.ndim &&
		    dcp_dims_compare(dcp_paddle_meta_dims(m, o->box.lo),
				     dcp_paddle_meta_dims(m, e->box.lo), e->box.ndim) == 0 &&
		    dcp_dims_compare(dcp_paddle_meta_dims(m, o->box.len), shape, e->box.ndim) ==
			    0)
			return true;
	}
	return false;
}

/* The dimension in which @shape is smaller than @len; @ndim if there is none, or if @shape is
 * larger in another. */
static uint32_t cut_again(const uint64_t *len, const uint64_t *shape, uint32_t ndim)
{
	uint32_t found = ndim;

	for (uint32_t k = 0; k < ndim; k++) {
		if (shape[k] > len[k])
			return ndim;
		if (shape[k] < len[k] && found == ndim)
			found = k;
	}
	return found;
}

static void say_why(char *buf, size_t size, const struct dcp_paddle_dist *d,
		    const struct dcp_paddle_join *j, const struct dcp_paddle_meta_entry *e,
		    const struct dcp_paddle_array *loc)
{
	uint32_t ndim = e->box.ndim, k = ndim;

	if (d->meta.generation != 'C' && loc->ndim == ndim) {
		if (meant_by_other(d, j, e, loc->shape)) {
			snprintf(buf, size,
				 "ranks saved tensors of different shapes under this key, "
				 "which Paddle before 3.2 cannot tell apart");
			return;
		}
		k = cut_again(dcp_paddle_meta_dims(&d->meta, e->box.len), loc->shape, ndim);
	}
	if (k < ndim)
		snprintf(buf, size,
			 "several mesh dimensions cut dimension %" PRIu32
			 ", of which Paddle 3.0 records the last one only, and it drops the "
			 "pieces of some ranks: save it again with 3.1 or later",
			 k);
	else
		snprintf(buf, size, "%s",
			 d->meta.generation == 'C'
				 ? "stale metadata, the data was saved again in another cut"
				 : "metadata and data are of different saves");
}

/* Describe in d->join that the array of @r has another shape than @e says. */
static void dcp_paddle_join_misfit(struct dcp_paddle_dist *d, struct dcp_paddle_join *j,
				   const struct dcp_paddle_meta_entry *e,
				   const struct dcp_paddle_meta_record *r,
				   const struct dcp_paddle_array *loc)
{
	const uint64_t *len = dcp_paddle_meta_dims(&d->meta, e->box.len);
	uint64_t run = e->box.run_hi - e->box.run_lo;
	char is[100], said[100], at[100], why[256];

	if (d->join.lost.code)
		return;
	dcp_dims_text(is, sizeof(is), loc->shape, loc->ndim);
	dcp_dims_text(said, sizeof(said), e->box.flat ? &run : len,
		      e->box.flat ? 1 : e->box.ndim);
	dcp_box_text(at, sizeof(at), dcp_paddle_meta_dims(&d->meta, e->box.lo), len,
		     e->box.ndim);
	say_why(why, sizeof(why), d, j, e, loc);
	dcp_join_lose(&d->join, -EBADMSG,
		      "%.100s says its piece %s is an array of shape %s, %.100s holds %s: %s",
		      d->meta_name, at, said, dcp_intern_text(&d->meta.files, r->file), is,
		      why);
}

/*
 * Finds for an entry, which describes a piece, a record of storage_metadata whose array is that
 * piece. Copies of a piece (replicas, files of several ranks) are tried one after the other. The
 * next copy that fits is read in case the first copy's file cannot be read.
 */

/* How many records after the first that fits are tried for another copy of the piece: a limit for
 * metadata that repeats the same records endlessly. */
enum { OTHERS = 16 };

/* Compare boxes by offset and run, the keys of the look-up. */
static int compare_boxes(const struct dcp_paddle_meta *m, const struct dcp_paddle_meta_box *a,
			 const struct dcp_paddle_meta_box *b)
{
	return DCP_CMP(a->ndim, b->ndim) ?:
	       dcp_dims_compare(dcp_paddle_meta_dims(m, a->lo), dcp_paddle_meta_dims(m, b->lo), a->ndim) ?:
	       DCP_CMP(a->flat, b->flat) ?: DCP_CMP(a->run_lo, b->run_lo) ?:
	       DCP_CMP(a->run_hi, b->run_hi);
}

static int compare_records(const void *pa, const void *pb, void *meta)
{
	const struct dcp_paddle_meta *m = meta;
	uint32_t x = *(const uint32_t *)pa, y = *(const uint32_t *)pb;
	const struct dcp_paddle_meta_record *a = dcp_paddle_meta_record(m, x),
					    *b = dcp_paddle_meta_record(m, y);

	/* of equal records the record that was read last counts, so it comes first */
	return compare_boxes(m, &a->box, &b->box) ?: DCP_CMP(a->replica, b->replica) ?:
	       DCP_CMP(y, x);
}

/* Put the key's records into d->found, in order. */
static int dcp_paddle_join_sort(struct dcp_paddle_dist *d, const struct dcp_paddle_meta_key *k,
				size_t *n)
{
	dcp_buf_reset(&d->found);
	for (uint32_t i = k->record; i != DCP_PADDLE_META_NONE;
	     i = dcp_paddle_meta_record(&d->meta, i)->next)
		dcp_buf_add(&d->found, &i, sizeof(i));
	if (dcp_buf_error(&d->found))
		return -ENOMEM;
	*n = DCP_NITEMS(d->found, uint32_t);
	if (*n > 1)
		qsort_r(d->found.p, *n, sizeof(uint32_t), compare_records, &d->meta);
	return 0;
}

/* May an array of dtype @stored hold values of dtype @meant? numpy has no bfloat16 and no float8,
 * so these are stored as integers of the same size. */
static bool stands_for(enum dcp_dtype stored, enum dcp_dtype meant)
{
	if (stored == meant)
		return true;
	switch (dcp_dtype_info(meant)->size) {
	case 1:
		return (stored == DCP_DTYPE_I8 || stored == DCP_DTYPE_U8) &&
		       dcp_dtype_info(meant)->widened;
	case 2:
		return stored == DCP_DTYPE_U16 && meant == DCP_DTYPE_BF16;
	default:
		return meant == DCP_DTYPE_OTHER;
	}
}

/* Is the array of @r the piece that @e describes? If not, why. */
static bool fits_entry(struct dcp_paddle_dist *d, struct dcp_paddle_join *j,
		       const struct dcp_paddle_meta_entry *e,
		       const struct dcp_paddle_meta_record *r,
		       const struct dcp_paddle_array *loc)
{
	const char *file = dcp_intern_text(&d->meta.files, r->file);
	uint64_t run = e->box.run_hi - e->box.run_lo;
	const uint64_t *want = e->box.flat ? &run : j->len;
	uint32_t nwant = e->box.flat ? 1 : e->box.ndim;

	if (r->box.len != DCP_PADDLE_META_NO_DIMS &&
	    dcp_dims_compare(dcp_paddle_meta_dims(&d->meta, r->box.len),
			     dcp_paddle_meta_dims(&d->meta, e->box.len), e->box.ndim) != 0)
		return false; /* a record of another cut of the same tensor */
	if (loc->error) {
		dcp_join_lose(&d->join, -EBADMSG, "%s", loc->error);
		return false;
	}
	if (loc->ndim != nwant || dcp_dims_compare(loc->shape, want, nwant) != 0) {
		dcp_paddle_join_misfit(d, j, e, r, loc);
		return false;
	}
	if (e->dtype != DCP_PADDLE_META_NONE && !stands_for(loc->dtype, j->t.dtype)) {
		dcp_join_lose(&d->join, -EBADMSG, "%.100s says it is %s, %.100s holds %s",
			      d->meta_name, j->t.dtype_name, file, loc->dtype_name);
		return false;
	}
	return true;
}

static bool same_dtype(const struct dcp_paddle_array *a, const struct dcp_paddle_array *b)
{
	return a->dtype == b->dtype && strcmp(a->dtype_name, b->dtype_name) == 0;
}

/* The number of the record whose array is the piece @e, or DCP_PADDLE_META_NONE, with the reason in
 * d->join. *@other: the number of another such record in another file, or DCP_PADDLE_META_NONE. */
static uint32_t dcp_paddle_join_find(struct dcp_paddle_dist *d, struct dcp_paddle_join *j,
				     const struct dcp_paddle_meta_entry *e, size_t n,
				     uint32_t *other)
{
	uint32_t first = DCP_PADDLE_META_NONE;
	const uint32_t *found = DCP_ITEMS(d->found, uint32_t);
	size_t i, tried = 0;
	char at[200];

	*other = DCP_PADDLE_META_NONE;
	DCP_BISECT(i, 0, n,
		   compare_boxes(&d->meta, &dcp_paddle_meta_record(&d->meta, found[i])->box,
				 &e->box) < 0);
	for (; i < n; i++) {
		const struct dcp_paddle_meta_record *r =
			dcp_paddle_meta_record(&d->meta, found[i]);

		if (compare_boxes(&d->meta, &r->box, &e->box) != 0)
			break;
		if (first == DCP_PADDLE_META_NONE) {
			if (fits_entry(d, j, e, r, dcp_paddle_dist_loc(d, found[i])))
				first = found[i];
			continue;
		}
		if (tried++ == OTHERS)
			break;
		if (r->file == dcp_paddle_meta_record(&d->meta, first)->file ||
		    !same_dtype(dcp_paddle_dist_loc(d, first),
				dcp_paddle_dist_loc(d, found[i])) ||
		    !fits_entry(d, j, e, r, dcp_paddle_dist_loc(d, found[i])))
			continue;
		*other = found[i];
		break;
	}
	if (first != DCP_PADDLE_META_NONE)
		return first;
	dcp_box_text(at, sizeof(at), dcp_paddle_meta_dims(&d->meta, e->box.lo),
		     dcp_paddle_meta_dims(&d->meta, e->box.len), e->box.ndim);
	dcp_join_lose(&d->join, -EBADMSG,
		      "storage_metadata of %.100s names no file for its piece %s", d->meta_name,
		      at);
	return DCP_PADDLE_META_NONE;
}

/*
 * Boxes may overlap: 3.2 stores a flattened shard as all rows that it touches, and metadata of
 * several saves or ranks may be read together. Paddle copies the pieces into a tensor one after
 * another, in the order in which metadata lists them, so the last piece listed counts. Overlapping
 * pieces are not compared here, because that would read the data.
 */

/* Part number @i of @record as a piece of the tensor. It holds all of the piece @e, or the elements
 * of @e from @run on. */
static struct dcp_piece piece_of(const struct dcp_paddle_dist *d,
				 const struct dcp_paddle_join *j,
				 const struct dcp_paddle_meta_entry *e, uint32_t record,
				 uint32_t i, uint64_t run)
{
	const struct dcp_paddle_array *loc = dcp_paddle_dist_loc(d, record);
	const struct dcp_paddle_part *part = &loc->part[i];
	struct dcp_piece p = {
		.lo = dcp_paddle_meta_dims(&d->meta, e->box.lo),
		.len = j->len,
		.run_lo = run,
		.run_n = part->n,
		.off = part->off,
		.nbytes = part->nbytes,
		.filter = part->filter,
		.swap = part->swap,
	};

	memcpy(&p.file,
	       d->numbers.p + dcp_paddle_meta_record(&d->meta, record)->file * sizeof(p.file),
	       sizeof(p.file));
	if (!e->box.flat)
		p.stride = loc->stride;
	return p;
}

/* Add the parts of @record, and before each the part of @other with the same elements, if there is
 * one. */
static int add_parts(struct dcp_paddle_dist *d, struct dcp_paddle_join *j,
		     const struct dcp_paddle_meta_entry *e, uint32_t record, uint32_t other)
{
	const struct dcp_paddle_array *loc = dcp_paddle_dist_loc(d, record);
	uint64_t run = e->box.flat ? e->box.run_lo : 0;
	bool twice = other != DCP_PADDLE_META_NONE &&
		     dcp_paddle_dist_loc(d, other)->nparts == loc->nparts;

	if (e->dtype == DCP_PADDLE_META_NONE)
		dcp_paddle_join_stored_dtype(d, j, loc);
	if (j->t.dtype == DCP_DTYPE_OTHER)
		j->t.itemsize = loc->itemsize;
	for (uint32_t i = 0; i < loc->nparts; i++) {
		struct dcp_piece p = piece_of(d, j, e, record, i, run), copy = { 0 };

		if (twice)
			copy = piece_of(d, j, e, other, i, run);
		if (copy.run_n != p.run_n)
			copy.run_n = 0;
		run += p.run_n;
		if (!p.run_n)
			continue;
		if (copy.run_n)
			dcp_buf_add(&d->pieces, &copy, sizeof(copy));
		dcp_buf_add(&d->pieces, &p, sizeof(p));
	}
	return dcp_buf_error(&d->pieces);
}

static void fail_outside(struct dcp_paddle_dist *d, struct dcp_paddle_join *j,
			 const struct dcp_paddle_meta_entry *e)
{
	char at[200], is[200];

	dcp_box_text(at, sizeof(at), dcp_paddle_meta_dims(&d->meta, e->box.lo),
		     dcp_paddle_meta_dims(&d->meta, e->box.len), j->t.ndim);
	dcp_dims_text(is, sizeof(is), j->shape, j->t.ndim);
	dcp_paddle_join_fail(j, "its piece %s does not lie inside its shape %s", at, is);
}

/* Check that the box of @e lies in the shape, and its run in the box. */
static bool check_entry(struct dcp_paddle_dist *d, struct dcp_paddle_join *j,
			const struct dcp_paddle_meta_entry *e, uint64_t *volume)
{
	const uint64_t *lo = dcp_paddle_meta_dims(&d->meta, e->box.lo);
	bool ok = dcp_shape_volume(j->len, j->t.ndim, volume);
	char at[200];

	for (uint32_t k = 0; k < j->t.ndim; k++)
		ok = ok && dcp_range_ok(lo[k], j->len[k], j->shape[k]);
	if (ok && (!e->box.flat || e->box.run_hi <= *volume))
		return true;
	if (!ok) {
		fail_outside(d, j, e);
		return false;
	}
	dcp_box_text(at, sizeof(at), lo, j->len, j->t.ndim);
	dcp_paddle_join_fail(j, "its piece %s has a flattened_range that ends at %" PRIu64, at,
			     e->box.run_hi);
	return false;
}

/*
 * Cut j->len to the shape. For the last rank's piece of some tensors (float8) Paddle 3.3 records
 * the local_shape of an even cut, which ends beyond the shape; the array has only the elements
 * inside.
 */
static bool clip_length(struct dcp_paddle_dist *d, struct dcp_paddle_join *j,
			const struct dcp_paddle_meta_entry *e)
{
	const uint64_t *lo = dcp_paddle_meta_dims(&d->meta, e->box.lo);
	uint32_t n = j->t.ndim;
	uint64_t *len;
	bool out = false;

	j->len = dcp_paddle_meta_dims(&d->meta, e->box.len);
	for (uint32_t k = 0; k < n; k++) {
		if (e->box.flat || lo[k] >= j->shape[k])
			return false;
		out |= j->len[k] > j->shape[k] - lo[k];
	}
	len = out ? dcp_arena_calloc(&d->arena, n, sizeof(*len)) : NULL;
	if (!len)
		return false;
	for (uint32_t k = 0; k < n; k++)
		len[k] = DCP_MIN(j->len[k], j->shape[k] - lo[k]);
	j->len = len;
	return true;
}

/* Find the pieces that the entries of @k list. 0 or -ENOMEM. */
static int dcp_paddle_join_collect(struct dcp_paddle_dist *d, struct dcp_paddle_join *j,
				   const struct dcp_paddle_meta_key *k)
{
	size_t n = 0;
	int rc = dcp_paddle_join_sort(d, k, &n);

	dcp_buf_reset(&d->pieces);
	for (uint32_t i = k->entry;
	     rc == 0 && i != DCP_PADDLE_META_NONE && !dcp_paddle_join_broken(j);) {
		const struct dcp_paddle_meta_entry *e = dcp_paddle_meta_entry(&d->meta, i);
		bool clipped = clip_length(d, j, e);
		uint64_t volume;
		uint32_t record, other;

		i = e->next;
		if (!check_entry(d, j, e, &volume) || volume == 0)
			continue;
		record = dcp_paddle_join_find(d, j, e, n, &other);
		if (record != DCP_PADDLE_META_NONE)
			rc = add_parts(d, j, e, record, other);
		else if (clipped)
			fail_outside(d, j, e);
	}
	return rc;
}

/* Make the pieces disjoint. A piece that is missing then shows as missing elements. */
static int dcp_paddle_join_settle(struct dcp_paddle_dist *d, struct dcp_paddle_join *j)
{
	int rc;

	/* begin with the piece that is listed last, because it counts */
	for (size_t i = DCP_NITEMS(d->pieces, struct dcp_piece); i-- > 0;)
		dcp_join_add(&d->join, DCP_ITEMS(d->pieces, struct dcp_piece) + i);
	rc = dcp_join_end(&d->join, &j->t, &d->arena, NULL, &j->why);
	if (rc == 1 && !d->noverlaps++)
		snprintf(d->overlaps, sizeof(d->overlaps), "%.200s", j->t.key);
	return rc < 0 ? rc : 0;
}

/* Components of the key's path, in @d->arena; NULL: no memory. */
static const char *const *path_of(struct dcp_paddle_dist *d, const char *key, uint32_t number,
				  size_t *n)
{
	const struct dcp_paddle_meta_key *k = dcp_paddle_meta_key(&d->meta, number);
	const char *text = k->npath ? d->meta.paths.p + k->path : NULL;
	const char **path = dcp_arena_calloc(&d->arena, k->npath + 1, sizeof(*path));

	if (!path)
		return NULL;
	*n = DCP_MAX(k->npath, 1);
	path[0] = key;
	for (uint32_t i = 0; i < k->npath; i++) {
		path[i] = text;
		text += strlen(text) + 1;
	}
	return path;
}

int dcp_paddle_dist_emit_key(struct dcp_paddle_dist *d, uint32_t key)
{
	const struct dcp_paddle_meta_key *k = dcp_paddle_meta_key(&d->meta, key);
	struct dcp_paddle_join j = { .key = k, .t = { .dtype_name = "" } };
	int rc = 0;

	if (!k->named)
		return 0; /* only other sections have the key: Paddle does not load it either */
	dcp_arena_reset(&d->arena);
	dcp_join_begin(&d->join);
	j.t.key = dcp_intern_text(&d->meta.names, key);
	j.t.shape = j.shape;
	if (k->error != DCP_PADDLE_META_NONE)
		dcp_paddle_join_fail(&j, "%.100s: %s", d->meta_name,
				     dcp_intern_text(&d->meta.errors, k->error));
	if (!dcp_paddle_join_broken(&j))
		dcp_paddle_join_head(d, &j, k);
	if (!dcp_paddle_join_broken(&j))
		rc = dcp_paddle_join_collect(d, &j, k);
	if (rc == 0 && !dcp_paddle_join_broken(&j))
		rc = dcp_paddle_join_settle(d, &j);
	if (rc < 0)
		return rc;
	j.t.path = path_of(d, j.t.key, key, &j.t.npath);
	if (!j.t.path)
		return -ENOMEM;
	if (dcp_paddle_join_broken(&j))
		j.t.error = j.why.msg;
	return dcp_emit_tensor(d->in->sink, &j.t);
}
