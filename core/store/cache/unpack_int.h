/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unpack_int: decoded files in the cache directory (unpack.c), for it and their
 * test.
 *
 *	the content
 *	16 bytes "dcpfs unpacked 1"
 *	 8 bytes each, little-endian: bytes of content; size, dev, ino, mtime_ns, ctime_ns of
 *	         the compressed file; when decoding began, by the clock of the cache's file
 *	         system; hash of the content; hash of the record up to here
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct dcp_err;
struct dcp_file_id;

#define DCP_UNPACK_RECORD 88

/* Write the record after @size bytes of content, and make all of it last. */
int dcp_unpack_seal(int fd, const struct dcp_file_id *source, uint64_t size, int64_t began_ns);
