/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One execution. With a window two threads work: one fills the slots of the chunks that this rank
 * reads, the other, the caller's, takes what this rank needs from every slot.
 */
#include "tools/load/execute.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cleanup.h"
#include "core/base/clock.h"
#include "core/store/io/files.h"
#include "core/store/io/queue.h"
#include "core/store/view/view.h"

enum {
	REQUEST = 1 << 20, /* bytes of one read */
	VIEW_BAND = 4 << 20,
};

/* ---- reading chunks ---- */

/* Reads of one file, collected until they are flushed. */
struct filling {
	struct dcpload_plan *p;
	struct dcp_files *files;
	const struct dcp_file *file; /* held */
	uint32_t number;
	int direct; /* @file opened with O_DIRECT; -1: not opened yet, -2: it cannot be */
	struct dcp_read read[DCP_QUEUE_READS];
	size_t n;
};

static int flush(struct filling *f)
{
	struct dcp_io_counts counts = { 0 };
	int rc = dcp_queue_read(f->p->ck->store.queue, f->read, f->n, &counts);

	dcp_io_add(&f->p->ck->counts, &counts);
	f->n = 0;
	return rc;
}

static int add(struct filling *f, int fd, uint64_t off, uint8_t *to, uint64_t n)
{
	int rc = 0;

	for (; n && rc == 0;) {
		uint32_t now = (uint32_t)DCP_MIN(n, (uint64_t)REQUEST);

		f->read[f->n++] = (struct dcp_read){ fd, now, off, to };
		if (f->n == DCP_QUEUE_READS)
			rc = flush(f);
		off += now;
		to += now;
		n -= now;
	}
	return rc;
}

/* Finish with the file: flush unless @rc is an error, and check that the file has not changed. */
static int leave(struct filling *f, int rc, struct dcp_err *err)
{
	int seen;

	if (!f->file)
		return rc;
	rc = rc < 0 ? rc : flush(f);
	seen = dcp_files_check(f->files, f->number, false);
	rc = rc == 0 ? seen : rc;
	if (rc < 0 && !err->msg[0])
		dcp_fail(err, rc, DCP_ERR_NO_OFFSET, "%s: %s",
			 dcp_files_name(f->files, f->number),
			 seen < 0 ? "changed since it was planned" : strerror(-rc));
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
	if (rc == 0)
		rc = dcp_files_hold(f->files, number, true, &f->file, err);
	f->number = number;
	return rc;
}

static int direct_fd(struct filling *f)
{
	char path[40];

	if (f->direct == -1) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", f->file->fd);
		f->direct = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
		if (f->direct < 0)
			f->direct = -2;
	}
	return f->direct;
}

/* Are the first, middle and last of @n bytes in the page cache? Taken as all of them. */
static bool is_warm(int fd, const struct load_stretch *s, uint64_t n)
{
	return load_is_cached(fd, s->lo) && load_is_cached(fd, s->lo + n - 1) &&
	       load_is_cached(fd, s->lo + n / 2);
}

static int fill_stretch(struct filling *f, const struct load_stretch *s, uint8_t *slot,
			struct dcp_err *err)
{
	uint32_t io = f->p->report.io;
	uint64_t n, tail;
	int rc = enter(f, s->file, err);

	if (rc < 0)
		return rc;
	if (s->lo >= f->file->size)
		return dcp_fail(err, -EIO, s->lo, "%s ends at byte %llu",
				dcp_files_name(f->files, s->file),
				(unsigned long long)f->file->size);
	n = DCP_MIN((uint64_t)s->n, f->file->size - s->lo);
	__atomic_fetch_add(&f->p->report.read, n, __ATOMIC_RELAXED);
	if (io == DCPLOAD_IO_BUFFERED || io == DCPLOAD_IO_MOUNT || direct_fd(f) < 0 ||
	    (io == DCPLOAD_IO_AUTO && is_warm(f->file->fd, s, n)))
		return add(f, f->file->fd, s->lo, slot + s->at, n);
	tail = n % LOAD_BLOCK; /* the end of the file, too short for O_DIRECT */
	rc = add(f, f->direct, s->lo, slot + s->at, n - tail);
	if (rc == 0 && tail)
		rc = add(f, f->file->fd, s->lo + n - tail, slot + s->at + n - tail, tail);
	return rc;
}

int load_fill(struct dcpload_plan *p, size_t c, uint8_t *slot, struct dcp_err *err)
{
	const struct load_chunks *chunks = p->chunks;
	struct filling f = { .p = p, .files = dcp_version_files(p->ck->v), .direct = -1 };
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

/* ---- placing ---- */

int load_arrived(struct dcpload_plan *p, uint32_t number, uint64_t n)
{
	struct load_want *w = &p->want[number];
	uint64_t total = atomic_fetch_add(&p->arrived, n) + n;
	struct dcpload_part part;
	int rc = 0;

	if (p->hooks.progress)
		rc = p->hooks.progress(p->hooks.ctx, total, p->report.needed);
	if (rc < 0 || atomic_fetch_sub(&w->left, n) != n)
		return rc;
	w->complete = 1;
	if (!p->hooks.commit)
		return 0;
	dcpload_part(p, number, &part);
	return p->hooks.commit(p->hooks.ctx, number, &part);
}

struct placing {
	struct dcpload_plan *p;
	uint32_t want;
	uint64_t lo; /* file offset of @src */
	const uint8_t *src;
};

static int place_part(void *ctx, const struct dcp_strided *s)
{
	struct placing *pl = ctx;

	load_place(&pl->p->want[pl->want].target, s, pl->src + (s->off - pl->lo));
	return load_arrived(pl->p, pl->want, dcp_strided_bytes(s));
}

static uint64_t end_of(const struct load_need *need)
{
	return need->s.off + dcp_strided_extent(&need->s);
}

/* Move @a on to the needs that may meet [lo, hi) of @file. */
static int advance(struct dcpload_plan *p, struct load_active *a, uint32_t file, uint64_t lo,
		   uint64_t hi)
{
	size_t kept = 0;

	for (size_t i = 0; i < a->n; i++)
		if (p->need[a->need[i]].file == file && end_of(&p->need[a->need[i]]) > lo)
			a->need[kept++] = a->need[i];
	a->n = kept;
	for (; a->next < p->nneed; a->next++) {
		const struct load_need *need = &p->need[a->next];

		if (need->file > file || (need->file == file && need->s.off >= hi))
			break;
		if (need->file < file || end_of(need) <= lo)
			continue;
		if (dcp_array_grow((void **)&a->need, &a->cap, a->n, sizeof(*a->need)) < 0)
			return -ENOMEM;
		a->need[a->n++] = (uint32_t)a->next;
	}
	return 0;
}

int load_place_stretch(struct dcpload_plan *p, struct load_active *a, uint32_t file,
		       uint64_t lo, uint64_t hi, const uint8_t *src)
{
	int64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	uint64_t before = p->arrived;
	int rc = advance(p, a, file, lo, hi);

	for (size_t i = 0; i < a->n && rc == 0; i++) {
		const struct load_need *need = &p->need[a->need[i]];
		const struct load_target *t = &p->want[need->want].target;
		struct placing pl = { p, need->want, lo, src };

		rc = dcp_strided_clip(&need->s, lo, hi, t->plain ? 1 : t->from, place_part,
				      &pl);
	}
	p->report.place_ns += (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - start);
	load_trace(p, DCPLOAD_EVENT_PLACE, start, p->arrived - before);
	return rc;
}

/* ---- through the window ---- */

struct filler {
	struct dcpload_plan *p;
	struct dcp_err err;
	int rc;
};

static void *fill_slots(void *arg)
{
	struct filler *f = arg;
	struct dcpload_plan *p = f->p;
	const struct load_chunks *chunks = p->chunks;
	uint32_t self = chunks->members > 1 ? p->ck->self : 0;

	for (size_t c = self; c < chunks->n && f->rc == 0; c += chunks->members) {
		f->rc = load_window_claim(p->window, c);
		if (f->rc == 0)
			f->rc = load_fill(p, c, load_window_slot(p->window, c), &f->err);
		if (f->rc == 0)
			load_window_publish(p->window, c);
	}
	if (f->rc < 0)
		load_window_fail(p->window);
	return NULL;
}

static int take_chunk(struct dcpload_plan *p, struct load_active *a, size_t c)
{
	const struct load_chunks *chunks = p->chunks;
	const uint8_t *slot = load_window_slot(p->window, c);
	uint32_t self = chunks->members > 1 ? p->ck->self : 0;
	uint64_t before = p->arrived;
	int rc = 0;

	for (size_t i = chunks->first[c]; i < chunks->first[c + 1] && rc == 0; i++) {
		const struct load_stretch *s = &chunks->stretch[i];

		rc = load_place_stretch(p, a, s->file, s->lo, s->hi, slot + s->at);
	}
	if (c % chunks->members != self)
		p->report.received += p->arrived - before;
	return rc;
}

/* Describe @rc of the window. */
static int window_error(struct dcpload_plan *p, int rc, struct dcpload_error *err)
{
	if (rc == -EOWNERDEAD)
		return load_fail(err, rc, "rank %u died while loading",
				 load_window_dead(p->window));
	if (rc == -ETIMEDOUT)
		return load_fail(err, rc, "no rank of this node made progress for %u s",
				 p->ck->config.timeout_ms / 1000);
	return load_fail(err, rc, "%s",
			 rc == -ECANCELED ? "another rank of this node failed" : strerror(-rc));
}

int load_by_window(struct dcpload_plan *p, struct dcpload_error *err)
{
	struct filler f = { .p = p };
	struct load_active a = { 0 };
	pthread_t thread;
	int rc = -pthread_create(&thread, NULL, fill_slots, &f);

	if (rc < 0) {
		load_window_fail(p->window);
		return load_fail(err, rc, "cannot start a thread: %s", strerror(-rc));
	}
	for (size_t c = 0; c < p->chunks->n && rc == 0; c++) {
		int64_t start = dcp_now_ns(CLOCK_MONOTONIC);

		rc = load_window_await(p->window, c);
		load_trace(p, DCPLOAD_EVENT_WAIT, start, 0);
		if (rc == 0)
			rc = take_chunk(p, &a, c);
		if (rc == 0)
			load_window_done(p->window, c);
	}
	if (rc < 0)
		load_window_fail(p->window);
	pthread_join(thread, NULL);
	free(a.need);
	/* Prefer a failure of this rank to the fact that another rank failed. */
	if (f.rc < 0 && (f.err.msg[0] || rc == 0 || rc == -ECANCELED))
		return f.err.msg[0] ? load_fail_err(err, f.rc, &f.err)
				    : window_error(p, f.rc, err);
	return rc < 0 ? window_error(p, rc, err) : 0;
}

/* ---- what a view must decode ---- */

static int read_view(struct dcpload_plan *p, struct load_want *w, uint32_t number, void *band,
		     struct dcp_err *err)
{
	struct dcp_view *view;
	uint64_t step = VIEW_BAND - VIEW_BAND % w->target.from;
	int rc = dcp_view_open(p->ck->v, w->id, DCP_AS_RAW, &w->cut, &view, err);

	if (rc < 0)
		return rc;
	for (uint64_t at = 0; at < w->stored && rc == 0;) {
		uint64_t n = DCP_MIN(w->stored - at, step);

		rc = dcp_view_read(view, at, band, n);
		if (rc < 0) {
			dcp_fail(err, rc, DCP_ERR_NO_OFFSET, "%s: %s", w->key, strerror(-rc));
			break;
		}
		load_place_run(&w->target, at, band, n);
		__atomic_fetch_add(&p->report.read, n, __ATOMIC_RELAXED);
		at += n;
		rc = load_arrived(p, number, n);
	}
	dcp_view_close(view);
	return rc;
}

static int load_views(struct dcpload_plan *p, struct dcpload_error *err)
{
	dcp_auto_free void *band = NULL;
	struct dcp_err own = { 0 };
	int rc = 0;

	for (size_t i = 0; i < p->nwant && rc == 0; i++) {
		if (!p->want[i].through_view)
			continue;
		p->report.staging += band ? 0 : VIEW_BAND;
		band = band ? band : malloc(VIEW_BAND);
		rc = band ? read_view(p, &p->want[i], (uint32_t)i, band, &own) : -ENOMEM;
	}
	return load_fail_err(err, rc, &own);
}

/* ---- all of it ---- */

static void clear(struct load_want *w)
{
	const struct load_target *t = &w->target;

	if (w->padded && !t->stride)
		memset(t->base, 0, w->nbytes);
}

/* Memory of the plan beyond destinations; a node's window is divided among its ranks. */
static uint64_t held(const struct dcpload_plan *p)
{
	bool shared = p->report.exchange == DCPLOAD_EXCHANGE_NODE;
	uint64_t window = p->window ? load_window_bytes(p->window) : 0;

	return load_rounds_bytes(p->rounds) + window / (shared ? p->ck->nlocal : 1);
}

/* Reset counters, ask resolve() for destinations, clear padding. */
static int start(struct dcpload_plan *p, struct dcpload_error *err)
{
	int rc;

	p->arrived = 0;
	p->report.read = p->report.sent = p->report.received = 0;
	p->report.read_ns = p->report.wait_ns = p->report.place_ns = 0;
	p->report.staging = held(p);
	p->ck->counts = (struct dcp_io_counts){ 0 };
	for (size_t i = 0; i < p->nwant; i++) {
		struct load_want *w = &p->want[i];
		struct dcpload_part part;

		w->complete = 0;
		w->left = w->through_view ? w->stored : 0;
		if (!p->hooks.resolve || !w->id)
			continue;
		dcpload_part(p, i, &part);
		rc = p->hooks.resolve(p->hooks.ctx, i, &part);
		if (rc < 0)
			return load_fail(err, rc, "%s: the caller's resolve() failed: %s",
					 w->key, strerror(-rc));
		w->target.base = part.data;
	}
	for (size_t i = 0; i < p->nneed; i++)
		p->want[p->need[i].want].left += dcp_strided_bytes(&p->need[i].s);
	for (size_t i = 0; i < p->nwant; i++) {
		struct load_want *w = &p->want[i];

		if (w->id && w->nbytes && !w->target.base)
			return load_fail(err, -EFAULT, "%s has no destination", w->key);
		if (w->id)
			clear(w);
	}
	return 0;
}

/* Parts of which nothing is stored: empty ones, and padding alone. */
static int complete_empty(struct dcpload_plan *p, struct dcpload_error *err)
{
	int rc = 0;

	for (size_t i = 0; i < p->nwant && rc == 0; i++)
		if (p->want[i].id && !p->want[i].complete)
			rc = load_arrived(p, (uint32_t)i, 0);
	return load_fail_err(err, rc, NULL);
}

static int run(struct dcpload_plan *p, struct dcpload_error *err)
{
	int rc;

	if (p->rounds)
		rc = load_by_rounds(p, err);
	else if (p->window)
		rc = load_by_window(p, err);
	else
		rc = load_by_wants(p, err);
	if (rc == 0)
		rc = load_views(p, err);
	return rc < 0 ? rc : complete_empty(p, err);
}

int dcpload_execute(struct dcpload_plan *p, struct dcpload_error *err)
{
	int64_t begin = dcp_now_ns(CLOCK_MONOTONIC), cpu = dcp_now_ns(CLOCK_PROCESS_CPUTIME_ID);
	int rc, timeout = (int)p->ck->config.timeout_ms;
	struct dcpload_error own;

	err = err ? err : &own;
	*err = (struct dcpload_error){ .rank = -1 };
	if (!p->finished)
		rc = load_fail(err, -EINVAL, "the plan is not finished");
	else
		rc = start(p, err);
	rc = load_agree(p->ck->comm, rc, err, timeout);
	load_trace_begin(p);
	if (rc == 0)
		rc = load_agree(p->ck->comm, run(p, err), err, timeout);
	p->report.calls = p->ck->counts.calls;
	if (p->window) {
		p->report.wait_ns += load_window_waited(p->window);
		load_window_reset(p->window);
	}
	p->report.cpu_ns = (uint64_t)(dcp_now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu);
	p->report.execute_ns = (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - begin);
	return rc;
}

int dcpload_plan_report(const struct dcpload_plan *p, struct dcpload_report *out)
{
	struct dcpload_report r = p->report;
	uint32_t size = DCP_MIN(out->size, (uint32_t)sizeof(r));

	r.size = size;
	r.open_ns = p->ck->open_ns;
	r.io_why = p->io_why;
	r.exchange_why = p->exchange_why;
	r.comm = p->ck->comm->name;
	memcpy(out, &r, size);
	return 0;
}
