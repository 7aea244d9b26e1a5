/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of tensor streams: one tensor (paddle.save with use_binary_format), or all parameters
 * of a program in the order of their names (.pdiparams). A program that disagrees with a
 * tensor's shape breaks that key; what the program does not name has a number for a key.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "core/base/text.h"
#include "core/format/paddle/plain/plain_int.h"
#include "core/parse/paddle/lodtensor.h"
#include "core/parse/paddle/program.h"

struct emitter {
	const struct dcp_pdpart *part;
	const struct dcp_pdlod *lod;
	uint32_t file;
	struct dcp_err *err;
};

/* @npath is 0 for a value that has no key of its own. */
static int emit_tensor(const struct emitter *w, const char *key, size_t npath,
		       const struct dcp_lodtensor *x, const char *why)
{
	struct dcp_piece p = { .off = x->off, .nbytes = x->nbytes, .file = w->file };
	struct dcp_tensor t = {
		.dtype = x->dtype,
		.dtype_name = x->dtype_name ? x->dtype_name : "",
		.itemsize = x->itemsize,
		.ndim = x->ndim,
		.shape = x->shape,
		.error = why,
	};
	struct dcp_pdkey k;
	int rc = dcp_pdkey_init(&k, w->part, key, &key, npath);

	if (rc < 0)
		return -ENOMEM;
	if (rc == 1) {
		t.key = k.key;
		t.path = k.path;
		t.npath = k.npath;
		if (!why)
			dcp_tensor_one_piece(&t, &p);
		rc = dcp_emit_tensor(w->part->sink, &t);
	}
	dcp_pdkey_finish(&k);
	return rc;
}

/* ---- .pdiparams ---- */

static void put_shape(struct dcp_buf *b, const struct dcp_paddle_var *v)
{
	dcp_buf_str(b, "[");
	for (uint32_t k = 0; k < v->ndim; k++)
		dcp_buf_printf(b, "%s%" PRId64, k ? ", " : "", v->dims[k]);
	dcp_buf_str(b, "]");
}

static bool fits(const struct dcp_paddle_var *v, const struct dcp_lodtensor *x)
{
	if (!v->dims)
		return true;
	if (v->ndim != x->ndim)
		return false;
	for (uint32_t k = 0; k < v->ndim; k++)
		if (v->dims[k] >= 0 && (uint64_t)v->dims[k] != x->shape[k])
			return false;
	return true;
}

static int emit_named(const struct emitter *w, const struct dcp_paddle_var *v,
		      const struct dcp_lodtensor *x)
{
	dcp_auto_buf struct dcp_buf shape = DCP_BUF_INIT;
	struct dcp_err why = { 0 };

	if (fits(v, x))
		return emit_tensor(w, v->name, 1, x, NULL);
	put_shape(&shape, v);
	if (dcp_buf_error(&shape))
		return -ENOMEM;
	dcp_fail_at(
		&why, -EBADMSG, x->off,
		"%.100s says that its shape is %.80s, the tensor in its place in %.100s has "
		"another: they do not belong together",
		w->lod->program_file, shape.p, w->part->file);
	return emit_tensor(w, v->name, 1, x, why.msg);
}

static int emit_numbered(const struct emitter *w, size_t i, const struct dcp_lodtensor *x)
{
	char key[24];

	snprintf(key, sizeof(key), "%zu", i);
	return emit_tensor(w, key, 1, x, NULL);
}

/* Names for which nothing is left in the file. */
static int emit_missing(const struct emitter *w, size_t i, const char *why)
{
	const struct dcp_paddle_program *p = w->lod->program;
	const struct dcp_lodtensor nothing = { 0 };
	int rc = 0;

	for (; rc == 0 && p && i < p->n; i++)
		rc = emit_tensor(w, p->vars[i].name, 1, &nothing, why);
	return rc;
}

/*
 * A damaged stream hides where the next one starts: it and all after it are broken, which only
 * names can show.
 */
static int emit_all(const struct emitter *w, const struct dcp_source *src)
{
	const struct dcp_paddle_program *p = w->lod->program;
	struct dcp_lodtensor x;
	struct dcp_err why = { 0 };
	uint64_t at = 0;
	size_t i = 0;
	int rc = 0;

	for (; rc == 0 && at < src->size; i++) {
		rc = dcp_lodtensor_read(src, at, &x, &why);
		if (rc == -EBADMSG || rc == -ENOTSUP)
			break;
		if (rc < 0)
			return dcp_fail_at(w->err, rc, at, "%s", why.msg);
		at = x.off + x.nbytes;
		rc = p && i < p->n ? emit_named(w, &p->vars[i], &x) : emit_numbered(w, i, &x);
	}
	if (rc < 0 && !why.code)
		return rc;
	if (rc < 0 && (i == 0 || !p || i >= p->n))
		return dcp_fail_at(w->err, rc, why.off, "tensor %zu: %s", i, why.msg);
	if (rc == 0)
		dcp_fail_at(&why, -EBADMSG, at, "%s ends after %zu tensor%s", w->part->file, i,
			    dcp_s(i));
	else
		dcp_err_where(&why, rc, "%s, tensor %zu", w->part->file, i);
	return emit_missing(w, i, why.msg);
}

/* ---- one tensor ---- */

static int emit_selected_rows(const struct emitter *w, const struct dcp_selected_rows *s)
{
	struct dcp_lodtensor rows = {
		.dtype = DCP_DTYPE_I64,
		.dtype_name = "I64",
		.itemsize = 8,
		.ndim = 1,
		.shape = { s->nrows },
		.off = s->rows_off,
		.nbytes = 8 * s->nrows,
	};
	const char *key = "height";
	char text[24];
	struct dcp_object o = { .type = "int", .json = text };
	struct dcp_pdkey k;
	int rc = emit_tensor(w, "value", 1, &s->value, NULL);

	if (rc == 0)
		rc = emit_tensor(w, "rows", 1, &rows, NULL);
	if (rc < 0)
		return rc;
	rc = dcp_pdkey_init(&k, w->part, key, &key, 1);
	if (rc < 0)
		return -ENOMEM;
	if (rc == 1) {
		o.key = k.key;
		o.path = k.path;
		o.npath = k.npath;
		o.json_len = (size_t)snprintf(text, sizeof(text), "%" PRIu64, s->height);
		rc = dcp_emit_object(w->part->sink, &o);
	}
	dcp_pdkey_finish(&k);
	return rc;
}

/* Both forms begin alike: which one it is shows in whether the sizes add up. */
static int emit_one(const struct emitter *w, const struct dcp_source *src)
{
	struct dcp_selected_rows s;
	struct dcp_lodtensor x;
	int rc = dcp_lodtensor_read(src, 0, &x, w->err);
	bool rows;

	if (rc == 0 && x.off + x.nbytes == src->size)
		return emit_tensor(w, "value", 0, &x, NULL);
	rows = dcp_selected_rows_read(src, &s, NULL) == 0 &&
	       s.value.off + s.value.nbytes == src->size;
	if (rows)
		return emit_selected_rows(w, &s);
	if (rc < 0)
		return rc;
	return emit_all(w, src);
}

int dcp_pdlod_emit(const struct dcp_pdpart *part, const struct dcp_pdlod *lod,
		   const struct dcp_source *src, uint32_t number, struct dcp_err *err)
{
	struct emitter w = { part, lod, number, err };

	return lod->params ? emit_all(&w, src) : emit_one(&w, src);
}
