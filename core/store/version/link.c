/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that are not a checkpoint but name one: where links cannot be, or could not be kept, a
 * text holds what the link would lead to.
 *
 *	latest-rank0.pt           "ep1-ba6-rank0.pt"
 *	latest-rank0.pt.symlink   "run/checkpoints/ep1-ba6-rank0.pt" (Composer, object stores)
 *
 * Only a name beside the file counts: of a longer one, the last component.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cleanup.h"
#include "core/origin/dir/dir.h"
#include "core/store/version/version_int.h"

enum { MAX_TEXT = 1024 };

/* The one name in the text; false when it is none. */
static bool take_name(char *text, size_t n, char name[NAME_MAX + 1])
{
	const char *slash;

	while (n && (text[n - 1] == '\n' || text[n - 1] == '\r'))
		n--;
	text[n] = '\0';
	if (n == 0 || strlen(text) != n || strpbrk(text, "\r\n"))
		return false;
	slash = strrchr(text, '/');
	slash = slash ? slash + 1 : text;
	if (!*slash || strlen(slash) > NAME_MAX || !strcmp(slash, ".") || !strcmp(slash, ".."))
		return false;
	memcpy(name, slash, strlen(slash) + 1);
	return true;
}

static bool read_name(const struct dcp_dir *dir, const char *file, char name[NAME_MAX + 1])
{
	char text[MAX_TEXT + 1];
	dcp_auto_input struct dcp_input in = { 0 };
	bool ok;

	if (dcp_dir_input(dir, file, &in, NULL) < 0)
		return false;
	ok = in.src.size > 0 && in.src.size <= MAX_TEXT &&
	     dcp_source_read(&in.src, 0, text, (size_t)in.src.size) == 0 &&
	     take_name(text, (size_t)in.src.size, name);
	return ok;
}

bool dcp_is_text_link(const struct dcp_dir *dir, const struct dcp_dirent *e)
{
	char name[NAME_MAX + 1];

	return !e->is_dir && e->size > 0 && e->size <= MAX_TEXT &&
	       read_name(dir, e->name, name) && strcmp(name, e->name) != 0 &&
	       dcp_dir_find(dir, name);
}

/* What the text file @path leads to, or NULL. */
static char *target_of(const char *path)
{
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
	const char *end = strstr(base, ".symlink");
	char name[NAME_MAX + 1], *out = NULL;
	struct dcp_dir dir;
	struct dcp_dirent e;

	if (strncmp(base, "latest", 6) != 0 && (!end || end[8]))
		return NULL;
	if (dcp_path_look(path, &e) < 0 || !e.size || e.size > MAX_TEXT ||
	    dcp_dir_open(path, &dir, NULL) < 0)
		return NULL;
	if (dir.n == 1 && read_name(&dir, dir.entries[0].name, name) &&
	    asprintf(&out, "%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, name) < 0)
		out = NULL;
	dcp_dir_close(&dir);
	if (out && dcp_path_look(out, &e) < 0) {
		free(out);
		out = NULL;
	}
	return out;
}

int dcp_source_resolve(const char *source, char **out)
{
	dcp_auto_free char *link = NULL;
	struct dcp_dirent e;

	*out = target_of(source);
	if (!*out && dcp_path_look(source, &e) == -ENOENT) {
		if (asprintf(&link, "%s.symlink", source) < 0) {
			link = NULL;
			return -ENOMEM;
		}
		*out = target_of(link);
	}
	if (!*out)
		*out = strdup(source);
	return *out ? 0 : -ENOMEM;
}
