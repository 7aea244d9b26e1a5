/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trust/walk.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/base/ckd.h"
#include "core/base/clock.h"
#include "core/store/view/view.h"

enum {
	CHUNK = 192 << 10, /* a multiple of the size of every known element, also of 3 bytes */
	SPAN = 128,        /* chunks */
	MAX_JOBS = 64,
	ALIGN = 64,
};

struct item_state {
	char *found;
	size_t left; /* spans that are not read to the end yet */
	unsigned side;
	int rc;
	struct dcp_err *err;
};

struct team {
	struct walk *w;
	struct item_state *state;
	pthread_mutex_t lock;
	size_t item, span; /* the next to be taken */
	uint64_t done, total;
	int64_t start_ns;
	int rc;
	struct progress progress;
};

struct job {
	struct team *t;
	pthread_t thread;
	char *buf[2];
	struct dcp_view *view[2];
	size_t item; /* of the views */
	bool leads;
};

static unsigned sides(const struct walk_item *item)
{
	return item->key[1] ? 2 : 1;
}

/* Elements in a chunk of both; what has larger elements than a chunk is not read in elements. */
static uint64_t per_chunk(const struct walk_item *item)
{
	uint32_t most = 1;

	for (unsigned s = 0; s < sides(item); s++)
		most = DCP_MAX(most, item->key[s]->itemsize);
	return DCP_MAX((uint64_t)CHUNK / most, 1);
}

static uint64_t per_span(const struct walk *w, const struct walk_item *item)
{
	return w->whole ? UINT64_MAX : SPAN * per_chunk(item);
}

static size_t count_spans(const struct walk *w, const struct walk_item *item)
{
	uint64_t n = item->key[0]->elements, per = per_span(w, item);

	return n == 0 ? 1 : (size_t)((n - 1) / per + 1);
}

static void note_failure(struct team *t, struct item_state *s, int rc, unsigned side,
			 const struct dcp_err *err)
{
	pthread_mutex_lock(&t->lock);
	if (s->rc == 0) {
		s->rc = rc;
		s->side = side;
		s->err = malloc(sizeof(*s->err));
		if (s->err)
			*s->err = *err;
	}
	pthread_mutex_unlock(&t->lock);
}

static void close_views(struct job *j)
{
	for (unsigned s = 0; s < 2; s++) {
		dcp_view_close(j->view[s]);
		j->view[s] = NULL;
	}
}

static int open_views(struct job *j, size_t number, unsigned *side, struct dcp_err *err)
{
	struct walk *w = j->t->w;
	const struct walk_item *item = &w->items[number];
	int rc = 0;

	if (j->item == number && j->view[0])
		return 0;
	close_views(j);
	j->item = number;
	for (unsigned s = 0; rc == 0 && s < sides(item); s++) {
		*side = s;
		rc = dcp_view_open(w->version[s], item->key[s]->id, DCP_AS_RAW, NULL,
				   &j->view[s], err);
	}
	if (rc < 0)
		close_views(j);
	return rc;
}

static void wait_for_rate(struct team *t, uint64_t done)
{
	int64_t due = t->w->rate
			      ? t->start_ns + (int64_t)((double)done / (double)t->w->rate * 1e9)
			      : 0;
	int64_t left = due - dcp_now_ns(CLOCK_MONOTONIC);
	struct timespec ts = { left / 1000000000, left % 1000000000 };

	if (due && left > 0)
		nanosleep(&ts, NULL);
}

static int read_span(struct job *j, size_t number, size_t span, unsigned *side,
		     struct dcp_err *err)
{
	struct team *t = j->t;
	struct walk *w = t->w;
	const struct walk_item *item = &w->items[number];
	void *found = t->state[number].found + span * w->found;
	uint64_t chunk = per_chunk(item), first = span * per_span(w, item);
	uint64_t end = item->key[0]->elements;
	int rc = open_views(j, number, side, err);

	if (!w->whole)
		end = DCP_MIN(end, first + per_span(w, item));
	for (; rc == 0 && first < end; first += chunk) {
		size_t n = (size_t)DCP_MIN(chunk, end - first);
		uint64_t bytes = 0, done;

		for (unsigned s = 0; rc == 0 && s < sides(item); s++) {
			uint64_t size = item->key[s]->itemsize;

			*side = s;
			rc = dcp_view_read(j->view[s], first * size, j->buf[s], n * size);
			bytes += n * size;
			if (rc < 0)
				dcp_fail_at(err, rc, first * size, "reading at byte %llu: %s",
					    (unsigned long long)(first * size),
					    rc == -ESTALE ? "a file of the checkpoint was "
							    "changed meanwhile"
							  : strerror(-rc));
		}
		if (rc == 0 && w->look(w->ctx, item, found, first, j->buf[0],
				       item->key[1] ? j->buf[1] : NULL, n))
			break;
		done = __atomic_add_fetch(&t->done, bytes, __ATOMIC_RELAXED);
		if (j->leads)
			t->progress.report.report(t->progress.report.ctx, done, t->total,
						  item->key[0]->key);
		wait_for_rate(t, done);
	}
	return rc;
}

/* Take the next span: its item's state is ready. False: there is none. */
static bool take(struct team *t, size_t *item, size_t *span)
{
	struct walk *w = t->w;
	bool more;

	pthread_mutex_lock(&t->lock);
	more = t->rc == 0 && t->item < w->n;
	if (more && t->span == 0) {
		struct item_state *s = &t->state[t->item];

		s->left = count_spans(w, &w->items[t->item]);
		s->found = calloc(s->left, w->found ? w->found : 1);
		if (!s->found)
			t->rc = -ENOMEM;
		more = s->found;
	}
	*item = t->item;
	*span = t->span;
	if (more && ++t->span == count_spans(w, &w->items[t->item])) {
		t->item++;
		t->span = 0;
	}
	pthread_mutex_unlock(&t->lock);
	return more;
}

static void finish_span(struct team *t, size_t number)
{
	struct item_state *s = &t->state[number];
	struct walk *w = t->w;

	pthread_mutex_lock(&t->lock);
	if (--s->left == 0) {
		static const struct dcp_err none;

		w->done(w->ctx, &w->items[number], s->found, count_spans(w, &w->items[number]),
			s->rc, s->side, s->err ? s->err : &none);
		free(s->found);
		free(s->err);
		s->found = NULL;
		s->err = NULL;
	}
	pthread_mutex_unlock(&t->lock);
}

static void *work(void *ctx)
{
	struct job *j = ctx;
	struct team *t = j->t;
	size_t item, span;

	while (take(t, &item, &span)) {
		struct dcp_err err = { 0 };
		unsigned side = 0;
		int rc = __atomic_load_n(&t->state[item].rc, __ATOMIC_RELAXED);

		if (rc == 0) {
			rc = read_span(j, item, span, &side, &err);
			if (rc < 0)
				note_failure(t, &t->state[item], rc, side, &err);
		}
		finish_span(t, item);
	}
	close_views(j);
	return NULL;
}

static uint64_t sum_bytes(const struct walk *w)
{
	uint64_t total = 0;

	for (size_t i = 0; i < w->n; i++)
		for (unsigned s = 0; s < sides(&w->items[i]); s++)
			if (dcp_ckd_add(&total, total, w->items[i].key[s]->nbytes))
				total = UINT64_MAX;
	return total;
}

static unsigned count_jobs(const struct walk *w)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned n = w->jobs ? w->jobs : (unsigned)DCP_MIN(DCP_MAX(cpus, 1), 8);

	return DCP_MIN(n, (unsigned)MAX_JOBS);
}

int walk_run(struct walk *w)
{
	struct team t = { .w = w,
			  .total = sum_bytes(w),
			  .start_ns = dcp_now_ns(CLOCK_MONOTONIC) };
	unsigned n = count_jobs(w), started = 1;
	struct job *jobs = calloc(n, sizeof(*jobs));
	uint32_t most = CHUNK;
	char *bufs;

	/* An element of an unknown type may be longer than a chunk. */
	for (size_t i = 0; i < w->n; i++)
		for (unsigned s = 0; s < sides(&w->items[i]); s++)
			most = DCP_MAX(most, w->items[i].key[s]->itemsize);
	most = (most + ALIGN - 1) / ALIGN * ALIGN;
	bufs = aligned_alloc(ALIGN, (size_t)n * 2 * most);
	t.state = calloc(w->n + 1, sizeof(*t.state));
	if (!jobs || !bufs || !t.state) {
		t.rc = -ENOMEM;
		goto out;
	}
	pthread_mutex_init(&t.lock, NULL);
	progress_init(&t.progress, true);
	for (unsigned i = 0; i < n; i++)
		jobs[i] = (struct job){ .t = &t,
					.leads = i == 0,
					.buf = { bufs + (size_t)i * 2 * most,
						 bufs + ((size_t)i * 2 + 1) * most } };
	while (started < n &&
	       pthread_create(&jobs[started].thread, NULL, work, &jobs[started]) == 0)
		started++;
	work(&jobs[0]);
	for (unsigned i = 1; i < started; i++)
		pthread_join(jobs[i].thread, NULL);
	progress_finish(&t.progress);
	pthread_mutex_destroy(&t.lock);
	for (size_t i = 0; i < w->n; i++) {
		free(t.state[i].found);
		free(t.state[i].err);
	}
out:
	free(t.state);
	free(bufs);
	free(jobs);
	return t.rc;
}
