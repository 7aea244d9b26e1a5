/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/layouts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/near.h"
#include "core/base/text.h"

#define EXTENSION ".dcpl"

enum {
	MAX_FILE = 4 << 20,
	MAX_NAMES = 4096, /* a walker that tries names must not fill the memory */
};

struct dcpfs_layouts {
	pthread_rwlock_t lock; /* the list; what is in it never changes */
	struct dcpfs_layout *first;
	size_t n;
	struct dcpfs_layout **listed; /* by name; complete before anybody else looks */
	size_t nlisted;
};

static struct dcpfs_layout *by_name(const struct dcpfs_layouts *t, const char *name)
{
	struct dcpfs_layout *l = t->first;

	while (l && strcmp(l->name, name) != 0)
		l = l->next;
	return l;
}

static struct dcpfs_layout *by_id(const struct dcpfs_layouts *t, uint64_t id)
{
	struct dcpfs_layout *l = t->first;

	while (l && l->id != id)
		l = l->next;
	return l;
}

/* Take @l as @name. The caller is alone, or holds the lock for writing. */
static int add(struct dcpfs_layouts *t, const char *name, struct dcp_layout *l, bool listed,
	       struct dcpfs_layout **out)
{
	struct dcpfs_layout *e = t->n < MAX_NAMES ? calloc(1, sizeof(*e)) : NULL;
	char *copy = e ? strdup(name) : NULL;

	if (!copy) {
		free(e);
		dcp_layout_free(l);
		return t->n < MAX_NAMES ? -ENOMEM : -E2BIG;
	}
	*e = (struct dcpfs_layout){
		.id = (uint32_t)dcp_hash64(name, strlen(name)) & INT32_MAX,
		.listed = listed,
		.name = copy,
		.l = l,
		.next = t->first,
	};
	while (by_id(t, e->id))
		e->id = (e->id + 1) & INT32_MAX;
	t->first = e;
	t->n++;
	if (out)
		*out = e;
	return 0;
}

/* ---- files ---- */

static int read_file(int dirfd, const char *path, struct dcp_buf *out, struct dcp_err *err)
{
	dcp_auto_fd int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return dcp_fail(err, -errno, DCP_ERR_NO_OFFSET, "%.300s: %s", path,
				strerror(errno));
	if (!S_ISREG(st.st_mode) || st.st_size > MAX_FILE)
		return dcp_fail(err, -EINVAL, DCP_ERR_NO_OFFSET,
				"%.300s: no layout: not a file, or more than %d bytes", path,
				MAX_FILE);
	while (out->n < MAX_FILE) {
		char *p = dcp_buf_grow(out, 65536);
		ssize_t n;

		if (!p)
			return dcp_fail(err, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory");
		n = read(fd, p, 65536);
		out->n -= 65536 - (n > 0 ? (size_t)n : 0);
		if (n < 0)
			return dcp_fail(err, -errno, DCP_ERR_NO_OFFSET, "%.300s: %s", path,
					strerror(errno));
		if (n == 0)
			return 0;
	}
	return dcp_fail(err, -E2BIG, DCP_ERR_NO_OFFSET, "%.300s: too long", path);
}

/* "dir/llama.dcpl" and "dir/llama.txt" are both called llama. */
static int stem_of(const char *path, char stem[NAME_MAX + 1])
{
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
	const char *dot = strrchr(base, '.');
	size_t n = dot && dot > base ? (size_t)(dot - base) : strlen(base);

	if (n == 0 || n > NAME_MAX || *base == '.')
		return -EINVAL;
	memcpy(stem, base, n);
	stem[n] = '\0';
	return 0;
}

/* The layout of a file, called @name in messages. */
static int parse_file(int dirfd, const char *path, const char *name, struct dcp_layout **out,
		      struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	int rc = read_file(dirfd, path, &text, err);

	return rc < 0 ? rc : dcp_layout_parse(name, text.p ? text.p : "", text.n, out, err);
}

static int load_file(struct dcpfs_layouts *t, int dirfd, const char *path, struct dcp_err *err)
{
	char stem[NAME_MAX + 1];
	struct dcp_layout *l;
	int rc = stem_of(path, stem);

	if (rc < 0)
		return dcp_fail(err, rc, DCP_ERR_NO_OFFSET, "%.300s: no name for a layout",
				path);
	if (by_name(t, stem)) /* a directory's gives way to one that was read before */
		return dirfd != AT_FDCWD ? 0
					 : dcp_fail(err, -EINVAL, DCP_ERR_NO_OFFSET,
						    "%.300s: another file's layout is called "
						    "%.80s, too",
						    path, stem);
	rc = parse_file(dirfd, path, stem, &l, err);
	return rc < 0 ? rc : add(t, stem, l, true, NULL);
}

static int is_layout_file(const struct dirent *e)
{
	return *e->d_name != '.' && dcp_has_extension(e->d_name, EXTENSION);
}

static void load_dir(struct dcpfs_layouts *t, const char *dir, const struct dcp_log *log)
{
	struct dirent **names = NULL;
	dcp_auto_fd int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int n = fd < 0 ? -1 : scandirat(fd, ".", &names, is_layout_file, alphasort);

	for (int i = 0; i < n; i++) {
		struct dcp_err err = { 0 };

		if (load_file(t, fd, names[i]->d_name, &err) < 0)
			dcp_log(log, DCP_LOG_WARN, "%s/%s is left out: %s", dir,
				names[i]->d_name, err.msg);
		free(names[i]);
	}
	free(names);
}

/* ---- the table ---- */

static int compare(const void *a, const void *b)
{
	const struct dcpfs_layout *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name);
}

static int list(struct dcpfs_layouts *t)
{
	t->listed = calloc(t->n + 1, sizeof(*t->listed));
	if (!t->listed)
		return -ENOMEM;
	for (struct dcpfs_layout *l = t->first; l; l = l->next)
		t->listed[t->nlisted++] = l;
	qsort(t->listed, t->nlisted, sizeof(*t->listed), compare);
	return 0;
}

int dcpfs_layouts_create(const struct dcpfs_layout_opts *opts, struct dcpfs_layouts **out,
			 struct dcp_err *err)
{
	struct dcpfs_layouts *t = calloc(1, sizeof(*t));
	int rc = 0;

	if (!t)
		return -ENOMEM;
	pthread_rwlock_init(&t->lock, NULL);
	for (size_t i = 0; rc == 0 && i < opts->nfiles; i++)
		rc = load_file(t, AT_FDCWD, opts->files[i], err);
	for (size_t i = 0; rc == 0 && i < opts->ndirs; i++)
		if (opts->dirs[i])
			load_dir(t, opts->dirs[i], opts->log);
	if (rc == 0)
		rc = list(t);
	if (rc < 0) {
		dcpfs_layouts_destroy(t);
		return rc;
	}
	*out = t;
	return 0;
}

void dcpfs_layouts_destroy(struct dcpfs_layouts *t)
{
	if (!t)
		return;
	while (t->first) {
		struct dcpfs_layout *l = t->first;

		t->first = l->next;
		dcp_layout_free((struct dcp_layout *)(uintptr_t)l->l);
		free((char *)(uintptr_t)l->name);
		free(l);
	}
	free(t->listed);
	pthread_rwlock_destroy(&t->lock);
	free(t);
}

/* No such name, neither here nor built in: is one of those here near? */
static int no_name(const struct dcpfs_layouts *t, const char *name, int rc, struct dcp_err *err)
{
	size_t best = dcp_near_limit(name);
	const char *near = NULL;

	for (size_t i = 0; i < t->nlisted; i++) {
		size_t d = dcp_near_distance(name, t->listed[i]->name, best);

		if (d <= best && (!near || d < best)) {
			near = t->listed[i]->name;
			best = d;
		}
	}
	return near ? dcp_fail(err, rc, DCP_ERR_NO_OFFSET,
			       "no layout \"%.80s\", nearest is \"%.80s\"", name, near)
		    : rc;
}

/* "mesh:dp2,tp4:<stem>" */
static int on_mesh(const struct dcpfs_layouts *t, const char *name, struct dcp_layout **out,
		   struct dcp_err *err)
{
	const char *mesh = name + strlen("mesh:"), *colon = strchr(mesh, ':');
	const struct dcpfs_layout *of = colon ? by_name(t, colon + 1) : NULL;
	char text[NAME_MAX + 1];

	if (!of || !of->listed)
		return dcp_fail(err, -ENOENT, DCP_ERR_NO_OFFSET,
				"%.200s: no layout file of that name; the form is "
				"mesh:dp2,tp4:FILE_STEM",
				name);
	snprintf(text, sizeof(text), "%.*s", (int)(colon - mesh), mesh);
	return dcp_layout_on_mesh(of->l, text, out, err);
}

int dcpfs_layouts_find(struct dcpfs_layouts *t, const char *name,
		       const struct dcpfs_layout **out, struct dcp_err *err)
{
	struct dcp_layout *l = NULL;
	struct dcpfs_layout *found;
	int rc = 0;

	pthread_rwlock_rdlock(&t->lock);
	found = by_name(t, name);
	if (!found && strncmp(name, "mesh:", 5) == 0)
		rc = on_mesh(t, name, &l, err);
	pthread_rwlock_unlock(&t->lock);
	if (!found && !l && rc == 0)
		rc = dcp_layout_named(name, &l, err);
	if (rc == -ENOENT && strncmp(name, "mesh:", 5) != 0)
		rc = no_name(t, name, rc, err);
	if (!found && rc == 0) {
		pthread_rwlock_wrlock(&t->lock);
		found = by_name(t, name); /* somebody may have been faster */
		if (found)
			dcp_layout_free(l);
		else
			rc = add(t, name, l, false, &found);
		pthread_rwlock_unlock(&t->lock);
	}
	*out = found;
	return rc;
}

static bool is_path(const struct dcpfs_layouts *t, const char *word)
{
	struct stat st;

	return strchr(word, '/') || dcp_has_extension(word, EXTENSION) ||
	       (!by_name(t, word) && stat(word, &st) == 0 && S_ISREG(st.st_mode));
}

/* The file at @path on its own mesh, or on @mesh of @n bytes. */
static int open_path(const char *path, const char *mesh, size_t n, struct dcp_layout **out,
		     struct dcp_err *err)
{
	char stem[NAME_MAX + 1], text[NAME_MAX + 1];
	struct dcp_layout *l;
	int rc;

	if (stem_of(path, stem) < 0)
		return dcp_fail(err, -EINVAL, DCP_ERR_NO_OFFSET, "%.300s: no name for a layout",
				path);
	rc = parse_file(AT_FDCWD, path, stem, &l, err);
	if (rc < 0 || !mesh) {
		*out = rc < 0 ? NULL : l;
		return rc;
	}
	snprintf(text, sizeof(text), "%.*s", (int)DCP_MIN(n, sizeof(text) - 1), mesh);
	rc = dcp_layout_on_mesh(l, text, out, err);
	dcp_layout_free(l);
	return rc;
}

int dcpfs_layouts_open(struct dcpfs_layouts *t, const char *word,
		       const struct dcpfs_layout **out, struct dcp_err *err)
{
	const char *mesh = strncmp(word, "mesh:", 5) ? NULL : word + 5;
	const char *colon = mesh ? strchr(mesh, ':') : NULL;
	const char *path = colon ? colon + 1 : word;
	struct dcpfs_layout *found;
	struct dcp_layout *l;
	bool is_file;
	int rc;

	pthread_rwlock_rdlock(&t->lock);
	is_file = (colon || !mesh) && is_path(t, path);
	pthread_rwlock_unlock(&t->lock);
	if (!is_file)
		return dcpfs_layouts_find(t, word, out, err);
	rc = open_path(path, mesh, colon ? (size_t)(colon - mesh) : 0, &l, err);
	if (rc < 0)
		return rc;
	pthread_rwlock_wrlock(&t->lock);
	rc = add(t, word, l, false, &found);
	pthread_rwlock_unlock(&t->lock);
	*out = rc < 0 ? NULL : found;
	return rc;
}

const struct dcpfs_layout *dcpfs_layouts_by_id(struct dcpfs_layouts *t, uint64_t id)
{
	struct dcpfs_layout *l;

	pthread_rwlock_rdlock(&t->lock);
	l = by_id(t, id);
	pthread_rwlock_unlock(&t->lock);
	return l;
}

const struct dcpfs_layout *dcpfs_layouts_at(struct dcpfs_layouts *t, size_t n)
{
	return n < t->nlisted ? t->listed[n] : NULL;
}
