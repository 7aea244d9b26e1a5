/* SPDX-License-Identifier: Apache-2.0 */
/*
 * differ: how two arrays of one shape differ.
 *
 * Elements are equal where their bits are, so a NaN equals itself. Of one dtype they are
 * compared by bits; of two, as numbers, and two NaNs are then equal. Distances are of pairs of
 * finite numbers. Both parts of a complex number are numbers, and both values of a byte of F4;
 * an unknown type is compared by bits alone.
 *
 * Parts may be compared by several threads, and are then joined in order. Nothing here allocates.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/dtype.h"

/* ulps[0]: the same; ulps[k]: 2^(k-1) or more, and less than 2^k, values of the type lie
 * between them. */
#define DCP_DIFFER_ULPS 65

struct dcp_difference {
	uint64_t n;       /* elements */
	uint64_t changed; /* that differ */
	uint64_t first;   /* the first of these, or DCP_NO_INDEX */
	uint64_t far;     /* numbers further apart than atol + rtol * |b| */
	uint64_t nans;    /* numbers that are changed and NaN or infinite on one side or both */
	uint64_t pairs;   /* of finite numbers */
	double max_abs, sum_abs, max_rel,
		sum_rel;       /* relative to the larger of both magnitudes */
	double aa, bb, ab, dd; /* sums of a * a, b * b, a * b and (a - b)^2 */
	uint64_t ulps[DCP_DIFFER_ULPS];
};

struct dcp_tolerance {
	double rtol, atol;
};

void dcp_difference_init(struct dcp_difference *d);

/* Can elements of both types be compared as numbers, where they are not the same type? */
bool dcp_can_differ(enum dcp_dtype a, enum dcp_dtype b);

/*
 * Add @n elements of type @ta at @a and of @tb at @b, aligned to them and of @itemsize bytes
 * where the types are the same; @first is the number of the first. Where the types differ,
 * dcp_can_differ().
 */
void dcp_difference_add(struct dcp_difference *d, const struct dcp_tolerance *tolerance,
			enum dcp_dtype ta, const void *a, enum dcp_dtype tb, const void *b,
			uint32_t itemsize, uint64_t first, size_t n);

/* Add what was found in elements that come later. */
void dcp_difference_join(struct dcp_difference *d, const struct dcp_difference *later);

/* |a - b| / |a| and a * b / |a| |b| of all; NaN where a divisor is 0. */
double dcp_difference_relative(const struct dcp_difference *d);
double dcp_difference_cosine(const struct dcp_difference *d);
