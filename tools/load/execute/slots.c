/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunks of a plan, from files to the ranks that need them. Threads read the chunks of this
 * rank to their slots of the window: past the page cache if they are not in it, and only from files
 * that are unchanged. The thread of the caller hands on the bytes of each slot (struct load_way).
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
#include "core/origin/dir/dir.h"
#include "core/store/io/files.h"
#include "core/store/io/queue.h"

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
	int fd;

	if (f->file->fd < 0)
		return -2;
	if (f->direct == -1) {
		fd = dcp_open_direct(f->file->fd);
		f->direct = fd < 0 ? -2 : fd;
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

/* ---- threads that fill slots ---- */

int load_pass_fail(struct load_pass *s, int rc, const struct dcp_err *err)
{
	pthread_mutex_lock(&s->lock);
	if (!s->failed || (s->failed == -ECANCELED && err && err->msg[0])) {
		s->failed = rc;
		s->err = err ? *err : s->err;
	}
	pthread_mutex_unlock(&s->lock);
	return rc;
}

/* Fill the slot of chunk @c: 0, or why this rank fills no more. */
static int fill_slot(struct load_pass *s, size_t c)
{
	struct dcpload_plan *p = s->p;
	struct dcp_err err = { 0 };
	int rc = load_window_claim(p->window, c);

	if (rc < 0)
		return load_pass_fail(s, rc, NULL);
	rc = s->failed ? s->failed : fill_chunk(p, c, load_window_slot(p->window, c), &err);
	if (rc < 0)
		load_pass_fail(s, rc, &err);
	if (rc < 0 && !s->way->keeps_going)
		return rc;
	load_window_publish(p->window, c);
	return 0;
}

static void *fill_slots(void *arg)
{
	struct load_pass *s = arg;
	int rc = 0;

	while (rc == 0) {
		size_t c = s->first + s->stride * atomic_fetch_add(&s->next, 1);

		if (c >= s->p->chunks->n)
			return NULL;
		rc = fill_slot(s, c);
	}
	if (!s->way->keeps_going)
		load_window_fail(s->p->window);
	return NULL;
}

int load_pass_await(struct load_pass *s, size_t c)
{
	int rc = 0;

	if (!s->nthreads && c % s->stride == s->first) /* no thread could be started */
		rc = fill_slot(s, c);
	return rc < 0 ? rc : load_window_await(s->p->window, c);
}

/* ---- the way of ranks that read for themselves, and of the ranks of a node ---- */

static int take_chunk(struct dcpload_plan *p, struct load_active *a, size_t c)
{
	const struct dcp_chunks *chunks = p->chunks;
	const uint8_t *slot = load_window_slot(p->window, c);
	uint32_t self = chunks->members > 1 ? p->ck->self : 0;
	uint64_t before = p->took;
	int rc = p->ship ? load_ship_begin(p->ship, slot, c) : 0;

	for (size_t i = chunks->first[c]; p->gds && i < chunks->first[c + 1] && rc == 0; i++)
		rc = load_ship_send(p->ship, slot + chunks->stretch[i].at + p->there[i].device,
				    p->there[i].host);
	for (size_t i = chunks->first[c]; i < chunks->first[c + 1] && rc == 0; i++) {
		const struct dcp_chunk_stretch *s = &chunks->stretch[i];

		rc = load_place_stretch(p, a, s->file, s->lo, s->hi, slot + s->at);
	}
	if (c % chunks->members != self)
		p->report.received += p->took - before;
	if (rc == 0 && p->ship)
		return load_ship_end(p->ship); /* the ship is done with the chunk later */
	if (rc == 0)
		load_window_done(p->window, c);
	return rc;
}

/* The number of reading threads: one for each slot, because a thread waits for the disk most of the
 * time; with a device, whose slots also wait for copies, one for every two slots. */
static uint32_t count_fillers(const struct dcpload_plan *p)
{
	uint64_t bytes, slots;
	uint32_t most = p->ship || p->ck->config.threads ? load_threads(p) : LOAD_FILLERS;

	load_window_memory(p->window, &bytes);
	slots = bytes / p->chunks->slot / p->chunks->members / (p->ship ? 2 : 1);
	return (uint32_t)DCP_MIN(DCP_MAX(slots, 1ull), DCP_MIN((uint64_t)most, LOAD_FILLERS));
}

static int begin_window(struct load_pass *s, struct dcpload_error *err)
{
	const struct dcp_chunks *chunks = s->p->chunks;

	s->steps = chunks->n;
	s->stride = chunks->members;
	s->first = chunks->members > 1 ? s->p->ck->self : 0;
	s->fillers = count_fillers(s->p);
	return 0;
}

static int step_window(struct load_pass *s, size_t c, struct dcpload_error *err)
{
	struct dcpload_plan *p = s->p;
	int64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	int rc = p->ship ? load_ship_reap(p->ship, false) : 0;

	if (rc == 0)
		rc = load_pass_await(s, c);
	load_trace(p, DCPLOAD_EVENT_WAIT, start, 0);
	return rc < 0 ? rc : take_chunk(p, &s->active, c);
}

const struct load_way load_through_window = { .begin = begin_window, .step = step_window };

/* ---- all ways ---- */

/* Describe the failure @rc of slots or of the device. */
static int describe_failure(struct dcpload_plan *p, int rc, struct dcpload_error *err)
{
	if (p->ship && p->device->said[0])
		return load_device_said(p->device, rc, err);
	if (rc == -EOWNERDEAD) {
		load_fail(err, rc, "rank %u died", load_window_dead(p->window));
		err->rank = (int32_t)load_window_dead(p->window);
		return rc;
	}
	if (rc == -ETIMEDOUT)
		return load_fail(err, rc, "no rank of this node made progress for %u s",
				 p->ck->config.timeout_ms / 1000);
	return load_fail(err, rc, "%s",
			 rc == -ECANCELED ? "another rank of this node failed" : strerror(-rc));
}

int load_pass_tell(struct load_pass *s, int rc, struct dcpload_error *err)
{
	struct dcp_err own;
	int failed;

	if (rc < 0 && err->code)
		return rc;
	pthread_mutex_lock(&s->lock);
	failed = s->failed;
	own = s->err;
	pthread_mutex_unlock(&s->lock);
	if (own.msg[0])
		return load_fail_err(err, failed, &own);
	if (rc == 0 || rc == -ECANCELED)
		rc = failed ? failed : rc;
	return rc < 0 ? describe_failure(s->p, rc, err) : 0;
}

int load_by_slots(struct dcpload_plan *p, const struct load_way *way, struct dcpload_error *err)
{
	struct load_pass s = { .p = p,
			       .way = way,
			       .active.rounds = p->rounds != NULL,
			       .lock = PTHREAD_MUTEX_INITIALIZER };
	int rc = s.way->begin(&s, err);

	while (rc == 0 && s.nthreads < s.fillers &&
	       pthread_create(&s.thread[s.nthreads], NULL, fill_slots, &s) == 0)
		s.nthreads++;
	for (size_t k = 0; k < s.steps && rc == 0; k++)
		rc = s.way->step(&s, k, err);
	if (rc == 0 && !s.failed && p->ship)
		rc = load_ship_reap(p->ship, true);
	if (rc < 0)
		load_window_fail(p->window);
	for (uint32_t i = 0; i < s.nthreads; i++)
		pthread_join(s.thread[i], NULL);
	free(s.active.need);
	rc = load_pass_tell(&s, rc, err);
	if (rc < 0 && p->ship)
		load_ship_drop(p->ship);
	if (s.way->end)
		s.way->end(&s, rc);
	return rc;
}
