/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening trusts nothing: the header is read by hand, the schema must be ours to the letter
 * (so no view, trigger, virtual table or generated column can be waiting in it), and the two
 * tables kept in memory are bounded.
 */
#include "core/store/index/index_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/base.h"
#include "core/base/cleanup.h"
#include "core/base/endian.h"
#include "core/base/number.h"

/*
 * SQLite opens files by path, once for every connection. An index is opened once, as a
 * descriptor or as bytes in memory, and every connection of the pool reads that: a file put in
 * its place later is another index, and no lock or journal is ever looked for.
 */

struct source_file {
	sqlite3_file base;
	const struct dcp_source *src;
};

static int op_close(sqlite3_file *f)
{
	return SQLITE_OK;
}

static int op_read(sqlite3_file *f, void *buf, int n, sqlite3_int64 off)
{
	const struct dcp_source *src = ((struct source_file *)f)->src;
	uint64_t at = (uint64_t)off, left = off >= 0 && at < src->size ? src->size - at : 0;
	size_t got = (size_t)DCP_MIN(left, (uint64_t)n);

	int rc = got ? src->read(src, at, buf, got) : 0;

	if (rc < 0)
		return rc == -EBADMSG ? SQLITE_CORRUPT : SQLITE_IOERR_READ;
	if (got == (size_t)n)
		return SQLITE_OK;
	memset((char *)buf + got, 0, (size_t)n - got);
	return SQLITE_IOERR_SHORT_READ;
}

static int op_write(sqlite3_file *f, const void *buf, int n, sqlite3_int64 off)
{
	return SQLITE_READONLY;
}

static int op_truncate(sqlite3_file *f, sqlite3_int64 size)
{
	return SQLITE_READONLY;
}

static int op_file_size(sqlite3_file *f, sqlite3_int64 *size)
{
	*size = (sqlite3_int64)((struct source_file *)f)->src->size;
	return SQLITE_OK;
}

static int op_lock(sqlite3_file *f, int level)
{
	return SQLITE_OK;
}

static int op_check_reserved(sqlite3_file *f, int *out)
{
	*out = 0;
	return SQLITE_OK;
}

static int op_control(sqlite3_file *f, int op, void *arg)
{
	return SQLITE_NOTFOUND;
}

static int op_sector(sqlite3_file *f)
{
	return 4096;
}

static int op_characteristics(sqlite3_file *f)
{
	return SQLITE_IOCAP_IMMUTABLE;
}

static const sqlite3_io_methods methods = {
	.iVersion = 1,
	.xClose = op_close,
	.xRead = op_read,
	.xWrite = op_write,
	.xTruncate = op_truncate,
	.xSync = op_lock,
	.xFileSize = op_file_size,
	.xLock = op_lock,
	.xUnlock = op_lock,
	.xCheckReservedLock = op_check_reserved,
	.xFileControl = op_control,
	.xSectorSize = op_sector,
	.xDeviceCharacteristics = op_characteristics,
};

static int op_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *f, int flags, int *out)
{
	struct source_file *file = (struct source_file *)f;

	*file = (struct source_file){ 0 };
	if (!(flags & SQLITE_OPEN_MAIN_DB))
		return SQLITE_CANTOPEN;
	file->base.pMethods = &methods;
	file->src = vfs->pAppData;
	if (out)
		*out = SQLITE_OPEN_READONLY;
	return SQLITE_OK;
}

static int op_delete(sqlite3_vfs *vfs, const char *name, int sync)
{
	return SQLITE_READONLY;
}

static int op_access(sqlite3_vfs *vfs, const char *name, int flags, int *out)
{
	*out = 0;
	return SQLITE_OK;
}

static int op_full_path(sqlite3_vfs *vfs, const char *name, int n, char *out)
{
	snprintf(out, (size_t)n, "%s", name);
	return SQLITE_OK;
}

/*
 * Fill @vfs, named @name, so that databases opened through it are the bytes of @src, read-only
 * and immutable, whatever they are called. Both must outlive every connection.
 */
static int dcp_index_vfs_init(sqlite3_vfs *vfs, const char *name, const struct dcp_source *src)
{
	sqlite3_vfs *system = sqlite3_vfs_find(NULL);

	if (!system)
		return -ENOTSUP;
	*vfs = *system; /* its clock, its random numbers */
	vfs->szOsFile = sizeof(struct source_file);
	vfs->pNext = NULL;
	vfs->zName = name;
	vfs->pAppData = (void *)(uintptr_t)src;
	vfs->xOpen = op_open;
	vfs->xDelete = op_delete;
	vfs->xAccess = op_access;
	vfs->xFullPathname = op_full_path;
	return sqlite3_vfs_register(vfs, 0) == SQLITE_OK ? 0 : -ENOMEM;
}

enum { HEADER = 100 };

/* Names within their limit, and the structs around them. */
static const size_t arena_limit = DCP_INDEX_MAX_NAMES + (512u << 20);

static const char *const schema[] = { DCP_SQL_TABLES, DCP_SQL_INDEXES };

/* Is this an index of ours, of this schema, and all there? */
static int check_header(const struct dcp_source *src, struct dcp_err *err)
{
	uint8_t h[HEADER];
	uint64_t page, want;
	int code = src->size < HEADER ? -EBADMSG : dcp_source_read(src, 0, h, sizeof(h));

	if (code == -EBADMSG || (code == 0 && memcmp(h, "SQLite format 3", 16)))
		return dcp_fail_at(err, -EBADMSG, 0, "not an SQLite file");
	if (code < 0)
		return dcp_fail_at(err, code, 0, "%s", strerror(-code));
	if (dcp_load_be32(h + 68) != DCP_SQL_APPLICATION)
		return dcp_fail_at(err, -EBADMSG, 68,
				   "an SQLite file, but not an index of dcpfs");
	if (dcp_load_be32(h + 60) != DCP_INDEX_SCHEMA)
		return dcp_fail_at(err, -ESTALE, 60,
				   "written with schema %u; this is schema %d",
				   dcp_load_be32(h + 60), DCP_INDEX_SCHEMA);
	page = dcp_load_be16(h + 16);
	want = (page == 1 ? 65536 : page) * dcp_load_be32(h + 28);
	if (src->size < want)
		return dcp_fail_at(err, -EBADMSG, src->size,
				   "cut: %llu bytes, its header says %llu",
				   (unsigned long long)src->size, (unsigned long long)want);
	return 0;
}

/* How @s left its rows: @rc is its last step. */
static int finish(struct dcp_index_conn *c, sqlite3_stmt *s, int rc, int code,
		  struct dcp_err *err)
{
	if (code == 0 && rc != SQLITE_DONE)
		code = dcp_index_sql_fail(c->db, rc, "index", err);
	else if (code == -ENOMEM)
		dcp_fail(err, code, "out of memory");
	else if (code < 0)
		dcp_fail(err, code, "found a damaged row");
	sqlite3_finalize(s);
	return code;
}

static int check_schema(struct dcp_index_conn *c, struct dcp_err *err)
{
	sqlite3_stmt *s = NULL;
	int rc = sqlite3_prepare_v2(c->db, DCP_SQL_SCHEMA, -1, &s, NULL);
	size_t n = 0;

	while (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
		const char *text;
		size_t len;

		if (n == DCP_LEN(schema) || !dcp_index_text(s, 0, &text, &len) ||
		    strcmp(text, schema[n]) != 0)
			break;
		n++;
		rc = SQLITE_OK;
	}
	if (rc != SQLITE_DONE && rc != SQLITE_ROW) {
		rc = dcp_index_sql_fail(c->db, rc, "index", err);
		sqlite3_finalize(s);
		return rc;
	}
	sqlite3_finalize(s);
	if (rc == SQLITE_ROW || n < DCP_LEN(schema))
		return dcp_fail(err, -EBADMSG, "its tables are not those of an index");
	return 0;
}

static char *copy_text(struct dcp_index *ix, sqlite3_stmt *s, int i, int *code)
{
	const char *text;
	size_t n;
	char *copy;

	if (!dcp_index_text(s, i, &text, &n)) {
		*code = -EBADMSG;
		return NULL;
	}
	copy = dcp_arena_strndup(&ix->arena, text, n);
	if (!copy)
		*code = -ENOMEM;
	return copy;
}

static int load_meta(struct dcp_index *ix, struct dcp_index_conn *c, struct dcp_err *err)
{
	sqlite3_stmt *s = NULL;
	int code = 0, rc = sqlite3_prepare_v2(c->db, DCP_SQL_META, -1, &s, NULL);

	ix->facts = dcp_arena_calloc(&ix->arena, DCP_INDEX_MAX_META, sizeof(*ix->facts));
	if (!ix->facts)
		code = -ENOMEM;
	while (code == 0 && rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
		struct dcp_index_fact *f = &ix->facts[ix->nfacts];

		if (ix->nfacts == DCP_INDEX_MAX_META ||
		    sqlite3_column_bytes(s, 1) > (int)DCP_INDEX_MAX_SAID)
			code = -EBADMSG;
		else
			f->name = copy_text(ix, s, 0, &code);
		if (code == 0)
			f->value = copy_text(ix, s, 1, &code);
		ix->nfacts += code == 0;
		rc = SQLITE_OK;
	}
	return finish(c, s, rc, code, err);
}

static int load_file(struct dcp_index *ix, sqlite3_stmt *s, struct dcp_buf *list)
{
	struct dcp_file_id id = { 0 };
	int code = 0;

	if (ix->nfiles == DCP_INDEX_MAX_FILES ||
	    sqlite3_column_int64(s, 0) != (sqlite3_int64)ix->nfiles + 1 ||
	    sqlite3_column_int64(s, 2) < 0)
		return -EBADMSG;
	id.name = copy_text(ix, s, 1, &code);
	if (code < 0)
		return code;
	id.size = (uint64_t)sqlite3_column_int64(s, 2);
	id.dev = (uint64_t)sqlite3_column_int64(s, 3);
	id.ino = (uint64_t)sqlite3_column_int64(s, 4);
	id.mtime_ns = sqlite3_column_int64(s, 5);
	id.ctime_ns = sqlite3_column_int64(s, 6);
	id.unpacked = (uint64_t)sqlite3_column_int64(s, 7);
	id.shown = sqlite3_column_int64(s, 8) != 0;
	if (id.unpacked > INT64_MAX)
		return -EBADMSG;
	dcp_buf_add(list, &id, sizeof(id));
	ix->nfiles++;
	return dcp_buf_error(list);
}

static int load_files(struct dcp_index *ix, struct dcp_index_conn *c, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf list = DCP_BUF_INIT;
	sqlite3_stmt *s = NULL;
	int code = 0, rc = sqlite3_prepare_v2(c->db, DCP_SQL_FILES, -1, &s, NULL);

	while (code == 0 && rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
		code = load_file(ix, s, &list);
		rc = SQLITE_OK;
	}
	if (code == 0) {
		ix->files = dcp_arena_calloc(&ix->arena, ix->nfiles, sizeof(*ix->files));
		if (!ix->files)
			code = -ENOMEM;
		else if (ix->nfiles)
			memcpy(ix->files, list.p, ix->nfiles * sizeof(*ix->files));
	}
	return finish(c, s, rc, code, err);
}

static int load_count(const struct dcp_index *ix, const char *name, uint64_t *out,
		      struct dcp_err *err)
{
	const char *text = dcp_index_meta(ix, name);

	*out = 0;
	if (!text || !dcp_is_number(text, out))
		return dcp_fail(err, -EBADMSG, "its meta table lacks \"%s\"", name);
	return 0;
}

static int load(struct dcp_index *ix, struct dcp_index_conn *c, struct dcp_err *err)
{
	struct {
		const char *name;
		uint64_t *to;
	} counts[] = {
		{ "tensors", &ix->counts.tensors },   { "objects", &ix->counts.objects },
		{ "broken", &ix->counts.broken },     { "bytes", &ix->counts.bytes },
		{ "elements", &ix->counts.elements },
	};
	int code = check_schema(c, err);

	if (code == 0)
		code = load_meta(ix, c, err);
	if (code == 0)
		code = load_files(ix, c, err);
	for (size_t i = 0; code == 0 && i < DCP_LEN(counts); i++)
		code = load_count(ix, counts[i].name, counts[i].to, err);
	return code;
}

/* Takes @ix, whose source is set. */
static int open_source(struct dcp_index *ix, struct dcp_index **out, struct dcp_err *err)
{
	struct dcp_index_conn *c = NULL;
	int code;

	snprintf(ix->vfs_name, sizeof(ix->vfs_name), "dcpfs-%p", (void *)ix);
	code = dcp_index_vfs_init(&ix->vfs, ix->vfs_name, &ix->src);
	ix->has_vfs = code == 0;
	if (code < 0)
		dcp_fail(err, code, "SQLite: %s", strerror(-code));
	if (code == 0)
		code = dcp_index_conn_open(ix, &c, err);
	if (code == 0)
		code = load(ix, c, err);
	dcp_index_conn_put(ix, c);
	if (code < 0) {
		dcp_index_close(ix);
		return code;
	}
	*out = ix;
	return 0;
}

static struct dcp_index *new_index(void)
{
	struct dcp_index *ix = calloc(1, sizeof(*ix));

	if (!ix)
		return NULL;
	ix->fd = -1;
	dcp_index_pool_init(&ix->own, DCP_INDEX_IDLE);
	ix->pool = &ix->own;
	dcp_arena_init(&ix->arena, arena_limit);
	return ix;
}

int dcp_index_open_fd(int fd, const char *path, struct dcp_index **out, struct dcp_err *err)
{
	struct dcp_index *ix = new_index();
	struct dcp_source file;
	int code;

	if (!ix) {
		close(fd);
		return dcp_fail(err, -ENOMEM, "out of memory");
	}
	ix->fd = fd;
	code = dcp_source_fd(fd, &file);
	if (code < 0)
		dcp_fail(err, code, "%s", strerror(-code));
	if (code == 0)
		code = check_header(&file,
				    err); /* another schema is not damage: reported first */
	if (code == 0)
		code = dcp_index_unseal(&ix->sealed, &file, &ix->src, err);
	if (code < 0)
		dcp_index_close(ix);
	else
		code = open_source(ix, out, err);
	return code < 0 ? dcp_err_where(err, code, "%.200s", path) : 0;
}

int dcp_index_open_image(void *image, size_t n, struct dcp_index **out, struct dcp_err *err)
{
	struct dcp_index *ix = new_index();

	if (!ix) {
		sqlite3_free(image);
		return dcp_fail(err, -ENOMEM, "out of memory");
	}
	ix->image = image;
	ix->src = dcp_source_mem(image, n);
	return open_source(ix, out, err);
}

int dcp_index_open(const char *path, struct dcp_index **out, struct dcp_err *err)
{
	dcp_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return dcp_fail(err, -errno, "%.200s: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return dcp_fail(err, -EBADMSG, "%.200s: not a file", path);
	return dcp_index_open_fd(dcp_take_fd(&fd), path, out, err);
}

void dcp_index_close(struct dcp_index *ix)
{
	if (!ix)
		return;
	dcp_index_pool_forget(ix->pool, ix);
	if (ix->has_vfs)
		sqlite3_vfs_unregister(&ix->vfs);
	dcp_close_fd(&ix->fd);
	free(ix->sealed.table);
	sqlite3_free(ix->image);
	dcp_index_pool_finish(&ix->own);
	dcp_arena_finish(&ix->arena);
	free(ix);
}

const char *dcp_index_meta(const struct dcp_index *ix, const char *name)
{
	for (size_t i = 0; i < ix->nfacts; i++)
		if (strcmp(ix->facts[i].name, name) == 0)
			return ix->facts[i].value;
	return NULL;
}

uint64_t dcp_index_meta_number(const struct dcp_index *ix, const char *name)
{
	const char *text = dcp_index_meta(ix, name);
	uint64_t v;

	return text && dcp_is_number(text, &v) ? v : 0;
}

const struct dcp_file_id *dcp_index_files(const struct dcp_index *ix, size_t *n)
{
	*n = ix->nfiles;
	return ix->files;
}

const struct dcp_index_counts *dcp_index_counts(const struct dcp_index *ix)
{
	return &ix->counts;
}

bool dcp_index_is_damaged(const struct dcp_index *ix)
{
	return __atomic_load_n(&ix->sealed.damaged, __ATOMIC_RELAXED);
}

int dcp_index_fd(const struct dcp_index *ix)
{
	return ix->fd;
}

const char *dcp_index_sqlite_version(void)
{
	return sqlite3_libversion();
}
