/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/resolve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cleanup.h"

char *cmd_resolve(const char *path)
{
	dcp_auto_free char *copy = strdup(path), *parent = NULL;
	char *last, *whole;
	size_t n;

	if (!copy)
		return NULL;
	n = strlen(copy);
	while (n > 1 && copy[n - 1] == '/')
		copy[--n] = '\0';
	last = strrchr(copy, '/');
	last = last ? last + 1 : copy;
	if (!*last || strcmp(last, ".") == 0 || strcmp(last, "..") == 0)
		return realpath(copy, NULL);
	/* "a/b" is looked up as "a", "/b" as "/", "b" as "." */
	if (last == copy) {
		parent = realpath(".", NULL);
	} else {
		char first = *last;

		*last = '\0';
		parent = realpath(copy, NULL);
		*last = first;
	}
	if (!parent)
		return NULL;
	if (asprintf(&whole, "%s/%s", strcmp(parent, "/") == 0 ? "" : parent, last) < 0)
		return NULL;
	return whole;
}

bool cmd_is_within(const char *path, const char *dir)
{
	size_t n = strlen(dir);

	return strncmp(path, dir, n) == 0 && (path[n] == '/' || path[n] == '\0' || n == 1);
}
