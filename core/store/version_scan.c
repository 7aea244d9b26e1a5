/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/model/name.h"
#include "core/parse/dir.h"
#include "core/store/version_int.h"

/* A million versions with names of 255 bytes. */
static const size_t arena_limit = 512u << 20;

/* One found directory, and which it is: a link to it is the same version. */
struct candidate {
	struct dcp_found found;
	dev_t dev;
	ino_t ino;
};

struct scanning {
	struct dcp_scan *scan;
	struct dcp_buf list; /* struct candidate */
	size_t n, complete;
};

static int64_t mtime_of(const struct dcp_dir *dir, const char *name)
{
	struct dcp_file_id id = { 0 };
	struct stat st;

	if (fstatat(dir->fd, name, &st, 0) < 0)
		return INT64_MIN;
	dcp_file_id_from_stat(&st, &id);
	return id.mtime_ns;
}

int64_t dcp_commit_time(const struct dcp_dir *dir, const struct dcp_format *format)
{
	const char *commit = format->commit_file ? format->commit_file(dir) : NULL;
	int64_t newest = commit ? mtime_of(dir, commit) : INT64_MIN;

	for (size_t i = 0; newest == INT64_MIN && i < dir->n; i++)
		if (!dir->entries[i].is_dir)
			newest = DCP_MAX(newest, mtime_of(dir, dir->entries[i].name));
	return newest == INT64_MIN ? mtime_of(dir, ".") : newest;
}

static const char *keep(struct scanning *s, const char *text)
{
	return dcp_arena_strndup(&s->scan->arena, text, strlen(text));
}

/* Add @dir when it is a checkpoint. 1: it is, 0: it is not. */
static int consider(struct scanning *s, const struct dcp_dir *dir, const char *name,
		    const char *where)
{
	struct candidate c = { 0 };
	enum dcp_match match = DCP_MATCH_NO;
	char why[256] = "";
	struct stat st;

	c.found.format = dcp_format_probe(dir, &match, why, sizeof(why));
	if (!c.found.format || match == DCP_MATCH_NO || fstat(dir->fd, &st) < 0)
		return 0;
	c.dev = st.st_dev;
	c.ino = st.st_ino;
	c.found.name = keep(s, name);
	c.found.where = keep(s, where);
	c.found.complete = match == DCP_MATCH_YES;
	if (!c.found.complete)
		c.found.why = keep(s, *why ? why : "its commit mark is missing");
	c.found.commit_ns = dcp_commit_time(dir, c.found.format);
	if (!c.found.name || !c.found.where || (!c.found.complete && !c.found.why))
		return -ENOMEM;
	dcp_buf_add(&s->list, &c, sizeof(c));
	s->n++;
	s->complete += c.found.complete;
	return dcp_buf_error(&s->list) ? -ENOMEM : 1;
}

static bool is_link(const struct dcp_dir *dir, const char *name)
{
	struct stat st;

	return fstatat(dir->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode);
}

static bool was_found(const struct scanning *s, const struct dcp_dir *dir)
{
	const struct candidate *c = (const struct candidate *)(const void *)s->list.p;
	struct stat st;

	if (fstat(dir->fd, &st) < 0)
		return true;
	for (size_t i = 0; i < s->n; i++)
		if (c[i].ino == st.st_ino && c[i].dev == st.st_dev)
			return true;
	return false;
}

/* The directories in @dir, or the links to directories, which count when they lead elsewhere.
 */
static int consider_children(struct scanning *s, const struct dcp_dir *dir, bool links)
{
	int code = 0;

	for (size_t i = 0; code >= 0 && i < dir->n; i++) {
		const struct dcp_dirent *e = &dir->entries[i];
		struct dcp_dir child;

		if (!e->is_dir || *e->name == '.' || is_link(dir, e->name) != links ||
		    dcp_dir_open_at(dir, e->name, &child, NULL) < 0)
			continue;
		if (!links || !was_found(s, &child))
			code = consider(s, &child, e->name, e->name);
		dcp_dir_close(&child);
	}
	return code < 0 ? code : 0;
}

static int consider_self(struct scanning *s, const struct dcp_dir *dir)
{
	char *real = realpath(dir->path, NULL);
	const char *slash = real ? strrchr(real, '/') : NULL;
	int code = consider(s, dir, slash && slash[1] ? slash + 1 : "checkpoint", "");

	free(real);
	return code;
}

/*
 * A complete checkpoint is one, whatever directories lie in it. An incomplete one counts only
 * when no directory in it is complete: a stray shard beside the versions must not hide them.
 */
static int look(struct scanning *s, const struct dcp_dir *dir, struct dcp_err *err)
{
	int code = consider_self(s, dir);
	size_t self = s->n;

	if (code < 0 || s->complete) {
		s->scan->single = true;
		return code < 0 ? code : 0;
	}
	code = consider_children(s, dir, false);
	if (code == 0)
		code = consider_children(s, dir, true);
	if (code < 0)
		return code;
	if (s->n == 0)
		return dcp_scan_explain(dir, err);
	if (self && !s->complete) {
		s->n = 1; /* the source itself came first */
		s->scan->single = true;
	} else if (self) {
		memmove(s->list.p, s->list.p + sizeof(struct candidate),
			(s->n - 1) * sizeof(struct candidate));
		s->n--;
	}
	return 0;
}

static int by_name(const void *a, const void *b)
{
	const struct dcp_found *x = a, *y = b;

	return dcp_name_compare(x->name, y->name);
}

static int hand_over(struct scanning *s)
{
	const struct candidate *c = (const struct candidate *)(const void *)s->list.p;
	struct dcp_scan *scan = s->scan;

	scan->found = dcp_arena_calloc(&scan->arena, s->n, sizeof(*scan->found));
	if (!scan->found)
		return -ENOMEM;
	for (size_t i = 0; i < s->n; i++)
		scan->found[i] = c[i].found;
	scan->n = s->n;
	qsort(scan->found, scan->n, sizeof(*scan->found), by_name);
	return 0;
}

int dcp_scan(const char *source, struct dcp_scan *out, struct dcp_err *err)
{
	struct dcp_scan scan = { 0 };
	struct scanning s = { .scan = &scan };
	struct dcp_dir dir;
	int code = dcp_dir_open(source, &dir, err);

	if (code == -ENOTDIR)
		return dcp_scan_explain_file(source, err);
	if (code < 0)
		return code;
	dcp_arena_init(&scan.arena, arena_limit);
	code = look(&s, &dir, err);
	if (code == 0)
		code = hand_over(&s);
	dcp_dir_close(&dir);
	dcp_buf_finish(&s.list);
	if (code < 0) {
		if (code == -ENOMEM)
			dcp_fail(err, code, DCP_ERR_NO_OFFSET, "out of memory");
		dcp_scan_finish(&scan);
		return code;
	}
	*out = scan;
	return 0;
}

void dcp_scan_finish(struct dcp_scan *s)
{
	if (!s)
		return;
	dcp_arena_finish(&s->arena);
	*s = (struct dcp_scan){ 0 };
}
