/* SPDX-License-Identifier: Apache-2.0 */
/* sql: SQLite's errors as errnos; pool of connections; columns of rows. */
#include "core/store/index/index_int.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/jsonw.h"
#include "core/base/text.h"
#include "core/model/name.h"
#include "core/store/index/index.h"

static int code_of_errno(int e)
{
	switch (e) {
	case 0:
		return -EIO;
	case EDQUOT: /* for the user these are the same: no space */
	case EFBIG:
		return -ENOSPC;
	default:
		return -e;
	}
}

/* The errno of the last system call on the file; the note of the connection itself may be
 * overwritten. */
static int find_last_errno(sqlite3 *db)
{
	int e = 0;

	if (db && sqlite3_file_control(db, "main", SQLITE_FCNTL_LAST_ERRNO, &e) == SQLITE_OK &&
	    e)
		return e;
	return db ? sqlite3_system_errno(db) : 0;
}

int dcp_index_sql_fail(sqlite3 *db, int rc, const char *what, struct dcp_err *err)
{
	int code;

	switch (rc & 0xff) {
	case SQLITE_FULL:
		code = -ENOSPC;
		break;
	case SQLITE_NOMEM:
		code = -ENOMEM;
		break;
	case SQLITE_READONLY:
		code = -EROFS;
		break;
	case SQLITE_IOERR:
	case SQLITE_CANTOPEN:
		code = code_of_errno(find_last_errno(db));
		break;
	case SQLITE_BUSY:
	case SQLITE_LOCKED:
		code = -EBUSY;
		break;
	case SQLITE_CORRUPT:
		return dcp_fail(err, -EBADMSG,
				"%s: damaged since it was written; it is rebuilt when it is "
				"opened next",
				what);
	default:
		code = -EBADMSG;
		break;
	}
	return dcp_fail(err, code, "%s: %s", what,
			db ? sqlite3_errmsg(db) : sqlite3_errstr(rc));
}

static const char *const sql[DCP_STMT_COUNT] = {
	[DCP_STMT_TENSOR_FROM] = DCP_SQL_TENSOR_FROM,
	[DCP_STMT_TENSOR_ID_OF_KEY] = DCP_SQL_TENSOR_ID DCP_SQL_OF_KEY,
	[DCP_STMT_TENSOR_ID_OF_NAME] = DCP_SQL_TENSOR_ID DCP_SQL_OF_NAME,
	[DCP_STMT_TENSOR_BY_KEY] = DCP_SQL_TENSOR_ROW DCP_SQL_BY_KEY,
	[DCP_STMT_TENSOR_SCAN] = DCP_SQL_TENSOR_ROW DCP_SQL_BEHIND,
	[DCP_STMT_TENSOR_NAMES] = DCP_SQL_TENSOR_NAME DCP_SQL_BEHIND,
	[DCP_STMT_OBJECT_BY_ID] = DCP_SQL_OBJECT_ROW DCP_SQL_BY_ID,
	[DCP_STMT_OBJECT_BY_NAME] = DCP_SQL_OBJECT_ROW DCP_SQL_BY_NAME,
	[DCP_STMT_OBJECT_BY_KEY] = DCP_SQL_OBJECT_ROW DCP_SQL_BY_KEY,
	[DCP_STMT_OBJECT_SCAN] = DCP_SQL_OBJECT_ROW DCP_SQL_BEHIND,
	[DCP_STMT_OBJECT_NAMES] = DCP_SQL_OBJECT_NAME DCP_SQL_BEHIND,
	[DCP_STMT_ITEM_SCAN] = DCP_SQL_ITEM_ROW DCP_SQL_BEHIND,
	[DCP_STMT_TENSOR] = DCP_SQL_TENSOR DCP_SQL_BY_ID,
	[DCP_STMT_OBJECT] = DCP_SQL_OBJECT,
	[DCP_STMT_ITEM] = DCP_SQL_ITEM,
};

static void close_conn(struct dcp_index_conn *c)
{
	if (!c)
		return;
	for (size_t i = 0; i < DCP_STMT_COUNT; i++)
		sqlite3_finalize(c->stmt[i]);
	sqlite3_close(c->db);
	free(c);
}

static void set_limits(sqlite3 *db)
{
	static const struct {
		int what, value;
	} limits[] = {
		/* a row holds a key, a path, an error and either a blob or a text */
		{ SQLITE_LIMIT_LENGTH, (int)(3 * DCP_INDEX_MAX_FIELD) },
		{ SQLITE_LIMIT_SQL_LENGTH, 4096 },
		{ SQLITE_LIMIT_COLUMN, 32 },
		{ SQLITE_LIMIT_EXPR_DEPTH, 20 },
		{ SQLITE_LIMIT_COMPOUND_SELECT, 1 },
		{ SQLITE_LIMIT_FUNCTION_ARG, 8 },
		{ SQLITE_LIMIT_ATTACHED, 0 },
		{ SQLITE_LIMIT_TRIGGER_DEPTH, 1 },
	};

	for (size_t i = 0; i < DCP_LEN(limits); i++)
		sqlite3_limit(db, limits[i].what, limits[i].value);
	sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
	sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
	sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
}

int dcp_index_conn_open(struct dcp_index *ix, struct dcp_index_conn **out, struct dcp_err *err)
{
	struct dcp_index_conn *c = calloc(1, sizeof(*c));
	int rc;

	if (!c)
		return dcp_fail(err, -ENOMEM, "out of memory");
	rc = sqlite3_open_v2("index", &c->db, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX,
			     ix->vfs_name);
	if (rc == SQLITE_OK) {
		set_limits(c->db);
		sqlite3_db_config(c->db, SQLITE_DBCONFIG_LOOKASIDE, NULL, 0, 0);
		rc = sqlite3_exec(c->db, DCP_SQL_CONNECT DCP_SQL_OPEN, NULL, NULL, NULL);
	}
	if (rc != SQLITE_OK) {
		rc = dcp_index_sql_fail(c->db, rc, "index", err);
		close_conn(c);
		return rc;
	}
	c->ix = ix;
	*out = c;
	return 0;
}

/* ---- idle ones ---- */

void dcp_index_pool_init(struct dcp_index_pool *pool, unsigned max)
{
	*pool = (struct dcp_index_pool){ .max = max };
	pthread_mutex_init(&pool->lock, NULL);
}

void dcp_index_pool_finish(struct dcp_index_pool *pool)
{
	dcp_index_pool_forget(pool, NULL);
	pthread_mutex_destroy(&pool->lock);
}

int dcp_index_pool_create(unsigned max, struct dcp_index_pool **out)
{
	*out = calloc(1, sizeof(**out));
	if (!*out)
		return -ENOMEM;
	dcp_index_pool_init(*out, max);
	return 0;
}

void dcp_index_pool_destroy(struct dcp_index_pool *pool)
{
	if (!pool)
		return;
	dcp_index_pool_finish(pool);
	free(pool);
}

/* Take out up to @most idle connections to @ix (NULL: to any index), most recently used first; the
 * lock is held. */
static struct dcp_index_conn *take_idle(struct dcp_index_pool *pool, const struct dcp_index *ix,
					unsigned most)
{
	struct dcp_index_conn *out = NULL, **at = &pool->idle;

	while (*at && most) {
		struct dcp_index_conn *c = *at;

		if (ix && c->ix != ix) {
			at = &c->next;
			continue;
		}
		*at = c->next;
		c->next = out;
		out = c;
		pool->n--;
		most--;
	}
	return out;
}

void dcp_index_pool_forget(struct dcp_index_pool *pool, const struct dcp_index *ix)
{
	struct dcp_index_conn *c, *next;

	pthread_mutex_lock(&pool->lock);
	c = take_idle(pool, ix, UINT_MAX);
	pthread_mutex_unlock(&pool->lock);
	for (; c; c = next) {
		next = c->next;
		close_conn(c);
	}
}

void dcp_index_share(struct dcp_index *ix, struct dcp_index_pool *pool)
{
	dcp_index_pool_forget(&ix->own, ix);
	ix->pool = pool;
}

int dcp_index_conn_get(struct dcp_index *ix, struct dcp_index_conn **out)
{
	struct dcp_index_conn *c;

	pthread_mutex_lock(&ix->pool->lock);
	c = take_idle(ix->pool, ix, 1);
	pthread_mutex_unlock(&ix->pool->lock);
	if (!c)
		return dcp_index_conn_open(ix, out, NULL);
	if (c->bare)
		sqlite3_exec(c->db, DCP_SQL_OPEN, NULL, NULL, NULL);
	c->bare = false;
	*out = c;
	return 0;
}

/* Release the pages of all but the most recently used connections, and keep only what is expensive
 * to make again; the lock is held. */
static void strip_oldest(struct dcp_index_pool *pool)
{
	struct dcp_index_conn *c = pool->idle;

	for (unsigned i = 0; c && i < DCP_INDEX_WARM; i++)
		c = c->next;
	if (!c || c->bare)
		return;
	sqlite3_reset(c->stmt[DCP_STMT_TENSOR_FROM]);
	c->at = 0;
	sqlite3_exec(c->db, DCP_SQL_CLOSE, NULL, NULL, NULL); /* otherwise it keeps a page */
	sqlite3_db_release_memory(c->db);
	c->bare = true;
}

/* Close the least recently used connection; the lock is held, so that its index is still open. */
static void close_oldest(struct dcp_index_pool *pool)
{
	struct dcp_index_conn **at = &pool->idle;

	while ((*at)->next)
		at = &(*at)->next;
	close_conn(*at);
	*at = NULL;
	pool->n--;
}

void dcp_index_conn_put(struct dcp_index *ix, struct dcp_index_conn *c)
{
	struct dcp_index_pool *pool = ix->pool;

	if (!c)
		return;
	pthread_mutex_lock(&pool->lock);
	c->next = pool->idle;
	pool->idle = c;
	if (++pool->n > pool->max)
		close_oldest(pool);
	strip_oldest(pool);
	pthread_mutex_unlock(&pool->lock);
}

int dcp_index_conn_stmt(struct dcp_index_conn *c, enum dcp_index_stmt which, sqlite3_stmt **out)
{
	if (!c->stmt[which]) {
		int rc = sqlite3_prepare_v3(c->db, sql[which], -1, SQLITE_PREPARE_PERSISTENT,
					    &c->stmt[which], NULL);

		if (rc != SQLITE_OK)
			return dcp_index_sql_fail(c->db, rc, "index", NULL);
	}
	*out = c->stmt[which];
	return 0;
}

/* A listing of 100,000 tensors reads as many shapes, so they are parsed here, which is faster than
 * a JSON library. */

void dcp_index_put_shape(struct dcp_buf *out, const uint64_t *shape, uint32_t ndim)
{
	struct dcp_jsonw w;

	dcp_jsonw_init(&w, out, false);
	dcp_jsonw_array(&w);
	for (uint32_t d = 0; d < ndim; d++)
		dcp_jsonw_u64(&w, shape[d]);
	dcp_jsonw_end(&w);
}

bool dcp_index_get_shape(const char *text, size_t n, uint64_t shape[DCP_MAX_NDIM],
			 uint32_t *ndim)
{
	const char *p = text + 1, *end = text + n - 1;
	uint32_t d = 0;

	if (n < 2 || *text != '[' || *end != ']')
		return false;
	while (p < end) {
		if (d == DCP_MAX_NDIM || (d && *p++ != ',') ||
		    !dcp_take_number(&p, end, DCP_ANY_DIGITS, &shape[d]))
			return false;
		d++;
	}
	*ndim = d;
	return true;
}

/* Is @key the components of @path with dots between them? */
static bool is_joined(const char *key, const char *const *path, size_t npath)
{
	for (size_t i = 0; i < npath; i++) {
		size_t n = strlen(path[i]);

		if (strncmp(key, path[i], n) != 0 || key[n] != (i + 1 < npath ? '.' : '\0'))
			return false;
		key += n + 1;
	}
	return npath > 0;
}

void dcp_index_put_path(struct dcp_buf *out, const char *key, const char *const *path,
			size_t npath)
{
	bool joined = is_joined(key, path, npath);
	struct dcp_jsonw w;

	dcp_jsonw_init(&w, out, false);
	dcp_jsonw_array(&w);
	for (size_t i = 0; i < npath; i++)
		dcp_jsonw_u64(&w, strlen(path[i]));
	dcp_jsonw_end(&w);
	for (size_t i = 0; !joined && i < npath; i++) {
		dcp_buf_str(out, i ? "." : "=");
		dcp_buf_str(out, path[i]);
	}
}

int dcp_index_get_path(const char *text, size_t n, const char *key, struct dcp_arena *arena,
		       const char *const **path, size_t *npath)
{
	const char *p = text + 1, *end = n > 1 && *text == '[' ? memchr(p, ']', n - 1) : NULL;
	size_t left = strlen(key), max, used = 0;
	const char **list;
	uint64_t len = 0;
	char *copy;

	if (end && end + 1 < text + n) {
		key = end + 2;
		left = (size_t)(text + n - key);
		end = end[1] == '=' ? end : NULL;
	}
	if (!end)
		return -EBADMSG;
	max = p < end;
	for (const char *q = p; q < end; q++)
		max += *q == ',';
	list = dcp_arena_calloc(arena, max + 1, sizeof(*list));
	copy = dcp_arena_strndup(arena, key, left);
	if (!list || !copy)
		return -ENOMEM;
	while (used < max) {
		if (!dcp_take_number(&p, end, DCP_ANY_DIGITS, &len) || len > left ||
		    copy[len] != (used + 1 < max ? '.' : '\0'))
			return -EBADMSG;
		copy[len] = '\0';
		list[used++] = copy;
		if (used < max && *p++ != ',')
			return -EBADMSG;
		copy += len + 1;
		left -= DCP_MIN(left, len + 1);
	}
	if (p != end)
		return -EBADMSG;
	*path = list;
	*npath = used;
	return 0;
}

struct dcp_index_scan {
	struct dcp_index *ix;
	struct dcp_index_conn *conn;
	sqlite3_stmt *stmt;
	enum dcp_row_kind kind;
	bool names;
	int64_t last;
	int code; /* the code that ended the scan: a further step would restart it */
	bool done;
};

bool dcp_index_text(sqlite3_stmt *s, int i, const char **text, size_t *n)
{
	sqlite3_value *v = sqlite3_column_value(s, i);

	if (sqlite3_value_type(v) != SQLITE_TEXT)
		return false;
	*text = (const char *)sqlite3_value_text(v);
	*n = (size_t)sqlite3_value_bytes(v);
	return *text && memchr(*text, '\0', *n) == NULL;
}

bool dcp_index_name(sqlite3_stmt *s, const char **name, size_t *n)
{
	return dcp_index_text(s, sqlite3_column_type(s, 2) == SQLITE_NULL ? 1 : 2, name, n);
}

/* May this be shown as the stem of a file name? */
static bool name_is_safe(const char *name, size_t n)
{
	return n && n <= DCP_NAME_MAX && !memchr(name, '/', n) && strcmp(name, ".") != 0 &&
	       strcmp(name, "..") != 0;
}

/* Read the columns that only tensors have; the number of bytes is computed again. */
static int read_tensor_columns(sqlite3_stmt *s, struct dcp_row *row)
{
	struct dcp_tensor t = { .shape = row->shape };
	sqlite3_int64 itemsize = sqlite3_column_int64(s, 6);
	const char *dtype, *shape;
	size_t ndtype, nshape;
	uint64_t nbytes;

	if (!dcp_index_text(s, 5, &dtype, &ndtype) || !dcp_index_text(s, 7, &shape, &nshape) ||
	    !dcp_index_get_shape(shape, nshape, row->shape, &row->ndim) || itemsize < 0 ||
	    itemsize > UINT32_MAX)
		return -EBADMSG;
	row->dtype = dcp_dtype_from_name(dtype);
	row->alias_of = sqlite3_column_int64(s, 8);
	row->naliases = (uint32_t)sqlite3_column_int64(s, 9);
	row->partly = row->broken && sqlite3_column_int(s, 10) == 1;
	row->entry = sqlite3_column_int(s, 11) == 1;
	if (row->alias_of < 0 || row->alias_of == row->id)
		return -EBADMSG;
	t.itemsize = (uint32_t)itemsize;
	t.ndim = row->ndim;
	if (!row->broken && (!dcp_tensor_nbytes(&t, &nbytes) || nbytes != row->nbytes))
		return -EBADMSG;
	return 0;
}

int dcp_index_row(sqlite3_stmt *s, enum dcp_row_kind kind, struct dcp_row *row)
{
	sqlite3_int64 nbytes = sqlite3_column_int64(s, 3);
	size_t nkey, nname;

	*row = (struct dcp_row){ .id = sqlite3_column_int64(s, 0) };
	if (!dcp_index_text(s, 1, &row->key, &nkey) || !dcp_index_name(s, &row->name, &nname) ||
	    !name_is_safe(row->name, nname) || nbytes < 0 || row->id <= 0)
		return -EBADMSG;
	row->nbytes = (uint64_t)nbytes;
	row->broken = sqlite3_column_type(s, 4) != SQLITE_NULL;
	if (kind == DCP_ROW_TENSOR)
		return read_tensor_columns(s, row);
	row->entry = sqlite3_column_int(s, 5) == 1;
	return 0;
}

/* The short row of a scan for names. */
static int name_row(sqlite3_stmt *s, enum dcp_row_kind kind, struct dcp_row *row)
{
	const char *dtype;
	size_t n;

	row->id = sqlite3_column_int64(s, 0);
	if (!dcp_index_name(s, &row->name, &n) || !name_is_safe(row->name, n) || row->id <= 0)
		return -EBADMSG;
	row->alias_of = 0;
	row->key = NULL;
	if (kind == DCP_ROW_OBJECT)
		return 0;
	if (!dcp_index_text(s, 3, &dtype, &n) || !dcp_index_text(s, 1, &row->key, &n))
		return -EBADMSG;
	row->dtype = dcp_dtype_from_name(dtype);
	row->alias_of = sqlite3_column_int64(s, 4);
	return row->alias_of < 0 || row->alias_of == row->id ? -EBADMSG : 0;
}

static enum dcp_index_stmt choose_statement(enum dcp_row_kind kind, bool names)
{
	if (kind == DCP_ROW_TENSOR)
		return names ? DCP_STMT_TENSOR_NAMES : DCP_STMT_TENSOR_SCAN;
	if (kind == DCP_ROW_ITEM)
		return DCP_STMT_ITEM_SCAN;
	return names ? DCP_STMT_OBJECT_NAMES : DCP_STMT_OBJECT_SCAN;
}

int dcp_index_scan(struct dcp_index *ix, enum dcp_row_kind kind, int64_t after, bool names,
		   struct dcp_index_scan **out)
{
	struct dcp_index_scan *s = calloc(1, sizeof(*s));
	int code = s ? dcp_index_conn_get(ix, &s->conn) : -ENOMEM;

	if (code < 0) {
		free(s);
		return code;
	}
	s->ix = ix;
	s->kind = kind;
	s->names = names;
	s->last = after;
	code = dcp_index_conn_stmt(s->conn, choose_statement(kind, names), &s->stmt);
	if (code == 0 && sqlite3_bind_int64(s->stmt, 1, after) != SQLITE_OK)
		code = -EIO;
	if (code < 0) {
		dcp_index_scan_end(s);
		return code;
	}
	*out = s;
	return 0;
}

int dcp_index_scan_next(struct dcp_index_scan *s, struct dcp_row *row)
{
	int rc;

	if (s->done)
		return s->code;
	rc = sqlite3_step(s->stmt);
	if (rc == SQLITE_ROW)
		s->code = s->names ? name_row(s->stmt, s->kind, row)
				   : dcp_index_row(s->stmt, s->kind, row);
	else if (rc != SQLITE_DONE)
		s->code = dcp_index_sql_fail(s->conn->db, rc, "index", NULL);
	/* In a damaged file, pages that occur twice in the tree can repeat rows almost
	 * endlessly. */
	if (rc == SQLITE_ROW && s->code == 0 && row->id <= s->last)
		s->code = -EBADMSG;
	s->done = rc != SQLITE_ROW || s->code < 0;
	if (s->done)
		return s->code;
	s->last = row->id;
	return 1;
}

void dcp_index_scan_end(struct dcp_index_scan *s)
{
	if (!s)
		return;
	if (s->stmt)
		sqlite3_reset(s->stmt);
	dcp_index_conn_put(s->ix, s->conn);
	free(s);
}
