/* SPDX-License-Identifier: Apache-2.0 */
/* One execution: through slots or want by want, then what a view must decode, and the objects. */
#include "tools/load/load.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/system.h"
#include "core/store/io/files.h"
#include "core/store/io/queue.h"
#include "core/store/view/view.h"
#include "tools/load/comm/comm.h"

enum {
	MOST_AGAIN = 16 /* attempts after the first */,
	OBJECT_ROOM = 64 << 10 /* bytes of an object that the caller gets at a time */
};

/* ---- what a view must decode ---- */

/* Place bytes [at, at + n) of the part, which are in @band. */
static int place_band(struct dcpload_plan *p, uint32_t number, uint64_t at, const void *band,
		      uint64_t n)
{
	const struct load_target *t = &p->want[number].target;
	const struct dcp_strided run = { .dst = at, .run = n };
	int rc;

	if (!t->on_device) {
		load_place_run(t, at, band, n);
		return load_arrived(p, number, n);
	}
	rc = load_ship_begin(p->ship, band, LOAD_SHIP_NO_CHUNK);
	if (rc == 0)
		rc = load_ship_add(p->ship, number, &run, band);
	if (rc == 0)
		rc = load_ship_end(p->ship);
	if (rc == 0)
		rc = load_ship_reap(p->ship, true); /* the band is reused */
	if (rc < 0)
		load_ship_drop(p->ship);
	return rc;
}

static int read_view(struct dcpload_plan *p, struct load_want *w, uint32_t number, void *band,
		     struct dcp_err *err)
{
	dcp_auto_view struct dcp_view *view = NULL;
	uint64_t size = dcp_stripe_band(p->ck->config.staging),
		 step = size - size % w->target.from;
	int rc = dcp_view_open(p->ck->of.v, w->id, DCP_AS_RAW, &w->cut, &view, err);

	if (rc < 0)
		return rc;
	for (uint64_t at = 0; at < w->stored && rc == 0;) {
		uint64_t n = DCP_MIN(w->stored - at, step);

		rc = dcp_view_read(view, at, band, n);
		if (rc < 0) {
			dcp_fail(err, rc, "%s: %s", w->key, dcp_err_noted(rc));
			break;
		}
		__atomic_fetch_add(&p->report.read, n, __ATOMIC_RELAXED);
		rc = place_band(p, number, at, band, n);
		at += n;
	}
	return rc;
}

/* Memory of the plan beyond destinations; the window of a node is divided among its ranks. */
static uint64_t count_held(const struct dcpload_plan *p)
{
	bool shared = p->report.exchange == DCPLOAD_EXCHANGE_NODE;
	uint64_t window = p->window ? load_window_bytes(p->window) : 0;

	return load_rounds_bytes(p->rounds) + load_ship_bytes(p->ship) +
	       window / (shared ? p->ck->nlocal : 1);
}

static int load_views(struct dcpload_plan *p, struct dcpload_error *err)
{
	uint64_t size = dcp_stripe_band(p->ck->config.staging);
	dcp_auto_free void *band = NULL;
	struct dcp_err own = { 0 };
	int rc = 0;

	for (size_t i = 0; i < p->nwant && rc == 0 && !p->given_up; i++) {
		if (!p->want[i].through_view)
			continue;
		/* Memory of other ways of reading is freed by now, except the window and the
		 * rounds. */
		p->report.staging = DCP_MAX(p->report.staging, count_held(p) + size);
		band = band ? band : malloc(size);
		rc = band ? read_view(p, &p->want[i], (uint32_t)i, band, &own) : -ENOMEM;
	}
	load_trouble_of_view(p, rc);
	if (load_device_runs(p->device))
		band = NULL; /* a copy may still read it */
	if (rc < 0 && !own.msg[0] && p->ship && p->device->said[0])
		return load_device_said(p->device, rc, err);
	return load_fail_err(err, rc, &own);
}

/* ---- all of it ---- */

/* Find out what memory a destination is in, and clear the padding there. */
static int prepare_target(struct dcpload_plan *p, struct load_want *w,
			  struct dcpload_error *err)
{
	struct load_device *d = p->device;
	struct load_target *t = &w->target;
	bool ours = d && w->owned && load_block_has(p->memory, t->base);
	int rc = DCPLOAD_MEMORY_HOST;

	if (d && w->nbytes)
		rc = ours ? p->memory->kind : d->kind->kind_of(d, t->base);
	if (rc < 0)
		return load_fail(err, rc, "%s: %s, but the tensors are loaded into %s", w->key,
				 d->said, d->name);
	w->memory = (uint8_t)rc;
	t->on_device = rc == DCPLOAD_MEMORY_DEVICE || rc == DCPLOAD_MEMORY_MANAGED;
	if ((p->gds || (p->rounds && p->rounds->device)) && w->nbytes && !t->on_device)
		return load_fail(err, -EINVAL, "%s: %s cannot fill the memory of the host",
				 w->key, p->gds ? "io gds" : "the exchange between devices");
	if (!w->padded || t->stride || !w->nbytes)
		return 0;
	rc = t->on_device ? load_ship_clear(p->ship, t->base, w->nbytes)
			  : load_host.zero(NULL, t->base, w->nbytes);
	return load_device_said(d, rc, err);
}

/* Reset counters, ask resolve() for destinations, clear padding. */
static int start_execution(struct dcpload_plan *p, struct dcpload_error *err)
{
	int rc;

	p->arrived = p->took = 0;
	p->report.read = p->report.sent = p->report.received = 0;
	p->report.read_ns = p->report.wait_ns = p->report.place_ns = 0;
	p->report.staging = count_held(p);
	p->ck->counts = (struct dcp_io_counts){ 0 };
	rc = p->hooks.get_state ? p->hooks.get_state(p->hooks.ctx) : 0;
	if (rc < 0)
		return load_fail(err, rc, "the caller's get_state() failed: %s", strerror(-rc));
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
	rc = p->ship ? load_ship_start(p->ship) : 0;
	if (rc < 0)
		return load_device_said(p->device, rc, err);
	for (size_t i = 0; i < p->nwant; i++) {
		struct load_want *w = &p->want[i];

		if (w->id && w->nbytes && !w->target.base)
			return load_fail(err, -EFAULT, "%s has no destination", w->key);
		w->unqueued = w->left;
		rc = w->id ? prepare_target(p, w, err) : 0;
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Pass the serialized bytes of an object to the caller. */
static int show_bytes(struct dcpload_plan *p, const char *key, struct dcpload_error *err)
{
	dcp_auto_view struct dcp_view *view = NULL;
	dcp_auto_free char *room = malloc(OBJECT_ROOM);
	struct dcp_err own = { 0 };
	uint64_t at = 0, total;
	int rc = room ? load_open_object(p->ck, key, &view, &own) : -ENOMEM;

	load_trouble_of_view(p, rc);
	if (rc < 0 && rc != -ENOTSUP && rc != -EBADMSG)
		return load_fail_err(err, rc, &own);
	total = view ? dcp_view_size(view) : 0;
	do {
		uint64_t n = DCP_MIN(total - at, (uint64_t)OBJECT_ROOM);

		rc = n ? dcp_view_read(view, at, room, n) : 0;
		load_trouble_of_view(p, rc);
		if (rc < 0)
			return load_fail(err, rc, "%s: %s", key, dcp_err_noted(rc));
		rc = p->hooks.bytes(p->hooks.ctx, key, view ? room : NULL, n, at, total);
		if (rc < 0)
			return load_fail(err, rc, "%s: the caller's bytes() failed: %s", key,
					 strerror(-rc));
		p->report.read += n;
		at += n;
	} while (at < total);
	return 0;
}

static int show_value(struct dcpload_plan *p, const char *key, struct dcpload_error *err)
{
	struct dcpload_error own;
	const char *type, *json;
	size_t n = 0;
	int rc = dcpload_object(p->ck, key, &type, &json, &n, &own);

	if (rc < 0 && rc != -EBADMSG) {
		*err = own;
		return rc;
	}
	rc = rc < 0 ? p->hooks.object(p->hooks.ctx, key, "", NULL, 0)
		    : p->hooks.object(p->hooks.ctx, key, type, json, n);
	return rc < 0 ? load_fail(err, rc, "%s: the caller's object() failed: %s", key,
				  strerror(-rc))
		      : 0;
}

/* Pass the objects to the caller. */
static int show_objects(struct dcpload_plan *p, struct dcpload_error *err)
{
	const char *key;
	uint64_t next = 0;
	int rc = 0;

	while ((p->hooks.object || p->hooks.bytes) && rc == 0 &&
	       (rc = dcpload_next_object(p->ck, &next, &key, err)) > 0) {
		dcp_auto_free char *own = strdup(key); /* the next answer overwrites the key */

		if (!own)
			return load_fail(err, -ENOMEM, "out of memory");
		rc = p->hooks.bytes ? show_bytes(p, own, err) : 0;
		if (rc == 0 && p->hooks.object)
			rc = show_value(p, own, err);
	}
	return rc;
}

static int set_state(struct dcpload_plan *p, struct dcpload_error *err)
{
	int rc = p->hooks.set_state ? p->hooks.set_state(p->hooks.ctx) : 0;

	return rc < 0 ? load_fail(err, rc, "the caller's set_state() failed: %s", strerror(-rc))
		      : 0;
}

/* Complete the parts that have no stored bytes: empty parts, and parts of padding only. */
static int complete_empty(struct dcpload_plan *p, struct dcpload_error *err)
{
	int rc = 0;

	for (size_t i = 0; i < p->nwant && rc == 0; i++)
		if (p->want[i].id && !p->want[i].complete)
			rc = load_arrived(p, (uint32_t)i, 0);
	return load_fail_err(err, rc, NULL);
}

/* Reading by this rank alone, or together with the ranks of its node. */
struct reading {
	struct dcpload_plan *p;
	struct dcpload_error *err;
	int rc; /* result of the reading before it */
};

static int read_all(void *ctx)
{
	struct reading *r = ctx;
	struct dcpload_plan *p = r->p;
	int rc = r->rc;

	if (rc == 0 && p->window && !p->rounds)
		rc = load_by_slots(p, &load_through_window, r->err);
	else if (rc == 0 && !p->rounds)
		rc = load_by_wants(p, r->err);
	if (rc == 0)
		rc = load_views(p, r->err);
	return rc == 0 ? complete_empty(p, r->err) : rc;
}

static void give_up(void *ctx)
{
	struct dcpload_plan *p = ((struct reading *)ctx)->p;

	p->given_up = 1;
	if (p->window)
		load_window_fail(p->window);
}

/* Collective. *@done: the result of this rank, which @err describes. */
static int run_ways(struct dcpload_plan *p, int *done, struct dcpload_error *err)
{
	struct reading r = { .p = p, .err = err };
	struct dcpload_error lost = { .rank = -1 };
	int rc;

	p->given_up = 0;
	r.rc = p->rounds ? load_by_slots(p, &load_by_messages, err) : 0;
	rc = load_step_run(p->ck->comm, read_all, give_up, &r, done,
			   (int)p->ck->config.timeout_ms, &lost);
	if (rc == 0 && *done == 0)
		*done = show_objects(p, err);
	if (rc < 0)
		*err = lost;
	return rc;
}

/* Append to io_why why buffers for reads past the page cache are not registered or not huge
 * pages. */
static void say_refused(struct dcpload_plan *p)
{
	const struct {
		const char *what;
		int rc;
	} refused[] = {
		{ "; buffers are not registered: ", load_window_refused(p->window) },
		{ "; buffers are not huge pages: ", load_window_small(p->window) },
	};

	if (p->report.io == DCPLOAD_IO_BUFFERED || p->report.io == DCPLOAD_IO_MOUNT)
		return;
	for (size_t i = 0; i < DCP_LEN(refused); i++) {
		size_t n = strlen(p->io_why);

		if (refused[i].rc < 0 && !strstr(p->io_why, refused[i].what))
			snprintf(p->io_why + n, sizeof(p->io_why) - n, "%s%s", refused[i].what,
				 strerror(-refused[i].rc));
	}
}

static int attempt_load(struct dcpload_plan *p, struct dcpload_error *err)
{
	int rc, done, timeout = (int)p->ck->config.timeout_ms;

	*err = (struct dcpload_error){ .rank = -1 };
	if (p->device)
		p->device->late = false;
	if (!p->finished)
		rc = load_fail(err, -EINVAL, "the plan is not finished");
	else
		rc = start_execution(p, err);
	rc = load_agree(p->ck->comm, rc, err, timeout);
	if (rc < 0 && p->ship) /* the device may still clear padding */
		load_ship_drop(p->ship);
	load_trace_begin(p);
	if (rc == 0)
		rc = run_ways(p, &done, err);
	if (rc == 0)
		rc = load_agree(p->ck->comm, done, err, timeout);
	if (rc == 0)
		rc = load_agree(p->ck->comm, set_state(p, err), err, timeout);
	p->report.calls = p->ck->counts.calls;
	p->report.registered = p->ck->counts.fixed;
	if (p->window) {
		say_refused(p);
		p->report.wait_ns += load_window_waited(p->window);
		load_window_reset(p->window);
	}
	return rc;
}

static const char *name_work(const struct dcpload_plan *p)
{
	return p->report.exchange == DCPLOAD_EXCHANGE_NEVER ? "reading"
							    : "reading and exchanging";
}

int dcpload_execute(struct dcpload_plan *p, struct dcpload_error *err)
{
	int64_t begin = dcp_now_ns(CLOCK_MONOTONIC), cpu = dcp_now_ns(CLOCK_PROCESS_CPUTIME_ID);
	struct dcpload_error own;
	bool renewed = false;
	int rc;

	err = err ? err : &own;
	*err = (struct dcpload_error){ .rank = -1 };
	if (p->report.execute_ns) /* the first execution keeps the text about planning */
		p->again_why[0] = '\0';
	rc = load_keep_up(p, err);
	if (rc == 0)
		rc = attempt_load(p, err);
	for (int i = 0; i < MOST_AGAIN && rc < 0 && load_again(p, &renewed, err) == 0; i++)
		rc = attempt_load(p, err);
	p->report.cpu_ns = (uint64_t)(dcp_now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu);
	p->report.execute_ns = (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - begin);
	return load_while(err, rc, name_work(p));
}

int dcpload_plan_report(const struct dcpload_plan *p, struct dcpload_report *out)
{
	struct dcpload_report r = p->report;
	uint32_t size = DCP_MIN(out->size, (uint32_t)sizeof(r));
	uint64_t slots;

	r.size = size;
	r.open_ns = p->ck->open_ns;
	r.io_why = p->gds ? load_gds_why(p->gds) : p->io_why;
	r.exchange_why = p->exchange_why;
	r.again = p->again_why[0] ? p->again_why : NULL;
	r.comm = p->ck->comm->name;
	r.device = p->device ? p->device->name : "";
	r.device_why = p->device && p->device->why[0] ? p->device->why : p->ck->device_why;
	r.pinned = load_ship_pinned(p->ship);
	r.device_staging =
		load_ship_device_bytes(p->ship) + load_rounds_device_bytes(p->rounds);
	if (p->gds && load_window_memory(p->window, &slots)) /* as much memory on the device */
		r.device_staging += slots;
	memcpy(out, &r, size);
	return 0;
}

/* An execution in a separate thread. */

struct load_running {
	struct dcpload_plan *plan;
	pthread_t thread;
	bool threaded; /* false: dcpload_wait() executes it */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool done; /* guarded by @lock; the members below are set then */
	struct dcpload_error err;
	int rc;
};

static void *execute_in_thread(void *arg)
{
	struct load_running *r = arg;

	r->rc = dcpload_execute(r->plan, &r->err);
	pthread_mutex_lock(&r->lock);
	r->done = true;
	pthread_cond_signal(&r->changed);
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

static void finish_running(struct load_running *r)
{
	if (r->threaded)
		pthread_join(r->thread, NULL);
	pthread_cond_destroy(&r->changed);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

int dcpload_start(struct dcpload_plan *p, struct dcpload_error *err)
{
	struct load_running *r;

	if (p->running)
		return load_fail(err, -EBUSY, "the plan is being executed");
	r = calloc(1, sizeof(*r));
	/* The other ranks wait for this rank in any case, so they must learn of the failure. */
	if (!r)
		return load_agree(p->ck->comm, load_fail(err, -ENOMEM, "out of memory"), err,
				  (int)p->ck->config.timeout_ms);
	r->plan = p;
	pthread_mutex_init(&r->lock, NULL);
	dcp_cond_init(&r->changed);
	p->running = r;
	r->threaded = !(p->ck->comm->flags & DCPLOAD_COMM_ONE_THREAD) &&
		      pthread_create(&r->thread, NULL, execute_in_thread, r) == 0;
	return 0;
}

static bool is_done(struct load_running *r, int32_t timeout_ms)
{
	int64_t until = dcp_now_ns(CLOCK_MONOTONIC) + timeout_ms * DCP_NS_PER_MS;
	struct timespec at = { .tv_sec = until / 1000000000, .tv_nsec = until % 1000000000 };
	int rc = 0;
	bool done;

	pthread_mutex_lock(&r->lock);
	while (!r->done && rc == 0)
		rc = timeout_ms < 0 ? pthread_cond_wait(&r->changed, &r->lock)
				    : pthread_cond_timedwait(&r->changed, &r->lock, &at);
	done = r->done;
	pthread_mutex_unlock(&r->lock);
	return done;
}

int dcpload_wait(struct dcpload_plan *p, int32_t timeout_ms, struct dcpload_error *err)
{
	struct load_running *r = p->running;
	int rc;

	if (!r)
		return load_fail(err, -EINVAL, "no execution was started");
	if (!r->threaded)
		execute_in_thread(r);
	if (!is_done(r, timeout_ms))
		return load_fail(err, -EAGAIN, "the plan is still being executed");
	rc = r->rc;
	if (err)
		*err = r->err;
	p->running = NULL;
	finish_running(r);
	return rc;
}

void load_stop(struct dcpload_plan *p)
{
	if (p->running)
		finish_running(p->running);
	p->running = NULL;
}
