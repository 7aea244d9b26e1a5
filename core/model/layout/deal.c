/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/layout/deal.h"

#include "core/base/ckd.h"

void dcp_deal(struct deal *out, const struct place *p, uint32_t parts, uint64_t n)
{
	struct deal d = { .p = p, .parts = parts, .n = n };

	if (p->grouped) {
		d.way = DEAL_GROUPS;
	} else if (p->kind == PLACE_STRIDED && parts > 1) {
		d.way = DEAL_STRIDED;
		d.each = dcp_div_up(n, p->arg);
		d.more = dcp_div_up(d.each, parts);
		d.edge = n ? d.each / d.more : 0;
	} else if (p->kind == PLACE_INTERLEAVE && parts > 1) {
		d.way = DEAL_INTERLEAVE;
		d.each = p->arg;
	} else if (p->split == SPLIT_BALANCED) {
		d.way = DEAL_BALANCED;
		d.each = n / parts;
		d.more = d.edge = n % parts;
	} else if (p->split == SPLIT_SIZES) {
		d.way = DEAL_SIZES;
	} else {
		d.way = DEAL_CHUNK;
		d.each = dcp_div_up(n, parts);
		d.edge = n ? n / d.each : 0;
	}
	*out = d;
}

/* ---- what can be dealt out ---- */

static bool split_fits(const struct place *p, uint32_t parts, uint64_t n)
{
	uint64_t before;

	if (p->split == SPLIT_EVEN)
		return n % parts == 0;
	if (p->split == SPLIT_LAST)
		return !dcp_ckd_mul(&before, dcp_div_up(n, parts), parts - 1) && before <= n;
	return true;
}

bool dcp_deal_fits(const struct place *p, uint32_t parts, uint64_t n)
{
	if (p->grouped) {
		if (n % p->sum != 0)
			return false;
		for (size_t i = 0; i < p->nnumber; i++)
			if (!split_fits(p, parts, p->number[i] * (n / p->sum)))
				return false;
		return true;
	}
	if (p->split == SPLIT_SIZES)
		return p->sum == n;
	return split_fits(p, parts, n);
}

bool dcp_deal_same(const struct place *p, uint32_t parts, uint64_t n, uint64_t *each)
{
	*each = dcp_div_up(n, parts);
	if (parts == 1 || n == 0)
		return p->split != SPLIT_SIZES;
	if (p->grouped || p->kind == PLACE_STRIDED || p->kind == PLACE_INTERLEAVE)
		return false;
	return p->split == SPLIT_PAD || (p->split != SPLIT_SIZES && n % parts == 0);
}

uint64_t dcp_deal_slices(const struct place *p, uint32_t parts, uint64_t n)
{
	if (p->grouped)
		return p->nnumber;
	if (p->kind == PLACE_STRIDED && parts > 1)
		return DCP_MIN(p->arg, n);
	if (p->kind == PLACE_INTERLEAVE && parts > 1)
		return dcp_div_up(dcp_div_up(n, p->arg), parts);
	return 1;
}

/* ---- one part ---- */

/* Where part @i begins that has @c elements, the last ones clipped. */
static inline uint64_t edge(uint64_t c, uint64_t i, uint64_t n)
{
	uint64_t at;

	return dcp_ckd_mul(&at, c, i) || at > n ? n : at;
}

/* How many of [lo, hi) come before @x? */
static inline uint64_t clip(uint64_t x, uint64_t lo, uint64_t hi)
{
	return DCP_MAX(DCP_MIN(x, hi), lo) - lo;
}

static uint64_t sized_below(const struct place *p, uint32_t i, uint64_t x)
{
	uint64_t lo = 0;

	for (uint32_t k = 0; k < i; k++)
		lo += p->number[k];
	return clip(x, lo, lo + p->number[i]);
}

static uint64_t grouped_below(const struct deal *deal, uint32_t i, uint64_t x)
{
	const struct place *p = deal->p;
	uint64_t base = 0, below = 0;

	for (size_t k = 0; k < p->nnumber && base < x; k++) {
		uint64_t n = p->number[k] * (deal->n / p->sum);
		struct slice s = { 0, 0 };
		char why[1];

		dcp_layout_part(p->split, p, deal->parts, i, n, &s, why, sizeof(why));
		below += clip(x - base, s.lo, s.lo + s.n);
		base += n;
	}
	return below;
}

void dcp_deal_mark(const struct deal *deal, uint64_t x, struct deal_mark *out)
{
	uint64_t c = deal->each, large = deal->more * (c + 1);

	out->x = x;
	switch (deal->way) {
	case DEAL_CHUNK:
		out->at = x / c;
		break;
	case DEAL_BALANCED:
		out->at = x < large ? x / (c + 1) : deal->more + (c ? (x - large) / c : 0);
		break;
	case DEAL_STRIDED:
		out->full = x / c;
		out->rest = x % c;
		out->part = dcp_div_up(DCP_MIN(c, deal->n - (x - out->rest)), deal->parts);
		out->at = out->rest ? out->rest / out->part : 0;
		break;
	case DEAL_INTERLEAVE:
		out->full = x / c / deal->parts;
		out->part = out->at = x / c % deal->parts;
		out->rest = x % c;
		break;
	case DEAL_SIZES:
	case DEAL_GROUPS:
		break;
	}
}

uint64_t dcp_deal_below(const struct deal *deal, uint32_t i, const struct deal_mark *mark)
{
	uint64_t c = deal->each, n = deal->n, lo, len;

	switch (deal->way) {
	case DEAL_CHUNK:
		return clip(mark->x, edge(c, i, n), edge(c, (uint64_t)i + 1, n));
	case DEAL_BALANCED:
		lo = c * i + DCP_MIN(i, deal->more);
		return clip(mark->x, lo, lo + c + (i < deal->more));
	case DEAL_SIZES:
		return sized_below(deal->p, i, mark->x);
	case DEAL_GROUPS:
		return grouped_below(deal, i, mark->x);
	case DEAL_STRIDED: /* in all pieces that come before, and in the one it lies in */
		lo = edge(deal->more, i, c);
		len = DCP_MIN(c, n - (mark->x - mark->rest));
		return mark->full * (edge(deal->more, (uint64_t)i + 1, c) - lo) +
		       clip(mark->rest, edge(mark->part, i, len),
			    edge(mark->part, (uint64_t)i + 1, len));
	case DEAL_INTERLEAVE: /* rounds, the block in this one, and what it has of the last */
		return (mark->full + (i < mark->part)) * c + (i == mark->part ? mark->rest : 0);
	}
	return 0;
}

uint64_t dcp_deal_length(const struct deal *deal, uint32_t i, const struct deal_mark *end)
{
	if (deal->way == DEAL_CHUNK && deal->p->split == SPLIT_PAD)
		return deal->each;
	return dcp_deal_below(deal, i, end);
}

/* What is the same from @i on is the same up to @edge; the part there is one by itself. */
static uint32_t up_to(uint64_t edge, uint32_t i, uint32_t end)
{
	uint64_t next = edge > i ? edge : (uint64_t)i + 1;

	return edge < i || next > end ? end : (uint32_t)next;
}

uint32_t dcp_deal_alike(const struct deal *deal, uint32_t i, const struct deal_mark *mark,
			size_t n)
{
	uint32_t end = up_to(deal->edge, i, deal->parts);

	if (deal->way == DEAL_SIZES || deal->way == DEAL_GROUPS)
		return i + 1;
	for (size_t k = 0; k < n; k++)
		end = up_to(mark[k].at, i, end);
	return end;
}
