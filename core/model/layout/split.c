/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of cutting: which elements of a length belong to one of several parts? */
#include <errno.h>
#include <stdio.h>

#include "core/base/ckd.h"
#include "core/model/layout/layout_int.h"

/* The edge before part @index where parts have @c elements and the last ones are clipped. */
static uint64_t edge(uint64_t c, uint64_t index, uint64_t n)
{
	uint64_t at;

	return dcp_ckd_mul(&at, c, index) || at > n ? n : at;
}

static struct slice chunk(uint64_t n, uint64_t parts, uint64_t index)
{
	uint64_t c = dcp_div_up(n, parts), lo = edge(c, index, n);

	return (struct slice){ lo, edge(c, index + 1, n) - lo };
}

static struct slice balanced(uint64_t n, uint64_t parts, uint64_t index)
{
	uint64_t small = n / parts, larger = n % parts;

	return (struct slice){ small * index + DCP_MIN(index, larger),
			       small + (index < larger) };
}

static int sized(const struct place *p, uint32_t index, uint64_t n, struct slice *out,
		 char *why, size_t why_size)
{
	uint64_t lo = 0;

	if (p->sum != n) {
		snprintf(why, why_size, "the sizes add up to %ju, the length is %ju",
			 (uintmax_t)p->sum, (uintmax_t)n);
		return -EINVAL;
	}
	for (uint32_t i = 0; i < index; i++)
		lo += p->number[i];
	*out = (struct slice){ lo, p->number[index] };
	return 0;
}

int dcp_layout_part(enum split_kind kind, const struct place *p, uint32_t parts, uint32_t index,
		    uint64_t n, struct slice *out, char *why, size_t why_size)
{
	uint64_t before;

	switch (kind) {
	case SPLIT_BALANCED:
		*out = balanced(n, parts, index);
		return 0;
	case SPLIT_SIZES:
		return sized(p, index, n, out, why, why_size);
	case SPLIT_EVEN:
		if (n % parts != 0) {
			snprintf(why, why_size, "%ju is not a multiple of %u", (uintmax_t)n,
				 parts);
			return -EINVAL;
		}
		break;
	case SPLIT_LAST:
		if (dcp_ckd_mul(&before, dcp_div_up(n, parts), parts - 1) || before > n) {
			snprintf(why, why_size,
				 "%u times %ju is more than %ju: nothing is left for the last",
				 parts - 1, (uintmax_t)dcp_div_up(n, parts), (uintmax_t)n);
			return -EINVAL;
		}
		break;
	case SPLIT_CHUNK:
	case SPLIT_PAD:
	case SPLIT_TIGHT:
		break;
	}
	*out = chunk(n, parts, index);
	return 0;
}

static int slices_alloc(struct slices *out, uint64_t n, struct dcp_arena *arena, char *why,
			size_t why_size)
{
	if (n > DCP_LAYOUT_MAX_SPANS) {
		snprintf(why, why_size, "%ju spans; the limit is %d", (uintmax_t)n,
			 DCP_LAYOUT_MAX_SPANS);
		return -E2BIG;
	}
	*out = (struct slices){ .v = dcp_arena_alloc(arena, n * sizeof(*out->v)) };
	return out->v ? 0 : -ENOMEM;
}

static void slices_add(struct slices *s, uint64_t lo, uint64_t n)
{
	if (n == 0)
		return;
	s->v[s->n++] = (struct slice){ lo, n };
	s->len += n;
}

static int grouped(const struct place *p, uint32_t parts, uint32_t index, uint64_t n,
		   struct dcp_arena *arena, struct slices *out, char *why, size_t why_size)
{
	uint64_t base = 0, scale = n / p->sum;
	int rc;

	if (n % p->sum != 0) {
		snprintf(why, why_size,
			 "the groups add up to %ju, which does not divide the length %ju",
			 (uintmax_t)p->sum, (uintmax_t)n);
		return -EINVAL;
	}
	rc = slices_alloc(out, p->nnumber, arena, why, why_size);
	for (size_t i = 0; rc == 0 && i < p->nnumber; i++) {
		struct slice part;

		rc = dcp_layout_part(p->split, p, parts, index, p->number[i] * scale, &part,
				     why, why_size);
		if (rc < 0)
			break;
		slices_add(out, base + part.lo, part.n);
		base += p->number[i] * scale;
	}
	return rc;
}

/* torch.chunk() twice: in split_factor pieces, and each piece in parts. */
static int strided(const struct place *p, uint32_t parts, uint32_t index, uint64_t n,
		   struct dcp_arena *arena, struct slices *out, char *why, size_t why_size)
{
	uint64_t c = dcp_div_up(n, p->arg), pieces = c ? dcp_div_up(n, c) : 0;
	int rc = slices_alloc(out, pieces, arena, why, why_size);

	for (uint64_t j = 0; rc == 0 && j < pieces; j++) {
		struct slice piece = chunk(n, p->arg, j);
		struct slice part = chunk(piece.n, parts, index);

		slices_add(out, piece.lo + part.lo, part.n);
	}
	return rc;
}

static int interleaved(const struct place *p, uint32_t parts, uint32_t index, uint64_t n,
		       struct dcp_arena *arena, struct slices *out, char *why, size_t why_size)
{
	uint64_t blocks = dcp_div_up(n, p->arg);
	uint64_t mine = blocks > index ? dcp_div_up(blocks - index, parts) : 0;
	int rc = slices_alloc(out, mine, arena, why, why_size);

	for (uint64_t j = 0; rc == 0 && j < mine; j++) {
		uint64_t lo = (j * parts + index) * p->arg;

		slices_add(out, lo, DCP_MIN(p->arg, n - lo));
	}
	return rc;
}

int dcp_layout_split(const struct place *p, uint32_t parts, uint32_t index, uint64_t n,
		     struct dcp_arena *arena, struct slices *out, char *why, size_t why_size)
{
	int rc;

	if (p->grouped)
		return grouped(p, parts, index, n, arena, out, why, why_size);
	if (p->kind == PLACE_STRIDED && parts > 1)
		return strided(p, parts, index, n, arena, out, why, why_size);
	if (p->kind == PLACE_INTERLEAVE && parts > 1)
		return interleaved(p, parts, index, n, arena, out, why, why_size);
	rc = dcp_layout_part(p->split, p, parts, index, n, &out->one, why, why_size);
	if (rc < 0)
		return rc;
	out->v = &out->one;
	out->n = out->one.n != 0;
	out->len = p->split == SPLIT_PAD ? dcp_div_up(n, parts) : out->one.n;
	return 0;
}

/* Append the meeting of @s, whose first element will stand at @at, with a span. */
static void meet(struct dcp_axis *out, struct dcp_span *to, const struct slice *s, uint64_t at,
		 const struct dcp_span *from)
{
	uint64_t lo = DCP_MAX(s->lo, from->at);
	uint64_t hi = DCP_MIN(s->lo + s->n, from->at + from->n);
	struct dcp_span *last = out->n ? &to[out->n - 1] : NULL;

	if (lo >= hi)
		return;
	if (last && last->lo + last->n == from->lo + (lo - from->at) &&
	    last->at + last->n == at + (lo - s->lo))
		last->n += hi - lo;
	else
		to[out->n++] = (struct dcp_span){ at + (lo - s->lo), from->lo + (lo - from->at),
						  hi - lo };
}

static void take_one(struct dcp_axis *axis, const struct slices *s, struct dcp_span *span)
{
	uint64_t lo = DCP_MIN(s->v[0].lo, span->n);

	span->n = DCP_MIN(s->v[0].n, span->n - lo);
	span->lo += lo;
	axis->n = span->n != 0;
	axis->len = s->len;
}

/*
 * Slices ascend and spans do too, so one walk over both finds every meeting, and there are at
 * most as many as slices and spans together.
 */
int dcp_layout_axis_take(struct dcp_axis *axis, const struct slices *s, struct dcp_arena *arena)
{
	struct dcp_axis out = { .len = s->len };
	size_t room = s->n + axis->n, j = 0;
	struct dcp_span *to = NULL;
	uint64_t at = 0;

	if (s->n == 0 || axis->n == 0) {
		*axis = out;
		return 0;
	}
	to = dcp_arena_alloc(arena, room * sizeof(*to));
	if (!to)
		return -ENOMEM;
	if (s->n == 1 && axis->n == 1) {
		to[0] = axis->span[0];
		axis->span = to;
		take_one(axis, s, to);
		return 0;
	}
	for (size_t i = 0; i < s->n; at += s->v[i++].n) {
		while (j < axis->n && axis->span[j].at + axis->span[j].n <= s->v[i].lo)
			j++;
		for (size_t k = j; k < axis->n && axis->span[k].at < s->v[i].lo + s->v[i].n;
		     k++)
			meet(&out, to, &s->v[i], at, &axis->span[k]);
	}
	out.span = to;
	*axis = out;
	return out.n > DCP_LAYOUT_MAX_SPANS ? -E2BIG : 0;
}
