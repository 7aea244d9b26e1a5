/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/index.h"

#include "core/store/index/index_int.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include "tests/unit/t.h"

void t_tell_vector(const struct dcp_sink *s, const char *key, uint32_t file, uint64_t off,
		   uint64_t n, const char *alias_of)
{
	struct dcp_piece p = {
		.lo = U64S(0), .len = &n, .run_n = n, .off = off, .nbytes = n, .file = file
	};
	struct dcp_tensor t = { .key = key,
				.path = &key,
				.npath = 1,
				.dtype = DCP_DTYPE_U8,
				.itemsize = 1,
				.ndim = 1,
				.shape = &n,
				.pieces = &p,
				.npieces = 1,
				.alias_of = alias_of };

	assert_int_equal(s->tensor(s->ctx, &t), 0);
}

void t_tell_object(const struct dcp_sink *s, const char *key, const char *json)
{
	struct dcp_object o = { .key = key,
				.path = &key,
				.npath = 1,
				.type = "int",
				.json = json,
				.json_len = json ? strlen(json) : 0 };

	assert_int_equal(s->object(s->ctx, &o), 0);
}

int t_index_setup(void **state)
{
	struct t_index *p = calloc(1, sizeof(*p));
	struct dcp_err err = { 0 };

	t_dir_make(&p->dir, "test_index");
	t_dir_put(&p->dir, "a.bin", NULL, 4096);
	if (dcp_index_create(t_dir_path(&p->dir, "x.dcpx"), &p->w, &err) < 0)
		fail_msg("%s", err.msg);
	p->sink = dcp_index_sink(p->w, &p->dir.at);
	assert_int_equal(p->sink.file(p->sink.ctx, "a.bin", &p->file), 0);
	dcp_arena_init(&p->arena, 1 << 20);
	*state = p;
	return 0;
}

int t_index_teardown(void **state)
{
	struct t_index *p = *state;

	dcp_index_abandon(p->w);
	dcp_index_close(p->ix);
	dcp_arena_finish(&p->arena);
	t_dir_remove(&p->dir);
	free(p);
	return 0;
}

void t_index_reopen(struct t_index *p)
{
	struct dcp_err err = { 0 };
	struct dcp_index_writer *w = p->w;

	p->w = NULL;
	if (dcp_index_commit(w, NULL, &err) < 0)
		fail_msg("%s", err.msg);
	if (dcp_index_open(t_dir_path(&p->dir, "x.dcpx"), &p->ix, &err) < 0)
		fail_msg("%s", err.msg);
}

struct dcp_row t_index_row(struct t_index *p, enum dcp_row_kind kind, const char *key)
{
	struct dcp_row row = { 0 };

	assert_int_equal(dcp_index_by_key(p->ix, kind, key, &p->arena, &row), 0);
	return row;
}

struct dcp_tensor t_index_tensor(struct t_index *p, int64_t id)
{
	struct dcp_tensor t = { 0 };
	struct dcp_err err = { 0 };

	if (dcp_index_tensor(p->ix, id, &p->arena, &t, &err) < 0)
		fail_msg("%s", err.msg);
	return t;
}

void t_tell_bare_alias(const struct dcp_sink *s, const char *key, uint64_t n,
		       enum dcp_dtype dtype, const char *alias_of)
{
	struct dcp_tensor t = { .key = key,
				.dtype = dtype,
				.itemsize = dcp_dtype_info(dtype)->size,
				.ndim = 1,
				.shape = &n,
				.alias_of = alias_of };

	assert_int_equal(s->tensor(s->ctx, &t), 0);
}

int t_reseal(const char *path)
{
	int rc, fd = open(path, O_RDWR);

	assert_true(fd >= 0);
	rc = dcp_index_seal(fd);
	close(fd);
	return rc;
}

void t_sql(const char *path, const char *text)
{
	char *why = NULL;
	sqlite3 *db;

	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	if (sqlite3_exec(db, text, NULL, NULL, &why) != SQLITE_OK)
		fail_msg("%s", why);
	sqlite3_close(db);
	t_reseal(path);
}
