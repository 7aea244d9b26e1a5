/* SPDX-License-Identifier: Apache-2.0 */
#include "core/parse/layout/layout.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/base/text.h"
#include "core/origin/dir/dir.h"
#include "core/origin/origin.h"
#include "core/store/layouts/layouts.h"
#include "core/store/version/version.h"

#define DCP_LAYOUT_EXT ".dcpl"

struct dcp_layouts {
	pthread_rwlock_t lock; /* protects the list; its entries never change */
	struct dcp_named_layout *first;
	size_t n;
	struct dcp_named_layout **listed; /* by name; complete before another thread looks */
	size_t nlisted;
};

/* ---- the table: the caller is alone, or holds the lock ---- */

struct dcp_named_layout *dcp_layouts_by_name(const struct dcp_layouts *t, const char *name);
struct dcp_named_layout *dcp_layouts_get(const struct dcp_layouts *t, uint64_t id);

/* Add @l (taken, also on failure) under @name; @file is its path if it is to be listed, else NULL.
 * -E2BIG, -ENOMEM. */
int dcp_layouts_add(struct dcp_layouts *t, const char *name, struct dcp_layout *l,
		    const char *file, struct dcp_named_layout **out);

/* Add the layouts of all files that the options lead to. */
int dcp_layouts_load(struct dcp_layouts *t, const struct dcp_layouts_opts *opts,
		     struct dcp_err *err);

/* The file at @path on its own mesh, or on @mesh of @n bytes. -ENOENT names the nearest. */
int dcp_layouts_open_file(const char *path, const char *mesh, size_t n, struct dcp_layout **out,
			  struct dcp_err *err);

enum {
	MAX_NAMES = 4096
}; /* limit, so that a program that tries names cannot fill the memory */

struct dcp_named_layout *dcp_layouts_by_name(const struct dcp_layouts *t, const char *name)
{
	struct dcp_named_layout *l = t->first;

	while (l && strcmp(l->name, name) != 0)
		l = l->next;
	return l;
}

struct dcp_named_layout *dcp_layouts_get(const struct dcp_layouts *t, uint64_t id)
{
	struct dcp_named_layout *l = t->first;

	while (l && l->id != id)
		l = l->next;
	return l;
}

int dcp_layouts_add(struct dcp_layouts *t, const char *name, struct dcp_layout *l,
		    const char *file, struct dcp_named_layout **out)
{
	struct dcp_named_layout *e = t->n < MAX_NAMES ? calloc(1, sizeof(*e)) : NULL;
	char *copy = e ? strdup(name) : NULL, *path = copy && file ? strdup(file) : NULL;

	if (!copy || (file && !path)) {
		free(copy);
		free(e);
		dcp_layout_free(l);
		return t->n < MAX_NAMES ? -ENOMEM : -E2BIG;
	}
	*e = (struct dcp_named_layout){
		.id = (uint32_t)dcp_hash64(name, strlen(name)) & INT32_MAX,
		.name = copy,
		.file = path,
		.l = l,
		.next = t->first,
	};
	while (dcp_layouts_get(t, e->id))
		e->id = (e->id + 1) & INT32_MAX;
	t->first = e;
	t->n++;
	if (out)
		*out = e;
	return 0;
}

/* Layouts from files: finds the files and reads them. */

enum { MAX_FILE = 4 << 20 };

/* ---- one file ---- */

/* The file does not exist: name a file with a similar name in the same directory. */
static int fail_no_file(const char *path, struct dcp_err *err)
{
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
	struct dcp_near nearness = dcp_near_to(base);
	dcp_auto_dir struct dcp_dir d = { 0 };
	char above[PATH_MAX];
	const char *near = NULL;

	snprintf(above, sizeof(above), "%.*s", slash ? (int)(slash - path) + 1 : 1,
		 slash ? path : ".");
	if (dcp_origin_of(above) == &dcp_origin_local) /* no server is asked for a file */
		dcp_dir_open(above, &d, NULL);
	for (size_t i = 0; i < d.n; i++)
		if (*d.entries[i].name != '.' && dcp_near_take(&nearness, d.entries[i].name))
			near = d.entries[i].name;
	return dcp_fail(err, -ENOENT, "layout %.300s: %s%s%.80s%s", path, strerror(ENOENT),
			near ? ", nearest is \"" : "", near ? near : "", near ? "\"" : "");
}

static int read_all(const struct dcp_blob *file, const char *path, struct dcp_buf *out,
		    struct dcp_err *err)
{
	uint64_t n = dcp_blob_size(file);
	char *p;
	int rc;

	if (n > MAX_FILE)
		return dcp_fail(err, -EBADMSG, "%.300s: not a layout: more than %d bytes", path,
				MAX_FILE);
	p = dcp_buf_grow(out, n);
	if (n && !p)
		return dcp_fail(err, -ENOMEM, "out of memory");
	rc = n ? dcp_blob_read(file, 0, p, n) : 0;
	return rc < 0 ? dcp_fail(err, rc, "%.300s: %s", path, dcp_err_noted(rc)) : 0;
}

/* "dir/llama.dcpl" and "dir/llama.txt" are both called llama. */
static int stem_of(const char *path, char stem[NAME_MAX + 1], struct dcp_err *err)
{
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
	size_t n = dcp_stem(base);

	if (n == 0 || n > NAME_MAX || *base == '.')
		return dcp_fail(err, -EBADMSG, "%.300s: not a name for a layout", path);
	memcpy(stem, base, n);
	stem[n] = '\0';
	return 0;
}

/* Replace the name at the start of a message, "llama:2: ...", by @path. */
static void say_path(const char *path, const char *name, struct dcp_err *err)
{
	size_t n = strlen(name);
	struct dcp_err said = *err;

	if (strncmp(said.msg, name, n) == 0)
		dcp_fail_at(err, said.code, said.off, "%.300s%s", path, said.msg + n);
}

/* The layout that @file holds; its name is @name. */
static int parse_file(const struct dcp_blob *file, const char *path, const char *name,
		      struct dcp_layout **out, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	int rc = read_all(file, path, &text, err);

	if (rc < 0)
		return rc;
	rc = dcp_layout_parse(name, text.p ? text.p : "", text.n, out, err);
	if (rc < 0 && err)
		say_path(path, name, err);
	return rc == -EINVAL ? -EBADMSG : rc; /* the file is wrong, not an argument */
}

/* A path that the user gave: links are followed. */
static int parse_path(const char *path, const char *name, struct dcp_layout **out,
		      struct dcp_err *err)
{
	dcp_auto_blob struct dcp_blob file = { 0 };
	int rc = dcp_blob_open(path, &file);

	if (rc == -ENOENT)
		return fail_no_file(path, err);
	if (rc == -EISDIR || rc == -EINVAL)
		return dcp_fail(err, -EBADMSG, "%.300s: not a layout: not a file", path);
	if (rc < 0)
		return dcp_fail(err, rc, "layout %.300s: %s", path, dcp_err_noted(rc));
	if (dcp_has_extension(path, DCP_REGIONS_EXT))
		return dcp_fail(err, -EBADMSG,
				"%.300s: a file of regions, which only dcpfs load takes", path);
	return parse_file(&file, path, name, out, err);
}

int dcp_layouts_open_file(const char *path, const char *mesh, size_t n, struct dcp_layout **out,
			  struct dcp_err *err)
{
	char stem[NAME_MAX + 1], text[NAME_MAX + 1];
	struct dcp_layout *l;
	int rc = stem_of(path, stem, err);

	if (rc == 0)
		rc = parse_path(path, stem, &l, err);
	if (rc < 0 || !mesh) {
		*out = rc < 0 ? NULL : l;
		return rc;
	}
	snprintf(text, sizeof(text), "%.*s", (int)DCP_MIN(n, sizeof(text) - 1), mesh);
	rc = dcp_layout_on_mesh(l, text, out, err);
	dcp_layout_free(l);
	return rc;
}

/* ---- all of them ---- */

/* Load a file of --layout. */
static int load_given(struct dcp_layouts *t, const char *path, struct dcp_err *err)
{
	dcp_auto_free char *real = NULL;
	char stem[NAME_MAX + 1];
	struct dcp_layout *l;
	int rc = stem_of(path, stem, err);

	if (rc == 0 && dcp_layouts_by_name(t, stem))
		return dcp_fail(err, -EEXIST,
				"%.300s: another file's layout is called %.80s, too", path,
				stem);
	if (rc == 0)
		rc = parse_path(path, stem, &l, err);
	if (rc < 0)
		return rc;
	real = realpath(path, NULL);
	return dcp_layouts_add(t, stem, l, real ? real : path, NULL);
}

/* Read the file @name of @dir, whose path is @where. If a layout of its name was read already,
 * the first wins. */
static int load_found(struct dcp_layouts *t, const struct dcp_dir *dir, const char *where,
		      const char *name, bool links, struct dcp_err *err)
{
	dcp_auto_blob struct dcp_blob file = { 0 };
	char stem[NAME_MAX + 1], path[PATH_MAX];
	struct dcp_layout *l;
	int rc = stem_of(name, stem, err);

	if (rc < 0 || dcp_layouts_by_name(t, stem))
		return rc;
	snprintf(path, sizeof(path), "%s/%s", strcmp(where, "/") ? where : "", name);
	if (links) {
		rc = parse_path(path, stem, &l, err);
	} else {
		rc = dcp_site_open(&dir->at, name, &file, NULL, err);
		if (rc == 0)
			rc = parse_file(&file, name, stem, &l, err);
	}
	return rc < 0 ? rc : dcp_layouts_add(t, stem, l, path, NULL);
}

/* @links: also files that a link outside @dir leads to. */
static void load_all(struct dcp_layouts *t, const struct dcp_dir *dir, const char *where,
		     bool links, const struct dcp_log *log)
{
	for (size_t i = 0; i < dir->n; i++) {
		const char *name = dir->entries[i].name;
		struct dcp_err err = { 0 };

		if (*name == '.' || !dcp_has_extension(name, DCP_LAYOUT_EXT))
			continue;
		if (load_found(t, dir, where, name, links, &err) < 0)
			dcp_log(log, DCP_LOG_WARN, "%s/%s is left out: %s", where, name,
				err.msg);
	}
}

static void load_dir(struct dcp_layouts *t, const char *path, bool links,
		     const struct dcp_log *log)
{
	struct dcp_dir dir;

	if (dcp_dir_open(path, &dir, NULL) < 0)
		return;
	if (!dir.is_file)
		load_all(t, &dir, path, links, log);
	dcp_dir_close(&dir);
}

/* Load layouts from other directories of the source that hold versions or the files of a
 * version. */
static void load_places(struct dcp_layouts *t, const char *source, const struct dcp_scan *scan,
			const struct dcp_log *log)
{
	struct dcp_dir top, place;
	char last[PATH_MAX] = "";

	if (dcp_dir_open(source, &top, NULL) < 0)
		return;
	for (size_t i = 0; i < scan->n; i++) {
		const struct dcp_found *f = &scan->found[i];
		const char *slash = strrchr(f->where, '/');
		size_t n = f->group ? strlen(f->where) : slash ? (size_t)(slash - f->where) : 0;
		char path[PATH_MAX];

		if (n == 0 || n >= sizeof(last) || (!strncmp(last, f->where, n) && !last[n]))
			continue;
		memcpy(last, f->where, n);
		last[n] = '\0';
		if (dcp_dir_open_at(&top, last, &place, NULL) < 0)
			continue;
		if (snprintf(path, sizeof(path), "%s/%s", source, last) < PATH_MAX)
			load_all(t, &place, path, false, log);
		dcp_dir_close(&place);
	}
	dcp_dir_close(&top);
}

static void load_beside(struct dcp_layouts *t, const char *source, const struct dcp_log *log)
{
	char *slash = strrchr(source, '/');
	char parent[PATH_MAX];

	if (!slash || !slash[1] || slash - source >= PATH_MAX)
		return; /* nothing is above the root */
	memcpy(parent, source, (size_t)(slash - source));
	parent[slash - source] = '\0';
	load_dir(t, *parent ? parent : "/", false, log);
}

int dcp_layouts_load(struct dcp_layouts *t, const struct dcp_layouts_opts *opts,
		     struct dcp_err *err)
{
	dcp_auto_free char *source = realpath(opts->source, NULL);
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < opts->nfiles; i++)
		rc = load_given(t, opts->files[i], err);
	if (rc < 0)
		return rc;
	if (source) {
		load_dir(t, source, false, opts->log);
		load_places(t, source, opts->scan, opts->log);
		if (opts->scan->single)
			load_beside(t, source, opts->log);
	}
	if (opts->user_dir)
		load_dir(t, opts->user_dir, true, opts->log);
	return 0;
}

static int compare_names(const void *a, const void *b)
{
	const struct dcp_named_layout *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name);
}

static int list_layouts(struct dcp_layouts *t)
{
	t->listed = calloc(t->n + 1, sizeof(*t->listed));
	if (!t->listed)
		return -ENOMEM;
	for (struct dcp_named_layout *l = t->first; l; l = l->next)
		t->listed[t->nlisted++] = l;
	qsort(t->listed, t->nlisted, sizeof(*t->listed), compare_names);
	return 0;
}

int dcp_layouts_create(const struct dcp_layouts_opts *opts, struct dcp_layouts **out,
		       struct dcp_err *err)
{
	struct dcp_layouts *t = calloc(1, sizeof(*t));
	int rc;

	if (!t)
		return -ENOMEM;
	pthread_rwlock_init(&t->lock, NULL);
	rc = dcp_layouts_load(t, opts, err);
	if (rc == 0)
		rc = list_layouts(t);
	if (rc < 0) {
		dcp_layouts_destroy(t);
		return rc;
	}
	*out = t;
	return 0;
}

void dcp_layouts_destroy(struct dcp_layouts *t)
{
	if (!t)
		return;
	while (t->first) {
		struct dcp_named_layout *l = t->first;

		t->first = l->next;
		dcp_layout_free((struct dcp_layout *)(uintptr_t)l->l);
		free((char *)(uintptr_t)l->name);
		free((char *)(uintptr_t)l->file);
		free(l);
	}
	free(t->listed);
	pthread_rwlock_destroy(&t->lock);
	free(t);
}

/* The name of a listed layout that is similar to @name, which may have the extension; or NULL. */
static const char *find_nearest(const struct dcp_layouts *t, const char *name)
{
	size_t n = strlen(name) -
		   (dcp_has_extension(name, DCP_LAYOUT_EXT) ? strlen(DCP_LAYOUT_EXT) : 0);
	const char *near = NULL;
	char stem[NAME_MAX + 1];
	struct dcp_near nearness;

	if (n > NAME_MAX)
		return NULL;
	memcpy(stem, name, n);
	stem[n] = '\0';
	nearness = dcp_near_to(stem);
	for (size_t i = 0; i < t->nlisted; i++) {
		const char *other = t->listed[i]->name;

		if (strcasecmp(stem, other) == 0)
			return other;
		if (dcp_near_take(&nearness, other))
			near = other;
	}
	return near;
}

/* Name a similar listed layout in the error of an unknown name. */
static int fail_no_name(const struct dcp_layouts *t, const char *name, int rc,
			struct dcp_err *err)
{
	const char *near = find_nearest(t, name);

	return near ? dcp_fail(err, rc, "no layout \"%.80s\", nearest is \"%.80s\"", name, near)
		    : rc;
}

/* "mesh:dp2,tp4:<stem>" */
static int on_mesh(const struct dcp_layouts *t, const char *name, struct dcp_layout **out,
		   struct dcp_err *err)
{
	const char *mesh = name + strlen("mesh:"), *colon = strchr(mesh, ':');
	const struct dcp_named_layout *of = colon ? dcp_layouts_by_name(t, colon + 1) : NULL;
	const char *near = colon && !of ? find_nearest(t, colon + 1) : NULL;
	char text[NAME_MAX + 1];

	if (near)
		return dcp_fail(err, -ENOENT,
				"%.200s: no layout file of that name, nearest is \"%.80s\"",
				name, near);
	if (!of || !of->file)
		return dcp_fail(err, -ENOENT,
				"%.200s: no layout file of that name; the form is "
				"mesh:dp2,tp4:FILE_STEM",
				name);
	snprintf(text, sizeof(text), "%.*s", (int)(colon - mesh), mesh);
	return dcp_layout_on_mesh(of->l, text, out, err);
}

int dcp_layouts_find(struct dcp_layouts *t, const char *name,
		     const struct dcp_named_layout **out, struct dcp_err *err)
{
	struct dcp_layout *l = NULL;
	struct dcp_named_layout *found;
	int rc = 0;

	pthread_rwlock_rdlock(&t->lock);
	found = dcp_layouts_by_name(t, name);
	if (!found && strncmp(name, "mesh:", 5) == 0)
		rc = on_mesh(t, name, &l, err);
	pthread_rwlock_unlock(&t->lock);
	if (!found && !l && rc == 0)
		rc = dcp_layout_named(name, &l, err);
	if (rc == -ENOENT && strncmp(name, "mesh:", 5) != 0)
		rc = fail_no_name(t, name, rc, err);
	if (!found && rc == 0) {
		pthread_rwlock_wrlock(&t->lock);
		found = dcp_layouts_by_name(t, name); /* another thread may have been faster */
		if (found)
			dcp_layout_free(l);
		else
			rc = dcp_layouts_add(t, name, l, NULL, &found);
		pthread_rwlock_unlock(&t->lock);
	}
	*out = found;
	return rc;
}

static bool is_path(const struct dcp_layouts *t, const char *word)
{
	struct dcp_dirent e;

	return strchr(word, '/') || dcp_has_extension(word, DCP_LAYOUT_EXT) ||
	       (!dcp_layouts_by_name(t, word) && dcp_path_look(word, &e) == 0 && !e.is_dir);
}

int dcp_layouts_open(struct dcp_layouts *t, const char *word,
		     const struct dcp_named_layout **out, struct dcp_err *err)
{
	const char *mesh = strncmp(word, "mesh:", 5) ? NULL : word + 5;
	const char *colon = mesh ? strchr(mesh, ':') : NULL;
	const char *path = colon ? colon + 1 : word;
	struct dcp_named_layout *found;
	struct dcp_layout *l;
	bool is_file;
	int rc;

	pthread_rwlock_rdlock(&t->lock);
	is_file = (colon || !mesh) && is_path(t, path);
	pthread_rwlock_unlock(&t->lock);
	if (!is_file) {
		rc = dcp_layouts_find(t, word, out, err);
		return rc == -ENOENT ? -EINVAL : rc;
	}
	rc = dcp_layouts_open_file(path, mesh, colon ? (size_t)(colon - mesh) : 0, &l, err);
	if (rc == -ENOENT && !strchr(path, '/'))
		rc = fail_no_name(t, path, rc, err);
	if (rc < 0)
		return rc;
	pthread_rwlock_wrlock(&t->lock);
	rc = dcp_layouts_add(t, word, l, NULL, &found);
	pthread_rwlock_unlock(&t->lock);
	*out = rc < 0 ? NULL : found;
	return rc;
}

const char *dcp_layouts_file(struct dcp_layouts *t, const struct dcp_named_layout *l)
{
	const char *mesh = strncmp(l->name, "mesh:", 5) ? NULL : l->name + 5;
	const char *colon = mesh ? strchr(mesh, ':') : NULL;

	pthread_rwlock_rdlock(&t->lock);
	l = colon ? dcp_layouts_by_name(t, colon + 1) : l;
	pthread_rwlock_unlock(&t->lock);
	return l ? l->file : NULL;
}

const struct dcp_named_layout *dcp_layouts_by_id(struct dcp_layouts *t, uint64_t id)
{
	struct dcp_named_layout *l;

	pthread_rwlock_rdlock(&t->lock);
	l = dcp_layouts_get(t, id);
	pthread_rwlock_unlock(&t->lock);
	return l;
}

const struct dcp_named_layout *dcp_layouts_at(struct dcp_layouts *t, size_t n)
{
	return n < t->nlisted ? t->listed[n] : NULL;
}
