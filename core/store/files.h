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
struct dcp_queue;
struct dcp_unpack;

struct dcp_file {
	int fd;
	const uint8_t *map; /* whole file, read-only, shared; NULL: read calls */
	uint64_t size;      /* the descriptor may have more behind it */
};

/* How they are read. */
struct dcp_files_opts {
	bool map; /* false: no mappings, as on network file systems, where faults are slow and
		     can hang */
	struct dcp_io_counts *counts; /* what reads of views did; NULL: nobody asks */
	struct dcp_queue *queue;      /* for what is not mapped; NULL: one by one */
	struct dcp_unpack *unpack;    /* for compressed files; NULL: they cannot be read */
};

/* Borrows @dirfd, @ids and what @opts points to, which must outlive the table. */
int dcp_files_create(int dirfd, const struct dcp_file_id *ids, size_t n,
		     const struct dcp_files_opts *opts, struct dcp_files **out);
void dcp_files_destroy(struct dcp_files *f);

/* The file, opened if it is not yet. Valid until destroy. */
int dcp_files_get(struct dcp_files *f, uint32_t number, const struct dcp_file **out,
		  struct dcp_err *err);

/* A descriptor of a file that was got, whose reads bring in what they ask for and, unlike those
 * of dcp_file.fd, nothing ahead of it: for parts of a file that somebody picks out. */
int dcp_files_exact_fd(struct dcp_files *f, uint32_t number);

/* Is a file that was got still the one recorded? One fstat. 0, -ESTALE or -EIO. */
int dcp_files_check(struct dcp_files *f, uint32_t number);

/* Do offsets in it count bytes of what it decodes to? */
bool dcp_files_unpacked(const struct dcp_files *f, uint32_t number);

/* Its name, for messages. */
const char *dcp_files_name(const struct dcp_files *f, uint32_t number);

const struct dcp_files_opts *dcp_files_opts(const struct dcp_files *f);

/*
 * Does the file system of @fd lie on this machine alone? On any other, faults of mappings are
 * slow or hang, and inotify sees nothing of what other machines change. Unknown ones count as
 * others.
 */
bool dcp_is_local(int fd);
