/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trust/trust.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "core/base/bytes.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "core/model/name.h"
#include "core/model/tensor.h"
#include "core/store/io/files.h"
#include "core/store/view/measure.h"
#include "core/store/view/view.h"
#include "fs/session.h"

enum {
	CHUNK = DCP_MEASURE_CHUNK,
	STRETCH = 8,             /* chunks of mapped files that are examined together */
	SPAN = DCP_MEASURE_SPAN, /* chunks; whole stretches */
	AROUND = 2 << 20,        /* bytes that a fault may map: a huge page */
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
	char *buf[2];
	struct dcp_view *view[2];
	size_t item; /* of the views */
	bool leads;
};

void walk_prepare(void)
{
	dcpfs_fault_install(); /* if it cannot be, files are read */
}

static enum cmd_exit check_hf(struct pick *p, const struct pick_opts *opts, const char *verb)
{
	return p->ck.base ? hf_check(p->ck.v, &opts->hf, verb, false) : CMD_OK;
}

enum cmd_exit walk_pick(struct pick *p, const char *source, const char *version,
			const struct pick_opts *opts, const char *verb)
{
	enum cmd_exit code = pick_source(p, source, opts, false);

	if (code == CMD_OK)
		code = pick_version(p, version);
	return code == CMD_OK ? check_hf(p, opts, verb) : code;
}

enum cmd_exit walk_open(struct pick *p, const struct opt_args *args,
			const struct pick_opts *opts, const char *verb)
{
	enum cmd_exit code;

	walk_prepare();
	code = pick_open(p, args, opts);
	return code == CMD_OK ? check_hf(p, opts, verb) : code;
}

static unsigned count_sides(const struct walk_item *item)
{
	return item->key[1] ? 2 : 1;
}

/* Elements in a chunk of both tensors; elements larger than a chunk are read as bytes. */
static uint64_t per_chunk(const struct walk_item *item)
{
	uint32_t most = 1;

	for (unsigned s = 0; s < count_sides(item); s++)
		most = DCP_MAX(most, item->key[s]->itemsize);
	return dcp_measure_chunk(most);
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
	for (unsigned s = 0; rc == 0 && s < count_sides(item); s++) {
		*side = s;
		rc = dcp_view_open(w->version[s], item->key[s]->id, DCP_AS_RAW, NULL,
				   &j->view[s], err);
	}
	if (rc < 0)
		close_views(j);
	return rc;
}

void walk_wait_for_rate(int64_t start_ns, uint64_t rate, uint64_t done)
{
	int64_t due = rate ? start_ns + (int64_t)((double)done / (double)rate * 1e9) : 0;
	int64_t left = due - dcp_now_ns(CLOCK_MONOTONIC);
	struct timespec ts = { left / 1000000000, left % 1000000000 };

	if (due && left > 0)
		nanosleep(&ts, NULL);
}

/* Elements [first, first + n) of an item's tensors, in place. */
struct stretch {
	struct walk *w;
	const struct walk_item *item;
	void *found;
	uint64_t first;
	size_t n;
	const void *at[2];
	bool more; /* the span has more after it */
	int stop;  /* what look() returned */
};

static int look_at(void *ctx)
{
	struct stretch *s = ctx;

	s->stop = s->w->look(s->w->ctx, s->item, s->found, s->first, s->at[0], s->at[1], s->n);
	return 0;
}

static void *no_buffer(void *ctx, size_t size)
{
	return NULL;
}

/* Find the elements in a mapped file, aligned and held by the reply; NULL: they must be copied. */
static const void *find_mapped(struct job *j, unsigned side, const struct stretch *s,
			       struct dcp_reply *r)
{
	uint64_t size = s->item->key[side]->itemsize;
	size_t align = DCP_MIN((size_t)(size & -size), (size_t)8);

	dcp_reply_begin(r, s->n * size, no_buffer, NULL);
	if (dcp_view_answer(j->view[side], s->first * size, s->n * size, r) > 0 && r->n == 1 &&
	    (uintptr_t)r->entry[0].iov_base % align == 0)
		return r->entry[0].iov_base;
	return NULL;
}

/*
 * Unmap pages that were examined, and pages around them that the kernel mapped, so that they do not
 * count as the program's memory; with @more, the page where the next chunk begins stays. Check that
 * files are unchanged.
 */
static int let_go(const struct dcp_reply *r, bool more)
{
	uintptr_t from = (uintptr_t)r->entry[0].iov_base, to = from + r->entry[0].iov_len;
	const struct dcp_file *file;
	int rc = 0;

	for (uint32_t i = 0; i < r->nheld && rc == 0; i++) {
		rc = dcp_files_check(r->held[i].files, r->held[i].number, false);
		if (rc < 0 ||
		    dcp_files_hold(r->held[i].files, r->held[i].number, false, &file, NULL) < 0)
			continue;
		from = DCP_MAX(from & -(uintptr_t)AROUND, (uintptr_t)file->map);
		to = (to + (more ? 0 : AROUND - 1)) & -(uintptr_t)AROUND;
		to = DCP_MIN(to, (uintptr_t)file->map + file->size);
		if (r->nheld == 1 && from < to)
			madvise((void *)from, to - from, MADV_DONTNEED);
		dcp_files_release(r->held[i].files, r->held[i].number);
	}
	return rc;
}

/* 1: the elements were examined; 0: they must be copied; or -errno. */
static int look_at_mapped(struct job *j, struct stretch *s, unsigned *side)
{
	struct dcp_reply reply[2];
	unsigned n = 0;
	int rc = 1;

	while (rc > 0 && n < count_sides(s->item)) {
		s->at[n] = find_mapped(j, n, s, &reply[n]);
		rc = s->at[n++] != NULL;
	}
	if (rc > 0)
		rc = dcp_guard_run(look_at, s) < 0 ? -EIO : 1;
	while (n-- > 0) {
		int checked = rc > 0 ? let_go(&reply[n], s->more && !s->stop) : 0;

		*side = checked < 0 ? n : *side;
		rc = checked < 0 ? checked : rc;
		dcp_reply_finish(&reply[n]);
	}
	return rc;
}

static int look_at_copy(struct job *j, struct stretch *s, unsigned *side)
{
	for (unsigned i = 0; i < count_sides(s->item); i++) {
		uint64_t size = s->item->key[i]->itemsize;
		int rc = dcp_view_read(j->view[i], s->first * size, j->buf[i], s->n * size);

		*side = i;
		if (rc < 0)
			return rc;
		s->at[i] = j->buf[i];
	}
	return look_at(s);
}

static int read_span(struct job *j, size_t number, size_t span, unsigned *side,
		     struct dcp_err *err)
{
	struct team *t = j->t;
	struct walk *w = t->w;
	const struct walk_item *item = &w->items[number];
	struct stretch s = { .w = w,
			     .item = item,
			     .found = t->state[number].found + span * w->found,
			     .first = span * per_span(w, item) };
	uint64_t chunk = per_chunk(item), end = item->key[0]->elements, done, bytes = 0;
	int rc = open_views(j, number, side, err);
	bool mapped = rc == 0 && dcp_guard_enabled();

	if (!w->whole)
		end = DCP_MIN(end, s.first + per_span(w, item));
	for (unsigned i = 0; i < count_sides(item); i++)
		bytes += item->key[i]->itemsize;
	for (; rc == 0 && s.first < end && !s.stop; s.first += s.n) {
		int looked = 0;

		s.n = (size_t)DCP_MIN(mapped ? STRETCH * chunk : chunk, end - s.first);
		s.more = s.n < end - s.first;
		if (mapped)
			looked = look_at_mapped(j, &s, side);
		if (looked == 0) {
			mapped = false;
			s.n = (size_t)DCP_MIN(chunk, s.n);
			looked = look_at_copy(j, &s, side);
		}
		if (looked < 0) {
			uint64_t at = s.first * item->key[*side]->itemsize;

			rc = looked;
			dcp_fail_at(err, rc, at, "reading at byte %llu: %s",
				    (unsigned long long)at,
				    rc == -ESTALE ? "a file of the checkpoint was changed "
						    "meanwhile"
						  : dcp_err_noted(rc));
		}
		done = __atomic_add_fetch(&t->done, s.n * bytes, __ATOMIC_RELAXED);
		if (j->leads)
			t->progress.report.report(t->progress.report.ctx, done, t->total,
						  item->key[0]->key);
		walk_wait_for_rate(t->start_ns, t->w->rate, done);
	}
	return rc;
}

/* Take the next span, whose item is ready. False: none is left. */
static bool take_span(struct team *t, size_t *item, size_t *span)
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

static void *walk_spans(void *ctx)
{
	struct job *j = ctx;
	struct team *t = j->t;
	size_t item, span;

	while (take_span(t, &item, &span)) {
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
		for (unsigned s = 0; s < count_sides(&w->items[i]); s++)
			if (dcp_ckd_add(&total, total, w->items[i].key[s]->nbytes))
				total = UINT64_MAX;
	return total;
}

unsigned walk_count_jobs(unsigned jobs)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned n = jobs ? jobs : (unsigned)DCP_MIN(DCP_MAX(cpus, 1), 8);

	return DCP_MIN(n, (unsigned)WALK_MAX_JOBS);
}

int walk_run(struct walk *w)
{
	struct team t = { .w = w,
			  .total = sum_bytes(w),
			  .start_ns = dcp_now_ns(CLOCK_MONOTONIC) };
	unsigned n = walk_count_jobs(w->jobs);
	struct job *jobs = calloc(n, sizeof(*jobs));
	uint32_t most = CHUNK;
	char *bufs;

	/* An element of an unknown type may be longer than a chunk. */
	for (size_t i = 0; i < w->n; i++)
		for (unsigned s = 0; s < count_sides(&w->items[i]); s++)
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
	dcp_team_run(n, walk_spans, jobs, sizeof(*jobs));
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

/* ---- choice and groups of tensors ---- */

const char *const walk_bys[] = { "key", "layer", "kind", "dtype", NULL };

struct adding {
	struct walk_keys *keys;
	struct dcp_index *ix;
	const struct opt_texts *words;
	bool *seen; /* by word: it names a tensor */
};

static bool is_wanted(struct adding *a, const char *key)
{
	bool wanted = a->words->n == 0;

	for (size_t i = 0; i < a->words->n; i++)
		if (dcp_name_listed(&a->words->v[i], 1, key))
			wanted = a->seen[i] = true;
	return wanted;
}

static int add_key(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	struct adding *a = ctx;
	struct dcp_arena *arena = &a->keys->arena;
	dcp_auto_arena struct dcp_arena scratch = DCP_ARENA_INIT((size_t)1 << 30);
	struct walk_key k = { .id = row->id, .alias_of = row->alias_of, .nbytes = row->nbytes };
	uint64_t *shape;
	struct dcp_tensor t;
	int rc;

	if (kind != DCP_ROW_TENSOR || !is_wanted(a, row->key))
		return 0;
	rc = dcp_index_tensor(a->ix, row->id, &scratch, &t, NULL);
	if (rc < 0)
		return rc;
	shape = dcp_arena_calloc(arena, row->ndim + 1, sizeof(*shape));
	k.key = dcp_arena_strdup(arena, row->key);
	k.dtype = row->dtype;
	k.dtype_name = dcp_arena_strdup(arena, t.dtype_name);
	k.error = t.error ? dcp_arena_strdup(arena, t.error) : NULL;
	if (!shape || !k.key || !k.dtype_name || (t.error && !k.error))
		return -ENOMEM;
	memcpy(shape, row->shape, row->ndim * sizeof(*shape));
	k.shape = shape;
	k.ndim = row->ndim;
	if (!dcp_shape_volume(shape, k.ndim, &k.elements))
		return -EOVERFLOW;
	k.itemsize = t.cast != DCP_DTYPE_OTHER ? dcp_dtype_info(t.cast)->size : t.itemsize;
	dcp_buf_add(&a->keys->all, &k, sizeof(k));
	if (!k.alias_of)
		a->keys->nbytes += k.nbytes;
	return dcp_buf_error(&a->keys->all);
}

static int by_key(const void *a, const void *b)
{
	return strcmp(((const struct walk_key *)a)->key, ((const struct walk_key *)b)->key);
}

enum cmd_exit walk_keys(struct pick *p, const struct opt_texts *words, struct walk_keys *out)
{
	bool seen[OPT_MAX_TEXTS] = { 0 };
	struct adding a = { out, dcp_version_index(p->ck.v), words, seen };
	int rc;

	*out = (struct walk_keys){ .arena = DCP_ARENA_INIT((size_t)1 << 32) };
	rc = dcp_each_row(a.ix, DCP_ROW_TENSOR, add_key, &a);
	if (rc < 0)
		return pick_unreadable(p, rc);
	if (WALK_NKEYS(out))
		qsort(WALK_KEYS(out), WALK_NKEYS(out), sizeof(struct walk_key), by_key);
	for (size_t i = 0; i < words->n; i++)
		if (!seen[i])
			return pick_no_match(p, words->v[i], "tensor");
	return CMD_OK;
}

void walk_keys_finish(struct walk_keys *keys)
{
	dcp_arena_finish(&keys->arena);
	dcp_buf_finish(&keys->all);
}

/* ---- files of a tensor ---- */

struct stored_file {
	uint32_t file;
	uint64_t nbytes;
};

static int by_file(const void *a, const void *b)
{
	uint32_t x = ((const struct stored_file *)a)->file,
		 y = ((const struct stored_file *)b)->file;

	return (x > y) - (x < y);
}

size_t *walk_ties(const struct walk_keys *keys)
{
	const struct walk_key *k = WALK_KEYS(keys);
	size_t n = WALK_NKEYS(keys), *tie = calloc(n + 1, sizeof(*tie)), *by_id;
	uint64_t most = 0;

	for (size_t i = 0; i < n; i++)
		most = DCP_MAX(most, (uint64_t)DCP_MAX(k[i].id, k[i].alias_of));
	by_id = calloc(most + 1, sizeof(*by_id));
	for (size_t i = 0; tie && by_id && i < n; i++)
		if (!k[i].alias_of)
			by_id[k[i].id] = i + 1;
	/* Several keys may be tied to a key outside the list: then the first of them stands for
	 * it. */
	for (size_t i = 0; tie && by_id && i < n; i++)
		if (k[i].alias_of && by_id[k[i].alias_of])
			tie[i] = by_id[k[i].alias_of];
		else if (k[i].alias_of)
			by_id[k[i].alias_of] = i + 1;
	if (!by_id) {
		free(tie);
		tie = NULL;
	}
	free(by_id);
	return tie;
}

int walk_files(const struct pick *p, const struct walk_key *k,
	       int (*fn)(void *ctx, uint32_t file, uint64_t nbytes), void *ctx)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	dcp_auto_buf struct dcp_buf all = DCP_BUF_INIT;
	struct dcp_index *ix = dcp_version_index(p->ck.v);
	size_t nfiles;
	struct dcp_tensor t;
	int rc;

	dcp_index_files(ix, &nfiles);
	rc = dcp_index_tensor(ix, k->id, &arena, &t, NULL);
	for (size_t i = 0; rc == 0 && i < t.npieces; i++) {
		const struct dcp_piece *piece = &t.pieces[i];
		struct stored_file s = { piece->file, piece->nbytes };
		struct stored_file *last =
			all.n ? &DCP_ITEMS(all, struct stored_file)[all.n / sizeof(s) - 1]
			      : NULL;

		if (piece->file >= nfiles || piece->filter == DCP_FILTER_ZERO)
			continue;
		if (last && last->file == s.file)
			last->nbytes += s.nbytes;
		else
			dcp_buf_add(&all, &s, sizeof(s));
	}
	if (rc == 0)
		rc = dcp_buf_error(&all);
	if (all.n)
		qsort(all.p, DCP_NITEMS(all, struct stored_file), sizeof(struct stored_file),
		      by_file);
	for (size_t i = 0, n = DCP_NITEMS(all, struct stored_file); rc == 0 && i < n;) {
		struct stored_file s = DCP_ITEMS(all, struct stored_file)[i];

		while (++i < n && DCP_ITEMS(all, struct stored_file)[i].file == s.file)
			s.nbytes += DCP_ITEMS(all, struct stored_file)[i].nbytes;
		rc = fn(ctx, s.file, s.nbytes);
	}
	return rc;
}

/* ---- groups ---- */

static bool is_number(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!dcp_is_digit(s[i]))
			return false;
	return n > 0;
}

/* Cut a key after the first number, or, without a number, before the last part: "model.layers.3",
 * "model.norm". */
static void put_layer(const char *key, struct dcp_buf *out)
{
	const char *last = strrchr(key, '.');

	for (const char *p = key; *p;) {
		size_t n = strcspn(p, ".");

		if (is_number(p, n)) {
			dcp_buf_add(out, key, (size_t)(p + n - key));
			return;
		}
		p += n + (p[n] == '.');
	}
	dcp_buf_add(out, key, last ? (size_t)(last - key) : strlen(key));
}

/* Replace each number by a star: "model.layers.*.mlp.up_proj.weight". */
static void put_kind(const char *key, struct dcp_buf *out)
{
	for (const char *p = key; *p;) {
		size_t n = strcspn(p, ".");

		if (is_number(p, n))
			dcp_buf_str(out, "*");
		else
			dcp_buf_add(out, p, n);
		if (p[n])
			dcp_buf_str(out, ".");
		p += n + (p[n] == '.');
	}
}

void walk_group(enum walk_by by, const struct walk_key *k, struct dcp_buf *out)
{
	if (by == WALK_BY_LAYER)
		put_layer(k->key, out);
	else if (by == WALK_BY_KIND)
		put_kind(k->key, out);
	else
		dcp_buf_str(out, by == WALK_BY_DTYPE ? k->dtype_name : k->key);
	dcp_buf_add(out, "", 1);
}

const char *walk_place(char *buf, size_t size, const struct walk_key *k, uint64_t i)
{
	return dcp_place_text(buf, size, k->shape, k->ndim, i);
}
