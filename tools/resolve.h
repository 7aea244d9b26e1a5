/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resolve: a path from the command line, absolute, without asking what it names.
 */
#pragma once
#include <stdbool.h>

#include "core/checkpoint/mounts.h"
#include "tools/cmd.h"

/*
 * @path made absolute without touching its last component: a dead mount cannot be looked at,
 * and must be found by name. To be freed; NULL with errno set.
 */
char *cmd_resolve(const char *path);

/*
 * The mount of dcpfs at @given, which may be a link to it, or dead: its mount point into *path, to
 * be freed, and what the kernel knows of it. If there is none, it prints why.
 */
enum cmd_exit cmd_find_mount(const char *given, char **path, struct dcp_mount *m);

/* Is @path @dir or below it? Both absolute and resolved. */
bool cmd_is_within(const char *path, const char *dir);
