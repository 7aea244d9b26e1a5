/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digest: one number for what a tensor is, however it is stored.
 *
 * XXH3 with 128 bits, seed 0, over
 *
 *	the dtype's name ("BF16"), a NUL
 *	the number of dimensions and each of them, 8 bytes each, little-endian
 *	the elements as raw/ has them: row-major, little-endian
 *
 * written as 32 hex digits, the high half first. So the same tensor has the same digest in
 * every format, sharding and byte order. It is no proof against somebody who forges one.
 */
#pragma once
#include <stdint.h>

struct dcp_err;
struct dcp_view;

#define DCP_DIGEST_TEXT 33 /* with its NUL */

/* Of a view opened as DCP_AS_RAW; reads all of it. What reading gave, told in @err. */
int dcp_digest(const struct dcp_view *view, char text[DCP_DIGEST_TEXT], struct dcp_err *err);
