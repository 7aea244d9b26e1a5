/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resolve: a path from the command line, absolute, without asking what it names.
 */
#pragma once
#include <stdbool.h>

/*
 * @path made absolute without touching its last component: a dead mount cannot be looked at,
 * and must be found by name. To be freed; NULL with errno set.
 */
char *cmd_resolve(const char *path);

/* Is @path @dir or below it? Both absolute and resolved. */
bool cmd_is_within(const char *path, const char *dir);
