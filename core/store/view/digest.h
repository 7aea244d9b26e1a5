/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digest: a hash of the content of a tensor, independent of how it is stored.
 *
 * XXH3 with 128 bits, seed 0, or SHA-256, over
 *
 *	the dtype's name ("BF16"), a NUL
 *	the number of dimensions and each of them, 8 bytes each, little-endian
 *	the elements as raw/ has them: row-major, little-endian
 *
 * written as 32 hex digits, the high half first, or 64. So the same tensor has the same digest
 * in every format, sharding and byte order. XXH3 does not protect against forgery.
 *
 * SHA-256 is Nettle's, which libarchive depends on. digest.c is the only file that includes its
 * headers.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct dcp_digesting;
struct dcp_err;
struct dcp_progress;
struct dcp_view;

#define DCP_DIGEST_TEXT 65 /* with its NUL */

enum dcp_digest_kind { DCP_DIGEST_XXH3, DCP_DIGEST_SHA256 };

/* The same in steps, for a caller that reads the elements itself: begin, add them in order,
 * end. NULL: out of memory. */
struct dcp_digesting *dcp_digest_begin(enum dcp_digest_kind kind, const char *dtype_name,
				       uint32_t ndim, const uint64_t *shape);
void dcp_digest_add(struct dcp_digesting *d, const void *p, size_t n);
/* Writes the digest, and frees @d. */
void dcp_digest_end(struct dcp_digesting *d, char text[DCP_DIGEST_TEXT]);

/* The digest of a view opened as DCP_AS_RAW. Reads all of it and reports the bytes read to
 * @progress (may be NULL) under the tensor's key. 0, or what reading gave, with @err set. */
int dcp_digest(const struct dcp_view *view, enum dcp_digest_kind kind,
	       const struct dcp_progress *progress, char text[DCP_DIGEST_TEXT],
	       struct dcp_err *err);

/* "3.8": the version of Nettle that dcpfs was built with. */
const char *dcp_digest_nettle_version(void);
