/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sql: the schema and every statement of an index, named.
 *
 * Opening compares the schema text with DCP_SQL_SCHEMA byte by byte: an index whose tables are
 * views, or hold generated columns, is not ours. Any change here is a new DCP_INDEX_SCHEMA.
 *
 * What scans read comes first in a row, so that a listing never touches paths and pieces, which
 * may fill overflow pages. To keep an index of a million keys small, the text of a key is stored
 * only in its row and in one SQL index: a name equal to the key is NULL, and a path that is the
 * key split at dots is stored as lengths.
 */
#pragma once

#define DCP_SQL_APPLICATION 0x64637078 /* "dcpx" */

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

/* No other process uses the file before it is renamed, and it is worthless if the build dies. */
#define DCP_SQL_BEGIN                                                                          \
	"PRAGMA page_size=8192; PRAGMA auto_vacuum=NONE; PRAGMA journal_mode=OFF; "            \
	"PRAGMA synchronous=OFF; PRAGMA locking_mode=EXCLUSIVE; PRAGMA temp_store=MEMORY; "    \
	"PRAGMA cache_size=-4096; PRAGMA trusted_schema=OFF; BEGIN"

#define DCP_SQL_ADD_META "INSERT OR REPLACE INTO meta VALUES(?1, ?2)"
/* The first counts; of what was left out, all, each once. */
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

/* What a look-up and a listing say of a tensor; and with what an open reads besides, in the
 * same columns. */
#define DCP_SQL_TENSOR_COLUMNS                                                                 \
	"SELECT id, key, ifnull(name, key), nbytes, error IS NOT NULL, dtype, itemsize, "      \
	"shape, alias_of, naliases, partly, entry"
#define DCP_SQL_TENSOR_ROW DCP_SQL_TENSOR_COLUMNS " FROM tensor WHERE "
#define DCP_SQL_TENSOR                                                                         \
	DCP_SQL_TENSOR_COLUMNS ", path, error, pieces, stored, copies FROM tensor WHERE "
/* The same, with pieces NULL where they are more than a look-up may read for an open that may
 * never come. */
#define DCP_SQL_TENSOR_FOUND                                                                   \
	DCP_SQL_TENSOR_COLUMNS                                                                 \
	", path, error, iif(length(pieces) + ifnull(length(copies), 0) <= 4096, pieces, "      \
	"NULL), stored, iif(length(copies) <= 4096, copies, NULL) FROM tensor WHERE "
#define DCP_SQL_OBJECT_ROW                                                                     \
	"SELECT id, key, ifnull(name, key), nbytes, error IS NOT NULL, entry FROM object "     \
	"WHERE "
#define DCP_SQL_ITEM_ROW "SELECT id, key, 'item', nbytes, error IS NOT NULL, 1 FROM item WHERE "

#define DCP_SQL_TENSOR_NAME                                                                    \
	"SELECT id, ifnull(name, key), dtype, alias_of, key FROM tensor WHERE "
#define DCP_SQL_OBJECT_NAME "SELECT id, ifnull(name, key) FROM object WHERE "

/* Of rows with the same key the first emitted is the one meant. */
#define DCP_SQL_BY_ID "id = ?1"
#define DCP_SQL_BY_NAME "name = ?1 OR (key = ?1 AND name IS NULL)"
#define DCP_SQL_BY_KEY "key = ?1 ORDER BY id LIMIT 1"
#define DCP_SQL_BEHIND "id > ?1 ORDER BY id"

#define DCP_SQL_OBJECT                                                                         \
	"SELECT key, path, type, json, error, nbytes, classes, file, off, stored, filter, "    \
	"raw "                                                                                 \
	"FROM object WHERE id = ?1"
#define DCP_SQL_ITEM                                                                           \
	"SELECT key, path, type, json, error, nbytes, classes, NULL FROM item WHERE id = ?1"
