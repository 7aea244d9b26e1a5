/* SPDX-License-Identifier: Apache-2.0 */
/* The regions and objects that this rank gives: checks each, and serializes them for the other
 * ranks. */
#include "tools/save/ranks/ranks_int.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "tools/load/comm/comm.h"
#include "tools/load/memory/memory.h"

uint64_t save_region_bytes(const struct save_region *r)
{
	uint64_t n = r->itemsize;

	for (uint32_t d = 0; d < r->ndim; d++)
		n *= r->len[d];
	return n;
}

/* The number of leading dimensions that are counted; the elements of the other dimensions are
 * consecutive, @run bytes. */
static uint32_t count_dims(const struct save_region *r, uint64_t *run)
{
	uint32_t k = r->ndim;

	*run = r->itemsize;
	while (k && (!r->stride || r->len[k - 1] == 1 ||
		     r->stride[k - 1] * (int64_t)r->itemsize == (int64_t)*run))
		*run *= r->len[--k];
	return k;
}

/* Is the region contiguous and row-major in memory? */
static bool save_region_is_dense(const struct save_region *r)
{
	uint64_t run;

	return count_dims(r, &run) == 0;
}

/* The address of run @q of the innermost counted dimension, the number of runs that follow (at most
 * @n), and the distance of two runs in bytes. */
static const char *row_at(const struct save_region *r, uint32_t k, uint64_t q, uint64_t *n,
			  int64_t *step)
{
	const char *at = r->base;

	*step = r->stride[k - 1] * (int64_t)r->itemsize;
	*n = DCP_MIN(*n, r->len[k - 1] - q % r->len[k - 1]);
	for (uint32_t d = k; d--; q /= r->len[d])
		at += (int64_t)(q % r->len[d]) * r->stride[d] * (int64_t)r->itemsize;
	return at;
}

static char *copy_row(char *to, const char *from, int64_t step, uint64_t run, uint64_t n)
{
	/* Copies elements one by one: because their size is known, the compiler makes no calls in
	 * the loop. */
	for (; run == 2 && n; n--, to += 2, from += step)
		memcpy(to, from, 2);
	for (; run == 4 && n; n--, to += 4, from += step)
		memcpy(to, from, 4);
	for (; n; n--, to += run, from += step)
		memcpy(to, from, run);
	return to;
}

void save_region_take(const struct save_region *r, uint64_t off, void *to, uint64_t n)
{
	uint64_t run, part;
	uint32_t k = count_dims(r, &run);
	char *out = to;

	if (k == 0 && n)
		memcpy(out, r->base + off, n);
	while (k && n) {
		uint64_t runs = n / run;
		int64_t step;
		const char *from;

		part = off % run;
		if (part || !runs) { /* only a part of the run */
			uint64_t some = DCP_MIN(run - part, n);

			runs = 1;
			from = row_at(r, k, off / run, &runs, &step);
			memcpy(out, from + part, some);
			out += some;
			off += some;
			n -= some;
			continue;
		}
		from = row_at(r, k, off / run, &runs, &step);
		out = copy_row(out, from, step, run, runs);
		off += runs * run;
		n -= runs * run;
	}
}

/* Copies regions in memory of a GPU to the host. */

struct save_device {
	struct load_device *d;
	pthread_mutex_t lock; /* one thread at a time may use it */
};

int save_device_open(const char *which, struct save_device **out, struct dcpload_error *err)
{
	struct save_device *v = calloc(1, sizeof(*v));
	char why[160] = "";
	int32_t local;
	int rc;

	if (!v)
		return load_say(err, -ENOMEM);
	pthread_mutex_init(&v->lock, NULL);
	rc = load_job_local_rank(&local, err);
	if (rc == 0)
		rc = load_device_open(which, local < 0 ? 0 : (uint32_t)local, &v->d, why,
				      sizeof(why), err);
	if (rc < 0 || !v->d) {
		save_device_close(v);
		return rc;
	}
	*out = v;
	return 0;
}

void save_device_close(struct save_device *v)
{
	if (!v)
		return;
	load_device_close(v->d);
	pthread_mutex_destroy(&v->lock);
	free(v);
}

/* Is @p in memory of the device? 1, 0, or the error of finding out. @v may be NULL. */
static int save_device_has(struct save_device *v, const void *p, struct dcpload_error *err)
{
	int kind;

	if (!v)
		return 0;
	pthread_mutex_lock(&v->lock);
	kind = v->d->kind->kind_of(v->d, p);
	if (kind < 0)
		load_device_said(v->d, kind, err);
	pthread_mutex_unlock(&v->lock);
	return kind < 0 ? kind : kind == DCPLOAD_MEMORY_DEVICE;
}

/* Any thread. */
static int save_device_take(struct save_device *v, const char *from, char *to, uint64_t n,
			    struct dcp_err *err)
{
	struct dcpload_error said = { 0 };
	int rc;

	pthread_mutex_lock(&v->lock);
	rc = v->d->kind->fetch(v->d, to, from, n);
	if (rc < 0)
		load_device_said(v->d, rc, &said);
	pthread_mutex_unlock(&v->lock);
	return rc < 0 ? dcp_fail(err, rc, "%.400s", said.text) : 0;
}

static const char *copy_text(struct dcpsave *s, const char *text)
{
	return dcp_arena_strdup(&s->arena, text);
}

static void *copy_numbers(struct dcpsave *s, const void *p, uint32_t n)
{
	uint64_t *to = dcp_arena_calloc(&s->arena, n + 1, sizeof(*to));

	if (to && n && p)
		memcpy(to, p, n * sizeof(*to));
	return to;
}

/* If the caller gives no components, the key is the only component. */
static const char *const *copy_path(struct dcpsave *s, const char *key, const char *const *path,
				    size_t *n)
{
	const char **to = dcp_arena_calloc(&s->arena, DCP_MAX(*n, 1), sizeof(*to));

	for (size_t i = 0; to && i < *n; i++)
		if (!(to[i] = copy_text(s, path[i])))
			return NULL;
	if (to && !*n) {
		to[0] = key;
		*n = 1;
	}
	return to;
}

static int check_open(const struct dcpsave *s, struct dcpload_error *err)
{
	return s->state == SAVE_GIVING
		       ? 0
		       : load_fail(err, -EINVAL,
				   "%s: nothing can be added after dcpsave_plan()", s->path);
}

static int check_tensor(const struct dcpsave_tensor *t, enum dcp_dtype dtype,
			struct dcpload_error *err)
{
	uint64_t n = dcp_dtype_info(dtype)->size, held = 1;

	if (!t->key || !t->dtype || (t->ndim && !t->shape) || (t->lo && !t->len))
		return load_fail(err, -EINVAL, "a tensor without key, dtype, shape or region");
	if (dtype == DCP_DTYPE_OTHER)
		return load_fail(err, -EINVAL, "%s: no dtype is called \"%s\"", t->key,
				 t->dtype);
	if (t->ndim > DCPSAVE_MAX_NDIM)
		return load_fail(err, -EINVAL, "%s has %u dimensions, at most %d are allowed",
				 t->key, t->ndim, DCPSAVE_MAX_NDIM);
	for (uint32_t d = 0; d < t->ndim; d++) {
		uint64_t lo = t->lo ? t->lo[d] : 0, len = t->lo ? t->len[d] : t->shape[d];

		if (!dcp_range_ok(lo, len, t->shape[d]))
			return load_fail(
				err, -EINVAL,
				"%s: dimension %u of the region is [%llu, %llu + %llu), "
				"of the tensor %llu",
				t->key, d, (unsigned long long)lo, (unsigned long long)lo,
				(unsigned long long)len, (unsigned long long)t->shape[d]);
		if (dcp_ckd_mul(&n, n, DCP_MAX(t->shape[d], 1)) || n > INT64_MAX)
			return load_fail(err, -EINVAL, "%s has too many elements", t->key);
		held *= len;
	}
	return held && !t->data && !t->read ? load_fail(err, -EINVAL, "%s has no data", t->key)
					    : 0;
}

int dcpsave_add(struct dcpsave *s, const struct dcpsave_tensor *in, struct dcpload_error *err)
{
	const size_t least = offsetof(struct dcpsave_tensor, read);
	struct dcpsave_tensor tensor = { 0 }, *t = &tensor;
	struct save_given g = { 0 };
	int rc = check_open(s, err);

	if (rc == 0 && in->size < least)
		rc = load_fail(err, -EINVAL, "the tensor's size is %u, expected %zu", in->size,
			       sizeof(*in));
	memcpy(t, in, rc == 0 ? DCP_MIN(in->size, sizeof(*t)) : 0);
	if (rc == 0) {
		g.dtype = t->dtype ? dcp_dtype_from_name(t->dtype) : DCP_DTYPE_OTHER;
		rc = check_tensor(t, g.dtype, err);
	}
	if (rc < 0)
		return rc;
	g.key = copy_text(s, t->key);
	g.npath = t->npath;
	g.path = g.key ? copy_path(s, g.key, t->path, &g.npath) : NULL;
	g.shape = copy_numbers(s, t->shape, t->ndim);
	g.lo = copy_numbers(s, t->lo, t->ndim);
	g.region = (struct save_region){
		.base = t->data,
		.itemsize = dcp_dtype_info(g.dtype)->size,
		.ndim = t->ndim,
		.len = copy_numbers(s, t->lo ? t->len : t->shape, t->ndim),
		.stride = t->stride ? copy_numbers(s, t->stride, t->ndim) : NULL,
	};
	g.read = t->data ? NULL : t->read;
	g.ctx = t->ctx;
	if (!g.path || !g.shape || !g.lo || !g.region.len || (t->stride && !g.region.stride))
		return load_say(err, -ENOMEM);
	rc = t->data && save_region_bytes(&g.region) ? save_device_has(s->device, t->data, err)
						     : 0;
	if (rc < 0)
		return rc;
	g.device = rc ? s->device : NULL;
	if (rc && !save_region_is_dense(&g.region))
		return load_fail(err, -EINVAL,
				 "%s is not row-major in the memory of the GPU: make it so",
				 t->key);
	s->report.on_device += rc ? save_region_bytes(&g.region) : 0;
	dcp_buf_add(&s->given, &g, sizeof(g));
	s->report.given += save_region_bytes(&g.region);
	return load_say(err, dcp_buf_error(&s->given));
}

int dcpsave_add_object(struct dcpsave *s, const struct dcpsave_object *o,
		       struct dcpload_error *err)
{
	struct save_given_object g = { .npath = o->npath };
	int rc = check_open(s, err);

	if (rc == 0 &&
	    (o->size < offsetof(struct dcpsave_object, classes) || !o->key || !o->json))
		rc = load_fail(err, -EINVAL, "an object without size, key or JSON");
	if (rc < 0)
		return rc;
	g.key = copy_text(s, o->key);
	g.path = g.key ? copy_path(s, g.key, o->path, &g.npath) : NULL;
	g.type = copy_text(s, o->type ? o->type : "");
	g.json = copy_text(s, o->json);
	g.classes = copy_text(s, o->size >= sizeof(*o) && o->classes ? o->classes : "");
	if (!g.path || !g.type || !g.json || !g.classes)
		return load_say(err, -ENOMEM);
	dcp_buf_add(&s->objects, &g, sizeof(g));
	return load_say(err, dcp_buf_error(&s->objects));
}

int save_given_take(const struct save_given *g, unsigned thread, uint64_t off, void *to,
		    uint64_t n, struct dcp_err *err)
{
	struct dcpload_error said = { 0 };
	int rc = 0;

	if (g->device)
		return save_device_take(g->device, g->region.base + off, to, n, err);
	if (!g->read)
		save_region_take(&g->region, off, to, n);
	else
		rc = g->read(g->ctx, thread, off, to, n, &said);
	return rc < 0 ? dcp_fail(err, rc, "%.400s", said.text[0] ? said.text : strerror(-rc))
		      : 0;
}

/* ---- for the others ---- */

void save_put_text(struct dcp_buf *b, const char *text)
{
	size_t n = strlen(text);

	dcp_buf_varint(b, n);
	dcp_buf_add(b, text, n);
}

static void put_path(struct dcp_buf *b, const char *key, const char *const *path, size_t n)
{
	save_put_text(b, key);
	dcp_buf_varint(b, n);
	for (size_t i = 0; i < n; i++)
		save_put_text(b, path[i]);
}

int save_given_message(const struct dcpsave *s, struct dcp_buf *out)
{
	const struct save_given *g = save_given(s);
	const struct save_given_object *o = DCP_ITEMS(s->objects, struct save_given_object);
	size_t n = DCP_NITEMS(s->objects, struct save_given_object);

	dcp_buf_varint(out, save_ngiven(s));
	for (size_t i = 0; i < save_ngiven(s); i++, g++) {
		put_path(out, g->key, g->path, g->npath);
		dcp_buf_varint(out, g->dtype);
		dcp_buf_varint(out, g->region.ndim);
		for (uint32_t d = 0; d < g->region.ndim; d++) {
			dcp_buf_varint(out, g->shape[d]);
			dcp_buf_varint(out, g->lo[d]);
			dcp_buf_varint(out, g->region.len[d]);
		}
	}
	dcp_buf_varint(out, n);
	for (; n; n--, o++) {
		put_path(out, o->key, o->path, o->npath);
		save_put_text(out, o->type);
	}
	return dcp_buf_error(out);
}
