/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A version is opened from the cache when that is true, and indexed otherwise.
 *
 * covers: open, names, store/view/locate
 */
#include "tests/unit/t.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/store/index/index.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "tests/unit/t/version.h"

/* ---- taken from the cache, or not ---- */

static void indexes_are_built_once(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *v;
	struct stat st;
	uint64_t generation;

	v = t_version_open(p);
	assert_true(dcp_version_was_built(v));
	t_version_check(v);
	generation = dcp_version_generation(v);
	dcp_version_close(v);
	t_version_let_time_pass(p);
	t_fake.loads = 0;
	v = t_version_open(p);
	assert_false(dcp_version_was_built(v));
	t_version_check(v);
	assert_int_equal(t_fake.loads, 0);
	assert_int_equal(dcp_version_generation(v), generation);
	assert_int_equal(stat(dcp_version_index_path(v), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	dcp_version_close(v);
	assert_int_equal(stat(p->cache, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	assert_int_equal(t_dir_count(&p->dir, "cache/dcpfs"), 1); /* no lock, no temp */
	assert_int_equal(p->warnings, 0);
	p->opts.rebuild = true;
	assert_true(t_version_opens_built(p));
}

static void racily_clean_is_not_trusted_twice(void **state)
{
	struct t_version *p = *state;
	struct stat st;
	char young[128];

	assert_int_equal(fstatat(p->dir.fd, "run/step-1/COMMIT", &st, 0), 0);
	snprintf(young, sizeof(young), "UPDATE meta SET value = %lld WHERE name = 'created_ns'",
		 (st.st_ctim.tv_sec + 1) * 1000000000ll + st.st_ctim.tv_nsec);
	t_sql(t_version_index_path(p), young); /* a second after the files */
	assert_true(t_version_opens_built(p));
	t_version_let_time_pass(p);
	assert_false(t_version_opens_built(p));
}

static void touch(struct t_version *p)
{
	t_dir_touch(&p->dir, "run/step-1/a.shard", 1000000000);
}

static void grow(struct t_version *p)
{
	t_dir_put(&p->dir, "run/step-1/a.shard", NULL, 101);
}

static void replace(struct t_version *p)
{
	t_dir_put(&p->dir, "other", NULL, 100);
	assert_int_equal(renameat(p->dir.fd, "other", p->dir.fd, "run/step-1/a.shard"), 0);
}

static void new_name(struct t_version *p)
{
	t_dir_text(&p->dir, "run/step-1/new", "");
}

static void other_format(struct t_version *p)
{
	t_sql(t_version_index_path(p), "UPDATE meta SET value = 'fake2' WHERE name = 'format'");
}

static void other_release(struct t_version *p)
{
	t_sql(t_version_index_path(p),
	      "UPDATE meta SET value = '0.0.1' WHERE name = 'dcpfs_version'");
}

static void other_schema(struct t_version *p)
{
	t_sql(t_version_index_path(p), "PRAGMA user_version = 77");
}

static void nothing(struct t_version *p)
{
	(void)p;
}

static const struct {
	const char *what;
	void (*change)(struct t_version *p);
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

static void stale_indexes_are_built_again(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(changes); i++) {
		struct t_version *p;

		t_case(changes[i].what);
		t_version_setup((void **)&p);
		assert_true(t_version_opens_built(p));
		t_version_let_time_pass(p);
		changes[i].change(p);
		assert_int_equal(t_version_opens_built(p), changes[i].built);
		assert_int_equal(p->warnings, 0); /* staleness gives no warning */
		t_version_teardown((void **)&p);
	}
}

static void changed_files_make_a_version_stale(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *v = t_version_open(p);
	struct dcp_err err = { 0 };
	uint64_t generation = dcp_version_generation(v);

	assert_int_equal(dcp_version_check(v, &err), 0);
	t_dir_put(&p->dir, "run/step-1/gone.shard", NULL, 4);
	assert_int_equal(dcp_version_check(v, &err), -ESTALE);
	t_assert_says(&err, "gone.shard has appeared");
	dcp_version_close(v);
	v = t_version_open(p);
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

static void the_index_may_be_a_sidecar(void **state)
{
	struct t_version *p = *state;

	p->opts.index_file = t_dir_path(&p->dir, "run/step-1/index.dcpx");
	assert_true(t_version_opens_built(p));
	t_version_let_time_pass(p); /* its own name beside the shards changes nothing */
	assert_false(t_version_opens_built(p));
	assert_int_equal(access(p->opts.index_file, F_OK), 0);
	assert_int_equal(access(p->cache, F_OK), -1);
}

static void versions_open_without_a_cache(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *v;

	p->opts.cache_dir = NULL;
	v = t_version_open(p);
	t_version_check(v);
	assert_null(dcp_version_index_path(v));
	dcp_version_close(v);
	assert_int_equal(t_dir_count(&p->dir, ""), 1);
	assert_int_equal(p->warnings, 0);
}

/* ---- a cache that is damaged ---- */

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
	t_sql(path, "DROP TABLE object");
}

static void add_table(const char *path)
{
	t_sql(path, "CREATE TABLE more(x)");
}

static void view_for_table(const char *path)
{
	t_sql(path,
	      "DROP TABLE object; CREATE VIEW object AS SELECT id, key, name, 'int' AS type, "
	      "1 AS nbytes, NULL AS error, path, 'null' AS json FROM tensor");
}

static void lose_facts(const char *path)
{
	t_sql(path, "DELETE FROM meta WHERE name = 'tensors'");
}

static void lose_version(const char *path)
{
	t_sql(path, "DELETE FROM meta WHERE name = 'dcpfs_version'");
}

static void lose_file(const char *path)
{
	t_sql(path, "DELETE FROM file WHERE id = 1");
}

static const struct {
	const char *what;
	void (*damage)(const char *path);
	const char *says;
} damages[] = {
	{ "cut", cut_in_half, "cut: " },
	{ "empty", make_empty, "not an SQLite file" },
	{ "not a database", overwrite, "not an SQLite file" },
	{ "a first page of junk", scribble, "damaged since it was written" },
	{ "a table less", drop_table, "its tables are not those of an index" },
	{ "a table more", add_table, "its tables are not those of an index" },
	{ "a view in place of a table", view_for_table, "its tables are not those" },
	{ "a count is lost", lose_facts, "its meta table lacks \"tensors\"" },
	{ "its release is lost", lose_version, "its meta table lacks \"dcpfs_version\"" },
	{ "a file is lost", lose_file, "found a damaged row" },
};

static void damaged_indexes_are_built_again(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(damages); i++) {
		struct t_version *p;

		t_case(damages[i].what);
		t_version_setup((void **)&p);
		assert_true(t_version_opens_built(p));
		t_version_let_time_pass(p);
		damages[i].damage(t_version_index_path(p));
		p->warnings = 0;
		assert_true(t_version_opens_built(p));
		assert_int_equal(p->warnings, 1);
		if (!strstr(p->said, damages[i].says))
			fail_msg("said \"%s\", not \"%s\"", p->said, damages[i].says);
		t_version_let_time_pass(p); /* what was built in its place is good */
		assert_false(t_version_opens_built(p));
		assert_int_equal(p->warnings, 1);
		t_version_teardown((void **)&p);
	}
}

/* ---- the checkpoint itself ---- */

static void rewrite_once(void *x)
{
	struct t_version *p = x;

	if (t_fake.loads == 1)
		grow(p);
}

static void rewrite_always(void *x)
{
	struct t_version *p = x;

	t_dir_put(&p->dir, "run/step-1/a.shard", NULL, 200 + t_fake.loads);
}

static void changes_while_indexing_are_noticed(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *v = NULL;
	struct dcp_err err = { 0 };

	t_fake.during = rewrite_once;
	t_fake.x = p;
	assert_true(t_version_opens_built(p)); /* the second look agrees with itself */
	assert_int_equal(t_fake.loads, 2);
	t_fake.during = rewrite_always;
	assert_int_equal(dcp_version_open(p->source, &t_version_step_1, &p->opts, &v, &err),
			 -ESTALE);
	assert_null(v);
	t_assert_says(&err, "step-1: a.shard was changed");
	assert_int_equal(t_fake.loads, 5);
}

static void failures_of_adapters_are_returned(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *v = NULL;
	struct dcp_err err = { 0 };

	t_fake.fail = -ENOSPC; /* the adapter's, not the disk's: memory would not help */
	assert_int_equal(dcp_version_open(p->source, &t_version_step_1, &p->opts, &v, &err),
			 -ENOSPC);
	assert_string_equal(err.msg, "step-1: COMMIT: told to fail");
	assert_int_equal(t_fake.loads, 1);
	assert_int_equal(t_dir_count(&p->dir, "cache/dcpfs"), 0);
	assert_int_equal(p->warnings, 0);
}

static void unopenable_versions_are_reported(void **state)
{
	struct t_version *p = *state;
	struct dcp_found f = t_version_step_1;
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

static void count_progress(void *ctx, uint64_t done, uint64_t total, const char *what)
{
	(void)done, (void)total, (void)what;
	++*(unsigned *)ctx;
}

static void progress_is_passed_on(void **state)
{
	struct t_version *p = *state;
	struct dcp_progress progress = { count_progress, &p->progress };

	p->opts.progress = &progress;
	assert_true(t_version_opens_built(p));
	assert_int_equal(p->progress, 1);
}

static void scanned_versions_are_opened(void **state)
{
	struct t_version *p = *state;
	struct dcp_scan scan;
	struct dcp_version *v;
	struct dcp_err err = { 0 };

	assert_int_equal(dcp_scan(p->source, &scan, &err), 0);
	assert_int_equal(scan.n, 1);
	assert_int_equal(dcp_version_open(p->source, &scan.found[0], &p->opts, &v, &err), 0);
	dcp_scan_finish(&scan);
	t_version_check(v); /* nothing of the scan is needed any more */
	dcp_version_close(v);
	assert_int_equal(dcp_scan(t_dir_path(&p->dir, "run/step-1"), &scan, &err), 0);
	assert_true(scan.single);
	assert_int_equal(dcp_version_open(t_dir_path(&p->dir, "run/step-1"), &scan.found[0],
					  &p->opts, &v, &err),
			 0);
	t_version_check(v);
	dcp_version_close(v);
	dcp_scan_finish(&scan);
	assert_int_equal(t_dir_count(&p->dir, "cache/dcpfs"), 1); /* one directory, one index */
}

static void only_cached_indexes_are_opened(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *v = NULL;
	struct dcp_err err = { 0 };

	p->opts.cached_only = true;
	assert_int_equal(dcp_version_open(p->source, &t_version_step_1, &p->opts, &v, &err),
			 -EAGAIN);
	t_assert_says(&err, "step-1: not indexed yet");
	assert_int_equal(t_fake.loads, 0);
	p->opts.cached_only = false;
	t_version_let_time_pass(p);
	p->opts.cached_only = true;
	assert_false(t_version_opens_built(p));
	t_case("what is there is not true any more");
	touch(p);
	assert_int_equal(dcp_version_open(p->source, &t_version_step_1, &p->opts, &v, &err),
			 -EAGAIN);
	assert_int_equal(t_fake.loads, 1);
}

/* Says stop from the @left-th question on. */
struct patience {
	unsigned left, asked;
};

static bool stop(void *ctx)
{
	struct patience *p = ctx;

	p->asked++;
	return p->asked > p->left;
}

static void be_patient(struct t_version *p, struct patience *patience, unsigned left)
{
	*patience = (struct patience){ .left = left };
	p->opts.stop = stop;
	p->opts.stop_ctx = patience;
}

/* Whenever that is said: nothing is left of it, and the next one succeeds. */
static void indexing_is_called_off(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *v = NULL;
	struct dcp_err err = { 0 };
	struct patience patience;
	unsigned n = 0;

	for (;; n++) {
		be_patient(p, &patience, n);
		if (dcp_version_open(p->source, &t_version_step_1, &p->opts, &v, &err) == 0)
			break;
		assert_int_equal(err.code, -ECANCELED);
		t_assert_says(&err, "step-1: indexing was called off");
		assert_int_equal(t_dir_count(&p->dir, "cache/dcpfs"), 0);
	}
	assert_true(n >= 9); /* files, tensors, facts, the lock, the end */
	t_version_check(v);
	dcp_version_close(v);
	assert_int_equal(p->warnings, 0);
}

static void waiting_is_called_off(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *v = NULL;
	struct patience patience;
	char lock[600];
	int fd;

	snprintf(lock, sizeof(lock), "%s.lock", t_version_index_path(p));
	fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	p->opts.rebuild = true;
	be_patient(p, &patience, 2);
	assert_int_equal(dcp_version_open(p->source, &t_version_step_1, &p->opts, &v, NULL),
			 -ECANCELED);
	assert_int_equal(p->warnings, 0);
	close(fd);
}

/* Of two runs of the same length in one box, the copy that is read is of the run that is lost. */
static void the_copy_of_a_lost_run_is_read(void **state)
{
	struct t_version *p = *state;
	char runs[100], got[100];
	struct dcp_version *v;
	struct dcp_view *view;
	struct dcp_err err = { 0 };

	memset(runs, 'a', 50);
	memset(runs + 50, 'b', 50);
	t_dir_put(&p->dir, "run/step-1/a.shard", runs, 50);
	t_dir_put(&p->dir, "run/step-1/b.shard", runs + 50, 50);
	t_dir_put(&p->dir, "run/step-1/c.shard", runs, 100);
	t_dir_text(&p->dir, "run/step-1/COMMIT",
		   "x a.shard 0 50\n= c.shard 0 50\n+ b.shard 0 50\n= c.shard 50 50\n");
	v = t_version_open(p);
	t_dir_put(&p->dir, "run/step-1/b.shard", runs, 10);
	if (dcp_view_open(v, 1, DCP_AS_RAW, NULL, &view, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(dcp_view_size(view), 100);
	assert_int_equal(dcp_view_read(view, 0, got, 100), 0);
	assert_memory_equal(got, runs, 100);
	dcp_view_close(view);
	dcp_version_close(v);
}

T_TESTS()
{
#define AT_PLACE(f) cmocka_unit_test_setup_teardown(f, t_version_setup, t_version_teardown)
	const struct CMUnitTest tests[] = {
		AT_PLACE(indexes_are_built_once),
		AT_PLACE(racily_clean_is_not_trusted_twice),
		cmocka_unit_test(stale_indexes_are_built_again),
		AT_PLACE(changed_files_make_a_version_stale),
		AT_PLACE(the_index_may_be_a_sidecar),
		AT_PLACE(versions_open_without_a_cache),
		cmocka_unit_test(damaged_indexes_are_built_again),
		AT_PLACE(changes_while_indexing_are_noticed),
		AT_PLACE(failures_of_adapters_are_returned),
		AT_PLACE(unopenable_versions_are_reported),
		AT_PLACE(progress_is_passed_on),
		AT_PLACE(scanned_versions_are_opened),
		AT_PLACE(only_cached_indexes_are_opened),
		AT_PLACE(indexing_is_called_off),
		AT_PLACE(waiting_is_called_off),
		AT_PLACE(the_copy_of_a_lost_run_is_read),
	};
	return cmocka_run_group_tests_name("version", tests, NULL, NULL);
}
