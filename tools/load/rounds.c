/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each byte is read by one rank of the job and sent to those that need it. In round k rank r has read chunk
 * k * ranks + r; every rank gets of each chunk the blocks that it said it needs, in order, and both sides
 * know which those are. A thread reads the chunk of the next round meanwhile.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "tools/load/execute.h"

struct load_rounds {
	uint32_t ranks;
	const void **send;
	uint64_t *nsend, *nrecv;
	void **recv;
	size_t *hint; /* in the ranges of each rank, for what is sent; one more for what comes */
	uint8_t *pack, *in; /* what is sent, what came */
	uint64_t npack, nin;
};

void load_rounds_free(struct load_rounds *r)
{
	if (!r)
		return;
	free(r->send);
	free(r->nsend);
	free(r->nrecv);
	free(r->recv);
	free(r->hint);
	free(r->pack);
	free(r->in);
	free(r);
}

static const struct load_range *ranges_of(const struct dcpload_plan *p, uint32_t r, size_t *n)
{
	*n = p->ranges.n[r] / sizeof(struct load_range);
	return p->ranges.at[r];
}

/* Bytes of chunk @c that rank @r needs, each of its stretches. */
static uint64_t chunk_bytes(const struct dcpload_plan *p, size_t c, uint32_t r, size_t *hint)
{
	const struct load_chunks *chunks = p->chunks;
	uint64_t total = 0;
	size_t n;
	const struct load_range *v = ranges_of(p, r, &n);

	for (size_t i = chunks->first[c]; i < chunks->first[c + 1]; i++)
		total += load_overlap(&chunks->stretch[i], v, n, hint, NULL, NULL);
	return total;
}

int load_prepare_rounds(struct dcpload_plan *p, struct dcpload_error *err)
{
	uint32_t ranks = p->ck->comm->ranks, self = p->ck->comm->rank;
	const struct load_chunks *chunks = p->chunks;
	struct load_rounds *r = calloc(1, sizeof(*r));
	size_t c = 0;

	if (!r)
		return load_fail(err, -ENOMEM, "out of memory");
	p->rounds = r;
	r->ranks = ranks;
	r->send = calloc(ranks, sizeof(*r->send));
	r->nsend = calloc(ranks, sizeof(*r->nsend));
	r->nrecv = calloc(ranks, sizeof(*r->nrecv));
	r->recv = calloc(ranks, sizeof(*r->recv));
	r->hint = calloc(ranks + 1, sizeof(*r->hint));
	if (!r->send || !r->nsend || !r->nrecv || !r->recv || !r->hint)
		return load_fail(err, -ENOMEM, "out of memory");
	while (c < chunks->n) {
		uint64_t out = 0, in = 0;

		for (uint32_t k = 0; k < ranks && c < chunks->n; k++, c++) {
			if (k != self) {
				in += chunk_bytes(p, c, self, &r->hint[ranks]);
				continue;
			}
			for (uint32_t d = 0; d < ranks; d++)
				if (d != self)
					out += chunk_bytes(p, c, d, &r->hint[d]);
		}
		r->npack = DCP_MAX(r->npack, out);
		r->nin = DCP_MAX(r->nin, in);
	}
	r->pack = malloc(r->npack + 1);
	r->in = malloc(r->nin + 1);
	if (!r->pack || !r->in)
		return load_fail(err, -ENOMEM, "no memory for %llu bytes of messages",
				 (unsigned long long)(r->npack + r->nin));
	return 0;
}

/* ---- one round ---- */

struct packing {
	const uint8_t *stretch; /* byte @lo of the file */
	uint64_t lo;
	uint8_t *to;
};

static int pack_part(void *ctx, uint64_t lo, uint64_t hi)
{
	struct packing *pk = ctx;

	memcpy(pk->to, pk->stretch + (lo - pk->lo), hi - lo);
	pk->to += hi - lo;
	return 0;
}

/* Of this rank's chunk @c in @slot, what each of the others needs. */
static void pack(struct dcpload_plan *p, size_t c, const uint8_t *slot)
{
	struct load_rounds *r = p->rounds;
	const struct load_chunks *chunks = p->chunks;
	struct packing pk = { .to = r->pack };

	for (uint32_t d = 0; d < r->ranks; d++) {
		size_t n;
		const struct load_range *v = ranges_of(p, d, &n);
		uint8_t *from = pk.to;

		if (d == p->ck->comm->rank)
			continue;
		for (size_t i = chunks->first[c]; i < chunks->first[c + 1]; i++) {
			const struct load_stretch *s = &chunks->stretch[i];

			pk.stretch = slot + s->at;
			pk.lo = s->lo;
			load_overlap(s, v, n, &r->hint[d], pack_part, &pk);
		}
		r->send[d] = from;
		r->nsend[d] = (uint64_t)(pk.to - from);
		p->report.sent += r->nsend[d];
	}
}

struct unpacking {
	struct dcpload_plan *p;
	struct load_active *a;
	const struct load_stretch *s;
	const uint8_t *from;
};

static int place_received(void *ctx, uint64_t lo, uint64_t hi)
{
	struct unpacking *u = ctx;
	const uint8_t *src = u->from;

	u->from += hi - lo;
	if (lo >= u->s->hi)
		return 0; /* only what the last element before it needs */
	return load_place_stretch(u->p, u->a, u->s->file, lo, DCP_MIN(hi, u->s->hi), src);
}

static int unpack(struct dcpload_plan *p, struct load_active *a, size_t c, uint32_t from,
		  const uint8_t *slot, size_t *hint)
{
	const struct load_chunks *chunks = p->chunks;
	struct unpacking u = { p, a, NULL, p->rounds->recv[from] };
	int rc = 0;

	for (size_t i = chunks->first[c]; i < chunks->first[c + 1] && rc == 0; i++) {
		u.s = &chunks->stretch[i];
		if (slot)
			rc = load_place_stretch(p, a, u.s->file, u.s->lo, u.s->hi,
						slot + u.s->at);
		else if (load_overlap(u.s, p->mine, p->nmine, hint, place_received, &u) ==
			 UINT64_MAX)
			rc = -EIO;
	}
	return rc;
}

/* How much comes from whom, of the chunks from @c on. */
static void expect(struct dcpload_plan *p, size_t c)
{
	struct load_rounds *r = p->rounds;
	uint8_t *to = r->in;

	for (uint32_t k = 0; k < r->ranks; k++, c++) {
		r->nrecv[k] = 0;
		if (k != p->ck->comm->rank && c < p->chunks->n) {
			size_t hint = r->hint[r->ranks];

			r->nrecv[k] = chunk_bytes(p, c, p->ck->comm->rank, &hint);
		}
		r->recv[k] = to;
		to += r->nrecv[k];
		p->report.received += r->nrecv[k];
	}
}

struct filler {
	struct dcpload_plan *p;
	struct dcp_err err;
	int rc;
};

static void *fill_own(void *arg)
{
	struct filler *f = arg;
	struct dcpload_plan *p = f->p;
	size_t n = 0;

	for (size_t c = p->ck->comm->rank; c < p->chunks->n; c += p->rounds->ranks, n++) {
		if (load_window_claim(p->window, n) < 0)
			break;
		/* The others wait for something: after a failure they get what is there, and hear of
		 * it at the end. */
		if (f->rc == 0)
			f->rc = load_fill(p, c, load_window_slot(p->window, n), &f->err);
		load_window_publish(p->window, n);
	}
	return NULL;
}

/* @failed: nothing is placed any more, only the others are served. */
static int round_of(struct dcpload_plan *p, struct load_active *a, size_t number, int *failed)
{
	struct load_rounds *r = p->rounds;
	size_t first = number * r->ranks, own = first + p->ck->comm->rank;
	const uint8_t *slot = NULL;
	int64_t start;
	int rc = 0;

	memset(r->nsend, 0, r->ranks * sizeof(*r->nsend));
	if (own < p->chunks->n) {
		rc = load_window_await(p->window, number);
		slot = load_window_slot(p->window, number);
		pack(p, own, slot);
	}
	expect(p, first);
	start = dcp_now_ns(CLOCK_MONOTONIC);
	if (rc == 0)
		rc = p->ck->comm->alltoallv(p->ck->comm->ctx, r->send, r->nsend, r->recv,
					    r->nrecv, (int)p->ck->config.timeout_ms);
	p->report.wait_ns += (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - start);
	for (uint32_t k = 0; k < r->ranks && first + k < p->chunks->n && rc == 0; k++)
		if (*failed == 0)
			*failed = unpack(p, a, first + k, k, first + k == own ? slot : NULL,
					 &r->hint[r->ranks]);
	if (slot)
		load_window_done(p->window, number);
	return rc;
}

int load_by_rounds(struct dcpload_plan *p, struct dcpload_error *err)
{
	struct load_rounds *r = p->rounds;
	struct filler f = { .p = p };
	struct load_active a = { 0 };
	pthread_t thread;
	int rc, failed = 0;

	memset(r->hint, 0, (r->ranks + 1) * sizeof(*r->hint));
	rc = -pthread_create(&thread, NULL, fill_own, &f);
	if (rc < 0)
		return load_fail(err, rc, "cannot start a thread: %s", strerror(-rc));
	for (size_t k = 0; k * r->ranks < p->chunks->n && rc == 0; k++)
		rc = round_of(p, &a, k, &failed);
	if (rc < 0)
		load_window_fail(p->window);
	pthread_join(thread, NULL);
	free(a.need);
	if (rc < 0)
		return load_fail(err, rc, "exchange between ranks: %s", strerror(-rc));
	if (f.rc < 0)
		return load_fail_err(err, f.rc, &f.err);
	return failed < 0 ? load_fail(err, failed, "%s", strerror(-failed)) : 0;
}
