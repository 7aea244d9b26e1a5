/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening trusts nothing: the header is read by hand, the schema must equal ours byte by byte (so
 * it cannot contain a view, trigger, virtual table or generated column), and the two tables kept in
 * memory are bounded.
 */
#include "core/store/index/index_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/hash.h"
#include "core/base/text.h"

/*
 * The disk of the cache may fail like any other, and a flipped bit in the offset of a piece would
 * silently serve other bytes. So a finished file ends in a table of the hashes of its pages, eight
 * bytes each, and the hash of that table lies in bytes 72 to 79 of the header, which SQLite
 * reserves (they count as zero in the hash of their page). Opening reads the table, and every page
 * is compared when it is read, so pages that are never read cost nothing. The file is never written
 * again; an index that was edited by hand is rebuilt.
 */

enum { SEAL = 72, PAGE_SIZE = 16, PAGES = 28, HEADER = 100, HASH = sizeof(uint64_t) };

static uint64_t hash_page(uint64_t i, const uint8_t *page)
{
	uint64_t h = dcp_hash64_more(i, page, i ? DCP_SQL_PAGE : SEAL);

	return i ? h : dcp_hash64_more(h, page + SEAL + HASH, DCP_SQL_PAGE - SEAL - HASH);
}

/* Hash of the table, never 0. */
static uint64_t hash_table(const uint8_t *table, uint64_t pages)
{
	uint64_t h = dcp_hash64(table, pages * HASH);

	return h ? h : 1;
}

/* Read the number of pages (all of which lie inside @src) and the seal from the header. */
static int read_header(const struct dcp_source *src, uint64_t *pages, uint64_t *seal)
{
	uint8_t h[HEADER];
	int rc = dcp_source_read(src, 0, h, sizeof(h));

	if (rc < 0)
		return rc;
	*pages = dcp_load_be32(h + PAGES);
	*seal = dcp_load_le64(h + SEAL);
	if (dcp_load_be16(h + PAGE_SIZE) != DCP_SQL_PAGE || !*pages ||
	    *pages > src->size / DCP_SQL_PAGE)
		return -EBADMSG;
	return 0;
}

static int write_all(int fd, const uint8_t *from, size_t n, uint64_t off)
{
	while (n) {
		ssize_t put = pwrite(fd, from, n, (off_t)off);

		if (put < 0)
			return -errno;
		from += put;
		off += (uint64_t)put;
		n -= (size_t)put;
	}
	return 0;
}

int dcp_index_seal(int fd)
{
	dcp_auto_free uint8_t *table = NULL;
	uint8_t page[DCP_SQL_PAGE];
	struct dcp_source src;
	uint64_t pages, old;
	int rc = dcp_source_fd(fd, &src);

	if (rc == 0)
		rc = read_header(&src, &pages, &old);
	if (rc < 0)
		return rc;
	table = malloc(pages * HASH);
	if (!table)
		return -ENOMEM;
	for (uint64_t i = 0; i < pages; i++) {
		rc = dcp_source_read(&src, i * DCP_SQL_PAGE, page, DCP_SQL_PAGE);
		if (rc < 0)
			return rc;
		dcp_store_le64(table + i * HASH, hash_page(i, page));
	}
	if (ftruncate(fd, (off_t)(pages * DCP_SQL_PAGE)) < 0)
		return -errno;
	rc = write_all(fd, table, pages * HASH, pages * DCP_SQL_PAGE);
	if (rc < 0)
		return rc;
	dcp_store_le64(page, hash_table(table, pages));
	return write_all(fd, page, HASH, SEAL);
}

/* Mark the file as damaged, so that the next process that opens it rebuilds it. If this process may
 * not write the file, the next process must find the damage itself. */
static void break_seal(const struct dcp_index_sealed *s)
{
	static const uint8_t none[HASH];
	dcp_auto_fd int fd = -1;
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", s->file.blob.fd);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd >= 0)
		write_all(fd, none, sizeof(none), SEAL);
}

static int read_page(struct dcp_index_sealed *s, uint64_t i, uint8_t *page)
{
	int rc = dcp_source_read(&s->file, i * DCP_SQL_PAGE, page, DCP_SQL_PAGE);

	if (rc < 0 || hash_page(i, page) == dcp_load_le64(s->table + i * HASH))
		return rc;
	if (!__atomic_exchange_n(&s->damaged, true, __ATOMIC_RELAXED))
		break_seal(s);
	return -EBADMSG;
}

static int read_sealed(const struct dcp_source *src, uint64_t off, void *buf, size_t n)
{
	struct dcp_index_sealed *s = (struct dcp_index_sealed *)(uintptr_t)src->mem;
	uint8_t *to = buf, page[DCP_SQL_PAGE];

	while (n) {
		size_t at = off % DCP_SQL_PAGE, part = DCP_MIN(n, DCP_SQL_PAGE - at);
		int rc = read_page(s, off / DCP_SQL_PAGE, part == DCP_SQL_PAGE ? to : page);

		if (rc < 0)
			return rc;
		if (part < DCP_SQL_PAGE)
			memcpy(to, page + at, part);
		to += part;
		off += part;
		n -= part;
	}
	return 0;
}

/*
 * Make @out a source of the pages of @file. Each page is compared when it is read: -EBADMSG if a
 * byte changed, and the file is marked to be rebuilt when it is opened next. @s must stay at its
 * address. -EBADMSG, -ENOMEM, or the error of reading.
 */
static int dcp_index_unseal(struct dcp_index_sealed *s, const struct dcp_source *file,
			    struct dcp_source *out, struct dcp_err *err)
{
	uint64_t pages = 0, seal = 0, found;
	int rc = read_header(file, &pages, &seal);

	if (rc == 0 && file->size != pages * (DCP_SQL_PAGE + HASH))
		rc = -EBADMSG;
	if (rc == 0 && !(s->table = malloc(pages * HASH)))
		rc = -ENOMEM;
	if (rc == 0)
		rc = dcp_source_read(file, pages * DCP_SQL_PAGE, s->table, pages * HASH);
	if (rc < 0)
		return dcp_fail_at(err, rc, 0, "%s",
				   rc == -EBADMSG
					   ? "damaged: its size is not what its header says"
					   : strerror(-rc));
	found = hash_table(s->table, pages);
	if (found != seal)
		return dcp_fail_at(
			err, -EBADMSG, SEAL,
			"damaged: its pages hash to %016llx, its header says %016llx",
			(unsigned long long)found, (unsigned long long)seal);
	s->file = *file;
	*out = (struct dcp_source){ .read = read_sealed,
				    .mem = s,
				    .size = pages * DCP_SQL_PAGE };
	return 0;
}

/*
 * SQLite opens files by path, once for every connection. An index is opened once, as a descriptor
 * or as bytes in memory, and every connection of the pool reads from that. So a file that replaces
 * it later is another index, and SQLite never looks for a lock or a journal.
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

/* Fill @vfs, named @name, so that databases opened through it are the bytes of @src, read-only and
 * immutable, whatever they are called. Both must outlive every connection. */
static int dcp_index_vfs_init(sqlite3_vfs *vfs, const char *name, const struct dcp_source *src)
{
	sqlite3_vfs *system = sqlite3_vfs_find(NULL);

	if (!system)
		return -ENOTSUP;
	*vfs = *system; /* for its clock and random numbers */
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

/* Memory for the names, within their limit, and their structs. */
static const size_t arena_limit = DCP_INDEX_MAX_NAMES + (512u << 20);

static const char *const schema[] = { DCP_SQL_TABLES, DCP_SQL_INDEXES };

/* Is this a complete index of dcpfs with this schema? */
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

/* Finish @s, whose last step returned @rc. Returns the error of the query, if any. */
static int finish_query(struct dcp_index_conn *c, sqlite3_stmt *s, int rc, int code,
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
	return finish_query(c, s, rc, code, err);
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
	return finish_query(c, s, rc, code, err);
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

static int load_index(struct dcp_index *ix, struct dcp_index_conn *c, struct dcp_err *err)
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

/* Open @ix, whose source is set. @ix is taken, also on failure. */
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
		code = load_index(ix, c, err);
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
