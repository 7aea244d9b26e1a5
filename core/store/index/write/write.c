/* SPDX-License-Identifier: Apache-2.0 */
/* Rows go straight to the file; what stays in memory is the file table and one slot per key. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/base.h"
#include "core/origin/dir/dir.h"
#include "core/store/index/index_int.h"
#include "core/store/index/write/write_int.h"

/* Memory for checking one tensor: a tiling of four million pieces. */
static const size_t scratch_limit = 1u << 30;

static const char *const sql[DCP_ADD_COUNT] = {
	[DCP_ADD_META] = DCP_SQL_ADD_META,       [DCP_ADD_TOLD_META] = DCP_SQL_TELL_META,
	[DCP_SHOW_FILE] = DCP_SQL_SHOW_FILE,     [DCP_ADD_FILE] = DCP_SQL_ADD_FILE,
	[DCP_ADD_TENSOR] = DCP_SQL_ADD_TENSOR,   [DCP_ADD_OBJECT] = DCP_SQL_ADD_OBJECT,
	[DCP_ADD_ALIAS] = DCP_SQL_COUNT_ALIAS,   [DCP_TOLD_TENSOR] = DCP_SQL_TOLD_TENSOR,
	[DCP_TOLD_OBJECT] = DCP_SQL_TOLD_OBJECT, [DCP_ADD_ITEM] = DCP_SQL_ADD_ITEM,
};

static int add_meta(struct dcp_index_writer *w, const char *name, const char *value)
{
	dcp_index_put_text(w->stmt[DCP_ADD_META], 1, name);
	dcp_index_put_text(w->stmt[DCP_ADD_META], 2, value);
	return dcp_index_run(w, DCP_ADD_META);
}

static int add_meta_u64(struct dcp_index_writer *w, const char *name, uint64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	return add_meta(w, name, text);
}

/* ---- begin ---- */

/* Make the private file "<path>.tmp-AbCdEf" in the same directory. Its mtime gives the time of the
 * beginning by the clock of its own file system. */
static int make_temp(struct dcp_index_writer *w, const char *path, int64_t *began,
		     struct dcp_err *err)
{
	dcp_auto_fd int fd = -1;
	struct dcp_file_id id;
	struct stat st;

	/* SQLite takes a name that begins with "file:" for a URI. */
	if (asprintf(&w->path, "%s%s", *path == '/' ? "" : "./", path) < 0) {
		w->path = NULL;
		return dcp_fail(err, -ENOMEM, "out of memory");
	}
	if (asprintf(&w->temp, "%s.tmp-XXXXXX", w->path) < 0) {
		w->temp = NULL;
		return dcp_fail(err, -ENOMEM, "out of memory");
	}
	fd = mkostemp(w->temp, O_CLOEXEC);
	if (fd < 0) {
		int code = -errno;

		dcp_free_ptr(&w->temp); /* nothing to remove */
		return dcp_fail(err, code, "%.200s: %s", path, strerror(-code));
	}
	if (fstat(fd, &st) < 0)
		return dcp_fail(err, -errno, "%.200s: %s", path, strerror(errno));
	dcp_file_id_from_stat(&st, &id);
	*began = id.mtime_ns;
	return 0;
}

static int begin_index(struct dcp_index_writer *w, int64_t began)
{
	static const char *const tables[] = { DCP_SQL_TABLES };
	char marks[96];
	int rc;

	/* No other process knows the file, so SQLite is told not to lock it: locks may not work on
	 * this file system. */
	rc = sqlite3_open_v2(w->temp ? w->temp : ":memory:", &w->db,
			     SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
			     w->temp ? "unix-none" : NULL);
	if (rc == SQLITE_OK)
		rc = sqlite3_exec(w->db, DCP_SQL_BEGIN, NULL, NULL, NULL);
	snprintf(marks, sizeof(marks), "PRAGMA application_id=%d; PRAGMA user_version=%d",
		 DCP_SQL_APPLICATION, DCP_INDEX_SCHEMA);
	if (rc == SQLITE_OK)
		rc = sqlite3_exec(w->db, marks, NULL, NULL, NULL);
	for (size_t i = 0; rc == SQLITE_OK && i < DCP_LEN(tables); i++)
		rc = sqlite3_exec(w->db, tables[i], NULL, NULL, NULL);
	for (size_t i = 0; rc == SQLITE_OK && i < DCP_ADD_COUNT; i++)
		rc = sqlite3_prepare_v3(w->db, sql[i], -1, SQLITE_PREPARE_PERSISTENT,
					&w->stmt[i], NULL);
	if (rc != SQLITE_OK)
		return dcp_index_sql_failed(w, rc);
	if (add_meta_u64(w, "dcpfs_index", DCP_INDEX_SCHEMA) < 0)
		return w->err.code;
	return w->temp ? add_meta_u64(w, "created_ns", (uint64_t)began) : 0;
}

int dcp_index_create(const char *path, struct dcp_index_writer **out, struct dcp_err *err)
{
	struct dcp_index_writer *w = calloc(1, sizeof(*w));
	int64_t began = 0;
	int code;

	if (!w)
		return dcp_fail(err, -ENOMEM, "out of memory");
	dcp_arena_init(&w->text, DCP_INDEX_MAX_NAMES);
	dcp_arena_init(&w->scratch, scratch_limit);
	code = path ? make_temp(w, path, &began, err) : 0;
	if (code == 0) {
		code = begin_index(w, began);
		if (code < 0 && err)
			*err = w->err;
	}
	if (code < 0) {
		dcp_index_abandon(w);
		return code;
	}
	*out = w;
	return 0;
}

/* ---- the sink ---- */

static int tell_meta(struct dcp_index_writer *w, const char *name, const char *value)
{
	dcp_index_put_text(w->stmt[DCP_ADD_TOLD_META], 1, name);
	dcp_index_put_text(w->stmt[DCP_ADD_TOLD_META], 2, value);
	return dcp_index_run(w, DCP_ADD_TOLD_META);
}

/* Facts are few and short, except for metadata of files that is copied from another index. The
 * limits keep an adapter that passes on foreign facts from filling the table. */
static int sink_meta(void *ctx, const char *name, const char *value)
{
	struct dcp_index_writer *w = ctx;
	size_t most = strncmp(name, "metadata", 8) == 0 ? DCP_INDEX_MAX_SAID
							: DCP_INDEX_MAX_META_BYTES;

	if (w->err.code)
		return w->err.code;
	if (w->nmeta >= DCP_INDEX_MAX_META / 2 || strlen(value) > most ||
	    strlen(name) > DCP_INDEX_MAX_META_BYTES)
		return 0;
	w->nmeta++;
	return tell_meta(w, name, value);
}

struct dcp_sink dcp_index_sink(struct dcp_index_writer *w, const struct dcp_site *at)
{
	w->at = at;
	return (struct dcp_sink){
		.file = dcp_index_emit_file,
		.tensor = dcp_index_emit_tensor,
		.object = dcp_index_emit_object,
		.item = dcp_index_emit_item,
		.meta = sink_meta,
		.unpacked = dcp_index_emit_unpacked,
		.sidecar = dcp_index_emit_sidecar,
		.said = dcp_index_emit_said,
		.ctx = w,
	};
}

void dcp_index_unpack_with(struct dcp_index_writer *w, struct dcp_unpack *u)
{
	w->unpack = u;
}

int dcp_index_writer_error(const struct dcp_index_writer *w, struct dcp_err *err)
{
	if (w->err.code && err)
		*err = w->err;
	return w->err.code;
}

/* ---- end ---- */

static int finish_rows(struct dcp_index_writer *w)
{
	static const char *const indexes[] = { DCP_SQL_INDEXES };
	int rc = SQLITE_OK;

	if (w->err.code || add_meta_u64(w, "dcpfs_index", DCP_INDEX_SCHEMA) < 0 ||
	    add_meta_u64(w, "tensors", w->counts.tensors) < 0 ||
	    add_meta_u64(w, "objects", w->counts.objects) < 0 ||
	    add_meta_u64(w, "broken", w->counts.broken) < 0 ||
	    add_meta_u64(w, "bytes", w->counts.bytes) < 0 ||
	    add_meta_u64(w, "elements", w->counts.elements) < 0 ||
	    dcp_index_tell_said(w, tell_meta) < 0)
		return w->err.code;
	for (size_t i = 0; i < DCP_ADD_COUNT; i++)
		sqlite3_reset(w->stmt[i]);
	for (size_t i = 0; rc == SQLITE_OK && i < DCP_LEN(indexes); i++)
		rc = sqlite3_exec(w->db, indexes[i], NULL, NULL, NULL);
	if (rc == SQLITE_OK)
		rc = sqlite3_exec(w->db, "COMMIT", NULL, NULL, NULL);
	return rc == SQLITE_OK ? 0 : dcp_index_sql_failed(w, rc);
}

static int fail_file(struct dcp_index_writer *w, int code)
{
	code = code == -EDQUOT ? -ENOSPC : code;
	return dcp_index_give_up(w, code, strerror(-code));
}

static int sync_dir(struct dcp_index_writer *w)
{
	dcp_auto_free char *copy = strdup(w->path);
	dcp_auto_fd int fd = -1;

	if (!copy)
		return dcp_index_no_memory(w);
	fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* Some file systems cannot sync a directory: then the rename is as durable as the file
	 * system makes it. */
	if (fd < 0 || (fsync(fd) < 0 && errno != EINVAL))
		return fail_file(w, -errno);
	return 0;
}

static void close_db(struct dcp_index_writer *w)
{
	for (size_t i = 0; i < DCP_ADD_COUNT; i++) {
		sqlite3_finalize(w->stmt[i]);
		w->stmt[i] = NULL;
	}
	sqlite3_close(w->db);
	w->db = NULL;
}

/* The file is opened and checked as by any reader before it gets its name; this open index is then
 * handed out. */
static int publish_file(struct dcp_index_writer *w, struct dcp_index **open_index)
{
	struct dcp_index *ix;
	dcp_auto_fd int fd = -1;
	int code;

	close_db(w);
	fd = open(w->temp, O_RDWR | O_CLOEXEC);
	code = fd < 0 ? -errno : dcp_index_seal(fd);
	if (code == 0 && fsync(fd) < 0)
		code = -errno;
	if (code < 0)
		return fail_file(w, code);
	code = dcp_index_open_fd(dcp_take_fd(&fd), w->temp, &ix, &w->err);
	if (code < 0)
		return code;
	if (rename(w->temp, w->path) < 0) {
		code = fail_file(w, -errno);
	} else {
		dcp_free_ptr(&w->temp);
		code = sync_dir(w);
	}
	if (code < 0 || !open_index)
		dcp_index_close(ix);
	else
		*open_index = ix;
	return code;
}

static int publish_memory(struct dcp_index_writer *w, struct dcp_index **open_index)
{
	sqlite3_int64 n = 0;
	void *image = sqlite3_serialize(w->db, "main", &n, 0);

	close_db(w);
	if (!image)
		return dcp_index_no_memory(w);
	if (!open_index) {
		sqlite3_free(image);
		return 0;
	}
	return dcp_index_open_image(image, (size_t)n, open_index, &w->err);
}

int dcp_index_commit(struct dcp_index_writer *w, struct dcp_index **open_index,
		     struct dcp_err *err)
{
	int code = finish_rows(w);

	if (code == 0)
		code = w->temp ? publish_file(w, open_index) : publish_memory(w, open_index);
	if (code < 0 && err)
		*err = w->err;
	dcp_index_abandon(w);
	return code;
}

void dcp_index_abandon(struct dcp_index_writer *w)
{
	if (!w)
		return;
	close_db(w);
	if (w->temp)
		unlink(w->temp);
	free(w->temp);
	free(w->path);
	dcp_index_map_finish(&w->keys);
	dcp_index_map_finish(&w->stems);
	dcp_index_map_finish(&w->files);
	dcp_buf_finish(&w->seen);
	dcp_buf_finish(&w->pieces);
	dcp_buf_finish(&w->copies);
	dcp_buf_finish(&w->shape);
	dcp_buf_finish(&w->path_json);
	dcp_buf_finish(&w->pairs);
	dcp_buf_finish(&w->lost);
	dcp_buf_finish(&w->sayers);
	dcp_buf_finish(&w->saying);
	dcp_intern_finish(&w->said);
	dcp_intern_finish(&w->sayings);
	dcp_arena_finish(&w->text);
	dcp_arena_finish(&w->scratch);
	free(w);
}
