/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/save/ranks/region.h"

#include <string.h>

#include "core/base/base.h"

uint64_t save_region_bytes(const struct save_region *r)
{
	uint64_t n = r->itemsize;

	for (uint32_t d = 0; d < r->ndim; d++)
		n *= r->len[d];
	return n;
}

/*
 * How many of the first dimensions are counted: the elements of all others lie together, @run
 * bytes.
 */
static uint32_t counted(const struct save_region *r, uint64_t *run)
{
	uint32_t k = r->ndim;

	*run = r->itemsize;
	while (k && (!r->stride || r->len[k - 1] == 1 ||
		     r->stride[k - 1] * (int64_t)r->itemsize == (int64_t)*run))
		*run *= r->len[--k];
	return k;
}

bool save_region_is_dense(const struct save_region *r)
{
	uint64_t run;

	return counted(r, &run) == 0;
}

/*
 * Runs @q, @q + 1, ... of the innermost counted dimension, at most @n: the first, and bytes between
 * two.
 */
static const char *row(const struct save_region *r, uint32_t k, uint64_t q, uint64_t *n,
		       int64_t *step)
{
	const char *at = r->base;

	*step = r->stride[k - 1] * (int64_t)r->itemsize;
	*n = DCP_MIN(*n, r->len[k - 1] - q % r->len[k - 1]);
	for (uint32_t d = k; d--; q /= r->len[d])
		at += (int64_t)(q % r->len[d]) * r->stride[d] * (int64_t)r->itemsize;
	return at;
}

static char *copy_row(char *to, const char *from, int64_t step, uint64_t run, uint64_t n)
{
	/* Elements one by one: with their size known, the compiler has no calls in the loop. */
	for (; run == 2 && n; n--, to += 2, from += step)
		memcpy(to, from, 2);
	for (; run == 4 && n; n--, to += 4, from += step)
		memcpy(to, from, 4);
	for (; n; n--, to += run, from += step)
		memcpy(to, from, run);
	return to;
}

void save_region_take(const struct save_region *r, uint64_t off, void *to, uint64_t n)
{
	uint64_t run, part;
	uint32_t k = counted(r, &run);
	char *out = to;

	if (k == 0 && n)
		memcpy(out, r->base + off, n);
	while (k && n) {
		uint64_t runs = n / run;
		int64_t step;
		const char *from;

		part = off % run;
		if (part || !runs) { /* not from its beginning to its end */
			uint64_t some = DCP_MIN(run - part, n);

			runs = 1;
			from = row(r, k, off / run, &runs, &step);
			memcpy(out, from + part, some);
			out += some;
			off += some;
			n -= some;
			continue;
		}
		from = row(r, k, off / run, &runs, &step);
		out = copy_row(out, from, step, run, runs);
		off += runs * run;
		n -= runs * run;
	}
}
