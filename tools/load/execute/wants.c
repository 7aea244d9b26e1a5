/* SPDX-License-Identifier: Apache-2.0 */
/* Every rank reads for itself, from the page cache or from servers: several threads read runs
 * directly into the destinations. Bytes that must be converted go through a small buffer. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/system.h"
#include "core/store/io/files.h"
#include "core/store/io/queue.h"
#include "tools/load/load.h"

enum {
	PART = 16 << 20,         /* bytes of a file that a thread takes at a time */
	BUFFER = 256 << 10,      /* bytes that are converted at a time */
	MAPPED_LEAST = 64 << 10, /* shortest run that is copied from a mapping */
	MOST_THREADS = 64,
	SERVED_THREADS = 8, /* threads if they wait for servers */
};

/* The state that the threads share. */
struct shared {
	struct dcpload_plan *p;
	pthread_mutex_t lock;
	/* the next need, and the file offset where it continues; 0: at its beginning */
	size_t need;
	uint64_t at;
	int rc;
	struct dcp_err err;
};

struct worker {
	struct shared *shared;
	struct dcp_gather gather;
	struct dcp_io_counts io;
	const struct dcp_chunk_need *need;
	uint64_t lo, hi; /* current part of its file */
	const struct dcp_file *file;
	uint8_t *buffer; /* allocated when first needed */
};

/* Take the next part to read. false: none is left, or a thread failed. */
static bool next_part(struct shared *s, const struct dcp_chunk_need **need, uint64_t *lo,
		      uint64_t *hi)
{
	const struct dcpload_plan *p = s->p;
	bool any;

	pthread_mutex_lock(&s->lock);
	any = s->rc == 0 && s->need < p->nneed && !p->given_up;
	if (any) {
		const struct dcp_chunk_need *n = &p->need[s->need];
		uint64_t end = n->s.off + dcp_strided_extent(&n->s);

		*need = n;
		*lo = DCP_MAX(s->at, n->s.off);
		*hi = end - *lo > 2 * (uint64_t)PART ? *lo + PART : end;
		s->at = *hi == end ? 0 : *hi;
		s->need += *hi == end;
	}
	pthread_mutex_unlock(&s->lock);
	return any;
}

/*
 * Should @s be copied from a mapping? Strided runs should, because reads would also fetch the gaps;
 * so should long runs in the page cache, because a read cannot bypass the caches of the processor.
 */
static bool is_better_mapped(struct worker *w, const struct dcp_strided *s)
{
	if (!w->file->map || s->ndim)
		return w->file->map;
	if (s->run < MAPPED_LEAST || w->file->fd < 0)
		return false;
	w->io.calls += 3;
	return load_is_warm(w->file->fd, s->off, s->run);
}

static struct dcp_from read_from(const struct worker *w)
{
	return (struct dcp_from){ &w->file->blob, w->file->fd, .planned = true };
}

static int read_straight(void *ctx, const struct dcp_strided *s)
{
	struct worker *w = ctx;
	const struct load_target *t = &w->shared->p->want[w->need->want].target;

	if (!is_better_mapped(w, s))
		return dcp_gather_add(&w->gather, t->base, read_from(w), s);
	load_place(t, s, w->file->map + s->off);
	w->io.mapped += dcp_strided_bytes(s);
	return 0;
}

/* @s in the form that it has in the buffer, where its runs follow each other. */
static struct dcp_strided pack_runs(const struct dcp_strided *s)
{
	struct dcp_strided out = *s;
	uint64_t step = s->run;

	for (uint32_t k = s->ndim; k-- > 0; step *= s->count[k])
		out.file_stride[k] = step;
	return out;
}

static int convert_run(void *ctx, const struct dcp_strided *s)
{
	struct worker *w = ctx;
	const struct load_target *t = &w->shared->p->want[w->need->want].target;
	uint64_t n = dcp_strided_bytes(s);
	struct dcp_strided in = *s, lie;
	int rc;

	if (n > BUFFER) { /* too large: two parts, one after the other */
		struct dcp_strided part = *s;
		uint64_t half, skip;

		if (s->ndim) {
			half = s->count[0] / 2;
			part.count[0] = half;
			if (half == 1)
				part = dcp_strided_without(s, 0);
			rc = convert_run(w, &part);
			part = s->count[0] - half == 1 ? dcp_strided_without(s, 0) : *s;
			if (s->count[0] - half > 1)
				part.count[0] = s->count[0] - half;
			part.off += half * s->file_stride[0];
			part.dst += half * s->dst_stride[0];
			return rc < 0 ? rc : convert_run(w, &part);
		}
		skip = BUFFER - BUFFER % t->from;
		part.run = skip;
		rc = convert_run(w, &part);
		part.off += skip;
		part.dst += skip;
		part.run = s->run - skip;
		return rc < 0 ? rc : convert_run(w, &part);
	}
	lie = pack_runs(s);
	for (uint32_t k = 0; k < s->ndim; k++)
		in.dst_stride[k] = lie.file_stride[k];
	in.dst = 0;
	rc = dcp_gather_add(&w->gather, (char *)w->buffer, read_from(w), &in);
	if (rc == 0)
		rc = dcp_gather_end(&w->gather);
	if (rc == 0)
		load_place(t, &lie, w->buffer);
	return rc;
}

/* Called by dcp_guard_run(), which aborts it when a mapped page cannot be read. */
static int copy_part(void *arg)
{
	struct worker *w = arg;
	const struct load_target *t = &w->shared->p->want[w->need->want].target;
	int rc = dcp_strided_clip(&w->need->s, w->lo, w->hi, t->plain ? 1 : t->from,
				  t->plain ? read_straight : convert_run, w);

	return rc < 0 ? rc : dcp_gather_end(&w->gather);
}

static uint64_t count_delivered(const struct worker *w)
{
	return w->io.read + w->io.mapped;
}

static int read_part(struct worker *w, struct dcp_err *err)
{
	struct dcpload_plan *p = w->shared->p;
	struct dcp_files *files = dcp_version_files(p->ck->of.v);
	const struct load_target *t = &p->want[w->need->want].target;
	int64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	uint64_t before = count_delivered(w);
	int seen, rc = dcp_files_hold(files, w->need->file, true, &w->file, err);

	if (rc < 0) {
		load_trouble(p, w->need->file, rc);
		return rc;
	}
	if (!t->plain && !w->buffer)
		w->buffer = malloc(BUFFER);
	if (!t->plain && !w->buffer)
		rc = -ENOMEM;
	if (rc == 0)
		rc = dcp_guard_run(copy_part, w);
	seen = dcp_files_check(files, w->need->file, false);
	rc = rc == 0 || seen == -ESTALE ? seen : rc;
	load_trouble(p, w->need->file, rc);
	if (rc < 0)
		dcp_fail_at(err, rc, w->lo, "%s: %s: %s", p->want[w->need->want].key,
			    dcp_files_name(files, w->need->file),
			    seen < 0 ? "changed since it was planned" : dcp_err_noted(rc));
	dcp_files_release(files, w->need->file);
	load_trace(p, DCPLOAD_EVENT_READ, start, count_delivered(w) - before);
	__atomic_fetch_add(&p->report.read, count_delivered(w) - before, __ATOMIC_RELAXED);
	return rc < 0 ? rc : load_arrived(p, w->need->want, count_delivered(w) - before);
}

static void *read_wants(void *arg)
{
	struct shared *s = arg;
	int64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	struct worker w;
	struct dcp_err err = { 0 };
	uint64_t used;
	int rc = 0;

	w.shared = s;
	w.buffer = NULL;
	w.io = (struct dcp_io_counts){ 0 };
	dcp_gather_begin(&w.gather, s->p->ck->of.store.queue, &w.io);
	while (rc == 0 && next_part(s, &w.need, &w.lo, &w.hi))
		rc = read_part(&w, &err);
	used = sizeof(w) + (w.buffer ? BUFFER : 0) + (w.gather.span ? DCP_QUEUE_BUFFER : 0);
	dcp_gather_finish(&w.gather);
	dcp_io_add(&s->p->ck->counts, &w.io);
	free(w.buffer);
	pthread_mutex_lock(&s->lock);
	s->p->report.staging += used;
	if (rc < 0 && s->rc == 0) {
		s->rc = rc;
		s->err = err;
	}
	s->p->report.read_ns += (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - start);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

uint32_t load_threads(const struct dcpload_plan *p)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	uint32_t n = p->ck->config.threads;

	if (n == 0)
		n = (uint32_t)DCP_MAX(cpus, 1l) / p->ck->nlocal;
	return DCP_MAX(n, 1u);
}

/* As many threads as staging has room for, but at least one. */
static uint32_t count_threads(const struct dcpload_plan *p)
{
	uint32_t n = load_threads(p);

	if (p->straight && !p->ck->config.threads)
		n = DCP_MAX(n, (uint32_t)SERVED_THREADS / p->ck->nlocal);
	n = (uint32_t)DCP_MIN(n, p->ck->config.staging / (BUFFER + DCP_QUEUE_BUFFER));
	return DCP_MIN(DCP_MAX(n, 1u), (uint32_t)MOST_THREADS);
}

int load_by_wants(struct dcpload_plan *p, struct dcpload_error *err)
{
	struct shared s = { .p = p, .lock = PTHREAD_MUTEX_INITIALIZER };

	dcp_team_run(count_threads(p), read_wants, &s, 0);
	return load_fail_err(err, s.rc, &s.err);
}
