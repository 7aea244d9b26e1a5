/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/name.h"
#include "core/store/index/index_int.h"

struct dcp_index_scan {
	struct dcp_index *ix;
	struct dcp_index_conn *conn;
	sqlite3_stmt *stmt;
	enum dcp_row_kind kind;
	bool names;
	int64_t last;
	int code; /* what ended it: stepping on would begin again */
	bool done;
};

bool dcp_index_text(sqlite3_stmt *s, int i, const char **text, size_t *n)
{
	if (sqlite3_column_type(s, i) != SQLITE_TEXT)
		return false;
	*text = (const char *)sqlite3_column_text(s, i);
	*n = (size_t)sqlite3_column_bytes(s, i);
	return *text && memchr(*text, '\0', *n) == NULL;
}

/* May this be shown as the stem of a file name? */
static bool name_is_safe(const char *name, size_t n)
{
	return n && n <= DCP_NAME_MAX && !memchr(name, '/', n) && strcmp(name, ".") != 0 &&
	       strcmp(name, "..") != 0;
}

/* What only tensors have; their bytes are computed again. */
static int tensor_columns(sqlite3_stmt *s, struct dcp_row *row)
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
	if (!dcp_index_text(s, 1, &row->key, &nkey) ||
	    !dcp_index_text(s, 2, &row->name, &nname) || !name_is_safe(row->name, nname) ||
	    nbytes < 0 || row->id <= 0)
		return -EBADMSG;
	row->nbytes = (uint64_t)nbytes;
	row->broken = sqlite3_column_int(s, 4) != 0;
	if (kind == DCP_ROW_TENSOR)
		return tensor_columns(s, row);
	row->entry = sqlite3_column_int(s, 5) == 1;
	return 0;
}

/* The short row of a scan for names. */
static int name_row(sqlite3_stmt *s, enum dcp_row_kind kind, struct dcp_row *row)
{
	const char *dtype;
	size_t n;

	row->id = sqlite3_column_int64(s, 0);
	if (!dcp_index_text(s, 1, &row->name, &n) || !name_is_safe(row->name, n) ||
	    row->id <= 0)
		return -EBADMSG;
	row->alias_of = 0;
	row->key = NULL;
	if (kind == DCP_ROW_OBJECT)
		return 0;
	if (!dcp_index_text(s, 2, &dtype, &n) || !dcp_index_text(s, 4, &row->key, &n))
		return -EBADMSG;
	row->dtype = dcp_dtype_from_name(dtype);
	row->alias_of = sqlite3_column_int64(s, 3);
	return row->alias_of < 0 || row->alias_of == row->id ? -EBADMSG : 0;
}

static enum dcp_index_stmt statement(enum dcp_row_kind kind, bool names)
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
	code = dcp_index_conn_stmt(s->conn, statement(kind, names), &s->stmt);
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
	/* A tree whose pages are shared can repeat itself nearly for ever. */
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
