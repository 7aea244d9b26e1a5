/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds of messages, as plan/schedule.h describes them. While a round's messages travel, a thread reads for the next.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "tools/load/execute/execute_int.h"
#include "tools/load/memory/memory.h"
#include "tools/load/place/ship.h"
#include "tools/load/plan/schedule.h"

/* Prepare messages: what each other rank needs of @stripe, which is in @slot. */
static void pack(struct dcpload_plan *p, uint64_t stripe, const uint8_t *slot)
{
	struct load_rounds *r = p->rounds;
	uint8_t *to = r->pack;

	for (uint32_t d = 0; d < r->ranks; d++) {
		const struct load_round_part *v = r->theirs[d];
		size_t i = r->next[d];

		r->send[d] = to;
		for (; i < r->ntheirs[d] && v[i].stripe == stripe; i++) {
			uint64_t lo = (stripe - r->base[v[i].file]) * r->stripe;

			if (d == r->self)
				continue;
			memcpy(to, slot + (v[i].lo - lo), v[i].hi - v[i].lo);
			to += v[i].hi - v[i].lo;
		}
		r->next[d] = i;
		r->nsend[d] = (uint64_t)(to - (uint8_t *)(uintptr_t)r->send[d]);
		p->report.sent += r->nsend[d];
	}
}

/* Prepare to receive this round's parts; its first stripe is @first. */
static void expect(struct dcpload_plan *p, uint64_t first)
{
	struct load_rounds *r = p->rounds;
	size_t next = r->next_mine;
	uint8_t *to = r->in;

	for (uint32_t d = 0; d < r->ranks; d++) {
		next += load_round_parts(r->mine, r->nmine, next, first + d, &r->nrecv[d]);
		if (d == r->self)
			r->nrecv[d] = 0;
		r->recv[d] = to;
		to += r->nrecv[d];
		p->report.received += r->nrecv[d];
	}
}

/* Place what this rank needs of @stripe, from the message @from or from @slot if it is its own. With
 * @rc < 0 only skip it. */
static int unpack(struct dcpload_plan *p, struct load_active *a, uint64_t stripe,
		  const uint8_t *from, const uint8_t *slot, int rc)
{
	struct load_rounds *r = p->rounds;

	if (p->ship && rc == 0)
		rc = load_ship_begin(p->ship, slot ? slot : from, LOAD_SHIP_NO_CHUNK);
	for (; r->next_mine < r->nmine && r->mine[r->next_mine].stripe == stripe;
	     r->next_mine++) {
		const struct load_round_part *v = &r->mine[r->next_mine];
		uint64_t lo = (stripe - r->base[v->file]) * r->stripe;

		if (rc == 0)
			rc = load_place_stretch(p, a, v->file, v->lo,
						DCP_MIN(v->hi, lo + r->stripe),
						slot ? slot + (v->lo - lo) : from);
		from += v->hi - v->lo;
	}
	return p->ship && rc == 0 ? load_ship_end(p->ship) : rc;
}

struct filler {
	struct dcpload_plan *p;
	bool has_thread;
	struct dcp_err err;
	int rc;
};

/* After a failure the others still get a message, with whatever is in the slot; they learn of
 * the failure at the end. */
static int fill_slot(struct filler *f, size_t k)
{
	struct dcpload_plan *p = f->p;
	int rc = load_window_claim(p->window, k);

	if (rc < 0)
		return rc;
	if (f->rc == 0)
		f->rc = load_fill(p, k, load_window_slot(p->window, k), &f->err);
	load_window_publish(p->window, k);
	return 0;
}

static void *fill_own(void *arg)
{
	struct filler *f = arg;

	for (size_t k = 0; k < f->p->chunks->n && fill_slot(f, k) == 0; k++)
		;
	return NULL;
}

/* One round. After *failed nothing is placed, the others still get their messages. */
static int round_of(struct filler *f, struct load_active *a, size_t k, int *failed,
		    struct dcpload_error *err)
{
	struct dcpload_plan *p = f->p;
	struct load_rounds *r = p->rounds;
	uint64_t first = (uint64_t)k * r->ranks;
	const uint8_t *slot = NULL;
	int64_t start;
	int rc = 0;

	memset(r->nsend, 0, r->ranks * sizeof(*r->nsend));
	if (k < p->chunks->n) {
		if (!f->has_thread)
			*failed = *failed ? *failed : fill_slot(f, k);
		if (*failed == 0)
			*failed = load_window_await(p->window, k);
		slot = load_window_slot(p->window, k);
		pack(p, first + r->self, slot);
	}
	expect(p, first);
	start = dcp_now_ns(CLOCK_MONOTONIC);
	rc = load_rounds_send(p->ck, r, err);
	p->report.wait_ns += (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - start);
	load_trace(p, DCPLOAD_EVENT_WAIT, start, 0);
	for (uint32_t d = 0; d < r->ranks && rc == 0; d++)
		*failed = unpack(p, a, first + d, r->recv[d], d == r->self ? slot : NULL,
				 *failed);
	if (p->ship && rc == 0 && *failed == 0)
		*failed =
			load_ship_reap(p->ship, true); /* the messages' memory is used again */
	if (slot)
		load_window_done(p->window, k);
	return rc;
}

int load_by_rounds(struct dcpload_plan *p, struct dcpload_error *err)
{
	struct load_rounds *r = p->rounds;
	struct filler f = { .p = p };
	struct load_active a = { 0 };
	size_t rounds = load_rounds_count(r);
	pthread_t thread;
	int rc = 0, failed = 0;

	memset(r->next, 0, r->ranks * sizeof(*r->next));
	r->next_mine = 0;
	f.has_thread = pthread_create(&thread, NULL, fill_own, &f) == 0;
	for (size_t k = 0; k < rounds && rc == 0; k++)
		rc = round_of(&f, &a, k, &failed, err);
	if (rc < 0)
		load_window_fail(p->window);
	if (f.has_thread)
		pthread_join(thread, NULL);
	free(a.need);
	if (p->ship && (rc < 0 || failed < 0))
		load_ship_drop(p->ship);
	if (rc < 0)
		return rc;
	if (f.rc < 0)
		return load_fail_err(err, f.rc, &f.err);
	return failed < 0 ? load_device_said(p->device, failed, err) : 0;
}
