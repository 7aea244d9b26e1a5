/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/tensor.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/sort.h"

const char *dcp_filter_name(uint8_t filter)
{
	static const char *const names[] = {
		[DCP_FILTER_NONE] = "",          [DCP_FILTER_ZSTD] = "zstd",
		[DCP_FILTER_LATIN1] = "latin1",  [DCP_FILTER_NEG] = "negate",
		[DCP_FILTER_CONJ] = "conjugate", [DCP_FILTER_DEFLATE] = "deflate",
		[DCP_FILTER_ZERO] = "zeros",     [DCP_FILTER_SUM] = "sum",
	};

	return filter < DCP_LEN(names) ? names[filter] : "";
}

bool dcp_filter_encodes(uint8_t filter)
{
	return filter == DCP_FILTER_ZSTD || filter == DCP_FILTER_DEFLATE ||
	       filter == DCP_FILTER_LATIN1 || filter == DCP_FILTER_SUM;
}

void dcp_stretch_tensor(const struct dcp_stretch *s, uint64_t *dims, struct dcp_piece *p,
			struct dcp_tensor *out)
{
	dims[0] = 0;
	dims[1] = s->n;
	*p = (struct dcp_piece){ .lo = &dims[0],
				 .len = &dims[1],
				 .run_n = s->n,
				 .off = s->off,
				 .nbytes = s->nbytes,
				 .file = s->file,
				 .filter = s->filter };
	*out = (struct dcp_tensor){ .dtype = DCP_DTYPE_U8,
				    .dtype_name = "U8",
				    .itemsize = 1,
				    .ndim = 1,
				    .shape = &dims[1],
				    .pieces = p,
				    .npieces = s->n ? 1 : 0 };
}

bool dcp_shape_volume(const uint64_t *shape, uint32_t ndim, uint64_t *out)
{
	uint64_t volume = 1;

	/* A zero anywhere wins, even after dimensions whose product does not fit. */
	for (uint32_t i = 0; i < ndim; i++) {
		if (shape[i] == 0) {
			*out = 0;
			return true;
		}
	}
	for (uint32_t i = 0; i < ndim; i++)
		if (dcp_ckd_mul(&volume, volume, shape[i]))
			return false;
	*out = volume;
	return true;
}

int dcp_dims_compare(const uint64_t *a, const uint64_t *b, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++)
		if (a[k] != b[k])
			return a[k] < b[k] ? -1 : 1;
	return 0;
}

int dcp_piece_compare(const struct dcp_piece *a, const struct dcp_piece *b, uint32_t ndim)
{
	return dcp_dims_compare(a->lo, b->lo, ndim) ?: dcp_dims_compare(a->len, b->len, ndim) ?:
	       DCP_CMP(a->run_lo, b->run_lo) ?: DCP_CMP(a->run_n, b->run_n);
}

const char *dcp_dims_text(char *buf, size_t size, const uint64_t *dims, uint32_t ndim)
{
	size_t n = (size_t)snprintf(buf, size, "[");
	uint32_t d = 0;

	for (; d < ndim && n + 28 <= size; d++)
		n += (size_t)snprintf(buf + n, size - n, "%s%" PRIu64, d ? ", " : "", dims[d]);
	snprintf(buf + n, size - n, d < ndim ? ", ...]" : "]");
	return buf;
}

const char *dcp_place_text(char *buf, size_t size, const uint64_t *shape, uint32_t ndim,
			   uint64_t i)
{
	uint64_t at[DCP_MAX_NDIM];

	for (uint32_t d = ndim; d-- > 0;) {
		at[d] = shape[d] ? i % shape[d] : 0;
		i = shape[d] ? i / shape[d] : 0;
	}
	return dcp_dims_text(buf, size, at, ndim);
}

const char *dcp_box_text(char *buf, size_t size, const uint64_t *lo, const uint64_t *len,
			 uint32_t ndim)
{
	size_t n = (size_t)snprintf(buf, size, "[");

	for (uint32_t d = 0; d < ndim && n + 48 < size; d++)
		n += (size_t)snprintf(buf + n, size - n, "%s%" PRIu64 ":%" PRIu64,
				      d ? ", " : "", lo[d], lo[d] + len[d]);
	snprintf(buf + n, size - n, "]");
	return buf;
}

bool dcp_shape_nbytes(const uint64_t *shape, uint32_t ndim, uint32_t itemsize, uint64_t *out)
{
	uint64_t padded = itemsize, volume;

	for (uint32_t i = 0; i < ndim; i++)
		if (dcp_ckd_mul(&padded, padded, DCP_MAX(shape[i], 1)))
			return false;
	return padded <= INT64_MAX && dcp_shape_volume(shape, ndim, &volume) &&
	       !dcp_ckd_mul(out, volume, itemsize);
}

bool dcp_row_major(const uint64_t *shape, const uint64_t *stride, uint32_t ndim)
{
	uint64_t want = 1;

	for (uint32_t i = ndim; i-- > 0; want *= shape[i]) {
		if (shape[i] == 0)
			return true;
		if (shape[i] != 1 && stride[i] != want)
			return false;
	}
	return true;
}

bool dcp_stride_span(const uint64_t *shape, const uint64_t *stride, uint32_t ndim,
		     uint64_t *out)
{
	uint64_t last = 0, step;

	for (uint32_t i = 0; i < ndim; i++)
		if (dcp_ckd_mul(&step, shape[i] - 1, stride[i]) ||
		    dcp_ckd_add(&last, last, step))
			return false;
	return !dcp_ckd_add(out, last, 1);
}

static uint64_t end_of(uint64_t lo, uint64_t len)
{
	return lo + len < lo ? UINT64_MAX : lo + len;
}

bool dcp_box_meets(const struct dcp_box *box, uint32_t ndim, const uint64_t *lo,
		   const uint64_t *len)
{
	for (uint32_t d = 0; d < ndim; d++)
		if (lo[d] >= end_of(box->lo[d], box->len[d]) ||
		    box->lo[d] >= end_of(lo[d], len[d]) || len[d] == 0 || box->len[d] == 0)
			return false;
	return true;
}

const uint64_t dcp_origin[DCP_MAX_NDIM];

bool dcp_tensor_one_piece(struct dcp_tensor *t, struct dcp_piece *p)
{
	if (!dcp_shape_volume(t->shape, t->ndim, &p->run_n))
		return false;
	p->lo = dcp_origin;
	p->len = t->shape;
	t->pieces = p;
	t->npieces = p->run_n > 0;
	return true;
}

bool dcp_tensor_nbytes(const struct dcp_tensor *t, uint64_t *out)
{
	uint64_t n;

	if (!dcp_shape_volume(t->shape, t->ndim, &n) || dcp_ckd_mul(&n, n, t->itemsize))
		return false;
	*out = n;
	return true;
}

bool dcp_tensor_shown_nbytes(const struct dcp_tensor *t, uint64_t *out)
{
	struct dcp_tensor shown = *t;

	shown.itemsize = dcp_tensor_shown_size(t);
	return dcp_tensor_nbytes(&shown, out) && *out <= INT64_MAX;
}

/* ---- keys ---- */

void dcp_path_join(struct dcp_buf *out, const char *const *path, size_t n)
{
	for (size_t i = 0; i < n; i++)
		dcp_buf_printf(out, "%s%s", i ? "." : "", path[i]);
	dcp_buf_add(out, "", 0);
}

/* A @key that is not given is the path. */
static int find_key(const char **key, const char *const *path, size_t npath,
		    struct dcp_buf *text)
{
	if (*key)
		return 0;
	dcp_path_join(text, path, npath);
	*key = text->p;
	return dcp_buf_error(text);
}

/* ---- sinks ---- */

#define EMIT(s, what, ...)                                                                     \
	for (; s; s = s->next) {                                                               \
		int rc = s->check ? s->check(s->ctx) : 0;                                      \
                                                                                               \
		if (rc < 0 || s->what)                                                         \
			return rc < 0 ? rc : s->what(s->ctx, __VA_ARGS__);                     \
	}                                                                                      \
	return 0

int dcp_emit_file(const struct dcp_sink *s, const char *name, uint32_t *number)
{
	*number = 0;
	EMIT(s, file, name, number);
}

int dcp_emit_unpacked(const struct dcp_sink *s, const char *name, uint32_t *number)
{
	*number = 0;
	EMIT(s, unpacked, name, number);
}

int dcp_emit_tensor(const struct dcp_sink *s, const struct dcp_tensor *emitted)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_tensor t = *emitted;

	if (find_key(&t.key, t.path, t.npath, &text) < 0)
		return -ENOMEM;
	if (t.error && !t.partly)
		t.npieces = t.ncopies = 0;
	EMIT(s, tensor, &t);
}

int dcp_emit_object(const struct dcp_sink *s, const struct dcp_object *emitted)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_object o = *emitted;

	if (find_key(&o.key, o.path, o.npath, &text) < 0)
		return -ENOMEM;
	EMIT(s, object, &o);
}

int dcp_emit_item(const struct dcp_sink *s, const struct dcp_object *o)
{
	EMIT(s, item, o);
}

int dcp_emit_meta(const struct dcp_sink *s, const char *name, const char *value)
{
	EMIT(s, meta, name, value);
}

int dcp_emit_sidecar(const struct dcp_sink *s, const char *name)
{
	EMIT(s, sidecar, name);
}

int dcp_emit_said(const struct dcp_sink *s, const char *file, const char *name,
		  const char *value)
{
	EMIT(s, said, file, name, value);
}
