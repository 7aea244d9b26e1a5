/* SPDX-License-Identifier: Apache-2.0 */
/* hash: xxHash, for names, staleness and digests, not for secrets; and hashes of files that other
 * programs know by name. The only file that sees xxhash.h. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct dcp_hash128;

/* XXH3, 64 bits, seed 0. */
uint64_t dcp_hash64(const void *p, size_t n);

/* Hash of @prev and the new bytes: for hashing a record field by field. */
uint64_t dcp_hash64_more(uint64_t prev, const void *p, size_t n);

/* XXH3, 128 bits, seed 0, of bytes added piece by piece. NULL: out of memory. */
struct dcp_hash128 *dcp_hash128_new(void);
void dcp_hash128_add(struct dcp_hash128 *h, const void *p, size_t n);
/* Stores the high half in out[0] and the low half in out[1], and frees @h. */
void dcp_hash128_end(struct dcp_hash128 *h, uint64_t out[2]);

/* Version of the xxHash library that dcpfs was built with, as "0.8.1". */
const char *dcp_hash_xxhash_version(void);
const char *dcp_hash_zlib_version(void);

/*
 * crc32: CRC-32 (IEEE 802.3), by zlib, or by instructions of the processor if there are many bytes.
 * It is for data that other programs check, because every language has it; data that only dcpfs
 * reads is checked by the xxHash functions above.
 */

/* Extend @crc, the checksum of the preceding bytes (0: none), by @n bytes. */
uint32_t dcp_crc32(uint32_t crc, const void *p, size_t n);

/* The checksum of bytes with checksum @a followed by @n bytes with checksum @b. */
uint32_t dcp_crc32_join(uint32_t a, uint32_t b, uint64_t n);

/* filehash: the hashes that programs for signing files use: SHA-256, and BLAKE2b with 64 bytes (RFC
 * 7693), which Nettle does not have. */

#define DCP_FILEHASH_MOST 64 /* largest digest in bytes */

enum dcp_filehash_kind { DCP_FILEHASH_NONE, DCP_FILEHASH_SHA256, DCP_FILEHASH_BLAKE2B };

/* The kind of the hash @name ("sha256", "blake2b"), which has @n bytes; NONE: another name. */
enum dcp_filehash_kind dcp_filehash_named(const char *name, size_t n);
size_t dcp_filehash_size(enum dcp_filehash_kind kind);

struct dcp_filehash;
/* NULL: out of memory. */
struct dcp_filehash *dcp_filehash_new(enum dcp_filehash_kind kind);
void dcp_filehash_add(struct dcp_filehash *h, const void *p, size_t n);
/* Stores the digest, and frees @h. */
void dcp_filehash_end(struct dcp_filehash *h, uint8_t out[DCP_FILEHASH_MOST]);
