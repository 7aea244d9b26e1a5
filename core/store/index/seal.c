/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache is disk like any other, and a flipped bit in a piece's offset would serve other bytes
 * without a word. So a finished file ends in a table of the hashes of its pages, eight bytes
 * each, and the hash of that table lies in bytes 72 to 79 of the header, which SQLite reserves
 * (they count as zero in the hash of their page). Opening reads the table, and every page is
 * compared when it is read, so what is never asked for costs nothing. The file is never written
 * again; an index that was edited by hand is rebuilt.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/cleanup.h"
#include "core/base/endian.h"
#include "core/base/hash.h"
#include "core/store/index/index_int.h"

enum { SEAL = 72, PAGE_SIZE = 16, PAGES = 28, HEADER = 100, HASH = sizeof(uint64_t) };

/* Of the page number @i. */
static uint64_t hash_page(uint64_t i, const uint8_t *page)
{
	uint64_t h = dcp_hash64_more(i, page, i ? DCP_SQL_PAGE : SEAL);

	return i ? h : dcp_hash64_more(h, page + SEAL + HASH, DCP_SQL_PAGE - SEAL - HASH);
}

/* Of the table, never 0. */
static uint64_t hash_table(const uint8_t *table, uint64_t pages)
{
	uint64_t h = dcp_hash64(table, pages * HASH);

	return h ? h : 1;
}

/* How many pages the header speaks of, all of which @src has, and the seal in it. */
static int read_header(const struct dcp_source *src, uint64_t *pages, uint64_t *seal)
{
	uint8_t h[HEADER];
	int rc = dcp_source_read(src, 0, h, sizeof(h));

	if (rc < 0)
		return rc;
	*pages = dcp_load_be32(h + PAGES);
	*seal = dcp_load_le64(h + SEAL);
	if (dcp_load_be16(h + PAGE_SIZE) != DCP_SQL_PAGE || !*pages ||
	    *pages > src->size / DCP_SQL_PAGE)
		return -EBADMSG;
	return 0;
}

static int write_all(int fd, const uint8_t *from, size_t n, uint64_t off)
{
	while (n) {
		ssize_t put = pwrite(fd, from, n, (off_t)off);

		if (put < 0)
			return -errno;
		from += put;
		off += (uint64_t)put;
		n -= (size_t)put;
	}
	return 0;
}

int dcp_index_seal(int fd)
{
	dcp_auto_free uint8_t *table = NULL;
	uint8_t page[DCP_SQL_PAGE];
	struct dcp_source src;
	uint64_t pages, old;
	int rc = dcp_source_fd(fd, &src);

	if (rc == 0)
		rc = read_header(&src, &pages, &old);
	if (rc < 0)
		return rc;
	table = malloc(pages * HASH);
	if (!table)
		return -ENOMEM;
	for (uint64_t i = 0; i < pages; i++) {
		rc = dcp_source_read(&src, i * DCP_SQL_PAGE, page, DCP_SQL_PAGE);
		if (rc < 0)
			return rc;
		dcp_store_le64(table + i * HASH, hash_page(i, page));
	}
	if (ftruncate(fd, (off_t)(pages * DCP_SQL_PAGE)) < 0)
		return -errno;
	rc = write_all(fd, table, pages * HASH, pages * DCP_SQL_PAGE);
	if (rc < 0)
		return rc;
	dcp_store_le64(page, hash_table(table, pages));
	return write_all(fd, page, HASH, SEAL);
}

/* The next process that opens it finds it damaged and rebuilds it; where it may not be written
 * here, that is left to that process. */
static void break_seal(const struct dcp_index_sealed *s)
{
	static const uint8_t none[HASH];
	dcp_auto_fd int fd = -1;
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", s->file.blob.fd);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd >= 0)
		write_all(fd, none, sizeof(none), SEAL);
}

static int read_page(struct dcp_index_sealed *s, uint64_t i, uint8_t *page)
{
	int rc = dcp_source_read(&s->file, i * DCP_SQL_PAGE, page, DCP_SQL_PAGE);

	if (rc < 0 || hash_page(i, page) == dcp_load_le64(s->table + i * HASH))
		return rc;
	if (!__atomic_exchange_n(&s->damaged, true, __ATOMIC_RELAXED))
		break_seal(s);
	return -EBADMSG;
}

static int read_sealed(const struct dcp_source *src, uint64_t off, void *buf, size_t n)
{
	struct dcp_index_sealed *s = (struct dcp_index_sealed *)(uintptr_t)src->mem;
	uint8_t *to = buf, page[DCP_SQL_PAGE];

	while (n) {
		size_t at = off % DCP_SQL_PAGE, part = DCP_MIN(n, DCP_SQL_PAGE - at);
		int rc = read_page(s, off / DCP_SQL_PAGE, part == DCP_SQL_PAGE ? to : page);

		if (rc < 0)
			return rc;
		if (part < DCP_SQL_PAGE)
			memcpy(to, page + at, part);
		to += part;
		off += part;
		n -= part;
	}
	return 0;
}

int dcp_index_unseal(struct dcp_index_sealed *s, const struct dcp_source *file,
		     struct dcp_source *out, struct dcp_err *err)
{
	uint64_t pages = 0, seal = 0, found;
	int rc = read_header(file, &pages, &seal);

	if (rc == 0 && file->size != pages * (DCP_SQL_PAGE + HASH))
		rc = -EBADMSG;
	if (rc == 0 && !(s->table = malloc(pages * HASH)))
		rc = -ENOMEM;
	if (rc == 0)
		rc = dcp_source_read(file, pages * DCP_SQL_PAGE, s->table, pages * HASH);
	if (rc < 0)
		return dcp_fail_at(err, rc, 0, "%s",
				   rc == -EBADMSG
					   ? "damaged: its size is not what its header says"
					   : strerror(-rc));
	found = hash_table(s->table, pages);
	if (found != seal)
		return dcp_fail_at(
			err, -EBADMSG, SEAL,
			"damaged: its pages hash to %016llx, its header says %016llx",
			(unsigned long long)found, (unsigned long long)seal);
	s->file = *file;
	*out = (struct dcp_source){ .read = read_sealed,
				    .mem = s,
				    .size = pages * DCP_SQL_PAGE };
	return 0;
}
