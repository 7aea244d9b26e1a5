/* SPDX-License-Identifier: Apache-2.0 */
/* Parts: what they are, where, and how much of them has arrived. */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "tools/load/load.h"
#include "tools/load/memory/memory.h"

int dcpload_part(const struct dcpload_plan *p, uint64_t i, struct dcpload_part *out)
{
	const struct load_want *w;

	if (i >= p->nwant)
		return -ENOENT;
	w = &p->want[i];
	*out = (struct dcpload_part){ .key = w->key,
				      .dtype = w->to_name,
				      .stored = w->dtype_name,
				      .itemsize = w->itemsize,
				      .ndim = w->ndim,
				      .complete = w->complete,
				      .global_ndim = w->global_ndim,
				      .data = w->target.base,
				      .nbytes = w->nbytes,
				      .user = w->user };
	if (w->ndim)
		memcpy(out->shape, w->shape, w->ndim * sizeof(*out->shape));
	if (w->global_ndim)
		memcpy(out->global_shape, w->global_shape,
		       w->global_ndim * sizeof(*out->global_shape));
	return 0;
}

int dcpload_part_memory(const struct dcpload_plan *p, uint64_t i, int32_t *device)
{
	if (i >= p->nwant)
		return -ENOENT;
	if (device)
		*device = p->want[i].target.on_device ? (int32_t)p->device->number : -1;
	return p->want[i].memory;
}

int dcpload_part_read(struct dcpload_plan *p, uint64_t i, uint64_t at, void *dst, uint64_t n,
		      struct dcpload_error *err)
{
	const struct load_want *w = i < p->nwant ? &p->want[i] : NULL;
	struct load_device *d = w && w->target.on_device ? p->device : NULL;
	int rc;

	if (!w || w->target.stride || at > w->nbytes || n > w->nbytes - at)
		return load_fail(err, -EINVAL, "part %llu is not row-major or too short",
				 (unsigned long long)i);
	rc = n ? load_memory_of(d)->fetch(d, dst, w->target.base + at, n) : 0;
	return load_device_said(d, rc, err);
}

int load_arrived(struct dcpload_plan *p, uint32_t number, uint64_t n)
{
	struct load_want *w = &p->want[number];
	uint64_t total = atomic_fetch_add(&p->arrived, n) + n;
	struct dcpload_part part;
	int rc = 0;

	if (p->hooks.progress)
		rc = p->hooks.progress(p->hooks.ctx, total, p->report.needed);
	if (rc < 0 || atomic_fetch_sub(&w->left, n) != n)
		return rc;
	w->complete = 1;
	if (!p->hooks.commit)
		return 0;
	dcpload_part(p, number, &part);
	return p->hooks.commit(p->hooks.ctx, number, &part);
}
