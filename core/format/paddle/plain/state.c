/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paddle.save: one pickle, in which a tensor is
 *
 *	an array                                         in a dict of nothing but tensors
 *	tuple((name, array))                             inside any other object
 *	eval("data", {"data": array})                    a LoDTensor of older releases
 *	_reconstruct_dense_tensor_data(array)            a LoDTensor of newer releases
 *
 * If a file has pairs, arrays that are not in a pair are numpy's own, and only these may be u2.
 * Every other u2 is bf16, since Paddle has no 16-bit unsigned tensors and numpy has no bf16.
 *
 * Two keys of the outermost dict are Paddle's own. The table of parameter names is left out, as
 * Paddle does. The other table lists arrays that were too long for pickle protocols 2 and 3, and
 * are stored there in parts:
 *
 *	UnpackBigParamInfor@@  {key: {"OriginShape": shape, "slices": [key of a part, ...]}}
 */
#include "core/format/paddle/plain/plain_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/base/intern.h"
#include "core/format/gather/join.h"
#include "core/parse/numpy/numpy.h"
#include "core/parse/pyjson/pyjson.h"

static bool is_pair(const struct dcp_pv *item, size_t n)
{
	return n == 2 && item[0].type == DCP_PV_STR && dcp_ndarray_is(item[1]);
}

/* Are @arg exactly the arguments of eval("data", {"data": array})? */
static bool is_lod(const struct dcp_pv *arg, size_t n, struct dcp_pv *array)
{
	const struct dcp_pv *kv;
	size_t npairs = 0;

	if (n != 2 || !dcp_pv_is_str(arg[0], "data") || arg[1].type != DCP_PV_DICT)
		return false;
	kv = dcp_pv_pairs(arg[1], &npairs);
	if (npairs != 1 || !dcp_pv_is_str(kv[0], "data"))
		return false;
	*array = kv[1];
	return true;
}

/* The array inside @v, and how Paddle wraps it; or @v itself. */
static struct dcp_pv dcp_pdvalue_array(struct dcp_pv v, enum dcp_pdwrap *wrap)
{
	const struct dcp_pv *item;
	struct dcp_pv in = v;
	size_t n = 0;

	*wrap = DCP_PDWRAP_NONE;
	if (v.type == DCP_PV_TUPLE) {
		item = dcp_pv_items(v, &n);
		if (!is_pair(item, n))
			return v;
		*wrap = DCP_PDWRAP_PAIR;
		return item[1];
	}
	if (v.type != DCP_PV_OBJECT || !v.node->obj->called)
		return v;
	item = dcp_pv_items(v.node->obj->args, &n);
	if (dcp_pv_is_object(v, "builtins", "tuple") && n == 1 &&
	    item[0].type == DCP_PV_TUPLE) {
		in = dcp_pdvalue_array(item[0], wrap);
		return *wrap == DCP_PDWRAP_PAIR ? in : v;
	}
	if (dcp_pv_is_object(v, "builtins", "eval") && is_lod(item, n, &in)) {
		*wrap = DCP_PDWRAP_LOD;
		return in;
	}
	if (dcp_pv_is_object(v, "paddle.framework.io_utils",
			     "_reconstruct_dense_tensor_data") &&
	    n == 1) {
		*wrap = DCP_PDWRAP_LOD;
		return item[0];
	}
	return v;
}

/* Is @v an array, bare or wrapped by Paddle? Arrays of strings and objects and numpy's scalars are
 * no tensors: they are shown as objects. */
static bool dcp_pdvalue_is_tensor(struct dcp_pv v)
{
	enum dcp_pdwrap wrap;
	struct dcp_ndarray a;

	v = dcp_pdvalue_array(v, &wrap);
	return dcp_ndarray_is(v) && !dcp_pv_is_object(v, "numpy.core.multiarray", "scalar") &&
	       dcp_ndarray_read(v, &a, NULL) != -ENOTSUP;
}

/* Take the dtype, shape and itemsize of @a; the shape is borrowed. @bf16: u2 means bf16. */
static void dcp_pdvalue_take(struct dcp_tensor *t, const struct dcp_ndarray *a, bool bf16)
{
	t->dtype = bf16 && a->dtype == DCP_DTYPE_U16 ? DCP_DTYPE_BF16 : a->dtype;
	t->dtype_name = dcp_dtype_info(t->dtype)->name;
	t->itemsize = a->itemsize;
	t->ndim = a->ndim;
	t->shape = a->shape;
}

/* Parts in one file, a gigabyte each: a limit, because each is searched among all keys. */
enum { MAX_PARTS = 1024 };

static int take_shape(struct dcp_pdbig *b, struct dcp_pv v)
{
	bool listed = v.type == DCP_PV_TUPLE || v.type == DCP_PV_LIST;

	if (!dcp_pv_dims(v, DCP_MAX_NDIM, b->shape, &b->t.ndim))
		return dcp_fail(&b->why, -EBADMSG, DCP_PDBIG_TABLE " has %s OriginShape for it",
				listed ? "a damaged" : "no");
	b->t.shape = b->shape;
	return 0;
}

/* Add the run of elements that the part @name holds. */
static int take_part(struct dcp_pdbig *b, const char *name, uint64_t *at)
{
	const struct dcp_pv *v = name ? dcp_pv_get(b->root, name) : NULL;
	struct dcp_piece p = {
		.lo = dcp_origin, .len = b->shape, .run_lo = *at, .file = b->file
	};
	struct dcp_tensor one = { 0 };
	struct dcp_ndarray a;
	enum dcp_pdwrap wrap;
	int rc;

	if (!v)
		return dcp_fail(&b->why, -EBADMSG, "its part %.80s is missing",
				name ? name : "without a name");
	rc = dcp_ndarray_read(dcp_pdvalue_array(*v, &wrap), &a, &b->why);
	if (rc != 1)
		return rc < 0 ? rc
			      : dcp_fail(&b->why, -EBADMSG, "its part %.80s is not an array",
					 name);
	dcp_pdvalue_take(&one, &a, wrap != DCP_PDWRAP_NONE || b->bf16);
	if (!b->t.dtype_name) {
		b->t.dtype = one.dtype;
		b->t.dtype_name = one.dtype_name;
		b->t.itemsize = one.itemsize;
	}
	if (one.dtype != b->t.dtype || a.ndim != 1 || !a.row_major)
		return dcp_fail(&b->why, -EBADMSG, "its part %.80s is not one row of %s", name,
				b->t.dtype_name);
	p.run_n = a.shape[0];
	dcp_ndarray_place(&a, &p);
	if (dcp_ckd_add(at, *at, p.run_n))
		return dcp_fail(&b->why, -EBADMSG, "its parts are too long");
	if (p.run_n > 0)
		dcp_buf_add(&b->pieces, &p, sizeof(p));
	return dcp_buf_error(&b->pieces);
}

static int join_big(struct dcp_pdbig *b, struct dcp_pv info)
{
	const struct dcp_pv *slices = dcp_pv_get(info, "slices");
	const struct dcp_pv *shape = dcp_pv_get(info, "OriginShape"), *name;
	uint64_t at = 0, volume;
	size_t n = 0;
	int rc;

	if (!slices || !shape)
		return dcp_fail(&b->why, -EBADMSG,
				DCP_PDBIG_TABLE " does not say how it was cut");
	rc = take_shape(b, *shape);
	name = dcp_pv_items(*slices, &n);
	b->nparts += n;
	if (b->nparts > MAX_PARTS)
		return dcp_fail(&b->why, -E2BIG, DCP_PDBIG_TABLE " names more than %d parts",
				MAX_PARTS);
	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = take_part(b, dcp_pv_str(name[i]), &at);
	if (rc < 0)
		return rc;
	if (!dcp_shape_volume(b->shape, b->t.ndim, &volume) || at != volume)
		return dcp_fail(&b->why, -EBADMSG,
				"its parts have %" PRIu64 " elements, its shape another number",
				at);
	return 0;
}

/* Join the array that @info, a value in UnpackBigParamInfor@@, describes. Returns 0, -ENOMEM, or
 * another error, whose message is in @b->why. */
static int dcp_pdbig_join(struct dcp_pdbig *b, struct dcp_pv info)
{
	int rc;

	b->t = (struct dcp_tensor){ 0 };
	b->why = (struct dcp_err){ 0 };
	dcp_buf_reset(&b->pieces);
	rc = join_big(b, info);
	if (rc == 0) {
		b->t.pieces = DCP_ITEMS(b->pieces, struct dcp_piece);
		b->t.npieces = DCP_NITEMS(b->pieces, struct dcp_piece);
	}
	if (!b->t.dtype_name)
		b->t.dtype_name = "";
	return rc;
}

/* key: puts the label of the file in front of a key that several files have. */

int dcp_plain_key_init(struct dcp_plain_key *k, const struct dcp_plain_part *part,
		       const char *key, const char *const *path, size_t npath)
{
	int how = part->choose ? part->choose(part->ctx, key) : 0;
	size_t n = strlen(key), label = strlen(part->label);

	*k = (struct dcp_plain_key){ .key = key, .path = path, .npath = npath };
	if (how == 0)
		return 1;
	if (how == 2)
		return 0;
	k->text = malloc(label + n + 2);
	k->list = calloc(npath + 1, sizeof(*k->list));
	if (!k->text || !k->list) {
		dcp_plain_key_finish(k);
		return -ENOMEM;
	}
	snprintf(k->text, label + n + 2, "%s.%s", part->label, key);
	k->list[0] = part->label;
	for (size_t i = 0; i < npath; i++)
		k->list[i + 1] = path[i];
	k->key = k->text;
	k->path = k->list;
	k->npath = npath + 1;
	return 1;
}

void dcp_plain_key_finish(struct dcp_plain_key *k)
{
	free(k->text);
	free(k->list);
	k->text = NULL;
	k->list = NULL;
}

#define NAME_TABLE "StructuredToParameterName@@"

enum {
	MEMORY = 512 << 20,
	/* Objects hold texts, too: only longer text is taken for the bytes of an array. */
	FAR_TEXT = 65536,
	MAX_WRITTEN = 64, /* bytes of JSON for each byte of the pickle: parts may be shared */
};

struct emitter {
	const struct dcp_plain_part *part;
	const struct dcp_source *src;
	uint32_t file;
	struct dcp_pystream stream;
	struct dcp_pv root;
	int rc;     /* the result of a callback, which is not one of the walk's own codes */
	bool pairs; /* some tensor is a pair */
	struct dcp_intern parts;  /* keys of parts of big arrays */
	struct dcp_places places; /* of the tensors emitted so far */
	struct dcp_buf scratch;
	uint64_t left; /* bytes of JSON that may still be emitted */
};

static int read_far(const void *ctx, struct dcp_pv v, uint64_t off, void *buf, size_t n)
{
	const struct emitter *w = ctx;

	return dcp_pv_read(w->src, v, off, buf, n);
}

/* ---- emitting one leaf ---- */

static int emit_array(struct emitter *w, const struct dcp_plain_key *k, struct dcp_pv v)
{
	struct dcp_tensor t = { .key = k->key, .path = k->path, .npath = k->npath };
	struct dcp_piece p = { .file = w->file };
	struct dcp_err why = { 0 };
	struct dcp_ndarray a;
	enum dcp_pdwrap wrap;
	int rc;

	v = dcp_pdvalue_array(v, &wrap);
	rc = dcp_ndarray_read(v, &a, &why);
	if (rc != 1) {
		dcp_err_where(&why, rc, "%s", w->part->file);
		t.dtype_name = "";
		t.error = why.msg;
		return dcp_emit_tensor(w->part->sink, &t);
	}
	dcp_pdvalue_take(&t, &a, wrap != DCP_PDWRAP_NONE || !w->pairs);
	dcp_ndarray_place(&a, &p);
	if (dcp_tensor_one_piece(&t, &p) && t.npieces && dcp_places_find(&w->places, &t) < 0)
		return -ENOMEM;
	return dcp_emit_tensor(w->part->sink, &t);
}

static int emit_object(struct emitter *w, const struct dcp_plain_key *k, struct dcp_pv v)
{
	struct dcp_object o = { .key = k->key, .path = k->path, .npath = k->npath };

	if (dcp_pyjson_object(&w->scratch, &w->stream, v, k->path, k->npath, &w->left, &o) < 0)
		return -ENOMEM;
	return dcp_emit_object(w->part->sink, &o);
}

static bool is_own(const struct emitter *w, const struct dcp_leaf *leaf)
{
	const char *first = leaf->npath ? leaf->path[0] : "";

	return dcp_pv_is_mapping(w->root) &&
	       (strcmp(first, NAME_TABLE) == 0 || strcmp(first, DCP_PDBIG_TABLE) == 0 ||
		(leaf->npath == 1 && dcp_intern_has(&w->parts, first)));
}

static int on_leaf(void *ctx, const struct dcp_leaf *leaf)
{
	struct emitter *w = ctx;
	struct dcp_plain_key k;

	if (is_own(w, leaf))
		return 0;
	/* A value without a key gets the name that Paddle's tools give it. */
	w->rc = dcp_plain_key_init(&k, w->part, leaf->npath ? leaf->key : "value", leaf->path,
				   leaf->npath);
	if (w->rc < 0)
		return -ENOMEM;
	if (w->rc == 1)
		w->rc = leaf->is_tensor ? emit_array(w, &k, leaf->value)
					: emit_object(w, &k, leaf->value);
	dcp_plain_key_finish(&k);
	return w->rc;
}

/* End the walk at the first pair. */
static int on_pair(void *ctx, const struct dcp_leaf *leaf)
{
	struct emitter *w = ctx;
	enum dcp_pdwrap wrap = DCP_PDWRAP_NONE;

	if (leaf->is_tensor)
		dcp_pdvalue_array(leaf->value, &wrap);
	w->pairs = wrap == DCP_PDWRAP_PAIR;
	return w->pairs;
}

/* ---- big arrays ---- */

static int emit_big(struct emitter *w, struct dcp_pdbig *b, const char *key, struct dcp_pv info)
{
	struct dcp_plain_key k;
	int rc = dcp_plain_key_init(&k, w->part, key, &key, 1);

	if (rc == 1) {
		rc = dcp_pdbig_join(b, info);
		b->t.key = k.key;
		b->t.path = k.path;
		b->t.npath = k.npath;
		if (rc < 0 && rc != -ENOMEM) {
			dcp_err_where(&b->why, rc, "%s", w->part->file);
			b->t.error = b->why.msg;
		}
		if (rc != -ENOMEM)
			rc = dcp_emit_tensor(w->part->sink, &b->t);
	}
	dcp_plain_key_finish(&k);
	return rc;
}

/* Remember the parts' keys, which are not keys of the checkpoint. */
static int note_parts(struct emitter *w, struct dcp_pv info)
{
	size_t n;
	const struct dcp_pv *name = dcp_pv_items(dcp_pv_at(info, "slices"), &n);

	for (size_t i = 0; i < n; i++) {
		const char *key = dcp_pv_str(name[i]);

		if (key && dcp_intern_str(&w->parts, key, NULL) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int emit_bigs(struct emitter *w)
{
	size_t n;
	const struct dcp_pv *kv = dcp_pv_pairs(dcp_pv_at(w->root, DCP_PDBIG_TABLE), &n);
	struct dcp_pdbig big = { .root = w->root, .file = w->file, .bf16 = !w->pairs };
	int rc = 0;

	for (size_t i = 0; rc == 0 && dcp_pv_is_mapping(w->root) && i < n; i++) {
		const char *key = dcp_pv_str(kv[2 * i]);

		if (!key)
			continue;
		rc = note_parts(w, kv[2 * i + 1]);
		if (rc == 0)
			rc = emit_big(w, &big, key, kv[2 * i + 1]);
	}
	dcp_buf_finish(&big.pieces);
	return rc;
}

/* ---- the file ---- */

/* Emit a broken object for a file that is nested too deep to be walked to its end; earlier leaves
 * were emitted. */
static int emit_too_deep(struct emitter *w)
{
	struct dcp_object o = {
		.key = w->part->label,
		.path = &w->part->label,
		.npath = 1,
		.type = dcp_pyjson_type(w->root),
		.error = "nested too deep to be walked",
	};

	return dcp_emit_object(w->part->sink, &o);
}

static int emit_state(struct emitter *w)
{
	int rc = dcp_pyjson_walk_in(&w->stream, w->root, NULL, 0, true, on_pair, w);

	if (rc != -ENOMEM)
		rc = emit_bigs(w);
	if (rc < 0)
		return rc;
	w->rc = 0;
	rc = dcp_pyjson_walk_in(&w->stream, w->root, NULL, 0, true, on_leaf, w);
	if (rc == 0 || w->rc < 0)
		return rc;
	return rc == -ENOMEM ? -ENOMEM : emit_too_deep(w);
}

int dcp_plain_state_emit(const struct dcp_plain_part *part, const struct dcp_source *src,
			 uint32_t number, struct dcp_err *err)
{
	struct dcp_pickle_opts opts = { .memory = MEMORY,
					.far_bytes = DCP_NDARRAY_FAR_BYTES,
					.far_text = FAR_TEXT };
	struct emitter w = { .part = part,
			     .src = src,
			     .file = number,
			     .left = MAX_WRITTEN *
				     (DCP_MIN(src->size, (uint64_t)1 << 40) + 1) };
	dcp_auto_pickle struct dcp_pickle *pickle = NULL;
	int rc = dcp_pickle_read(src, &opts, &pickle, NULL, err);

	if (rc < 0)
		return rc;
	w.root = dcp_pickle_root(pickle);
	w.stream = (struct dcp_pystream){ .size = src->size,
					  .is_tensor = dcp_pdvalue_is_tensor,
					  .read = read_far,
					  .ctx = &w };
	rc = emit_state(&w);
	dcp_intern_finish(&w.parts);
	dcp_places_finish(&w.places);
	dcp_buf_finish(&w.scratch);
	return rc;
}
