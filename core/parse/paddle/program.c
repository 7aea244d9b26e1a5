/* SPDX-License-Identifier: Apache-2.0 */
#include "core/parse/paddle/program.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/sort.h"
#include "core/origin/source.h"
#include "core/parse/json.h"
#include "core/parse/paddle/lodtensor.h"
#include "core/parse/paddle/protobuf.h"

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

static int no_memory(struct reading *r)
{
	return dcp_fail(r->err, -ENOMEM,
			"out of memory, or more than %d MiB of names in one program",
			MEMORY >> 20);
}

static int add(struct reading *r, const char *name, size_t n, const int64_t *dims,
	       uint32_t ndim)
{
	struct dcp_paddle_var v = { .ndim = ndim };
	int64_t *copy;

	v.name = dcp_arena_strndup(&r->p->arena, name, n);
	copy = dcp_arena_calloc(&r->p->arena, (size_t)ndim + 1, sizeof(*copy));
	if (!v.name || !copy)
		return no_memory(r);
	if (dims) {
		memcpy(copy, dims, ndim * sizeof(*copy));
		v.dims = copy;
	}
	dcp_buf_add(&r->vars, &v, sizeof(v));
	return dcp_buf_error(&r->vars) ? no_memory(r) : 0;
}

/* ---- protobuf ---- */

/* What one VarDesc says. */
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
		return no_memory(r);
	rc = dcp_source_read(src, v->name.off, name, (size_t)v->name.n);
	if (rc < 0)
		return dcp_fail_at(r->err, rc, v->name.off, "cannot read a variable's name");
	if (memchr(name, '\0', (size_t)v->name.n))
		return dcp_fail_at(r->err, -EBADMSG, v->name.off,
				   "a variable's name holds a NUL");
	return add(r, name, (size_t)v->name.n, v->has_desc ? v->desc.dims : NULL,
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

/* O.TT.D is [element type, [dims], layout, ...]. An open dimension is negative, which is no
 * size to our reader: it stays -1. */
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
	return add(r, name, strlen(name), known ? dims : NULL, ndim);
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

/* A block inside another one may declare a variable again. */
static int sort(struct reading *r)
{
	const struct dcp_paddle_var *v;
	struct dcp_paddle_program *p = r->p;
	size_t n = r->vars.n / sizeof(*v);

	p->vars = dcp_arena_calloc(&p->arena, n + 1, sizeof(*v));
	if (!p->vars)
		return no_memory(r);
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
		rc = sort(&r);
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
