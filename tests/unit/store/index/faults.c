/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An index that was cut, edited or never finished, and a disk or a memory that has an end.
 * covers: index, sql
 */
#include "tests/unit/t.h"

#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/store/index/index.h"
#include "core/store/index/index_int.h"
#include "core/store/index/write/write_int.h"
#include "tests/unit/t/index.h"

static void tell_some(const struct dcp_sink *s, uint32_t file, int n)
{
	for (int i = 0; i < n; i++) {
		char key[64];

		snprintf(key, sizeof(key), "layer.%d.weight", i);
		t_tell_vector(s, key, file, (uint64_t)i, 10,
			      i % 10 == 9 ? "layer.0.weight" : NULL);
		snprintf(key, sizeof(key), "state.%d", i);
		t_tell_object(s, key, "[1, 2, 3]");
	}
}

/* Look at everything there is. Nothing may crash; the first code is given back. */
static int read_all(struct dcp_index *ix, struct dcp_arena *arena)
{
	int first = 0;

	for (int kind = DCP_ROW_TENSOR; kind <= DCP_ROW_ITEM; kind++) {
		struct dcp_index_scan *s = NULL;
		struct dcp_row row, again;
		struct dcp_tensor t;
		struct dcp_object o;
		int64_t last = 0;
		int rc = dcp_index_scan(ix, (enum dcp_row_kind)kind, 0, false, &s);

		first = first ? first : rc;
		while (rc == 0 && (rc = dcp_index_scan_next(s, &row)) == 1) {
			assert_true(row.id > last);
			assert_true(row.ndim <= DCP_MAX_NDIM);
			last = row.id;
			dcp_arena_reset(arena);
			rc = kind == DCP_ROW_TENSOR
				     ? dcp_index_tensor(ix, row.id, arena, &t, NULL)
			     : kind == DCP_ROW_ITEM
				     ? dcp_index_item(ix, row.id, arena, &o, NULL)
				     : dcp_index_object(ix, row.id, arena, &o, NULL);
			if (rc == 0 && kind != DCP_ROW_ITEM)
				rc = dcp_index_by_name(ix, (enum dcp_row_kind)kind, row.name,
						       arena, &again);
			first = first ? first : rc;
			rc = 0;
		}
		if (rc == 0 &&
		    kind != DCP_ROW_ITEM) /* names that differ from keys have an index */
			rc = dcp_index_by_name(ix, (enum dcp_row_kind)kind, "nothing", arena,
					       &again);
		first = first ? first : rc == -ENOENT ? 0 : rc;
		dcp_index_scan_end(s);
	}
	return first;
}

/* ---- rows that say what a writer never does ---- */

/* clang-format off */
static const struct {
	const char *what, *sql;
	int open, scan, tensor; /* codes: opening, reading all rows, tensor 1 */
} edits[] = {
	{ "nothing edited", "SELECT 1", 0, 0, 0 },
	{ "a name that climbs", "UPDATE tensor SET name = '../x' WHERE id = 1", 0, -EBADMSG, 0 },
	{ "a name that is here", "UPDATE tensor SET name = '.' WHERE id = 1", 0, -EBADMSG, 0 },
	{ "no name", "UPDATE tensor SET name = '' WHERE id = 1", 0, -EBADMSG, 0 },
	{ "a name of 244 bytes", "UPDATE tensor SET name = printf('%.*c', 244, 'x') WHERE id = 1", 0,
	  -EBADMSG, 0 },
	{ "a NUL in a key", "UPDATE tensor SET key = 'a' || char(0) || 'b' WHERE id = 1", 0,
	  -EBADMSG, -EBADMSG },
	{ "other bytes than the shape has", "UPDATE tensor SET nbytes = 11 WHERE id = 1", 0,
	  -EBADMSG, 0 },
	{ "negative bytes", "UPDATE tensor SET nbytes = -1 WHERE id = 1", 0, -EBADMSG, 0 },
	{ "a shape that is none", "UPDATE tensor SET shape = '[x]' WHERE id = 1", 0, -EBADMSG,
	  -EBADMSG },
	{ "a shape whose product wraps",
	  "UPDATE tensor SET shape = '[4294967296,4294967296]', nbytes = 0 WHERE id = 1", 0, -EBADMSG,
	  -EBADMSG },
	{ "a shape of more dimensions than the pieces", "UPDATE tensor SET shape = '[2,5]' "
	  "WHERE id = 1", 0, -EBADMSG, -EBADMSG },
	{ "elements of another size", "UPDATE tensor SET itemsize = 2, nbytes = 20 WHERE id = 1", 0,
	  -EBADMSG, -EBADMSG },
	{ "elements of 2^32 bytes", "UPDATE tensor SET itemsize = 4294967296 WHERE id = 1", 0,
	  -EBADMSG, -EBADMSG },
	{ "a path that is none", "UPDATE tensor SET path = '{}' WHERE id = 1", 0, -EBADMSG,
	  -EBADMSG },
	{ "no pieces", "UPDATE tensor SET pieces = x'' WHERE id = 1", 0, -EBADMSG, -EBADMSG },
	{ "pieces cut", "UPDATE tensor SET pieces = substr(pieces, 1, 4) WHERE id = 1", 0, -EBADMSG,
	  -EBADMSG },
	{ "a piece in no file", "UPDATE tensor SET pieces = x'01010009000a000a' WHERE id = 1", 0,
	  -EBADMSG, -EBADMSG },
	{ "an alias of itself", "UPDATE tensor SET alias_of = 1 WHERE id = 1", 0, -EBADMSG,
	  -EBADMSG },
	{ "an alias of a missing tensor", "UPDATE tensor SET alias_of = 9999 WHERE id = 1", 0, -EBADMSG,
	  -EBADMSG },
	{ "a negative id", "UPDATE tensor SET id = -5 WHERE id = 1", 0, -EBADMSG, -ENOENT },
	{ "JSON of another length", "UPDATE object SET json = 'x' WHERE id = 2", 0, -EBADMSG, 0 },
	{ "neither JSON nor error", "UPDATE object SET json = NULL WHERE id = 2", 0, -EBADMSG, 0 },
	{ "bytes in no file", "UPDATE object SET (file, off, stored, filter, raw) = (9, 0, 4, 0, 4) WHERE id = 2", 0, -EBADMSG, 0 },
	{ "bytes in file 0", "UPDATE object SET (file, off, stored, filter, raw) = (0, 0, 4, 0, 4) WHERE id = 2", 0, -EBADMSG, 0 },
	{ "bytes before a file", "UPDATE object SET (file, off, stored, filter, raw) = (1, -1, 4, 0, 4) WHERE id = 2", 0, -EBADMSG, 0 },
	{ "fewer bytes than none", "UPDATE object SET (file, off, stored, filter, raw) = (1, 0, -1, 0, -1) WHERE id = 2", 0, -EBADMSG, 0 },
	{ "more bytes than are stored", "UPDATE object SET (file, off, stored, filter, raw) = (1, 0, 4, 0, 5) WHERE id = 2", 0, -EBADMSG, 0 },
	{ "bytes of a filter that is none", "UPDATE object SET (file, off, stored, filter, raw) = (1, 0, 4, 2, 4) WHERE id = 2", 0, -EBADMSG, 0 },
	{ "a file number left out", "UPDATE file SET id = 7 WHERE id = 1", -EBADMSG, 0, 0 },
	{ "a file of negative size", "UPDATE file SET size = -1 WHERE id = 1", -EBADMSG, 0, 0 },
	{ "a file that decodes to less than nothing", "UPDATE file SET unpacked = -1 WHERE id = 1", -EBADMSG, 0, 0 },
	{ "a count that is none", "UPDATE meta SET value = 'many' WHERE name = 'tensors'", -EBADMSG,
	  0, 0 },
	{ "a fact too long", "UPDATE meta SET value = printf('%.*c', 70000, 'x') "
	  "WHERE name = 'tensors'", -EBADMSG, 0, 0 },
	{ "too many facts", "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c "
	  "LIMIT 2000) INSERT INTO meta SELECT 'm' || x, 'y' FROM c", -EBADMSG, 0, 0 },
	{ "another schema", "PRAGMA user_version = 1", -ESTALE, 0, 0 },
	{ "another application", "PRAGMA application_id = 2", -EBADMSG, 0, 0 },
	{ "a trigger", "CREATE TRIGGER t AFTER INSERT ON file BEGIN SELECT 1; END", -EBADMSG, 0, 0 },
	{ "a column more", "ALTER TABLE tensor ADD COLUMN extra TEXT", -EBADMSG, 0, 0 },
	{ "an index less", "DROP INDEX tensor_name", -EBADMSG, 0, 0 },
};
/* clang-format on */

static void edited_rows_are_noticed(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(edits); i++) {
		struct t_index *p;
		const char *path;
		struct dcp_err err = { 0 };
		struct dcp_tensor t;
		int code;

		t_case(edits[i].what);
		t_index_setup((void **)&p);
		tell_some(&p->sink, p->file, 20);
		t_index_reopen(p);
		dcp_index_close(p->ix);
		p->ix = NULL;
		path = t_dir_path(&p->dir, "x.dcpx");
		t_sql(path, edits[i].sql);
		assert_int_equal(dcp_index_open(path, &p->ix, &err), edits[i].open);
		if (edits[i].open == 0) {
			code = read_all(p->ix, &p->arena);
			assert_int_equal(code, edits[i].scan);
			assert_int_equal(dcp_index_tensor(p->ix, 1, &p->arena, &t, &err),
					 edits[i].tensor);
			if (edits[i].tensor == -EBADMSG)
				t_assert_says(&err, "index: tensor 1: ");
		} else {
			t_assert_says(&err, path);
		}
		t_index_teardown((void **)&p);
	}
}

/* An index whose SQL index leads from the key of row 1, which is its name too, to another key. */
static void rows_under_other_keys_are_noticed(void **state)
{
	struct t_index *p = *state;
	struct dcp_row row;
	const char *path;

	tell_some(&p->sink, p->file, 20);
	t_index_reopen(p);
	dcp_index_close(p->ix);
	p->ix = NULL;
	path = t_dir_path(&p->dir, "x.dcpx");
	t_sql(path, "PRAGMA writable_schema = 1; UPDATE sqlite_master SET sql = sql || ' WHERE "
		    "id < 0' WHERE name = 'tensor_key'");
	t_sql(path, "UPDATE tensor SET key = 'other' WHERE id = 1");
	t_sql(path, "PRAGMA writable_schema = 1; UPDATE sqlite_master SET sql = replace(sql, ' "
		    "WHERE id < 0', '') WHERE name = 'tensor_key'");
	assert_int_equal(dcp_index_open(path, &p->ix, NULL), 0);
	assert_int_equal(dcp_index_by_id(p->ix, DCP_ROW_TENSOR, 1, &p->arena, &row), 0);
	assert_string_equal(row.name, "other");
	assert_int_equal(
		dcp_index_by_name(p->ix, DCP_ROW_TENSOR, "layer.0.weight", &p->arena, &row),
		-EBADMSG);
	assert_int_equal(
		dcp_index_by_name(p->ix, DCP_ROW_TENSOR, "layer.1.weight", &p->arena, &row), 0);
}

/* ---- files that are not whole ---- */

static const struct {
	const char *what;
	const char *make; /* NULL: a directory */
	int code;
} files[] = {
	{ "empty", "", -EBADMSG },
	{ "text", "SQLite format 3", -EBADMSG },
	{ "a directory", NULL, -EBADMSG },
};

static void other_files_are_refused(void **state)
{
	struct t_index *p = *state;
	struct dcp_err err = { 0 };

	for (size_t i = 0; i < DCP_LEN(files); i++) {
		t_case(files[i].what);
		if (files[i].make)
			t_dir_text(&p->dir, "other", files[i].make);
		else
			t_dir_sub(&p->dir, "directory");
		assert_int_equal(
			dcp_index_open(
				t_dir_path(&p->dir, files[i].make ? "other" : "directory"),
				&p->ix, &err),
			files[i].code);
	}
	assert_int_equal(dcp_index_open(t_dir_path(&p->dir, "nowhere"), &p->ix, &err), -ENOENT);
	assert_null(p->ix);
	dcp_index_close(NULL);
}

static char *whole_file(const char *path, size_t *n)
{
	dcp_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	char *p;

	assert_int_equal(fstat(fd, &st), 0);
	*n = (size_t)st.st_size;
	p = malloc(*n);
	assert_int_equal(read(fd, p, *n), *n);
	return p;
}

/* Shorter than its header says is seen at once; nothing else about it matters then. */
static void every_cut_is_refused(void **state)
{
	struct t_index *p = *state;
	struct dcp_index *ix = NULL;
	struct dcp_err err = { 0 };
	dcp_auto_free char *bytes = NULL;
	size_t n;

	tell_some(&p->sink, p->file, 100);
	t_index_reopen(p);
	bytes = whole_file(t_dir_path(&p->dir, "x.dcpx"), &n);
	for (size_t cut = 0; cut < n; cut += T_SLOW * (cut < 200 ? 1 : 997)) {
		t_dir_put(&p->dir, "cut", bytes, cut);
		assert_int_equal(dcp_index_open(t_dir_path(&p->dir, "cut"), &ix, &err),
				 -EBADMSG);
	}
	t_dir_put(&p->dir, "cut", bytes, n);
	assert_int_equal(dcp_index_open(t_dir_path(&p->dir, "cut"), &ix, &err), 0);
	/* cut while it is open: rows that are gone are errors, not crashes */
	assert_int_equal(truncate(t_dir_path(&p->dir, "cut"), (off_t)n / 2), 0);
	assert_true(read_all(ix, &p->arena) < 0);
	dcp_index_close(ix);
}

/* It is refused when it is opened, or when what was changed is read, and then by whoever opens
 * it next. */
static void found_damaged(struct t_index *p, const char *path)
{
	struct dcp_index *ix = NULL;
	struct dcp_err err = { 0 };

	if (dcp_index_open(path, &ix, &err) < 0) {
		assert_int_not_equal(err.code, 0);
		return;
	}
	assert_int_equal(read_all(ix, &p->arena), -EBADMSG);
	assert_true(dcp_index_is_damaged(ix));
	dcp_index_close(ix);
	assert_int_equal(dcp_index_open(path, &ix, &err), -EBADMSG);
}

static void flipped_bytes_are_survived(void **state)
{
	struct t_index *p = *state;
	dcp_auto_free char *bytes = NULL;
	unsigned opened = 0, refused = 0, seed = 1;
	size_t n;

	tell_some(&p->sink, p->file, 100);
	t_index_reopen(p);
	bytes = whole_file(t_dir_path(&p->dir, "x.dcpx"), &n);
	for (int i = 0; i < T_ROUNDS(700); i++) {
		struct dcp_index *ix = NULL;
		struct dcp_err err = { 0 };
		char was[8];
		size_t at, len;

		seed = seed * 1664525 + 1013904223;
		/* half of them in the first page and the heads of the others */
		at = i % 2 ? (seed >> 8) % n : (seed >> 8) % (n / 8192) * 8192 + seed % 100;
		len = DCP_MIN(n - at, 1 + (size_t)(seed >> 4) % 8);
		memcpy(was, bytes + at, len);
		for (size_t k = 0; k < len; k++)
			bytes[at + k] = (char)(i % 3 ? (char)(seed >> 16) : (char)0xff);
		t_dir_put(&p->dir, "flipped", bytes, n);
		if (memcmp(was, bytes + at, len) != 0)
			found_damaged(p, t_dir_path(&p->dir, "flipped"));
		t_dir_put(&p->dir, "flipped", bytes, n);
		if (t_reseal(t_dir_path(&p->dir, "flipped")) < 0) {
			refused++;
		} else if (dcp_index_open(t_dir_path(&p->dir, "flipped"), &ix, &err) == 0) {
			read_all(ix, &p->arena);
			opened++;
		} else {
			assert_true(err.code < 0);
			refused++;
		}
		dcp_index_close(ix);
		memcpy(bytes + at, was, len);
	}
	assert_true(opened > T_ROUNDS(50));
	assert_true(refused > T_ROUNDS(10));
}

/* ---- disks and memories that end ---- */

/* Tell, commit, and say how it ended. */
static int build(struct t_dir *d, const char *path, int n, struct dcp_err *err)
{
	struct dcp_index_writer *w;
	struct dcp_sink s;
	char key[64];
	uint32_t file;
	int code = dcp_index_create(path, &w, err);

	if (code < 0)
		return code;
	s = dcp_index_sink(w, &d->at);
	code = s.file(s.ctx, "a.bin", &file);
	for (int i = 0; code == 0 && i < n; i++) {
		struct dcp_object o = {
			.key = key, .type = "int", .json = "12345678", .json_len = 8
		};

		snprintf(key, sizeof(key), "state.%d", i);
		code = s.object(s.ctx, &o);
	}
	if (code < 0) {
		assert_int_equal(dcp_index_writer_error(w, err), code);
		assert_int_equal(s.object(s.ctx, &(struct dcp_object){ .key = "k" }), code);
		assert_int_equal(s.meta(s.ctx, "a", "b"), code);
		assert_int_equal(s.file(s.ctx, "new", &file), code);
		dcp_index_abandon(w);
		return code;
	}
	return dcp_index_commit(w, NULL, err);
}

/* A limit on the size of files ends as a full disk does, wherever it strikes. */
static void a_full_disk_is_reported(void **state)
{
	struct t_index *p = *state;
	void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
	struct rlimit was, now;
	unsigned full = 0;
	int code = -ENOSPC;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
	for (rlim_t limit = 0; code != 0; limit += limit < 60000 ? 5000 : 50000) {
		struct dcp_err err = { 0 };

		now = (struct rlimit){ limit, was.rlim_max };
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &now), 0);
		code = build(&p->dir, t_dir_path(&p->dir, "y.dcpx"), 5000, &err);
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
		if (code < 0) {
			if (code != -ENOSPC)
				fail_msg("at %lu: %s", (unsigned long)limit, err.msg);
			assert_int_equal(err.code, -ENOSPC);
			assert_int_equal(t_dir_count(&p->dir, ""), 2); /* a.bin, setup's own */
			full++;
		}
	}
	signal(SIGXFSZ, handler);
	assert_true(full > 12);
	assert_int_equal(t_dir_count(&p->dir, ""), 3);
}

static void lack_of_memory_is_reported(void **state)
{
	struct t_index *p = *state;
	unsigned failed = 0;
	int code = -ENOMEM;

	for (sqlite3_int64 limit = 4096; code != 0; limit += limit / 4) {
		struct dcp_err err = { 0 };

		sqlite3_hard_heap_limit64(sqlite3_memory_used() + limit);
		code = build(&p->dir, t_dir_path(&p->dir, "y.dcpx"), 2000, &err);
		sqlite3_hard_heap_limit64(0);
		if (code < 0) {
			assert_int_equal(code, -ENOMEM);
			failed++;
		}
	}
	assert_true(failed > 3);
}

static void unwritable_paths_are_reported(void **state)
{
	struct t_index *p = *state;
	struct dcp_index_writer *w = NULL;
	struct dcp_err err = { 0 };

	assert_int_equal(dcp_index_create(t_dir_path(&p->dir, "no/x"), &w, &err), -ENOENT);
	assert_int_equal(dcp_index_create(t_dir_path(&p->dir, "a.bin/x"), &w, &err), -ENOTDIR);
	assert_int_equal(dcp_index_create("/proc/x", &w, &err), -ENOENT);
	assert_null(w);
	t_dir_sub(&p->dir, "taken"); /* a directory stands where the file shall be */
	assert_int_equal(build(&p->dir, t_dir_path(&p->dir, "taken"), 1, &err), -EISDIR);
	assert_int_equal(t_dir_count(&p->dir, ""), 3);
	dcp_index_abandon(NULL);
}

/* The file that was written is gone, and another has its name: too short to be one. */
static void failing_seals_are_reported(void **state)
{
	struct t_index *p = *state;
	struct dcp_err err = { 0 };
	struct dcp_index *ix = NULL;

	t_tell_vector(&p->sink, "w", p->file, 0, 4, NULL);
	assert_int_equal(unlink(p->w->temp), 0);
	assert_int_equal(close(open(p->w->temp, O_CREAT | O_WRONLY, 0600)), 0);
	assert_int_equal(dcp_index_commit(p->w, &ix, &err), -EBADMSG);
	p->w = NULL;
	assert_int_equal(err.code, -EBADMSG);
	assert_null(ix);
	assert_int_equal(t_dir_count(&p->dir, ""), 1);
}

T_TESTS()
{
#define WITH_INDEX(f) cmocka_unit_test_setup_teardown(f, t_index_setup, t_index_teardown)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(edited_rows_are_noticed),
		WITH_INDEX(rows_under_other_keys_are_noticed),
		WITH_INDEX(other_files_are_refused),
		WITH_INDEX(every_cut_is_refused),
		WITH_INDEX(flipped_bytes_are_survived),
		WITH_INDEX(a_full_disk_is_reported),
		WITH_INDEX(lack_of_memory_is_reported),
		WITH_INDEX(unwritable_paths_are_reported),
		WITH_INDEX(failing_seals_are_reported),
	};
	return cmocka_run_group_tests_name("index_faults", tests, NULL, NULL);
}
