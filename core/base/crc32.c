/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/crc32.h"

#include <zlib.h>

uint32_t dcp_crc32(uint32_t crc, const void *p, size_t n)
{
	return (uint32_t)crc32_z(crc, p, n);
}

uint32_t dcp_crc32_join(uint32_t a, uint32_t b, uint64_t n)
{
	return (uint32_t)crc32_combine(a, b, (z_off_t)n);
}
