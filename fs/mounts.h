/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mounts: is something of ours mounted there? Read from /proc/self/mountinfo, which asks no
 * file system anything and so cannot hang on one.
 */
#pragma once
#include <stdbool.h>
#include <sys/types.h>

/* Device of the dcpfs mount at the absolute, canonical path @where; false: there is none. */
bool dcpfs_mount_find(const char *where, dev_t *dev);
