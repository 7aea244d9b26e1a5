/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/mounts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "core/base/cleanup.h"

/* mountinfo spells space, tab, newline and backslash as three octal digits. */
static void unescape(char *s)
{
	char *to = s;

	for (; *s; s++) {
		if (*s == '\\' && s[1] && s[2] && s[3]) {
			*to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
			s += 3;
		} else {
			*to++ = *s;
		}
	}
	*to = '\0';
}

bool dcpfs_mount_find(const char *where, dev_t *dev)
{
	dcp_auto_free char *line = NULL;
	FILE *f = fopen("/proc/self/mountinfo", "re");
	size_t cap = 0;
	bool found = false;

	if (!f)
		return false;
	/* 36 35 98:0 /root /mount/point options [optional ...] - type source options */
	while (getline(&line, &cap, f) > 0) {
		char *type = strstr(line, " - "), *at, *end;
		unsigned ma, mi;
		int n = 0;

		if (!type || strncmp(type + 3, "fuse.dcpfs ", 11) != 0 ||
		    sscanf(line, "%*d %*d %u:%u %*s %n", &ma, &mi, &n) < 2 || !n)
			continue;
		at = line + n;
		end = strchr(at, ' ');
		if (!end)
			continue;
		*end = '\0';
		unescape(at);
		if (!strcmp(at, where)) {
			*dev = makedev(ma, mi); /* the last one is on top */
			found = true;
		}
	}
	fclose(f);
	return found;
}
