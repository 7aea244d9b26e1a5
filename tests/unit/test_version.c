/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A version is opened from the cache when that is true, and indexed otherwise, whatever
 * state the cache is in.
 *
 * covers: version_open, version_fresh, version_cache
 */
#include "tests/unit/t.h"

#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/arena.h"
#include "core/base/cleanup.h"
#include "core/base/log.h"
#include "core/store/index.h"
#include "core/store/version.h"
#include "tests/unit/t_dir.h"
#include "tests/unit/t_fake.h"

struct place {
	struct t_dir dir; /* run/step-1 is the checkpoint, cache/ the cache */
	char source[128], cache[128];
	struct dcp_store_opts opts;
	struct dcp_log log;
	char said[1024]; /* warnings, a line each */
	unsigned warnings;
	unsigned progress;
};

static void hear(void *ctx, enum dcp_log_level level, const char *line)
{
	struct place *p = ctx;
	size_t n = strlen(p->said);

	if (level <= DCP_LOG_WARN) {
		snprintf(p->said + n, sizeof(p->said) - n, "%s\n", line);
		p->warnings++;
	}
}

static void count_progress(void *ctx, uint64_t done, uint64_t total, const char *what)
{
	(void)done, (void)total, (void)what;
	++*(unsigned *)ctx;
}

static int setup(void **state)
{
	struct place *p = calloc(1, sizeof(*p));

	t_dir_make(&p->dir, "test_version");
	snprintf(p->source, sizeof(p->source), "%s/run", p->dir.root);
	snprintf(p->cache, sizeof(p->cache), "%s/cache/dcpfs", p->dir.root);
	t_dir_put(&p->dir, "run/step-1/a.shard", NULL, 100);
	t_dir_put(&p->dir, "run/step-1/b.shard", NULL, 100);
	t_dir_text(&p->dir, "run/step-1/COMMIT",
		   "x a.shard 0 60\ny b.shard 60 40\nz gone.shard 0 4\n");
	p->log = (struct dcp_log){ DCP_LOG_DEBUG, hear, p };
	p->opts = (struct dcp_store_opts){ .cache_dir = p->cache, .log = &p->log };
	t_fake = (struct t_fake){ 0 };
	*state = p;
	return 0;
}

static int teardown(void **state)
{
	struct place *p = *state;

	t_dir_remove(&p->dir);
	free(p);
	return 0;
}

static const struct dcp_found step_1 = {
	.name = "step-1", .where = "step-1", .format = &t_fake_format, .complete = true
};

static struct dcp_version *open_version(struct place *p)
{
	struct dcp_version *v = NULL;
	struct dcp_err err = { 0 };

	if (dcp_version_open(p->source, &step_1, &p->opts, &v, &err) < 0)
		fail_msg("%s", err.msg);
	return v;
}

/* It serves the checkpoint, wherever its index is. */
static void check_version(struct dcp_version *v)
{
	struct dcp_index *ix = dcp_version_index(v);
	struct dcp_arena arena;
	struct dcp_tensor t;
	struct dcp_row row;

	dcp_arena_init(&arena, 1 << 16);
	assert_string_equal(dcp_version_name(v), "step-1");
	assert_ptr_equal(dcp_version_format(v), &t_fake_format);
	assert_string_equal(dcp_index_meta(ix, "format"), "fake");
	assert_string_equal(dcp_index_meta(ix, "version"), "step-1");
	assert_int_equal(dcp_index_counts(ix)->tensors, 3);
	assert_int_equal(dcp_index_counts(ix)->broken, 1);
	assert_int_equal(dcp_index_by_name(ix, DCP_ROW_TENSOR, "y", &arena, &row), 0);
	assert_int_equal(dcp_index_tensor(ix, row.id, &arena, &t, NULL), 0);
	assert_int_equal(t.pieces[0].off, 60);
	assert_non_null(dcp_version_files(v));
	assert_true(dcp_version_dirfd(v) >= 0);
	assert_int_equal(dcp_version_check(v, NULL), 0);
	dcp_arena_finish(&arena);
}

/* Open, check, close; was it built? */
static bool opens_built(struct place *p)
{
	struct dcp_version *v = open_version(p);
	bool built = dcp_version_was_built(v);

	check_version(v);
	dcp_version_close(v);
	return built;
}

/* Path of the one index, which must be there. */
static const char *index_path(struct place *p)
{
	struct dcp_version *v = open_version(p);
	static char path[512];

	assert_non_null(dcp_version_index_path(v));
	snprintf(path, sizeof(path), "%s", dcp_version_index_path(v));
	dcp_version_close(v);
	return path;
}

static void sql(const char *path, const char *text)
{
	char *why = NULL;
	sqlite3 *db;

	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	if (sqlite3_exec(db, text, NULL, NULL, &why) != SQLITE_OK)
		fail_msg("%s", why);
	sqlite3_close(db);
}

/* As if the checkpoint had been written a while before the index: it was just now. */
static void let_time_pass(struct place *p)
{
	sql(index_path(p), "UPDATE meta SET value = value + 10000000000 "
			   "WHERE name = 'created_ns'");
}

/* ---- taken from the cache, or not ---- */

static void built_once_then_cached(void **state)
{
	struct place *p = *state;
	struct dcp_version *v;
	struct stat st;
	uint64_t generation;
	int64_t commit;

	v = open_version(p);
	assert_true(dcp_version_was_built(v));
	check_version(v);
	generation = dcp_version_generation(v);
	commit = dcp_version_commit_ns(v);
	dcp_version_close(v);
	let_time_pass(p);
	t_fake.loads = 0;
	v = open_version(p);
	assert_false(dcp_version_was_built(v));
	check_version(v);
	assert_int_equal(t_fake.loads, 0);
	assert_int_equal(dcp_version_generation(v), generation);
	assert_int_equal(dcp_version_commit_ns(v), commit);
	assert_int_equal(stat(dcp_version_index_path(v), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	dcp_version_close(v);
	assert_int_equal(stat(p->cache, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	assert_int_equal(t_dir_count(&p->dir, "cache/dcpfs"), 1); /* no lock, no temp */
	assert_int_equal(p->warnings, 0);
	p->opts.rebuild = true;
	assert_true(opens_built(p));
}

static void racily_clean_is_not_trusted_twice(void **state)
{
	struct place *p = *state;

	assert_true(opens_built(p));
	assert_true(opens_built(p)); /* the files are younger than two seconds */
	let_time_pass(p);
	assert_false(opens_built(p));
}

static void touch(struct place *p)
{
	t_dir_touch(&p->dir, "run/step-1/a.shard", 1000000000);
}

static void grow(struct place *p)
{
	t_dir_put(&p->dir, "run/step-1/a.shard", NULL, 101);
}

static void replace(struct place *p)
{
	t_dir_put(&p->dir, "other", NULL, 100);
	assert_int_equal(renameat(p->dir.fd, "other", p->dir.fd, "run/step-1/a.shard"), 0);
}

static void new_name(struct place *p)
{
	t_dir_text(&p->dir, "run/step-1/new", "");
}

static void other_format(struct place *p)
{
	sql(index_path(p), "UPDATE meta SET value = 'fake2' WHERE name = 'format'");
}

static void other_release(struct place *p)
{
	sql(index_path(p), "UPDATE meta SET value = '0.0.1' WHERE name = 'dcpfs_version'");
}

static void other_schema(struct place *p)
{
	sql(index_path(p), "PRAGMA user_version = 77");
}

static void nothing(struct place *p)
{
	(void)p;
}

static const struct {
	const char *what;
	void (*change)(struct place *p);
	bool built;
} changes[] = {
	{ "nothing changed", nothing, false },
	{ "another mtime", touch, true },
	{ "another size", grow, true },
	{ "another file of the same size", replace, true },
	{ "another name in the directory", new_name, true },
	{ "indexed as another format", other_format, true },
	{ "indexed by another dcpfs", other_release, true },
	{ "another schema", other_schema, true },
};

static void stale_table(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(changes); i++) {
		struct place *p;

		t_case(changes[i].what);
		setup((void **)&p);
		assert_true(opens_built(p));
		let_time_pass(p);
		changes[i].change(p);
		assert_int_equal(opens_built(p), changes[i].built);
		assert_int_equal(p->warnings, 0); /* staleness is nobody's fault */
		teardown((void **)&p);
	}
}

static void a_file_that_was_missing_appears(void **state)
{
	struct place *p = *state;
	struct dcp_version *v = open_version(p);
	struct dcp_err err = { 0 };
	uint64_t generation = dcp_version_generation(v);

	assert_int_equal(dcp_version_check(v, &err), 0);
	t_dir_put(&p->dir, "run/step-1/gone.shard", NULL, 4);
	assert_int_equal(dcp_version_check(v, &err), -ESTALE);
	t_assert_says(&err, "gone.shard has appeared");
	dcp_version_close(v);
	v = open_version(p);
	assert_int_equal(dcp_index_counts(dcp_version_index(v))->broken, 0);
	assert_int_not_equal(dcp_version_generation(v), generation);
	t_dir_delete(&p->dir, "run/step-1/b.shard");
	assert_int_equal(dcp_version_check(v, &err), -ESTALE);
	t_assert_says(&err, "b.shard is gone");
	replace(p);
	assert_int_equal(dcp_version_check(v, &err), -ESTALE);
	t_assert_says(&err, "a.shard was replaced");
	dcp_version_close(v);
}

static void sidecar_in_the_checkpoint(void **state)
{
	struct place *p = *state;

	p->opts.index_file = t_dir_path(&p->dir, "run/step-1/index.dcpx");
	assert_true(opens_built(p));
	let_time_pass(p); /* its own name beside the shards changes nothing */
	assert_false(opens_built(p));
	assert_int_equal(access(p->opts.index_file, F_OK), 0);
	assert_int_equal(access(p->cache, F_OK), -1);
}

static void no_cache_at_all(void **state)
{
	struct place *p = *state;
	struct dcp_version *v;

	p->opts.cache_dir = NULL;
	v = open_version(p);
	check_version(v);
	assert_null(dcp_version_index_path(v));
	dcp_version_close(v);
	assert_int_equal(t_dir_count(&p->dir, ""), 1);
	assert_int_equal(p->warnings, 0);
}

/* ---- a cache that is damaged, forbidden, full or busy ---- */

static void cut_in_half(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(truncate(path, st.st_size / 2), 0);
}

static void make_empty(const char *path)
{
	assert_int_equal(truncate(path, 0), 0);
}

static void overwrite(const char *path)
{
	dcp_auto_fd int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);

	assert_int_equal(write(fd,
			       "not a database, but long enough to be one: "
			       "................................................"
			       "................................................",
			       130),
			 130);
}

static void scribble(const char *path)
{
	dcp_auto_fd int fd = open(path, O_WRONLY | O_CLOEXEC);
	char junk[512];

	memset(junk, 0xa5, sizeof(junk));
	assert_int_equal(pwrite(fd, junk, sizeof(junk), 100), sizeof(junk));
}

static void drop_table(const char *path)
{
	sql(path, "DROP TABLE object");
}

static void add_table(const char *path)
{
	sql(path, "CREATE TABLE more(x)");
}

static void view_for_table(const char *path)
{
	sql(path,
	    "DROP TABLE object; CREATE VIEW object AS SELECT id, key, name, 'int' AS type, "
	    "1 AS nbytes, NULL AS error, path, 'null' AS json FROM tensor");
}

static void lose_facts(const char *path)
{
	sql(path, "DELETE FROM meta WHERE name = 'tensors'");
}

static void lose_version(const char *path)
{
	sql(path, "DELETE FROM meta WHERE name = 'dcpfs_version'");
}

static void lose_file(const char *path)
{
	sql(path, "DELETE FROM file WHERE id = 1");
}

static const struct {
	const char *what;
	void (*damage)(const char *path);
	const char *says;
} damages[] = {
	{ "cut", cut_in_half, "cut: " },
	{ "empty", make_empty, "not an SQLite file" },
	{ "not a database", overwrite, "not an SQLite file" },
	{ "a first page of junk", scribble, "malformed" },
	{ "a table less", drop_table, "its tables are not those of an index" },
	{ "a table more", add_table, "its tables are not those of an index" },
	{ "a view in place of a table", view_for_table, "its tables are not those" },
	{ "a count is lost", lose_facts, "its meta table lacks \"tensors\"" },
	{ "its release is lost", lose_version, "its meta table lacks \"dcpfs_version\"" },
	{ "a file is lost", lose_file, "a row of it is not as written" },
};

static void damaged_table(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(damages); i++) {
		struct place *p;

		t_case(damages[i].what);
		setup((void **)&p);
		assert_true(opens_built(p));
		let_time_pass(p);
		damages[i].damage(index_path(p));
		p->warnings = 0;
		assert_true(opens_built(p));
		assert_int_equal(p->warnings, 1);
		if (!strstr(p->said, damages[i].says))
			fail_msg("said \"%s\", not \"%s\"", p->said, damages[i].says);
		let_time_pass(p); /* what was built in its place is good */
		assert_false(opens_built(p));
		assert_int_equal(p->warnings, 1);
		teardown((void **)&p);
	}
}

static void opens_in_memory(struct place *p, const char *says)
{
	struct dcp_version *v = open_version(p);

	check_version(v);
	assert_null(dcp_version_index_path(v));
	assert_true(dcp_version_was_built(v));
	dcp_version_close(v);
	assert_int_equal(p->warnings, 1);
	if (!strstr(p->said, says))
		fail_msg("said \"%s\", not \"%s\"", p->said, says);
}

static void cache_below_a_file(void **state)
{
	struct place *p = *state;

	t_dir_text(&p->dir, "cache", "a file");
	opens_in_memory(p, "index kept in memory");
}

static void cache_that_may_not_be_written(void **state)
{
	struct place *p = *state;

	if (geteuid() == 0) {
		print_message("           skipped: root may write everywhere\n");
		return;
	}
	t_dir_sub(&p->dir, "cache/dcpfs");
	assert_int_equal(chmod(p->cache, 0500), 0);
	opens_in_memory(p, "Permission denied");
	assert_int_equal(chmod(p->cache, 0700), 0);
}

static void index_that_is_a_directory(void **state)
{
	struct place *p = *state;

	p->opts.index_file = t_dir_path(&p->dir, "sidecar");
	t_dir_sub(&p->dir, "sidecar");
	opens_in_memory(p, "not a file");
}

/* A limit on the size of files is the nearest thing to a full disk that needs no mount. */
static void full_cache(void **state)
{
	struct place *p = *state;
	struct rlimit was, small = { 20000, RLIM_INFINITY };
	void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
	small.rlim_max = was.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	opens_in_memory(p, "index kept in memory");
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
	signal(SIGXFSZ, handler);
	assert_int_equal(t_dir_count(&p->dir, "cache/dcpfs"), 0); /* nothing is left behind */
	assert_int_equal(t_fake.loads, 2);
	p->warnings = 0;
	assert_true(opens_built(p)); /* and next time there is room */
	assert_int_equal(p->warnings, 0);
}

static void another_builds_for_too_long(void **state)
{
	struct place *p = *state;
	char lock[600];
	dcp_auto_fd int fd = -1;

	snprintf(lock, sizeof(lock), "%s.lock", index_path(p));
	assert_int_equal(unlink(index_path(p)), 0);
	fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	p->opts.lock_wait_ms = 50;
	opens_in_memory(p, "another process is still building it");
}

/* Say that the index is being built, and take a while. */
static void build_slowly(void *x)
{
	assert_int_equal(write(*(int *)x, ".", 1), 1);
	usleep(200000);
}

static void another_builds_meanwhile(void **state)
{
	struct place *p = *state;
	int begun[2], status;
	char c;
	pid_t pid;

	assert_int_equal(pipe(begun), 0);
	pid = fork();
	if (pid == 0) {
		t_fake.during = build_slowly;
		t_fake.x = &begun[1];
		_exit(opens_built(p) ? 0 : 2);
	}
	assert_int_equal(read(begun[0], &c, 1), 1);
	assert_false(opens_built(p)); /* waited, and took what the other made */
	assert_int_equal(t_fake.loads, 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	close(begun[0]);
	close(begun[1]);
	assert_int_equal(t_dir_count(&p->dir, "cache/dcpfs"), 1);
}

static void many_race_to_build(void **state)
{
	struct place *p = *state;
	pid_t pids[6];
	int status;

	for (size_t i = 0; i < DCP_LEN(pids); i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			opens_built(
				p); /* a failed assertion ends the child with a signal or 1 */
			_exit(p->warnings ? 2 : 0);
		}
	}
	for (size_t i = 0; i < DCP_LEN(pids); i++) {
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
	assert_int_equal(t_dir_count(&p->dir, "cache/dcpfs"), 1);
	let_time_pass(p);
	assert_false(opens_built(p));
}

/* ---- the checkpoint itself ---- */

static void rewrite_once(void *x)
{
	struct place *p = x;

	if (t_fake.loads == 1)
		grow(p);
}

static void rewrite_always(void *x)
{
	struct place *p = x;

	t_dir_put(&p->dir, "run/step-1/a.shard", NULL, 200 + t_fake.loads);
}

static void changed_while_indexed(void **state)
{
	struct place *p = *state;
	struct dcp_version *v = NULL;
	struct dcp_err err = { 0 };

	t_fake.during = rewrite_once;
	t_fake.x = p;
	assert_true(opens_built(p)); /* the second look agrees with itself */
	assert_int_equal(t_fake.loads, 2);
	t_fake.during = rewrite_always;
	assert_int_equal(dcp_version_open(p->source, &step_1, &p->opts, &v, &err), -ESTALE);
	assert_null(v);
	t_assert_says(&err, "step-1: a.shard was changed");
	assert_int_equal(t_fake.loads, 5);
}

static void adapter_fails(void **state)
{
	struct place *p = *state;
	struct dcp_version *v = NULL;
	struct dcp_err err = { 0 };

	t_fake.fail = -ENOSPC; /* the adapter's, not the disk's: memory would not help */
	assert_int_equal(dcp_version_open(p->source, &step_1, &p->opts, &v, &err), -ENOSPC);
	assert_string_equal(err.msg, "step-1: COMMIT: told to fail");
	assert_int_equal(t_fake.loads, 1);
	assert_int_equal(t_dir_count(&p->dir, "cache/dcpfs"), 0);
	assert_int_equal(p->warnings, 0);
}

static void what_cannot_be_opened(void **state)
{
	struct place *p = *state;
	struct dcp_found f = step_1;
	struct dcp_version *v = NULL;
	struct dcp_err err = { 0 };

	f.complete = false;
	f.why = "no COMMIT";
	assert_int_equal(dcp_version_open(p->source, &f, &p->opts, &v, &err), -EINVAL);
	assert_string_equal(err.msg, "step-1 is not complete: no COMMIT");
	f.complete = true;
	f.where = "step-9";
	assert_int_equal(dcp_version_open(p->source, &f, &p->opts, &v, &err), -ENOENT);
	f.where = "..";
	assert_int_equal(dcp_version_open(p->source, &f, &p->opts, &v, &err), -EXDEV);
	assert_int_equal(dcp_version_open("/nowhere", &f, &p->opts, &v, &err), -ENOENT);
	t_assert_says(&err, "step-1: /nowhere: No such file");
	assert_null(v);
	dcp_version_close(NULL);
}

static void progress_is_passed_on(void **state)
{
	struct place *p = *state;
	struct dcp_progress progress = { count_progress, &p->progress };

	p->opts.progress = &progress;
	assert_true(opens_built(p));
	assert_int_equal(p->progress, 1);
}

static void by_scan_as_a_caller_would(void **state)
{
	struct place *p = *state;
	struct dcp_scan scan;
	struct dcp_version *v;
	struct dcp_err err = { 0 };

	assert_int_equal(dcp_scan(p->source, &scan, &err), 0);
	assert_int_equal(scan.n, 1);
	assert_int_equal(dcp_version_open(p->source, &scan.found[0], &p->opts, &v, &err), 0);
	assert_int_equal(dcp_version_commit_ns(v), scan.found[0].commit_ns);
	dcp_scan_finish(&scan);
	check_version(v); /* nothing of the scan is needed any more */
	dcp_version_close(v);
	assert_int_equal(dcp_scan(t_dir_path(&p->dir, "run/step-1"), &scan, &err), 0);
	assert_true(scan.single);
	assert_int_equal(dcp_version_open(t_dir_path(&p->dir, "run/step-1"), &scan.found[0],
					  &p->opts, &v, &err),
			 0);
	check_version(v);
	dcp_version_close(v);
	dcp_scan_finish(&scan);
	assert_int_equal(t_dir_count(&p->dir, "cache/dcpfs"), 1); /* one directory, one index */
}

int main(void)
{
#define AT_PLACE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		AT_PLACE(built_once_then_cached),
		AT_PLACE(racily_clean_is_not_trusted_twice),
		cmocka_unit_test(stale_table),
		AT_PLACE(a_file_that_was_missing_appears),
		AT_PLACE(sidecar_in_the_checkpoint),
		AT_PLACE(no_cache_at_all),
		cmocka_unit_test(damaged_table),
		AT_PLACE(cache_below_a_file),
		AT_PLACE(cache_that_may_not_be_written),
		AT_PLACE(index_that_is_a_directory),
		AT_PLACE(full_cache),
		AT_PLACE(another_builds_for_too_long),
		AT_PLACE(another_builds_meanwhile),
		AT_PLACE(many_race_to_build),
		AT_PLACE(changed_while_indexed),
		AT_PLACE(adapter_fails),
		AT_PLACE(what_cannot_be_opened),
		AT_PLACE(progress_is_passed_on),
		AT_PLACE(by_scan_as_a_caller_would),
	};
	return cmocka_run_group_tests_name("version", tests, NULL, NULL);
}
