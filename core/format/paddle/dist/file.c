/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The unpickler hands over the pairs of the outermost dict in batches. So memory holds the
 * descriptions of all arrays, but never the values of all arrays at once.
 *
 * Source: paddle/framework/io.py (_build_saved_state_dict), io_utils.py (_unpack_saved_dict).
 */
#include "core/format/paddle/dist/dist_int.h"

#include <errno.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/origin/origin.h"
#include "core/parse/numpy/numpy.h"
#include "core/parse/pyjson/pyjson.h"
#include "core/parse/safetensors/safetensors.h"

#define MEMORY ((size_t)1 << 30) /* all arrays of one file; 100,000 take some 20 MB */

/* A key whose array lies in the file as slices. */
struct cut {
	const char *key;
	const uint64_t *shape;
	const char *const *slice;
	size_t nslices;
	uint32_t ndim;
};

static struct dcp_paddle_array *array_at(const struct dcp_paddle_file *f, uint32_t i)
{
	return DCP_ITEMS(f->arrays, struct dcp_paddle_array) + i;
}

const struct dcp_paddle_array *dcp_paddle_file_find(const struct dcp_paddle_file *f,
						    const char *key, size_t n)
{
	uint32_t i = dcp_intern_find(&f->names, key, n);

	return i == DCP_INTERN_NONE ? NULL : array_at(f, i);
}

/* Add the array @a; of equal keys the last one counts, as in a dict. */
static int put_array(struct dcp_paddle_file *f, const char *key, size_t n,
		     const struct dcp_paddle_array *a)
{
	uint32_t i;
	int rc = dcp_intern_add(&f->names, key, n, DCP_INTERN_NONE, &i);

	if (rc < 0)
		return -ENOMEM;
	if (rc == 0)
		*array_at(f, i) = *a;
	else
		dcp_buf_add(&f->arrays, a, sizeof(*a));
	return dcp_buf_error(&f->arrays);
}

static const uint64_t *copy_dims(struct dcp_paddle_file *f, const uint64_t *dims, uint32_t ndim)
{
	return dcp_arena_dup(&f->arena, dims, ndim, sizeof(*dims));
}

/* ---- pickles ---- */

/* The array in @v, or @v itself. Eager tensors inside other objects are pickled as calls of tuple
 * with ((name, array),). */
static struct dcp_pv unwrap_array(struct dcp_pv v)
{
	const struct dcp_pv *item;
	size_t n = 0;

	if (dcp_pv_is_object(v, "builtins", "tuple") && v.node->obj->called) {
		item = dcp_pv_items(v.node->obj->args, &n);
		if (n == 1)
			v = item[0];
	}
	if (v.type == DCP_PV_TUPLE) {
		item = dcp_pv_items(v, &n);
		if (n == 2 && item[0].type == DCP_PV_STR && dcp_ndarray_is(item[1]))
			return item[1];
	}
	return v;
}

static int take_array(struct dcp_paddle_file *f, struct dcp_pv v, struct dcp_paddle_array *a)
{
	struct dcp_err why = { 0 };
	struct dcp_paddle_part *part;
	struct dcp_ndarray nd;

	*a = (struct dcp_paddle_array){ .dtype_name = "" };
	if (dcp_ndarray_read(v, &nd, &why) < 0) {
		a->error = dcp_arena_strdup(&f->arena, why.msg);
		return a->error ? 0 : -ENOMEM;
	}
	part = dcp_arena_calloc(&f->arena, 1, sizeof(*part));
	a->shape = copy_dims(f, nd.shape, nd.ndim);
	a->stride = nd.row_major ? NULL : copy_dims(f, nd.stride, nd.ndim);
	if (!part || !a->shape || (!nd.row_major && !a->stride))
		return -ENOMEM;
	*part = (struct dcp_paddle_part){ nd.off, nd.nbytes, 0, (uint8_t)nd.filter, nd.swap };
	dcp_shape_volume(nd.shape, nd.ndim, &part->n); /* fits: the array was checked */
	a->dtype = nd.dtype;
	a->dtype_name = dcp_dtype_info(nd.dtype)->name;
	a->itemsize = nd.itemsize;
	a->ndim = nd.ndim;
	a->part = part;
	a->nparts = 1;
	return 0;
}

static const char *copy_str(struct dcp_paddle_file *f, struct dcp_pv v)
{
	return v.type == DCP_PV_STR ? dcp_arena_strndup(&f->arena, v.node->data, v.node->n)
				    : NULL;
}

/* Read {"OriginShape": (..), "slices": [names]}; -EBADMSG for other values. */
static int take_cut(struct dcp_paddle_file *f, struct dcp_pv key, struct dcp_pv v)
{
	struct cut c = { .key = copy_str(f, key) };
	const struct dcp_pv *name = dcp_pv_items(dcp_pv_at(v, "slices"), &c.nslices);
	uint64_t dims[DCP_MAX_NDIM];
	const char **slice;

	if (!c.key || !c.nslices ||
	    !dcp_pv_dims(dcp_pv_at(v, "OriginShape"), DCP_MAX_NDIM, dims, &c.ndim))
		return -EBADMSG;
	c.shape = copy_dims(f, dims, c.ndim);
	c.slice = slice = dcp_arena_calloc(&f->arena, c.nslices, sizeof(*slice));
	if (!c.shape || !slice)
		return -ENOMEM;
	for (size_t i = 0; i < c.nslices; i++) {
		slice[i] = copy_str(f, name[i]);
		if (!slice[i])
			return -EBADMSG;
	}
	return dcp_buf_add(&f->cuts, &c, sizeof(c));
}

static int take_cuts(struct dcp_paddle_file *f, struct dcp_pv v, struct dcp_err *err)
{
	size_t n = 0;
	const struct dcp_pv *kv = dcp_pv_pairs(v, &n);
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++)
		rc = take_cut(f, kv[2 * i], kv[2 * i + 1]);
	if (rc == -EBADMSG)
		return dcp_fail(err, rc,
				"UnpackBigParamInfor@@ does not say how its arrays were cut");
	return rc < 0 ? -ENOMEM : 0;
}

static int add_pair(struct dcp_paddle_file *f, struct dcp_pv key, struct dcp_pv v,
		    struct dcp_err *err)
{
	struct dcp_paddle_array a;
	int rc;

	if (key.type != DCP_PV_STR)
		return dcp_fail(err, -EBADMSG, "a key is %s, expected str",
				dcp_pyjson_type(key));
	if (dcp_pv_is_str(key, "StructuredToParameterName@@"))
		return 0;
	if (dcp_pv_is_str(key, "UnpackBigParamInfor@@"))
		return take_cuts(f, v, err);
	v = unwrap_array(v);
	if (!dcp_ndarray_is(v))
		return f->other ? f->other(f->ctx, key.node->data, v) : 0;
	rc = take_array(f, v, &a);
	return rc < 0 ? rc : put_array(f, key.node->data, key.node->n, &a);
}

static int on_pairs(void *ctx, struct dcp_pv where, size_t depth, const struct dcp_pv *kv,
		    size_t npairs, struct dcp_err *err)
{
	struct dcp_paddle_file *f = ctx;

	if (dcp_pv_is_str(where, "StructuredToParameterName@@"))
		return 1;
	if (depth > 0)
		return 0;
	for (size_t i = 0; i < npairs; i++) {
		int rc = add_pair(f, kv[2 * i], kv[2 * i + 1], err);

		if (rc < 0)
			return rc;
	}
	return 1;
}

/* Join the slices of @c to the array @a. Returns NULL, or why the slices do not fit together. */
static const char *join_slices(struct dcp_paddle_file *f, const struct cut *c,
			       struct dcp_paddle_array *a)
{
	struct dcp_paddle_part *part = dcp_arena_calloc(&f->arena, c->nslices, sizeof(*part));
	uint64_t volume, sum = 0;

	if (!part)
		return "out of memory";
	for (size_t i = 0; i < c->nslices; i++) {
		uint32_t at = dcp_intern_find(&f->names, c->slice[i], strlen(c->slice[i]));
		struct dcp_paddle_array *s = at == DCP_INTERN_NONE ? NULL : array_at(f, at);

		if (!s)
			return "one of the slices it was cut into is missing";
		s->slice = true;
		if (s->error)
			return s->error;
		if (s->ndim != 1 || s->stride || s->nparts != 1)
			return "one of its slices is not a vector";
		if (i && s->dtype != a->dtype)
			return "its slices are of different dtypes";
		if (!i)
			*a = *s;
		part[i] = s->part[0];
		if (dcp_ckd_add(&sum, sum, part[i].n))
			return "its slices have more elements than fit in 64 bits";
	}
	if (!dcp_shape_volume(c->shape, c->ndim, &volume) || volume != sum)
		return "its slices and its shape differ in number of elements";
	a->slice = false;
	a->ndim = c->ndim;
	a->shape = c->shape;
	a->part = part;
	a->nparts = c->nslices;
	return NULL;
}

static int join_all(struct dcp_paddle_file *f)
{
	size_t n = DCP_NITEMS(f->cuts, struct cut);
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++) {
		const struct cut *c = DCP_ITEMS(f->cuts, struct cut) + i;
		struct dcp_paddle_array a = { .dtype_name = "" };

		a.error = join_slices(f, c, &a);
		rc = put_array(f, c->key, strlen(c->key), &a);
	}
	return rc;
}

static int read_pickle(struct dcp_paddle_file *f, const struct dcp_source *src,
		       struct dcp_err *err)
{
	const struct dcp_pickle_hook hook = { on_pairs, f };
	const struct dcp_pickle_opts opts = { .hook = &hook,
					      .far_bytes = DCP_NDARRAY_FAR_BYTES,
					      .far_text = DCP_NDARRAY_FAR_TEXT };
	dcp_auto_pickle struct dcp_pickle *pickle = NULL;
	const struct dcp_pv *kv;
	struct dcp_pv root;
	size_t n = 0;
	int rc = dcp_pickle_read(src, &opts, &pickle, NULL, err);

	if (rc < 0)
		return rc;
	root = dcp_pickle_root(pickle);
	if (!dcp_pv_is_mapping(root))
		rc = dcp_fail_at(err, -EBADMSG, 0,
				 "the pickle holds %s, expected a dict of arrays",
				 dcp_pyjson_type(root));
	kv = dcp_pv_pairs(root, &n);
	for (size_t i = 0; i < n && rc == 0; i++) /* only an OrderedDict still has pairs */
		rc = add_pair(f, kv[2 * i], kv[2 * i + 1], err);
	return rc < 0 ? rc : join_all(f);
}

/* ---- safetensors ---- */

static int read_safetensors(struct dcp_paddle_file *f, const struct dcp_source *src,
			    struct dcp_err *err)
{
	int rc = dcp_safetensors_read(src, &f->arena, &f->header, err);

	for (size_t i = 0; rc == 0 && i < f->header.n; i++) {
		const struct dcp_safetensors_entry *e = &f->header.entries[i];
		struct dcp_paddle_part *part = dcp_arena_calloc(&f->arena, 1, sizeof(*part));
		struct dcp_paddle_array a = {
			.dtype = e->dtype,
			.dtype_name = e->dtype == DCP_DTYPE_OTHER
					      ? e->dtype_name
					      : dcp_dtype_info(e->dtype)->name,
			.itemsize = e->itemsize,
			.ndim = e->ndim,
			.shape = e->shape,
			.part = part,
			.nparts = 1,
		};

		if (!part)
			return -ENOMEM;
		part->off = e->off;
		part->nbytes = e->nbytes;
		dcp_shape_volume(e->shape, e->ndim, &part->n);
		rc = put_array(f, e->name, strlen(e->name), &a);
	}
	return rc;
}

/* Does the file start with the length of a header and its brace? No pickle in a file of this size
 * starts like this. */
static bool is_safetensors(const struct dcp_source *src)
{
	uint8_t head[9];

	return src->size >= sizeof(head) && dcp_source_read(src, 0, head, sizeof(head)) == 0 &&
	       head[8] == '{' && dcp_load_le64(head) <= src->size - 8;
}

int dcp_paddle_file_read(struct dcp_paddle_file *f, const struct dcp_source *src,
			 struct dcp_err *err)
{
	dcp_arena_init(&f->arena, MEMORY);
	return is_safetensors(src) ? read_safetensors(f, src, err) : read_pickle(f, src, err);
}

void dcp_paddle_file_finish(struct dcp_paddle_file *f)
{
	dcp_intern_finish(&f->names);
	dcp_buf_finish(&f->arrays);
	dcp_buf_finish(&f->cuts);
	dcp_arena_finish(&f->arena);
}
