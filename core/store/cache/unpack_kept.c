/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/cleanup.h"
#include "core/base/endian.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/origin/dir/dir.h"
#include "core/origin/source.h"
#include "core/store/cache/unpack.h"
#include "core/store/cache/unpack_int.h"

enum { BLOCK = 1 << 20, MAGIC = 16 };

static const char magic[] = "dcpfs unpacked 1";

/* ---- the record ---- */

enum field { SIZE, SRC_SIZE, SRC_DEV, SRC_INO, SRC_MTIME, SRC_CTIME, BEGAN, CONTENT, RECORD };

static uint64_t get(const uint8_t *r, enum field f)
{
	return dcp_load_le64(r + MAGIC + 8 * f);
}

static void put(uint8_t *r, enum field f, uint64_t v)
{
	dcp_store_le64(r + MAGIC + 8 * f, v);
}

static uint64_t record_hash(const uint8_t *r)
{
	return dcp_hash64(r, MAGIC + 8 * RECORD);
}

/* Hash of the first @size bytes. */
static int hash_content(int fd, uint64_t size, uint64_t *out)
{
	dcp_auto_free char *block = malloc(BLOCK);
	struct dcp_source src;
	uint64_t hash = 0;
	int rc = block ? dcp_source_fd(fd, &src) : -ENOMEM;

	for (uint64_t off = 0; rc == 0 && off < size; off += BLOCK) {
		size_t n = (size_t)DCP_MIN((uint64_t)BLOCK, size - off);

		rc = dcp_source_read(&src, off, block, n);
		if (rc == 0)
			hash = dcp_hash64_more(hash, block, n);
	}
	*out = hash;
	return rc;
}

int dcp_unpack_begin(int fd, int64_t *began_ns)
{
	struct dcp_file_id id = { 0 };
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	dcp_file_id_from_stat(&st, &id);
	*began_ns = id.mtime_ns;
	return 0;
}

static int write_record(int fd, const uint8_t *r, uint64_t at)
{
	ssize_t did = pwrite(fd, r, DCP_UNPACK_RECORD, (off_t)at);

	if (did < 0)
		return -errno;
	if (did != DCP_UNPACK_RECORD)
		return -ENOSPC;
	return fsync(fd) < 0 ? -errno : 0;
}

int dcp_unpack_seal(int fd, const struct dcp_file_id *source, uint64_t size, int64_t began_ns)
{
	uint8_t r[DCP_UNPACK_RECORD];
	uint64_t content;
	int rc = hash_content(fd, size, &content);

	if (rc < 0)
		return rc;
	memcpy(r, magic, MAGIC);
	put(r, SIZE, size);
	put(r, SRC_SIZE, source->size);
	put(r, SRC_DEV, source->dev);
	put(r, SRC_INO, source->ino);
	put(r, SRC_MTIME, (uint64_t)source->mtime_ns);
	put(r, SRC_CTIME, (uint64_t)source->ctime_ns);
	put(r, BEGAN, (uint64_t)began_ns);
	put(r, CONTENT, content);
	put(r, RECORD, record_hash(r));
	return write_record(fd, r, size);
}

static int read_record(int fd, uint8_t *r, struct dcp_err *err)
{
	struct dcp_source src;
	int rc = dcp_source_fd(fd, &src);

	if (rc == 0 && src.size >= DCP_UNPACK_RECORD)
		rc = dcp_source_read(&src, src.size - DCP_UNPACK_RECORD, r, DCP_UNPACK_RECORD);
	if (rc < 0)
		return dcp_fail(err, rc, "%s", strerror(-rc));
	if (src.size < DCP_UNPACK_RECORD || memcmp(r, magic, MAGIC) != 0 ||
	    get(r, RECORD) != record_hash(r) || get(r, SIZE) != src.size - DCP_UNPACK_RECORD)
		return dcp_fail(err, -EBADMSG, "damaged");
	return 0;
}

int dcp_unpack_check(int fd, const struct dcp_file_id *source, bool just_made, bool whole,
		     uint64_t *size, struct dcp_err *err)
{
	uint8_t r[DCP_UNPACK_RECORD];
	uint64_t content;
	int rc = read_record(fd, r, err);

	if (rc < 0)
		return rc;
	if (get(r, SRC_SIZE) != source->size || get(r, SRC_DEV) != source->dev ||
	    get(r, SRC_INO) != source->ino || get(r, SRC_MTIME) != (uint64_t)source->mtime_ns ||
	    get(r, SRC_CTIME) != (uint64_t)source->ctime_ns)
		return dcp_fail(err, -ESTALE, "made from another file");
	if (!just_made && dcp_file_id_racy(source, (int64_t)get(r, BEGAN)))
		return dcp_fail(err, -ESTALE, "its file changed just before it was decoded");
	rc = whole ? hash_content(fd, get(r, SIZE), &content) : 0;
	if (rc < 0)
		return dcp_fail(err, rc, "%s", strerror(-rc));
	if (whole && content != get(r, CONTENT))
		return dcp_fail(err, -EBADMSG, "damaged");
	*size = get(r, SIZE);
	return 0;
}
