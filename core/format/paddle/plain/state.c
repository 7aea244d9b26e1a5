/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paddle.save: one pickle, in which a tensor is
 *
 *	an array                                         a dict of nothing but tensors
 *	tuple((name, array))                             a tensor inside any other object
 *	eval("data", {"data": array})                    LoDTensor, older releases
 *	_reconstruct_dense_tensor_data(array)            the same, newer ones
 *
 * Where pairs occur, arrays alone are numpy's: only those may be u2; every other u2 is bf16,
 * for Paddle has no 16-bit unsigned tensors and numpy no bf16.
 *
 * Two keys of the outermost dict are Paddle's own: the table of parameter names, which is left
 * out as Paddle leaves it out, and that of arrays which were too long for pickle protocols 2
 * and 3 and lie there in parts:
 *
 *	UnpackBigParamInfor@@  {key: {"OriginShape": shape, "slices": [key of a part, ...]}}
 */
#include <errno.h>
#include <string.h>

#include "core/base/intern.h"
#include "core/format/gather/places.h"
#include "core/format/paddle/plain/plain_int.h"
#include "core/parse/numpy/ndpickle.h"
#include "core/parse/pyjson/pyjson.h"

#define NAME_TABLE "StructuredToParameterName@@"

enum {
	MEMORY = 512 << 20,
	/* Objects hold texts, too: only longer ones can be nothing but the bytes of an array.
	 */
	FAR_TEXT = 65536,
	MAX_WRITTEN = 64, /* bytes of JSON for each byte of the pickle: parts may be shared */
};

struct emitter {
	const struct dcp_pdpart *part;
	const struct dcp_source *src;
	uint32_t file;
	struct dcp_pystream stream;
	struct dcp_pv root;
	int rc;     /* what a callback returned, kept apart from the walk's own codes */
	bool pairs; /* some tensor is a pair */
	struct dcp_intern parts;  /* keys of parts of big arrays */
	struct dcp_places places; /* of what was emitted so far */
	struct dcp_buf scratch;
	uint64_t left; /* bytes of JSON that may still be emitted */
};

static int read_far(const void *ctx, struct dcp_pv v, uint64_t off, void *buf, size_t n)
{
	const struct emitter *w = ctx;

	return dcp_pv_read(w->src, v, off, buf, n);
}

/* ---- emitting one ---- */

static int emit_array(struct emitter *w, const struct dcp_pdkey *k, struct dcp_pv v)
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

static int emit_object(struct emitter *w, const struct dcp_pdkey *k, struct dcp_pv v)
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
	struct dcp_pdkey k;

	if (is_own(w, leaf))
		return 0;
	/* What has no key is called as Paddle's tools do. */
	w->rc = dcp_pdkey_init(&k, w->part, leaf->npath ? leaf->key : "value", leaf->path,
			       leaf->npath);
	if (w->rc < 0)
		return -ENOMEM;
	if (w->rc == 1)
		w->rc = leaf->is_tensor ? emit_array(w, &k, leaf->value)
					: emit_object(w, &k, leaf->value);
	dcp_pdkey_finish(&k);
	return w->rc;
}

/* Ends the walk at the first one. */
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
	struct dcp_pdkey k;
	int rc = dcp_pdkey_init(&k, w->part, key, &key, 1);

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
	dcp_pdkey_finish(&k);
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

/* Of what is nested too deep to be walked the leaves up to there were emitted, and this. */
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

static int emit(struct emitter *w)
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

int dcp_pdstate_emit(const struct dcp_pdpart *part, const struct dcp_source *src,
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
	rc = emit(&w);
	dcp_intern_finish(&w.parts);
	dcp_places_finish(&w.places);
	dcp_buf_finish(&w.scratch);
	return rc;
}
