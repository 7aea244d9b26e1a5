/* SPDX-License-Identifier: Apache-2.0 */
/* mounts: the mounted file systems, from /proc/self/mountinfo. The file systems themselves are not
 * accessed, so a hanging file system blocks no caller. */
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

/* The mount whose mount point is exactly @path (the topmost of several) from @mountinfo: 1 and
 * @out, or 0 when there is none. Malformed lines are skipped. */
int dcp_mounts_read(FILE *mountinfo, const char *path, struct dcp_mount *out);

/* The same from /proc/self/mountinfo; a negative errno when it cannot be opened. */
int dcp_mounts_find(const char *path, struct dcp_mount *out);

/* Is the innermost mount that contains @path (a result of realpath()) a mount of dcpfs? If so,
 * @path is cut to the mount point, and *rest is the remainder without a leading slash. */
bool dcp_mounts_around(char *path, struct dcp_mount *out, const char **rest);

/* Is @dir, a directory in a mount of dcpfs, the version with that generation
 * (dcp_version_generation())? */
bool dcp_mounts_shows(const char *dir, uint64_t generation);

/* Call @fn for every mount; not at all if the table of mounts cannot be read. */
void dcp_mounts_each(void (*fn)(void *ctx, const char *point, const struct dcp_mount *m),
		     void *ctx);
