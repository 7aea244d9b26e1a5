/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/resolve.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"

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

enum cmd_exit cmd_find_mount(const char *given, char **path, struct dcp_mount *m)
{
	int rc;

	*path = cmd_resolve(given);
	if (!*path)
		return cmd_fail(CMD_ENV, "%s: %s", given, strerror(errno));
	rc = dcp_mounts_find(*path, m);
	if (rc == 0) {
		/* A link to a mount point: mounting follows it, too. */
		char *real = realpath(*path, NULL);

		if (real) {
			free(*path);
			*path = real;
			rc = dcp_mounts_find(real, m);
		}
	}
	if (rc < 0)
		return cmd_fail(CMD_ENV, "/proc/self/mountinfo: %s", strerror(-rc));
	if (rc == 0 && access(*path, F_OK) < 0)
		return cmd_fail(CMD_ENV, "%s: %s", *path, strerror(errno));
	if (rc == 0)
		return cmd_fail(CMD_USAGE,
				"%s is not a mount point; \"findmnt -t %s\" lists those "
				"of dcpfs",
				*path, DCPFS_FSTYPE);
	if (strcmp(m->fstype, DCPFS_FSTYPE) != 0)
		return cmd_fail(CMD_USAGE, "%s is a mount of type %s, not of dcpfs", *path,
				m->fstype);
	return CMD_OK;
}

bool cmd_is_within(const char *path, const char *dir)
{
	size_t n = strlen(dir);

	return strncmp(path, dir, n) == 0 && (path[n] == '/' || path[n] == '\0' || n == 1);
}
