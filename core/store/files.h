/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files: the backing files of one version, opened and mapped at first use.
 *
 * Safe from any thread: a slot is filled once, under a lock that is not held while bytes are
 * read, and stays as it is until the table is destroyed.
 *
 * A file must look as the index recorded it (device, inode, size, mtime, ctime) when it is
 * opened and whenever dcp_files_check() is asked: anything else is -ESTALE, a file that
 * became shorter than recorded -EIO. So bytes of another save are never served as this one's.
 *
 * Of a compressed file (unpacked is not 0) the decoded content is opened, and decoded again if
 * it is no longer in the cache; what is compared is the compressed file.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/tensor.h"

struct dcp_err;
struct dcp_files;
struct dcp_io_counts;
struct dcp_unpack;

struct dcp_file {
	int fd;
	const uint8_t *map; /* whole file, read-only, shared; NULL: read it with pread */
	uint64_t size;      /* the descriptor may have more behind it */
};

/*
 * Borrows @dirfd, @ids and @unpack (which may be NULL), which must outlive the table. @map:
 * false forces pread (network file systems are read that way anyhow: faults there are slow and
 * can hang). @counts: where reads of views are counted (core/store/fetch.h); NULL: nowhere.
 */
int dcp_files_create(int dirfd, const struct dcp_file_id *ids, size_t n, bool map,
		     struct dcp_unpack *unpack, struct dcp_io_counts *counts,
		     struct dcp_files **out);
void dcp_files_destroy(struct dcp_files *f);

/* The file, opened if it is not yet. Valid until destroy. */
int dcp_files_get(struct dcp_files *f, uint32_t number, const struct dcp_file **out,
		  struct dcp_err *err);

/* Is a file that was got still the one recorded? One fstat. 0, -ESTALE or -EIO. */
int dcp_files_check(struct dcp_files *f, uint32_t number);

/* Do offsets in it count bytes of what it decodes to? */
bool dcp_files_unpacked(const struct dcp_files *f, uint32_t number);

/* Its name, for messages. */
const char *dcp_files_name(const struct dcp_files *f, uint32_t number);

struct dcp_io_counts *dcp_files_counts(const struct dcp_files *f);
