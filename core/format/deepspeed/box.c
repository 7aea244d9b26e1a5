/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "core/format/deepspeed/deepspeed_int.h"

enum { MAX_BOXES = 1 << 18 }; /* stretches that a tensor may fall into */

static struct dcp_ds_box *new_box(struct dcp_ds_whole *w)
{
	struct dcp_ds_box *more;

	if (w->nbox < w->room)
		return &w->box[w->nbox++];
	w->room = w->room ? 2 * w->room : 16;
	more = dcp_arena_calloc(w->arena, w->room, sizeof(*more));
	if (!more)
		return NULL;
	if (w->nbox)
		memcpy(more, w->box, w->nbox * sizeof(*more));
	w->box = more;
	return &w->box[w->nbox++];
}

/* One stretch: of dimensions before @outer the element that @at says. */
static int add_box(struct dcp_ds_whole *w, uint32_t local, const uint64_t *shape,
		   const struct dcp_ds_block *b, uint32_t outer, const uint64_t *at)
{
	uint64_t *lo = dcp_arena_calloc(w->arena, 3 * (size_t)w->ndim + 1, sizeof(*lo));
	struct dcp_ds_box *box = lo ? new_box(w) : NULL;
	uint64_t *len, *from, first = 0;

	if (!box)
		return -ENOMEM;
	len = lo + w->ndim;
	from = len + w->ndim;
	for (uint32_t d = 0; d < w->ndim; d++) {
		uint64_t in = d < outer ? at[d] : 0;

		lo[d] = b->at[d] + in;
		from[d] = b->from[d] + in;
		len[d] = d < outer ? 1 : b->len[d];
		first = first * shape[d] + from[d];
	}
	*box = (struct dcp_ds_box){
		.local = local, .first = first, .lo = lo, .len = len, .from = from
	};
	return dcp_shape_volume(len, w->ndim, &box->n) ? 0 : -EINVAL;
}

int dcp_ds_add_block(struct dcp_ds_whole *w, uint32_t local, const uint64_t *shape,
		     const struct dcp_ds_block *b)
{
	uint64_t at[DCP_MAX_NDIM] = { 0 };
	uint32_t outer = w->ndim, d;
	int rc;

	for (d = 0; d < w->ndim; d++)
		if (b->len[d] == 0)
			return 0;
	while (outer > 0 && b->len[outer - 1] == shape[outer - 1])
		outer--;
	outer -= outer > 0; /* what is not whole may still be the first that is not */
	do {
		if (w->nbox >= MAX_BOXES)
			return -E2BIG;
		rc = add_box(w, local, shape, b, outer, at);
		for (d = outer; d-- > 0 && ++at[d] == b->len[d];)
			at[d] = 0;
	} while (rc == 0 && d < outer);
	return rc;
}

int dcp_ds_add_stretch(struct dcp_ds_whole *w, uint32_t local, const uint64_t *shape,
		       uint32_t dim, uint64_t from, uint64_t at, uint64_t n)
{
	uint64_t start[DCP_MAX_NDIM] = { 0 }, end[DCP_MAX_NDIM] = { 0 }, len[DCP_MAX_NDIM];
	struct dcp_ds_block b = { .from = start, .at = end, .len = len };

	memcpy(len, shape, w->ndim * sizeof(*shape));
	start[dim] = from;
	end[dim] = at;
	len[dim] = n;
	return dcp_ds_add_block(w, local, shape, &b);
}
