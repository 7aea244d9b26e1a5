/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/place/job.h"

#include <string.h>

static enum load_number number_of(enum dcp_dtype t)
{
	/* clang-format off */
	static const uint8_t numbers[DCP_DTYPE_COUNT] = {
		[DCP_DTYPE_F64]         = LOAD_NUMBER_F64,
		[DCP_DTYPE_F32]         = LOAD_NUMBER_F32,
		[DCP_DTYPE_F16]         = LOAD_NUMBER_F16,
		[DCP_DTYPE_BF16]        = LOAD_NUMBER_BF16,
		[DCP_DTYPE_F8_E4M3]     = LOAD_NUMBER_F8_E4M3,
		[DCP_DTYPE_F8_E5M2]     = LOAD_NUMBER_F8_E5M2,
		[DCP_DTYPE_F8_E4M3FNUZ] = LOAD_NUMBER_F8_E4M3FNUZ,
		[DCP_DTYPE_F8_E5M2FNUZ] = LOAD_NUMBER_F8_E5M2FNUZ,
		[DCP_DTYPE_F8_E8M0]     = LOAD_NUMBER_F8_E8M0,
	};
	/* clang-format on */
	return numbers[t];
}

/* The destination's dimensions; dimensions that can be one are merged. false: there are too
 * many. */
static bool take_target(struct load_job *j, const struct load_target *t)
{
	uint64_t shape[LOAD_SCATTER_TARGET + 1];
	int64_t stride[LOAD_SCATTER_TARGET + 1];
	uint32_t n = 0;

	for (uint32_t d = 0; t->stride && d < t->ndim; d++) {
		if (t->shape[d] == 1)
			continue;
		if (n && (uint64_t)stride[n - 1] == (uint64_t)t->stride[d] * t->shape[d]) {
			shape[n - 1] *= t->shape[d];
			stride[n - 1] = t->stride[d];
			continue;
		}
		if (n == LOAD_SCATTER_TARGET)
			return false;
		shape[n] = t->shape[d];
		stride[n++] = t->stride[d];
	}
	memcpy(j->shape, shape, n * sizeof(*shape));
	memcpy(j->stride, stride, n * sizeof(*stride));
	j->target_ndim = n;
	return true;
}

/* The largest unit of bytes, up to 16, to which the runs are aligned on both sides. */
static uint32_t unit_of(const struct load_job *j, uint64_t run)
{
	uint64_t all = j->src | (j->dst + j->at) | run | 16;

	for (uint32_t k = 0; k < j->ndim; k++)
		all |= j->src_stride[k] | j->dst_stride[k];
	return (uint32_t)(all & -all);
}

bool load_job_make(struct load_job *j, const struct load_target *t, const struct dcp_strided *r,
		   uint64_t src)
{
	*j = (struct load_job){ .src = src,
				.dst = (uint64_t)(uintptr_t)t->base,
				.at = r->dst,
				.elements = !t->plain,
				.from = t->from,
				.to = t->to,
				.swap = t->swap,
				.ndim = r->ndim };
	for (uint32_t k = 0; k < r->ndim; k++) {
		j->count[k] = r->count[k];
		j->src_stride[k] = r->file_stride[k];
		j->dst_stride[k] = r->dst_stride[k];
	}
	if (!t->plain && t->dtype != t->shown) {
		j->was = number_of(t->dtype);
		j->is = number_of(t->shown);
		if (!j->was || !j->is)
			return false;
	}
	if (!t->plain && !take_target(j, t))
		return false;
	j->unit = t->plain ? unit_of(j, r->run) : t->from;
	j->per_run = r->run / j->unit;
	j->units = dcp_strided_bytes(r) / j->unit;
	return true;
}

bool load_job_extend(struct load_job *j, const struct load_target *t,
		     const struct dcp_strided *r, uint64_t src)
{
	uint64_t n = j->units * j->unit, first = j->first;
	struct dcp_strided both = { .dst = j->at, .run = n + r->run };

	if (j->ndim || r->ndim || j->dst != (uint64_t)(uintptr_t)t->base || src != j->src + n ||
	    r->dst != j->at + n)
		return false;
	load_job_make(j, t, &both, j->src);
	j->first = first;
	return true;
}

bool load_job_can(const struct load_target *t)
{
	struct load_job j;

	return (t->plain || take_target(&j, t)) &&
	       (t->dtype == t->shown || (number_of(t->dtype) && number_of(t->shown)));
}
