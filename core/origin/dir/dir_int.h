/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir_int: declarations that the files behind dir.h share; only these files and their tests include
 * it.
 *
 *	dir.c          listing; functions for any directory; directories inside archives
 *	local.c        the file system: entries of a directory, identities, pages in memory
 *	open.c         opening below a directory, also without openat2; links that may lead out
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "core/origin/dir/dir.h"

/* ---- open.c ---- */

/* Open a regular file below @dirfd for reading; @name may contain '/'. O_CLOEXEC always. -EXDEV:
 * the name leads outside; -EISDIR / -EINVAL: not a regular file. @st may be NULL. */
int dcp_open_beneath(int dirfd, const char *name, int *fd, struct stat *st,
		     struct dcp_err *err);

/* Open the file or directory @name below @dirfd. Returns a descriptor, or a negative errno. */
int dcp_open_below(int dirfd, const char *name, int flags);

/* Write to @err why @name could not be opened. Returns @code. */
int dcp_open_fail(struct dcp_err *err, int code, const char *name);

/* Open one component after the other, and refuse every link with -EXDEV. */
int dcp_open_walk(int dirfd, const char *name, int flags);

/* Open the file that a link of Hugging Face's cache leads to (see open.c). -EXDEV: @name is no such
 * link. */
int dcp_open_blob(int dirfd, const char *name, int flags);

/* ---- local.c ---- */

#define DCP_DIR_MAX_NAMES 1000000

/* Size limit for the arena of a directory with that path: a million names of 255 bytes, and their
 * entries. */
size_t dcp_dir_memory(const char *path);
