/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tags: other names that the source itself has for its versions.
 *
 *	latest -> step-500                        a link to a version
 *	latest                                    DeepSpeed: a file with the name of one
 *	latest_checkpointed_iteration.txt         Megatron: a number, of iter_0000500
 *	latest-rank0.pt.symlink                   Composer: a file with a path
 *	latest-rank0.pt                           its link, kept as a file with a name
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/cleanup.h"
#include "core/base/text.h"
#include "core/origin/dir/dir.h"
#include "core/origin/dir/seen.h"
#include "core/store/version/version_int.h"

enum { MAX_TEXT = 512, MAX_TAGS = 1000 };

/* Is @text the name of @f, or of its directory, its group or one of its files? */
static bool names(const char *text, const struct dcp_found *f)
{
	char group[DCP_GROUP_MAX];

	if (!strcmp(text, f->name) || (*text && !strcmp(text, f->where)))
		return true;
	return f->group && (!strcmp(text, f->group) ||
			    (f->format->group(text, group) && !strcmp(group, f->group)));
}

static const struct dcp_found *named(const struct dcp_scan *scan, const char *text)
{
	for (size_t i = 0; i < scan->n; i++)
		if (names(text, &scan->found[i]))
			return &scan->found[i];
	return NULL;
}

/* The version that @text means: by name, by the last component of a path, or by number. */
static const struct dcp_found *meant(const struct dcp_scan *scan, char *text)
{
	size_t n = strcspn(text, "\r\n");
	const struct dcp_found *found;
	char padded[64], *base;

	while (n && (text[n - 1] == ' ' || text[n - 1] == '/'))
		n--;
	text[n] = '\0';
	base = strrchr(text, '/');
	base = base ? base + 1 : text;
	n = strlen(base);
	found = n ? named(scan, base) : NULL;
	if (found || n == 0 || n > 18 || base[strspn(base, "0123456789")])
		return found;
	snprintf(padded, sizeof(padded), "iter_%.*s%s", n < 7 ? (int)(7 - n) : 0, "0000000",
		 base);
	return named(scan, padded);
}

/* What a link leads to, or what a file that is known to hold a name says. */
static bool read_target(const struct dcp_dir *dir, const struct dcp_dirent *e,
			char text[MAX_TEXT])
{
	static const char *const files[] = { "latest", "latest_universal", "best", "last",
					     "latest_checkpointed_iteration.txt" };
	ssize_t n = e->is_link ? readlinkat(dir->at.fd, e->name, text, MAX_TEXT - 1) : -1;
	dcp_auto_blob struct dcp_blob blob = { 0 };
	bool known = dcp_has_extension(e->name, ".symlink") ||
		     (strncmp(e->name, "latest", 6) == 0 && dcp_is_text_link(dir, e));

	for (size_t i = 0; i < DCP_LEN(files); i++)
		known |= strcmp(e->name, files[i]) == 0;
	if (n < 0 && known && !e->is_dir && e->size < MAX_TEXT) {
		dcp_dir_note(dir, e->name);
		if (dcp_seen_opening(dir->at.seen, dcp_site_open(&dir->at, e->name, &blob, NULL,
								 NULL)) == 0 &&
		    dcp_blob_read(&blob, 0, text, DCP_MIN(blob.size, (uint64_t)MAX_TEXT - 1)) ==
			    0)
			n = (ssize_t)DCP_MIN(blob.size, (uint64_t)MAX_TEXT - 1);
	}
	if (n <= 0)
		return false;
	text[n] = '\0';
	return strlen(text) == (size_t)n;
}

static int add(struct dcp_scan *scan, const char *name, const struct dcp_found *found)
{
	struct dcp_tag *t = &scan->tags[scan->ntags];

	if (!found || strcmp(found->name, name) == 0)
		return 0;
	t->name = dcp_arena_strdup(&scan->arena, name);
	t->version = found->name;
	scan->ntags++;
	return t->name ? 0 : -ENOMEM;
}

int dcp_scan_tags(struct dcp_scan *scan, const struct dcp_dir *dir)
{
	char text[MAX_TEXT];
	int rc = 0;

	if (scan->single || dir->is_file)
		return 0;
	scan->tags = dcp_arena_calloc(&scan->arena, DCP_MIN(dir->n, (size_t)MAX_TAGS),
				      sizeof(*scan->tags));
	if (!scan->tags)
		return -ENOMEM;
	for (size_t i = 0; rc == 0 && i < dir->n && scan->ntags < MAX_TAGS; i++)
		if (read_target(dir, &dir->entries[i], text))
			rc = add(scan, dir->entries[i].name, meant(scan, text));
	return rc;
}
