/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache is disk like any other, and a flipped bit in a piece's offset would serve other bytes
 * without a word. So a finished file carries the hash of itself, in bytes 72 to 79 of its
 * header, which SQLite reserves and leaves zero; they count as zero in the hash. The file is
 * never written again, and whoever edits it by hand gets it built anew.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/cleanup.h"
#include "core/base/endian.h"
#include "core/base/hash.h"
#include "core/store/index/index_int.h"

enum { SEAL = 72, CHUNK = 1 << 18 };

/* Hash of the source with its seal taken as zero, never 0; and the seal it has. */
static int hash_source(const struct dcp_source *src, uint64_t *hash, uint64_t *seal)
{
	dcp_auto_free uint8_t *chunk = malloc(CHUNK);
	uint64_t h = 0;

	if (!chunk)
		return -ENOMEM;
	if (src->size < SEAL + sizeof(*seal))
		return -EBADMSG;
	for (uint64_t off = 0; off < src->size; off += CHUNK) {
		size_t n = (size_t)DCP_MIN((uint64_t)CHUNK, src->size - off);
		int code = dcp_source_read(src, off, chunk, n);

		if (code < 0)
			return code;
		if (off == 0) {
			*seal = dcp_load_le64(chunk + SEAL);
			memset(chunk + SEAL, 0, sizeof(*seal));
		}
		h = dcp_hash64_more(h, chunk, n);
	}
	*hash = h ? h : 1;
	return 0;
}

int dcp_index_seal(int fd)
{
	struct dcp_source src;
	uint64_t hash, seal;
	uint8_t bytes[8];
	int code = dcp_source_fd(fd, &src);

	if (code == 0)
		code = hash_source(&src, &hash, &seal);
	if (code < 0)
		return code;
	dcp_store_le64(bytes, hash);
	if (pwrite(fd, bytes, sizeof(bytes), SEAL) < 0)
		return -errno;
	return 0; /* eight bytes inside the file are written at once, or not at all */
}

int dcp_index_check_seal(const struct dcp_source *src, struct dcp_err *err)
{
	uint64_t hash, seal;
	int code = hash_source(src, &hash, &seal);

	if (code < 0)
		return dcp_fail(err, code, 0, "%s",
				code == -EBADMSG ? "not an SQLite file" : strerror(-code));
	if (hash != seal)
		return dcp_fail(err, -EBADMSG, SEAL,
				"damaged: its bytes hash to %016llx, its header says %016llx",
				(unsigned long long)hash, (unsigned long long)seal);
	return 0;
}
