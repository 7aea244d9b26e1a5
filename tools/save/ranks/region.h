/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region: an array in memory, with strides, as the bytes it has when it is row-major.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct save_region {
	const char *base; /* its first element */
	uint32_t itemsize, ndim;
	const uint64_t *len;   /* elements */
	const int64_t *stride; /* in elements; NULL: row-major */
};

uint64_t save_region_bytes(const struct save_region *r);

/* Do its bytes lie in memory as they are taken? */
bool save_region_is_dense(const struct save_region *r);

/* Bytes [off, off + n) of it. */
void save_region_take(const struct save_region *r, uint64_t off, void *to, uint64_t n);
