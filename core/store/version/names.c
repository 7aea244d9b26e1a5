/* SPDX-License-Identifier: Apache-2.0 */
/* Names of versions: from directories, numbers, tags, links, and texts that name a version. */
#include "core/store/version/version_int.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/base/text.h"
#include "core/format/format.h"
#include "core/model/name.h"
#include "core/origin/dir/dir.h"
#include "core/store/cache/cache.h"
#include "core/store/index/index.h"

static int by_name(const void *a, const void *b)
{
	const struct dcp_found *x = a, *y = b;

	return dcp_order_compare(x->name, x->commit_ns, y->name, y->commit_ns);
}

static int rename_found(struct dcp_scan *scan, struct dcp_found *f)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;

	dcp_buf_printf(&name, "%s@%s", f->name, f->format->name);
	f->name = dcp_buf_error(&name) ? NULL : dcp_arena_strndup(&scan->arena, name.p, name.n);
	return f->name ? 0 : -ENOMEM;
}

/*
 * A loose file and a directory may have the same name; then they become "step-5" and
 * "step-5@torch-save". Names that a mount uses itself, and "latest", which always means the newest
 * version, are never given to a version.
 */
int dcp_scan_part_names(struct dcp_scan *scan)
{
	static const char *const taken[] = { "latest", "tags", "by-key" };
	struct dcp_found *f = scan->found;
	int code = 0;

	for (size_t i = 0; code == 0 && i < scan->n; i++)
		for (size_t k = 0; code == 0 && k < DCP_LEN(taken); k++)
			if (strcmp(f[i].name, taken[k]) == 0)
				code = rename_found(scan, &f[i]);
	/* A new name may also be taken, so repeat until all names differ. */
	for (bool same = true; code == 0 && same;) {
		same = false;
		qsort(f, scan->n, sizeof(*f), by_name);
		for (size_t i = 0; code == 0 && i + 1 < scan->n; i++)
			if (strcmp(f[i].name, f[i + 1].name) == 0) {
				same = true;
				code = rename_found(scan, f[i].group ? &f[i] : &f[i + 1]);
			}
	}
	return code;
}

/* Is one of the digit runs of @name the number @want? Leading zeros do not count. */
static bool has_number(const char *name, uint64_t want)
{
	while (*name) {
		size_t n = strspn(name, "0123456789");
		const char *p = name;
		uint64_t v;

		if (n && dcp_take_number(&p, NULL, DCP_ANY_DIGITS, &v) && v == want)
			return true;
		name += n ? n : 1;
	}
	return false;
}

int dcp_found_match(const struct dcp_found *found, size_t n, const char *name, size_t *at)
{
	size_t hits = 0, hit = 0;
	const char *end = name;
	uint64_t number;

	for (size_t i = 0; i < n; i++) {
		if (strcmp(found[i].name, name) == 0) {
			*at = i;
			return 0;
		}
	}
	if (!dcp_take_number(&end, NULL, DCP_ANY_DIGITS, &number) || *end)
		return -ENOENT;
	for (size_t i = 0; i < n; i++) {
		if (has_number(found[i].name, number)) {
			hit = i;
			hits++;
		}
	}
	if (hits == 0)
		return -ENOENT;
	if (hits > 1)
		return -ENOTUNIQ;
	*at = hit;
	return 0;
}

/*
 * Files that name a checkpoint: where links are not possible or were not kept, a text file holds
 * the target of the link.
 *
 *	latest-rank0.pt           "ep1-ba6-rank0.pt"
 *	latest-rank0.pt.symlink   "run/checkpoints/ep1-ba6-rank0.pt" (Composer, object stores)
 *
 * The target must lie beside the file: of a path only the last component is used.
 */

enum { MAX_TEXT = 1024 };

/* Read the only name in the text; false: the text is not a name. */
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

/* The path of the file that the text file @path names, or NULL. */
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

/*
 * Tags: other names that the source itself has for its versions.
 *
 *	latest -> step-500                        a link to a version
 *	latest                                    DeepSpeed: a file with the name of a version
 *	latest_checkpointed_iteration.txt         Megatron: a number, of iter_0000500
 *	latest-rank0.pt.symlink                   Composer: a file with a path
 *	latest-rank0.pt                           Composer's link, kept as a file with a name
 */

enum { MAX_TEXT_TAGS = 512, MAX_TAGS = 1000 };

/* Is @text the name of @f, or of its directory, its group or one of its files? */
static bool is_name_of(const char *text, const struct dcp_found *f)
{
	char group[DCP_GROUP_MAX];

	if (!strcmp(text, f->name) || (*text && !strcmp(text, f->where)))
		return true;
	return f->group && (!strcmp(text, f->group) ||
			    (f->format->group(text, group) && !strcmp(group, f->group)));
}

static const struct dcp_found *find_named(const struct dcp_scan *scan, const char *text)
{
	for (size_t i = 0; i < scan->n; i++)
		if (is_name_of(text, &scan->found[i]))
			return &scan->found[i];
	return NULL;
}

/* The version that @text means: by name, by the last component of a path, or by number. */
static const struct dcp_found *find_meant(const struct dcp_scan *scan, char *text)
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
	found = n ? find_named(scan, base) : NULL;
	if (found || n == 0 || n > 18 || base[strspn(base, "0123456789")])
		return found;
	snprintf(padded, sizeof(padded), "iter_%.*s%s", n < 7 ? (int)(7 - n) : 0, "0000000",
		 base);
	return find_named(scan, padded);
}

/* Read the target of a link, or the content of a file that is known to hold a name. */
static bool read_target(const struct dcp_dir *dir, const struct dcp_dirent *e,
			char text[MAX_TEXT_TAGS])
{
	static const char *const files[] = { "latest", "latest_universal", "best", "last",
					     "latest_checkpointed_iteration.txt" };
	int n = e->is_link ? dir->at.row->link(&dir->at, e->name, text, MAX_TEXT_TAGS - 1) : -1;
	dcp_auto_blob struct dcp_blob blob = { 0 };
	bool known = dcp_has_extension(e->name, ".symlink") ||
		     (strncmp(e->name, "latest", 6) == 0 && dcp_is_text_link(dir, e));

	for (size_t i = 0; i < DCP_LEN(files); i++)
		known |= strcmp(e->name, files[i]) == 0;
	if (n < 0 && known && !e->is_dir && e->size < MAX_TEXT_TAGS) {
		dcp_dir_note(dir, e->name);
		if (dcp_seen_opening(dir->at.seen, dcp_site_open(&dir->at, e->name, &blob, NULL,
								 NULL)) == 0 &&
		    dcp_blob_read(&blob, 0, text,
				  DCP_MIN(blob.size, (uint64_t)MAX_TEXT_TAGS - 1)) == 0)
			n = (int)DCP_MIN(blob.size, (uint64_t)MAX_TEXT_TAGS - 1);
	}
	if (n <= 0)
		return false;
	text[n] = '\0';
	return strlen(text) == (size_t)n;
}

static int add_tag(struct dcp_scan *scan, const char *name, const struct dcp_found *found)
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
	char text[MAX_TEXT_TAGS];
	int rc = 0;

	if (scan->single || dir->is_file)
		return 0;
	scan->tags = dcp_arena_calloc(&scan->arena, DCP_MIN(dir->n, (size_t)MAX_TAGS),
				      sizeof(*scan->tags));
	if (!scan->tags)
		return -ENOMEM;
	for (size_t i = 0; rc == 0 && i < dir->n && scan->ntags < MAX_TAGS; i++)
		if (read_target(dir, &dir->entries[i], text))
			rc = add_tag(scan, dir->entries[i].name, find_meant(scan, text));
	return rc;
}
