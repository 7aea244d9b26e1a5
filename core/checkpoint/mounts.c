/* SPDX-License-Identifier: Apache-2.0 */
#include "core/checkpoint/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>

#include "core/base/base.h"
#include "core/checkpoint/dcpfs_abi.h"

/* The kernel writes space, tab, newline and backslash as \ooo; replace these in place. */
static void unescape_text(char *s)
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
static int parse_line(char *line, char **path, struct dcp_mount *out)
{
	char *rest = line, *point = NULL, *word, *fstype, *source;
	unsigned maj, min;

	if (sscanf(line, "%*d %*d %u:%u", &maj, &min) != 2)
		return 0;
	for (int i = 0; i < 5; i++)
		point = strsep(&rest, " ");
	if (!point || !rest)
		return 0;
	unescape_text(point);
	*path = point;
	while ((word = strsep(&rest, " ")) && strcmp(word, "-") != 0)
		;
	fstype = strsep(&rest, " ");
	source = strsep(&rest, " ");
	if (!fstype || !source)
		return 0;
	unescape_text(source);
	snprintf(out->fstype, sizeof(out->fstype), "%s", fstype);
	snprintf(out->source, sizeof(out->source), "%s", source);
	out->dev = makedev(maj, min);
	return 1;
}

/* Read the next well-formed line. */
static bool read_mount(FILE *mountinfo, char **line, size_t *cap, char **point,
		       struct dcp_mount *out)
{
	while (getline(line, cap, mountinfo) >= 0) {
		(*line)[strcspn(*line, "\n")] = '\0';
		if (parse_line(*line, point, out))
			return true;
	}
	return false;
}

int dcp_mounts_read(FILE *mountinfo, const char *path, struct dcp_mount *out)
{
	dcp_auto_free char *line = NULL;
	struct dcp_mount m;
	size_t cap = 0;
	int found = 0;
	char *point;

	while (read_mount(mountinfo, &line, &cap, &point, &m)) {
		if (strcmp(point, path) != 0)
			continue;
		*out = m;
		found = 1;
	}
	return found;
}

void dcp_mounts_each(void (*fn)(void *ctx, const char *point, const struct dcp_mount *m),
		     void *ctx)
{
	dcp_auto_file FILE *f = fopen("/proc/self/mountinfo", "re");
	dcp_auto_free char *line = NULL;
	struct dcp_mount m;
	size_t cap = 0;
	char *point;

	while (f && read_mount(f, &line, &cap, &point, &m))
		fn(ctx, point, &m);
}

bool dcp_mounts_around(char *path, struct dcp_mount *out, const char **rest)
{
	char *end = path + strlen(path);

	*rest = end;
	for (char *slash = end; slash > path;) {
		char saved = *slash;
		int rc;

		*slash = '\0';
		rc = dcp_mounts_find(path, out);
		if (rc > 0 && strcmp(out->fstype, DCPFS_FSTYPE) == 0) {
			*rest = slash < end ? slash + 1 : end;
			return true;
		}
		*slash = saved;
		if (rc > 0)
			return false;
		do
			slash--;
		while (slash > path && *slash != '/');
	}
	return false;
}

bool dcp_mounts_shows(const char *dir, uint64_t generation)
{
	dcp_auto_fd int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct dcpfs_info info;

	return fd >= 0 && ioctl(fd, DCPFS_IOC_INFO, &info) == 0 &&
	       memcmp(info.magic, DCPFS_INFO_MAGIC, sizeof(info.magic)) == 0 &&
	       info.generation == generation;
}

int dcp_mounts_find(const char *path, struct dcp_mount *out)
{
	dcp_auto_file FILE *f = fopen("/proc/self/mountinfo", "re");

	return f ? dcp_mounts_read(f, path, out) : -errno;
}
