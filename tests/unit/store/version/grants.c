/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covers: origin/dir/rights
 */
#include "tests/unit/t.h"
#include "tests/unit/t/parse/dir.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/origin/origin.h"
#include "core/store/version/version.h"

/* A source with one version: two shards, one in a directory of its own, one by a link, and a
 * sidecar. Its directories are below one that is private. */
static struct t_dir dir;

static struct dcp_file_id ids[] = {
	{ .name = "a.distcp", .ino = 1 },
	{ .name = "sub/b.distcp", .ino = 1 },
	{ .name = "link.distcp", .ino = 1 },
	{ .name = "gone.distcp", .ino = 0 },
	{ .name = "config.json", .ino = 1, .shown = true },
};

/* Directories are made where everybody may list, or everything would be private. */
static bool find_open(void)
{
	const char *const places[] = { getenv("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm" };
	struct dcp_grants *g;
	bool open = false;

	for (size_t i = 0; i < DCP_LEN(places) && !open; i++) {
		if (!places[i] || access(places[i], W_OK) < 0)
			continue;
		assert_int_equal(dcp_grants_source(places[i], &g), 0);
		open = g->way.mode == DCP_RIGHTS_ALL.mode;
		dcp_grants_free(g);
		setenv("TMPDIR", places[i], 1);
	}
	return open;
}

static int set_up(void **state)
{
	static const char *const names[] = { "src/v/a.distcp", "src/v/sub/b.distcp",
					     "src/v/hid/c.distcp", "src/v/config.json" };

	(void)state;
	umask(022);
	t_dir_make(&dir, "grants");
	chmod(dir.root, 0755);
	for (size_t i = 0; i < DCP_LEN(names); i++)
		t_dir_text(&dir, names[i], "x");
	assert_int_equal(symlink("hid/c.distcp", t_dir_path(&dir, "src/v/link.distcp")), 0);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	t_dir_remove(&dir);
	return 0;
}

static struct dcp_grants *of_source(void)
{
	struct dcp_grants *g;

	assert_int_equal(dcp_grants_source(t_dir_path(&dir, "src"), &g), 0);
	return g;
}

/* Of the version, its files looked at. */
static struct dcp_grants *look(void)
{
	struct dcp_grants *source = of_source(), *g;
	struct dcp_site at;

	assert_int_equal(dcp_grants_version(source, "v", &g), 0);
	at = dcp_site_at(open(t_dir_path(&dir, "src/v"), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	assert_int_equal(dcp_grants_files(g, &at, ids, DCP_LEN(ids)), 0);
	dcp_site_close(&at);
	dcp_grants_free(source);
	return g;
}

static void change(const char *name, mode_t mode)
{
	assert_int_equal(chmod(t_dir_path(&dir, name), mode), 0);
}

static void public_files_are_open_to_all(void **state)
{
	struct dcp_grants *g = look();

	(void)state;
	assert_int_equal(g->way.mode, 0444);
	assert_int_equal(g->data.mode, 0444);
	assert_int_equal(g->beside.mode, 0444);
	assert_false(g->mixed);
	assert_false(dcp_grants_changed(g));
	dcp_grants_free(g);
}

static void private_paths_restrict_their_users(void **state)
{
	/* what is made private, and the modes of: way, data, the five files */
	static const struct {
		const char *name;
		mode_t mode, before;
		uint32_t way, data, files[DCP_LEN(ids)];
		bool changed;
	} rows[] = {
		{ "src/v/a.distcp",
		  0600,
		  0644,
		  0444,
		  0400,
		  { 0400, 0444, 0444, 0444, 0444 },
		  false },
		{ "src/v/sub/b.distcp",
		  0640,
		  0644,
		  0444,
		  0440,
		  { 0444, 0440, 0444, 0444, 0444 },
		  false },
		{ "src/v/sub", 0700, 0755, 0444, 0400, { 0444, 0400, 0444, 0444, 0444 }, true },
		{ "src/v/hid", 0750, 0755, 0444, 0440, { 0444, 0444, 0440, 0444, 0444 }, true },
		{ "src/v/hid/c.distcp",
		  0600,
		  0644,
		  0444,
		  0400,
		  { 0444, 0444, 0400, 0444, 0444 },
		  false },
		{ "src/v/config.json",
		  0600,
		  0644,
		  0444,
		  0444,
		  { 0444, 0444, 0444, 0444, 0400 },
		  false },
		{ "src/v", 0711, 0755, 0400, 0400, { 0400, 0400, 0400, 0400, 0400 }, true },
		{ "src", 0750, 0755, 0440, 0440, { 0440, 0440, 0440, 0440, 0440 }, false },
		{ "", 0700, 0755, 0400, 0400, { 0400, 0400, 0400, 0400, 0400 }, false },
		{ "", 0711, 0755, 0444, 0444, { 0444, 0444, 0444, 0444, 0444 }, false },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_grants *before = look(), *g;

		t_case(*rows[i].name ? rows[i].name : "above the source");
		change(rows[i].name, rows[i].mode);
		assert_int_equal(dcp_grants_changed(before), rows[i].changed);
		g = look();
		assert_int_equal(g->way.mode, rows[i].way);
		assert_int_equal(g->data.mode, rows[i].data);
		for (size_t k = 0; k < DCP_LEN(ids); k++)
			assert_int_equal(g->files[k].mode, rows[i].files[k]);
		dcp_grants_free(before);
		dcp_grants_free(g);
		change(rows[i].name, rows[i].before);
	}
}

static void versions_without_files_are_open_to_none(void **state)
{
	struct dcp_grants *source = of_source(), *g;

	(void)state;
	assert_int_equal(dcp_grants_version(source, "v", &g), 0);
	assert_int_equal(g->way.mode, 0444);
	assert_true(dcp_rights_equal(g->data, dcp_rights_alone()));
	dcp_grants_free(g);
	t_case("one that is gone");
	assert_int_equal(dcp_grants_version(source, "none", &g), 0);
	assert_true(dcp_rights_equal(g->way, dcp_rights_alone()));
	dcp_grants_free(g);
	dcp_grants_free(source);
	t_case("no source");
	assert_int_equal(dcp_grants_source("/nonexistent", &source), 0);
	assert_true(dcp_rights_equal(source->way, dcp_rights_alone()));
	dcp_grants_free(source);
}

static void rights_of_a_file_include_its_path(void **state)
{
	const char *path = t_dir_path(&dir, "src/v/a.distcp");

	(void)state;
	assert_int_equal(dcp_grants_of_file(path).mode, 0444);
	change("src/v", 0711); /* it may be passed */
	assert_int_equal(dcp_grants_of_file(path).mode, 0444);
	change("src/v/a.distcp", 0640);
	assert_int_equal(dcp_grants_of_file(path).mode, 0440);
	change("src", 0700);
	assert_int_equal(dcp_grants_of_file(path).mode, 0400);
	assert_true(dcp_rights_equal(dcp_grants_of_file("/nonexistent/x"), dcp_rights_alone()));
	change("src", 0755);
	change("src/v", 0755);
}

/* A file as the source: what else lies beside it does not count, nor who may list that. */
static void a_file_as_the_source_counts_alone(void **state)
{
	struct dcp_grants *source, *g;
	struct dcp_site at = dcp_site_at(
		open(t_dir_path(&dir, "src/v"), O_RDONLY | O_DIRECTORY | O_CLOEXEC));

	(void)state;
	change("src/v", 0711);
	assert_int_equal(dcp_grants_source(t_dir_path(&dir, "src/v/a.distcp"), &source), 0);
	assert_int_equal(source->way.mode, 0444);
	assert_int_equal(dcp_grants_version(source, "", &g), 0);
	assert_int_equal(dcp_grants_files(g, &at, ids, 1), 0);
	assert_int_equal(g->data.mode, 0444);
	dcp_grants_free(g);
	dcp_grants_free(source);
	dcp_site_close(&at);
	change("src/v", 0755);
}

static void access_lists_give_rights(void **state)
{
	/* user::rw- user:1234:--- group::r-- mask::r-- other::r-- */
	static const unsigned char list[] = {
		2, 0,    0,    0,    1,    0,    6,  0, 0xff, 0xff, 0xff, 0xff, 2,    0,    0,
		0, 0xd2, 0x04, 0,    0,    4,    0,  4, 0,    0xff, 0xff, 0xff, 0xff, 16,   0,
		4, 0,    0xff, 0xff, 0xff, 0xff, 32, 0, 4,    0,    0xff, 0xff, 0xff, 0xff,
	};
	struct dcp_grants *g;

	(void)state;
	if (setxattr(t_dir_path(&dir, "src/v/a.distcp"), "system.posix_acl_access", list,
		     sizeof(list), 0) < 0) {
		print_message("           left out: no access control lists here: %s\n",
			      strerror(errno));
		skip();
	}
	g = look();
	assert_int_equal(g->files[0].uid, 1234);
	assert_int_equal(g->files[0].mode, 0044);
	assert_int_equal(g->data.mode, 0044);
	assert_true(g->mixed);
	dcp_grants_free(g);
}

/* Below a root directory of mode 0700 all sources are private. */
static void nothing_is_open_to_all(void **state)
{
	(void)state;
	skip();
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(public_files_are_open_to_all, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(private_paths_restrict_their_users, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(versions_without_files_are_open_to_none, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(a_file_as_the_source_counts_alone, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(rights_of_a_file_include_its_path, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(access_lists_give_rights, set_up, tear_down),
	};

	const struct CMUnitTest none[] = { cmocka_unit_test(nothing_is_open_to_all) };

	return find_open() ? cmocka_run_group_tests(tests, NULL, NULL)
			   : cmocka_run_group_tests(none, NULL, NULL);
}
