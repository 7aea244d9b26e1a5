/* SPDX-License-Identifier: Apache-2.0 */
#include "core/origin/dir/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/origin/archive/archive.h"
#include "core/origin/dir/dir_int.h"

const struct dcp_origin *dcp_origin_of(const char *source)
{
	size_t i = 0;

	while (dcp_origins[i] &&
	       strncmp(source, dcp_origins[i]->scheme, strlen(dcp_origins[i]->scheme)) != 0)
		i++;
	return dcp_origins[i] ? dcp_origins[i] : &dcp_origin_local;
}

int dcp_site_find(const char *source, struct dcp_site *out, char **only, struct dcp_err *err)
{
	*only = NULL;
	return dcp_origin_of(source)->find(source, out, only, err);
}

struct listing {
	struct dcp_dir *d;
	struct dcp_buf list; /* struct dcp_dirent */
};

static int add_entry(void *ctx, const char *name, size_t n, const struct dcp_dirent *e)
{
	struct listing *l = ctx;
	struct dcp_dirent mine = *e;

	if (l->d->n == DCP_DIR_MAX_NAMES)
		return -E2BIG;
	mine.name = dcp_arena_strndup(&l->d->arena, name, n);
	if (!mine.name)
		return -ENOMEM;
	dcp_buf_add(&l->list, &mine, sizeof(mine));
	l->d->n++;
	return dcp_buf_error(&l->list);
}

/* Remove directories with the name of a file, which occur only in archives made to confuse. The
 * file wins. */
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

static int list_entries(struct dcp_dir *d, struct dcp_err *err)
{
	struct listing l = { .d = d };
	int code = d->at.row->list(&d->at, add_entry, &l, err);

	if (code == 0)
		d->entries = dcp_arena_dup(&d->arena, l.list.p, d->n, sizeof(*d->entries));
	dcp_buf_finish(&l.list);
	if (code < 0 || !d->entries)
		return code < 0 ? code : -ENOMEM;
	DCP_SORT(d->entries, d->n, dcp_by_text);
	drop_twins(d);
	return 0;
}

/* List the site @at (taken, also on failure), called @path in messages. */
static int dcp_dir_of_site(struct dcp_site *at, const char *path, struct dcp_dir *out,
			   struct dcp_err *err)
{
	struct dcp_dir d = { .at = *at };
	struct dcp_err why = { 0 };
	int code = -ENOMEM;

	*at = (struct dcp_site){ .fd = -1 };
	dcp_arena_init(&d.arena, dcp_dir_memory(path));
	d.path = dcp_arena_strdup(&d.arena, path);
	if (d.path)
		code = dcp_seen_opening(d.at.seen, list_entries(&d, &why));
	if (code == 0) {
		*out = d;
		return 0;
	}
	dcp_dir_close(&d);
	if (why.code)
		return dcp_err_give(err, &why, code);
	if (code == -E2BIG)
		return dcp_fail(err, code, "%.300s: more than %d names", path,
				DCP_DIR_MAX_NAMES);
	return dcp_fail(err, code, "%.300s: %s", path, strerror(-code));
}

/* Make a directory of one entry, the file @path in @at. */
static int dir_of_file(struct dcp_site *at, const char *path, struct dcp_dir *out)
{
	struct dcp_dir d = { .at = *at, .is_file = true, .n = 1 };
	int code = -ENOMEM;

	dcp_arena_init(&d.arena, 2 * strlen(path) + 65536);
	d.path = dcp_arena_strdup(&d.arena, path);
	d.entries = dcp_arena_calloc(&d.arena, 1, sizeof(*d.entries));
	if (d.path && d.entries)
		code = d.at.row->look(&d.at, strrchr(d.path, '/') + 1, d.entries);
	if (code == 0)
		*out = d;
	else
		dcp_dir_close(&d);
	return code;
}

static int open_path(const char *path, struct dcp_seen *seen, struct dcp_dir *out,
		     struct dcp_err *err)
{
	dcp_auto_free char *only = NULL;
	struct dcp_err why = { 0 };
	struct dcp_site at;
	int code = dcp_site_find(path, &at, &only, &why);

	if (code == 0 && only)
		code = dir_of_file(&at, only, out);
	if (code < 0)
		return why.code ? dcp_err_give(err, &why, code)
				: dcp_open_fail(err, code, path);
	at.seen = seen;
	if (seen)
		seen->failed |= at.fd < 0;
	return only ? 0 : dcp_dir_of_site(&at, path, out, err);
}

int dcp_dir_open_seen(const char *path, struct dcp_seen *seen, struct dcp_dir *out,
		      struct dcp_err *err)
{
	dcp_seen_note(seen, AT_FDCWD, NULL, path, true);
	return open_path(path, seen, out, err);
}

int dcp_dir_open(const char *path, struct dcp_dir *out, struct dcp_err *err)
{
	return open_path(path, NULL, out, err);
}

void dcp_dir_note(const struct dcp_dir *d, const char *name)
{
	dcp_seen_note(d->at.seen, d->at.fd, d->path, name, false);
}

int dcp_dir_open_at(const struct dcp_dir *parent, const char *name, struct dcp_dir *out,
		    struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf path = DCP_BUF_INIT;
	struct dcp_site at;
	int code = dcp_site_check_name(name, err);

	if (code < 0)
		return code;
	if (dcp_buf_printf(&path, "%s/%s", parent->path, name) < 0)
		return dcp_fail(err, -ENOMEM, "out of memory");
	dcp_seen_note(parent->at.seen, parent->at.fd, parent->path, name, true);
	code = parent->at.row ? parent->at.row->below(&parent->at, name, &at) : -EBADF;
	if (dcp_seen_opening(parent->at.seen, code) < 0)
		return dcp_open_fail(err, code, path.p);
	at.seen = parent->at.seen;
	return dcp_dir_of_site(&at, path.p, out, err);
}

/* Copy everything of @d except the entries. */
static int copy_head(const struct dcp_dir *d, struct dcp_dir *out)
{
	struct dcp_dir part = { 0 };
	int code = -ENOMEM;

	dcp_arena_init(&part.arena, dcp_dir_memory(d->path));
	part.path = dcp_arena_strdup(&part.arena, d->path);
	part.entries = dcp_arena_calloc(&part.arena, d->n, sizeof(*part.entries));
	if (part.path && part.entries)
		code = dcp_seen_opening(d->at.seen, dcp_site_again(&d->at, &part.at));
	if (code == 0)
		*out = part;
	else
		dcp_arena_finish(&part.arena);
	return code;
}

int dcp_dir_only(const struct dcp_dir *d, bool (*keep)(void *ctx, const struct dcp_dirent *e),
		 void *ctx, struct dcp_dir *out)
{
	struct dcp_dir part;
	int code = copy_head(d, &part);

	for (size_t i = 0; code == 0 && i < d->n; i++) {
		const struct dcp_dirent *e = &d->entries[i];
		struct dcp_dirent *mine = &part.entries[part.n];

		if (!keep(ctx, e))
			continue;
		*mine = *e;
		mine->name = dcp_arena_strdup(&part.arena, e->name);
		if (!mine->name) {
			dcp_dir_close(&part);
			return -ENOMEM;
		}
		part.n++;
	}
	if (code == 0)
		*out = part;
	return code;
}

int dcp_dir_input(const struct dcp_dir *d, const char *name, struct dcp_input *out,
		  struct dcp_err *err)
{
	int code;

	dcp_dir_note(d, name);
	code = dcp_seen_opening(d->at.seen, dcp_site_open(&d->at, name, &out->blob, NULL, err));
	if (code == 0)
		out->src = dcp_source_blob(&out->blob);
	return code;
}

/* The members of all archives are in one list, sorted by full name, so a directory is a range of
 * the list: the names that begin with "deepspeed/". */

enum { MAX_INPUTS = 65536 }; /* limit: ranks that wrote one archive each */

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

static struct member *get_members(const struct dcp_archive *a)
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

static int fail_no_memory(struct dcp_err *err)
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
		return fail_no_memory(err);
	}
	**mine = *in;
	*in = (struct dcp_input){ 0 };
	return 0;
}

static int add_member(struct dcp_archive *a, const struct member *m, struct dcp_err *err)
{
	struct member mine = *m;

	mine.src = &input_of(a, m->input)->src;
	dcp_buf_add(&a->list, &mine, sizeof(mine));
	a->n++;
	return dcp_buf_error(&a->list) ? fail_no_memory(err) : 0;
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

		rc = add_member(a, &one, err);
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
	return one.name ? add_member(a, &one, err) : fail_no_memory(err);
}

/* Inputs have ascending numbers, so of equal names the first input's comes first. */
static int by_name(const void *a, const void *b)
{
	const struct member *x = a, *y = b;

	return strcmp(x->name, y->name) ?: DCP_CMP(x->input, y->input);
}

static void settle_members(struct dcp_archive *a)
{
	struct member *m = get_members(a);
	size_t kept = 0;

	DCP_SORT(m, a->n, by_name);
	for (size_t i = 0; i < a->n; i++)
		if (i == 0 || strcmp(m[i].name, m[kept - 1].name) != 0)
			m[kept++] = m[i];
	a->n = kept;
}

/* ---- directories ---- */

/* The index of the first member that does not sort before @prefix. */
static size_t lower_bound(const struct dcp_archive *a, const char *prefix)
{
	const struct member *m = get_members(a);
	size_t i;

	DCP_BISECT(i, 0, a->n, strcmp(m[i].name, prefix) < 0);
	return i;
}

/* Does @m have a name that begins with @within? */
static bool is_within(const struct dcp_archive *a, size_t i, const char *within)
{
	return i < a->n && strncmp(get_members(a)[i].name, within, strlen(within)) == 0;
}

/* Emit an entry for each first component after the prefix. */
static int list_members(const struct dcp_site *at, dcp_entry_fn *fn, void *ctx,
			struct dcp_err *err)
{
	const struct dcp_archive *a = at->own;
	size_t skip = strlen(at->within), len = 0;
	const char *last = NULL; /* the directory that was emitted last */
	int rc = 0;

	for (size_t i = lower_bound(a, at->within); rc == 0 && is_within(a, i, at->within);
	     i++) {
		const struct member *m = &get_members(a)[i];
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

	settle_members(a);
	return place_in(a, "", "", "", &at) < 0 ? fail_no_memory(err)
						: dcp_dir_of_site(&at, path, out, err);
}

static const struct member *find_member(const struct dcp_site *at, const char *name)
{
	const struct dcp_archive *a = at->own;
	dcp_auto_buf struct dcp_buf full = DCP_BUF_INIT;
	size_t i;

	if (dcp_buf_printf(&full, "%s%s", at->within, name) < 0)
		return NULL;
	i = lower_bound(a, full.p);
	return i < a->n && strcmp(get_members(a)[i].name, full.p) == 0 ? &get_members(a)[i]
								       : NULL;
}

static int open_below(const struct dcp_site *at, const char *name, struct dcp_site *out)
{
	int rc = find_member(at, name) ? -ENOTDIR
				       : place_in(at->own, at->within, name, "/", out);

	if (rc == 0 && !is_within(at->own, lower_bound(at->own, out->within), out->within)) {
		dcp_site_close(out);
		rc = -ENOENT;
	}
	return rc;
}

static int open_again(const struct dcp_site *at, struct dcp_site *out)
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
	*m = find_member(at, name);
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
	(void)b; /* the archive owns it */
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
	return id ? -ENOTSUP : 0; /* only the archive has an id */
}

const struct dcp_origin dcp_origin_nested = {
	.name = "archive",
	.list = list_members,
	.below = open_below,
	.open = open_member,
	.again = open_again,
	.close = close_place,
};
