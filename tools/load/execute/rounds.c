/* SPDX-License-Identifier: Apache-2.0 */
/* The way of the ranks of a job: rounds of messages, as load.h describes them. While the messages
 * of a round are exchanged, a thread reads for the next round. */
#include "tools/load/load.h"

#include <string.h>

#include "core/base/system.h"

enum { LONG = 16 << 10 /* bytes from which on a part is not packed */ };

/* For messages between devices: copy the packed bytes [@from, @to) to the device. */
static int send_there(const struct dcpload_plan *p, const uint8_t *from, const uint8_t *to)
{
	const struct load_rounds *r = p->rounds;

	return !r->device || from == to ? 0
					: load_link_copy(p->link, r->now + (from - r->pack),
							 from, (uint64_t)(to - from));
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
					rc = load_link_copy(p->link, r->now + (to - r->pack),
							    at, v->run);
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

/* Prepare messages with the bytes that each other rank needs of @stripe, which is in @slot. */
static int pack_messages(struct dcpload_plan *p, uint64_t stripe, const uint8_t *slot)
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

/* The same if every rank needs the whole stripe: its stretches are copied to the device
 * unpacked. */
static int send_whole(struct dcpload_plan *p, size_t k, const uint8_t *slot)
{
	const struct dcp_chunks *c = p->chunks;
	struct load_rounds *r = p->rounds;
	char *to = p->link->kind->in_place ? r->now : (char *)r->in + r->self * c->slot;
	int rc = 0;

	for (size_t i = c->first[k]; i < c->first[k + 1] && rc == 0; i++)
		rc = load_link_copy(p->link, to + c->stretch[i].at, slot + c->stretch[i].at,
				    c->stretch[i].n);
	return rc;
}

/* Prepare to receive this round's parts; its first stripe is @first. */
static void expect_parts(struct dcpload_plan *p, uint64_t first)
{
	struct load_rounds *r = p->rounds;
	size_t next = r->next_mine;
	bool in_place = r->device && p->link->kind->in_place;
	uint8_t *to = r->in;

	for (uint32_t d = 0; d < r->of.ranks; d++) {
		next += load_round_parts(r->mine, r->nmine, next, first + d, &r->nrecv[d]);
		r->recv[d] = to;
		if (d == r->self && r->device && !r->same)
			r->recv[d] = (void *)(uintptr_t)r->send[d];
		if (in_place && r->same) {
			r->send[d] = r->now;
			r->recv[d] = r->now;
		}
		if (d == r->self)
			r->nsend[d] = r->nrecv[d] = 0;
		if (to && !in_place)
			to += r->same ? p->chunks->slot : r->nrecv[d];
		p->report.received += r->nrecv[d];
	}
}

/* Place the bytes that this rank needs of @stripe, from the message @from, or from @slot if it has
 * the whole stripe. With @rc < 0 only skip them. */
static int place_parts(struct dcpload_plan *p, struct load_active *a, uint64_t stripe,
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
		else if (rc == 0 && v->need != need) /* once for all its parts of the stripe */
			rc = load_place_need(p, v->need - 1, lo, lo + r->of.size,
					     slot ? slot : from, !slot);
		need = v->need;
		from += (uint64_t)v->run * v->count;
	}
	return p->ship && rc == 0 ? load_ship_end(p->ship) : rc;
}

/* Exchange messages between devices. First all ranks learn whether a rank has failed; they learn of
 * later failures in the next round, or at the end. */
static int send_between_devices(struct load_pass *s, int *failed, struct dcpload_error *err)
{
	struct dcpload_plan *p = s->p;
	const struct load_link_kind *kind = p->link->kind;
	struct load_rounds *r = p->rounds;
	uint64_t bytes = 0;
	int64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	int rc;

	*failed = *failed < 0 ? load_pass_tell(s, *failed, err) : 0;
	rc = kind->meet(p->link, r->send, r->nsend, r->recv, r->nrecv, failed, err);
	load_trace(p, DCPLOAD_EVENT_WAIT, start, 0);
	if (rc < 0 || kind->in_place)
		return rc;
	start = dcp_now_ns(CLOCK_MONOTONIC);
	*failed = r->same ? kind->gather(p->link, r->in, p->chunks->slot)
			  : kind->exchange(p->link, r->send, r->nsend, r->recv, r->nrecv);
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

/* One round. After a failure nothing is placed, but the other ranks still get their messages. */
static int exchange_round(struct load_pass *s, size_t k, struct dcpload_error *err)
{
	struct dcpload_plan *p = s->p;
	struct load_rounds *r = p->rounds;
	uint64_t first = (uint64_t)k * r->of.ranks, received = p->report.received;
	const uint8_t *slot = NULL;
	int64_t start;
	int rc = 0, failed = s->failed;

	r->now = r->there ? r->there + k % 2 * r->half : NULL;
	memset(r->nsend, 0, r->of.ranks * sizeof(*r->nsend));
	if (k < p->chunks->n) {
		rc = load_pass_await(s, k);
		failed = s->failed ? s->failed : rc;
		slot = load_window_slot(p->window, k);
		rc = pack_messages(p, first + r->self, slot);
		if (rc == 0 && r->same)
			rc = send_whole(p, k, slot);
		failed = failed ? failed : rc;
	}
	expect_parts(p, first);
	received = p->report.received - received;
	start = dcp_now_ns(CLOCK_MONOTONIC);
	rc = r->device ? send_between_devices(s, &failed, err) : send_between_hosts(p, err);
	p->report.wait_ns += (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - start);
	start = dcp_now_ns(CLOCK_MONOTONIC);
	for (uint32_t d = 0; d < r->of.ranks && rc == 0; d++) {
		const uint8_t *whole = r->same                      ? r->recv[d]
				       : d == r->self && !r->device ? slot
								    : NULL;

		failed = place_parts(p, &s->active, first + d, r->recv[d], whole, failed);
	}
	if (p->ship && rc == 0 && failed == 0)
		failed = load_ship_reap(p->ship, true); /* memory of messages is reused */
	if (r->device && p->link->kind->in_place)
		load_trace(p, DCPLOAD_EVENT_EXCHANGE, start, received);
	if (slot)
		load_window_done(p->window, k);
	if (failed < 0)
		load_pass_fail(s, failed, NULL);
	return rc;
}

static int begin_rounds(struct load_pass *s, struct dcpload_error *err)
{
	struct load_link *link = s->p->link;
	struct load_rounds *r = s->p->rounds;
	int rc = link && link->kind->ready ? link->kind->ready(link) : 0;

	memset(r->next, 0, r->of.ranks * sizeof(*r->next));
	r->next_mine = 0;
	s->steps = dcp_stripe_rounds(&r->of);
	s->stride = s->fillers = 1;
	if (rc < 0)
		load_pass_fail(s, rc, NULL);
	return link && link->kind->begin
		       ? link->kind->begin(link, r->there, load_rounds_device_bytes(r), err)
		       : 0;
}

static void end_rounds(struct load_pass *s, int rc)
{
	struct dcpload_plan *p = s->p;

	if (!p->link || p->link->kind->end(p->link, rc) == 0)
		return;
	p->rounds->mapped = true;
	load_device_keep(p->device,
			 "%llu bytes of it are kept until the process ends: other ranks may "
			 "have them mapped",
			 (unsigned long long)load_rounds_device_bytes(p->rounds));
}

const struct load_way load_by_messages = {
	.keeps_going = true,
	.begin = begin_rounds,
	.step = exchange_round,
	.end = end_rounds,
};
