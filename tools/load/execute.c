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

enum { VIEW_BAND = 4 << 20 };

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

uint64_t load_view_band(uint64_t staging)
{
	return DCP_MIN(staging / 4, (uint64_t)VIEW_BAND);
}

static int read_view(struct dcpload_plan *p, struct load_want *w, uint32_t number, void *band,
		     struct dcp_err *err)
{
	struct dcp_view *view;
	uint64_t size = load_view_band(p->ck->config.staging),
		 step = size - size % w->target.from;
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
	uint64_t size = load_view_band(p->ck->config.staging);
	dcp_auto_free void *band = NULL;
	struct dcp_err own = { 0 };
	int rc = 0;

	for (size_t i = 0; i < p->nwant && rc == 0; i++) {
		if (!p->want[i].through_view)
			continue;
		p->report.staging += band ? 0 : size;
		band = band ? band : malloc(size);
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
