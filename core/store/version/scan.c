/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/format/format.h"
#include "core/format/weights/name.h"
#include "core/model/name.h"
#include "core/origin/dir/dir.h"
#include "core/store/version/version_int.h"

/* A million versions with names of 255 bytes. */
static const size_t arena_limit = 512u << 20;

enum { MAX_LOOKED_AT = 1000 }; /* limit for directories in runs */

struct scanning {
	struct dcp_scan *scan;
	/* the run, a directory of the source, that is being examined; NULL: none */
	const char *run;
	unsigned looked_at; /* directories examined in runs */
	/* struct dcp_found: directories of families that dcpfs does not read */
	struct dcp_buf skipped;
	/* the directory that stands for the source; "": the source itself */
	const char *below;
	/* the directory that stood for the source when versions were found; NULL: none */
	const char *placed;
	bool numbered;       /* only directories named like numbered saves count */
	bool locked;         /* some directory may not be read */
	struct dcp_buf list; /* struct dcp_found */
	size_t n, complete;
};

static struct dcp_found *list_of(const struct scanning *s)
{
	return DCP_ITEMS(s->list, struct dcp_found);
}

static int64_t mtime_of(const struct dcp_dir *dir, const char *name)
{
	struct dcp_file_id id;

	dcp_dir_note(dir, name);
	return dcp_site_id(&dir->at, name, &id) < 0 ? INT64_MIN : id.mtime_ns;
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

static const char *keep_text(struct scanning *s, const char *text)
{
	return dcp_arena_strdup(&s->scan->arena, text);
}

/* Copy the name "step-5"; for a version in the run run1 below the source "run1@step-5". */
static const char *keep_name(struct scanning *s, const char *name)
{
	dcp_auto_buf struct dcp_buf full = DCP_BUF_INIT;

	dcp_buf_printf(&full, "%s%s%s", s->run ? s->run : "", s->run ? "@" : "", name);
	return dcp_buf_error(&full) ? NULL : keep_text(s, full.p);
}

/* Copy @where, prefixed by the directory that stands for the source. */
static const char *keep_where(struct scanning *s, const char *where)
{
	dcp_auto_buf struct dcp_buf path = DCP_BUF_INIT;

	dcp_buf_printf(&path, "%s%s%s", s->below, *s->below && *where ? "/" : "", where);
	return dcp_buf_error(&path) ? NULL : keep_text(s, path.p);
}

/* The result of one probe of a directory, or of a group of its files. */
struct verdict {
	const struct dcp_format *format;
	enum dcp_match match;
	const char *group;
	bool uncommitted;
	char why[256];
};

/* Trainers rename a directory when it is complete; its commit marks may exist before that. */
static const char *find_reason(const char *where, const struct verdict *v)
{
	if (*where && dcp_order_is_unfinished(where))
		return "by its name it is still being written";
	if (v->match != DCP_MATCH_INCOMPLETE)
		return NULL;
	return *v->why ? v->why : "its commit mark is missing";
}

/* Is the version one file or set of files in @dir, and not a model that takes the whole
 * directory? */
static bool is_loose(const struct dcp_dir *dir, const struct dcp_format *format)
{
	char group[DCP_GROUP_MAX];
	bool any = false;

	for (size_t i = 0; format->group && !any && i < dir->n; i++)
		any = !dir->entries[i].is_dir && format->group(dir->entries[i].name, group);
	return any && !dcp_weights_is_home(dir);
}

static int add_found(struct scanning *s, const struct dcp_dir *dir, const char *name,
		     const char *where, const struct verdict *v)
{
	const char *why = find_reason(where, v);
	struct dcp_found c = {
		.name = keep_name(s, name),
		.where = keep_where(s, where),
		.group = v->group ? keep_text(s, v->group) : NULL,
		.format = v->format,
		.complete = !why,
		.why = why ? keep_text(s, why) : NULL,
		.uncommitted = v->uncommitted,
		.loose = v->group || is_loose(dir, v->format),
		.commit_ns = dcp_commit_time(dir, v->format),
	};
	struct dcp_file_id id;

	if (dcp_site_id(&dir->at, ".", &id) < 0)
		return 0;
	c.dev = id.dev;
	c.ino = id.ino;
	if (!c.name || !c.where || (v->group && !c.group) || (!c.complete && !c.why))
		return -ENOMEM;
	dcp_buf_add(&s->list, &c, sizeof(c));
	s->n++;
	s->complete += c.complete;
	return dcp_buf_error(&s->list) ? -ENOMEM : 1;
}

static int add_group(struct scanning *s, const struct dcp_dir *dir, const char *name,
		     const char *where, const struct dcp_format *format, const char *group)
{
	struct verdict v = { .format = format, .group = group };
	dcp_auto_dir struct dcp_dir part = { 0 };
	int code = dcp_format_group(format, dir, group, &part);

	if (code < 0)
		return code == -ENOMEM ? code : 0;
	v.match = format->probe(&part, v.why, sizeof(v.why));
	return v.match == DCP_MATCH_NO ? 0 : add_found(s, &part, name, where, &v);
}

/* Is a group named as the model of its directory? Other groups may be added beside it later. */
static bool is_model(const char *group)
{
	static const char *const names[] = { "model", "pytorch_model", "weights" };
	size_t n = strcspn(group, ".");

	for (size_t i = 0; i < DCP_LEN(names); i++)
		if (strlen(names[i]) == n && memcmp(names[i], group, n) == 0)
			return true;
	return false;
}

/*
 * Versions that are files of one directory, of all families that have such versions: "best.pt", or
 * "exp1@best.pt" if they are in exp1 below the source. A single file is named in the same way,
 * because a file that is added later must not change its name. model.pt is "exp1" and keeps that
 * name when an optimizer.pt is added.
 */
static int consider_groups(struct scanning *s, const struct dcp_dir *dir, const char *name,
			   const char *where)
{
	struct dcp_groups g = { .n = 0 };
	int code = dcp_groups_list(dcp_formats, dir, dcp_is_text_link, &g), any = 0;
	bool model = false;

	for (size_t i = 0; code >= 0 && i < g.n; i++) {
		const char *group = dcp_intern_text(&g.names, g.at[i].name);
		dcp_auto_buf struct dcp_buf full = DCP_BUF_INIT;

		if (*where && !model && is_model(group)) {
			dcp_buf_str(&full, name);
			model = true;
		} else {
			dcp_buf_printf(&full, "%s%s%s", *where ? name : "", *where ? "@" : "",
				       group);
		}
		code = dcp_buf_error(&full)
			       ? -ENOMEM
			       : add_group(s, dir, full.p, where, g.at[i].format, group);
		any |= code > 0;
	}
	dcp_groups_finish(&g);
	return code < 0 ? code : any;
}

/* Add @dir, which lies in @above (NULL: it is the source), if it is a checkpoint, or the
 * checkpoints among its files. 1: something was added, 0: nothing. */
static int consider_dir(struct scanning *s, const struct dcp_dir *above,
			const struct dcp_dir *dir, const char *name, const char *where)
{
	struct verdict v = { .match = DCP_MATCH_NO };

	v.format = dcp_format_probe(dir, &v.match, v.why, sizeof(v.why));
	if (!v.format && dir->is_file && dcp_scan_explain_part(dir, NULL) == 0) {
		v.format = dcp_format_by_content(dcp_formats, dir);
		v.match = DCP_MATCH_YES;
	}
	if (!v.format || v.match == DCP_MATCH_NO)
		return 0;
	if (v.match == DCP_MATCH_MANY)
		return consider_groups(s, dir, name, where);
	v.uncommitted = v.format->committed && !v.format->committed(above, name);
	if (above && v.format->committed && !v.uncommitted)
		v.match = DCP_MATCH_YES;
	return add_found(s, dir, name, where, &v);
}

static const struct dcp_format nobodys = { .name = "unknown" };

/* Was the directory @name of the source, or something in it, found as a version? Loose files in it
 * do not count: they are versions beside directories. */
static bool holds_found(const struct scanning *s, const char *name)
{
	const struct dcp_found *c = list_of(s);
	size_t len = strlen(name);

	for (size_t i = 0; i < s->n; i++)
		if (strncmp(c[i].where, name, len) == 0 && !c[i].loose &&
		    (!c[i].where[len] || c[i].where[len] == '/'))
			return true;
	return false;
}

static bool was_found(const struct scanning *s, const struct dcp_dir *dir)
{
	const struct dcp_found *c = list_of(s);
	struct dcp_file_id id;

	if (dcp_site_id(&dir->at, ".", &id) < 0)
		return true;
	for (size_t i = 0; i < s->n; i++)
		if (c[i].ino == id.ino && c[i].dev == id.dev)
			return true;
	return false;
}

/* Examine the directories in @dir except @place, or the links to directories, which count if their
 * target is not found otherwise. */
static int consider_links(struct scanning *s, const struct dcp_dir *dir, const char *place,
			  bool links)
{
	int code = 0;

	for (size_t i = 0; code >= 0 && i < dir->n; i++) {
		const struct dcp_dirent *e = &dir->entries[i];
		dcp_auto_dir struct dcp_dir child = { 0 };
		int opened;

		if (!e->is_dir || *e->name == '.' || e->name == place ||
		    (s->numbered && !dcp_order_is_numbered(e->name)) || e->is_link != links)
			continue;
		if (s->run && ++s->looked_at > MAX_LOOKED_AT)
			break;
		opened = dcp_dir_open_at(dir, e->name, &child, NULL);
		s->locked |= opened == -EACCES;
		if (opened < 0)
			continue;
		if ((!links && !s->run) || !was_found(s, &child))
			code = consider_dir(s, dir, &child, e->name, e->name);
	}
	return code < 0 ? code : 0;
}

/* The only directory of @dir with a name that trainers use for the checkpoints of a run;
 * NULL: there is none, or several. */
static const char *usual_place(const struct dcp_dir *dir)
{
	static const char *const usual[] = { "checkpoints", "checkpoint", "ckpts", "ckpt",
					     "snapshots" };
	const char *found = NULL;

	for (size_t i = 0; i < DCP_LEN(usual); i++) {
		const struct dcp_dirent *e = dcp_dir_find(dir, usual[i]);

		if (e && e->is_dir && found)
			return NULL;
		if (e && e->is_dir)
			found = e->name;
	}
	return found;
}

/* Examine @place; versions in it are named as if they lay in @dir. */
static int consider_place(struct scanning *s, const struct dcp_dir *dir, const char *place)
{
	const char *above = s->below;
	size_t before = s->n;
	dcp_auto_dir struct dcp_dir there = { 0 };
	int code;

	if (dcp_dir_open_at(dir, place, &there, NULL) < 0)
		return 0;
	s->below = keep_where(s, place);
	if (!s->below)
		code = -ENOMEM;
	else
		code = consider_dir(s, dir, &there, place, "");
	if (code == 0 || (code > 0 && list_of(s)[before].group))
		code = consider_links(s, &there, NULL, false);
	if (code == 0)
		code = consider_links(s, &there, NULL, true);
	s->below = above;
	if (!s->run)
		s->placed = s->n > before ? place : NULL;
	return code < 0 ? code : 0;
}

/* ---- runs ---- */

/* Note a directory of a family that dcpfs does not read, so that it is named beside the readable
 * ones. */
static int note_family(struct scanning *s, const struct dcp_dir *dir, const char *name)
{
	struct dcp_found c = { .format = &nobodys };
	char why[256];

	if (!dcp_scan_family(dir, why, sizeof(why)))
		return 0;
	c.name = keep_text(s, name);
	c.where = keep_where(s, name);
	c.commit_ns = mtime_of(dir, ".");
	c.why = keep_text(s, why);
	dcp_buf_add(&s->skipped, &c, sizeof(c));
	return c.name && c.where && c.why && !dcp_buf_error(&s->skipped) ? 0 : -ENOMEM;
}

/* @dir is not a checkpoint: versions in it, and in the usual place below it, belong to the run
 * @name. */
static int consider_run(struct scanning *s, const struct dcp_dir *dir, const char *name)
{
	const char *place = usual_place(dir);
	size_t before = s->n;
	int code;

	s->run = s->below = name;
	code = consider_links(s, dir, place, false);
	if (code == 0 && place)
		code = consider_place(s, dir, place);
	s->run = NULL;
	s->below = "";
	return code == 0 && s->n == before ? note_family(s, dir, name) : code;
}

/* Examine as runs the directories in @dir that are not checkpoints themselves. */
static int consider_runs(struct scanning *s, const struct dcp_dir *dir, const char *place)
{
	int code = 0;

	for (size_t i = 0; code >= 0 && i < dir->n; i++) {
		const struct dcp_dirent *e = &dir->entries[i];
		dcp_auto_dir struct dcp_dir child = { 0 };

		if (!e->is_dir || *e->name == '.' || e->name == place ||
		    holds_found(s, e->name) || e->is_link ||
		    dcp_dir_open_at(dir, e->name, &child, NULL) < 0)
			continue;
		code = consider_run(s, &child, e->name);
	}
	return code < 0 ? code : 0;
}

/* Directories beside versions that are named like versions, but cannot be looked into. */
static int add_closed(struct scanning *s, const struct dcp_dir *dir, const char *name,
		      const char *why)
{
	struct dcp_found c = { .name = keep_text(s, name),
			       .where = keep_where(s, name),
			       .format = &nobodys,
			       .closed = true,
			       .why = why,
			       .commit_ns = mtime_of(dir, name) };

	if (!c.name || !c.where)
		return -ENOMEM;
	dcp_buf_add(&s->list, &c, sizeof(c));
	s->n++;
	return dcp_buf_error(&s->list) ? -ENOMEM : 0;
}

static int consider_closed(struct scanning *s, const struct dcp_dir *dir)
{
	int code = 0;

	for (size_t i = 0; code == 0 && s->n && i < dir->n; i++) {
		const struct dcp_dirent *e = &dir->entries[i];

		if (!dcp_order_is_numbered(e->name))
			continue;
		if (dcp_scan_leads_out(dir, e))
			code = add_closed(s, dir, e->name, DCP_SCAN_LEADS_OUT);
		else if (s->locked && e->is_dir && dcp_site_barred(&dir->at, e->name))
			code = add_closed(s, dir, e->name,
					  "it cannot be opened: Permission denied");
	}
	return code;
}

static int consider_children(struct scanning *s, const struct dcp_dir *dir, const char *place)
{
	int code = consider_links(s, dir, place, false);

	if (code == 0)
		code = consider_links(s, dir, place, true);
	return code < 0 ? code : consider_closed(s, dir);
}

/* Drop versions of shy families unless all versions are of such families. */
static void drop_shy(struct scanning *s)
{
	struct dcp_found *c = list_of(s);
	size_t n = 0;

	for (size_t i = 0; i < s->n; i++)
		n += !c[i].format->shy;
	if (n == 0)
		return;
	n = s->complete = 0;
	for (size_t i = 0; i < s->n; i++) {
		if (c[i].format->shy)
			continue;
		s->complete += c[i].complete;
		c[n++] = c[i];
	}
	s->n = n;
}

/* The last component of the path of @dir; on a file system, of its real path. */
static const char *name_of(struct scanning *s, const struct dcp_dir *dir)
{
	char *real = dir->at.fd < 0 ? strdup(dir->path) : realpath(dir->path, NULL);
	size_t n = real ? strlen(real) : 0;
	const char *slash;
	const char *name;

	while (n > 1 && real[n - 1] == '/') /* slashes at the end of a URL */
		real[--n] = '\0';
	slash = real ? strrchr(real, '/') : NULL;
	name = keep_text(s, slash && slash[1] ? slash + 1 : "checkpoint");

	free(real);
	return name;
}

/* A trainer's output directory: the final model, and intermediate saves in numbered directories.
 * The source is a version beside them. */
static int look_below(struct scanning *s, const struct dcp_dir *dir)
{
	int code;

	s->numbered = true;
	code = consider_children(s, dir, NULL);
	s->numbered = false;
	if (!list_of(s)->format->shy)
		drop_shy(s);
	s->scan->single = s->n == 1;
	return code;
}

static int add_skipped(struct scanning *s)
{
	s->list.n =
		s->n * sizeof(struct dcp_found); /* fewer if the source itself was dropped */
	dcp_buf_add(&s->list, s->skipped.p, s->skipped.n);
	s->n += DCP_NITEMS(s->skipped, struct dcp_found);
	return dcp_buf_error(&s->list) ? -ENOMEM : 0;
}

/*
 * A complete checkpoint is one version, whatever directories lie in it, except numbered saves;
 * loose files are versions beside directories. An incomplete one counts only if no directory in
 * it is complete: a stray shard beside the versions must not hide them.
 */
static int look_at_source(struct scanning *s, const struct dcp_dir *dir, struct dcp_err *err)
{
	struct dcp_found *first;
	const char *name = name_of(s, dir), *place = usual_place(dir);
	int code = name ? consider_dir(s, NULL, dir, name, "") : -ENOMEM;
	size_t self = s->n;

	first = list_of(s);
	s->scan->single = self && !first->group;
	if (code < 0)
		return code;
	if (s->scan->single && s->complete)
		return look_below(s, dir);
	code = consider_children(s, dir, place);
	if (code == 0 && place)
		code = consider_place(s, dir, place);
	if (code == 0 && !dcp_dir_find(dir, ".dcpfs")) /* a mount of ours is not a source */
		code = consider_runs(s, dir, place);
	if (code < 0)
		return code;
	drop_shy(s);
	if (s->n == 0 || (dir->is_file && !s->complete))
		return dcp_scan_explain(dir, err);
	first = list_of(s);
	if (self && s->n == 1 && first->group) {
		if (dir->is_file)
			first->name = name;
		s->scan->single = true;
	} else if (s->scan->single && !s->complete) {
		s->n = 1; /* the source itself came first */
		first->complete = first->format->committed != NULL;
	} else if (s->scan->single) {
		memmove(first, first + 1, (s->n - 1) * sizeof(*first));
		s->n--;
		s->scan->single = false;
	}
	return s->scan->single ? 0 : add_skipped(s);
}

static int hand_over(struct scanning *s)
{
	struct dcp_scan *scan = s->scan;

	scan->found = dcp_arena_calloc(&scan->arena, s->n, sizeof(*scan->found));
	if (!scan->found)
		return -ENOMEM;
	if (s->n)
		memcpy(scan->found, list_of(s), s->n * sizeof(*scan->found));
	scan->n = s->n;
	return dcp_scan_part_names(scan);
}

/* Find the tags, which lie beside the versions. */
static int find_tags(struct scanning *s, const struct dcp_dir *dir)
{
	dcp_auto_dir struct dcp_dir there = { 0 };

	if (!s->placed || dcp_dir_open_at(dir, s->placed, &there, NULL) < 0)
		return dcp_scan_tags(s->scan, dir);
	return dcp_scan_tags(s->scan, &there);
}

int dcp_scan(const char *source, struct dcp_scan *out, struct dcp_err *err)
{
	return dcp_scan_seen(source, NULL, out, err);
}

int dcp_scan_seen(const char *source, struct dcp_seen *seen, struct dcp_scan *out,
		  struct dcp_err *err)
{
	struct dcp_scan scan = { 0 };
	struct scanning s = { .scan = &scan, .below = "" };
	struct dcp_seen shortage_only = { .failed = true };
	dcp_auto_free char *real = NULL;
	dcp_auto_dir struct dcp_dir dir = { 0 };
	int code;

	if (!seen)
		seen = &shortage_only;
	dcp_seen_note(seen, AT_FDCWD, NULL, source, true);
	code = dcp_source_resolve(source, &real);
	code = code < 0 ? dcp_fail(err, code, "out of memory")
			: dcp_dir_open_seen(real, seen, &dir, err);
	if (code < 0)
		return code;
	dcp_arena_init(&scan.arena, arena_limit);
	code = look_at_source(&s, &dir, err);
	if (code == 0)
		code = hand_over(&s);
	if (code == 0)
		code = find_tags(&s, &dir);
	if (seen->shortage && code != -ENOMEM)
		code = dcp_fail(err, seen->shortage, "%.300s: %s", dir.path,
				strerror(-seen->shortage));
	dcp_buf_finish(&s.list);
	dcp_buf_finish(&s.skipped);
	if (code < 0) {
		dcp_scan_finish(&scan);
		return dcp_err_say(err, code);
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
