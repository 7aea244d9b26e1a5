/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file table of an index being written: what pieces refer to, and what the adapter read.
 */
#include <errno.h>
#include <string.h>

#include "core/base/cleanup.h"
#include "core/base/hash.h"
#include "core/origin/dir/dir.h"
#include "core/store/cache/unpack.h"
#include "core/store/index/write/write_int.h"

/* Open it, to see that it is there and how long it is, or what it decodes to. */
static int look_inside(struct dcp_index_writer *w, struct dcp_file_id *id, bool packed,
		       struct dcp_err *err)
{
	dcp_auto_blob struct dcp_blob blob = { 0 };
	uint64_t size = 0;
	int code;

	if (packed && !w->unpack)
		return dcp_fail(err, -ENOTSUP, "%.300s: compressed, and dcpfs cannot decode it",
				id->name);
	if (packed) {
		code = dcp_unpack_open(w->unpack, w->at, id->name, &blob, &size, id, err);
		if (code == 0 && size == 0)
			code = dcp_fail(err, -EBADMSG, "%.300s decodes to nothing", id->name);
		return code;
	}
	return dcp_site_open(w->at, id->name, &blob, id, err);
}

static int look_at(struct dcp_index_writer *w, const char *name, bool packed,
		   struct dcp_index_seen *f)
{
	struct dcp_err err = { 0 };

	*f = (struct dcp_index_seen){ .packed = packed };
	f->id.name = dcp_arena_strdup(&w->text, name);
	if (!f->id.name)
		return dcp_index_give_up(w, -E2BIG, "the names of the files are too long");
	if (look_inside(w, &f->id, packed, &err) == 0)
		return 0;
	f->error = dcp_arena_strdup(&w->text, err.msg);
	return f->error ? 0 : dcp_index_no_memory(w);
}

static int add_file(struct dcp_index_writer *w, const struct dcp_file_id *id, size_t number)
{
	sqlite3_stmt *s = w->stmt[DCP_ADD_FILE];

	sqlite3_bind_int64(s, 1, (sqlite3_int64)number + 1);
	dcp_index_put_text(s, 2, id->name);
	sqlite3_bind_int64(s, 3, (sqlite3_int64)id->size);
	sqlite3_bind_int64(s, 4, (sqlite3_int64)id->dev);
	sqlite3_bind_int64(s, 5, (sqlite3_int64)id->ino);
	sqlite3_bind_int64(s, 6, id->mtime_ns);
	sqlite3_bind_int64(s, 7, id->ctime_ns);
	sqlite3_bind_int64(s, 8, (sqlite3_int64)id->unpacked);
	return dcp_index_run(w, DCP_ADD_FILE);
}

/* Remember the next one, whose row was added. */
static int add_seen(struct dcp_index_writer *w, const struct dcp_index_seen *f)
{
	uint64_t hash = dcp_hash64(f->id.name, strlen(f->id.name));

	dcp_buf_add(&w->seen, f, sizeof(*f));
	if (dcp_buf_error(&w->seen) ||
	    dcp_index_map_add(&w->files, hash, (uint32_t)dcp_index_nseen(w)) < 0)
		return dcp_index_no_memory(w);
	return 0;
}

bool dcp_index_find_file(const struct dcp_index_writer *w, const char *name, bool packed,
			 uint32_t *number)
{
	uint64_t hash = dcp_hash64(name, strlen(name));
	uint32_t at = 0, known;

	while ((known = dcp_index_map_next(&w->files, hash, &at)) != 0) {
		const struct dcp_index_seen *seen = &dcp_index_seen(w)[known - 1];

		*number = known - 1;
		if (seen->packed == packed && strcmp(seen->id.name, name) == 0)
			return true;
	}
	return false;
}

static int emit_file(struct dcp_index_writer *w, const char *name, bool packed,
		     uint32_t *number)
{
	struct dcp_index_seen f;
	int code = w->err.code;

	if (code == 0 && dcp_index_find_file(w, name, packed, number))
		return 0;
	if (code == 0 && dcp_index_nseen(w) == DCP_INDEX_MAX_FILES)
		code = dcp_index_give_up(w, -E2BIG, "more than a million files");
	if (code == 0)
		code = look_at(w, name, packed, &f);
	if (code == 0)
		code = add_file(w, &f.id, dcp_index_nseen(w));
	if (code == 0)
		code = add_seen(w, &f);
	if (code == 0)
		*number = (uint32_t)dcp_index_nseen(w) - 1;
	return code;
}

static int show(struct dcp_index_writer *w, uint32_t number)
{
	sqlite3_bind_int64(w->stmt[DCP_SHOW_FILE], 1, (sqlite3_int64)number + 1);
	return dcp_index_run(w, DCP_SHOW_FILE);
}

int dcp_index_emit_files(struct dcp_index_writer *w, const struct dcp_file_id *ids, size_t n)
{
	int code = w->err.code;

	for (size_t i = 0; code == 0 && i < n; i++) {
		struct dcp_index_seen f = { .id = ids[i], .packed = ids[i].unpacked };

		f.id.name = dcp_arena_strdup(&w->text, ids[i].name);
		if (!f.id.name)
			return dcp_index_no_memory(w);
		if (!ids[i].ino) /* it could not be opened then */
			f.error = "it could not be opened when it was indexed";
		code = add_file(w, &f.id, i);
		if (code == 0)
			code = add_seen(w, &f);
		if (code == 0 && f.id.shown)
			code = show(w, (uint32_t)i);
	}
	return code;
}

bool dcp_index_was_emitted(const struct dcp_index_writer *w, const char *name)
{
	const struct dcp_index_seen *seen = DCP_ITEMS(w->seen, struct dcp_index_seen);
	uint64_t hash = dcp_hash64(name, strlen(name));
	uint32_t at = 0, known;

	while ((known = dcp_index_map_next(&w->files, hash, &at)) != 0)
		if (strcmp(seen[known - 1].id.name, name) == 0)
			return true;
	return false;
}

int dcp_index_emit_file(void *ctx, const char *name, uint32_t *number)
{
	return emit_file(ctx, name, false, number);
}

int dcp_index_emit_unpacked(void *ctx, const char *name, uint32_t *number)
{
	return emit_file(ctx, name, true, number);
}

int dcp_index_emit_sidecar(void *ctx, const char *name)
{
	struct dcp_index_writer *w = ctx;
	uint32_t number;
	int code = emit_file(w, name, false, &number);

	if (code < 0 || dcp_index_seen(w)[number].error)
		return code;
	return show(w, number);
}
