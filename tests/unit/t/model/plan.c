/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/model/plan.h"
#include "tests/unit/t/random.h"

#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/model/geometry/cut.h"
#include "core/model/geometry/strided.h"
#include "core/model/geometry/tiling.h"

uint64_t t_pick(struct t_choice *c, uint64_t below)
{
	if (below < 2)
		return 0;
	if (!c->p)
		return t_random(&c->seed, below);
	if (c->n == 0)
		return 0;
	c->n--;
	return *c->p++ % below;
}

static uint64_t volume_of(const uint64_t *v, uint32_t n)
{
	uint64_t r = 1;

	for (uint32_t i = 0; i < n; i++)
		r *= v[i];
	return r;
}

/* ---- making one up ---- */

/* Strides of a random order of the dimensions, sometimes with gaps; returns elements spanned.
 */
static uint64_t random_strides(struct t_plan *w, uint32_t i, struct t_choice *c)
{
	uint32_t order[T_PLAN_DIMS], n = w->t.ndim;
	uint64_t step = 1 + t_pick(c, 2), span = 1;

	for (uint32_t d = 0; d < n; d++)
		order[d] = d;
	for (uint32_t d = n; d > 1; d--) {
		uint32_t j = (uint32_t)t_pick(c, d), x = order[d - 1];

		order[d - 1] = order[j];
		order[j] = x;
	}
	for (uint32_t k = n; k-- > 0;) {
		uint32_t d = order[k];

		w->stride[i][d] = step;
		span += (w->len[i][d] - 1) * step;
		step *= w->len[i][d];
		if (t_pick(c, 4) == 0)
			step += t_pick(c, 3);
	}
	return span;
}

static void add_piece(struct t_plan *w, struct t_choice *c, const uint64_t *lo,
		      const uint64_t *len, uint64_t run_lo, uint64_t run_n)
{
	uint32_t i = (uint32_t)w->t.npieces++;
	struct dcp_piece *p = &w->pieces[i];
	bool whole = run_lo == 0 && run_n == volume_of(len, w->t.ndim);
	uint64_t span = run_n;

	memcpy(w->lo[i], lo, sizeof(w->lo[i]));
	memcpy(w->len[i], len, sizeof(w->len[i]));
	*p = (struct dcp_piece){ .lo = w->lo[i],
				 .len = w->len[i],
				 .run_lo = run_lo,
				 .run_n = run_n,
				 .file = (uint32_t)t_pick(c, 3),
				 .swap = t_pick(c, 16) == 1,
				 .filter = t_pick(c, 16) == 1 };
	if (whole && run_n && t_pick(c, 4) == 1) {
		span = random_strides(w, i, c);
		p->stride = w->stride[i];
	}
	p->nbytes = span * w->t.itemsize;
	p->off = w->used[p->file] + (t_pick(c, 3) == 1 ? t_pick(c, 7) : 0);
	w->used[p->file] = p->off + p->nbytes;
}

/* Cut [lo, lo + len) in two until it is small enough; leaves may become runs. */
static void add_pieces(struct t_plan *w, struct t_choice *c, const uint64_t *lo,
		       const uint64_t *len, uint64_t depth)
{
	uint32_t d = (uint32_t)t_pick(c, w->t.ndim);
	uint64_t n = volume_of(len, w->t.ndim), done = 0;

	if (depth && w->t.ndim && len[d] > 1 && w->t.npieces < T_PLAN_PIECES - 16) {
		uint64_t first = 1 + t_pick(c, len[d] - 1), half[2][T_PLAN_DIMS],
			 from[2][T_PLAN_DIMS];
		uint64_t order = t_pick(c, 2);

		for (int k = 0; k < 2; k++) {
			memcpy(half[k], len, sizeof(half[k]));
			memcpy(from[k], lo, sizeof(from[k]));
		}
		half[0][d] = first;
		half[1][d] = len[d] - first;
		from[1][d] = lo[d] + first;
		add_pieces(w, c, from[order], half[order], depth - 1);
		add_pieces(w, c, from[!order], half[!order], depth - 1);
		return;
	}
	for (int runs = t_pick(c, 3) == 1 ? 3 : 0; runs && n - done > 1; runs--) {
		uint64_t x = 1 + t_pick(c, n - done - 1);

		add_piece(w, c, lo, len, done, x);
		done += x;
	}
	add_piece(w, c, lo, len, done, n - done);
}

void t_plan_tensor(struct t_plan *w, struct t_choice *c)
{
	uint64_t lo[T_PLAN_DIMS] = { 0 }, len[T_PLAN_DIMS] = { 0 }, left = 512;

	memset(w->used, 0, sizeof(w->used));
	w->t = (struct dcp_tensor){ .key = "k", .shape = w->shape, .pieces = w->pieces };
	w->t.itemsize = 1 + (uint32_t)t_pick(c, 16);
	w->t.ndim = (uint32_t)t_pick(c, T_PLAN_DIMS);
	for (uint32_t d = 0; d < w->t.ndim; d++) {
		uint64_t most = DCP_MIN(left, w->t.ndim > 2 ? 5u : 20u);

		len[d] = w->shape[d] = t_pick(c, 40) == 39 ? 0 : 1 + t_pick(c, most);
		left /= DCP_MAX(len[d], 1u);
	}
	if (volume_of(len, w->t.ndim))
		add_pieces(w, c, lo, len, t_pick(c, 6));
	if (w->t.ndim && t_pick(c, 4) == 1) { /* an empty shard, as torch records it */
		lo[0] = w->shape[0];
		len[0] = 0;
		add_piece(w, c, lo, len, 0, 0);
	}
}

/* Stretches of [0, size) that do not overlap, in any order. */
static void random_axis(struct dcp_axis *a, struct dcp_span *span, uint64_t size,
			struct t_choice *c)
{
	uint64_t at = 0, lo = 0;
	size_t n = 0;
	uint64_t kind = t_pick(c, 4);

	if (kind == 0) {
		lo = t_pick(c, size);
		span[n++] = (struct dcp_span){ 0, lo, 1 + t_pick(c, size - lo) };
	} else if (kind == 1) {
		span[n++] = (struct dcp_span){ 0, 0, size };
	} else {
		while (lo < size && n < T_PLAN_SPANS) {
			uint64_t len = 1 + t_pick(c, DCP_MIN(size - lo, 6));

			if (t_pick(c, 3))
				span[n++] = (struct dcp_span){ 0, lo, len };
			lo += len;
		}
		for (size_t k = kind == 2 ? n : 0; k > 1; k--) {
			size_t j = t_pick(c, k);
			struct dcp_span x = span[k - 1];

			span[k - 1] = span[j];
			span[j] = x;
		}
	}
	if (size == 0 || t_pick(c, 60) == 1)
		n = 0;
	for (size_t k = 0; k < n; at += span[k++].n)
		span[k].at = at;
	*a = (struct dcp_axis){ n ? span : NULL, n, at };
}

bool t_cut_at(const struct dcp_cut *cut, uint64_t e, uint64_t *at)
{
	if (cut->flat && e >= cut->flat_n)
		return false;
	if (cut->flat)
		e += cut->flat_lo;
	for (uint32_t d = cut->ndim; d-- > 0; e /= cut->axis[d].len) {
		uint64_t i = e % cut->axis[d].len;
		bool found = false;

		for (size_t k = 0; k < cut->axis[d].n; k++) {
			const struct dcp_span *s = &cut->axis[d].span[k];

			if (i < s->at || i >= s->at + s->n)
				continue;
			at[d] = s->lo + i - s->at;
			found = true;
		}
		if (!found)
			return false;
	}
	return true;
}

/* By the definitions: byte @byte of element @e of the array. */
static struct t_place place_of(const struct t_plan *w, uint64_t e, uint64_t byte)
{
	uint64_t at[T_PLAN_DIMS];

	if (!t_cut_at(&w->cut, e, at))
		return (struct t_place){ NULL, 0 };
	for (size_t i = 0; i < w->t.npieces; i++) {
		const struct dcp_piece *p = &w->pieces[i];
		uint64_t number = 0, element = 0;
		bool in = true;

		for (uint32_t d = 0; d < w->t.ndim; d++) {
			in &= at[d] >= p->lo[d] && at[d] < p->lo[d] + p->len[d];
			number = number * p->len[d] + (at[d] - p->lo[d]);
			element += p->stride ? (at[d] - p->lo[d]) * p->stride[d] : 0;
		}
		if (!in || number < p->run_lo || number >= p->run_lo + p->run_n)
			continue;
		number = p->stride ? element : number - p->run_lo;
		return (struct t_place){ p, p->off + number * w->t.itemsize + byte };
	}
	return (struct t_place){ NULL, UINT64_MAX };
}

void t_random_cut(struct dcp_cut *cut, uint32_t ndim, const uint64_t *shape,
		  struct dcp_axis *axis, struct dcp_span (*span)[T_PLAN_SPANS],
		  struct t_choice *c)
{
	uint64_t n = 1, padded = t_pick(c, 2 * ndim);

	*cut = (struct dcp_cut){ .ndim = ndim, .axis = axis };
	for (uint32_t d = 0; d < ndim; d++) {
		random_axis(&axis[d], span[d], shape[d], c);
		if (d == padded)
			axis[d].len += t_pick(c, axis[d].len) + 1;
		n *= axis[d].len;
	}
	if (t_pick(c, 3) == 1) {
		cut->flat = true;
		cut->flat_lo = t_pick(c, n + 1);
		cut->flat_n = t_pick(c, n - cut->flat_lo + 1);
		cut->pad = t_pick(c, 8);
	}
}

void t_plan_cut(struct t_plan *w, struct t_choice *c)
{
	uint64_t n = 0;

	t_random_cut(&w->cut, w->t.ndim, w->shape, w->axis, w->span, c);
	dcp_cut_volume(&w->cut, &n);
	w->bytes = n * w->t.itemsize;
	for (uint64_t b = 0; b < w->bytes; b++)
		w->place[b] = place_of(w, b / w->t.itemsize, b % w->t.itemsize);
}

/* ---- comparing ---- */

struct ranging {
	const struct t_plan *w;
	uint64_t off, n, found;
	bool byte[T_PLAN_BYTES];
	const char *wrong;
};

static int see_run(void *ctx, const struct dcp_run *run)
{
	struct ranging *x = ctx;

	if (run->n == 0 || run->dst > x->n || run->n > x->n - run->dst)
		x->wrong = "runs: an empty one, or one that is too long";
	for (uint64_t i = 0; i < run->n && !x->wrong; i++) {
		const struct t_place *p = &x->w->place[x->off + run->dst + i];

		if (!p->piece || p->piece->file != run->piece->file || p->off != run->off + i)
			x->wrong = "runs: another place";
		else if (x->byte[run->dst + i])
			x->wrong = "runs: a byte twice";
		x->byte[run->dst + i] = true;
		x->found++;
	}
	return x->wrong ? -1 : 0;
}

/* Bytes that may begin and end inside an element. */
static const char *check_range(const struct t_plan *w, const struct dcp_tiling *tl,
			       uint64_t off, uint64_t n)
{
	static struct ranging x;
	uint64_t stored = 0;
	int rc;

	memset(&x, 0, sizeof(x));
	x.w = w;
	x.off = off;
	x.n = n;
	for (uint64_t i = 0; i < n; i++)
		stored += w->place[off + i].piece != NULL;
	rc = dcp_strided_runs(tl, &w->cut, off, n, see_run, &x);
	if (x.wrong)
		return x.wrong;
	return x.found != stored     ? "runs: a byte is missing"
	       : rc != (stored == n) ? "runs: is it all of them?"
				     : NULL;
}

struct seen {
	const struct t_plan *w;
	uint64_t base, n; /* bytes of the array that are asked for */
	bool byte[T_PLAN_BYTES], piece[T_PLAN_PIECES];
	uint64_t descriptors, meetings, last;
	bool ordered; /* descriptors must come in order of their first byte */
	const char *wrong;
};

static void see_byte(struct seen *seen, const struct dcp_strided *s, uint64_t off, uint64_t dst)
{
	const struct t_place *p = &seen->w->place[seen->base + dst];

	if (dst >= seen->n)
		seen->wrong = "strided: outside the destination";
	else if (seen->byte[dst])
		seen->wrong = "strided: a byte twice";
	else if (!p->piece || p->off != off || p->piece->file != s->piece->file)
		seen->wrong = "strided: another place";
	else if (p->piece->swap != s->piece->swap ||
		 ((p->piece->filter || s->piece->filter) && p->piece != s->piece))
		seen->wrong = "strided: merged what is stored differently";
	else
		seen->byte[dst] = true;
}

static int see_strided(void *ctx, const struct dcp_strided *s)
{
	uint64_t total = 1, i[DCP_STRIDED_DIMS] = { 0 }, last = 0;
	struct seen *seen = ctx;

	if (seen->ordered && seen->descriptors && s->dst <= seen->last)
		seen->wrong = "strided: out of order";
	seen->last = s->dst;
	seen->descriptors++;
	for (uint32_t k = 0; k < s->ndim; k++) {
		total *= s->count[k];
		if (s->count[k] < 2)
			seen->wrong = "strided: a dimension that counts nothing";
	}
	if (dcp_strided_bytes(s) != total * s->run)
		seen->wrong = "strided: bytes";
	for (uint64_t e = 0; e < total && !seen->wrong; e++) {
		uint64_t rest = e, off = s->off, dst = s->dst;

		for (uint32_t k = s->ndim; k-- > 0; rest /= s->count[k]) {
			i[k] = rest % s->count[k];
			off += i[k] * s->file_stride[k];
			dst += i[k] * s->dst_stride[k];
		}
		for (uint64_t b = 0; b < s->run && !seen->wrong; b++)
			see_byte(seen, s, off + b, dst + b);
		last = DCP_MAX(last, off + s->run);
	}
	if (!seen->wrong && dcp_strided_extent(s) != last - s->off)
		seen->wrong = "strided: extent";
	return seen->wrong ? -1 : 0;
}

static int see_meet(void *ctx, const struct dcp_meet *m)
{
	struct seen *seen = ctx;

	seen->meetings++;
	seen->piece[m->piece - seen->w->pieces] = true;
	return 0;
}

/* Elements [first, first + n) of the array as descriptors, and the pieces they touch. */
static const char *check_strided(const struct t_plan *w, const struct dcp_tiling *tl,
				 uint64_t first, uint64_t n, struct seen *seen)
{
	uint64_t isz = w->t.itemsize, data = w->cut.flat ? w->cut.flat_n : w->bytes / isz;
	bool touched[T_PLAN_PIECES] = { false };

	memset(seen, 0, sizeof(*seen));
	seen->w = w;
	seen->base = first * isz;
	seen->n = n * isz;
	seen->ordered = w->t.ndim <= DCP_STRIDED_DIMS;
	for (size_t i = 0; i < w->t.npieces; i++)
		if (w->pieces[i].run_n != volume_of(w->len[i], w->t.ndim))
			seen->ordered = false;
	if (first == 0 && n == w->bytes / isz)
		dcp_strided_emit(tl, &w->cut, see_strided, seen);
	else
		dcp_strided_part(tl, &w->cut, first, n, see_strided, seen);
	if (seen->wrong)
		return seen->wrong;
	for (uint64_t b = 0; b < n * isz; b++) {
		const struct dcp_piece *p = w->place[first * isz + b].piece;

		if (seen->byte[b] != (p != NULL))
			return "strided: a byte is missing";
		if (p)
			touched[p - w->pieces] = true;
	}
	n = first < data ? DCP_MIN(n, data - first) : 0;
	dcp_meet(tl, &w->cut, first, n, see_meet, seen);
	if (memcmp(touched, seen->piece, sizeof(touched)))
		return "meet: other pieces than those touched";
	if (w->t.ndim <= DCP_STRIDED_DIMS && seen->descriptors > seen->meetings)
		return "strided: more descriptors than boxes";
	return NULL;
}

/* All of the cut, and ranges of it. */
static const char *check_tiling(const struct t_plan *w, const struct dcp_tiling *tl,
				struct t_choice *c)
{
	struct seen seen;
	const char *wrong = check_strided(w, tl, 0, w->bytes / w->t.itemsize, &seen);

	for (int k = 0; k < 3 && !wrong; k++) {
		uint64_t off = t_pick(c, w->bytes + 1), n = t_pick(c, w->bytes - off + 1);
		uint64_t first = off / w->t.itemsize;

		wrong = check_range(w, tl, off, n);
		if (!wrong)
			wrong = check_strided(w, tl, first, n / w->t.itemsize, &seen);
	}
	return wrong;
}

/* The box is the smallest that holds every element of the cut; of a flat cut, one that does. */
static const char *check_bounds(const struct t_plan *w, const struct dcp_box *box, bool any)
{
	uint64_t lo[T_PLAN_DIMS], end[T_PLAN_DIMS], at[T_PLAN_DIMS];
	bool found = false, loose = w->cut.flat;

	for (uint64_t e = 0; e < w->bytes / w->t.itemsize; e++) {
		if (!t_cut_at(&w->cut, e, at))
			continue;
		for (uint32_t d = 0; d < w->t.ndim; d++) {
			lo[d] = found ? DCP_MIN(lo[d], at[d]) : at[d];
			end[d] = found ? DCP_MAX(end[d], at[d] + 1) : at[d] + 1;
		}
		found = true;
	}
	if (found && !any)
		return "bounds: something is nothing";
	if (any && !found)
		return loose ? NULL : "bounds: nothing is something";
	for (uint32_t d = 0; any && d < w->t.ndim; d++) {
		uint64_t box_end = box->lo[d] + box->len[d];

		if (box->lo[d] > lo[d] || box_end < end[d])
			return "bounds: too small";
		if (!loose && (box->lo[d] < lo[d] || box_end > end[d]))
			return "bounds: too large";
	}
	return NULL;
}

/* The same of what is near the cut, and of nothing else: no other piece may be looked at. */
static const char *check_part(struct t_plan *w, struct t_choice *c, struct dcp_arena *arena)
{
	struct dcp_piece kept[T_PLAN_PIECES];
	struct dcp_tiling tl = { .t = &w->t };
	const char *wrong;
	struct dcp_box box;
	bool any = dcp_cut_bounds(&w->cut, &box);

	wrong = check_bounds(w, &box, any);
	if (wrong)
		return wrong;
	memcpy(kept, w->pieces, sizeof(kept));
	for (size_t i = 0; i < w->t.npieces;
	     i++) /* in the way of any sort, but for their box */
		if (any && !dcp_box_meets(&box, w->t.ndim, w->lo[i], w->len[i]))
			w->pieces[i].run_n = 0;
	if (any && dcp_tiling_init_part(&tl, &w->t, &box, arena, NULL) < 0)
		wrong = "tiling of a part: refused";
	else
		wrong = check_tiling(w, &tl, c);
	memcpy(w->pieces, kept, sizeof(kept));
	return wrong;
}

const char *t_plan_check(struct t_plan *w, struct t_choice *c)
{
	const char *wrong = NULL;
	struct dcp_arena arena;
	struct dcp_tiling tl;

	t_plan_tensor(w, c);
	t_plan_cut(w, c);
	if (!dcp_cut_fits(&w->cut, w->t.ndim, w->shape))
		return "cut: does not fit its tensor";
	for (uint64_t b = 0; b < w->bytes; b++)
		if (!w->place[b].piece && w->place[b].off)
			return "the reference found a hole";
	dcp_arena_init(&arena, 1 << 22);
	if (dcp_tiling_init(&tl, &w->t, &arena, NULL) < 0)
		wrong = "tiling: refused";
	if (!wrong)
		wrong = check_tiling(w, &tl, c);
	if (!wrong)
		wrong = check_part(w, c, &arena);
	dcp_arena_finish(&arena);
	return wrong;
}
