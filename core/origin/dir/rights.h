/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rights: who may use a file or directory of the file system, by its owner, mode and access control
 * list.
 *
 * Only the file system has these, so a file of another source is for the user of this process
 * alone. Any thread.
 */
#pragma once
#include "core/model/rights.h"

/* Rights of the user of this process alone. */
struct dcp_rights dcp_rights_alone(void);

/* The owner, the group, and the bits 0444 of the mode, as shown. -ENOENT, ... */
int dcp_rights_shown(const char *path, struct dcp_rights *out);

/*
 * The rights of users who have all permissions @need on @path, links followed. If they cannot be
 * found out, or the file system decides by more than mode and list (FUSE, SMB, unknown ones; NFSv4
 * with entries for single users), only the user of this process has rights. @dev: the last device
 * found to decide by them alone, 0 at first; NULL: count the mode and list as they are shown.
 */
struct dcp_rights dcp_rights_of_path(const char *path, uint32_t need, uint64_t *dev);
