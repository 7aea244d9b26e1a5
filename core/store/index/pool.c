/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/index/pool.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "core/base/base.h"
#include "core/store/index/index_int.h"
#include "core/store/index/sql.h"

static const char *const sql[DCP_STMT_COUNT] = {
	[DCP_STMT_TENSOR_BY_ID] = DCP_SQL_TENSOR_ROW DCP_SQL_BY_ID,
	[DCP_STMT_TENSOR_BY_NAME] = DCP_SQL_TENSOR_FOUND DCP_SQL_BY_NAME,
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

static void conn_close(struct dcp_index_conn *c)
{
	if (!c)
		return;
	for (size_t i = 0; i < DCP_STMT_COUNT; i++)
		sqlite3_finalize(c->stmt[i]);
	sqlite3_close(c->db);
	free(c);
}

static void limit(sqlite3 *db)
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
		limit(c->db);
		sqlite3_db_config(c->db, SQLITE_DBCONFIG_LOOKASIDE, NULL, 0, 0);
		rc = sqlite3_exec(c->db, DCP_SQL_CONNECT DCP_SQL_OPEN, NULL, NULL, NULL);
	}
	if (rc != SQLITE_OK) {
		rc = dcp_index_sql_fail(c->db, rc, "index", err);
		conn_close(c);
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

/* Take out up to @most that are of @ix (NULL: of any), the last used first; the lock is held.
 */
static struct dcp_index_conn *take(struct dcp_index_pool *pool, const struct dcp_index *ix,
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
	c = take(pool, ix, UINT_MAX);
	pthread_mutex_unlock(&pool->lock);
	for (; c; c = next) {
		next = c->next;
		conn_close(c);
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
	c = take(ix->pool, ix, 1);
	pthread_mutex_unlock(&ix->pool->lock);
	if (!c)
		return dcp_index_conn_open(ix, out, NULL);
	if (c->bare)
		sqlite3_exec(c->db, DCP_SQL_OPEN, NULL, NULL, NULL);
	c->bare = false;
	*out = c;
	return 0;
}

/* Of all but the last used ones only what is dear to make again is kept; the lock is held. */
static void strip_oldest(struct dcp_index_pool *pool)
{
	struct dcp_index_conn *c = pool->idle;

	for (unsigned i = 0; c && i < DCP_INDEX_WARM; i++)
		c = c->next;
	if (!c || c->bare)
		return;
	if (c->found) {
		sqlite3_reset(c->stmt[DCP_STMT_TENSOR_BY_NAME]);
		c->found = 0;
	}
	sqlite3_exec(c->db, DCP_SQL_CLOSE, NULL, NULL, NULL); /* else it keeps a page */
	sqlite3_db_release_memory(c->db);
	c->bare = true;
}

/* The least recently used one; the lock is held, so that its index is still open. */
static void close_oldest(struct dcp_index_pool *pool)
{
	struct dcp_index_conn **at = &pool->idle;

	while ((*at)->next)
		at = &(*at)->next;
	conn_close(*at);
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
