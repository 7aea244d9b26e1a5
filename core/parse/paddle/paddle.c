/* SPDX-License-Identifier: Apache-2.0 */
/* Reads messages of protobuf, tensors in streams, and the variables of a program. */
#include "core/parse/paddle/paddle.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/origin/origin.h"
#include "core/parse/json.h"

/* A tag and the longest number after it. */
enum { HEAD = 20, MAX_NUMBER = (1 << 29) - 1 };

struct dcp_pb dcp_pb_message(const struct dcp_source *src, uint64_t off, uint64_t n)
{
	uint64_t size = src->size, at = DCP_MIN(off, size);

	return (struct dcp_pb){ src, at, at + DCP_MIN(n, size - at) };
}

/* Read the next bytes, up to the end of the message. */
static int peek_head(const struct dcp_pb *pb, uint8_t head[HEAD], struct dcp_cur *c)
{
	size_t n = (size_t)DCP_MIN(pb->end - pb->at, HEAD);

	*c = dcp_cur(head, n);
	return dcp_source_read(pb->src, pb->at, head, n);
}

static int fail_cut(const struct dcp_pb *pb, struct dcp_err *err)
{
	return dcp_fail_at(err, -EBADMSG, pb->at, "protobuf message ends inside a field");
}

int dcp_pb_next(struct dcp_pb *pb, struct dcp_pb_field *f, struct dcp_err *err)
{
	uint8_t head[HEAD];
	struct dcp_cur c;
	uint64_t tag;
	int rc;

	if (pb->at == pb->end)
		return 0;
	rc = peek_head(pb, head, &c);
	if (rc < 0)
		return dcp_fail_at(err, rc, pb->at, "cannot read a protobuf message");
	*f = (struct dcp_pb_field){ 0 };
	tag = dcp_cur_varint(&c);
	if (dcp_cur_ok(&c) && (tag >> 3 == 0 || tag >> 3 > MAX_NUMBER))
		return dcp_fail_at(err, -EBADMSG, pb->at, "protobuf field without a number");
	f->number = (uint32_t)(tag >> 3);
	f->wire = (enum dcp_pb_wire)(tag & 7);
	switch ((unsigned)(tag & 7)) {
	case DCP_PB_VARINT:
	case DCP_PB_LEN:
		f->value = dcp_cur_varint(&c);
		break;
	case DCP_PB_FIXED64:
		f->value = dcp_cur_le64(&c);
		break;
	case DCP_PB_FIXED32:
		f->value = dcp_cur_le32(&c);
		break;
	default:
		return dcp_fail_at(err, -EBADMSG, pb->at,
				   "protobuf field of wire type %u, expected 0, 1, 2 or 5",
				   (unsigned)(tag & 7));
	}
	if (!dcp_cur_ok(&c))
		return fail_cut(pb, err);
	f->off = pb->at + (uint64_t)(c.p - head);
	if (f->wire == DCP_PB_LEN) {
		f->n = f->value;
		f->value = 0;
	}
	if (!dcp_range_ok(f->off, f->n, pb->end))
		return fail_cut(pb, err);
	pb->at = f->off + f->n;
	return 1;
}

int dcp_pb_packed(struct dcp_pb *pb, uint64_t *value, struct dcp_err *err)
{
	uint8_t head[HEAD];
	struct dcp_cur c;
	int rc;

	if (pb->at == pb->end)
		return 0;
	rc = peek_head(pb, head, &c);
	if (rc < 0)
		return dcp_fail_at(err, rc, pb->at, "cannot read a protobuf message");
	*value = dcp_cur_varint(&c);
	if (!dcp_cur_ok(&c))
		return fail_cut(pb, err);
	pb->at += (uint64_t)(c.p - head);
	return 1;
}

void dcp_pb_put_varint(struct dcp_buf *out, uint32_t number, uint64_t value)
{
	dcp_buf_varint(out, number << 3 | DCP_PB_VARINT);
	dcp_buf_varint(out, value);
}

void dcp_pb_put(struct dcp_buf *out, uint32_t number, const void *p, size_t n)
{
	dcp_buf_varint(out, number << 3 | DCP_PB_LEN);
	dcp_buf_varint(out, n);
	dcp_buf_add(out, p, n);
}

enum {
	MAX_LEVELS = 64,
	MAX_DESC = 4096, /* 64 dimensions of eleven bytes, and new fields */
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

static int fail_damaged(struct dcp_err *err, uint64_t off, const char *what)
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

/* Check the description against the number of bytes after it. */
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
		return fail_damaged(err, out->off, "its size does not fit in 64 bits");
	if (!dcp_range_ok(out->off, out->nbytes, src->size))
		return dcp_fail_at(err, -EBADMSG, out->off,
				   "tensor needs %" PRIu64 " bytes, the file has %" PRIu64
				   " more: it is cut",
				   out->nbytes, src->size - out->off);
	return 0;
}

/* Read version, description and elements. */
static int read_tensor(const struct dcp_source *src, uint64_t off, struct dcp_lodtensor *out,
		       struct dcp_err *err)
{
	struct dcp_lodtensor_desc desc;
	struct dcp_source window;
	uint8_t head[8];
	uint32_t n;
	int rc;

	if (!dcp_range_ok(off, sizeof(head), src->size))
		return fail_damaged(err, off, "the file ends before the tensor");
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
		return fail_damaged(err, off, "its description has an invalid length");
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
		return fail_damaged(err, off, "the file ends inside its first numbers");
	rc = dcp_source_read(src, off, head, sizeof(head));
	if (rc < 0)
		return dcp_fail_at(err, rc, off, "cannot read a tensor");
	levels = dcp_load_le64(head + 4);
	if (dcp_load_le32(head) != 0 || levels > MAX_LEVELS)
		return fail_damaged(err, off,
				    "it does not begin with version 0 and few levels");
	off += sizeof(head);
	for (uint64_t i = 0; i < levels; i++) {
		uint8_t size[8];

		if (!dcp_range_ok(off, sizeof(size), src->size))
			return fail_damaged(err, off, "the file ends inside its levels");
		rc = dcp_source_read(src, off, size, sizeof(size));
		if (rc < 0)
			return dcp_fail_at(err, rc, off, "cannot read a tensor");
		off += sizeof(size);
		if (!dcp_range_ok(off, dcp_load_le64(size), src->size))
			return fail_damaged(err, off, "a level is longer than the file");
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
		return fail_damaged(err, 0, "the file ends inside its first numbers");
	rc = dcp_source_read(src, 0, head, sizeof(head));
	if (rc < 0)
		return dcp_fail_at(err, rc, 0, "cannot read the rows of a tensor");
	s.nrows = dcp_load_le64(head + 4);
	if (dcp_load_le32(head) != 0 || dcp_ckd_mul(&at, s.nrows, 8) ||
	    dcp_ckd_add(&at, at, s.rows_off) || !dcp_range_ok(at, sizeof(height), src->size))
		return fail_damaged(err, 0, "it has an invalid number of rows");
	rc = dcp_source_read(src, at, height, sizeof(height));
	if (rc < 0)
		return dcp_fail_at(err, rc, at, "cannot read the rows of a tensor");
	s.height = dcp_load_le64(height);
	rc = read_tensor(src, at + sizeof(height), &s.value, err);
	if (rc < 0)
		return rc;
	if (s.height > INT64_MAX || s.value.ndim == 0 || s.value.shape[0] != s.nrows)
		return fail_damaged(err, at, "its rows are not those of its tensor");
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

enum {
	MEMORY = 256 << 20, /* a million names of 200 bytes */
	MAX_JSON = 256 << 20,
	MAX_NAME = 65536,
};

/* Fields of framework.proto. */
enum { PROGRAM_BLOCKS = 1, BLOCK_VARS = 3, VAR_NAME = 1, VAR_TYPE = 2, VAR_PERSISTABLE = 3 };
enum { TYPE_TYPE = 1, TYPE_LOD_TENSOR = 3, LOD_TENSOR = 1 };
enum { FEED_MINIBATCH = 9, FETCH_LIST = 10, READER = 15, RAW = 17 };

struct reading {
	struct dcp_paddle_program *p;
	struct dcp_buf vars; /* struct dcp_paddle_var */
	struct dcp_err *err;
};

static int fail_no_memory(struct reading *r)
{
	return dcp_fail(r->err, -ENOMEM,
			"out of memory, or more than %d MiB of names in one program",
			MEMORY >> 20);
}

static int keep_var(struct reading *r, const char *name, size_t n, const int64_t *dims,
		    uint32_t ndim)
{
	struct dcp_paddle_var v = { .ndim = ndim };
	int64_t *copy;

	v.name = dcp_arena_strndup(&r->p->arena, name, n);
	copy = dcp_arena_calloc(&r->p->arena, (size_t)ndim + 1, sizeof(*copy));
	if (!v.name || !copy)
		return fail_no_memory(r);
	if (dims) {
		memcpy(copy, dims, ndim * sizeof(*copy));
		v.dims = copy;
	}
	dcp_buf_add(&r->vars, &v, sizeof(v));
	return dcp_buf_error(&r->vars) ? fail_no_memory(r) : 0;
}

/* ---- protobuf ---- */

/* The contents of a VarDesc. */
struct var {
	struct dcp_pb_field name;
	uint64_t type, persistable;
	struct dcp_lodtensor_desc desc;
	bool has_desc;
};

static int read_type(struct dcp_pb pb, struct var *v, struct dcp_err *err)
{
	struct dcp_pb_field f;
	int rc;

	while ((rc = dcp_pb_next(&pb, &f, err)) == 1) {
		if (f.number == TYPE_TYPE && f.wire == DCP_PB_VARINT)
			v->type = f.value;
		if (f.number == TYPE_LOD_TENSOR && f.wire == DCP_PB_LEN) {
			struct dcp_pb lod = dcp_pb_message(pb.src, f.off, f.n);

			while ((rc = dcp_pb_next(&lod, &f, err)) == 1) {
				if (f.number != LOD_TENSOR || f.wire != DCP_PB_LEN)
					continue;
				rc = dcp_lodtensor_desc(dcp_pb_message(pb.src, f.off, f.n),
							&v->desc, err);
				if (rc < 0)
					return rc;
				v->has_desc = true;
			}
			if (rc < 0)
				return rc;
		}
	}
	return rc;
}

static int add_var(struct reading *r, const struct dcp_source *src, const struct var *v)
{
	dcp_auto_free char *name = NULL;
	int rc;

	if (!v->persistable || v->type == FEED_MINIBATCH || v->type == FETCH_LIST ||
	    v->type == READER || v->type == RAW)
		return 0;
	if (v->name.n == 0 || v->name.n > MAX_NAME)
		return dcp_fail_at(r->err, -EBADMSG, v->name.off,
				   "a stored variable has a name of %llu bytes",
				   (unsigned long long)v->name.n);
	name = malloc((size_t)v->name.n);
	if (!name)
		return fail_no_memory(r);
	rc = dcp_source_read(src, v->name.off, name, (size_t)v->name.n);
	if (rc < 0)
		return dcp_fail_at(r->err, rc, v->name.off, "cannot read a variable's name");
	if (memchr(name, '\0', (size_t)v->name.n))
		return dcp_fail_at(r->err, -EBADMSG, v->name.off,
				   "a variable's name holds a NUL");
	return keep_var(r, name, (size_t)v->name.n, v->has_desc ? v->desc.dims : NULL,
			v->has_desc ? v->desc.ndim : 0);
}

static int read_var(struct reading *r, struct dcp_pb pb)
{
	struct var v = { 0 };
	struct dcp_pb_field f;
	int rc;

	while ((rc = dcp_pb_next(&pb, &f, r->err)) == 1) {
		if (f.number == VAR_NAME && f.wire == DCP_PB_LEN)
			v.name = f;
		if (f.number == VAR_TYPE && f.wire == DCP_PB_LEN)
			rc = read_type(dcp_pb_message(pb.src, f.off, f.n), &v, r->err);
		if (f.number == VAR_PERSISTABLE && f.wire == DCP_PB_VARINT)
			v.persistable = f.value;
		if (rc < 0)
			return rc;
	}
	return rc < 0 ? rc : add_var(r, pb.src, &v);
}

static int read_pdmodel(struct reading *r, const struct dcp_source *src)
{
	struct dcp_pb program = dcp_pb_message(src, 0, src->size);
	struct dcp_pb_field f;
	int rc, nblocks = 0;

	while ((rc = dcp_pb_next(&program, &f, r->err)) == 1) {
		struct dcp_pb block = dcp_pb_message(src, f.off, f.n);

		if (f.number != PROGRAM_BLOCKS || f.wire != DCP_PB_LEN)
			continue;
		nblocks = 1;
		while ((rc = dcp_pb_next(&block, &f, r->err)) == 1) {
			if (f.number == BLOCK_VARS && f.wire == DCP_PB_LEN)
				rc = read_var(r, dcp_pb_message(src, f.off, f.n));
			if (rc < 0)
				return rc;
		}
		if (rc < 0)
			return rc;
	}
	if (rc == 0 && !nblocks)
		return dcp_fail_at(r->err, -EBADMSG, 0, "no block in it: not a Paddle program");
	return rc;
}

/* ---- PIR ---- */

/* O.TT.D is [element type, [dims], layout, ...]. An open dimension is negative: it stays -1,
 * because our reader of sizes refuses it. */
static uint32_t pir_dims(const struct dcp_json *op, int64_t dims[DCP_MAX_NDIM], bool *known)
{
	const struct dcp_json *type = dcp_json_get(dcp_json_get(op, "O"), "TT");
	const struct dcp_json *list = dcp_json_at(dcp_json_get(type, "D"), 1);
	size_t n = dcp_json_len(list);

	*known = dcp_json_is_array(list) && n <= DCP_MAX_NDIM;
	for (size_t i = 0; *known && i < n; i++) {
		uint64_t dim;

		dims[i] = dcp_json_u64(dcp_json_at(list, i), &dim) ? (int64_t)dim : -1;
	}
	return *known ? (uint32_t)n : 0;
}

static int read_op(struct reading *r, const struct dcp_json *op)
{
	const char *kind = dcp_json_str(dcp_json_get(op, "#"));
	const char *name = dcp_json_str(dcp_json_at(dcp_json_get(op, "A"), 3));
	int64_t dims[DCP_MAX_NDIM];
	uint32_t ndim;
	bool known;

	if (!kind || strcmp(kind, "p") != 0)
		return 0;
	if (!name || !*name)
		return dcp_fail(r->err, -EBADMSG, "a parameter of the program has no name");
	ndim = pir_dims(op, dims, &known);
	return keep_var(r, name, strlen(name), known ? dims : NULL, ndim);
}

static int read_ops(struct reading *r, const struct dcp_json *root)
{
	const struct dcp_json *base = dcp_json_get(root, "base_code"), *regions;
	const char *magic = dcp_json_str(dcp_json_get(base, "magic"));
	int rc = 0;

	if (!magic || strcmp(magic, "pir") != 0)
		return dcp_fail_at(r->err, -EBADMSG, 0,
				   "not a PIR program: base_code.magic is %.40s",
				   magic ? magic : "absent");
	regions = dcp_json_get(dcp_json_get(root, "program"), "regions");
	for (size_t i = 0; i < dcp_json_len(regions); i++) {
		const struct dcp_json *blocks = dcp_json_get(dcp_json_at(regions, i), "blocks");

		for (size_t k = 0; k < dcp_json_len(blocks); k++) {
			const struct dcp_json *ops =
				dcp_json_get(dcp_json_at(blocks, k), "ops");

			for (size_t o = 0; rc == 0 && o < dcp_json_len(ops); o++)
				rc = read_op(r, dcp_json_at(ops, o));
		}
	}
	return rc;
}

static int read_pir(struct reading *r, const struct dcp_source *src)
{
	dcp_auto_json struct dcp_json *root = NULL;
	int rc = dcp_json_read(src, MAX_JSON, NULL, &root, r->err);

	return rc < 0 ? rc : read_ops(r, root);
}

/* ---- both ---- */

/* A block inside another block may declare a variable again. */
static int sort_vars(struct reading *r)
{
	const struct dcp_paddle_var *v;
	struct dcp_paddle_program *p = r->p;
	size_t n = r->vars.n / sizeof(*v);

	p->vars = dcp_arena_calloc(&p->arena, n + 1, sizeof(*v));
	if (!p->vars)
		return fail_no_memory(r);
	if (n == 0)
		return 0;
	v = DCP_ITEMS(r->vars, struct dcp_paddle_var);
	memcpy(p->vars, v, n * sizeof(*v));
	DCP_SORT(p->vars, n, dcp_by_text);
	for (size_t i = 0; i < n; i++)
		if (p->n == 0 || strcmp(p->vars[p->n - 1].name, p->vars[i].name) != 0)
			p->vars[p->n++] = p->vars[i];
	return 0;
}

int dcp_paddle_program_read(const struct dcp_source *src, struct dcp_paddle_program *out,
			    struct dcp_err *err)
{
	struct dcp_paddle_program p = { 0 };
	struct reading r = { .p = &p, .err = err };
	char first = '\0';
	int rc = 0;

	dcp_arena_init(&p.arena, MEMORY);
	if (src->size > 0)
		rc = dcp_source_read(src, 0, &first, 1);
	if (rc < 0)
		rc = dcp_fail_at(err, rc, 0, "cannot read the program");
	else
		rc = first == '{' ? read_pir(&r, src) : read_pdmodel(&r, src);
	if (rc == 0)
		rc = sort_vars(&r);
	dcp_buf_finish(&r.vars);
	if (rc < 0) {
		dcp_arena_finish(&p.arena);
		return rc;
	}
	*out = p;
	return 0;
}

void dcp_paddle_program_finish(struct dcp_paddle_program *p)
{
	if (p)
		dcp_arena_finish(&p->arena);
}
