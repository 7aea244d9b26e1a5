/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/version/version.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/origin/dir/dir.h"
#include "core/origin/origin.h"
#include "core/store/index/index.h"
#include "core/store/io/files.h"
#include "core/store/version/version_int.h"

enum { LISTED = DCP_NEED_SEARCH | DCP_NEED_READ };

/* A directory whose rights were read. */
struct place {
	char *path;
	uint32_t need;
	struct dcp_rights rights;
};

/* The rights of users who have all permissions @need on @path. */
static struct dcp_rights rights_at(const struct dcp_grants *g, const char *path, uint32_t need,
				   uint64_t *dev)
{
	return dcp_rights_of_path(path, need, g->copied ? NULL : dev);
}

/* Also note who may change the file, if that is requested. */
static void see_writers(struct dcp_grants *g, const char *path)
{
	if (g->copied)
		g->writers =
			dcp_rights_meet(g->writers, rights_at(g, path, DCP_NEED_WRITE, NULL));
}

/* ---- directories ---- */

static struct place *get_places(const struct dcp_grants *g, size_t *n)
{
	*n = DCP_NITEMS(g->dirs, struct place);
	return DCP_ITEMS(g->dirs, struct place);
}

/* Is @path the directory @below, or one of the directories that lead to @below? */
static bool leads_to(const char *path, size_t n, const char *below)
{
	return n == 1 ? *below == '/'
		      : strncmp(path, below, n) == 0 && (below[n] == '/' || !below[n]);
}

/* Narrow @r by the rights of one directory, which are read only once. -ENOMEM. */
static int ask_rights(struct dcp_grants *g, const char *path, size_t len, uint32_t need,
		      struct dcp_rights *out)
{
	size_t n;
	struct place *p = get_places(g, &n), now = { .need = need };

	for (size_t i = n; i-- > 0;) /* the last entry is the most likely match */
		if (strncmp(p[i].path, path, len) == 0 && !p[i].path[len]) {
			*out = p[i].rights;
			return 0;
		}
	now.path = strndup(path, len);
	if (!now.path)
		return -ENOMEM;
	*out = now.rights = rights_at(g, now.path, need, &g->dev);
	see_writers(g, now.path);
	dcp_buf_add(&g->dirs, &now, sizeof(now));
	if (!dcp_buf_error(&g->dirs))
		return 0;
	free(now.path);
	return -ENOMEM;
}

/*
 * Narrow @r to the users who may pass all directories down to @path, which is absolute and real. @r
 * already includes the directories that lead to SOURCE. @last: the rights needed for the last
 * directory.
 */
static int pass_dirs(struct dcp_grants *g, const char *path, uint32_t need, uint32_t last,
		     struct dcp_rights *r)
{
	for (size_t n = 1;; n++) {
		bool end = path[n] == '\0' || (n == 1 && path[1] == '\0');
		struct dcp_rights one;
		int rc;

		if (n > 1 && path[n] != '/' && !end)
			continue;
		if (!leads_to(path, n, g->source)) {
			rc = ask_rights(g, path, n, end ? last : need, &one);
			if (rc < 0)
				return rc;
			*r = dcp_rights_meet(*r, one);
		}
		if (end)
			return 0;
	}
}

/* The same down to the directory that the file @path lies in. */
static int pass_above(struct dcp_grants *g, char *path, uint32_t need, struct dcp_rights *r)
{
	char *slash = strrchr(path, '/');
	int rc;

	*slash = '\0';
	rc = pass_dirs(g, slash == path ? "/" : path, need, need, r);
	*slash = '/';
	return rc;
}

static struct dcp_grants *create_grants(const char *source)
{
	struct dcp_grants *g = calloc(1, sizeof(*g));

	if (!g)
		return NULL;
	g->source = strdup(source);
	if (!g->source) {
		free(g);
		return NULL;
	}
	g->way = DCP_RIGHTS_ALL;
	g->data = g->beside = dcp_rights_alone();
	return g;
}

void dcp_grants_free(struct dcp_grants *g)
{
	struct place *p;
	size_t n;

	if (!g)
		return;
	p = get_places(g, &n);
	for (size_t i = 0; i < n; i++)
		free(p[i].path);
	dcp_buf_finish(&g->dirs);
	free(g->files);
	free(g->source);
	free(g);
}

bool dcp_grants_changed(const struct dcp_grants *g)
{
	size_t n;
	const struct place *p = get_places(g, &n);
	uint64_t dev = 0;

	for (size_t i = 0; i < n; i++)
		if (!dcp_rights_equal(rights_at(g, p[i].path, p[i].need, &dev), p[i].rights))
			return true;
	return false;
}

const char *dcp_grants_dir(const struct dcp_grants *g, size_t i)
{
	size_t n;
	const struct place *p = get_places(g, &n);

	return i < n ? p[i].path : NULL;
}

static int finish_grants(struct dcp_grants *g, int rc, struct dcp_grants **out)
{
	if (rc < 0)
		dcp_grants_free(g);
	else
		*out = g;
	return rc;
}

int dcp_grants_source(const char *source, struct dcp_grants **out)
{
	struct dcp_grants *g = create_grants("");
	dcp_auto_free char *named = NULL, *real = NULL;
	struct dcp_dirent e;
	int rc = g ? dcp_source_resolve(source, &named) : -ENOMEM;

	if (rc < 0)
		return finish_grants(g, rc, out);
	real = realpath(named, NULL);
	if (!real || dcp_path_look(real, &e) < 0) {
		g->way = dcp_rights_alone();
	} else if (e.is_dir) {
		rc = pass_dirs(g, real, DCP_NEED_SEARCH, LISTED, &g->way);
	} else {
		rc = pass_above(g, real, DCP_NEED_SEARCH, &g->way);
	}
	if (real) {
		free(g->source);
		g->source = real;
		real = NULL;
	}
	return finish_grants(g, rc, out);
}

struct dcp_rights dcp_grants_of_file(const char *path)
{
	dcp_auto_free char *real = realpath(path, NULL);
	struct dcp_grants *g = real ? create_grants("") : NULL;
	struct dcp_rights r = DCP_RIGHTS_ALL;

	if (!g || pass_above(g, real, DCP_NEED_SEARCH, &r) < 0)
		r = dcp_rights_alone();
	else
		r = dcp_rights_meet(r, rights_at(g, real, DCP_NEED_READ, &g->dev));
	dcp_grants_free(g);
	return r;
}

int dcp_grants_version(const struct dcp_grants *source, const char *where,
		       struct dcp_grants **out)
{
	struct dcp_grants *g = create_grants(source->source);
	dcp_auto_free char *path = NULL, *real = NULL;
	int rc = 0;

	if (!g)
		return -ENOMEM;
	g->way = source->way;
	if (*where) {
		if (asprintf(&path, "%s/%s", source->source, where) < 0)
			path = NULL;
		real = path ? realpath(path, NULL) : NULL;
		if (real)
			rc = pass_dirs(g, real, LISTED, LISTED, &g->way);
		else
			g->way = path ? dcp_rights_alone() : g->way;
		rc = path ? rc : -ENOMEM;
	}
	return finish_grants(g, rc, out);
}

/* ---- files ---- */

/* The rights of the file @name at @at, and of the directories on its real path. -ENOMEM. */
static int look_at_file(struct dcp_grants *g, const struct dcp_site *at, const char *name,
			struct dcp_rights *out, struct dcp_rights *way)
{
	char path[PATH_MAX];
	int rc = dcp_site_path(at, name, path);

	if (rc == 0)
		rc = pass_above(g, path, LISTED, way);
	*out = dcp_rights_alone();
	if (rc < 0)
		return rc == -ENOMEM ? rc : 0;
	see_writers(g, path);
	*out = dcp_rights_meet(*way, rights_at(g, path, DCP_NEED_READ, &g->dev));
	return 0;
}

int dcp_grants_files(struct dcp_grants *g, const struct dcp_site *at,
		     const struct dcp_file_id *ids, size_t n)
{
	const struct dcp_rights *first = NULL;

	g->files = calloc(n ? n : 1, sizeof(*g->files));
	if (!g->files)
		return -ENOMEM;
	g->n = n;
	g->data = g->beside = g->way;
	for (size_t i = 0; i < n; i++) {
		struct dcp_rights way = g->way, *r = &g->files[i];
		int rc;

		*r = way;
		if (!ids[i].ino) /* the file could not be opened, so nothing of it is shown */
			continue;
		rc = look_at_file(g, at, ids[i].name, r, &way);
		if (rc < 0)
			return rc;
		if (ids[i].shown) {
			g->beside = dcp_rights_meet(g->beside, way);
			continue;
		}
		if (first && !dcp_rights_equal(*first, *r))
			g->mixed = true;
		first = first ? first : r;
		g->data = dcp_rights_meet(g->data, *r);
	}
	return 0;
}

/* ---- output written from the files ---- */

/* Narrow @r to the users who may read each of these files. */
static int meet_files(struct dcp_grants *g, const struct dcp_site *at,
		      const struct dcp_file_id *ids, size_t n, struct dcp_rights *r)
{
	int rc = dcp_grants_files(g, at, ids, n);

	for (size_t i = 0; rc == 0 && i < n; i++)
		*r = dcp_rights_meet(*r, g->files[i]);
	free(g->files);
	g->files = NULL;
	g->n = 0;
	return rc;
}

/* The directories from SOURCE down to the version; SOURCE may be a file, which has none. */
static int meet_way(struct dcp_grants *g, const struct dcp_version *v, const char *source)
{
	dcp_auto_free char *named = NULL, *real = NULL;
	char dir[PATH_MAX];
	struct dcp_dirent e;
	int rc = dcp_source_resolve(source, &named);

	if (rc < 0)
		return rc;
	real = realpath(named, NULL);
	if (!real || dcp_path_look(real, &e) < 0 || dcp_site_path(&v->at, ".", dir) < 0) {
		g->way = dcp_rights_alone();
		return 0;
	}
	if (e.is_dir)
		rc = ask_rights(g, real, strlen(real), LISTED, &g->way);
	free(g->source);
	g->source = real;
	real = NULL;
	return rc == 0 && e.is_dir ? pass_dirs(g, dir, LISTED, LISTED, &g->way) : rc;
}

/* Narrow @r by the files in one directory beside the version. Outside of SOURCE it takes the place
 * of SOURCE: it counts, and the directories above it do not. */
static int meet_dir_beside(struct dcp_grants *g, const struct dcp_beside *b,
			   struct dcp_rights *r)
{
	struct dcp_rights one = DCP_RIGHTS_ALL;
	char dir[PATH_MAX], *source = g->source;
	int rc = 0;

	if (b->n && dcp_site_path(&b->place, ".", dir) == 0 &&
	    !leads_to(source, strlen(source), dir) && !leads_to(dir, strlen(dir), source)) {
		rc = ask_rights(g, dir, strlen(dir), LISTED, &one);
		*r = dcp_rights_meet(*r, one);
		g->source = dir;
	}
	if (rc == 0)
		rc = meet_files(g, &b->place, b->id, b->n, r);
	g->source = source;
	return rc;
}

int dcp_grants_withheld(const struct dcp_version *v, const char *source, uint32_t gid,
			uint32_t *out)
{
	struct dcp_grants *g = create_grants("");
	struct dcp_rights r, w;
	const struct dcp_file_id *ids;
	size_t n;
	int rc;

	if (!g)
		return -ENOMEM;
	g->copied = true;
	g->writers = DCP_RIGHTS_ALL;
	rc = meet_way(g, v, source);
	r = g->way;
	ids = dcp_index_files(v->index, &n);
	if (rc == 0)
		rc = meet_files(g, &v->at, ids, n, &r);
	for (size_t i = 0; v->derived && rc == 0 && i < v->derived->nbeside; i++)
		rc = meet_dir_beside(g, &v->derived->beside[i], &r);
	if (rc == 0) {
		r = dcp_rights_as(r, geteuid(), gid);
		w = dcp_rights_as(g->writers, geteuid(), gid);
		*out = (r.mode & 0040 ? 0 : 0070) | (r.mode & 0004 ? 0 : 0007) |
		       (w.mode & 0040 ? 0 : 0020) | (w.mode & 0004 ? 0 : 0002);
	}
	dcp_grants_free(g);
	return rc;
}
