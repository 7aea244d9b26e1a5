/* SPDX-License-Identifier: Apache-2.0 */
#include "core/parse/layout/layout.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/err.h"
#include "core/base/near.h"
#include "core/base/text.h"
#include "core/origin/origin.h"
#include "core/store/layouts/layouts_int.h"

static int compare(const void *a, const void *b)
{
	const struct dcp_named_layout *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name);
}

static int list(struct dcp_layouts *t)
{
	t->listed = calloc(t->n + 1, sizeof(*t->listed));
	if (!t->listed)
		return -ENOMEM;
	for (struct dcp_named_layout *l = t->first; l; l = l->next)
		t->listed[t->nlisted++] = l;
	qsort(t->listed, t->nlisted, sizeof(*t->listed), compare);
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
		rc = list(t);
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

/* The name of a file's layout that is near to @name, which may have the extension; or NULL. */
static const char *nearest(const struct dcp_layouts *t, const char *name)
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

/* No such name, neither here nor built in: is one of those here near? */
static int no_name(const struct dcp_layouts *t, const char *name, int rc, struct dcp_err *err)
{
	const char *near = nearest(t, name);

	return near ? dcp_fail(err, rc, "no layout \"%.80s\", nearest is \"%.80s\"", name, near)
		    : rc;
}

/* "mesh:dp2,tp4:<stem>" */
static int on_mesh(const struct dcp_layouts *t, const char *name, struct dcp_layout **out,
		   struct dcp_err *err)
{
	const char *mesh = name + strlen("mesh:"), *colon = strchr(mesh, ':');
	const struct dcp_named_layout *of = colon ? dcp_layouts_by_name(t, colon + 1) : NULL;
	const char *near = colon && !of ? nearest(t, colon + 1) : NULL;
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
		rc = no_name(t, name, rc, err);
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
		rc = no_name(t, path, rc, err);
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
