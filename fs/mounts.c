/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/mounts.h"

#include <errno.h>
#include <string.h>
#include <sys/sysmacros.h>

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
static int parse_line(char *line, const char *path, struct dcpfs_mount *out)
{
	char *rest = line, *point = NULL, *word, *fstype, *source;
	unsigned maj, min;

	if (sscanf(line, "%*d %*d %u:%u", &maj, &min) != 2)
		return 0;
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
	out->dev = makedev(maj, min);
	return 1;
}

int dcpfs_mounts_read(FILE *mountinfo, const char *path, struct dcpfs_mount *out)
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

int dcpfs_mounts_find(const char *path, struct dcpfs_mount *out)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	int found;

	if (!f)
		return -errno;
	found = dcpfs_mounts_read(f, path, out);
	fclose(f);
	return found;
}
