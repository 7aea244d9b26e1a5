/* SPDX-License-Identifier: Apache-2.0 */
/*
 * npy: the header that numpy.load expects in front of row-major bytes.
 *
 *   \x93NUMPY 1 0, u16 LE header length, {'descr': '<f4', 'fortran_order': False,
 *   'shape': (2, 3), }, spaces, newline; data starts at a multiple of 64.
 *   Version 2.0 (u32 length) only when the header is longer than 65535 bytes.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/model/dtype.h"

struct dcp_buf;

/*
 * Append the header for numbers of @dtype as .npy shows them (dcp_dtype_info()->npy; F4's
 * last dimension doubled, since each byte holds two numbers). A 0-dim F4 gets shape (2,).
 * Returns 0, -ENOTSUP when numpy has no such numbers (DCP_DTYPE_OTHER), or -ENOMEM.
 */
int dcp_npy_header(struct dcp_buf *out, enum dcp_dtype dtype, uint32_t ndim,
		   const uint64_t *shape);

/* Bytes dcp_npy_header() would append, by arithmetic: a listing asks it of every file. 0: none.
 */
size_t dcp_npy_header_size(enum dcp_dtype dtype, uint32_t ndim, const uint64_t *shape);
