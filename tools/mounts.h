/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mounts: what is mounted where, as /proc/self/mountinfo has it.
 */
#pragma once
#include <stddef.h>
#include <stdio.h>

#define MOUNTS_FSTYPE "fuse.dcpfs"

struct mount {
	char fstype[64];
	char source[256]; /* cut when longer */
};

/*
 * The mount whose mount point is exactly @path (the topmost of several) from @mountinfo:
 * 1 and @out, or 0 when there is none. Lines that make no sense are passed over.
 */
int mounts_read(FILE *mountinfo, const char *path, struct mount *out);

/* The same from /proc/self/mountinfo; a negative errno when it cannot be opened. */
int mounts_find(const char *path, struct mount *out);

/*
 * @path made absolute without touching its last component: a dead mount cannot be looked at,
 * and must be found by name. To be freed; NULL with errno set.
 */
char *mounts_resolve(const char *path);
