/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/geometry/cut.h"

#include <errno.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/model/tensor.h"

int dcp_cut_box(struct dcp_cut *out, uint32_t ndim, const uint64_t *lo, const uint64_t *len,
		struct dcp_arena *arena)
{
	struct dcp_axis *axis = dcp_arena_calloc(arena, ndim, sizeof(*axis));
	struct dcp_span *span = dcp_arena_calloc(arena, ndim, sizeof(*span));

	if (!axis || !span)
		return -ENOMEM;
	for (uint32_t d = 0; d < ndim; d++) {
		span[d] = (struct dcp_span){ .lo = lo ? lo[d] : 0, .n = len[d] };
		axis[d] = (struct dcp_axis){ &span[d], len[d] ? 1 : 0, len[d] };
	}
	*out = (struct dcp_cut){ .ndim = ndim, .axis = axis };
	return 0;
}

int dcp_cut_whole(struct dcp_cut *out, uint32_t ndim, const uint64_t *shape,
		  struct dcp_arena *arena)
{
	return dcp_cut_box(out, ndim, NULL, shape, arena);
}

bool dcp_cut_is_padded(const struct dcp_cut *cut)
{
	for (uint32_t d = 0; d < cut->ndim; d++)
		if (dcp_axis_filled(&cut->axis[d]) < cut->axis[d].len)
			return true;
	return false;
}

bool dcp_cut_is_whole(const struct dcp_cut *cut, const uint64_t *shape)
{
	if (cut->flat)
		return false;
	for (uint32_t d = 0; d < cut->ndim; d++)
		if (cut->axis[d].len != shape[d] || cut->axis[d].n > 1 ||
		    dcp_axis_filled(&cut->axis[d]) < shape[d])
			return false;
	return true;
}

uint32_t dcp_cut_shape(const struct dcp_cut *cut, uint64_t *shape)
{
	if (cut->flat) {
		shape[0] = cut->flat_n + cut->pad;
		return 1;
	}
	for (uint32_t d = 0; d < cut->ndim; d++)
		shape[d] = cut->axis[d].len;
	return cut->ndim;
}

bool dcp_cut_volume(const struct dcp_cut *cut, uint64_t *out)
{
	uint64_t n = 1;

	if (cut->flat)
		return !dcp_ckd_add(out, cut->flat_n, cut->pad);
	for (uint32_t d = 0; d < cut->ndim; d++)
		if (cut->axis[d].len == 0) {
			*out = 0;
			return true;
		}
	for (uint32_t d = 0; d < cut->ndim; d++)
		if (dcp_ckd_mul(&n, n, cut->axis[d].len))
			return false;
	*out = n;
	return true;
}

static bool axis_fits(const struct dcp_axis *a, uint64_t size)
{
	uint64_t at = 0;

	for (size_t i = 0; i < a->n; i++) {
		const struct dcp_span *s = &a->span[i];

		if (s->at != at || s->n == 0 || !dcp_range_ok(s->lo, s->n, size) ||
		    dcp_ckd_add(&at, at, s->n))
			return false;
	}
	return at <= a->len;
}

bool dcp_cut_fits(const struct dcp_cut *cut, uint32_t ndim, const uint64_t *shape)
{
	struct dcp_cut array = *cut;
	uint64_t volume;

	if (cut->ndim != ndim)
		return false;
	for (uint32_t d = 0; d < ndim; d++)
		if (!axis_fits(&cut->axis[d], shape[d]))
			return false;
	array.flat = false;
	return dcp_cut_volume(&array, &volume) &&
	       (!cut->flat || (dcp_range_ok(cut->flat_lo, cut->flat_n, volume) &&
			       dcp_cut_volume(cut, &volume)));
}

/* Indices [lo, lo + n) of the array that a flat cut takes, or all. */
static void bound_array(const struct dcp_cut *cut, uint64_t *lo, uint64_t *end)
{
	uint64_t shape[DCP_MAX_NDIM], pos = cut->flat_lo, left = cut->flat_n;

	for (uint32_t d = 0; d < cut->ndim; d++) {
		shape[d] = cut->axis[d].len;
		lo[d] = cut->flat ? UINT64_MAX : 0;
		end[d] = cut->flat ? 0 : shape[d];
	}
	while (cut->flat && left) {
		uint64_t at[DCP_MAX_NDIM], n[DCP_MAX_NDIM];

		dcp_run_box(cut->ndim, shape, &pos, &left, at, n);
		for (uint32_t d = 0; d < cut->ndim; d++) {
			lo[d] = DCP_MIN(lo[d], at[d]);
			end[d] = DCP_MAX(end[d], at[d] + n[d]);
		}
	}
}

bool dcp_cut_bounds(const struct dcp_cut *cut, struct dcp_box *out)
{
	uint64_t from[DCP_MAX_NDIM], to[DCP_MAX_NDIM];

	if (cut->flat && cut->flat_n == 0)
		return false;
	bound_array(cut, from, to);
	for (uint32_t d = 0; d < cut->ndim; d++) {
		uint64_t lo = UINT64_MAX, end = 0;

		for (size_t i = 0; i < cut->axis[d].n; i++) {
			const struct dcp_span *s = &cut->axis[d].span[i];
			uint64_t a = DCP_MAX(s->at, from[d]), b = DCP_MIN(s->at + s->n, to[d]);

			if (a >= b)
				continue;
			lo = DCP_MIN(lo, s->lo + (a - s->at));
			end = DCP_MAX(end, s->lo + (b - s->at));
		}
		if (lo >= end)
			return false;
		out->lo[d] = lo;
		out->len[d] = end - lo;
	}
	return true;
}

int dcp_cut_copy(struct dcp_cut *out, const struct dcp_cut *cut, struct dcp_arena *arena)
{
	struct dcp_axis *axis = dcp_arena_calloc(arena, cut->ndim, sizeof(*axis));

	if (!axis)
		return -ENOMEM;
	for (uint32_t d = 0; d < cut->ndim; d++) {
		const struct dcp_axis *a = &cut->axis[d];
		struct dcp_span *span = dcp_arena_calloc(arena, a->n, sizeof(*span));

		if (!span)
			return -ENOMEM;
		if (a->n)
			memcpy(span, a->span, a->n * sizeof(*span));
		axis[d] = (struct dcp_axis){ span, a->n, a->len };
	}
	*out = *cut;
	out->axis = axis;
	return 0;
}

void dcp_run_box(uint32_t ndim, const uint64_t *shape, uint64_t *pos, uint64_t *left,
		 uint64_t *lo, uint64_t *n)
{
	uint64_t rest = *pos, volume = 1, took;
	uint32_t d = ndim;

	for (uint32_t k = ndim; k-- > 0; rest /= shape[k])
		lo[k] = rest % shape[k];
	/* whole rows of the last dimensions, as many as are left */
	while (d > 0 && lo[d - 1] == 0 && *left >= volume * shape[d - 1]) {
		d--;
		n[d] = shape[d];
		volume *= shape[d];
	}
	took = volume;
	if (d > 0) {
		d--;
		n[d] = DCP_MIN(shape[d] - lo[d], *left / volume);
		took *= n[d];
	}
	while (d > 0)
		n[--d] = 1;
	*pos += took;
	*left -= took;
}
