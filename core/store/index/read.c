/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/index/index_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/intern.h"
#include "core/base/jsonw.h"
#include "core/model/geometry/cut.h"
#include "core/model/tensor.h"
#include "core/parse/json.h"
#include "core/store/index/index.h"

/* Columns of DCP_SQL_TENSOR and DCP_SQL_TENSOR_FROM. */
enum {
	ID,
	KEY,
	ERROR = 4,
	DTYPE,
	ITEMSIZE,
	SHAPE,
	ALIAS_OF,
	PARTLY = 10,
	PATH = 12,
	PIECES,
	STORED,
	COPIES,
};

/* One statement on one connection, for the length of a call. */
struct query {
	struct dcp_index *ix;
	struct dcp_index_conn *conn;
	sqlite3_stmt *stmt;
	bool stays; /* the statement stays on its row after the call */
};

static int begin_query(struct query *q, struct dcp_index *ix, enum dcp_index_stmt which)
{
	int code;

	*q = (struct query){ .ix = ix, .stays = which == DCP_STMT_TENSOR_FROM };
	code = dcp_index_conn_get(ix, &q->conn);
	return code < 0 ? code : dcp_index_conn_stmt(q->conn, which, &q->stmt);
}

/* Step to the only row: 0, -ENOENT, or the error of SQLite. */
static int step_query(struct query *q)
{
	int rc = sqlite3_step(q->stmt);

	if (rc == SQLITE_ROW)
		return 0;
	return rc == SQLITE_DONE ? -ENOENT : dcp_index_sql_fail(q->conn->db, rc, "index", NULL);
}

static void end_query(struct query *q)
{
	if (q->stmt && !q->stays) {
		sqlite3_reset(q->stmt);
		sqlite3_clear_bindings(q->stmt);
	}
	if (q->conn)
		dcp_index_conn_put(q->ix, q->conn);
}

/* Step to the next row. If there is none, the connection is not positioned on a row. */
static int next_tensor(struct query *q)
{
	int code = step_query(q);

	q->conn->at = code == 0 ? sqlite3_column_int64(q->stmt, ID) : 0;
	if (code < 0)
		sqlite3_reset(q->stmt);
	return code;
}

/* Go to the row of tensor @id, unless the connection is already positioned on it. */
static int go_to_tensor(struct query *q, int64_t id)
{
	int code;

	if (id && q->conn->at == id)
		return 0;
	if (!q->conn->at || id - 1 != q->conn->at) {
		sqlite3_reset(q->stmt);
		sqlite3_bind_int64(q->stmt, 1, id);
	}
	code = next_tensor(q);
	return code == 0 && q->conn->at != id ? -ENOENT : code;
}

static bool is_called(const struct query *q, const char *name)
{
	const char *text;
	size_t n;

	return dcp_index_name(q->stmt, &text, &n) && strcmp(text, name) == 0;
}

/* Find the id of the tensor with this stem, which mostly equals the key. */
static int find_tensor(const struct query *q, const char *name, int64_t *id)
{
	int code = -ENOENT;

	for (enum dcp_index_stmt which = DCP_STMT_TENSOR_ID_OF_KEY;
	     code == -ENOENT && which <= DCP_STMT_TENSOR_ID_OF_NAME; which++) {
		struct query by = { .conn = q->conn };

		code = dcp_index_conn_stmt(q->conn, which, &by.stmt);
		if (code < 0)
			break;
		code = -ENOENT; /* if @name is longer than any text in the index */
		if (sqlite3_bind_text(by.stmt, 1, name, -1, SQLITE_STATIC) == SQLITE_OK)
			code = step_query(&by);
		if (code == 0)
			*id = sqlite3_column_int64(by.stmt, ID);
		sqlite3_reset(by.stmt);
		sqlite3_clear_bindings(by.stmt);
	}
	return code;
}

/* Go to the row of the tensor with this stem. Programs mostly look up names in the order in which
 * they are listed, so after two consecutive rows the next row is tried first. */
static int go_to_name(struct query *q, const char *name)
{
	int64_t before, id = 0;
	int code;

	if (q->conn->in_order && q->conn->at && next_tensor(q) == 0 && is_called(q, name))
		return 0;
	before = q->conn->at;
	code = find_tensor(q, name, &id);
	if (code == 0)
		code = go_to_tensor(q, id);
	q->conn->in_order = code == 0 && before && id == before + 1;
	return code;
}

static int keep_text(struct dcp_arena *arena, const char **text)
{
	*text = dcp_arena_strdup(arena, *text);
	return *text ? 0 : -ENOMEM;
}

/* Read the current row of @q, with its text in @arena. */
static int take_row(const struct query *q, enum dcp_row_kind kind, struct dcp_arena *arena,
		    struct dcp_row *row)
{
	struct dcp_row got;
	bool same;
	int code = dcp_index_row(q->stmt, kind, &got);

	if (code < 0)
		return code;
	same = got.name == got.key;
	code = keep_text(arena, &got.key);
	if (same)
		got.name = got.key;
	else if (code == 0)
		code = keep_text(arena, &got.name);
	if (code == 0)
		*row = got;
	return code;
}

int dcp_index_by_id(struct dcp_index *ix, enum dcp_row_kind kind, int64_t id,
		    struct dcp_arena *arena, struct dcp_row *row)
{
	bool tensor = kind == DCP_ROW_TENSOR;
	struct query q;
	int code = begin_query(&q, ix, tensor ? DCP_STMT_TENSOR_FROM : DCP_STMT_OBJECT_BY_ID);

	if (code == 0 && tensor) {
		code = go_to_tensor(&q, id);
	} else if (code == 0) {
		sqlite3_bind_int64(q.stmt, 1, id);
		code = step_query(&q);
	}
	if (code == 0)
		code = take_row(&q, kind, arena, row);
	end_query(&q);
	return code;
}

/* A damaged index may lead from a text to any row, so the text of the found row is compared. */
static int by_text(struct dcp_index *ix, enum dcp_row_kind kind, enum dcp_index_stmt which,
		   bool by_name, const char *text, struct dcp_arena *arena, struct dcp_row *row)
{
	struct query q;
	struct dcp_row got;
	int code = begin_query(&q, ix, which);

	if (code == 0 && which == DCP_STMT_TENSOR_FROM)
		code = go_to_name(&q, text);
	else if (code == 0) /* the text is longer than any text in the index */
		code = sqlite3_bind_text(q.stmt, 1, text, -1, SQLITE_STATIC) == SQLITE_OK
			       ? step_query(&q)
			       : -ENOENT;
	if (code == 0)
		code = take_row(&q, kind, arena, &got);
	end_query(&q);
	if (code == 0 && strcmp(by_name ? got.name : got.key, text) != 0)
		code = -EBADMSG;
	if (code == 0)
		*row = got;
	return code;
}

int dcp_index_by_name(struct dcp_index *ix, enum dcp_row_kind kind, const char *name,
		      struct dcp_arena *arena, struct dcp_row *row)
{
	return by_text(ix, kind,
		       kind == DCP_ROW_TENSOR ? DCP_STMT_TENSOR_FROM : DCP_STMT_OBJECT_BY_NAME,
		       true, name, arena, row);
}

int dcp_index_by_key(struct dcp_index *ix, enum dcp_row_kind kind, const char *key,
		     struct dcp_arena *arena, struct dcp_row *row)
{
	return by_text(ix, kind,
		       kind == DCP_ROW_TENSOR ? DCP_STMT_TENSOR_BY_KEY : DCP_STMT_OBJECT_BY_KEY,
		       false, key, arena, row);
}

/* Column @i copied; NULL for SQL's NULL when that is @allowed. */
static int get_text(const struct query *q, int i, bool allowed, struct dcp_arena *arena,
		    const char **out, size_t *n)
{
	const char *text;
	size_t len;

	*out = NULL;
	*n = 0;
	if (allowed && sqlite3_column_type(q->stmt, i) == SQLITE_NULL)
		return 0;
	if (!dcp_index_text(q->stmt, i, &text, &len))
		return -EBADMSG;
	*out = dcp_arena_strndup(arena, text, len);
	*n = len;
	return *out ? 0 : -ENOMEM;
}

static int get_path(const struct query *q, int i, const char *key, struct dcp_arena *arena,
		    const char *const **path, size_t *npath)
{
	const char *text;
	size_t n;

	if (!dcp_index_text(q->stmt, i, &text, &n))
		return -EBADMSG;
	return dcp_index_get_path(text, n, key, arena, path, npath);
}

/* For a cast tensor: the dtype that users see was read before; the stored dtype is in its own
 * column. */
static int get_stored(const struct query *q, struct dcp_tensor *t)
{
	const char *text;
	size_t n;

	if (sqlite3_column_type(q->stmt, STORED) == SQLITE_NULL)
		return 0;
	if (!dcp_index_text(q->stmt, STORED, &text, &n) ||
	    t->itemsize != dcp_dtype_info(t->dtype)->size)
		return -EBADMSG;
	t->cast = t->dtype;
	t->dtype = dcp_dtype_from_name(text);
	t->itemsize = dcp_dtype_info(t->dtype)->size;
	return dcp_dtype_can_cast(t->dtype, t->cast) ? 0 : -EBADMSG;
}

/* dtype, itemsize and shape. */
static int get_type(const struct query *q, struct dcp_arena *arena, struct dcp_tensor *t)
{
	sqlite3_int64 itemsize = sqlite3_column_int64(q->stmt, ITEMSIZE);
	uint64_t shape[DCP_MAX_NDIM], *copy;
	const char *text;
	size_t n;
	int code = get_text(q, DTYPE, false, arena, &t->dtype_name, &n);

	if (code < 0)
		return code;
	if (!dcp_index_text(q->stmt, SHAPE, &text, &n) ||
	    !dcp_index_get_shape(text, n, shape, &t->ndim) || itemsize < 0 ||
	    itemsize > UINT32_MAX)
		return -EBADMSG;
	t->dtype = dcp_dtype_from_name(t->dtype_name);
	t->itemsize = (uint32_t)itemsize;
	copy = dcp_arena_calloc(arena, t->ndim, sizeof(*copy));
	if (!copy)
		return -ENOMEM;
	memcpy(copy, shape, t->ndim * sizeof(*copy));
	t->shape = copy;
	return get_stored(q, t);
}

static int get_pieces(const struct query *q, const struct dcp_cut *cut, struct dcp_arena *arena,
		      struct dcp_tensor *t, struct dcp_err *err)
{
	bool some = cut && dcp_cut_fits(cut, t->ndim, t->shape);
	const void *blob = sqlite3_column_blob(q->stmt, PIECES);
	struct dcp_piece *pieces;
	struct dcp_box box;
	int code;

	if (some && !dcp_cut_bounds(cut, &box))
		memset(&box, 0, sizeof(box)); /* meets nothing */
	if (sqlite3_column_type(q->stmt, PIECES) != SQLITE_BLOB || !blob)
		return -EBADMSG;
	code = dcp_unpack_part(blob, (size_t)sqlite3_column_bytes(q->stmt, PIECES), t->ndim,
			       some ? &box : NULL, arena, &pieces, &t->npieces, err);
	if (code < 0)
		return code;
	t->pieces = pieces;
	if (t->error && !t->partly)
		return 0; /* copies are only shown to users: no data is read through them */
	for (size_t i = 0; i < t->npieces; i++) {
		if (pieces[i].file >= q->ix->nfiles)
			return -EBADMSG;
		for (uint32_t k = 0; k < pieces[i].nmore; k++)
			if (pieces[i].more[k].file >= q->ix->nfiles)
				return -EBADMSG;
	}
	return 0;
}

static int get_copies(const struct query *q, struct dcp_arena *arena, struct dcp_tensor *t,
		      struct dcp_err *err)
{
	struct dcp_piece *copies;
	int code;

	if (sqlite3_column_type(q->stmt, COPIES) != SQLITE_BLOB)
		return 0;
	code = dcp_unpack_part(sqlite3_column_blob(q->stmt, COPIES),
			       (size_t)sqlite3_column_bytes(q->stmt, COPIES), t->ndim, NULL,
			       arena, &copies, &t->ncopies, err);
	for (size_t i = 0; code == 0 && i < t->ncopies; i++)
		if (copies[i].file >= q->ix->nfiles)
			code = -EBADMSG;
	if (code == 0)
		t->copies = copies;
	return code;
}

static int get_tensor(const struct query *q, const struct dcp_cut *cut, struct dcp_arena *arena,
		      struct dcp_tensor *t, int64_t *alias_of, struct dcp_err *err)
{
	size_t n;
	int code = get_text(q, KEY, false, arena, &t->key, &n);

	if (code == 0)
		code = get_path(q, PATH, t->key, arena, &t->path, &t->npath);
	if (code == 0)
		code = get_type(q, arena, t);
	if (code == 0)
		code = get_text(q, ERROR, true, arena, &t->error, &n);
	t->partly = t->error && sqlite3_column_int(q->stmt, PARTLY) == 1;
	if (code == 0)
		code = get_pieces(q, cut, arena, t, err);
	if (code == 0)
		code = get_copies(q, arena, t, err);
	if (code == 0 && (!t->error || t->partly) && t->dtype != DCP_DTYPE_OTHER &&
	    t->itemsize != dcp_dtype_info(t->dtype)->size)
		code = -EBADMSG;
	*alias_of = sqlite3_column_int64(q->stmt, ALIAS_OF);
	return code;
}

/* Name the row in @err, unless a lower function already wrote a message. */
static int fail_row(struct dcp_err *err, int code, const char *kind, int64_t id)
{
	if (err && err->code == 0)
		dcp_fail(err, code, "%s", code == -ENOENT ? "no such row" : strerror(-code));
	return dcp_err_where(err, code, "index: %s %lld", kind, (long long)id);
}

int dcp_index_tensor(struct dcp_index *ix, int64_t id, struct dcp_arena *arena,
		     struct dcp_tensor *out, struct dcp_err *err)
{
	return dcp_index_tensor_part(ix, id, NULL, arena, out, err);
}

int dcp_index_tensor_part(struct dcp_index *ix, int64_t id, const struct dcp_cut *cut,
			  struct dcp_arena *arena, struct dcp_tensor *out, struct dcp_err *err)
{
	struct dcp_tensor t = { 0 };
	struct dcp_err local = { 0 };
	struct dcp_row row;
	struct query q;
	int64_t alias_of = 0;
	int code = begin_query(&q, ix, DCP_STMT_TENSOR_FROM);

	if (code == 0)
		code = go_to_tensor(&q, id);
	if (code == 0 && sqlite3_column_type(q.stmt, PIECES) == SQLITE_NULL) {
		end_query(&q);
		code = begin_query(&q, ix, DCP_STMT_TENSOR);
		if (code == 0) {
			sqlite3_bind_int64(q.stmt, 1, id);
			code = step_query(&q);
		}
	}
	if (code == 0)
		code = get_tensor(&q, cut, arena, &t, &alias_of, &local);
	end_query(&q);
	if (code == 0 && alias_of) {
		code = dcp_index_by_id(ix, DCP_ROW_TENSOR, alias_of, arena, &row);
		t.alias_of = code == 0 ? row.key : NULL;
		code = code == -ENOENT ? -EBADMSG : code;
	}
	if (code < 0) {
		fail_row(&local, code, "tensor", id);
		return dcp_err_give(err, &local, code);
	}
	*out = t;
	return 0;
}

/* Columns 7 to 11. */
static int get_stored_bytes(const struct query *q, struct dcp_arena *arena,
			    const struct dcp_stretch **out)
{
	sqlite3_int64 at[5];
	struct dcp_stretch *s;

	*out = NULL;
	if (sqlite3_column_type(q->stmt, 7) == SQLITE_NULL)
		return 0;
	for (int i = 0; i < 5; i++) {
		at[i] = sqlite3_column_int64(q->stmt, 7 + i);
		if (at[i] < 0)
			return -EBADMSG;
	}
	if (at[0] < 1 || (uint64_t)at[0] > q->ix->nfiles || at[3] > DCP_FILTER_ZSTD ||
	    (at[3] == DCP_FILTER_NONE && at[4] != at[2]))
		return -EBADMSG;
	s = dcp_arena_calloc(arena, 1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	*s = (struct dcp_stretch){ .file = (uint32_t)at[0] - 1,
				   .filter = (uint8_t)at[3],
				   .off = (uint64_t)at[1],
				   .nbytes = (uint64_t)at[2],
				   .n = (uint64_t)at[4] };
	*out = s;
	return 0;
}

/* Read a row of the table that the statement @which reads. */
static int get_object(struct dcp_index *ix, enum dcp_index_stmt which, int64_t id,
		      struct dcp_arena *arena, struct dcp_object *out, struct dcp_err *err)
{
	struct dcp_object o = { 0 };
	struct dcp_err local = { 0 };
	struct query q;
	size_t n;
	int code = begin_query(&q, ix, which);

	if (code == 0) {
		sqlite3_bind_int64(q.stmt, 1, id);
		code = step_query(&q);
	}
	if (code == 0)
		code = get_text(&q, 0, false, arena, &o.key, &n);
	if (code == 0)
		code = get_path(&q, 1, o.key, arena, &o.path, &o.npath);
	if (code == 0)
		code = get_text(&q, 2, false, arena, &o.type, &n);
	if (code == 0)
		code = get_text(&q, 3, true, arena, &o.json, &o.json_len);
	if (code == 0)
		code = get_text(&q, 4, true, arena, &o.error, &n);
	if (code == 0)
		code = get_text(&q, 6, true, arena, &o.classes, &n);
	if (code == 0)
		code = get_stored_bytes(&q, arena, &o.stored);
	if (code == 0 &&
	    (o.json ? sqlite3_column_int64(q.stmt, 5) != (int64_t)o.json_len + 1 : !o.error))
		code = -EBADMSG;
	end_query(&q);
	if (code < 0) {
		fail_row(&local, code, "object", id);
		return dcp_err_give(err, &local, code);
	}
	*out = o;
	return 0;
}

int dcp_index_object(struct dcp_index *ix, int64_t id, struct dcp_arena *arena,
		     struct dcp_object *out, struct dcp_err *err)
{
	return get_object(ix, DCP_STMT_OBJECT, id, arena, out, err);
}

int dcp_index_item(struct dcp_index *ix, int64_t id, struct dcp_arena *arena,
		   struct dcp_object *out, struct dcp_err *err)
{
	return get_object(ix, DCP_STMT_ITEM, id, arena, out, err);
}

#define NOTHING UINT32_MAX

struct dcp_said {
	struct dcp_index *ix;
	struct dcp_json *fact;       /* NULL: all files say the same */
	const struct dcp_json *says; /* in it */
	/* by file: index of what it says, or NOTHING; nfiles elements */
	uint32_t *of;
	size_t nfiles, nsays;
	bool *is_said; /* said by files of the added tensors; nsays elements */
	struct dcp_arena arena;
	struct dcp_buf text;
};

static int read_fact(struct dcp_said *s, const char *text)
{
	const struct dcp_json *files;
	int rc = dcp_json_parse(text, strlen(text), &s->fact, NULL);

	if (rc < 0)
		return rc == -ENOMEM ? rc : -EBADMSG;
	s->says = dcp_json_get(s->fact, "says");
	s->nsays = dcp_json_len(s->says);
	s->is_said = calloc(s->nsays + 1, sizeof(*s->is_said));
	s->of = malloc((s->nfiles + 1) * sizeof(*s->of));
	if (!s->of || !s->is_said)
		return -ENOMEM;
	memset(s->of, 0xff, s->nfiles * sizeof(*s->of));
	files = dcp_json_get(s->fact, "files");
	for (size_t i = 0; i < dcp_json_len(files); i++) {
		const struct dcp_json *pair = dcp_json_at(files, i);
		uint64_t file, says;

		if (!dcp_json_u64(dcp_json_at(pair, 0), &file) || file >= s->nfiles ||
		    !dcp_json_u64(dcp_json_at(pair, 1), &says) || says >= s->nsays)
			return -EBADMSG;
		s->of[file] = (uint32_t)says;
	}
	return 0;
}

int dcp_said_create(struct dcp_index *ix, struct dcp_said **out)
{
	const char *text = dcp_index_meta(ix, "metadata_files");
	struct dcp_said *s = calloc(1, sizeof(*s));
	int rc = 0;

	if (!s)
		return -ENOMEM;
	s->ix = ix;
	dcp_arena_init(&s->arena, (size_t)1 << 30);
	dcp_index_files(ix, &s->nfiles);
	if (text)
		rc = read_fact(s, text);
	if (rc < 0)
		dcp_said_free(s);
	else
		*out = s;
	return rc;
}

void dcp_said_free(struct dcp_said *s)
{
	if (!s)
		return;
	dcp_json_free(s->fact);
	dcp_arena_finish(&s->arena);
	dcp_buf_finish(&s->text);
	free(s->of);
	free(s->is_said);
	free(s);
}

int dcp_said_add(struct dcp_said *s, int64_t id)
{
	struct dcp_tensor t;
	int rc;

	if (!s->fact)
		return 0;
	dcp_arena_reset(&s->arena);
	rc = dcp_index_tensor(s->ix, id, &s->arena, &t, NULL);
	for (size_t i = 0; rc == 0 && i < t.npieces; i++)
		if (t.pieces[i].file < s->nfiles && s->of[t.pieces[i].file] != NOTHING)
			s->is_said[s->of[t.pieces[i].file]] = true;
	return rc;
}

static int put_pairs(struct dcp_said *s, struct dcp_intern *names, struct dcp_jsonw *w)
{
	const char *name, *value, *format = NULL;
	int rc = 0;

	for (size_t i = 0; !format && i < s->nsays; i++)
		if (s->is_said[i])
			format = dcp_json_str(dcp_json_get(dcp_json_at(s->says, i), "format"));
	if (dcp_index_meta(s->ix, "map"))
		format = "pt";
	if (format)
		dcp_jsonw_put_str(w, "format", format);
	for (size_t i = 0; i < s->nsays; i++) {
		const struct dcp_json *v;
		const void *iter = NULL;

		while (s->is_said[i] && rc >= 0 &&
		       (iter = dcp_json_next(dcp_json_at(s->says, i), iter, &name, &v))) {
			value = dcp_json_str(v);
			if (!value || strcmp(name, "format") == 0)
				continue;
			rc = dcp_intern_str(names, name, NULL);
			if (rc > 0)
				dcp_jsonw_put_str(w, name, value);
		}
	}
	return rc < 0 ? -ENOMEM : 0;
}

int dcp_said_take(struct dcp_said *s, const char **object)
{
	struct dcp_intern names = DCP_INTERN_INIT;
	struct dcp_jsonw w;
	int rc;

	*object = dcp_index_meta(s->ix, "metadata");
	if (!s->fact)
		return 0;
	dcp_buf_reset(&s->text);
	dcp_jsonw_init(&w, &s->text, false);
	dcp_jsonw_object(&w);
	rc = put_pairs(s, &names, &w);
	dcp_jsonw_end(&w);
	dcp_intern_finish(&names);
	memset(s->is_said, 0, s->nsays * sizeof(*s->is_said));
	if (rc == 0)
		rc = dcp_jsonw_error(&w);
	*object = s->text.p;
	return rc;
}
