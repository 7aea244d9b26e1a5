/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trust/copies.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/err.h"
#include "core/base/system.h"
#include "core/store/io/files.h"
#include "core/store/view/view.h"

enum { CHUNK = 256 << 10 };

/* The version as it is read without some files: from what else has their elements. */
struct without {
	struct pick p;
	bool open;
	uint32_t *file;
	size_t n;
};

/* What the threads share. */
struct team {
	struct copies *w;
	pthread_mutex_t lock; /* opening the version once more, and telling what is bad */
	size_t next;          /* atomic, as those below: the key to be looked at */
	uint64_t done;        /* bytes read */
	int64_t start_ns;
	int rc;
};

struct comparing {
	struct team *t;
	const struct walk_key *key;
	struct without other;
	char *buf[2];
};

static void close_without(struct without *o)
{
	if (o->open)
		pick_finish(&o->p);
	o->open = false;
	free(o->file);
	o->file = NULL;
}

static enum cmd_exit open_without(struct comparing *c, const uint32_t *file, size_t n)
{
	const struct copies *w = c->t->w;
	struct without *o = &c->other;
	enum cmd_exit code = CMD_OK;

	if (o->open && o->n == n && memcmp(o->file, file, n * sizeof(*file)) == 0)
		return CMD_OK;
	close_without(o);
	o->file = calloc(n, sizeof(*file));
	if (!o->file)
		return cmd_fail(CMD_ENV, "verify: %s", strerror(ENOMEM));
	memcpy(o->file, file, n * sizeof(*file));
	o->n = n;
	o->open = true;
	pthread_mutex_lock(&c->t->lock);
	code = c->t->rc < 0
		       ? CMD_ENV /* said by another thread */
		       : walk_pick(&o->p, w->p->ck.source, w->p->ck.name, w->opts, "verify");
	if (code != CMD_OK)
		__atomic_store_n(&c->t->rc, -EIO, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&c->t->lock);
	for (size_t i = 0; code == CMD_OK && i < n; i++)
		dcp_files_avoid(dcp_version_files(o->p.ck.v), file[i]);
	if (code != CMD_OK)
		close_without(o);
	return code;
}

/* The elements of a piece, as an array of their own. */
static int cut_of(const struct dcp_piece *p, uint32_t ndim, struct dcp_arena *arena,
		  struct dcp_cut *out)
{
	uint64_t volume = 1;
	int rc = dcp_cut_box(out, ndim, p->lo, p->len, arena);

	for (uint32_t d = 0; d < ndim; d++)
		volume *= p->len[d]; /* a part of a tensor, whose volume fits */
	if (rc == 0 && p->run_n != volume) {
		out->flat = true;
		out->flat_lo = p->run_lo;
		out->flat_n = p->run_n;
	}
	return rc;
}

static void tell_bad(struct comparing *c, const struct copies_bad *bad)
{
	pthread_mutex_lock(&c->t->lock);
	c->t->w->bad(c->t->w->ctx, bad);
	pthread_mutex_unlock(&c->t->lock);
}

static void compare_views(struct comparing *c, const struct dcp_view *a,
			  const struct dcp_view *b, struct copies_bad *bad)
{
	uint64_t size = dcp_view_size(a);
	int rc = size == dcp_view_size(b) ? 0 : -EBADMSG;

	bad->bytes = size;
	bad->first = UINT64_MAX;
	for (uint64_t at = 0; rc == 0 && at < size; at += CHUNK) {
		size_t n = (size_t)DCP_MIN((uint64_t)CHUNK, size - at);

		if (dcp_view_read(a, at, c->buf[0], n) < 0)
			return; /* which reading all tensors says */
		rc = dcp_view_read(b, at, c->buf[1], n);
		walk_wait_for_rate(c->t->start_ns, c->t->w->rate,
				   __atomic_add_fetch(&c->t->done, 2 * n, __ATOMIC_RELAXED));
		if (rc < 0 || memcmp(c->buf[0], c->buf[1], n) == 0)
			continue;
		for (size_t i = 0; i < n; i++)
			if (c->buf[0][i] != c->buf[1][i]) {
				bad->first = DCP_MIN(bad->first, at + i);
				bad->differ++;
			}
	}
	bad->why = rc < 0 ? dcp_err_noted(rc) : NULL;
	if (rc < 0 || bad->differ)
		tell_bad(c, bad);
	else
		__atomic_add_fetch(&c->t->w->equal, 1, __ATOMIC_RELAXED);
}

/* One piece with all its copies, each read without the files that come before it. */
static int compare_piece(struct comparing *c, const struct dcp_tensor *t,
			 const struct dcp_piece *p)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 26);
	dcp_auto_view struct dcp_view *first = NULL;
	uint32_t *file = dcp_arena_calloc(&arena, (size_t)t->ncopies + 1, sizeof(*file));
	struct dcp_err err = { 0 };
	struct dcp_cut cut;
	size_t n = 1;
	int rc = file ? cut_of(p, t->ndim, &arena, &cut) : -ENOMEM;

	if (rc == 0)
		rc = dcp_view_open(c->t->w->p->ck.v, c->key->id, DCP_AS_RAW, &cut, &first,
				   &err);
	if (rc < 0)
		return rc == -ENOMEM ? rc : 0; /* which reading all tensors says */
	file[0] = p->file;
	for (size_t k = 0; k < t->ncopies; k++) {
		const struct dcp_piece *copy = &t->copies[k];
		dcp_auto_view struct dcp_view *view = NULL;
		struct copies_bad bad = { .key = c->key,
					  .file = p->file,
					  .other = copy->file,
					  .off = p->enc == DCP_ENC_PLAIN ? p->off : 0,
					  .n = p->enc == DCP_ENC_PLAIN ? p->nbytes : 0 };

		if (dcp_piece_compare(copy, p, t->ndim) != 0)
			continue;
		if (open_without(c, file, n) != CMD_OK)
			return -EIO; /* said; the rest is not compared */
		file[n++] = copy->file;
		rc = dcp_view_open(c->other.p.ck.v, c->key->id, DCP_AS_RAW, &cut, &view, &err);
		if (rc == -ENOMEM)
			return rc;
		bad.why = err.msg;
		if (rc < 0) {
			tell_bad(c, &bad);
		} else {
			bad.with = c->other.p.ck.v;
			compare_views(c, first, view, &bad);
		}
	}
	return 0;
}

static int compare_key(struct comparing *c)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	struct dcp_index *ix = dcp_version_index(c->t->w->p->ck.v);
	struct dcp_tensor t;
	int rc = dcp_index_tensor(ix, c->key->id, &arena, &t, NULL);

	for (size_t k = 0; rc == 0 && t.ncopies && k < t.npieces; k++)
		rc = compare_piece(c, &t, &t.pieces[k]);
	return rc;
}

static void *compare_next(void *ctx)
{
	struct comparing *c = ctx;
	struct team *t = c->t;
	const struct walk_keys *keys = t->w->keys;
	size_t i;

	while ((i = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED)) < WALK_NKEYS(keys) &&
	       __atomic_load_n(&t->rc, __ATOMIC_RELAXED) == 0) {
		int rc = 0;

		c->key = &WALK_KEYS(keys)[i];
		if (!c->key->alias_of)
			rc = compare_key(c);
		if (rc < 0)
			__atomic_store_n(&t->rc, rc, __ATOMIC_RELAXED);
	}
	close_without(&c->other);
	return NULL;
}

int copies_check(struct copies *w)
{
	struct team t = { .w = w, .start_ns = dcp_now_ns(CLOCK_MONOTONIC) };
	struct comparing jobs[WALK_MAX_JOBS] = { 0 };
	unsigned n = walk_count_jobs(w->jobs);

	pthread_mutex_init(&t.lock, NULL);
	for (unsigned i = 0; i < n; i++) {
		jobs[i] =
			(struct comparing){ .t = &t, .buf = { malloc(CHUNK), malloc(CHUNK) } };
		t.rc = jobs[i].buf[0] && jobs[i].buf[1] ? t.rc : -ENOMEM;
	}
	if (t.rc == 0)
		dcp_team_run(n, compare_next, jobs, sizeof(*jobs));
	for (unsigned i = 0; i < n; i++) {
		free(jobs[i].buf[0]);
		free(jobs[i].buf[1]);
	}
	pthread_mutex_destroy(&t.lock);
	return t.rc;
}
