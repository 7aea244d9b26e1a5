/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mounts: what is mounted where, read from /proc/self/mountinfo. That accesses none of the
 * mounted file systems, so it cannot hang on one.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define DCPFS_FSTYPE "fuse.dcpfs"

struct dcp_mount {
	char fstype[64];
	char source[256]; /* cut when longer */
	dev_t dev;
};

/*
 * The mount whose mount point is exactly @path (the topmost of several) from @mountinfo:
 * 1 and @out, or 0 when there is none. Malformed lines are skipped.
 */
int dcp_mounts_read(FILE *mountinfo, const char *path, struct dcp_mount *out);

/* The same from /proc/self/mountinfo; a negative errno when it cannot be opened. */
int dcp_mounts_find(const char *path, struct dcp_mount *out);

/*
 * Is the innermost mount that contains @path, which realpath() gave, one of dcpfs? Then @path
 * is cut to its mount point, and rest is the remainder, without a slash before it.
 */
bool dcp_mounts_around(char *path, struct dcp_mount *out, const char **rest);

/*
 * Is @dir, of a mount of dcpfs, the version whose files have that generation
 * (dcp_version_generation())?
 */
bool dcp_mounts_shows(const char *dir, uint64_t generation);

/* Everything that is mounted; nothing when that cannot be read. */
void dcp_mounts_each(void (*fn)(void *ctx, const char *point, const struct dcp_mount *m),
		     void *ctx);
