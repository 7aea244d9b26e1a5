/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/sort.h"
#include "core/origin/dir/dir.h"
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

static int list(struct dcp_dir *d, struct dcp_err *err)
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

int dcp_dir_of_site(struct dcp_site *at, const char *path, struct dcp_dir *out,
		    struct dcp_err *err)
{
	struct dcp_dir d = { .at = *at };
	struct dcp_err why = { 0 };
	int code = -ENOMEM;

	*at = (struct dcp_site){ .fd = -1 };
	dcp_arena_init(&d.arena, dcp_dir_memory(path));
	d.path = dcp_arena_strdup(&d.arena, path);
	if (d.path)
		code = dcp_seen_opening(d.at.seen, list(&d, &why));
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

/* A directory of one entry, the file @path in @at. */
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

/* Everything of @d but its entries. */
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
