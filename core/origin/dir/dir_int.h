/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir_int: what the files behind dir.h share; only they and their tests include it.
 *
 *	dir.c          listing; what is asked of any directory; directories whose files are members of
 *	               archives
 *	local.c        what stands in one of the file system, and which file each is
 *	open.c         opening what lies below one, without help of the kernel, too; the one kind of
 *	               link that leads out
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "core/origin/dir/dir.h"

/* ---- open.c ---- */

/* A descriptor of what lies below @dirfd, or a negative errno. */
int dcp_open_below(int dirfd, const char *name, int flags);

/* Say why @name could not be opened. Returns @code. */
int dcp_open_fail(struct dcp_err *err, int code, const char *name);

/* One component at a time, refusing every link with -EXDEV. */
int dcp_open_walk(int dirfd, const char *name, int flags);

/* The file that a link of Hugging Face's cache leads to; see open.c. -EXDEV: no such link.
 */
int dcp_open_blob(int dirfd, const char *name, int flags);

/* ---- dir.c ---- */

#define DCP_DIR_MAX_NAMES 1000000

/* Limit of the arena of a directory of that path: a million names of 255 bytes, and their
 * entries. */
size_t dcp_dir_memory(const char *path);
