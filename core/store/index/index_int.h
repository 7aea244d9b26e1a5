/* SPDX-License-Identifier: Apache-2.0 */
/* index_int: declarations that the files of the index share. */
#pragma once
#include <pthread.h>
#include <sqlite3.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/origin/origin.h"
#include "core/store/index/index.h"

/* Limits: a writer never exceeds them, and a reader refuses a file that does. */
#define DCP_INDEX_MAX_FILES 1000000u     /* shards; a job has thousands */
#define DCP_INDEX_MAX_META 1024u         /* rows */
#define DCP_INDEX_MAX_META_BYTES 65536u  /* one value */
#define DCP_INDEX_MAX_SAID (32u << 20)   /* all metadata of files, as JSON */
#define DCP_INDEX_MAX_NAMES (256u << 20) /* all file names together, in memory */
#define DCP_INDEX_MAX_FIELD (128u << 20) /* one text or blob: 4 million pieces */
#define DCP_INDEX_MAX_KEY (1u << 20)     /* bytes; SQLite keeps keys twice, in row and index */
#define DCP_INDEX_MAX_PATH (8u << 20)    /* bytes of its components together */
#define DCP_INDEX_MAX_ROWS 0x7fffffffu   /* of both kinds */

/* Translate SQLite's code into an errno, with its message in @err: "<what>: ...". */
int dcp_index_sql_fail(sqlite3 *db, int rc, const char *what, struct dcp_err *err);

/* ---- sql.c: shapes and paths in their stored form ---- */

/* Append "[8,4]". */
void dcp_index_put_shape(struct dcp_buf *out, const uint64_t *shape, uint32_t ndim);
/* Parse such a text; false: it is malformed. */
bool dcp_index_get_shape(const char *text, size_t n, uint64_t shape[DCP_MAX_NDIM],
			 uint32_t *ndim);
/* Append "[4,5]", the lengths of the components. If @key is not the components joined by dots, also
 * append the joined text that the lengths refer to: "=blok.query". */
void dcp_index_put_path(struct dcp_buf *out, const char *key, const char *const *path,
			size_t npath);
/* Parse such a text into @arena. -EBADMSG or -ENOMEM. */
int dcp_index_get_path(const char *text, size_t n, const char *key, struct dcp_arena *arena,
		       const char *const **path, size_t *npath);

/* ---- open.c: is the file unchanged since it was finished? ---- */

/* Append the hashes of all pages to the finished file, replacing older ones, and write the hash of
 * that table to the header. -EIO, -ENOMEM, ... */
int dcp_index_seal(int fd);

struct dcp_index_sealed {
	struct dcp_source file;
	uint8_t *table; /* table of hashes, little-endian; malloc'ed */
	bool damaged;   /* atomic: the hash of a page was wrong */
};

/* ---- open.c: SQLite reading from a source ---- */

/* ---- open.c: the open index ---- */

enum dcp_index_stmt {
	DCP_STMT_TENSOR_FROM,
	DCP_STMT_TENSOR_ID_OF_KEY,
	DCP_STMT_TENSOR_ID_OF_NAME,
	DCP_STMT_TENSOR_BY_KEY,
	DCP_STMT_TENSOR_SCAN,
	DCP_STMT_TENSOR_NAMES,
	DCP_STMT_OBJECT_BY_ID,
	DCP_STMT_OBJECT_BY_NAME,
	DCP_STMT_OBJECT_BY_KEY,
	DCP_STMT_OBJECT_SCAN,
	DCP_STMT_OBJECT_NAMES,
	DCP_STMT_ITEM_SCAN,
	DCP_STMT_TENSOR,
	DCP_STMT_OBJECT,
	DCP_STMT_ITEM,
};
#define DCP_STMT_COUNT (DCP_STMT_ITEM + 1)

struct dcp_index_conn {
	struct dcp_index_conn *next;
	const struct dcp_index *ix;
	bool bare; /* idle, with its pages released */
	sqlite3 *db;
	sqlite3_stmt *stmt[DCP_STMT_COUNT]; /* prepared at first use */
	/* The tensor on whose row DCP_STMT_TENSOR_FROM stays, because programs mostly open the
	 * tensor that they looked up last; 0: none. */
	int64_t at;
	bool in_order; /* the last two look-ups were of consecutive rows */
};

struct dcp_index_pool {
	pthread_mutex_t lock;        /* protects the members below */
	struct dcp_index_conn *idle; /* most recently used first */
	unsigned n, max;
};
#define DCP_INDEX_IDLE 16 /* limit for an index with its own pool */
#define DCP_INDEX_WARM 16 /* of them, the last used keep their pages */

struct dcp_index_fact {
	const char *name, *value;
};

struct dcp_index {
	struct dcp_source src; /* the database */
	struct dcp_index_sealed sealed;
	int fd;      /* -1 in memory */
	void *image; /* sqlite3_malloc'ed, or NULL */
	sqlite3_vfs vfs;
	bool has_vfs;
	char vfs_name[40];
	struct dcp_index_pool own, *pool;
	struct dcp_arena arena; /* memory of the members below */
	struct dcp_index_fact *facts;
	size_t nfacts;
	struct dcp_file_id *files;
	size_t nfiles;
	struct dcp_index_counts counts;
};

/* Open the database in @fd, or in @n bytes at @image (from sqlite3_malloc). Both are taken, also on
 * failure. */
int dcp_index_open_fd(int fd, const char *path, struct dcp_index **out, struct dcp_err *err);
int dcp_index_open_image(void *image, size_t n, struct dcp_index **out, struct dcp_err *err);

/* ---- sql.c: connections to it ---- */

void dcp_index_pool_init(struct dcp_index_pool *pool, unsigned max);
void dcp_index_pool_finish(struct dcp_index_pool *pool);
/* Close the idle connections to @ix; NULL: to any. */
void dcp_index_pool_forget(struct dcp_index_pool *pool, const struct dcp_index *ix);

/* Open a new connection. -EIO, -EBADMSG, -ENOMEM. */
int dcp_index_conn_open(struct dcp_index *ix, struct dcp_index_conn **out, struct dcp_err *err);
/* Get a connection for the exclusive use of this thread, until it is put back. */
int dcp_index_conn_get(struct dcp_index *ix, struct dcp_index_conn **out);
void dcp_index_conn_put(struct dcp_index *ix, struct dcp_index_conn *c);
/* Get a statement of the connection, ready for binding. */
int dcp_index_conn_stmt(struct dcp_index_conn *c, enum dcp_index_stmt which,
			sqlite3_stmt **out);

/* ---- sql.c ---- */

/* Read the columns of a DCP_SQL_TENSOR_ROW or DCP_SQL_OBJECT_ROW statement that is positioned on a
 * row. The text belongs to the statement. -EBADMSG: a writer never produces such columns. */
int dcp_index_row(sqlite3_stmt *s, enum dcp_row_kind kind, struct dcp_row *row);

/* Column @i as text that holds no NUL: false otherwise. */
bool dcp_index_text(sqlite3_stmt *s, int i, const char **text, size_t *n);
/* The stem: column 2, or, if that is NULL, the key in column 1. */
bool dcp_index_name(sqlite3_stmt *s, const char **name, size_t *n);

/*
 * sql: the schema and every statement of an index, named.
 *
 * Opening compares the schema text with DCP_SQL_SCHEMA byte by byte: an index with views in place
 * of tables, or with generated columns, was not made by dcpfs. Any change here needs a new
 * DCP_INDEX_SCHEMA.
 *
 * Columns that scans read come first in a row, so that a listing never touches paths and pieces,
 * which may fill overflow pages. To keep an index of a million keys small, the text of a key is
 * stored only in its row and in one SQL index: a name equal to the key is NULL, and a path that is
 * the key split at dots is stored as lengths.
 */

/* In the order of creation; the indexes come after the rows. */
#define DCP_SQL_TABLES                                                                         \
	"CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID", \
		"CREATE TABLE file(id INTEGER PRIMARY KEY, name TEXT NOT NULL, "               \
		"size INTEGER NOT NULL, dev INTEGER NOT NULL, ino INTEGER NOT NULL, "          \
		"mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL, "                       \
		"unpacked INTEGER NOT NULL, shown INTEGER NOT NULL) STRICT",                   \
		"CREATE TABLE tensor(id INTEGER PRIMARY KEY, key TEXT NOT NULL, "              \
		"name TEXT, nbytes INTEGER NOT NULL, dtype TEXT NOT NULL, "                    \
		"itemsize INTEGER NOT NULL, shape TEXT NOT NULL, alias_of INTEGER, "           \
		"naliases INTEGER NOT NULL, partly INTEGER NOT NULL, entry INTEGER NOT NULL, " \
		"error TEXT, path TEXT "                                                       \
		"NOT NULL, "                                                                   \
		"pieces BLOB NOT NULL, stored TEXT, copies BLOB) STRICT",                      \
		"CREATE TABLE object(id INTEGER PRIMARY KEY, key TEXT NOT NULL, "              \
		"name TEXT, type TEXT NOT NULL, nbytes INTEGER NOT NULL, "                     \
		"error TEXT, path TEXT NOT NULL, json TEXT, classes TEXT, "                    \
		"file INTEGER, off INTEGER, stored INTEGER, filter INTEGER, raw INTEGER, "     \
		"entry INTEGER NOT NULL) STRICT",                                              \
		"CREATE TABLE item(id INTEGER PRIMARY KEY, key TEXT NOT NULL, "                \
		"type TEXT NOT NULL, nbytes INTEGER NOT NULL, error TEXT, "                    \
		"path TEXT NOT NULL, json TEXT, classes TEXT) STRICT"

#define DCP_SQL_INDEXES                                                                        \
	"CREATE INDEX tensor_key ON tensor(key)",                                              \
		"CREATE UNIQUE INDEX tensor_name ON tensor(name) WHERE name IS NOT NULL",      \
		"CREATE INDEX object_key ON object(key)",                                      \
		"CREATE UNIQUE INDEX object_name ON object(name) WHERE name IS NOT NULL"

#define DCP_SQL_SCHEMA "SELECT sql FROM sqlite_schema ORDER BY rowid"

/* ---- writing ---- */

#define DCP_SQL_PAGE 8192 /* bytes, also in DCP_SQL_BEGIN */

/* No journal and no syncs: no other process uses the file before it is renamed, and it is worthless
 * if the build dies. */
#define DCP_SQL_BEGIN                                                                          \
	"PRAGMA page_size=8192; PRAGMA auto_vacuum=NONE; PRAGMA journal_mode=OFF; "            \
	"PRAGMA synchronous=OFF; PRAGMA locking_mode=EXCLUSIVE; PRAGMA temp_store=MEMORY; "    \
	"PRAGMA cache_size=-4096; PRAGMA trusted_schema=OFF; BEGIN"

#define DCP_SQL_ADD_META "INSERT OR REPLACE INTO meta VALUES(?1, ?2)"
/* The first value of a fact wins, except that left_out collects all its values, each once. */
#define DCP_SQL_TELL_META                                                                      \
	"INSERT INTO meta VALUES(?1, ?2) ON CONFLICT DO UPDATE SET value = value || ', ' || "  \
	"excluded.value WHERE name = 'left_out' AND length(value) < 60000 AND "                \
	"instr(', ' || value || ', ', ', ' || excluded.value || ', ') = 0"
#define DCP_SQL_ADD_FILE "INSERT INTO file VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0)"
#define DCP_SQL_SHOW_FILE "UPDATE file SET shown = 1 WHERE id = ?1"
#define DCP_SQL_ADD_TENSOR                                                                     \
	"INSERT INTO tensor VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, ?12, ?15, ?9, ?10, "     \
	"?11, ?13, ?14)"
#define DCP_SQL_ADD_OBJECT                                                                     \
	"INSERT INTO object VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, "   \
	"?14, ?15)"
#define DCP_SQL_ADD_ITEM "INSERT INTO item VALUES(?1, ?2, ?4, ?5, ?6, ?7, ?8, ?9)"
#define DCP_SQL_COUNT_ALIAS "UPDATE tensor SET naliases = naliases + 1 WHERE id = ?1"
#define DCP_SQL_TOLD_TENSOR                                                                    \
	"SELECT key, ifnull(name, key), dtype, shape, alias_of, error, pieces, partly, "       \
	"copies FROM "                                                                         \
	"tensor WHERE "                                                                        \
	"id = ?1"
#define DCP_SQL_TOLD_OBJECT "SELECT key, ifnull(name, key) FROM object WHERE id = ?1"

/* ---- reading ---- */

#define DCP_SQL_CONNECT                                                                        \
	"PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON; PRAGMA mmap_size=0; "           \
	"PRAGMA query_only=ON; PRAGMA temp_store=MEMORY; PRAGMA cache_size=-512;"
/* A transaction that stays open, so that no statement has to begin one: the file never changes. */
#define DCP_SQL_OPEN "BEGIN"
#define DCP_SQL_CLOSE "COMMIT"

#define DCP_SQL_META "SELECT name, value FROM meta"
#define DCP_SQL_FILES                                                                          \
	"SELECT id, name, size, dev, ino, mtime_ns, ctime_ns, unpacked, "                      \
	"shown FROM file ORDER BY id"

/* The columns of a tensor for a look-up and a listing; and the same followed by those that an open
 * needs in addition. */
#define DCP_SQL_TENSOR_COLUMNS                                                                 \
	"SELECT id, key, name, nbytes, error, dtype, itemsize, shape, alias_of, naliases, "    \
	"partly, entry"
#define DCP_SQL_TENSOR_ROW DCP_SQL_TENSOR_COLUMNS " FROM tensor WHERE "
#define DCP_SQL_TENSOR                                                                         \
	DCP_SQL_TENSOR_COLUMNS ", path, pieces, stored, copies FROM tensor WHERE "
/* The same, but pieces is NULL if it is so large that reading it at the look-up would not pay,
 * because the open may never come. */
#define DCP_SQL_TENSOR_FROM                                                                    \
	DCP_SQL_TENSOR_COLUMNS                                                                 \
	", path, iif(length(pieces) <= 4096 AND (copies IS NULL OR length(copies) <= 4096), "  \
	"pieces, NULL), stored, iif(copies IS NULL OR length(copies) > 4096, NULL, copies) "   \
	"FROM tensor WHERE id >= ?1 ORDER BY id"
#define DCP_SQL_TENSOR_ID "SELECT id FROM tensor WHERE "
#define DCP_SQL_OBJECT_ROW "SELECT id, key, name, nbytes, error, entry FROM object WHERE "
#define DCP_SQL_ITEM_ROW "SELECT id, key, 'item', nbytes, error, 1 FROM item WHERE "

#define DCP_SQL_TENSOR_NAME "SELECT id, key, name, dtype, alias_of FROM tensor WHERE "
#define DCP_SQL_OBJECT_NAME "SELECT id, key, name FROM object WHERE "

/* If rows have the same key, the first emitted row is meant. */
#define DCP_SQL_BY_ID "id = ?1"
#define DCP_SQL_BY_NAME "name = ?1 OR (key = ?1 AND name IS NULL)"
#define DCP_SQL_OF_KEY "key = ?1 AND name IS NULL"
#define DCP_SQL_OF_NAME "name = ?1"
#define DCP_SQL_BY_KEY "key = ?1 ORDER BY id LIMIT 1"
#define DCP_SQL_BEHIND "id > ?1 ORDER BY id"

#define DCP_SQL_OBJECT                                                                         \
	"SELECT key, path, type, json, error, nbytes, classes, file, off, stored, filter, "    \
	"raw "                                                                                 \
	"FROM object WHERE id = ?1"
#define DCP_SQL_ITEM                                                                           \
	"SELECT key, path, type, json, error, nbytes, classes, NULL FROM item WHERE id = ?1"
