/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each byte is read by one rank of the job and sent to those that need it.
 *
 * The files of the version, one after the other, are cut into stripes of one size; stripe s belongs to
 * rank s mod ranks. When the plan is made, every rank tells each owner which bytes of the owner's
 * stripes it needs. In round k, rank r reads the blocks of stripe k * ranks + r that any rank needs and
 * sends each rank its bytes, in order; meanwhile a thread reads for the next round. A rank stores only
 * what it needs itself and what others need of its own stripes.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "tools/load/execute.h"
#include "tools/load/memory/memory.h"
#include "tools/load/ship.h"

enum {
	STRIPE_MOST = 4 << 20,
	ELEMENT = 16, /* bytes of the largest */
};

/* Bytes [lo, hi) of a file that a rank needs from a stripe. They may reach beyond it, where its last element may end.
 * Sent between ranks in this form. */
struct part {
	uint64_t stripe, lo, hi;
	uint32_t file, zero;
};

struct load_rounds {
	uint32_t ranks, self;
	uint64_t stripe; /* bytes */
	uint64_t slack;  /* bytes that a part may reach beyond its stripe */
	uint64_t *base;  /* first stripe of each file; base[nfiles]: number of stripes */
	size_t nfiles;
	struct part *mine; /* what this rank needs, in order */
	size_t nmine;
	struct part **theirs; /* what rank d needs of this rank's stripes, in order */
	size_t *ntheirs;
	struct part *memory; /* holds all of @theirs */
	size_t *next;        /* index in theirs[d] of the current round */
	size_t next_mine;
	const void **send;
	uint64_t *nsend, *nrecv;
	void **recv;
	uint8_t *pack, *in; /* messages of a round: sent, received */
	uint64_t npack, nin;
};

void load_rounds_free(struct load_rounds *r)
{
	if (!r)
		return;
	free(r->base);
	free(r->mine);
	free(r->theirs);
	free(r->ntheirs);
	free(r->memory);
	free(r->next);
	free(r->send);
	free(r->nsend);
	free(r->nrecv);
	free(r->recv);
	free(r->pack);
	free(r->in);
	free(r);
}

uint64_t load_rounds_bytes(const struct load_rounds *r)
{
	return r ? r->npack + r->nin : 0;
}

void *load_rounds_in(const struct load_rounds *r, uint64_t *n)
{
	*n = r->nin;
	return r->in;
}

/* ---- stripes ---- */

static int number_stripes(struct load_rounds *r, const struct dcpload *ck)
{
	const struct dcp_file_id *files = dcp_index_files(dcp_version_index(ck->v), &r->nfiles);
	uint64_t n = 0;

	r->base = calloc(r->nfiles + 1, sizeof(*r->base));
	if (!r->base)
		return -ENOMEM;
	for (size_t i = 0; i < r->nfiles; i++) {
		r->base[i] = n;
		n += files[i].size / r->stripe + (files[i].size % r->stripe != 0);
	}
	r->base[r->nfiles] = n;
	return 0;
}

static uint64_t owner(const struct load_rounds *r, uint64_t stripe)
{
	return stripe % r->ranks;
}

/* Cut ranges of files into parts of stripes: r->mine. @slack: with the end of their last element. */
static int split(struct load_rounds *r, const struct load_range *v, size_t n, bool slack)
{
	size_t cap = 0;

	for (size_t i = 0; i < n; i++)
		for (uint64_t lo = v[i].lo, hi; lo < v[i].hi; lo = hi) {
			uint64_t number = lo / r->stripe;

			hi = DCP_MIN((number + 1) * r->stripe, v[i].hi);
			if (dcp_array_grow((void **)&r->mine, &cap, r->nmine,
					   sizeof(*r->mine)) < 0)
				return -ENOMEM;
			r->mine[r->nmine++] =
				(struct part){ r->base[v[i].file] + number, lo,
					       slack ? DCP_MIN(hi + ELEMENT, v[i].hi) : hi,
					       v[i].file, 0 };
		}
	return 0;
}

static int by_owner(const void *a, const void *b, void *arg)
{
	const struct part *x = a, *y = b;
	uint64_t ox = owner(arg, x->stripe), oy = owner(arg, y->stripe);

	if (ox != oy)
		return ox < oy ? -1 : 1;
	if (x->stripe != y->stripe)
		return x->stripe < y->stripe ? -1 : 1;
	return x->lo < y->lo ? -1 : x->lo > y->lo;
}

static int by_stripe(const void *a, const void *b)
{
	const struct part *x = a, *y = b;

	if (x->stripe != y->stripe)
		return x->stripe < y->stripe ? -1 : 1;
	return x->lo < y->lo ? -1 : x->lo > y->lo;
}

static int all_to_all(const struct dcpload *ck, struct load_rounds *r,
		      struct dcpload_error *err)
{
	int rc = ck->comm->alltoallv(ck->comm->ctx, r->send, r->nsend, r->recv, r->nrecv,
				     (int)ck->config.timeout_ms);

	return load_comm_say(ck->comm, rc, err);
}

/* Learn how many parts others need of this rank's stripes, and allocate them. */
static int hear_sizes(struct dcpload *ck, struct load_rounds *r, struct dcpload_error *err)
{
	uint64_t *own = calloc(r->ranks, sizeof(*own)),
		 *others = calloc(r->ranks, sizeof(*others));
	size_t total = 0;
	int rc = own && others ? 0 : load_fail(err, -ENOMEM, "out of memory");

	for (size_t i = 0; i < r->nmine && rc == 0; i++)
		own[owner(r, r->mine[i].stripe)]++;
	rc = load_agree(ck->comm, rc, err, (int)ck->config.timeout_ms);
	for (uint32_t d = 0; d < r->ranks && rc == 0; d++) {
		r->send[d] = &own[d];
		r->recv[d] = &others[d];
		r->nsend[d] = r->nrecv[d] = sizeof(*own);
	}
	if (rc == 0)
		rc = all_to_all(ck, r, err);
	for (uint32_t d = 0; d < r->ranks && rc == 0; d++) {
		r->nsend[d] = own[d] * sizeof(*r->mine);
		r->ntheirs[d] = others[d];
		total += others[d];
		if (others[d] > SIZE_MAX / sizeof(*r->memory) / r->ranks)
			rc = load_fail(err, -EPROTO, "rank %u asks for too much", d);
	}
	if (rc == 0) {
		r->memory = calloc(total + 1, sizeof(*r->memory));
		if (!r->memory)
			rc = load_fail(err, -ENOMEM, "out of memory");
	}
	free(own);
	free(others);
	return load_agree(ck->comm, rc, err, (int)ck->config.timeout_ms);
}

/* Are these parts in this rank's stripes? Another release or a broken transport may send anything. */
static bool is_sound(const struct load_rounds *r, const struct part *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t lo;

		if (v[i].file >= r->nfiles || owner(r, v[i].stripe) != r->self ||
		    v[i].stripe < r->base[v[i].file] || v[i].stripe >= r->base[v[i].file + 1] ||
		    (i && by_stripe(&v[i - 1], &v[i]) > 0))
			return false;
		lo = (v[i].stripe - r->base[v[i].file]) * r->stripe;
		if (v[i].lo < lo || v[i].lo >= v[i].hi || v[i].hi - lo > r->stripe + r->slack)
			return false;
	}
	return true;
}

/* Tell owners what this rank needs of their stripes, and receive what others need of its own. */
static int tell_owners(struct dcpload *ck, struct load_rounds *r, struct dcpload_error *err)
{
	struct part *to = NULL, *from;
	int rc;

	if (r->nmine)
		qsort_r(r->mine, r->nmine, sizeof(*r->mine), by_owner, r);
	rc = hear_sizes(ck, r, err);
	if (rc < 0)
		return rc;
	to = r->memory;
	from = r->mine;
	for (uint32_t d = 0; d < r->ranks; d++) {
		r->send[d] = from;
		r->recv[d] = to;
		r->theirs[d] = to;
		r->nrecv[d] = r->ntheirs[d] * sizeof(*to);
		to += r->ntheirs[d];
		from += r->nsend[d] / sizeof(*from);
	}
	rc = all_to_all(ck, r, err);
	for (uint32_t d = 0; d < r->ranks && rc == 0; d++)
		if (!is_sound(r, r->theirs[d], r->ntheirs[d]))
			rc = load_fail(err, -EPROTO, "rank %u asks for what is in no file", d);
	if (r->nmine)
		qsort(r->mine, r->nmine, sizeof(*r->mine), by_stripe);
	return load_agree(ck->comm, rc, err, (int)ck->config.timeout_ms);
}

/* ---- what this rank reads ---- */

/* Chunks of what all ranks need of this rank's stripes: chunk k is from stripe k * ranks + self. */
static int make_chunks(struct dcpload_plan *p, uint64_t slack)
{
	struct load_rounds *r = p->rounds;
	struct load_chunks *c = calloc(1, sizeof(*c));
	size_t total = 0, i = 0;
	struct part *all;

	if (!c)
		return -ENOMEM;
	p->chunks = c;
	c->members = r->ranks;
	c->slot = r->stripe + slack;
	for (uint32_t d = 0; d < r->ranks; d++)
		total += r->ntheirs[d];
	c->n = r->base[r->nfiles] / r->ranks + (r->base[r->nfiles] % r->ranks > r->self);
	c->first = calloc(c->n + 1, sizeof(*c->first));
	c->stretch = calloc(total + 1, sizeof(*c->stretch));
	all = malloc((total + 1) * sizeof(*all));
	if (!c->first || !c->stretch || !all) {
		free(all);
		return -ENOMEM;
	}
	memcpy(all, r->memory, total * sizeof(*all));
	qsort(all, total, sizeof(*all), by_stripe);
	for (size_t k = 0; k < c->n; k++) {
		uint64_t stripe = k * r->ranks + r->self;
		size_t first = c->nstretch;

		c->first[k] = first;
		for (; i < total && all[i].stripe == stripe; i++) {
			uint64_t from = (stripe - r->base[all[i].file]) * r->stripe,
				 lo = all[i].lo - all[i].lo % LOAD_BLOCK,
				 hi = all[i].hi +
				      (LOAD_BLOCK - all[i].hi % LOAD_BLOCK) % LOAD_BLOCK;
			struct load_stretch *s =
				c->nstretch > first ? &c->stretch[c->nstretch - 1] : NULL;

			if (s && lo <= s->hi + DCP_FETCH_STRIDE) {
				s->hi = DCP_MAX(s->hi, hi);
				s->n = (uint32_t)(s->hi - s->lo);
				continue;
			}
			c->stretch[c->nstretch++] =
				(struct load_stretch){ all[i].file, (uint32_t)(hi - lo), lo, hi,
						       lo - from };
		}
	}
	c->first[c->n] = c->nstretch;
	for (size_t k = 0; k < c->nstretch; k++)
		c->unique += c->stretch[k].n;
	free(all);
	return 0;
}

/* ---- one round ---- */

/* Number of the parts from v[next] on that are of @stripe; *bytes: their bytes. */
static size_t parts_of(const struct part *v, size_t n, size_t next, uint64_t stripe,
		       uint64_t *bytes)
{
	size_t i = next;

	*bytes = 0;
	for (; i < n && v[i].stripe == stripe; i++)
		*bytes += v[i].hi - v[i].lo;
	return i - next;
}

/* Allocate buffers for the largest round. */
static int make_buffers(struct load_rounds *r, size_t rounds)
{
	uint64_t bytes;

	memset(r->next, 0, r->ranks * sizeof(*r->next));
	r->next_mine = 0;
	for (size_t k = 0; k < rounds; k++) {
		uint64_t out = 0, in = 0;

		for (uint32_t d = 0; d < r->ranks; d++) {
			r->next[d] += parts_of(r->theirs[d], r->ntheirs[d], r->next[d],
					       k * r->ranks + r->self, &bytes);
			out += d == r->self ? 0 : bytes;
			r->next_mine += parts_of(r->mine, r->nmine, r->next_mine,
						 k * r->ranks + d, &bytes);
			in += d == r->self ? 0 : bytes;
		}
		r->npack = DCP_MAX(r->npack, out);
		r->nin = DCP_MAX(r->nin, in);
	}
	r->pack = malloc(r->npack + 1);
	r->in = malloc(r->nin + 1);
	return r->pack && r->in ? 0 : -ENOMEM;
}

static size_t count_rounds(const struct load_rounds *r)
{
	return (r->base[r->nfiles] + r->ranks - 1) / r->ranks;
}

/* Sum over all ranks the distinct bytes that are needed of their stripes. */
static int add_unique(struct dcpload_plan *p, struct dcpload_error *err)
{
	struct load_blobs b;
	int rc = load_gather(p->ck->comm, &p->chunks->unique, sizeof(p->chunks->unique), &b,
			     err, (int)p->ck->config.timeout_ms);

	if (rc < 0)
		return rc;
	p->chunks->unique = 0;
	for (uint32_t d = 0; d < p->ck->comm->ranks; d++)
		p->chunks->unique += *(const uint64_t *)b.at[d];
	load_blobs_free(&b);
	return 0;
}

int load_make_rounds(struct dcpload_plan *p, uint64_t staging, bool slack,
		     struct dcpload_error *err)
{
	struct dcpload *ck = p->ck;
	uint32_t n = ck->comm->ranks;
	struct load_rounds *r = calloc(1, sizeof(*r));
	/* Two slots, the window's head, and in the worst case @n stripes in each message buffer. */
	uint64_t share = (staging - LOAD_BLOCK) / (2 * (uint64_t)n + 2),
		 more = slack ? LOAD_BLOCK : 0, least = more + LOAD_BLOCK, stripe;
	int rc = r ? 0 : -ENOMEM;

	if (r) {
		p->rounds = r;
		r->ranks = n;
		r->self = ck->comm->rank;
		stripe = DCP_MIN(DCP_MAX(share, least) - more, (uint64_t)STRIPE_MOST);
		r->stripe = stripe - stripe % LOAD_BLOCK;
		r->slack = more;
		r->theirs = calloc(n, sizeof(*r->theirs));
		r->ntheirs = calloc(n, sizeof(*r->ntheirs));
		r->next = calloc(n, sizeof(*r->next));
		r->send = calloc(n, sizeof(*r->send));
		r->nsend = calloc(n, sizeof(*r->nsend));
		r->nrecv = calloc(n, sizeof(*r->nrecv));
		r->recv = calloc(n, sizeof(*r->recv));
		if (!r->theirs || !r->ntheirs || !r->next || !r->send || !r->nsend ||
		    !r->nrecv || !r->recv)
			rc = -ENOMEM;
	}
	if (rc == 0)
		rc = number_stripes(r, ck);
	if (rc == 0)
		rc = split(r, p->mine, p->nmine, slack);
	if (rc < 0)
		load_fail(err, rc, "out of memory");
	rc = load_agree(ck->comm, rc, err, (int)ck->config.timeout_ms);
	if (rc == 0)
		rc = tell_owners(ck, r, err);
	if (rc < 0)
		return rc;
	rc = make_chunks(p, more);
	if (rc == 0)
		rc = make_buffers(r, count_rounds(r));
	if (rc < 0)
		load_fail(err, rc, "no memory for messages of a round: %llu bytes",
			  (unsigned long long)(r->npack + r->nin));
	rc = load_agree(ck->comm, rc, err, (int)ck->config.timeout_ms);
	return rc < 0 ? rc : add_unique(p, err);
}

/* Prepare messages: what each other rank needs of @stripe, which is in @slot. */
static void pack(struct dcpload_plan *p, uint64_t stripe, const uint8_t *slot)
{
	struct load_rounds *r = p->rounds;
	uint8_t *to = r->pack;

	for (uint32_t d = 0; d < r->ranks; d++) {
		const struct part *v = r->theirs[d];
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
		next += parts_of(r->mine, r->nmine, next, first + d, &r->nrecv[d]);
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
		const struct part *v = &r->mine[r->next_mine];
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
	rc = all_to_all(p->ck, r, err);
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
	size_t rounds = count_rounds(r);
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
