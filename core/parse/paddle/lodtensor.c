/* SPDX-License-Identifier: Apache-2.0 */
#include "core/parse/paddle/lodtensor.h"

#include <errno.h>
#include <inttypes.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/origin/source.h"
#include "core/parse/paddle/protobuf.h"

enum {
	MAX_LEVELS = 64,
	MAX_DESC = 4096, /* 64 dimensions of eleven bytes, and fields to come */
};

/* VarType.Type of framework.proto. */
static const struct {
	uint8_t number;
	enum dcp_dtype dtype;
} dtypes[] = {
	{ 0, DCP_DTYPE_BOOL },     { 1, DCP_DTYPE_I16 },      { 2, DCP_DTYPE_I32 },
	{ 3, DCP_DTYPE_I64 },      { 4, DCP_DTYPE_F16 },      { 5, DCP_DTYPE_F32 },
	{ 6, DCP_DTYPE_F64 },      { 20, DCP_DTYPE_U8 },      { 21, DCP_DTYPE_I8 },
	{ 22, DCP_DTYPE_BF16 },    { 23, DCP_DTYPE_C64 },     { 24, DCP_DTYPE_C128 },
	{ 32, DCP_DTYPE_F8_E4M3 }, { 33, DCP_DTYPE_F8_E5M2 }, { 37, DCP_DTYPE_U32 },
	{ 38, DCP_DTYPE_U64 },
};

static int damaged_at(struct dcp_err *err, uint64_t off, const char *what)
{
	return dcp_fail_at(err, -EBADMSG, off, "not a Paddle tensor stream: %s", what);
}

static int add_dim(struct dcp_lodtensor_desc *d, uint64_t dim, struct dcp_err *err)
{
	if (d->ndim == DCP_MAX_NDIM)
		return dcp_fail(err, -EBADMSG, "tensor of more than %d dimensions",
				DCP_MAX_NDIM);
	d->dims[d->ndim++] = (int64_t)dim;
	return 0;
}

int dcp_lodtensor_desc(struct dcp_pb pb, struct dcp_lodtensor_desc *out, struct dcp_err *err)
{
	struct dcp_lodtensor_desc d = { .dtype = UINT64_MAX };
	struct dcp_pb_field f;
	int rc;

	while ((rc = dcp_pb_next(&pb, &f, err)) == 1) {
		uint64_t dim;

		if (f.number == 1 && f.wire == DCP_PB_VARINT)
			d.dtype = f.value;
		if (f.number == 2 && f.wire == DCP_PB_VARINT)
			rc = add_dim(&d, f.value, err);
		if (f.number == 2 && f.wire == DCP_PB_LEN) {
			struct dcp_pb packed = dcp_pb_message(pb.src, f.off, f.n);

			while ((rc = dcp_pb_packed(&packed, &dim, err)) == 1)
				if ((rc = add_dim(&d, dim, err)) < 0)
					break;
		}
		if (rc < 0)
			return rc;
	}
	if (rc < 0)
		return rc;
	if (d.dtype == UINT64_MAX)
		return dcp_fail_at(err, -EBADMSG, pb.at, "tensor without a dtype");
	*out = d;
	return 0;
}

/* What the description says, against the bytes that are left behind it. */
static int take_desc(const struct dcp_source *src, const struct dcp_lodtensor_desc *d,
		     struct dcp_lodtensor *out, struct dcp_err *err)
{
	uint64_t volume;

	out->dtype = DCP_DTYPE_OTHER;
	for (size_t i = 0; i < DCP_LEN(dtypes); i++)
		if (dtypes[i].number == d->dtype)
			out->dtype = dtypes[i].dtype;
	if (out->dtype == DCP_DTYPE_OTHER)
		return dcp_fail_at(err, -ENOTSUP, out->off,
				   "tensor of Paddle's type %" PRIu64 ", which has no numbers",
				   d->dtype);
	out->dtype_name = dcp_dtype_info(out->dtype)->name;
	out->itemsize = dcp_dtype_info(out->dtype)->size;
	out->ndim = d->ndim;
	for (uint32_t k = 0; k < d->ndim; k++) {
		if (d->dims[k] < 0)
			return dcp_fail_at(err, -EBADMSG, out->off,
					   "dimension %" PRIu32 " of a tensor is %" PRId64, k,
					   d->dims[k]);
		out->shape[k] = (uint64_t)d->dims[k];
	}
	if (!dcp_shape_volume(out->shape, out->ndim, &volume) ||
	    dcp_ckd_mul(&out->nbytes, volume, out->itemsize))
		return damaged_at(err, out->off, "its size does not fit in 64 bits");
	if (!dcp_range_ok(out->off, out->nbytes, src->size))
		return dcp_fail_at(err, -EBADMSG, out->off,
				   "tensor needs %" PRIu64 " bytes, the file has %" PRIu64
				   " more: it is cut",
				   out->nbytes, src->size - out->off);
	return 0;
}

/* Version, description, elements. */
static int read_tensor(const struct dcp_source *src, uint64_t off, struct dcp_lodtensor *out,
		       struct dcp_err *err)
{
	struct dcp_lodtensor_desc desc;
	struct dcp_source window;
	uint8_t head[8];
	uint32_t n;
	int rc;

	if (!dcp_range_ok(off, sizeof(head), src->size))
		return damaged_at(err, off, "the file ends before the tensor");
	rc = dcp_source_read(src, off, head, sizeof(head));
	if (rc < 0)
		return dcp_fail_at(err, rc, off, "cannot read a tensor");
	n = dcp_load_le32(head + 4);
	if (dcp_load_le32(head) != 0)
		return dcp_fail_at(err, -EBADMSG, off,
				   "tensor stream of version %" PRIu32 ", expected 0",
				   dcp_load_le32(head));
	off += sizeof(head);
	if (n == 0 || n > MAX_DESC || !dcp_range_ok(off, n, src->size))
		return damaged_at(err, off, "its description has an invalid length");
	window = dcp_source_window(src, off, n);
	rc = dcp_lodtensor_desc(dcp_pb_message(&window, 0, n), &desc, err);
	if (rc < 0)
		return rc;
	out->off = off + n;
	return take_desc(src, &desc, out, err);
}

int dcp_lodtensor_read(const struct dcp_source *src, uint64_t off, struct dcp_lodtensor *out,
		       struct dcp_err *err)
{
	uint8_t head[12];
	uint64_t levels;
	int rc;

	*out = (struct dcp_lodtensor){ .off = off };
	if (!dcp_range_ok(off, sizeof(head), src->size))
		return damaged_at(err, off, "the file ends inside its first numbers");
	rc = dcp_source_read(src, off, head, sizeof(head));
	if (rc < 0)
		return dcp_fail_at(err, rc, off, "cannot read a tensor");
	levels = dcp_load_le64(head + 4);
	if (dcp_load_le32(head) != 0 || levels > MAX_LEVELS)
		return damaged_at(err, off, "it does not begin with version 0 and few levels");
	off += sizeof(head);
	for (uint64_t i = 0; i < levels; i++) {
		uint8_t size[8];

		if (!dcp_range_ok(off, sizeof(size), src->size))
			return damaged_at(err, off, "the file ends inside its levels");
		rc = dcp_source_read(src, off, size, sizeof(size));
		if (rc < 0)
			return dcp_fail_at(err, rc, off, "cannot read a tensor");
		off += sizeof(size);
		if (!dcp_range_ok(off, dcp_load_le64(size), src->size))
			return damaged_at(err, off, "a level is longer than the file");
		off += dcp_load_le64(size);
	}
	return read_tensor(src, off, out, err);
}

int dcp_selected_rows_read(const struct dcp_source *src, struct dcp_selected_rows *out,
			   struct dcp_err *err)
{
	struct dcp_selected_rows s = { .rows_off = 12 };
	uint8_t head[12], height[8];
	uint64_t at;
	int rc;

	if (!dcp_range_ok(0, sizeof(head), src->size))
		return damaged_at(err, 0, "the file ends inside its first numbers");
	rc = dcp_source_read(src, 0, head, sizeof(head));
	if (rc < 0)
		return dcp_fail_at(err, rc, 0, "cannot read the rows of a tensor");
	s.nrows = dcp_load_le64(head + 4);
	if (dcp_load_le32(head) != 0 || dcp_ckd_mul(&at, s.nrows, 8) ||
	    dcp_ckd_add(&at, at, s.rows_off) || !dcp_range_ok(at, sizeof(height), src->size))
		return damaged_at(err, 0, "it has an invalid number of rows");
	rc = dcp_source_read(src, at, height, sizeof(height));
	if (rc < 0)
		return dcp_fail_at(err, rc, at, "cannot read the rows of a tensor");
	s.height = dcp_load_le64(height);
	rc = read_tensor(src, at + sizeof(height), &s.value, err);
	if (rc < 0)
		return rc;
	if (s.height > INT64_MAX || s.value.ndim == 0 || s.value.shape[0] != s.nrows)
		return damaged_at(err, at, "its rows are not those of its tensor");
	*out = s;
	return 0;
}

/* ---- written ---- */

int dcp_lodtensor_put_desc(struct dcp_buf *out, enum dcp_dtype dtype, uint32_t ndim,
			   const uint64_t *shape)
{
	size_t i = 0;

	while (i < DCP_LEN(dtypes) && dtypes[i].dtype != dtype)
		i++;
	if (i == DCP_LEN(dtypes))
		return -ENOTSUP;
	dcp_pb_put_varint(out, 1, dtypes[i].number);
	for (uint32_t k = 0; k < ndim; k++)
		dcp_pb_put_varint(out, 2, shape[k]);
	return dcp_buf_error(out);
}

int dcp_lodtensor_put(struct dcp_buf *out, enum dcp_dtype dtype, uint32_t ndim,
		      const uint64_t *shape)
{
	dcp_auto_buf struct dcp_buf desc = DCP_BUF_INIT;
	uint8_t head[20] = { 0 };
	int rc = dcp_lodtensor_put_desc(&desc, dtype, ndim, shape);

	if (rc < 0)
		return rc;
	dcp_store_le32(head + 16, (uint32_t)desc.n);
	dcp_buf_add(out, head, sizeof(head));
	return dcp_buf_add(out, desc.p, desc.n);
}
