/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/gather/join.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/model/geometry/tiling.h"
#include "core/model/tensor.h"

void dcp_join_finish(struct dcp_join *j)
{
	dcp_buf_finish(&j->added);
	dcp_buf_finish(&j->order);
	dcp_buf_finish(&j->copies);
}

void dcp_join_begin(struct dcp_join *j)
{
	dcp_buf_reset(&j->added);
	j->lost = (struct dcp_err){ 0 };
}

int dcp_join_add(struct dcp_join *j, const struct dcp_piece *p)
{
	return dcp_buf_add(&j->added, p, sizeof(*p));
}

int dcp_join_add_part(struct dcp_join *j, const struct dcp_tensor *part, const uint64_t *first,
		      struct dcp_arena *arena)
{
	for (size_t i = 0; i < part->npieces; i++) {
		struct dcp_piece p = part->pieces[i];
		uint64_t *lo = dcp_arena_dup(arena, p.lo, part->ndim, sizeof(*lo));

		if (!lo)
			return -ENOMEM;
		for (uint32_t d = 0; d < part->ndim; d++)
			if (dcp_ckd_add(&lo[d], lo[d], first[d]))
				return -EBADMSG;
		p.lo = lo;
		dcp_join_add(j, &p);
	}
	return dcp_buf_error(&j->added);
}

/* Order pieces by place; equal pieces keep the order in which they were added. */
static int compare_pieces(const void *pa, const void *pb, void *tensor)
{
	const struct dcp_tensor *t = tensor;
	uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;

	return dcp_piece_compare(&t->pieces[a], &t->pieces[b], t->ndim) ?: DCP_CMP(a, b);
}

static bool is_sorted(const struct dcp_tensor *t)
{
	for (size_t i = 1; i < t->npieces; i++)
		if (dcp_piece_compare(&t->pieces[i - 1], &t->pieces[i], t->ndim) >= 0)
			return false;
	return true;
}

/* Set the order to that in which the @n pieces were added. */
static int number_pieces(struct dcp_join *j, size_t n)
{
	dcp_buf_reset(&j->order);
	for (uint32_t i = 0; i < n; i++)
		dcp_buf_add(&j->order, &i, sizeof(i));
	return dcp_buf_error(&j->order);
}

/* Keep only the first of equal pieces in the order; the next equal piece of another file becomes
 * its copy. Returns the number of pieces kept. */
static size_t drop_replicas(struct dcp_join *j, const struct dcp_tensor *t)
{
	uint32_t *order = DCP_ITEMS(j->order, uint32_t);
	const struct dcp_piece *p = t->pieces, *last = NULL;
	size_t kept = 0;
	bool again = false;

	for (size_t i = 0; i < t->npieces; i++) {
		const struct dcp_piece *at = &p[order[i]];

		if (!last || dcp_piece_compare(last, at, t->ndim) != 0) {
			order[kept++] = order[i];
			last = at;
			again = false;
		} else if (!again && last->file != at->file) {
			dcp_buf_add(&j->copies, at, sizeof(*at));
			again = true;
		}
	}
	return kept;
}

/* Replace the pieces of @t by the pieces that the order names, in that order. */
static int take_ordered(struct dcp_join *j, struct dcp_tensor *t, size_t n)
{
	size_t start = j->added.n;

	for (size_t i = 0; i < n; i++) {
		uint32_t from = DCP_ITEMS(j->order, uint32_t)[i];
		struct dcp_piece p = DCP_ITEMS(j->added, struct dcp_piece)[from];

		dcp_buf_add(&j->added, &p, sizeof(p));
	}
	if (dcp_buf_error(&j->added))
		return -ENOMEM;
	t->pieces = (const struct dcp_piece *)(const void *)(j->added.p + start);
	t->npieces = n;
	return 0;
}

/* Sort the pieces of @t by place, so that each place is there once, and find their copies. */
static int sort_pieces(struct dcp_join *j, struct dcp_tensor *t)
{
	size_t n;

	if (number_pieces(j, t->npieces) < 0)
		return -ENOMEM;
	qsort_r(j->order.p, t->npieces, sizeof(uint32_t), compare_pieces, t);
	n = drop_replicas(j, t);
	return take_ordered(j, t, n) ?: dcp_buf_error(&j->copies);
}

/* The number of elements of all pieces together. */
static uint64_t count_elements(const struct dcp_tensor *t)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < t->npieces; i++)
		if (dcp_ckd_add(&sum, sum, t->pieces[i].run_n))
			return UINT64_MAX;
	return sum;
}

static int by_number_down(const void *a, const void *b)
{
	return dcp_by_u32(b, a);
}

/* Cut pieces so that they do not overlap. If several pieces have an element, dcp_cover() takes it
 * from the last. */
static int cut_overlaps(struct dcp_join *j, struct dcp_tensor *t, struct dcp_arena *arena,
			struct dcp_err *why)
{
	struct dcp_piece *pieces;
	size_t n = t->npieces;
	int rc;

	if (!j->order.n && number_pieces(j, n) < 0)
		return -ENOMEM;
	DCP_SORT(DCP_ITEMS(j->order, uint32_t), n, by_number_down);
	if (take_ordered(j, t, n) < 0)
		return -ENOMEM;
	rc = dcp_cover(t, arena, &pieces, &n, why);
	if (rc < 0)
		return rc == -ENOMEM ? rc : 0;
	t->pieces = pieces;
	t->npieces = n;
	return 1;
}

int dcp_join_end(struct dcp_join *j, struct dcp_tensor *t, struct dcp_arena *cut,
		 const char *missing, struct dcp_err *why)
{
	uint64_t volume, sum;
	int rc = dcp_buf_error(&j->added);

	dcp_buf_reset(&j->copies);
	dcp_buf_reset(&j->order);
	t->pieces = DCP_ITEMS(j->added, struct dcp_piece);
	t->npieces = DCP_NITEMS(j->added, struct dcp_piece);
	if (rc == 0 && !is_sorted(t))
		rc = sort_pieces(j, t);
	t->copies = DCP_ITEMS(j->copies, struct dcp_piece);
	t->ncopies = DCP_NITEMS(j->copies, struct dcp_piece);
	if (rc < 0 || !dcp_shape_volume(t->shape, t->ndim, &volume))
		return rc; /* writing the index reports what is wrong with the shape */
	sum = count_elements(t);
	if (cut && sum > volume) {
		rc = cut_overlaps(j, t, cut, why);
		if (rc != 1)
			return rc;
		sum = count_elements(t);
	}
	if (sum != volume && j->lost.code)
		dcp_err_give(why, &j->lost, j->lost.code);
	else if (sum < volume && missing)
		dcp_fail(why, -EBADMSG, "%" PRIu64 " of %" PRIu64 " element%s missing: %s",
			 volume - sum, volume, volume == 1 ? " is" : "s are", missing);
	return rc;
}

/* Memory for the descriptions of tens of millions of pieces. */
static const size_t arena_limit = (size_t)4 << 30;

void dcp_copies_init(struct dcp_copies *g)
{
	*g = (struct dcp_copies){ 0 };
	dcp_arena_init(&g->arena, arena_limit);
}

void dcp_copies_finish(struct dcp_copies *g)
{
	dcp_arena_finish(&g->arena);
	dcp_intern_finish(&g->names);
	dcp_buf_finish(&g->keys);
	dcp_join_finish(&g->join);
}

struct dcp_copies_key *dcp_copies_at(const struct dcp_copies *g, uint32_t key)
{
	return DCP_ITEMS(g->keys, struct dcp_copies_key) + key;
}

int dcp_copies_read(struct dcp_copies *g, const struct dcp_load *in, size_t n,
		    int (*read)(void *ctx, size_t i, struct dcp_err *why),
		    int (*emit_broken)(void *ctx, size_t i, const char *why), void *ctx,
		    struct dcp_err *err)
{
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++) {
		struct dcp_err why = { 0 };

		rc = read(ctx, i, &why);
		dcp_load_progress(in, i + 1, n, "files");
		if (rc != 1)
			continue;
		if (g->nbroken++ == 0)
			g->broken = why;
		rc = g->nbroken == n ? dcp_err_give(err, &why, why.code ?: -EBADMSG)
				     : emit_broken(ctx, i, why.msg);
	}
	return rc;
}

/* ---- copying ---- */

static bool copy_str(struct dcp_copies *g, const char **s)
{
	if (*s)
		*s = dcp_arena_strdup(&g->arena, *s);
	return *s != NULL;
}

static bool copy_dims(struct dcp_copies *g, const uint64_t **dims, uint32_t ndim)
{
	*dims = dcp_arena_dup(&g->arena, *dims, ndim, sizeof(**dims));
	return *dims != NULL;
}

static bool copy_path(struct dcp_copies *g, struct dcp_tensor *t)
{
	const char **path = dcp_arena_dup(&g->arena, t->path, t->npath, sizeof(*path));
	bool ok = path != NULL;

	for (size_t i = 0; ok && i < t->npath; i++)
		ok = copy_str(g, &path[i]);
	t->path = path;
	return ok;
}

static bool copy_pieces(struct dcp_copies *g, struct dcp_tensor *t)
{
	struct dcp_piece *p = dcp_arena_dup(&g->arena, t->pieces, t->npieces, sizeof(*p));
	bool ok = p != NULL;

	for (size_t i = 0; ok && i < t->npieces; i++)
		ok = copy_dims(g, &p[i].lo, t->ndim) && copy_dims(g, &p[i].len, t->ndim) &&
		     (!p[i].stride || copy_dims(g, &p[i].stride, t->ndim));
	t->pieces = p;
	return ok;
}

/* Copy @t into the arena. Later copies of a key share the key and path of the first. */
static bool copy_tensor(struct dcp_copies *g, struct dcp_tensor *t,
			const struct dcp_copies_key *k)
{
	if (k->first) {
		t->key = k->first->t.key;
		t->path = k->first->t.path;
		t->npath = k->first->t.npath;
	} else if (!copy_str(g, &t->key) || !copy_path(g, t)) {
		return false;
	}
	return copy_str(g, &t->dtype_name) && copy_dims(g, &t->shape, t->ndim) &&
	       (!t->error || copy_str(g, &t->error)) &&
	       (!t->alias_of || copy_str(g, &t->alias_of)) && copy_pieces(g, t);
}

int dcp_copies_number(struct dcp_copies *g, const char *key, uint32_t *number)
{
	struct dcp_copies_key fresh = { 0 };
	int rc = dcp_intern_str(&g->names, key, number);

	if (rc == 1)
		dcp_buf_add(&g->keys, &fresh, sizeof(fresh));
	return rc < 0 || dcp_buf_error(&g->keys) ? -ENOMEM : 0;
}

int dcp_copies_add(struct dcp_copies *g, const struct dcp_tensor *t, uint32_t who,
		   const char *file)
{
	struct dcp_copy *c = dcp_arena_alloc(&g->arena, sizeof(*c));
	struct dcp_copies_key *k;
	uint32_t number;

	if (dcp_copies_number(g, t->key, &number) < 0 || !c)
		return -ENOMEM;
	k = dcp_copies_at(g, number);
	*c = (struct dcp_copy){ .who = who, .file = file, .t = *t };
	if (!copy_tensor(g, &c->t, k))
		return -ENOMEM;
	if (k->last)
		k->last->next = c;
	else
		k->first = c;
	k->last = c;
	k->n++;
	return 0;
}

/* ---- joining ---- */

bool dcp_copies_alike(const struct dcp_tensor *a, const struct dcp_tensor *b)
{
	return a->ndim == b->ndim && a->dtype == b->dtype && a->itemsize == b->itemsize &&
	       strcmp(a->dtype_name, b->dtype_name) == 0 &&
	       memcmp(a->shape, b->shape, a->ndim * sizeof(*a->shape)) == 0;
}

/* The first copy that is not broken, or else the first copy. @bad: the first broken copy. */
static const struct dcp_copy *choose_copy(const struct dcp_copies_key *k,
					  const struct dcp_copy **bad)
{
	const struct dcp_copy *good = NULL;

	*bad = NULL;
	for (const struct dcp_copy *c = k->first; c; c = c->next) {
		if (c->t.error && !*bad)
			*bad = c;
		if (!c->t.error && !good)
			good = c;
	}
	return good ? good : k->first;
}

/* Make @t the tensor that all copies of the key together hold; its pieces lie in @j. */
static int join_copies(struct dcp_join *j, const struct dcp_copies_key *k, struct dcp_tensor *t,
		       const char *missing, struct dcp_err *why)
{
	const struct dcp_copy *bad, *head = choose_copy(k, &bad);

	*t = head->t;
	if (t->error) {
		dcp_fail(why, -EBADMSG, "%s: %s", head->file, t->error);
		return 0;
	}
	dcp_join_begin(j);
	if (bad)
		dcp_join_lose(j, -EBADMSG, "%s: %s", bad->file, bad->t.error);
	for (const struct dcp_copy *c = k->first; c; c = c->next) {
		if (!c->t.error && !dcp_copies_alike(&head->t, &c->t)) {
			dcp_fail(why, -EBADMSG, "%s and %s disagree about its dtype or shape",
				 head->file, c->file);
			return 0;
		}
		for (size_t i = 0; !c->t.error && i < c->t.npieces; i++)
			dcp_join_add(j, &c->t.pieces[i]);
	}
	return dcp_join_end(j, t, NULL, missing ? missing : "no file holds them", why);
}

int dcp_copies_emit(struct dcp_copies *g, uint32_t key, const struct dcp_sink *sink,
		    const char *missing)
{
	struct dcp_err why = { 0 };
	struct dcp_tensor t;
	int rc = join_copies(&g->join, dcp_copies_at(g, key), &t, missing, &why);

	if (rc < 0)
		return rc;
	t.error = why.code ? why.msg : NULL;
	t.alias_of = NULL; /* aliases are within one rank, but the whole is emitted */
	return dcp_emit_tensor(sink, &t);
}

int dcp_copies_emit_all(struct dcp_copies *g, const struct dcp_sink *sink, const char *missing)
{
	int rc = 0;

	for (uint32_t k = 0; k < g->names.n && rc == 0; k++)
		rc = dcp_copies_emit(g, k, sink, g->nbroken ? g->broken.msg : missing);
	return rc;
}

static void pack_place(struct dcp_buf *place, const struct dcp_tensor *t)
{
	dcp_buf_reset(place);
	dcp_buf_str(place, t->dtype_name);
	dcp_buf_varint(place, t->ndim);
	for (uint32_t k = 0; k < t->ndim; k++)
		dcp_buf_varint(place, t->shape[k]);
	for (size_t i = 0; i < t->npieces; i++) {
		const struct dcp_piece *p = &t->pieces[i];

		dcp_buf_varint(place, p->file);
		dcp_buf_varint(place, p->off);
		dcp_buf_varint(place, p->item_lo);
		dcp_buf_varint(place, p->item_n);
		dcp_buf_varint(place, p->run_lo);
		dcp_buf_varint(place, p->run_n);
		dcp_buf_varint(place, p->enc);
		dcp_buf_varint(place, p->filter);
		dcp_buf_varint(place, p->swap);
		dcp_buf_varint(place,
			       p->stride != NULL); /* row-major differs from strides of 0 */
		for (uint32_t k = 0; k < t->ndim; k++) {
			dcp_buf_varint(place, p->lo[k]);
			dcp_buf_varint(place, p->len[k]);
			dcp_buf_varint(place, p->stride ? p->stride[k] : 0);
		}
	}
}

int dcp_places_find(struct dcp_places *p, struct dcp_tensor *t)
{
	uint32_t number;
	size_t at;
	int rc;

	pack_place(&p->place, t);
	if (dcp_buf_error(&p->place))
		return -ENOMEM;
	rc = dcp_intern_add(&p->seen, p->place.p, p->place.n, DCP_INTERN_NONE, &number);
	if (rc < 0)
		return rc;
	if (rc == 0) {
		memcpy(&at, p->key_off.p + number * sizeof(at), sizeof(at));
		t->alias_of = p->keys.p + at;
		return 0;
	}
	at = p->keys.n;
	dcp_buf_add(&p->keys, t->key, strlen(t->key) + 1);
	dcp_buf_add(&p->key_off, &at, sizeof(at));
	return dcp_buf_error(&p->keys) || dcp_buf_error(&p->key_off) ? -ENOMEM : 0;
}

void dcp_places_finish(struct dcp_places *p)
{
	dcp_buf_finish(&p->place);
	dcp_intern_finish(&p->seen);
	dcp_buf_finish(&p->keys);
	dcp_buf_finish(&p->key_off);
}
