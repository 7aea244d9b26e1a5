/* SPDX-License-Identifier: Apache-2.0 */
/*
 * filehash: hashes of bytes that programs which sign files know by name: SHA-256, and BLAKE2b with
 * 64 bytes (RFC 7693), which Nettle does not have.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define DCP_FILEHASH_MOST 64 /* bytes of a digest */

enum dcp_filehash_kind { DCP_FILEHASH_NONE, DCP_FILEHASH_SHA256, DCP_FILEHASH_BLAKE2B };

/* Of "sha256" or "blake2b", @n bytes; NONE: it is another. */
enum dcp_filehash_kind dcp_filehash_named(const char *name, size_t n);
size_t dcp_filehash_size(enum dcp_filehash_kind kind);

struct dcp_filehash;
/* NULL: out of memory. */
struct dcp_filehash *dcp_filehash_new(enum dcp_filehash_kind kind);
void dcp_filehash_add(struct dcp_filehash *h, const void *p, size_t n);
/* Stores the digest, and frees @h. */
void dcp_filehash_end(struct dcp_filehash *h, uint8_t out[DCP_FILEHASH_MOST]);
