/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/gather/join.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "core/base/arena.h"
#include "core/base/ckd.h"
#include "core/base/sort.h"
#include "core/model/geometry/cover.h"

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

/* Of equal pieces the first added stays in front. */
static int compare(const void *pa, const void *pb, void *tensor)
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

/* The order in which they were added. */
static int number(struct dcp_join *j, size_t n)
{
	dcp_buf_reset(&j->order);
	for (uint32_t i = 0; i < n; i++)
		dcp_buf_add(&j->order, &i, sizeof(i));
	return dcp_buf_error(&j->order);
}

/*
 * Keep in the order the first of equal pieces, and copy the next one of another file. Returns how
 * many are kept.
 */
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
static int take(struct dcp_join *j, struct dcp_tensor *t, size_t n)
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

/* Each place once, by place; and the copies. */
static int sort(struct dcp_join *j, struct dcp_tensor *t)
{
	size_t n;

	if (number(j, t->npieces) < 0)
		return -ENOMEM;
	qsort_r(j->order.p, t->npieces, sizeof(uint32_t), compare, t);
	n = drop_replicas(j, t);
	return take(j, t, n) ?: dcp_buf_error(&j->copies);
}

/* Elements of all pieces. */
static uint64_t count(const struct dcp_tensor *t)
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

/* dcp_cover() takes of several pieces that have an element the last. */
static int cut_overlaps(struct dcp_join *j, struct dcp_tensor *t, struct dcp_arena *arena,
			struct dcp_err *why)
{
	struct dcp_piece *pieces;
	size_t n = t->npieces;
	int rc;

	if (!j->order.n && number(j, n) < 0)
		return -ENOMEM;
	DCP_SORT(DCP_ITEMS(j->order, uint32_t), n, by_number_down);
	if (take(j, t, n) < 0)
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
		rc = sort(j, t);
	t->copies = DCP_ITEMS(j->copies, struct dcp_piece);
	t->ncopies = DCP_NITEMS(j->copies, struct dcp_piece);
	if (rc < 0 || !dcp_shape_volume(t->shape, t->ndim, &volume))
		return rc; /* the index says what is wrong with the shape */
	sum = count(t);
	if (cut && sum > volume) {
		rc = cut_overlaps(j, t, cut, why);
		if (rc != 1)
			return rc;
		sum = count(t);
	}
	if (sum != volume && j->lost.code)
		dcp_err_give(why, &j->lost, j->lost.code);
	else if (sum < volume && missing)
		dcp_fail(why, -EBADMSG, "%" PRIu64 " of %" PRIu64 " element%s missing: %s",
			 volume - sum, volume, volume == 1 ? " is" : "s are", missing);
	return rc;
}
