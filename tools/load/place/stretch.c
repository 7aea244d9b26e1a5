/* SPDX-License-Identifier: Apache-2.0 */
/* Places the bytes that parts need from a stretch of a file that was read: in host memory at once,
 * on a device by its ship. */
#include <errno.h>
#include <stdlib.h>

#include "core/base/system.h"
#include "tools/load/load.h"

struct placing {
	struct dcpload_plan *p;
	uint32_t want;
	bool packed;
	uint64_t lo;        /* file offset of @src */
	const uint8_t *src; /* @packed: address of the next bytes that were sent */
};

static int place_part(void *ctx, const struct dcp_strided *s)
{
	struct placing *pl = ctx;
	const struct load_target *t = &pl->p->want[pl->want].target;
	const uint8_t *src = pl->packed ? pl->src : pl->src + (s->off - pl->lo);
	uint64_t n = dcp_strided_bytes(s);
	struct dcp_strided sent;

	if (pl->packed) {
		sent = dcp_chunk_packed(s);
		s = &sent;
		pl->src += n;
	}
	pl->p->took += n;
	if (t->on_device)
		return load_ship_add(pl->p->ship, pl->want, s, src);
	load_place(t, s, src);
	return load_arrived(pl->p, pl->want, n);
}

static uint64_t end_of(const struct dcp_chunk_need *need)
{
	return need->s.off + dcp_strided_extent(&need->s);
}

/* Move @a on to the needs that may intersect [lo, hi) of @file. */
static int advance_needs(struct dcpload_plan *p, struct load_active *a, uint32_t file,
			 uint64_t lo, uint64_t hi)
{
	size_t kept = 0;

	for (size_t i = 0; i < a->n; i++)
		if (p->need[a->need[i]].file == file && end_of(&p->need[a->need[i]]) > lo)
			a->need[kept++] = a->need[i];
	a->n = kept;
	for (; a->next < p->nneed; a->next++) {
		const struct dcp_chunk_need *need = &p->need[a->next];

		if (need->file > file || (need->file == file && need->s.off >= hi))
			break;
		if (need->file < file || end_of(need) <= lo ||
		    (a->rounds && dcp_chunk_is_packed(&need->s)))
			continue;
		if (DCP_GROW(a->need, a->cap, a->n) < 0)
			return -ENOMEM;
		a->need[a->n++] = (uint32_t)a->next;
	}
	return 0;
}

static int place_need(struct dcpload_plan *p, uint32_t number, uint64_t lo, uint64_t hi,
		      const uint8_t *src, bool packed)
{
	const struct dcp_chunk_need *need = &p->need[number];
	const struct load_target *t = &p->want[need->want].target;
	struct placing pl = { p, need->want, packed, lo, src };

	return dcp_strided_clip(&need->s, lo, hi, t->plain ? 1 : t->from, place_part, &pl);
}

/* Account for placing that began at @start, when @before bytes had arrived. */
static void account_place(struct dcpload_plan *p, int64_t start, uint64_t before)
{
	p->report.place_ns += (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - start);
	load_trace(p, DCPLOAD_EVENT_PLACE, start, p->took - before);
}

int load_place_need(struct dcpload_plan *p, uint32_t number, uint64_t lo, uint64_t hi,
		    const uint8_t *src, bool packed)
{
	int64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	uint64_t before = p->took;
	int rc = place_need(p, number, lo, hi, src, packed);

	account_place(p, start, before);
	return rc;
}

int load_place_stretch(struct dcpload_plan *p, struct load_active *a, uint32_t file,
		       uint64_t lo, uint64_t hi, const uint8_t *src)
{
	int64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	uint64_t before = p->took;
	int rc = advance_needs(p, a, file, lo, hi);

	for (size_t i = 0; i < a->n && rc == 0; i++)
		rc = place_need(p, a->need[i], lo, hi, src, false);
	account_place(p, start, before);
	return rc;
}
