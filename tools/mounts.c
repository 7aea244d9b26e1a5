/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/mounts.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cleanup.h"

/* The kernel writes space, tab, newline and backslash as \ooo; undone in place. */
static void unescape(char *s)
{
	char *to = s;

	for (; *s; s++) {
		if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
		    s[3] >= '0' && s[3] <= '7') {
			*to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
			s += 3;
		} else {
			*to++ = *s;
		}
	}
	*to = '\0';
}

/* id parent major:minor root MOUNTPOINT options [optional fields] - FSTYPE SOURCE options */
static int parse_line(char *line, const char *path, struct mount *out)
{
	char *rest = line, *point = NULL, *word, *fstype, *source;

	for (int i = 0; i < 5; i++)
		point = strsep(&rest, " ");
	if (!point || !rest)
		return 0;
	unescape(point);
	if (strcmp(point, path) != 0)
		return 0;
	while ((word = strsep(&rest, " ")) && strcmp(word, "-") != 0)
		;
	fstype = strsep(&rest, " ");
	source = strsep(&rest, " ");
	if (!fstype || !source)
		return 0;
	unescape(source);
	snprintf(out->fstype, sizeof(out->fstype), "%s", fstype);
	snprintf(out->source, sizeof(out->source), "%s", source);
	return 1;
}

int mounts_read(FILE *mountinfo, const char *path, struct mount *out)
{
	dcp_auto_free char *line = NULL;
	size_t cap = 0;
	int found = 0;

	while (getline(&line, &cap, mountinfo) >= 0) {
		line[strcspn(line, "\n")] = '\0';
		found |= parse_line(line, path, out);
	}
	return found;
}

int mounts_find(const char *path, struct mount *out)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	int found;

	if (!f)
		return -errno;
	found = mounts_read(f, path, out);
	fclose(f);
	return found;
}

char *mounts_resolve(const char *path)
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
