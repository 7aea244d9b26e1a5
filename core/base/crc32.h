/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc32: the checksum every language has at hand (IEEE 802.3), by zlib: for what other programs
 * check. Our own files are checked with core/base/hash.h.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* Of what @crc is of (0: nothing) and @n more bytes. */
uint32_t dcp_crc32(uint32_t crc, const void *p, size_t n);
