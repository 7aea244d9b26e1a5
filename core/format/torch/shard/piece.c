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
	uint64_t dims[DCP_MAX_NDIM];
	int rc = dcp_tfield_dims(size, "size", dims, &r->out->t.ndim, r->err);

	if (rc < 0)
		return rc;
	r->out->t.shape = dcp_arena_dup(r->arena, dims, r->out->t.ndim, sizeof(*dims));
	return r->out->t.shape ? 0 : dcp_tshard_no_memory(r);
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

int dcp_tshard_place(struct dcp_tshard_reading *r, struct dcp_piece *p,
		     const struct dcp_torch_tensor *tt, const struct dcp_tplace_box *box)
{
	int rc = -EBADMSG;

	p->file = r->file;
	p->swap = tt->swap;
	if (!dcp_ckd_add(&p->off, r->base, tt->off))
		rc = dcp_tplace_piece(box, tt->ndim, tt->shape,
				      tt->row_major ? NULL : tt->stride, tt->itemsize, r->arena,
				      p);
	if (rc == -ENOMEM)
		return dcp_tshard_no_memory(r);
	return rc < 0 ? dcp_tshard_damaged(r, "place does not fit in 64 bits") : 0;
}
