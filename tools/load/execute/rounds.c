/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds of messages, as load.h describes them. While the messages of a round are exchanged, a
 * thread reads for the next round.
 */
#include "tools/load/load.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/system.h"
#include "core/store/io/files.h"
#include "core/store/io/queue.h"

/*
 * Reads chunks: past the page cache if they are not in it, and only from files that are unchanged.
 */

enum { REQUEST = 1 << 20 }; /* bytes of one read */

/* Reads of one file, collected until they are flushed. */
struct filling {
	struct dcpload_plan *p;
	struct dcp_files *files;
	const struct dcp_file *file; /* held */
	uint32_t number;
	/* descriptor of @file with O_DIRECT; -1: not opened yet, -2: cannot be opened */
	int direct;
	struct dcp_read read[DCP_QUEUE_READS];
	size_t n;
	bool past; /* some of the reads go past the page cache */
	/* Reads by the device, to @slot. */
	struct load_gds_read asked[DCP_QUEUE_READS];
	const struct dcp_chunk_stretch *of[DCP_QUEUE_READS];
	size_t nasked;
	uint8_t *slot;
};

static int flush_reads(struct filling *f)
{
	struct dcp_io_counts counts = { 0 };
	struct dcp_queue *q =
		f->past ? load_window_queue(f->p->window, f->slot) : f->p->ck->of.store.queue;
	int rc = dcp_queue_read(q, f->read, f->n, &counts);

	dcp_io_add(&f->p->ck->counts, &counts);
	f->n = 0;
	f->past = false;
	return rc;
}

static int queue_read(struct filling *f, int fd, uint64_t off, uint8_t *to, uint64_t n)
{
	int rc = 0;

	for (; n && rc == 0;) {
		uint32_t now = (uint32_t)DCP_MIN(n, (uint64_t)REQUEST);

		f->read[f->n++] = (struct dcp_read){ fd, now, off, to, &f->file->blob, true };
		if (f->n == DCP_QUEUE_READS)
			rc = flush_reads(f);
		off += now;
		to += now;
		n -= now;
	}
	return rc;
}

static int open_direct(struct filling *f)
{
	char path[40];

	if (f->file->fd < 0)
		return -2;
	if (f->direct == -1) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", f->file->fd);
		f->direct = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
		if (f->direct < 0)
			f->direct = -2;
	}
	return f->direct;
}

/* The host reads @n bytes at the beginning of @s, past the page cache if requested. */
static int fill_host(struct filling *f, const struct dcp_chunk_stretch *s, uint8_t *to,
		     uint64_t n)
{
	uint32_t io = f->p->report.io;
	uint64_t tail = n % LOAD_BLOCK; /* the end of the file, too short for O_DIRECT */
	int rc;

	if (io == DCPLOAD_IO_BUFFERED || io == DCPLOAD_IO_MOUNT || open_direct(f) < 0 ||
	    (io == DCPLOAD_IO_AUTO && load_is_warm(f->file->fd, s->lo, n)))
		return queue_read(f, f->file->fd, s->lo, to, n);
	f->past = true;
	rc = queue_read(f, f->direct, s->lo, to, n - tail);
	if (rc == 0 && tail)
		rc = queue_read(f, f->file->fd, s->lo + n - tail, to + n - tail, tail);
	return rc;
}

/* Make the collected reads by the device; the host makes the reads that it refuses. */
static int flush_device(struct filling *f, struct dcp_err *err)
{
	struct dcpload_plan *p = f->p;
	char why[80] = "";
	int rc = f->nasked ? load_gds_read(p->gds, f->number, open_direct(f), f->asked,
					   f->nasked, why, sizeof(why))
			   : 0;

	if (rc < 0)
		dcp_fail(err, rc, "%s: %s", dcp_files_name(f->files, f->number), why);
	for (size_t i = 0; i < f->nasked && rc == 0; i++) {
		const struct dcp_chunk_stretch *s = f->of[i];
		struct load_there *there = &p->there[s - p->chunks->stretch];

		if (f->asked[i].there)
			continue;
		there->host += there->device;
		there->device = 0;
		rc = fill_host(f, s, f->slot + s->at, f->asked[i].n);
	}
	f->nasked = 0;
	return rc;
}

/* Finish with the file: flush unless @rc is an error, and check that the file has not changed. */
static int leave_file(struct filling *f, int rc, struct dcp_err *err)
{
	int seen;

	if (!f->file)
		return rc;
	rc = rc < 0 ? rc : flush_device(f, err);
	rc = rc < 0 ? rc : flush_reads(f);
	seen = dcp_files_check(f->files, f->number, false);
	rc = rc == 0 || seen == -ESTALE ? seen : rc;
	load_trouble(f->p, f->number, rc);
	if (rc < 0 && !err->msg[0])
		dcp_fail(err, rc, "%s: %s", dcp_files_name(f->files, f->number),
			 seen < 0 ? "changed since it was planned" : dcp_err_noted(rc));
	dcp_files_release(f->files, f->number);
	f->file = NULL;
	if (f->direct >= 0)
		close(f->direct);
	f->direct = -1;
	return rc;
}

static int enter_file(struct filling *f, uint32_t number, struct dcp_err *err)
{
	int rc;

	if (f->file && f->number == number)
		return 0;
	rc = leave_file(f, 0, err);
	if (rc < 0)
		return rc;
	rc = dcp_files_hold(f->files, number, true, &f->file, err);
	load_trouble(f->p, number, rc);
	f->number = number;
	return rc;
}

static int fill_stretch(struct filling *f, const struct dcp_chunk_stretch *s, uint8_t *slot,
			struct dcp_err *err)
{
	struct dcpload_plan *p = f->p;
	uint64_t n, tail, all;
	int rc = enter_file(f, s->file, err);

	if (rc < 0)
		return rc;
	if (s->lo >= f->file->size)
		return dcp_fail_at(err, -EIO, s->lo, "%s ends at byte %llu",
				   dcp_files_name(f->files, s->file),
				   (unsigned long long)f->file->size);
	n = DCP_MIN((uint64_t)s->n, f->file->size - s->lo);
	__atomic_fetch_add(&p->report.read, n, __ATOMIC_RELAXED);
	tail = n % LOAD_BLOCK;
	if (!p->gds)
		return fill_host(f, s, slot + s->at, n);
	p->there[s - p->chunks->stretch] =
		(struct load_there){ (uint32_t)(n - tail), (uint32_t)tail };
	if (n > tail) { /* whole blocks, read together with the others of the file */
		if (f->nasked == DCP_QUEUE_READS)
			rc = flush_device(f, err);
		f->of[f->nasked] = s;
		f->asked[f->nasked++] = (struct load_gds_read){
			.off = s->lo,
			.at = (uint64_t)(slot -
					 (uint8_t *)load_window_memory(p->window, &all)) +
			      s->at,
			.n = n - tail,
		};
	}
	return rc < 0 ? rc
		      : queue_read(f, f->file->fd, s->lo + n - tail, slot + s->at + n - tail,
				   tail);
}

static int fill_chunk(struct dcpload_plan *p, size_t c, uint8_t *slot, struct dcp_err *err)
{
	const struct dcp_chunks *chunks = p->chunks;
	struct filling f = {
		.p = p, .files = dcp_version_files(p->ck->of.v), .direct = -1, .slot = slot
	};
	int64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	uint64_t bytes = 0;
	int rc = 0;

	for (size_t i = chunks->first[c]; i < chunks->first[c + 1] && rc == 0; i++) {
		rc = fill_stretch(&f, &chunks->stretch[i], slot, err);
		bytes += chunks->stretch[i].n;
	}
	rc = leave_file(&f, rc, err);
	load_trace(p, DCPLOAD_EVENT_READ, start, bytes);
	__atomic_fetch_add(&p->report.read_ns, (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - start),
			   __ATOMIC_RELAXED);
	return rc;
}

int load_fill_slot(struct load_filler *f, size_t c)
{
	struct dcpload_plan *p = f->p;
	int rc = load_window_claim(p->window, c);

	if (rc < 0)
		return rc;
	if (f->rc == 0)
		f->rc = fill_chunk(p, c, load_window_slot(p->window, c), &f->err);
	if (f->rc < 0 && !f->keeps_going)
		return f->rc;
	load_window_publish(p->window, c);
	return 0;
}

void *load_fill_slots(void *arg)
{
	struct load_filler *f = arg;
	int rc = 0;

	for (size_t c = f->first; c < f->p->chunks->n && rc == 0; c += f->step)
		rc = load_fill_slot(f, c);
	if (rc < 0 && !f->keeps_going) {
		f->rc = rc;
		load_window_fail(f->p->window);
	}
	return NULL;
}

enum { LONG = 16 << 10 /* bytes of a part that are not worth packing */ };

/* Queue a copy to the buffer from which the device sends, or other ranks read. */
static int copy_there(const struct dcpload_plan *p, void *dst, const void *src, uint64_t n)
{
	return load_link_copy(p->link, dst, src, n);
}

/* For messages between devices: copy the packed bytes [@from, @to) to the device. */
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

/*
 * The same if every rank needs the whole stripe: its stretches are copied to the device unpacked.
 */
static int send_whole(struct dcpload_plan *p, size_t k, const uint8_t *slot)
{
	const struct dcp_chunks *c = p->chunks;
	struct load_rounds *r = p->rounds;
	char *to = p->link->kind->in_place ? r->now : (char *)r->in + r->self * c->slot;
	int rc = 0;

	for (size_t i = c->first[k]; i < c->first[k + 1] && rc == 0; i++)
		rc = copy_there(p, to + c->stretch[i].at, slot + c->stretch[i].at,
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

/*
 * Place the bytes that this rank needs of @stripe, from the message @from, or from @slot if it has
 * the whole stripe. With @rc < 0 only skip them.
 */
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
		else if (rc == 0 && v->need != need) /* all its parts of the stripe */
			rc = load_place_need(p, v->need - 1, lo, lo + r->of.size,
					     slot ? slot : from, !slot);
		need = v->need;
		from += (uint64_t)v->run * v->count;
	}
	return p->ship && rc == 0 ? load_ship_end(p->ship) : rc;
}

/*
 * Exchange messages between devices. First all ranks learn whether a rank has failed; they learn of
 * later failures in the next round, or at the end.
 */
static int send_between_devices(struct dcpload_plan *p, int *failed, struct dcpload_error *err)
{
	const struct load_link_kind *kind = p->link->kind;
	struct load_rounds *r = p->rounds;
	uint64_t bytes = 0;
	int64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	int rc = kind->meet(p->link, r->send, r->nsend, r->recv, r->nrecv, failed, err);

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

/*
 * Execute one round. If *failed is set, nothing is placed, but the other ranks still get their
 * messages.
 */
static int round_of(struct load_filler *f, struct load_active *a, size_t k, int *failed,
		    struct dcpload_error *err)
{
	struct dcpload_plan *p = f->p;
	struct load_rounds *r = p->rounds;
	uint64_t first = (uint64_t)k * r->of.ranks, received = p->report.received;
	const uint8_t *slot = NULL;
	int64_t start;
	int rc = 0;

	r->now = r->there ? r->there + k % 2 * r->half : NULL;
	memset(r->nsend, 0, r->of.ranks * sizeof(*r->nsend));
	if (k < p->chunks->n) {
		if (!f->has_thread)
			*failed = *failed ? *failed : load_fill_slot(f, k);
		if (*failed == 0)
			*failed = load_window_await(p->window, k);
		slot = load_window_slot(p->window, k);
		rc = pack_messages(p, first + r->self, slot);
		if (rc == 0 && r->same)
			rc = send_whole(p, k, slot);
		*failed = *failed ? *failed : rc;
	}
	expect_parts(p, first);
	received = p->report.received - received;
	start = dcp_now_ns(CLOCK_MONOTONIC);
	rc = r->device ? send_between_devices(p, failed, err) : send_between_hosts(p, err);
	p->report.wait_ns += (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - start);
	start = dcp_now_ns(CLOCK_MONOTONIC);
	for (uint32_t d = 0; d < r->of.ranks && rc == 0; d++) {
		const uint8_t *whole = r->same                      ? r->recv[d]
				       : d == r->self && !r->device ? slot
								    : NULL;

		*failed = place_parts(p, a, first + d, r->recv[d], whole, *failed);
	}
	if (p->ship && rc == 0 && *failed == 0)
		*failed = load_ship_reap(p->ship, true); /* memory of messages is reused */
	if (r->device && p->link->kind->in_place)
		load_trace(p, DCPLOAD_EVENT_EXCHANGE, start, received);
	if (slot)
		load_window_done(p->window, k);
	return rc;
}

/* Keep memory of the device that other ranks may still read. */
static void keep_device_memory(struct dcpload_plan *p)
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
	const struct load_link_kind *link = p->link ? p->link->kind : NULL;
	/*
	 * After a failure the other ranks still get messages; they learn of the failure at the end.
	 */
	struct load_filler f = { .p = p, .step = 1, .keeps_going = true };
	struct load_active a = { .rounds = true };
	size_t rounds = dcp_stripe_rounds(&r->of);
	int failed = link && link->ready ? link->ready(p->link) : 0,
	    rc = link && link->begin
			 ? link->begin(p->link, r->there, load_rounds_device_bytes(r), err)
			 : 0;

	memset(r->next, 0, r->of.ranks * sizeof(*r->next));
	r->next_mine = 0;
	f.has_thread = rc == 0 && pthread_create(&f.thread, NULL, load_fill_slots, &f) == 0;
	for (size_t k = 0; k < rounds && rc == 0; k++)
		rc = round_of(&f, &a, k, &failed, err);
	if (rc < 0)
		load_window_fail(p->window);
	if (f.has_thread)
		pthread_join(f.thread, NULL);
	free(a.need);
	if (rc == 0 && f.rc < 0)
		rc = load_fail_err(err, f.rc, &f.err);
	else if (rc == 0 && failed < 0)
		rc = load_device_said(p->device, failed, err);
	if (p->ship && rc < 0)
		load_ship_drop(p->ship);
	if (link && link->end(p->link, rc) < 0)
		keep_device_memory(p);
	return rc;
}
