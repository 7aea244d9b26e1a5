/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of all archives stand in one list, sorted by their full name, so a directory is a run
 * of it: the names that begin with "deepspeed/".
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/sort.h"
#include "core/origin/archive/tar.h"
#include "core/origin/dir/dir_int.h"

enum { MAX_INPUTS = 65536 }; /* ranks that wrote one each */

struct member {
	const char *name;
	uint64_t off, size;
	uint32_t input;
};

struct dcp_archive {
	struct dcp_arena arena;
	struct dcp_buf inputs; /* struct dcp_input *: windows point to them */
	struct dcp_buf list;   /* struct member */
	size_t n;
};

static struct member *members(const struct dcp_archive *a)
{
	return DCP_ITEMS(a->list, struct member);
}

static struct dcp_input *input_of(const struct dcp_archive *a, uint32_t i)
{
	return DCP_ITEMS(a->inputs, struct dcp_input *)[i];
}

static size_t count_inputs(const struct dcp_archive *a)
{
	return a->inputs.n / sizeof(struct dcp_input *);
}

static int no_memory(struct dcp_err *err)
{
	return dcp_fail(err, -ENOMEM, "out of memory opening an archive");
}

/* ---- filling ---- */

int dcp_archive_create(struct dcp_archive **out)
{
	struct dcp_archive *a = calloc(1, sizeof(*a));

	if (!a)
		return -ENOMEM;
	dcp_arena_init(&a->arena, 2 * (size_t)DCP_TAR_MAX_NAMES);
	*out = a;
	return 0;
}

void dcp_archive_close(struct dcp_archive *a)
{
	if (!a)
		return;
	for (size_t i = 0; i < count_inputs(a); i++)
		dcp_input_close(input_of(a, (uint32_t)i));
	dcp_buf_finish(&a->inputs);
	dcp_buf_finish(&a->list);
	dcp_arena_finish(&a->arena);
	free(a);
}

static int take_input(struct dcp_archive *a, struct dcp_input *in, struct dcp_input **mine,
		      struct dcp_err *err)
{
	*mine = dcp_arena_alloc(&a->arena, sizeof(**mine));
	if (*mine && count_inputs(a) < MAX_INPUTS)
		dcp_buf_add(&a->inputs, mine, sizeof(*mine));
	if (!*mine || dcp_buf_error(&a->inputs) || count_inputs(a) == MAX_INPUTS) {
		dcp_input_close(in);
		return no_memory(err);
	}
	**mine = *in;
	*in = (struct dcp_input){ .fd = -1 };
	return 0;
}

static int add(struct dcp_archive *a, const struct member *m, struct dcp_err *err)
{
	dcp_buf_add(&a->list, m, sizeof(*m));
	a->n++;
	return dcp_buf_error(&a->list) ? no_memory(err) : 0;
}

int dcp_archive_add_tar(struct dcp_archive *a, struct dcp_input *in, struct dcp_err *err)
{
	struct dcp_tar_member *m = NULL;
	struct dcp_input *mine;
	size_t n = 0;
	int rc = take_input(a, in, &mine, err);

	if (rc == 0)
		rc = dcp_tar_list(&mine->src, &a->arena, &m, &n, err);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		struct member one = { m[i].name, m[i].off, m[i].size,
				      (uint32_t)count_inputs(a) - 1 };

		rc = add(a, &one, err);
	}
	return rc;
}

int dcp_archive_add_file(struct dcp_archive *a, struct dcp_input *in, const char *name,
			 struct dcp_err *err)
{
	struct dcp_input *mine;
	int rc = take_input(a, in, &mine, err);
	struct member one = { .input = (uint32_t)count_inputs(a) - 1 };

	if (rc < 0)
		return rc;
	one.size = mine->src.size;
	one.name = dcp_arena_strdup(&a->arena, name);
	return one.name ? add(a, &one, err) : no_memory(err);
}

/* Inputs count up, so of equal names the first input's comes first. */
static int by_name(const void *a, const void *b)
{
	const struct member *x = a, *y = b;

	return strcmp(x->name, y->name) ?: DCP_CMP(x->input, y->input);
}

static void settle(struct dcp_archive *a)
{
	struct member *m = members(a);
	size_t kept = 0;

	DCP_SORT(m, a->n, by_name);
	for (size_t i = 0; i < a->n; i++)
		if (i == 0 || strcmp(m[i].name, m[kept - 1].name) != 0)
			m[kept++] = m[i];
	a->n = kept;
}

/* ---- directories ---- */

/* The first member that is not before @prefix. */
static size_t lower_bound(const struct dcp_archive *a, const char *prefix)
{
	const struct member *m = members(a);
	size_t i;

	DCP_BISECT(i, 0, a->n, strcmp(m[i].name, prefix) < 0);
	return i;
}

static int put_entry(struct dcp_dir *d, const char *name, size_t n, uint64_t size, bool is_dir)
{
	struct dcp_dirent *e = &d->entries[d->n];

	*e = (struct dcp_dirent){ dcp_arena_strndup(&d->arena, name, n), size, is_dir };
	if (!e->name)
		return -ENOMEM;
	d->n++;
	return 0;
}

/* Only in archives made to confuse: a file that is a directory, too. The file counts. */
static void drop_twins(struct dcp_dir *d)
{
	size_t kept = 0;

	for (size_t i = 0; i < d->n; i++) {
		struct dcp_dirent *last = kept ? &d->entries[kept - 1] : NULL;

		if (!last || strcmp(last->name, d->entries[i].name) != 0)
			d->entries[kept++] = d->entries[i];
		else if (last->is_dir)
			*last = d->entries[i];
	}
	d->n = kept;
}

/* One entry for each first component after the prefix; @n members have it. */
static int list_entries(struct dcp_dir *d, const struct member *m, size_t n)
{
	size_t skip = strlen(d->within), len = 0;
	const char *last = NULL; /* the directory that was put last */
	int rc = 0;

	d->entries = dcp_arena_calloc(&d->arena, n, sizeof(*d->entries));
	if (!d->entries)
		return -ENOMEM;
	for (size_t i = 0; rc == 0 && i < n; i++) {
		const char *name = m[i].name + skip;
		const char *slash = strchr(name, '/');

		if (!slash) {
			rc = put_entry(d, name, strlen(name), m[i].size, false);
		} else if (!last || (size_t)(slash - name) != len || strncmp(name, last, len)) {
			last = name;
			len = (size_t)(slash - name);
			rc = put_entry(d, name, len, 0, true);
		}
	}
	DCP_SORT(d->entries, d->n, dcp_by_text);
	drop_twins(d);
	return rc;
}

/* The directory of the members whose names begin with @within. */
static int open_within(const struct dcp_archive *a, const char *path, const char *within,
		       struct dcp_dir *out, struct dcp_err *err)
{
	struct dcp_dir d = { .fd = -1, .archive = a };
	size_t first = lower_bound(a, within), n = 0, len = strlen(within);
	int rc = -ENOMEM;

	while (first + n < a->n && strncmp(members(a)[first + n].name, within, len) == 0)
		n++;
	if (n > DCP_DIR_MAX_NAMES)
		return dcp_fail(err, -E2BIG, "%.300s: more than %d names", path,
				DCP_DIR_MAX_NAMES);
	dcp_arena_init(&d.arena, dcp_dir_memory(path) + DCP_TAR_MAX_NAMES);
	d.path = dcp_arena_strdup(&d.arena, path);
	d.within = dcp_arena_strndup(&d.arena, within, len);
	if (d.path && d.within)
		rc = list_entries(&d, a->n ? members(a) + first : NULL, n);
	if (rc < 0) {
		dcp_dir_close(&d);
		return no_memory(err);
	}
	*out = d;
	return 0;
}

int dcp_dir_of_archive(struct dcp_archive *a, const char *path, struct dcp_dir *out,
		       struct dcp_err *err)
{
	settle(a);
	return open_within(a, path, "", out, err);
}

static const struct member *find(const struct dcp_archive *a, const char *name)
{
	size_t i = lower_bound(a, name);

	return i < a->n && strcmp(members(a)[i].name, name) == 0 ? &members(a)[i] : NULL;
}

int dcp_archive_open_at(const struct dcp_dir *parent, const char *name, struct dcp_dir *out,
			struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf path = DCP_BUF_INIT, within = DCP_BUF_INIT;
	const struct dcp_archive *a = parent->archive;
	size_t first;

	dcp_buf_printf(&path, "%s/%s", parent->path, name);
	dcp_buf_printf(&within, "%s%s", parent->within, name);
	if (dcp_buf_error(&path) || dcp_buf_error(&within))
		return no_memory(err);
	if (find(a, within.p))
		return dcp_open_fail(err, -ENOTDIR, path.p);
	if (dcp_buf_str(&within, "/") < 0)
		return no_memory(err);
	first = lower_bound(a, within.p);
	if (first == a->n || strncmp(members(a)[first].name, within.p, within.n) != 0)
		return dcp_open_fail(err, -ENOENT, path.p);
	return open_within(a, path.p, within.p, out, err);
}

static int find_in(const struct dcp_dir *d, const char *name, const struct member **m,
		   struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf full = DCP_BUF_INIT;
	int rc = dcp_dir_check_name(name, err);

	if (rc < 0)
		return rc;
	if (dcp_buf_printf(&full, "%s%s", d->within, name) < 0)
		return no_memory(err);
	*m = find(d->archive, full.p);
	if (!*m)
		return dcp_fail(err, -ENOENT, "%.300s: no file of that name in %.100s", name,
				d->path);
	return 0;
}

int dcp_archive_find(const struct dcp_dir *d, const char *name, uint32_t *input, uint64_t *off,
		     struct dcp_err *err)
{
	const struct member *m;
	int rc = find_in(d, name, &m, err);

	if (rc < 0)
		return rc;
	*input = m->input;
	*off = m->off;
	return 0;
}

int dcp_archive_input(const struct dcp_dir *d, const char *name, struct dcp_input *out,
		      struct dcp_err *err)
{
	const struct member *m;
	int rc = find_in(d, name, &m, err);

	if (rc < 0)
		return rc;
	out->fd = -1;
	out->src = dcp_source_window(&input_of(d->archive, m->input)->src, m->off, m->size);
	return 0;
}
