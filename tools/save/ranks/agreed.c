/* SPDX-License-Identifier: Apache-2.0 */
/* Combines the regions and objects of all ranks into one set. Each rank computes the same set, so
 * no rank decides for the others. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/intern.h"
#include "core/model/geometry/tiling.h"
#include "tools/save/ranks/ranks_int.h"

/* A region of some rank. */
struct region {
	size_t tensor, number; /* @number counts the tensors that the rank gave */
	uint32_t rank;
	const uint64_t *lo, *len;
	uint64_t nbytes;
	/* @first: the first of equal regions in the order of by_place(). The own_* of that region
	 * tell the rank that writes it. */
	size_t first, own_number;
	uint32_t own_rank;
};

struct agreed {
	struct dcpsave *s;
	struct dcp_arena scratch;
	struct dcp_intern keys, object_keys;
	struct dcp_buf tensors, objects; /* of the set */
	struct dcp_buf regions;
	struct dcp_buf owner; /* of each object: uint32_t */
	struct dcp_buf first; /* by tensor: the first rank that gave it */
	struct dcp_err err;
};

/* ---- reading messages ---- */

static const char *take_text(struct agreed *a, struct dcp_cur *c)
{
	uint64_t n = dcp_cur_varint(c);
	const uint8_t *p = dcp_cur_take(c, n);

	return p ? dcp_arena_strndup(&a->s->arena, (const char *)p, n) : NULL;
}

static const char *const *take_path(struct agreed *a, struct dcp_cur *c, size_t *n)
{
	const char **path;

	*n = dcp_cur_varint(c);
	if (*n > dcp_cur_left(c))
		return NULL;
	path = dcp_arena_calloc(&a->s->arena, *n + 1, sizeof(*path));
	for (size_t i = 0; path && i < *n; i++)
		if (!(path[i] = take_text(a, c)))
			return NULL;
	return path;
}

static int fail_differ(struct agreed *a, uint32_t first, const struct dcp_write_tensor *old,
		       uint32_t rank, const struct dcp_write_tensor *t)
{
	char x[160], y[160];

	return dcp_fail(&a->err, -EINVAL, "%.200s is %s%s on rank %u and %s%s on rank %u",
			t->key, dcp_dtype_info(old->dtype)->name,
			dcp_dims_text(x, sizeof(x), old->shape, old->ndim), first,
			dcp_dtype_info(t->dtype)->name,
			dcp_dims_text(y, sizeof(y), t->shape, t->ndim), rank);
}

static void skip_path(struct dcp_cur *c)
{
	for (uint64_t n = dcp_cur_varint(c); n && dcp_cur_ok(c); n--)
		dcp_cur_take(c, dcp_cur_varint(c));
}

/* Read a key and its tensor: a new one (@fresh), or a tensor that an earlier rank gave. */
static int take_key(struct agreed *a, uint32_t rank, size_t guess, struct dcp_cur *c,
		    struct dcp_write_tensor *t, size_t *number, bool *fresh)
{
	uint64_t n = dcp_cur_varint(c);
	const uint8_t *key = dcp_cur_take(c, n);
	uint32_t at;
	int rc = key ? dcp_intern_add(&a->keys, key, n, (uint32_t)guess, &at) : -EPROTO;

	if (rc < 0)
		return rc;
	*number = at;
	*fresh = rc > 0;
	if (!*fresh) {
		*t = DCP_ITEMS(a->tensors, struct dcp_write_tensor)[at];
		skip_path(c);
		return 0;
	}
	*t = (struct dcp_write_tensor){ .same_as = DCP_WRITE_ALONE };
	t->key = dcp_arena_strndup(&a->s->arena, (const char *)key, n);
	t->path = take_path(a, c, &t->npath);
	dcp_buf_add(&a->first, &rank, sizeof(rank));
	return t->key && t->path ? dcp_buf_error(&a->first) : -ENOMEM;
}

static int take_tensor(struct agreed *a, uint32_t rank, size_t number, struct dcp_cur *c)
{
	struct region r = { .rank = rank, .number = number };
	struct dcp_write_tensor t, old;
	uint64_t *shape, *lo, *len, dtype, ndim;
	bool fresh = false;
	int rc = take_key(a, rank, number, c, &t, &r.tensor, &fresh);

	if (rc < 0)
		return dcp_cur_ok(c) ? rc : -EPROTO;
	old = t;
	dtype = dcp_cur_varint(c);
	ndim = dcp_cur_varint(c);
	if (dtype >= DCP_DTYPE_COUNT || ndim > DCP_MAX_NDIM)
		return -EPROTO;
	t.dtype = (enum dcp_dtype)dtype;
	t.itemsize = dcp_dtype_info(t.dtype)->size;
	t.ndim = (uint32_t)ndim;
	shape = dcp_arena_calloc(&a->s->arena, 3 * t.ndim + 1, sizeof(*shape));
	if (!shape)
		return -ENOMEM;
	lo = shape + t.ndim;
	len = lo + t.ndim;
	r.nbytes = t.itemsize;
	for (uint32_t d = 0; d < t.ndim; d++) {
		shape[d] = dcp_cur_varint(c);
		lo[d] = dcp_cur_varint(c);
		len[d] = dcp_cur_varint(c);
		r.nbytes *= len[d];
	}
	t.shape = shape;
	r.lo = lo;
	r.len = len;
	if (!dcp_cur_ok(c))
		return -EPROTO;
	dcp_buf_add(&a->regions, &r, sizeof(r));
	if (fresh)
		dcp_buf_add(&a->tensors, &t, sizeof(t));
	else if (old.dtype != t.dtype || old.ndim != t.ndim ||
		 dcp_dims_compare(old.shape, t.shape, t.ndim) != 0)
		return fail_differ(a, DCP_ITEMS(a->first, uint32_t)[r.tensor], &old, rank, &t);
	return dcp_buf_error(&a->regions) | dcp_buf_error(&a->tensors);
}

static int take_object(struct agreed *a, uint32_t rank, struct dcp_cur *c)
{
	struct dcp_object o = { .key = take_text(a, c) };
	uint32_t at;
	int rc;

	o.path = o.key ? take_path(a, c, &o.npath) : NULL;
	o.type = o.path ? take_text(a, c) : NULL;
	if (!o.type)
		return dcp_cur_ok(c) ? -ENOMEM : -EPROTO;
	rc = dcp_intern_add(&a->object_keys, o.key, strlen(o.key), 0, &at);
	if (rc <= 0)
		return rc;
	dcp_buf_add(&a->objects, &o, sizeof(o));
	dcp_buf_add(&a->owner, &rank, sizeof(rank));
	return dcp_buf_error(&a->objects) | dcp_buf_error(&a->owner);
}

static int take_message(struct agreed *a, uint32_t rank, const void *p, uint64_t n)
{
	struct dcp_cur c = dcp_cur(p, n);
	uint64_t count = dcp_cur_varint(&c);
	int rc = 0;

	for (uint64_t i = 0; rc == 0 && i < count; i++)
		rc = take_tensor(a, rank, i, &c);
	count = rc == 0 ? dcp_cur_varint(&c) : 0;
	for (uint64_t i = 0; rc == 0 && i < count; i++)
		rc = take_object(a, rank, &c);
	return rc == 0 && !dcp_cur_ok(&c) ? -EPROTO : rc;
}

/* ---- who has what ---- */

/* Order by tensor, then by position; of equal regions the lowest rank first. */
static int by_place(const void *p, const void *q, void *ctx)
{
	const struct region *x = p, *y = q;
	const struct dcp_write_tensor *t = ctx;
	int order = DCP_CMP(x->tensor, y->tensor);

	if (!order)
		order = dcp_dims_compare(x->lo, y->lo, t[x->tensor].ndim);
	if (!order)
		order = dcp_dims_compare(x->len, y->len, t[x->tensor].ndim);
	if (!order)
		order = DCP_CMP(x->rank, y->rank);
	return order ? order : DCP_CMP(x->number, y->number);
}

static bool is_equal(const struct dcp_write_tensor *t, const struct region *x,
		     const struct region *y)
{
	return x->tensor == y->tensor && !dcp_dims_compare(x->lo, y->lo, t->ndim) &&
	       !dcp_dims_compare(x->len, y->len, t->ndim);
}

static int by_size(const void *p, const void *q)
{
	const struct region *x = *(const struct region *const *)p,
			    *y = *(const struct region *const *)q;

	return x->nbytes != y->nbytes ? DCP_CMP(y->nbytes, x->nbytes) : DCP_CMP(x, y);
}

/* Assign the largest regions first, each to the holder with the least to write; gathered regions go
 * to the last holder, as in Paddle. */
static int choose_owners(struct agreed *a, struct region *r, size_t n)
{
	const struct dcp_write_tensor *t = DCP_ITEMS(a->tensors, struct dcp_write_tensor);
	dcp_auto_free struct region **order = calloc(n + 1, sizeof(*order));
	dcp_auto_free uint64_t *load = calloc(a->s->comm->ranks, sizeof(*load));
	size_t norder = 0;

	if (!order || !load)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		r[i].first =
			i && is_equal(&t[r[i].tensor], &r[i - 1], &r[i]) ? r[i - 1].first : i;
		if (r[i].first == i)
			order[norder++] = &r[i];
	}
	DCP_SORT(order, norder, by_size);
	for (size_t i = 0; i < norder; i++) {
		struct region *own = order[i], *best = own;

		for (struct region *x = own + 1; x < r + n && x->first == own->first; x++)
			if (a->s->gathers || load[x->rank] < load[best->rank])
				best = x;
		own->own_rank = best->rank;
		own->own_number = best->number;
		load[best->rank] += own->nbytes;
	}
	return 0;
}

/* Does every rank write its own array, even if arrays are equal? Otherwise each element is written
 * once. */
static bool wants_arrays(const struct dcpsave *s)
{
	return !s->gathers && !(s->format->takes & DCP_WRITE_BOXES) &&
	       s->format->takes & DCP_WRITE_LAYOUT;
}

/* Is region r[i] of a tensor written? If so, *@rank is the rank that writes it, and *@number its
 * number on that rank. */
static bool is_written(const struct dcpsave *s, const struct region *r, size_t i,
		       uint32_t *rank, size_t *number)
{
	bool arrays = wants_arrays(s);

	*rank = arrays ? r[i].rank : r[i].own_rank;
	*number = arrays ? r[i].number : r[i].own_number;
	return arrays || (r[i].nbytes && (i == 0 || r[i].first != r[i - 1].first));
}

/* ---- tensors of the set ---- */

static int check_ranks(struct agreed *a, const struct dcp_write_tensor *t,
		       const struct region *r, size_t n)
{
	uint32_t ranks = a->s->comm->ranks;
	dcp_auto_free bool *has = calloc(ranks, sizeof(*has));

	if (!has)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		has[r[i].rank] = true;
	for (uint32_t k = 0; k < ranks; k++)
		if (!has[k])
			return dcp_fail(&a->err, -EINVAL,
					"%s is given by rank %u and not by rank %u", t->key,
					r[0].rank, k);
	return 0;
}

/* Do the regions cover the tensor without overlap? */
static int check_cover(struct agreed *a, const struct dcp_write_tensor *t,
		       const struct region *r, size_t n)
{
	struct dcp_piece *piece = dcp_arena_calloc(&a->scratch, n + 1, sizeof(*piece));
	struct dcp_tensor as = { .key = t->key,
				 .dtype = t->dtype,
				 .itemsize = t->itemsize,
				 .ndim = t->ndim,
				 .shape = t->shape,
				 .pieces = piece };
	struct dcp_tiling tl;
	int rc;

	if (!piece)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		if (r[i].nbytes && (i == 0 || r[i].first != r[i - 1].first)) {
			piece[as.npieces].lo = r[i].lo;
			piece[as.npieces].len = r[i].len;
			piece[as.npieces].off = DCP_ERR_NO_OFFSET;
			piece[as.npieces].run_n = r[i].nbytes / t->itemsize;
			piece[as.npieces++].nbytes = r[i].nbytes;
		}
	rc = dcp_tiling_init(&tl, &as, &a->scratch, &a->err);
	dcp_arena_reset(&a->scratch);
	return rc == -EBADMSG ? dcp_err_where(&a->err, -EINVAL, "%.200s", t->key) : rc;
}

static int add_parts(struct agreed *a, size_t number, struct dcp_write_tensor *t,
		     const struct region *r, size_t n)
{
	struct dcpsave *s = a->s;
	struct dcp_write_part *part = dcp_arena_calloc(&s->arena, n + 1, sizeof(*part));
	uint64_t *zeros = dcp_arena_calloc(&s->arena, t->ndim + 1, sizeof(*zeros));
	size_t from;

	if (!part || !zeros)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		struct dcp_write_part p = { 0, t->ndim, r[i].lo, r[i].len };

		if (is_written(s, r, i, &p.rank, &from))
			part[t->nparts++] = p;
	}
	t->parts = part;
	if (wants_arrays(s) || (t->nparts && s->format->takes & DCP_WRITE_BOXES))
		return 0;
	if (s->gathers && t->nparts > 1)
		return dcp_fail(&a->err, -EINVAL,
				"%.200s is given in parts: only whole tensors are gathered",
				t->key);
	s->sender[number] = part[0].rank;
	if (s->gathers)
		s->is_placed[number] = s->any_placed = true;
	/* Make a single part: the rank that has all of it writes it, or several ranks write into
	 * it. */
	if (t->nparts > 1) {
		s->is_placed[number] = s->any_placed = true;
		part[0].rank = UINT32_MAX;
	}
	part[0] = (struct dcp_write_part){ s->gathers ? 0 : part[0].rank, t->ndim, zeros,
					   t->shape };
	t->nparts = 1;
	return 0;
}

/* Record the regions that this rank writes. */
static int add_own(struct agreed *a, size_t number, const struct dcp_write_tensor *t,
		   const struct region *r, size_t n)
{
	struct dcpsave *s = a->s;
	size_t part = 0;

	for (size_t i = 0; i < n; i++) {
		struct save_placed p = { .tensor = number };
		uint32_t rank;

		if (!is_written(s, r, i, &rank, &p.given))
			continue;
		if (rank == s->comm->rank) {
			save_given(s)[p.given].own = true;
			s->report.own += r[i].nbytes;
			if (s->is_placed[number] && !s->gathers)
				dcp_buf_add(&s->placed, &p, sizeof(p));
			else
				s->from[s->first[number] + part] = p.given;
		}
		part += part + 1 < t->nparts;
	}
	return dcp_buf_error(&s->placed);
}

static int leave_out(struct dcpsave *s, const char *key, const char *why, struct dcp_err *err)
{
	struct save_left l = { key, why };

	if (!(s->config.flags & DCPSAVE_PARTIAL))
		return dcp_fail(err, -ENOTSUP, "%.200s: %s", key, why);
	return dcp_buf_add(&s->left, &l, sizeof(l));
}

static int make_tensors(struct agreed *a)
{
	struct dcpsave *s = a->s;
	struct dcp_write_tensor *t = DCP_ITEMS(a->tensors, struct dcp_write_tensor);
	struct region *r = DCP_ITEMS(a->regions, struct region), *end;
	size_t n = DCP_NITEMS(a->tensors, struct dcp_write_tensor), kept = 0;
	size_t nregions = DCP_NITEMS(a->regions, struct region);
	int rc = 0;

	s->is_placed = dcp_arena_calloc(&s->arena, n + 1, sizeof(*s->is_placed));
	s->first = dcp_arena_calloc(&s->arena, n + 1, sizeof(*s->first));
	s->from = dcp_arena_calloc(&s->arena, nregions + n + 1, sizeof(*s->from));
	s->sender = dcp_arena_calloc(&s->arena, n + 1, sizeof(*s->sender));
	if (!s->is_placed || !s->first || !s->from || !s->sender)
		return -ENOMEM;
	for (size_t i = 0; i < nregions + n; i++)
		s->from[i] = SIZE_MAX;
	for (size_t i = 0, at = 0; rc == 0 && i < n; i++, r = end) {
		const char *why = s->format->refuses ? s->format->refuses(&t[i]) : NULL;

		for (end = r;
		     end < DCP_ITEMS(a->regions, struct region) + nregions && end->tensor == i;
		     end++)
			;
		if (s->config.flags & DCPSAVE_SAME_KEYS)
			rc = check_ranks(a, &t[i], r, (size_t)(end - r));
		if (rc == 0)
			rc = check_cover(a, &t[i], r, (size_t)(end - r));
		if (rc == 0 && why) {
			rc = leave_out(s, t[i].key, why, &a->err);
			continue;
		}
		t[kept] = t[i];
		if (rc == 0)
			rc = add_parts(a, kept, &t[kept], r, (size_t)(end - r));
		s->first[kept] = at;
		at += t[kept].nparts;
		if (rc == 0)
			rc = add_own(a, kept, &t[kept], r, (size_t)(end - r));
		kept++;
	}
	s->set.ntensors = kept;
	return rc;
}

/* ---- objects of the set ---- */

/* Append the JSON of the objects that this rank must send. */
static int put_json(const struct agreed *a, struct dcp_buf *out)
{
	const struct save_given_object *mine =
		DCP_ITEMS(a->s->objects, struct save_given_object);
	size_t n = DCP_NITEMS(a->s->objects, struct save_given_object);
	dcp_auto_free bool *sent = calloc(DCP_NITEMS(a->objects, struct dcp_object) + 1, 1);

	for (size_t i = 0; sent && i < n; i++) {
		uint32_t at =
			dcp_intern_find(&a->object_keys, mine[i].key, strlen(mine[i].key));

		if (at == DCP_INTERN_NONE || sent[at] ||
		    DCP_ITEMS(a->owner, uint32_t)[at] != a->s->comm->rank)
			continue;
		sent[at] = true;
		dcp_buf_varint(out, at);
		save_put_text(out, mine[i].json);
		save_put_text(out, mine[i].classes);
	}
	return sent ? dcp_buf_error(out) : -ENOMEM;
}

static int take_json(struct agreed *a, const void *p, uint64_t n)
{
	struct dcp_object *o = DCP_ITEMS(a->objects, struct dcp_object);
	struct dcp_cur c = dcp_cur(p, n);

	while (dcp_cur_left(&c)) {
		uint64_t at = dcp_cur_varint(&c);

		if (at >= DCP_NITEMS(a->objects, struct dcp_object))
			return -EPROTO;
		o[at].json = take_text(a, &c);
		o[at].classes = o[at].json ? take_text(a, &c) : NULL;
		if (!o[at].classes)
			return dcp_cur_ok(&c) ? -ENOMEM : -EPROTO;
		o[at].json_len = strlen(o[at].json);
	}
	return 0;
}

static int make_objects(struct agreed *a)
{
	struct dcpsave *s = a->s;
	struct dcp_object *o = DCP_ITEMS(a->objects, struct dcp_object);
	size_t n = DCP_NITEMS(a->objects, struct dcp_object), kept = 0;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < n; i++) {
		const char *why =
			s->format->refuses_object ? s->format->refuses_object(&o[i]) : NULL;

		if (dcp_intern_find(&a->keys, o[i].key, strlen(o[i].key)) != DCP_INTERN_NONE)
			return dcp_fail(&a->err, -EINVAL, "%.200s is a tensor and an object",
					o[i].key);
		if (!(s->format->takes & DCP_WRITE_OBJECTS))
			why = "the format holds tensors only";
		if (why)
			rc = leave_out(s, o[i].key, why, &a->err);
		else
			o[kept++] = o[i];
	}
	s->set.nobjects = kept;
	return rc;
}

static int take_objects(struct agreed *a, const struct load_blobs *b)
{
	int rc = 0;

	for (uint32_t rank = 0; rc == 0 && rank < a->s->comm->ranks; rank++)
		rc = take_json(a, b->at[rank], b->n[rank]);
	return rc == 0 ? make_objects(a) : rc;
}

/* ---- all of it ---- */

static int put_given(const struct agreed *a, struct dcp_buf *out)
{
	return save_given_message(a->s, out);
}

static int take_all(struct agreed *a, const struct load_blobs *b)
{
	struct region *r;
	int rc = 0;

	for (uint32_t rank = 0; rc == 0 && rank < a->s->comm->ranks; rank++)
		rc = take_message(a, rank, b->at[rank], b->n[rank]);
	if (rc < 0)
		return rc;
	r = DCP_ITEMS(a->regions, struct region);
	if (r)
		qsort_r(r, DCP_NITEMS(a->regions, struct region), sizeof(*r), by_place,
			a->tensors.p);
	rc = choose_owners(a, r, DCP_NITEMS(a->regions, struct region));
	return rc == 0 ? make_tensors(a) : rc;
}

static int agree_ranks(struct agreed *a, int rc, struct dcpload_error *err)
{
	rc = load_fail_err(err, dcp_err_say(&a->err, rc), &a->err);
	return load_agree(a->s->comm, rc, err, (int)a->s->config.timeout_ms);
}

/* Send the text that @put makes on this rank to all ranks, and pass the texts of all ranks to
 * @take. */
static int share_texts(struct agreed *a,
		       int (*put)(const struct agreed *a, struct dcp_buf *out),
		       int (*take)(struct agreed *a, const struct load_blobs *b),
		       struct dcpload_error *err)
{
	dcp_auto_buf struct dcp_buf mine = DCP_BUF_INIT;
	struct load_blobs b = { 0 };
	int rc = agree_ranks(a, put(a, &mine), err);

	if (rc == 0)
		rc = load_gather(a->s->comm, mine.p, mine.n, &b, err,
				 (int)a->s->config.timeout_ms);
	if (rc < 0)
		return rc;
	rc = agree_ranks(a, take(a, &b), err);
	load_blobs_free(&b);
	return rc;
}

int save_agree_set(struct dcpsave *s, struct dcpload_error *err)
{
	struct agreed a = { .s = s };
	int rc;

	dcp_arena_init(&a.scratch, (size_t)1 << 30);
	rc = share_texts(&a, put_given, take_all, err);
	if (rc == 0)
		rc = share_texts(&a, put_json, take_objects, err);
	s->set.ranks = s->gathers ? 1 : s->comm->ranks;
	s->tensors = a.tensors;
	s->set_objects = a.objects;
	s->set.tensors = DCP_ITEMS(s->tensors, struct dcp_write_tensor);
	s->set.objects = DCP_ITEMS(s->set_objects, struct dcp_object);
	dcp_buf_finish(&a.regions);
	dcp_buf_finish(&a.owner);
	dcp_buf_finish(&a.first);
	dcp_intern_finish(&a.keys);
	dcp_intern_finish(&a.object_keys);
	dcp_arena_finish(&a.scratch);
	return rc;
}
