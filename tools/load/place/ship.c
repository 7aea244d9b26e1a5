/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/load.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/system.h"
#include "tools/load/memory/scatter.h"

/* Parts: their description, their memory, and how many of their bytes have arrived. */

int dcpload_part(const struct dcpload_plan *p, uint64_t i, struct dcpload_part *out)
{
	const struct load_want *w;

	if (i >= p->nwant)
		return -ENOENT;
	w = &p->want[i];
	*out = (struct dcpload_part){ .key = w->key,
				      .dtype = w->to_name,
				      .stored = w->dtype_name,
				      .itemsize = w->itemsize,
				      .ndim = w->ndim,
				      .complete = w->complete,
				      .global_ndim = w->global_ndim,
				      .data = w->target.base,
				      .nbytes = w->nbytes,
				      .user = w->user };
	if (w->ndim)
		memcpy(out->shape, w->shape, w->ndim * sizeof(*out->shape));
	if (w->global_ndim)
		memcpy(out->global_shape, w->global_shape,
		       w->global_ndim * sizeof(*out->global_shape));
	return 0;
}

int dcpload_part_memory(const struct dcpload_plan *p, uint64_t i, int32_t *device)
{
	if (i >= p->nwant)
		return -ENOENT;
	if (device)
		*device = p->want[i].target.on_device ? (int32_t)p->device->number : -1;
	return p->want[i].memory;
}

int dcpload_part_read(struct dcpload_plan *p, uint64_t i, uint64_t at, void *dst, uint64_t n,
		      struct dcpload_error *err)
{
	const struct load_want *w = i < p->nwant ? &p->want[i] : NULL;
	struct load_device *d = w && w->target.on_device ? p->device : NULL;
	int rc;

	if (!w || w->target.stride || at > w->nbytes || n > w->nbytes - at)
		return load_fail(err, -EINVAL, "part %llu is not row-major or too short",
				 (unsigned long long)i);
	rc = n ? load_memory_of(d)->fetch(d, dst, w->target.base + at, n) : 0;
	return load_device_said(d, rc, err);
}

int load_arrived(struct dcpload_plan *p, uint32_t number, uint64_t n)
{
	struct load_want *w = &p->want[number];
	struct dcpload_part part;
	int rc = 0;

	atomic_fetch_add(&p->arrived, n);
	if (p->hooks.progress) {
		pthread_mutex_lock(&p->saying);
		rc = p->hooks.progress(p->hooks.ctx, p->arrived, p->report.needed);
		pthread_mutex_unlock(&p->saying);
	}
	if (rc < 0 || atomic_fetch_sub(&w->left, n) != n)
		return rc;
	w->complete = 1;
	if (!p->hooks.commit)
		return 0;
	dcpload_part(p, number, &part);
	return p->hooks.commit(p->hooks.ctx, number, &part);
}

enum {
	LANES = 4,
	LONG = 64 << 10,    /* bytes of a single run that is copied directly */
	LONG_ROW = 2 << 10, /* the same for a run that is one of many */
	NEAR = 16 << 10,    /* longest gap between two jobs that is shipped as well */
	PINNED = 4,         /* pieces of staging memory */
};

/* Bytes of a want that are on their way to the device. */
struct coming {
	uint32_t want, last; /* @last: 1: no more bytes of the want follow */
	uint64_t bytes;
};

struct batch {
	struct load_job *jobs; /* pinned */
	void *device_jobs;     /* the same on the device */
	char *own;             /* device memory of this batch for shipped bytes */
	char *room;            /* @own, or the place where the bytes are already */
	uint32_t njobs;
	uint64_t blocks;
	struct coming *coming;
	size_t ncoming, cap_coming;
	/* the chunk that ends with this batch; LOAD_SHIP_THERE or more: no chunk ends */
	size_t chunk;
	void *mark;
	int64_t began;
	uint64_t bytes;
	uint32_t lane;
};

struct load_ship {
	struct dcpload_plan *p;
	struct load_device *d;
	int timeout_ms;
	uint64_t piece;
	void *lane[LANES], *before;
	struct batch *batch;
	uint32_t nbatch, oldest, flying; /* a ring; the current batch follows those in flight */
	const uint8_t *src;              /* source of the current batch */
	size_t chunk;
	bool resident;     /* the bytes of the batch are on the device already */
	uint64_t lo, hi;   /* range of @src to be shipped next */
	void *jobs, *room; /* memory of all batches */
	uint64_t jobs_bytes, room_bytes;
	uint32_t most_jobs; /* of a batch */
	uint8_t *bounce;    /* for bytes that the host converts, allocated on first use */
	uint64_t bounce_bytes, bounced;
	struct {
		void *p;
		uint64_t n;
	} pinned[PINNED];
	uint32_t npinned;
};

/* ---- making one ---- */

void load_ship_pin(struct load_ship *s, void *p, uint64_t n)
{
	struct load_device *d = s->d;

	if (s->npinned == PINNED || n == 0)
		return;
	load_device_near(d, p, n);
	if (d->kind->pin(d, p, n) < 0) {
		if (!d->why[0])
			snprintf(d->why, sizeof(d->why), "staging is not pinned: %.120s",
				 d->said);
		return;
	}
	s->pinned[s->npinned].p = p;
	s->pinned[s->npinned++].n = n;
}

static int make_batches(struct load_ship *s)
{
	struct load_device *d = s->d;
	uint64_t jobs = s->most_jobs * sizeof(struct load_job), each = s->piece + jobs;
	int rc;

	each += (256 - each % 256) % 256;
	s->jobs_bytes = jobs * s->nbatch;
	s->room_bytes = each * s->nbatch;
	s->batch = calloc(s->nbatch, sizeof(*s->batch));
	if (!s->batch)
		return -ENOMEM;
	rc = load_host.alloc(NULL, s->jobs_bytes, &s->jobs);
	if (rc < 0)
		return rc;
	load_ship_pin(s, s->jobs, s->jobs_bytes);
	rc = d->kind->alloc(d, s->room_bytes, &s->room);
	for (uint32_t i = 0; i < s->nbatch && rc == 0; i++) {
		struct batch *b = &s->batch[i];

		b->jobs = (struct load_job *)s->jobs + (uint64_t)i * s->most_jobs;
		b->own = (char *)s->room + i * each;
		b->device_jobs = b->own + (each - jobs);
		rc = d->kind->mark_open(d, &b->mark);
	}
	return rc;
}

int load_ship_create(struct dcpload_plan *p, uint64_t piece, uint32_t batches, uint64_t share,
		     struct load_ship **out, struct dcpload_error *err)
{
	struct load_ship *s = calloc(1, sizeof(*s));
	struct load_device *d = p->device;
	int rc = 0;

	if (!s)
		return load_fail(err, -ENOMEM, "out of memory");
	s->p = p;
	s->d = d;
	s->piece = piece + (256 - piece % 256) % 256;
	/* Half the timeout, so that this rank can report before the other ranks give up. */
	s->timeout_ms = (int)p->ck->config.timeout_ms / 2;
	s->nbatch = batches;
	s->most_jobs = (uint32_t)DCP_MAX(share / 2 / batches / sizeof(struct load_job), 1u);
	s->bounce_bytes = DCP_MAX(share / 2, (uint64_t)LOAD_BLOCK);
	for (uint32_t i = 0; i < LANES && rc == 0; i++)
		rc = d->kind->lane_open(d, &s->lane[i]);
	if (rc == 0)
		rc = d->kind->mark_open(d, &s->before);
	if (rc == 0)
		rc = make_batches(s);
	if (rc < 0) {
		load_device_said(d, rc, err);
		load_ship_free(s, false);
		return rc;
	}
	*out = s;
	return 0;
}

/* Free all memory that the device uses. */
static void free_there(struct load_ship *s)
{
	struct load_device *d = s->d;

	while (s->npinned)
		d->kind->unpin(d, s->pinned[--s->npinned].p);
	for (uint32_t i = 0; s->batch && i < s->nbatch; i++)
		if (s->batch[i].mark)
			d->kind->mark_close(d, s->batch[i].mark);
	for (uint32_t i = 0; i < LANES; i++)
		if (s->lane[i])
			d->kind->lane_close(d, s->lane[i]);
	if (s->before)
		d->kind->mark_close(d, s->before);
	if (s->room)
		d->kind->free(d, s->room, s->room_bytes);
	if (s->jobs)
		load_host.free(NULL, s->jobs, s->jobs_bytes);
	if (s->bounce)
		load_host.free(NULL, s->bounce, s->bounce_bytes);
}

void load_ship_free(struct load_ship *s, bool keep)
{
	if (!s)
		return;
	if (!keep)
		free_there(s);
	for (uint32_t i = 0; s->batch && i < s->nbatch; i++)
		free(s->batch[i].coming);
	free(s->batch);
	free(s);
}

uint64_t load_ship_bytes(const struct load_ship *s)
{
	return s ? s->jobs_bytes + (s->bounce ? s->bounce_bytes : 0) : 0;
}

uint64_t load_ship_device_bytes(const struct load_ship *s)
{
	return s ? s->room_bytes : 0;
}

uint64_t load_ship_pinned(const struct load_ship *s)
{
	uint64_t n = 0;

	for (uint32_t i = 0; s && i < s->npinned; i++)
		n += s->pinned[i].n;
	return n;
}

/* Make all lanes wait for the work queued on @stream. */
static int follow_stream(struct load_ship *s, void *stream)
{
	struct load_device *d = s->d;
	int rc = d->kind->mark(d, s->before, stream);

	for (uint32_t i = 0; i < LANES && rc == 0; i++)
		rc = d->kind->follow(d, s->lane[i], s->before);
	return rc;
}

int load_ship_start(struct load_ship *s)
{
	s->oldest = s->flying = 0;
	s->d->said[0] = '\0';
	return s->p->stream ? follow_stream(s, s->p->stream) : 0;
}

int load_ship_clear(struct load_ship *s, void *p, uint64_t n)
{
	int rc = s->d->kind->clear(s->d, s->lane[0], p, n);

	return rc < 0 ? rc : follow_stream(s, s->lane[0]);
}

/* ---- batches ---- */

static struct batch *get_batch(struct load_ship *s)
{
	return &s->batch[(s->oldest + s->flying) % s->nbatch];
}

static void *get_lane(struct load_ship *s)
{
	return s->lane[get_batch(s)->lane];
}

/* The oldest batch has arrived. */
static int land_batch(struct load_ship *s)
{
	struct batch *b = &s->batch[s->oldest];
	int rc = 0;

	load_trace_as(s->p, DCPLOAD_EVENT_COPY, b->lane, b->began, b->bytes);
	s->oldest = (s->oldest + 1) % s->nbatch;
	s->flying--;
	for (size_t i = 0; i < b->ncoming && rc == 0; i++)
		rc = load_arrived(s->p, b->coming[i].want, b->coming[i].bytes);
	if (rc == 0 && b->chunk < LOAD_SHIP_THERE)
		load_window_done(s->p->window, b->chunk);
	return rc;
}

/* Wait until at most @most batches are in flight. */
static int reap_batches(struct load_ship *s, uint32_t most)
{
	struct load_device *d = s->d;
	int rc = 0;

	while (rc == 0 && s->flying) {
		void *mark = s->batch[s->oldest].mark;

		if (s->flying > most) {
			rc = load_device_wait(d, mark, s->timeout_ms);
		} else {
			rc = d->kind->passed(d, mark);
			if (rc == 0)
				return 0;
		}
		if (rc >= 0)
			rc = land_batch(s);
	}
	return rc;
}

int load_ship_reap(struct load_ship *s, bool all)
{
	return reap_batches(s, all ? 0 : s->nbatch);
}

void load_ship_drop(struct load_ship *s)
{
	for (uint32_t i = 0; i < LANES && s->before; i++)
		if (s->lane[i])
			load_device_settle(s->d, s->before, s->lane[i], s->timeout_ms);
	s->oldest = s->flying = 0;
}

int load_ship_begin(struct load_ship *s, const uint8_t *src, size_t chunk)
{
	int rc = reap_batches(s, s->nbatch - 1);
	struct batch *b = get_batch(s);
	uint64_t n;

	if (rc < 0)
		return rc;
	if (!s->flying)
		s->bounced = 0;
	b->lane = (uint32_t)(b - s->batch) % LANES;
	b->njobs = 0;
	b->blocks = b->bytes = 0;
	b->ncoming = 0;
	b->chunk = LOAD_SHIP_NO_CHUNK;
	b->began = dcp_now_ns(CLOCK_MONOTONIC);
	s->src = src;
	s->chunk = chunk;
	s->resident = chunk == LOAD_SHIP_THERE || (s->p->gds && chunk != LOAD_SHIP_NO_CHUNK);
	b->room = b->own;
	if (chunk == LOAD_SHIP_THERE)
		b->room = (char *)(uintptr_t)src;
	else if (s->resident) /* slots have the same layout on the device */
		b->room = load_gds_memory(s->p->gds) +
			  (src - (uint8_t *)load_window_memory(s->p->window, &n));
	s->lo = s->hi = 0;
	return 0;
}

/* Ship the bytes that the jobs made so far need. */
static int ship_stretch(struct load_ship *s)
{
	uint64_t n = s->hi - s->lo;
	int rc = 0;

	if (n)
		rc = s->d->kind->copy(s->d, get_lane(s), get_batch(s)->room + s->lo,
				      s->src + s->lo, n);
	get_batch(s)->bytes += n;
	s->lo = s->hi = 0;
	return rc;
}

/* Does the current batch bring the last bytes of some part? If so, its mark must cover the batches
 * before it, too. */
static int join_marks(struct load_ship *s, bool *some)
{
	struct batch *b = get_batch(s);
	int rc = 0;

	*some = false;
	for (size_t i = 0; i < b->ncoming && s->p->hooks.queued; i++) {
		struct load_want *w = &s->p->want[b->coming[i].want];

		w->unqueued -= b->coming[i].bytes;
		b->coming[i].last = w->unqueued == 0;
		*some |= w->unqueued == 0;
	}
	for (uint32_t i = 0; i < s->flying && *some && rc == 0; i++)
		rc = s->d->kind->follow(s->d, get_lane(s),
					s->batch[(s->oldest + i) % s->nbatch].mark);
	return rc;
}

static int call_queued(struct load_ship *s, const struct batch *b)
{
	const struct dcpload_hooks *h = &s->p->hooks;
	struct dcpload_part part;
	int rc = 0;

	for (size_t i = 0; i < b->ncoming && rc >= 0; i++) {
		if (!b->coming[i].last)
			continue;
		dcpload_part(s->p, b->coming[i].want, &part);
		rc = h->queued(h->ctx, b->coming[i].want, &part, b->mark);
	}
	return DCP_MIN(rc, 0);
}

/* End the current batch; @last: it is the last of its chunk. */
static int end_batch(struct load_ship *s, bool last)
{
	struct load_device *d = s->d;
	struct batch *b = get_batch(s);
	bool some = false;
	int rc = ship_stretch(s);

	if (rc == 0 && b->njobs)
		rc = d->kind->copy(d, get_lane(s), b->device_jobs, b->jobs,
				   b->njobs * sizeof(*b->jobs));
	if (rc == 0 && b->njobs)
		rc = d->kind->scatter(d, get_lane(s), b->device_jobs, b->njobs, b->blocks);
	if (rc == 0)
		rc = join_marks(s, &some);
	if (rc == 0)
		rc = d->kind->mark(d, b->mark, get_lane(s));
	if (rc < 0)
		return rc;
	if (last)
		b->chunk = s->chunk;
	s->flying++;
	return some ? call_queued(s, b) : 0;
}

int load_ship_end(struct load_ship *s)
{
	return end_batch(s, true);
}

/* Begin another batch with the same piece of staging memory. */
static int turn_batch(struct load_ship *s)
{
	int rc = end_batch(s, false);

	return rc < 0 ? rc : load_ship_begin(s, s->src, s->chunk);
}

/* ---- by the kernel ---- */

/* Add bytes [lo, hi) of the batch to the bytes to be shipped. */
static int want_shipped(struct load_ship *s, uint64_t lo, uint64_t hi)
{
	int rc = 0;

	if (s->hi && (lo < s->lo || lo > s->hi + NEAR))
		rc = ship_stretch(s);
	if (!s->hi)
		s->lo = lo;
	s->hi = DCP_MAX(s->hi, hi);
	return rc;
}

/* ---- by the host ---- */

/* Convert a run of @n bytes, which begins at byte @at of the stored array, and copy it. */
static int bounce_run(struct load_ship *s, const struct load_target *t, uint64_t at,
		      const uint8_t *src, uint64_t n)
{
	struct load_target dense = *t;
	uint64_t e = at / t->from;
	int rc = 0;

	dense.stride = NULL;
	for (n /= t->from; n && rc == 0;) {
		uint64_t now = DCP_MIN(n, s->bounce_bytes / t->to);

		if (t->stride)
			now = DCP_MIN(now, t->inner - e % t->inner);
		if (s->bounced + now * t->to > s->bounce_bytes) {
			rc = turn_batch(s);
			if (rc == 0)
				rc = reap_batches(s, 0);
			s->bounced = 0;
		}
		if (rc < 0)
			break;
		dense.base = (char *)s->bounce + s->bounced;
		load_place_run(&dense, 0, src, now * t->from);
		rc = s->d->kind->copy(s->d, get_lane(s), load_address(t, e), dense.base,
				      now * t->to);
		s->bounced += now * t->to;
		get_batch(s)->bytes += now * t->to;
		e += now;
		src += now * t->from;
		n -= now;
	}
	return rc;
}

static int bounce_part(struct load_ship *s, const struct load_target *t,
		       const struct dcp_strided *r, uint32_t k, uint64_t at, const uint8_t *src)
{
	int rc = 0;

	if (!s->bounce) {
		void *p;

		if (load_host.alloc(NULL, s->bounce_bytes, &p) < 0)
			return -ENOMEM;
		s->bounce = p;
		load_ship_pin(s, p, s->bounce_bytes);
	}
	if (k == r->ndim)
		return bounce_run(s, t, at, src, r->run);
	for (uint64_t i = 0; i < r->count[k] && rc == 0; i++)
		rc = bounce_part(s, t, r, k + 1, at + i * r->dst_stride[k],
				 src + i * r->file_stride[k]);
	return rc;
}

/* ---- adding ---- */

static int note_coming(struct batch *b, uint32_t number, uint64_t bytes)
{
	struct coming *last = b->ncoming ? &b->coming[b->ncoming - 1] : NULL;

	if (last && last->want == number) {
		last->bytes += bytes;
		return 0;
	}
	if (DCP_GROW(b->coming, b->cap_coming, b->ncoming) < 0)
		return -ENOMEM;
	b->coming[b->ncoming++] = (struct coming){ number, 0, bytes };
	return 0;
}

static bool is_long(const struct dcp_strided *r)
{
	return r->run >= (r->ndim ? LONG_ROW : LONG);
}

int load_ship_send(struct load_ship *s, const uint8_t *src, uint64_t n)
{
	if (n == 0)
		return 0;
	get_batch(s)->bytes += n;
	return s->d->kind->copy(s->d, get_lane(s), get_batch(s)->room + (src - s->src), src, n);
}

int load_ship_add(struct load_ship *s, uint32_t number, const struct dcp_strided *r,
		  const uint8_t *src)
{
	const struct load_target *t = &s->p->want[number].target;
	uint64_t off = (uint64_t)(src - s->src), bytes = dcp_strided_bytes(r);
	int rc = get_batch(s)->njobs == s->most_jobs ? turn_batch(s) : 0;
	struct batch *b = get_batch(s);
	struct load_job *j = &b->jobs[b->njobs];
	uint64_t at = (uint64_t)(uintptr_t)(b->room + off);
	bool by_kernel = (s->resident || !(t->plain && is_long(r))) && s->d->scatters;

	if (rc < 0)
		return rc;
	if (by_kernel && b->njobs && b->coming[b->ncoming - 1].want == number &&
	    load_job_extend(j - 1, t, r, at)) { /* rows of a message */
		j--;
	} else if (by_kernel && load_job_make(j, t, r, at)) {
		j->first = b->blocks;
		b->njobs++;
	} else {
		j = NULL;
	}
	if (j) {
		if (!s->resident)
			rc = want_shipped(s, off, off + dcp_strided_extent(r));
		b->blocks = j->first + (j->units + LOAD_SCATTER_UNITS - 1) / LOAD_SCATTER_UNITS;
	} else if (s->resident) {
		return -ENOTSUP; /* load_job_can() has checked this */
	} else if (t->plain) {
		rc = s->d->kind->copy_runs(s->d, get_lane(s), t->base, src, r);
		b->bytes += bytes;
	} else {
		rc = bounce_part(s, t, r, 0, r->dst, src);
	}
	return rc < 0 ? rc : note_coming(get_batch(s), number, bytes);
}
