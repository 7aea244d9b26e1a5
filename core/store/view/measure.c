/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/view/measure.h"

#include <errno.h>
#include <inttypes.h>
#include <nettle/base16.h>
#include <nettle/sha2.h>
#include <nettle/version.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/base/system.h"
#include "core/format/format.h"
#include "core/store/index/index.h"
#include "core/store/io/files.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"

/* KEEP_TIMES: if keeping statistics took time t, they are kept again only after KEEP_TIMES * t. */
enum { KEEP_NS = 1000000000, KEEP_TIMES = 20, ALIGN = 64 };

void dcp_measure_add(struct dcp_stats *s, struct dcp_stats_bins *bins, enum dcp_dtype t,
		     uint32_t itemsize, uint64_t first, const void *p, size_t n)
{
	if (dcp_stats_is_opaque(t))
		dcp_stats_add(s, NULL, DCP_DTYPE_U8, first * itemsize, p, n * itemsize);
	else
		dcp_stats_add(s, bins, t, first * dcp_stats_values(t), p, n);
}

/* Does all of the piece lie in a hole of its file, that is, where nothing was ever written? */
static bool is_hole(const struct dcp_view *view, const struct dcp_piece *piece)
{
	const struct dcp_file *file;
	bool hole = false;
	off_t at;

	if (piece->filter != DCP_FILTER_NONE || piece->enc != DCP_ENC_PLAIN ||
	    dcp_files_hold(dcp_view_files(view), piece->file, true, &file, NULL) < 0)
		return false;
	if (file->fd >= 0) {
		at = lseek(file->fd, (off_t)piece->off, SEEK_DATA);
		hole = at < 0 ? errno == ENXIO : (uint64_t)at >= piece->off + piece->nbytes;
	}
	dcp_files_release(dcp_view_files(view), piece->file);
	return hole;
}

/* Only the middle of the tensor must be a hole: its first and last block may hold other data. */
bool dcp_measure_is_unwritten(struct dcp_version *v, int64_t id, const struct dcp_stats *s)
{
	dcp_auto_view struct dcp_view *view = NULL;
	const struct dcp_tensor *t;
	struct dcp_err err;
	bool hole;

	if (s->n == 0 || s->zeros != s->n || !dcp_stats_is_constant(s) ||
	    dcp_view_open(v, id, DCP_AS_RAW, NULL, &view, &err) < 0)
		return false;
	t = dcp_view_tensor(view);
	hole = t->npieces > 0;
	for (size_t i = 0; i < t->npieces && hole; i++) {
		struct dcp_piece p = t->pieces[i];
		uint64_t block = 4096, rest = p.nbytes > 3 * block ? block : 0;

		p.off += rest;
		p.nbytes -= 2 * rest;
		hole = is_hole(view, &p);
	}
	return hole;
}

int dcp_measure(struct dcp_version *v, int64_t id, struct dcp_stats_bins *bins,
		const struct dcp_measure_stop *stop, struct dcp_measured *out,
		struct dcp_err *err)
{
	dcp_auto_view struct dcp_view *view = NULL;
	dcp_auto_free void *buf = NULL;
	int rc = dcp_view_open(v, id, DCP_AS_RAW, NULL, &view, err);
	const struct dcp_tensor *t = rc == 0 ? dcp_view_tensor(view) : NULL;
	uint32_t size = t ? DCP_MAX(dcp_tensor_shown_size(t), 1u) : 1;
	uint64_t chunk = dcp_measure_chunk(size), span = DCP_MEASURE_SPAN * chunk, n = 0, last;
	struct dcp_stats s;

	*out = (struct dcp_measured){ .head.done = 1 };
	if (rc == 0 && !dcp_shape_volume(t->shape, t->ndim, &n))
		rc = -EOVERFLOW;
	if (rc == 0)
		buf = aligned_alloc(ALIGN, (chunk * size + ALIGN - 1) / ALIGN * ALIGN);
	if (rc == 0 && !buf)
		rc = -ENOMEM;
	dcp_stats_init(&out->s);
	dcp_stats_init(&s);
	for (uint64_t first = 0; first < n && rc == 0; first += last) {
		last = DCP_MIN(chunk, n - first);
		if (stop && stop->asked(stop->ctx, first, n))
			return dcp_fail(err, -EINTR, "reading it was given up");
		rc = dcp_view_read(view, first * size, buf, last * size);
		if (rc < 0)
			return dcp_fail(err, rc, "reading at byte %llu: %s",
					(unsigned long long)(first * size), dcp_err_noted(rc));
		dcp_measure_add(&s, bins, dcp_tensor_shown(t), size, first, buf, last);
		if ((first + last) % span == 0 || first + last == n) {
			dcp_stats_join(&out->s, &s);
			dcp_stats_init(&s);
		}
	}
	return rc;
}

/* ---- of a version ---- */

struct dcp_measures {
	struct dcp_version *v;
	pthread_mutex_t lock;
	struct dcp_buf all; /* struct dcp_measured */
	bool dirty;         /* some statistics are not kept yet */
	int64_t keep_ns;    /* earliest time of the next keeping */
};

int dcp_measures_open(struct dcp_version *v, struct dcp_measures **out)
{
	struct dcp_measures *m = calloc(1, sizeof(*m));
	int rc = m ? dcp_kept_records(v, DCP_MEASURED, sizeof(struct dcp_measured), &m->all)
		   : -ENOMEM;

	if (rc < 0) {
		free(m);
		return rc;
	}
	m->v = v;
	pthread_mutex_init(&m->lock, NULL);
	*out = m;
	return 0;
}

static void keep_measures(struct dcp_measures *m)
{
	int64_t began = dcp_now_ns(CLOCK_MONOTONIC), now;

	if (m->dirty)
		dcp_kept_share(m->v, DCP_MEASURED, sizeof(struct dcp_measured), &m->all);
	m->dirty = false;
	now = dcp_now_ns(CLOCK_MONOTONIC);
	m->keep_ns = now + DCP_MAX((int64_t)KEEP_NS, KEEP_TIMES * (now - began));
}

void dcp_measures_close(struct dcp_measures *m)
{
	if (!m)
		return;
	keep_measures(m);
	pthread_mutex_destroy(&m->lock);
	dcp_buf_finish(&m->all);
	free(m);
}

static const struct dcp_measured *find_measured(const struct dcp_measures *m,
						const struct dcp_row *row)
{
	return dcp_kept_at(&m->all, sizeof(struct dcp_measured), row->id, row->key);
}

bool dcp_measures_know(struct dcp_measures *m, const struct dcp_row *row,
		       struct dcp_measured *out)
{
	const struct dcp_measured *known;

	pthread_mutex_lock(&m->lock);
	known = find_measured(m, row);
	if (known)
		*out = *known;
	pthread_mutex_unlock(&m->lock);
	return known;
}

/* A tied tensor has the same bytes as the tensor that it is tied to, so that one is measured. */
static int measure_tied(struct dcp_measures *m, const struct dcp_row *row,
			struct dcp_stats_bins *bins, const struct dcp_measure_stop *stop,
			struct dcp_measured *out, struct dcp_err *err)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(1 << 20);
	struct dcp_row of;
	int rc = dcp_index_by_id(dcp_version_index(m->v), DCP_ROW_TENSOR, row->alias_of, &arena,
				 &of);

	return rc == 0 ? dcp_measures_get(m, &of, bins, stop, out, err) : rc;
}

int dcp_measures_get(struct dcp_measures *m, const struct dcp_row *row,
		     struct dcp_stats_bins *bins, const struct dcp_measure_stop *stop,
		     struct dcp_measured *out, struct dcp_err *err)
{
	int rc;

	if (!bins && dcp_measures_know(m, row, out))
		return 0;
	if (row->alias_of && row->alias_of < row->id) {
		rc = measure_tied(m, row, bins, stop, out, err);
	} else {
		rc = dcp_measure(m->v, row->id, bins, stop, out, err);
		if (rc == 0)
			out->unwritten = dcp_measure_is_unwritten(m->v, row->id, &out->s);
	}
	if (rc < 0)
		return dcp_err_say(err, rc);
	pthread_mutex_lock(&m->lock);
	if (dcp_kept_put(&m->all, sizeof(*out), row->id, row->key, out) == 0)
		m->dirty = true;
	if (dcp_now_ns(CLOCK_MONOTONIC) >= m->keep_ns)
		keep_measures(m);
	pthread_mutex_unlock(&m->lock);
	return 0;
}

/* ---- digest ---- */

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

enum { CHUNK = 1 << 20 };

/* Exactly one of the two is in use. */
struct dcp_digesting {
	struct dcp_hash128 *xxh3; /* NULL: it is sha */
	struct sha256_ctx sha;
};

void dcp_digest_add(struct dcp_digesting *h, const void *p, size_t n)
{
	if (h->xxh3)
		dcp_hash128_add(h->xxh3, p, n);
	else
		sha256_update(&h->sha, n, p);
}

static void add_u64(struct dcp_digesting *h, uint64_t v)
{
	uint8_t bytes[8];

	dcp_store_le64(bytes, v);
	dcp_digest_add(h, bytes, sizeof(bytes));
}

struct dcp_digesting *dcp_digest_begin(enum dcp_digest_kind kind, const char *dtype_name,
				       uint32_t ndim, const uint64_t *shape)
{
	struct dcp_digesting *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	sha256_init(&h->sha);
	if (kind == DCP_DIGEST_XXH3 && !(h->xxh3 = dcp_hash128_new())) {
		free(h);
		return NULL;
	}
	dcp_digest_add(h, dtype_name, strlen(dtype_name) + 1);
	add_u64(h, ndim);
	for (uint32_t d = 0; d < ndim; d++)
		add_u64(h, shape[d]);
	return h;
}

static void write_text(struct dcp_digesting *h, char text[DCP_DIGEST_TEXT])
{
	uint8_t bytes[SHA256_DIGEST_SIZE];
	uint64_t value[2];

	if (h->xxh3) {
		dcp_hash128_end(h->xxh3, value);
		snprintf(text, DCP_DIGEST_TEXT, "%016" PRIx64 "%016" PRIx64, value[0],
			 value[1]);
		return;
	}
	sha256_digest(&h->sha, sizeof(bytes), bytes);
	base16_encode_update(text, sizeof(bytes), bytes);
	text[2 * sizeof(bytes)] = '\0';
}

void dcp_digest_end(struct dcp_digesting *h, char text[DCP_DIGEST_TEXT])
{
	write_text(h, text);
	free(h);
}

int dcp_digest(const struct dcp_view *view, enum dcp_digest_kind kind,
	       const struct dcp_progress *progress, char text[DCP_DIGEST_TEXT],
	       struct dcp_err *err)
{
	dcp_auto_free void *chunk = malloc(CHUNK);
	const struct dcp_tensor *t = dcp_view_tensor(view);
	uint64_t size = dcp_view_size(view);
	struct dcp_digesting *h = dcp_digest_begin(kind, t->dtype_name, t->ndim, t->shape);
	int rc = chunk && h ? 0 : -ENOMEM;

	for (uint64_t at = 0; rc == 0 && at < size;) {
		size_t n = (size_t)DCP_MIN(size - at, (uint64_t)CHUNK);

		rc = dcp_view_read(view, at, chunk, n);
		if (rc == 0)
			dcp_digest_add(h, chunk, n);
		else
			dcp_fail_at(err, rc, at, "reading at byte %" PRIu64 ": %s", at,
				    dcp_err_noted(rc));
		at += n;
		if (progress)
			progress->report(progress->ctx, at, size, dcp_view_tensor(view)->key);
	}
	if (h)
		dcp_digest_end(h, text);
	return rc;
}

const char *dcp_digest_nettle_version(void)
{
	return TEXT(NETTLE_VERSION_MAJOR) "." TEXT(NETTLE_VERSION_MINOR);
}
