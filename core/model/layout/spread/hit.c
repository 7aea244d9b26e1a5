/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hit: the hits of a walk over ranks, made and read.
 */

#include "core/model/layout/spread/spread_int.h"

bool dcp_spread_step(struct spread_walk *w, const struct spread_step *step, uint32_t i,
		     uint32_t *end)
{
	struct dcp_spread_hit *hit = &w->hit;
	bool has = step->has[i];
	uint32_t last = step->all ? *end : i + 1;

	while (last < *end && step->has[last] == has)
		last++;
	*end = last;
	if (!has)
		return false;
	hit->first += i * step->stride;
	if (last - i > 1) {
		hit->dim[hit->ndim].count = last - i;
		hit->dim[hit->ndim++].stride = step->stride;
	}
	return true;
}

uint32_t dcp_spread_parts(const struct dcp_spread_hit *hit)
{
	uint32_t n = 1;

	for (uint32_t k = 0; k < hit->ndim; k++)
		n *= hit->dim[k].count;
	return n;
}

uint32_t dcp_spread_part(const struct dcp_spread_hit *hit, uint32_t i)
{
	uint32_t first = hit->first;

	for (uint32_t k = hit->ndim; k-- > 0; i /= hit->dim[k].count)
		first += i % hit->dim[k].count * hit->dim[k].stride;
	return first;
}

static void add(const struct dcp_spread *s, const struct dcp_spread_hit *hit, uint32_t k,
		uint32_t first, uint64_t v, uint64_t *sums)
{
	uint32_t count = k < hit->ndim ? hit->dim[k].count : 1;
	uint32_t stride = k < hit->ndim ? hit->dim[k].stride : 0;

	if (k + 1 < hit->ndim || (k < hit->ndim && s->ncopies > 1))
		for (uint32_t i = 0; i < count; i++)
			add(s, hit, k + 1, first + i * stride, v, sums);
	else if (k == hit->ndim)
		for (uint32_t i = 0; i < s->ncopies; i++)
			sums[first + s->copies[i]] += v;
	else
		for (uint32_t i = 0; i < count; i++)
			sums[first + i * stride] += v;
}

void dcp_spread_add(const struct dcp_spread *s, const struct dcp_spread_hit *hit, uint64_t v,
		    uint64_t *sums)
{
	add(s, hit, 0, hit->first, v, sums);
}
