/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_piece: a tensor that a rank holds, and where in the whole it lies.
 */
#include <errno.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/ckd.h"
#include "core/base/err.h"
#include "core/format/torch/field.h"
#include "core/format/torch/shard/shard_int.h"

int dcp_tshard_no_memory(const struct dcp_tshard_reading *r)
{
	return dcp_fail(r->err, -ENOMEM, "out of memory for shards");
}

int dcp_tshard_damaged(const struct dcp_tshard_reading *r, const char *why)
{
	return dcp_fail(r->err, -EBADMSG, "%s whose %s", r->out->what, why);
}

int dcp_tshard_set_shape(struct dcp_tshard_reading *r, struct dcp_pv size)
{
	uint64_t dims[DCP_MAX_NDIM], *shape;
	int rc = dcp_tfield_dims(size, "size", dims, &r->out->t.ndim, r->err);

	if (rc < 0)
		return rc;
	shape = dcp_arena_calloc(r->arena, r->out->t.ndim + 1, sizeof(*shape));
	if (!shape)
		return dcp_tshard_no_memory(r);
	memcpy(shape, dims, r->out->t.ndim * sizeof(*shape));
	r->out->t.shape = shape;
	return 0;
}

int dcp_tshard_set_dtype(struct dcp_tshard_reading *r, const char *name, enum dcp_dtype dtype,
			 uint32_t itemsize)
{
	struct dcp_tensor *t = &r->out->t;

	if (t->dtype_name && (t->dtype != dtype || strcmp(t->dtype_name, name) != 0))
		return dcp_fail(r->err, -EBADMSG, "%s of %s with a local part of %s",
				r->out->what, t->dtype_name, name);
	t->dtype = dtype;
	t->itemsize = itemsize;
	t->dtype_name = dcp_arena_strdup(r->arena, name);
	return t->dtype_name ? 0 : dcp_tshard_no_memory(r);
}

int dcp_tshard_local(struct dcp_tshard_reading *r, struct dcp_pv v, struct dcp_torch_tensor *tt)
{
	int rc = dcp_torch_tensor(r->t, v, tt, r->err);

	if (rc == 0)
		return dcp_tshard_damaged(r, "local part is not a tensor");
	return rc < 0 ? rc : dcp_tshard_set_dtype(r, tt->dtype_name, tt->dtype, tt->itemsize);
}

struct dcp_piece *dcp_tshard_pieces(struct dcp_tshard_reading *r, size_t n)
{
	struct dcp_piece *p = dcp_arena_calloc(r->arena, n + 1, sizeof(*p));
	uint32_t ndim = r->out->t.ndim;

	for (size_t i = 0; p && i < n; i++) {
		uint64_t *dims =
			dcp_arena_calloc(r->arena, 3 * (size_t)ndim + 1, sizeof(*dims));

		if (!dims)
			return NULL;
		p[i].lo = dims;
		p[i].len = dims + ndim;
		p[i].stride = dims + 2 * (size_t)ndim;
	}
	r->out->t.pieces = p;
	return p;
}

int dcp_tshard_place(struct dcp_tshard_reading *r, struct dcp_piece *p,
		     const struct dcp_torch_tensor *tt, const uint64_t *at)
{
	uint64_t first = 0, n = 0, step, *stride = (uint64_t *)(uintptr_t)p->stride;
	bool all = tt->row_major, bad = false;

	for (uint32_t k = 0; k < tt->ndim; k++) {
		bad |= dcp_ckd_mul(&step, at[k], tt->stride[k]) ||
		       dcp_ckd_add(&first, first, step);
		stride[k] = tt->stride[k];
		all &= p->len[k] == tt->shape[k];
	}
	if (all)
		p->stride = NULL;
	p->file = r->file;
	p->swap = tt->swap;
	bad |= !dcp_shape_volume(p->len, tt->ndim, &p->run_n);
	bad |= !dcp_stride_span(p->len, tt->stride, tt->ndim, &n) ||
	       dcp_ckd_mul(&p->nbytes, n, tt->itemsize) ||
	       dcp_ckd_mul(&first, first, tt->itemsize) ||
	       dcp_ckd_add(&p->off, r->base, tt->off) || dcp_ckd_add(&p->off, p->off, first);
	return bad ? dcp_tshard_damaged(r, "place does not fit in 64 bits") : 0;
}
