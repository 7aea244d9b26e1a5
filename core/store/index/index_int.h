/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_int: what the files of the index share; the only place that sees sqlite3.h.
 */
#pragma once
#include <pthread.h>
#include <sqlite3.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/origin/source.h"
#include "core/store/index/index.h"

/* What a writer keeps to and a reader refuses beyond. */
#define DCP_INDEX_MAX_FILES 1000000u    /* shards; a job has thousands */
#define DCP_INDEX_MAX_META 1024u        /* rows */
#define DCP_INDEX_MAX_META_BYTES 65536u /* one value */
#define DCP_INDEX_MAX_SAID (32u << 20) /* of all that files say beside their tensors, as JSON */
#define DCP_INDEX_MAX_NAMES (256u << 20) /* all file names together, in memory */
#define DCP_INDEX_MAX_FIELD (128u << 20) /* one text or blob: 4 million pieces */
#define DCP_INDEX_MAX_KEY (1u << 20)     /* bytes; SQLite keeps keys twice, in row and index */
#define DCP_INDEX_MAX_PATH (8u << 20)    /* bytes of its components together */
#define DCP_INDEX_MAX_ROWS 0x7fffffffu   /* of both kinds */

/* SQLite's code as ours, with its message in @err: "<what>: ...". */
int dcp_index_sql_fail(sqlite3 *db, int rc, const char *what, struct dcp_err *err);

/* ---- text.c: shapes and paths as they are kept ---- */

/* Append "[8,4]". */
void dcp_index_put_shape(struct dcp_buf *out, const uint64_t *shape, uint32_t ndim);
/* Read it back; false when it is anything else. */
bool dcp_index_get_shape(const char *text, size_t n, uint64_t shape[DCP_MAX_NDIM],
			 uint32_t *ndim);
/* Append "[4,5]", the lengths of the components; and where @key is not those with dots between
 * them, "=blok.query": what they are of. */
void dcp_index_put_path(struct dcp_buf *out, const char *key, const char *const *path,
			size_t npath);
/* Read it back into @arena. -EBADMSG or -ENOMEM. */
int dcp_index_get_path(const char *text, size_t n, const char *key, struct dcp_arena *arena,
		       const char *const **path, size_t *npath);

/* ---- seal.c: is the file as it was finished? ---- */

/* Append the hashes of its pages to the finished file (in place of those it has), and their
 * hash to its header. -EIO, -ENOMEM, ... */
int dcp_index_seal(int fd);

struct dcp_index_sealed {
	struct dcp_source file;
	uint8_t *table; /* of hashes, little-endian; malloc'ed */
	bool damaged;   /* atomic: a page is not what was written */
};
/* The pages of @file as @out, each compared when it is read: -EBADMSG when a byte changed since.
 * The file is then marked, so that it is rebuilt when it is opened next. @s must stay where it
 * is. -EBADMSG, -ENOMEM, or what reading gave. */
int dcp_index_unseal(struct dcp_index_sealed *s, const struct dcp_source *file,
		     struct dcp_source *out, struct dcp_err *err);

/* ---- vfs.c: SQLite reading from a source ---- */

/*
 * Fill @vfs, named @name, so that databases opened through it are the bytes of @src, read-only
 * and immutable, whatever they are called. Both must outlive every connection.
 */
int dcp_index_vfs_init(sqlite3_vfs *vfs, const char *name, const struct dcp_source *src);

/* ---- open.c: the open index ---- */

enum dcp_index_stmt {
	DCP_STMT_TENSOR_BY_ID,
	DCP_STMT_TENSOR_BY_NAME,
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
	bool bare; /* idle, its pages given back */
	sqlite3 *db;
	sqlite3_stmt *stmt[DCP_STMT_COUNT]; /* prepared at first use */
	/* The tensor on whose row DCP_STMT_TENSOR_BY_NAME still stands, as programs mostly open
	 * what they looked up last; 0: on none. */
	int64_t found;
};

struct dcp_index_pool {
	pthread_mutex_t lock;        /* what follows */
	struct dcp_index_conn *idle; /* the last used first */
	unsigned n, max;
};
#define DCP_INDEX_IDLE 16 /* of an index that has a pool of its own */
#define DCP_INDEX_WARM 16 /* of those idle, the last used keep their pages */

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
	struct dcp_arena arena; /* of what follows */
	struct dcp_index_fact *facts;
	size_t nfacts;
	struct dcp_file_id *files;
	size_t nfiles;
	struct dcp_index_counts counts;
};

/* Open the database in @fd, or in @n bytes at @image (from sqlite3_malloc). Both are taken,
 * whatever it returns. */
int dcp_index_open_fd(int fd, const char *path, struct dcp_index **out, struct dcp_err *err);
int dcp_index_open_image(void *image, size_t n, struct dcp_index **out, struct dcp_err *err);

/* ---- pool.c: connections to it ---- */

void dcp_index_pool_init(struct dcp_index_pool *pool, unsigned max);
void dcp_index_pool_finish(struct dcp_index_pool *pool);
/* Close the idle connections to @ix; NULL: to any. */
void dcp_index_pool_forget(struct dcp_index_pool *pool, const struct dcp_index *ix);

/* A new one. -EIO, -EBADMSG, -ENOMEM. */
int dcp_index_conn_open(struct dcp_index *ix, struct dcp_index_conn **out, struct dcp_err *err);
/* A connection for this thread alone, until it is put back. */
int dcp_index_conn_get(struct dcp_index *ix, struct dcp_index_conn **out);
void dcp_index_conn_put(struct dcp_index *ix, struct dcp_index_conn *c);
/* One of its statements, ready to be bound. */
int dcp_index_conn_stmt(struct dcp_index_conn *c, enum dcp_index_stmt which,
			sqlite3_stmt **out);

/* ---- scan.c ---- */

/* The columns of a DCP_SQL_TENSOR_ROW or DCP_SQL_OBJECT_ROW statement that stands on a row.
 * Text is the statement's. -EBADMSG when they are not what a writer puts there. */
int dcp_index_row(sqlite3_stmt *s, enum dcp_row_kind kind, struct dcp_row *row);

/* Column @i as text that holds no NUL: false otherwise. */
bool dcp_index_text(sqlite3_stmt *s, int i, const char **text, size_t *n);
