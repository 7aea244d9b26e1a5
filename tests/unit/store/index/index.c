/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is told to an index comes out again.
 *
 * covers: write/write, write/writer, write/rows
 */
#include "tests/unit/t.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/arena.h"
#include "core/model/name.h"
#include "core/store/index/index.h"
#include "tests/unit/t/index.h"

/* ---- round trip ---- */

static const char *const odd_path[] = {
	"model",    "a\"b\\c\n\t\r\x01\x7f",     "",       "\xc0\x80", "\xed\xa0\x80",
	"\xff\xfe", "\xc3\xbc \xf0\x9f\x98\x80", "[\",\"]"
};

static void tell_everything(struct t_index *p)
{
	struct dcp_piece pieces[] = {
		{ .lo = U64S(0, 0),
		  .len = U64S(2, 3),
		  .run_n = 6,
		  .off = 0,
		  .nbytes = 24,
		  .file = p->file,
		  .swap = true },
		{ .lo = U64S(2, 0),
		  .len = U64S(2, 3),
		  .stride = U64S(1, 2),
		  .run_n = 6,
		  .off = 24,
		  .nbytes = 24,
		  .file = p->file },
		{ .lo = U64S(4, 0),
		  .len = U64S(4, 3),
		  .run_n = 5,
		  .off = 100,
		  .nbytes = 50,
		  .file = p->file,
		  .enc = DCP_ENC_TORCH },
		{ .lo = U64S(4, 0),
		  .len = U64S(4, 3),
		  .run_lo = 5,
		  .run_n = 7,
		  .off = 200,
		  .nbytes = 3,
		  .file = p->file,
		  .filter = DCP_FILTER_ZSTD },
	};
	struct dcp_tensor t = { .key = "model.w",
				.path = odd_path,
				.npath = DCP_LEN(odd_path),
				.dtype = DCP_DTYPE_F32,
				.itemsize = 4,
				.ndim = 2,
				.shape = U64S(8, 3),
				.pieces = pieces,
				.npieces = DCP_LEN(pieces) };
	struct dcp_object o = { .key = "opt.lr",
				.path = odd_path,
				.npath = 0,
				.type = "float",
				.json = "0.5",
				.json_len = 3,
				.classes = "1:tuple 4",
				.stored = &(struct dcp_stretch){ p->file, DCP_FILTER_ZSTD, 7,
								 30, 500 } };

	assert_int_equal(p->sink.tensor(p->sink.ctx, &t), 0);
	t = (struct dcp_tensor){ .key = "scalar",
				 .dtype_name = "qint8",
				 .itemsize = 3,
				 .error = "quantized",
				 .entry = true };
	assert_int_equal(p->sink.tensor(p->sink.ctx, &t), 0);
	assert_int_equal(p->sink.object(p->sink.ctx, &o), 0);
	o.key = "opt.bad"; /* which the next row has, too */
	assert_int_equal(p->sink.item(p->sink.ctx, &o), 0);
	o = (struct dcp_object){
		.key = "opt.bad", .type = "x.Y", .error = "too deep", .entry = true
	};
	assert_int_equal(p->sink.object(p->sink.ctx, &o), 0);
	assert_int_equal(p->sink.meta(p->sink.ctx, "framework", "torch 2"), 0);
	assert_int_equal(p->sink.meta(p->sink.ctx, "framework", "torch 3"), 0);
}

static void check_tensor(struct t_index *p)
{
	struct dcp_row row = t_index_row(p, DCP_ROW_TENSOR, "model.w");
	struct dcp_tensor t = t_index_tensor(p, row.id);

	assert_int_equal(row.id, 1);
	assert_string_equal(row.name, "model.w");
	assert_int_equal(row.nbytes, 96);
	assert_int_equal(row.dtype, DCP_DTYPE_F32);
	assert_int_equal(row.ndim, 2);
	assert_int_equal(row.shape[0], 8);
	assert_int_equal(row.shape[1], 3);
	assert_int_equal(row.alias_of, 0);
	assert_int_equal(row.naliases, 0);
	assert_false(row.broken);
	assert_false(row.entry);
	assert_string_equal(t.key, "model.w");
	assert_string_equal(t.dtype_name, "F32");
	assert_int_equal(t.npath, DCP_LEN(odd_path));
	for (size_t i = 0; i < t.npath; i++)
		assert_string_equal(t.path[i], odd_path[i]);
	assert_null(t.error);
	assert_null(t.alias_of);
	assert_int_equal(t.npieces, 4);
	assert_true(t.pieces[0].swap);
	assert_int_equal(t.pieces[1].stride[1], 2);
	assert_int_equal(t.pieces[2].enc, DCP_ENC_TORCH);
	assert_int_equal(t.pieces[3].filter, DCP_FILTER_ZSTD);
	assert_int_equal(t.pieces[3].run_lo, 5);
	assert_int_equal(t.pieces[3].off, 200);
}

static void check_rest(struct t_index *p)
{
	struct dcp_row row = t_index_row(p, DCP_ROW_TENSOR, "scalar");
	struct dcp_tensor t = t_index_tensor(p, row.id);
	struct dcp_object o;
	struct dcp_err err = { 0 };

	assert_true(row.broken);
	assert_true(row.entry);
	assert_int_equal(row.dtype, DCP_DTYPE_OTHER);
	assert_int_equal(row.ndim, 0);
	assert_string_equal(t.error, "quantized");
	assert_string_equal(t.dtype_name, "qint8");
	assert_int_equal(t.itemsize, 3);
	row = t_index_row(p, DCP_ROW_OBJECT, "opt.lr");
	assert_int_equal(row.nbytes, 4);
	assert_int_equal(dcp_index_object(p->ix, row.id, &p->arena, &o, &err), 0);
	assert_string_equal(o.json, "0.5");
	assert_int_equal(o.json_len, 3);
	assert_string_equal(o.classes, "1:tuple 4");
	assert_string_equal(o.type, "float");
	assert_int_equal(o.npath, 0);
	assert_non_null(o.stored);
	assert_int_equal(o.stored->file, p->file);
	assert_int_equal(o.stored->filter, DCP_FILTER_ZSTD);
	assert_int_equal(o.stored->off, 7);
	assert_int_equal(o.stored->nbytes, 30);
	assert_int_equal(o.stored->n, 500);
	assert_false(row.entry);
	row = t_index_row(p, DCP_ROW_OBJECT, "opt.bad");
	assert_true(row.broken);
	assert_true(row.entry);
	assert_int_equal(dcp_index_object(p->ix, row.id, &p->arena, &o, &err), 0);
	assert_string_equal(o.error, "too deep");
	assert_null(o.json);
	assert_null(o.stored);
}

static void check_items(struct t_index *p)
{
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_object o;
	struct dcp_row row;

	assert_int_equal(dcp_index_scan(p->ix, DCP_ROW_ITEM, 0, false, &scan), 0);
	assert_int_equal(dcp_index_scan_next(scan, &row), 1);
	assert_int_equal(row.id, 1);
	assert_true(row.entry);
	assert_string_equal(row.key, "opt.bad");
	assert_int_equal(dcp_index_item(p->ix, row.id, &p->arena, &o, NULL), 0);
	assert_string_equal(o.key, "opt.bad");
	assert_string_equal(o.json, "0.5");
	assert_string_equal(o.classes, "1:tuple 4");
	assert_string_equal(o.type, "float");
	assert_null(o.error);
	assert_null(o.stored);
	assert_int_equal(dcp_index_scan_next(scan, &row), 0);
	assert_int_equal(dcp_index_item(p->ix, 2, &p->arena, &o, NULL), -ENOENT);
}

static void check_facts(struct t_index *p)
{
	const struct dcp_index_counts *n = dcp_index_counts(p->ix);
	const struct dcp_file_id *files;
	size_t nfiles;

	assert_int_equal(n->tensors, 2);
	assert_int_equal(n->objects, 2);
	assert_int_equal(n->broken, 2);
	assert_int_equal(n->bytes, 96 + 3);
	assert_int_equal(n->elements, 8 * 3 + 1);
	assert_string_equal(dcp_index_meta(p->ix, "framework"),
			    "torch 2"); /* the first stays */
	assert_int_equal(atoi(dcp_index_meta(p->ix, "dcpfs_index")), DCP_INDEX_SCHEMA);
	assert_null(dcp_index_meta(p->ix, "nothing"));
	files = dcp_index_files(p->ix, &nfiles);
	assert_int_equal(nfiles, 1);
	assert_string_equal(files[0].name, "a.bin");
	assert_int_equal(files[0].size, 4096);
	assert_int_not_equal(files[0].ino, 0);
}

static void rows_are_read_back(void **state)
{
	struct t_index *p = *state;
	struct dcp_row row;
	struct dcp_err err = { 0 };
	struct dcp_tensor t;
	struct stat st;

	tell_everything(p);
	t_index_reopen(p);
	check_tensor(p);
	check_rest(p);
	check_items(p);
	check_facts(p);
	assert_int_equal(dcp_index_by_id(p->ix, DCP_ROW_TENSOR, 3, &p->arena, &row), -ENOENT);
	assert_int_equal(dcp_index_by_id(p->ix, DCP_ROW_TENSOR, -1, &p->arena, &row), -ENOENT);
	assert_int_equal(dcp_index_by_name(p->ix, DCP_ROW_OBJECT, "model.w", &p->arena, &row),
			 -ENOENT);
	assert_int_equal(dcp_index_tensor(p->ix, 77, &p->arena, &t, &err), -ENOENT);
	t_assert_says(&err, "tensor 77: no such row");
	assert_int_equal(stat(t_dir_path(&p->dir, "x.dcpx"), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(t_dir_count(&p->dir, ""), 2); /* no temporary file stays */
}

static void rows_in_memory_are_read_back(void **state)
{
	struct t_index *p = *state;
	struct dcp_err err = { 0 };

	dcp_index_abandon(p->w);
	assert_int_equal(t_dir_count(&p->dir, ""), 1);
	assert_int_equal(dcp_index_create(NULL, &p->w, &err), 0);
	p->sink = dcp_index_sink(p->w, &p->dir.at);
	assert_int_equal(p->sink.file(p->sink.ctx, "a.bin", &p->file), 0);
	tell_everything(p);
	assert_int_equal(dcp_index_commit(p->w, &p->ix, &err), 0);
	p->w = NULL;
	check_tensor(p);
	check_rest(p);
	check_items(p);
	check_facts(p);
	assert_null(dcp_index_meta(p->ix, "created_ns"));
}

static void memory_without_a_reader_is_dropped(void **state)
{
	struct dcp_index_writer *w;
	struct dcp_err err = { 0 };

	(void)state;
	assert_int_equal(dcp_index_create(NULL, &w, &err), 0);
	assert_int_equal(dcp_index_commit(w, NULL, &err), 0);
}

/* ---- keys, stems, aliases ---- */

static void clashing_keys_are_broken(void **state)
{
	struct t_index *p = *state;
	struct dcp_row rows[4], row;

	for (int i = 0; i < 4; i++)
		t_tell_vector(&p->sink, "same", p->file, 0, 4, NULL);
	t_tell_object(&p->sink, "same", "1");
	t_tell_object(&p->sink, "same", "2");
	t_tell_object(&p->sink, "o", "3");
	t_tell_vector(&p->sink, "o", p->file, 0, 4, NULL);
	t_index_reopen(p);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(
			dcp_index_by_id(p->ix, DCP_ROW_TENSOR, i + 1, &p->arena, &rows[i]), 0);
		assert_int_equal(rows[i].broken, i > 0);
		for (int k = 0; k < i; k++)
			assert_string_not_equal(rows[k].name, rows[i].name);
	}
	assert_string_equal(rows[0].name, "same");
	assert_int_equal(strncmp(rows[3].name, "same%~", 6), 0);
	assert_string_equal(t_index_tensor(p, 2).error,
			    "the key appears twice in the checkpoint: same");
	row = t_index_row(p, DCP_ROW_OBJECT, "same"); /* the first told is meant */
	assert_int_equal(row.id, 5); /* in the order of tensors and objects together */
	assert_false(row.broken);
	assert_int_equal(strncmp(row.name, "same%~", 6), 0);
	assert_int_equal(dcp_index_by_id(p->ix, DCP_ROW_OBJECT, 6, &p->arena, &row), 0);
	assert_true(row.broken);
	row = t_index_row(p, DCP_ROW_TENSOR, "o"); /* a tensor may be called as an object is */
	assert_false(row.broken);
	assert_int_equal(strncmp(row.name, "o~", 2), 0);
	assert_string_equal(t_index_row(p, DCP_ROW_OBJECT, "o").name, "o");
}

/* Where an object is stored is kept if its bytes are there. */
static void places_of_objects_are_checked(void **state)
{
	struct t_index *p = *state;
	const uint64_t size = 4096; /* of the file */
	const struct {
		struct dcp_stretch at;
		bool kept;
	} cases[] = {
		{ { p->file, DCP_FILTER_NONE, 0, size, size }, true },
		{ { p->file, DCP_FILTER_NONE, size, 0, 0 }, true },
		{ { p->file, DCP_FILTER_NONE, 1, size, size }, false },
		{ { p->file, DCP_FILTER_NONE, UINT64_MAX, 2, 2 }, false },
		{ { p->file, DCP_FILTER_NONE, 0, UINT64_MAX, UINT64_MAX }, false },
		{ { p->file, DCP_FILTER_NONE, 0, 8, 9 }, false },
		{ { p->file, DCP_FILTER_ZSTD, 0, 8, 9 }, true },
		{ { p->file, DCP_FILTER_ZSTD, 0, size + 1, 9 }, false },
		{ { p->file + 1, DCP_FILTER_NONE, 0, 8, 8 }, false },
	};
	struct dcp_err err = { 0 };
	char key[16];

	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct dcp_object o = { .key = key,
					.type = "int",
					.json = "1",
					.json_len = 1,
					.stored = &cases[i].at };

		snprintf(key, sizeof(key), "o%zu", i);
		assert_int_equal(p->sink.object(p->sink.ctx, &o), 0);
	}
	t_index_reopen(p);
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct dcp_object o;

		snprintf(key, sizeof(key), "o%zu", i);
		t_case(key);
		assert_int_equal(dcp_index_object(p->ix, t_index_row(p, DCP_ROW_OBJECT, key).id,
						  &p->arena, &o, &err),
				 0);
		assert_null(o.error);
		assert_int_equal(o.stored != NULL, cases[i].kept);
		if (o.stored)
			assert_int_equal(o.stored->n, cases[i].at.n);
	}
}

/* Every key four times, as tensors and objects in turn, and keys made to be in the way. */
static void keys_do_not_break_each_other(void **state)
{
	static const char *const keys[] = {
		"", ".", "..", "/", "%", "plain", "k~0123456789abcdef"
	};
	struct t_index *p = *state;
	char name[DCP_NAME_MAX + 1], *unwritten = calloc(1, 1001);
	struct dcp_row row;
	size_t n = 0;

	memset(unwritten, 'k', 1000);
	for (size_t i = 0; i < DCP_LEN(keys); i++) {
		dcp_name_from_key(keys[i], true, name);
		t_tell_vector(&p->sink, name, p->file, 0, 4, NULL);
		for (int k = 0; k < 4; k++) {
			t_tell_vector(&p->sink, keys[i], p->file, 0, 4, NULL);
			t_tell_object(&p->sink, keys[i], "1");
		}
		t_tell_vector(&p->sink, unwritten, p->file, 0, 4, NULL);
		n += 10;
	}
	t_index_reopen(p);
	for (uint32_t i = 1; i <= n; i++) {
		int rc = dcp_index_by_id(p->ix, DCP_ROW_TENSOR, i, &p->arena, &row);

		if (rc == -ENOENT &&
		    dcp_index_by_id(p->ix, DCP_ROW_OBJECT, i, &p->arena, &row) == 0)
			continue;
		assert_int_equal(rc, 0);
		assert_true(strlen(row.name) <= DCP_NAME_MAX);
		assert_int_equal(
			dcp_index_by_name(p->ix, DCP_ROW_TENSOR, row.name, &p->arena, &row), 0);
		assert_int_equal(row.id, i);
	}
	for (size_t i = 0; i < DCP_LEN(keys); i++) {
		assert_false(t_index_row(p, DCP_ROW_TENSOR, keys[i]).broken);
		assert_false(t_index_row(p, DCP_ROW_OBJECT, keys[i]).broken);
	}
	free(unwritten);
}

static void stems_that_look_hashed_stay_apart(void **state)
{
	struct t_index *p = *state;
	char name[DCP_NAME_MAX + 1], *key = calloc(1, 2000);
	struct dcp_row row;

	memset(key, 'k', 1000);
	dcp_name_from_key(key, false, name);                /* cut and hashed */
	t_tell_vector(&p->sink, name, p->file, 0, 4, NULL); /* a key that is that name */
	t_tell_vector(&p->sink, key, p->file, 0, 4, NULL);
	memset(key, 'k', 1001);
	t_tell_vector(&p->sink, key, p->file, 0, 4, NULL);
	t_index_reopen(p);
	assert_string_equal(t_index_row(p, DCP_ROW_TENSOR, name).name, name);
	key[1000] = '\0';
	row = t_index_row(p, DCP_ROW_TENSOR, key);
	assert_false(row.broken);
	assert_string_not_equal(row.name, name);
	assert_int_equal(strlen(row.name), DCP_NAME_MAX);
	assert_int_equal(dcp_index_by_name(p->ix, DCP_ROW_TENSOR, row.name, &p->arena, &row),
			 0);
	assert_int_equal(row.id, 2);
	key[1000] = 'k';
	assert_int_equal(t_index_row(p, DCP_ROW_TENSOR, key).id, 3);
	free(key);
}

static void aliases_are_kept(void **state)
{
	struct t_index *p = *state;
	struct dcp_row row;

	t_tell_vector(&p->sink, "root", p->file, 8, 4, NULL);
	t_tell_vector(&p->sink, "with pieces", p->file, 8, 4, "root");
	t_tell_bare_alias(&p->sink, "bare", 4, DCP_DTYPE_U8, "with pieces");
	t_tell_bare_alias(&p->sink, "other shape", 5, DCP_DTYPE_U8, "root");
	t_tell_bare_alias(&p->sink, "other type", 4, DCP_DTYPE_I8, "root");
	t_tell_bare_alias(&p->sink, "of nothing", 4, DCP_DTYPE_U8, "never told");
	t_tell_bare_alias(&p->sink, "of itself", 4, DCP_DTYPE_U8, "of itself");
	t_tell_vector(&p->sink, "broken", p->file, 4095, 4, NULL);
	t_tell_bare_alias(&p->sink, "of broken", 4, DCP_DTYPE_U8, "broken");
	t_tell_vector(&p->sink, "longer", p->file, 0, 5, "root");
	t_index_reopen(p);
	row = t_index_row(p, DCP_ROW_TENSOR, "root");
	assert_int_equal(row.naliases, 2);
	assert_int_equal(t_index_row(p, DCP_ROW_TENSOR, "with pieces").alias_of, row.id);
	row = t_index_row(p, DCP_ROW_TENSOR, "bare");
	assert_int_equal(row.alias_of, 1); /* not the alias it named */
	assert_int_equal(row.nbytes, 4);
	assert_string_equal(t_index_tensor(p, row.id).alias_of, "root");
	assert_int_equal(t_index_tensor(p, row.id).pieces[0].off, 8);
	assert_string_equal(t_index_tensor(p, 4).error,
			    "an alias whose dtype or shape is not that of root");
	assert_string_equal(t_index_tensor(p, 5).error,
			    "an alias whose dtype or shape is not that of root");
	assert_string_equal(t_index_tensor(p, 6).error,
			    "an alias of a key that is not stored: never told");
	assert_non_null(t_index_tensor(p, 7).error);
	assert_string_equal(t_index_tensor(p, 9).error, t_index_tensor(p, 8).error);
	row = t_index_row(p, DCP_ROW_TENSOR, "longer"); /* has pieces of its own: a tensor */
	assert_int_equal(row.alias_of, 0);
	assert_false(row.broken);
	/* root, other shape, other type, of nothing, of itself, broken, longer */
	assert_int_equal(dcp_index_counts(p->ix)->bytes, 4 + 5 + 4 + 4 + 4 + 4 + 5);
}

/* ---- scans, threads, replacement ---- */

enum { LONG = 2000, MANY = 3000 };

static void tell_many(struct t_index *p)
{
	for (int i = 0; i < MANY; i++) {
		char key[64];

		snprintf(key, sizeof(key), "layer.%d/weight", i);
		t_tell_vector(&p->sink, key, p->file, (uint64_t)i % 4000, 1 + (uint64_t)i % 50,
			      NULL);
		t_tell_object(&p->sink, key, "null");
	}
}

/*
 * Rows of one kind behind row @after; every one is the one expected there: tensors and objects
 * stand in turn.
 */
static int scan_all(struct dcp_index *ix, enum dcp_row_kind kind, int64_t after)
{
	struct dcp_index_scan *s, *names;
	struct dcp_row row, name;
	char want[64];
	int n = 0, rc;

	assert_int_equal(dcp_index_scan(ix, kind, after, false, &s), 0);
	assert_int_equal(dcp_index_scan(ix, kind, after, true, &names), 0);
	while ((rc = dcp_index_scan_next(s, &row)) == 1) {
		int64_t at = after / 2 + n++, id = 2 * at + (kind == DCP_ROW_OBJECT ? 2 : 1);

		assert_int_equal(row.id, id);
		assert_int_equal(dcp_index_scan_next(names, &name), 1);
		assert_int_equal(name.id, id);
		assert_string_equal(name.name, row.name);
		assert_int_equal(name.alias_of, row.alias_of);
		if (kind == DCP_ROW_TENSOR)
			assert_int_equal(name.dtype, row.dtype);
		snprintf(want, sizeof(want), "layer.%lld/weight", (long long)at);
		assert_string_equal(row.key, want);
		if (kind == DCP_ROW_TENSOR)
			assert_int_equal(row.nbytes, 1 + at % 50);
		else
			assert_int_equal(row.nbytes, 5);
	}
	assert_int_equal(rc, 0);
	assert_int_equal(dcp_index_scan_next(s, &row), 0); /* the end stays the end */
	assert_int_equal(dcp_index_scan_next(names, &name), 0);
	dcp_index_scan_end(s);
	dcp_index_scan_end(names);
	return n;
}

static void scans_give_every_row_once(void **state)
{
	struct t_index *p = *state;

	tell_many(p);
	t_index_reopen(p);
	assert_int_equal(scan_all(p->ix, DCP_ROW_TENSOR, 0), MANY);
	assert_int_equal(scan_all(p->ix, DCP_ROW_OBJECT, 0), MANY);
	assert_int_equal(scan_all(p->ix, DCP_ROW_TENSOR, 1234), MANY - 1234 / 2);
	assert_int_equal(scan_all(p->ix, DCP_ROW_TENSOR, 2 * MANY), 0);
	assert_int_equal(scan_all(p->ix, DCP_ROW_TENSOR, INT64_MAX), 0);
}

/* A vector of as many pieces as a look-up does not read. */
static void tell_pieces(struct t_index *p, const char *key)
{
	static struct dcp_piece pieces[LONG];
	static uint64_t lo[LONG];
	static const uint64_t one = 1;
	struct dcp_tensor t = { .key = key,
				.dtype = DCP_DTYPE_U8,
				.itemsize = 1,
				.ndim = 1,
				.shape = U64S(LONG),
				.pieces = pieces,
				.npieces = LONG };

	for (size_t i = 0; i < LONG; i++) {
		lo[i] = i;
		pieces[i] = (struct dcp_piece){ .lo = &lo[i],
						.len = &one,
						.run_n = 1,
						.off = LONG - 1 - i,
						.nbytes = 1,
						.file = p->file };
	}
	assert_int_equal(p->sink.tensor(p->sink.ctx, &t), 0);
}

/* Whatever was looked up before, the row that is asked for is read, and read twice alike. */
static void a_tensor_is_read_after_any_look_up(void **state)
{
	static const struct {
		const char *found, *read;
	} cases[] = { { "a", "a" },    { "a", "b" },         { "long", "long" },
		      { "a", "long" }, { "long", "b" },      { "nothing", "b" },
		      { "b", "b" },    { "nothing", "long" } };
	struct t_index *p = *state;

	t_tell_vector(&p->sink, "a", p->file, 7, 11, NULL);
	tell_pieces(p, "long");
	t_tell_vector(&p->sink, "b", p->file, 9, 12, NULL);
	t_index_reopen(p);
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct dcp_row row = t_index_row(p, DCP_ROW_TENSOR, cases[i].read), found;
		bool is_long = !strcmp(cases[i].read, "long");
		int rc = dcp_index_by_name(p->ix, DCP_ROW_TENSOR, cases[i].found, &p->arena,
					   &found);

		assert_int_equal(rc, strcmp(cases[i].found, "nothing") ? 0 : -ENOENT);
		for (int twice = 0; twice < 2; twice++) {
			struct dcp_tensor t;

			dcp_arena_reset(&p->arena);
			t = t_index_tensor(p, row.id);
			assert_string_equal(t.key, cases[i].read);
			assert_int_equal(t.npieces, is_long ? LONG : 1);
			assert_int_equal(t.pieces[0].off, is_long                 ? LONG - 1
							  : *cases[i].read == 'a' ? 7
										  : 9);
		}
	}
}

static void *reading_thread(void *ctx)
{
	struct dcp_index *ix = ctx;
	struct dcp_arena arena;
	struct dcp_row row;
	struct dcp_tensor t;
	char name[64];
	intptr_t bad = 0;

	dcp_arena_init(&arena, 1 << 20);
	for (int i = 0; i < MANY; i++) {
		int k = i * 7 % MANY;

		dcp_arena_reset(&arena);
		snprintf(name, sizeof(name), "layer.%d%%2Fweight", k);
		bad += dcp_index_by_name(ix, DCP_ROW_TENSOR, name, &arena, &row) != 0 ||
		       row.id != 2 * k + 1;
		bad += dcp_index_tensor(ix, 2 * k + 1, &arena, &t, NULL) != 0 ||
		       t.pieces[0].off != (uint64_t)k % 4000;
	}
	dcp_arena_finish(&arena);
	return (void *)bad;
}

static void many_threads_read(void **state)
{
	struct t_index *p = *state;
	pthread_t threads[8];
	void *bad;

	tell_many(p);
	t_index_reopen(p);
	for (size_t i = 0; i < DCP_LEN(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, reading_thread, p->ix), 0);
	assert_int_equal(scan_all(p->ix, DCP_ROW_TENSOR, 0), MANY);
	for (size_t i = 0; i < DCP_LEN(threads); i++) {
		pthread_join(threads[i], &bad);
		assert_null(bad);
	}
}

static void open_indexes_outlive_replacement(void **state)
{
	struct t_index *p = *state;
	struct dcp_index_writer *w;
	struct dcp_index *other = NULL;
	struct dcp_sink s;
	struct dcp_err err = { 0 };
	struct dcp_row row;
	uint32_t file;

	tell_many(p);
	t_index_reopen(p);
	assert_int_equal(dcp_index_create(t_dir_path(&p->dir, "x.dcpx"), &w, &err), 0);
	s = dcp_index_sink(w, &p->dir.at);
	assert_int_equal(s.file(s.ctx, "a.bin", &file), 0);
	t_tell_vector(&s, "new", file, 0, 4, NULL);
	assert_int_equal(dcp_index_commit(w, &other, &err), 0);
	/* connections opened from now on still see what was opened */
	assert_int_equal(scan_all(p->ix, DCP_ROW_TENSOR, 0), MANY);
	assert_int_equal(dcp_index_by_key(other, DCP_ROW_TENSOR, "new", &p->arena, &row), 0);
	assert_int_equal(unlink(t_dir_path(&p->dir, "x.dcpx")), 0);
	assert_int_equal(dcp_index_by_key(other, DCP_ROW_TENSOR, "new", &p->arena, &row), 0);
	dcp_index_close(other);
}

static void relative_paths_are_opened(void **state)
{
	struct t_index *p = *state;
	struct dcp_index_writer *w;
	struct dcp_err err = { 0 };
	char cwd[512];

	assert_non_null(getcwd(cwd, sizeof(cwd)));
	assert_int_equal(fchdir(p->dir.fd), 0);
	assert_int_equal(dcp_index_create("file:odd?mode=memory", &w, &err), 0);
	assert_int_equal(dcp_index_commit(w, NULL, &err), 0);
	assert_int_equal(access("file:odd?mode=memory", F_OK), 0);
	assert_int_equal(dcp_index_open("file:odd?mode=memory", &p->ix, &err), 0);
	assert_int_equal(chdir(cwd), 0);
}

T_TESTS()
{
#define WITH_INDEX(f) cmocka_unit_test_setup_teardown(f, t_index_setup, t_index_teardown)
	const struct CMUnitTest tests[] = {
		WITH_INDEX(rows_are_read_back),
		WITH_INDEX(rows_in_memory_are_read_back),
		cmocka_unit_test(memory_without_a_reader_is_dropped),
		WITH_INDEX(clashing_keys_are_broken),
		WITH_INDEX(keys_do_not_break_each_other),
		WITH_INDEX(places_of_objects_are_checked),
		WITH_INDEX(stems_that_look_hashed_stay_apart),
		WITH_INDEX(aliases_are_kept),
		WITH_INDEX(scans_give_every_row_once),
		WITH_INDEX(a_tensor_is_read_after_any_look_up),
		WITH_INDEX(many_threads_read),
		WITH_INDEX(open_indexes_outlive_replacement),
		WITH_INDEX(relative_paths_are_opened),
	};
	return cmocka_run_group_tests_name("index", tests, NULL, NULL);
}
