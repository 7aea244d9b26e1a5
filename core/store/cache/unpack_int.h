/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unpack_int: decoded files in the cache directory (unpack_kept.c), for unpack.c and their
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

/* When decoding into the new file @fd begins. 0 or a negative errno. */
int dcp_unpack_begin(int fd, int64_t *began_ns);

/* Write the record after @size bytes of content, and make all of it last. */
int dcp_unpack_seal(int fd, const struct dcp_file_id *source, uint64_t size, int64_t began_ns);

/*
 * Is @fd what @source decodes to? 0 and its @size; -ESTALE: that of another state of the file,
 * or made while the file may still have been written (not asked when it was @just_made);
 * -EBADMSG: damaged. @whole: the content is read and its hash compared.
 */
int dcp_unpack_check(int fd, const struct dcp_file_id *source, bool just_made, bool whole,
		     uint64_t *size, struct dcp_err *err);
