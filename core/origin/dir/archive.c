/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of all archives stand in one list, sorted by their full name, so a directory is a run
 * of it: the names that begin with "deepspeed/".
 */
#include <errno.h>
#include <stdio.h>
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
	const struct dcp_source *src; /* of the input */
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
	*in = (struct dcp_input){ 0 };
	return 0;
}

static int add(struct dcp_archive *a, const struct member *m, struct dcp_err *err)
{
	struct member mine = *m;

	mine.src = &input_of(a, m->input)->src;
	dcp_buf_add(&a->list, &mine, sizeof(mine));
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

/* Does @m have a name that begins with @within? */
static bool is_within(const struct dcp_archive *a, size_t i, const char *within)
{
	return i < a->n && strncmp(members(a)[i].name, within, strlen(within)) == 0;
}

/* One entry for each first component after the prefix. */
static int list(const struct dcp_site *at, dcp_entry_fn *fn, void *ctx, struct dcp_err *err)
{
	const struct dcp_archive *a = at->own;
	size_t skip = strlen(at->within), len = 0;
	const char *last = NULL; /* the directory that was put last */
	int rc = 0;

	for (size_t i = lower_bound(a, at->within); rc == 0 && is_within(a, i, at->within);
	     i++) {
		const struct member *m = &members(a)[i];
		const char *name = m->name + skip, *slash = strchr(name, '/');
		const struct dcp_dirent e = { .size = slash ? 0 : m->size, .is_dir = slash };

		if (!slash) {
			rc = fn(ctx, name, strlen(name), &e);
		} else if (!last || (size_t)(slash - name) != len || strncmp(name, last, len)) {
			last = name;
			len = (size_t)(slash - name);
			rc = fn(ctx, name, len, &e);
		}
	}
	return rc;
}

static int place_in(const void *a, const char *within, const char *name, const char *slash,
		    struct dcp_site *out)
{
	*out = (struct dcp_site){ .row = &dcp_origin_nested, .own = (void *)(uintptr_t)a };
	out->fd = -1;
	return asprintf(&out->within, "%s%s%s", within, name, slash) < 0 ? -ENOMEM : 0;
}

int dcp_dir_of_archive(struct dcp_archive *a, const char *path, struct dcp_dir *out,
		       struct dcp_err *err)
{
	struct dcp_site at;

	settle(a);
	return place_in(a, "", "", "", &at) < 0 ? no_memory(err)
						: dcp_dir_of_site(&at, path, out, err);
}

static const struct member *find(const struct dcp_site *at, const char *name)
{
	const struct dcp_archive *a = at->own;
	dcp_auto_buf struct dcp_buf full = DCP_BUF_INIT;
	size_t i;

	if (dcp_buf_printf(&full, "%s%s", at->within, name) < 0)
		return NULL;
	i = lower_bound(a, full.p);
	return i < a->n && strcmp(members(a)[i].name, full.p) == 0 ? &members(a)[i] : NULL;
}

static int below(const struct dcp_site *at, const char *name, struct dcp_site *out)
{
	int rc = find(at, name) ? -ENOTDIR : place_in(at->own, at->within, name, "/", out);

	if (rc == 0 && !is_within(at->own, lower_bound(at->own, out->within), out->within)) {
		dcp_site_close(out);
		rc = -ENOENT;
	}
	return rc;
}

static int again(const struct dcp_site *at, struct dcp_site *out)
{
	return place_in(at->own, at->within, "", "", out);
}

static void close_place(struct dcp_site *at)
{
	free(at->within);
}

static int find_file(const struct dcp_site *at, const char *name, const struct member **m,
		     struct dcp_err *err)
{
	*m = find(at, name);
	return *m ? 0
		  : dcp_fail(err, -ENOENT, "%.300s: no file of that name in the archive", name);
}

int dcp_archive_find(const struct dcp_dir *d, const char *name, uint32_t *input, uint64_t *off,
		     struct dcp_err *err)
{
	const struct member *m;
	int rc = dcp_site_check_name(name, err);

	if (rc == 0)
		rc = find_file(&d->at, name, &m, err);
	if (rc < 0)
		return rc;
	*input = m->input;
	*off = m->off;
	return 0;
}

/* ---- files ---- */

static int read_member(const struct dcp_read *reads, size_t n)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < n; i++) {
		const struct member *m = reads[i].blob->own;

		rc = dcp_source_read(m->src, m->off + reads[i].off, reads[i].to, reads[i].n);
	}
	return rc;
}

static void leave_member(struct dcp_blob *b)
{
	(void)b; /* the archive's */
}

static int open_member(const struct dcp_site *at, const char *name, struct dcp_blob *out,
		       struct dcp_file_id *id, struct dcp_err *err)
{
	static const struct dcp_blob_ops ops = { .read = read_member, .close = leave_member };
	const struct member *m;
	int rc = find_file(at, name, &m, err);

	if (rc < 0)
		return rc;
	*out = (struct dcp_blob){ &ops, (void *)(uintptr_t)m, m->size, -1 };
	if (m->off < m->src->size)
		out->size = DCP_MIN(m->size, m->src->size - m->off);
	else
		out->size = 0;
	return id ? -ENOTSUP : 0; /* the archive has one */
}

const struct dcp_origin dcp_origin_nested = {
	.name = "archive",
	.list = list,
	.below = below,
	.open = open_member,
	.again = again,
	.close = close_place,
};
