/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc32: CRC-32 (IEEE 802.3), by zlib and, of many bytes, the processor, for data that other programs check, since every
 * language has it. Data that only dcpfs reads is checked with core/base/hash.h.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* Extend @crc, the checksum of the preceding bytes (0: none), by @n bytes. */
uint32_t dcp_crc32(uint32_t crc, const void *p, size_t n);

/* The checksum of the bytes of checksum @a followed by the @n bytes of checksum @b. */
uint32_t dcp_crc32_join(uint32_t a, uint32_t b, uint64_t n);
