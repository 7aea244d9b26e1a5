/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds of messages, as plan/schedule.h describes them. While a round's messages travel, a thread
 * reads for the next.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "tools/load/execute/execute_int.h"
#include "tools/load/memory/ipc.h"
#include "tools/load/memory/memory.h"
#include "tools/load/memory/nccl.h"
#include "tools/load/place/ship.h"
#include "tools/load/plan/schedule.h"

enum { LONG = 16 << 10 /* bytes of a part that are not worth packing */ };

/* Queue a copy to where the device sends it from, or others read it. */
static int copy_there(const struct dcpload_plan *p, void *dst, const void *src, uint64_t n)
{
	return p->ipc ? load_ipc_copy(p->ipc, dst, src, n)
		      : load_nccl_copy(p->nccl, dst, src, n);
}

/*
 * With messages that go from device to device: copy what is packed at [@from, @to) to the device.
 */
static int send_there(const struct dcpload_plan *p, const uint8_t *from, const uint8_t *to)
{
	const struct load_rounds *r = p->rounds;

	return !r->device || from == to
		       ? 0
		       : copy_there(p, r->now + (from - r->pack), from, (uint64_t)(to - from));
}

/* Prepare the message for rank @d, at @to: the parts @v of @stripe, which is in @slot. */
static int pack_one(const struct dcpload_plan *p, const struct load_round_part *v, size_t n,
		    uint64_t stripe, const uint8_t *slot, uint8_t *to)
{
	const struct load_rounds *r = p->rounds;
	const uint8_t *from = to;
	int rc = 0;

	for (; n && rc == 0; n--, v++) {
		const uint8_t *at =
			slot + (v->lo - (stripe - r->of.base[v->file]) * r->of.size);

		for (uint32_t i = 0; i < v->count && rc == 0; i++) {
			if (r->device && v->run >= LONG) {
				rc = send_there(p, from, to);
				if (rc == 0)
					rc = copy_there(p, r->now + (to - r->pack), at, v->run);
				from = to + v->run;
			} else {
				memcpy(to, at, v->run);
			}
			to += v->run;
			at += v->step;
		}
	}
	return rc < 0 ? rc : send_there(p, from, to);
}

/* Prepare messages: what each other rank needs of @stripe, which is in @slot. */
static int pack(struct dcpload_plan *p, uint64_t stripe, const uint8_t *slot)
{
	struct load_rounds *r = p->rounds;
	uint8_t *to = r->pack;
	int rc = 0;

	for (uint32_t d = 0; d < r->of.ranks; d++) {
		const struct load_round_part *v = r->theirs[d] + r->next[d];
		size_t n = load_round_parts(r->theirs[d], r->ntheirs[d], r->next[d], stripe,
					    &r->nsend[d]);

		r->next[d] += n;
		if (d == r->self && !r->device)
			r->nsend[d] = 0;
		p->report.sent += d == r->self ? 0 : r->nsend[d];
		if (r->same)
			continue;
		r->send[d] = r->device ? r->now + (to - r->pack) : (char *)to;
		if (r->nsend[d] && rc == 0)
			rc = pack_one(p, v, n, stripe, slot, to);
		to += r->nsend[d];
	}
	return rc;
}

/* The same where every rank needs all of it: its stretches go to the device as they are. */
static int send_whole(struct dcpload_plan *p, size_t k, const uint8_t *slot)
{
	const struct dcp_chunks *c = p->chunks;
	char *to = p->ipc ? p->rounds->now : (char *)p->rounds->in + p->rounds->self * c->slot;
	int rc = 0;

	for (size_t i = c->first[k]; i < c->first[k + 1] && rc == 0; i++)
		rc = copy_there(p, to + c->stretch[i].at, slot + c->stretch[i].at,
				c->stretch[i].n);
	return rc;
}

/* Prepare to receive this round's parts; its first stripe is @first. */
static void expect(struct dcpload_plan *p, uint64_t first)
{
	struct load_rounds *r = p->rounds;
	size_t next = r->next_mine;
	uint8_t *to = r->in;

	for (uint32_t d = 0; d < r->of.ranks; d++) {
		next += load_round_parts(r->mine, r->nmine, next, first + d, &r->nrecv[d]);
		r->recv[d] = to;
		if (d == r->self && r->device && !r->same)
			r->recv[d] = (void *)(uintptr_t)r->send[d];
		if (p->ipc && r->same) {
			r->send[d] = r->now;
			r->recv[d] = r->now;
		}
		if (d == r->self)
			r->nsend[d] = r->nrecv[d] = 0;
		to += p->ipc ? 0 : r->same ? p->chunks->slot : r->nrecv[d];
		p->report.received += r->nrecv[d];
	}
}

/*
 * Place what this rank needs of @stripe, from the message @from or from @slot if it is whole. With
 * @rc < 0 only skip it.
 */
static int unpack(struct dcpload_plan *p, struct load_active *a, uint64_t stripe,
		  const uint8_t *from, const uint8_t *slot, int rc)
{
	struct load_rounds *r = p->rounds;

	if (p->ship && rc == 0)
		rc = load_ship_begin(p->ship, slot ? slot : from,
				     r->device ? LOAD_SHIP_THERE : LOAD_SHIP_NO_CHUNK);
	for (uint32_t need = 0;
	     r->next_mine < r->nmine && r->mine[r->next_mine].stripe == stripe;
	     r->next_mine++) {
		const struct load_round_part *v = &r->mine[r->next_mine];
		uint64_t lo = (stripe - r->of.base[v->file]) * r->of.size;

		if (rc == 0 && v->need == 0)
			rc = load_place_stretch(p, a, v->file, v->lo,
						DCP_MIN(v->lo + v->run, lo + r->of.size),
						slot ? slot + (v->lo - lo) : from);
		else if (rc == 0 && v->need != need) /* all its parts of the stripe */
			rc = load_place_need(p, v->need - 1, lo, lo + r->of.size,
					     slot ? slot : from, !slot);
		need = v->need;
		from += (uint64_t)v->run * v->count;
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

/*
 * From device to device. First all ranks learn whether one has failed, which the others would wait
 * for; what fails here they learn in the next round, or at the end.
 */
static int send_between_devices(struct dcpload_plan *p, int *failed, struct dcpload_error *err)
{
	struct load_rounds *r = p->rounds;
	uint64_t bytes = 0;
	int64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	int rc = p->ipc ? load_ipc_meet(p->ipc, r->send, r->nsend, r->recv, r->nrecv, failed,
					err)
			: load_agree(p->ck->comm, load_device_said(p->device, *failed, err),
				     err, (int)p->ck->config.timeout_ms);

	load_trace(p, DCPLOAD_EVENT_WAIT, start, 0);
	if (rc < 0 || p->ipc)
		return rc;
	start = dcp_now_ns(CLOCK_MONOTONIC);
	*failed = r->same ? load_nccl_gather(p->nccl, r->in, p->chunks->slot)
			  : load_nccl_exchange(p->nccl, r->send, r->nsend, r->recv, r->nrecv);
	for (uint32_t d = 0; d < r->of.ranks; d++)
		bytes += r->nrecv[d];
	load_trace(p, DCPLOAD_EVENT_EXCHANGE, start, bytes);
	return 0;
}

static int send_between_hosts(struct dcpload_plan *p, struct dcpload_error *err)
{
	int64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	int rc = load_rounds_send(p, err);

	load_trace(p, DCPLOAD_EVENT_WAIT, start, 0);
	return rc;
}

/* One round. After *failed nothing is placed, the others still get their messages. */
static int round_of(struct filler *f, struct load_active *a, size_t k, int *failed,
		    struct dcpload_error *err)
{
	struct dcpload_plan *p = f->p;
	struct load_rounds *r = p->rounds;
	uint64_t first = (uint64_t)k * r->of.ranks, received = p->report.received;
	const uint8_t *slot = NULL;
	int64_t start;
	int rc = 0;

	r->now = r->there + k % 2 * r->half;
	memset(r->nsend, 0, r->of.ranks * sizeof(*r->nsend));
	if (k < p->chunks->n) {
		if (!f->has_thread)
			*failed = *failed ? *failed : fill_slot(f, k);
		if (*failed == 0)
			*failed = load_window_await(p->window, k);
		slot = load_window_slot(p->window, k);
		rc = pack(p, first + r->self, slot);
		if (rc == 0 && r->same)
			rc = send_whole(p, k, slot);
		*failed = *failed ? *failed : rc;
	}
	expect(p, first);
	received = p->report.received - received;
	start = dcp_now_ns(CLOCK_MONOTONIC);
	rc = r->device ? send_between_devices(p, failed, err) : send_between_hosts(p, err);
	p->report.wait_ns += (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - start);
	start = dcp_now_ns(CLOCK_MONOTONIC);
	for (uint32_t d = 0; d < r->of.ranks && rc == 0; d++) {
		const uint8_t *whole = r->same                      ? r->recv[d]
				       : d == r->self && !r->device ? slot
								    : NULL;

		*failed = unpack(p, a, first + d, r->recv[d], whole, *failed);
	}
	if (p->ship && rc == 0 && *failed == 0)
		*failed =
			load_ship_reap(p->ship, true); /* the messages' memory is used again */
	if (p->ipc)
		load_trace(p, DCPLOAD_EVENT_EXCHANGE, start, received);
	if (slot)
		load_window_done(p->window, k);
	return rc;
}

/* Others may still read what this rank's device holds for them. */
static void keep(struct dcpload_plan *p)
{
	p->rounds->mapped = true;
	load_device_keep(p->device,
			 "%llu bytes of it are kept until the process ends: other ranks may "
			 "have them mapped",
			 (unsigned long long)load_rounds_device_bytes(p->rounds));
}

int load_by_rounds(struct dcpload_plan *p, struct dcpload_error *err)
{
	struct load_rounds *r = p->rounds;
	struct filler f = { .p = p };
	struct load_active a = { .rounds = true };
	size_t rounds = dcp_stripe_rounds(&r->of);
	pthread_t thread;
	int rc = p->ipc ? load_ipc_map(p->ipc, r->there, load_rounds_device_bytes(r), err) : 0,
	    failed = p->nccl ? load_nccl_ready(p->nccl) : 0;

	memset(r->next, 0, r->of.ranks * sizeof(*r->next));
	r->next_mine = 0;
	f.has_thread = rc == 0 && pthread_create(&thread, NULL, fill_own, &f) == 0;
	for (size_t k = 0; k < rounds && rc == 0; k++)
		rc = round_of(&f, &a, k, &failed, err);
	if (rc < 0)
		load_window_fail(p->window);
	if (f.has_thread)
		pthread_join(thread, NULL);
	free(a.need);
	if (rc == 0 && f.rc < 0)
		rc = load_fail_err(err, f.rc, &f.err);
	else if (rc == 0 && failed < 0)
		rc = load_device_said(p->device, failed, err);
	if (p->ship && rc < 0)
		load_ship_drop(p->ship);
	if (p->nccl && rc < 0)
		load_nccl_drop(p->nccl);
	if (p->ipc && load_ipc_unmap(p->ipc, NULL) < 0)
		keep(p);
	return rc;
}
