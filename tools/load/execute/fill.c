/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a chunk: past the page cache where it is not in there, and only from files that are
 * unchanged.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/store/io/files.h"
#include "core/store/io/queue.h"
#include "tools/load/execute/execute_int.h"
#include "tools/load/memory/gds.h"

enum { REQUEST = 1 << 20 }; /* bytes of one read */

/* Reads of one file, collected until they are flushed. */
struct filling {
	struct dcpload_plan *p;
	struct dcp_files *files;
	const struct dcp_file *file; /* held */
	uint32_t number;
	int direct; /* @file opened with O_DIRECT; -1: not opened yet, -2: it cannot be */
	struct dcp_read read[DCP_QUEUE_READS];
	size_t n;
	bool past; /* some of the reads go past the page cache */
	/* What the device is to read, to @slot. */
	struct load_gds_read asked[DCP_QUEUE_READS];
	const struct dcp_chunk_stretch *of[DCP_QUEUE_READS];
	size_t nasked;
	uint8_t *slot;
};

static int flush(struct filling *f)
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

static int add(struct filling *f, int fd, uint64_t off, uint8_t *to, uint64_t n)
{
	int rc = 0;

	for (; n && rc == 0;) {
		uint32_t now = (uint32_t)DCP_MIN(n, (uint64_t)REQUEST);

		f->read[f->n++] = (struct dcp_read){ fd, now, off, to, &f->file->blob, true };
		if (f->n == DCP_QUEUE_READS)
			rc = flush(f);
		off += now;
		to += now;
		n -= now;
	}
	return rc;
}

static int direct_fd(struct filling *f)
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

/* By the host, past the page cache where that is asked for: @n bytes at the beginning of @s. */
static int fill_host(struct filling *f, const struct dcp_chunk_stretch *s, uint8_t *to,
		     uint64_t n)
{
	uint32_t io = f->p->report.io;
	uint64_t tail = n % LOAD_BLOCK; /* the end of the file, too short for O_DIRECT */
	int rc;

	if (io == DCPLOAD_IO_BUFFERED || io == DCPLOAD_IO_MOUNT || direct_fd(f) < 0 ||
	    (io == DCPLOAD_IO_AUTO && load_is_warm(f->file->fd, s->lo, n)))
		return add(f, f->file->fd, s->lo, to, n);
	f->past = true;
	rc = add(f, f->direct, s->lo, to, n - tail);
	if (rc == 0 && tail)
		rc = add(f, f->file->fd, s->lo + n - tail, to + n - tail, tail);
	return rc;
}

/* Have the device read what it was asked to, and the host what it refuses. */
static int flush_device(struct filling *f, struct dcp_err *err)
{
	struct dcpload_plan *p = f->p;
	char why[80] = "";
	int rc = f->nasked ? load_gds_read(p->gds, f->number, direct_fd(f), f->asked, f->nasked,
					   why, sizeof(why))
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
static int leave(struct filling *f, int rc, struct dcp_err *err)
{
	int seen;

	if (!f->file)
		return rc;
	rc = rc < 0 ? rc : flush_device(f, err);
	rc = rc < 0 ? rc : flush(f);
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

static int enter(struct filling *f, uint32_t number, struct dcp_err *err)
{
	int rc;

	if (f->file && f->number == number)
		return 0;
	rc = leave(f, 0, err);
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
	int rc = enter(f, s->file, err);

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
	if (n > tail) { /* whole blocks, with the others of the file */
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
		      : add(f, f->file->fd, s->lo + n - tail, slot + s->at + n - tail, tail);
}

int load_fill(struct dcpload_plan *p, size_t c, uint8_t *slot, struct dcp_err *err)
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
	rc = leave(&f, rc, err);
	load_trace(p, DCPLOAD_EVENT_READ, start, bytes);
	__atomic_fetch_add(&p->report.read_ns, (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - start),
			   __ATOMIC_RELAXED);
	return rc;
}
