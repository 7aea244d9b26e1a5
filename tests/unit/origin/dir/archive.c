/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Archives seen as directories: listing, opening, and where members really lie.
 * covers: dir
 */
#include "tests/unit/t.h"

#include <unistd.h>

#include "core/origin/dir/dir.h"
#include "tests/unit/t/fault.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/tar.h"

struct fixture {
	struct t_dir tree;
	struct dcp_dir outer;
	struct dcp_archive *a;
	struct t_tar first, second;
};

static void add_tar(struct fixture *f, const char *name, const struct t_tar *t)
{
	struct dcp_input in = { 0 };
	struct dcp_err err = { 0 };

	t_dir_put(&f->tree, name, t->b.p, t->b.n);
	assert_int_equal(dcp_dir_input(&f->outer, name, &in, &err), 0);
	if (dcp_archive_add_tar(f->a, &in, &err) < 0)
		fail_msg("%s", err.msg);
	assert_null(in.blob.ops); /* taken */
}

/*
 *	0.tar   states.pt "S"  ds/model "M0"  ds/optim.0 "O0"  ds/deep/x "X"
 *	1.tar   ds/optim.1 "O1"  ds/model "M1" (the first counts)
 *	file    "whole"
 */
static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct dcp_input in = { 0 };

	t_dir_make(&f->tree, "dir_archive");
	assert_int_equal(dcp_dir_open(f->tree.root, &f->outer, NULL), 0);
	assert_int_equal(dcp_archive_create(&f->a), 0);
	t_tar_add(&f->first, "states.pt", "S", 1);
	t_tar_add(&f->first, "ds/model", "M0", 2);
	t_tar_add(&f->first, "ds/optim.0", "O0", 2);
	t_tar_add(&f->first, "ds/deep/x", "X", 1);
	t_tar_end(&f->first);
	add_tar(f, "0.tar", &f->first);
	t_tar_add(&f->second, "ds/optim.1", "O1", 2);
	t_tar_add(&f->second, "ds/model", "M1", 2);
	t_tar_end(&f->second);
	add_tar(f, "1.tar", &f->second);
	t_dir_put(&f->tree, "file", "whole", 5);
	assert_int_equal(dcp_dir_input(&f->outer, "file", &in, NULL), 0);
	assert_int_equal(dcp_archive_add_file(f->a, &in, "file", NULL), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	dcp_archive_close(f->a);
	dcp_dir_close(&f->outer);
	dcp_buf_finish(&f->first.b);
	dcp_buf_finish(&f->second.b);
	t_dir_remove(&f->tree);
	free(f);
	return 0;
}

static void check_names(const struct dcp_dir *d, const char *want)
{
	char names[256] = "";

	for (size_t i = 0; i < d->n; i++) {
		size_t n = strlen(names);

		snprintf(names + n, sizeof(names) - n, "%s%s%s", i ? " " : "",
			 d->entries[i].name, d->entries[i].is_dir ? "/" : "");
		assert_ptr_equal(dcp_dir_find(d, d->entries[i].name), &d->entries[i]);
	}
	assert_string_equal(names, want);
	assert_int_equal(d->at.fd, -1);
}

static void check_input(const struct dcp_dir *d, const char *name, const char *want)
{
	struct dcp_input in = { 0 };
	struct dcp_err err = { 0 };
	char got[16] = { 0 };

	if (dcp_dir_input(d, name, &in, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(in.src.size, strlen(want));
	assert_int_equal(dcp_source_read(&in.src, 0, got, strlen(want)), 0);
	assert_string_equal(got, want);
	dcp_input_close(&in);
}

static void members_are_listed_and_opened(void **state)
{
	struct fixture *f = *state;
	struct dcp_dir top, ds, deep;
	struct dcp_err err = { 0 };
	struct dcp_input in = { 0 };

	assert_int_equal(dcp_dir_of_archive(f->a, "0.tar", &top, &err), 0);
	check_names(&top, "ds/ file states.pt");
	assert_int_equal(dcp_dir_find(&top, "file")->size, 5);
	check_input(&top, "states.pt", "S");
	check_input(&top, "ds/model", "M0");
	check_input(&top, "ds/deep/x", "X");
	check_input(&top, "file", "whole");

	assert_int_equal(dcp_dir_open_at(&top, "ds", &ds, &err), 0);
	assert_string_equal(ds.path, "0.tar/ds");
	check_names(&ds, "deep/ model optim.0 optim.1");
	check_input(&ds, "optim.1", "O1");
	assert_int_equal(dcp_dir_open_at(&ds, "deep", &deep, &err), 0);
	check_names(&deep, "x");
	check_input(&deep, "x", "X");
	dcp_dir_close(&deep);

	t_case("what cannot be opened");
	assert_int_equal(dcp_dir_open_at(&top, "dee", &deep, &err), -ENOENT);
	assert_int_equal(dcp_dir_open_at(&top, "file", &deep, &err), -ENOTDIR);
	assert_int_equal(dcp_dir_open_at(&top, "..", &deep, &err), -EXDEV);
	assert_int_equal(dcp_dir_open_at(&ds, "mod", &deep, &err), -ENOENT);
	err = (struct dcp_err){ 0 };
	assert_int_equal(dcp_dir_input(&ds, "states.pt", &in, &err), -ENOENT);
	t_assert_says(&err, "states.pt: no file of that name in the archive");
	assert_int_equal(dcp_dir_input(&ds, "../states.pt", &in, NULL), -EXDEV);
	assert_int_equal(dcp_dir_input(&top, "ds", &in, NULL), -ENOENT);
	assert_int_equal(dcp_dir_input(&top, "/etc/passwd", &in, NULL), -EXDEV);
	assert_int_equal(dcp_dir_input(&top, "", &in, NULL), -EINVAL);
	dcp_dir_close(&ds);
	dcp_dir_close(&top);
}

static void members_have_places(void **state)
{
	struct fixture *f = *state;
	struct dcp_dir top, ds;
	uint32_t input;
	uint64_t off;

	assert_int_equal(dcp_dir_of_archive(f->a, "x", &top, NULL), 0);
	assert_int_equal(dcp_dir_open_at(&top, "ds", &ds, NULL), 0);
	assert_int_equal(dcp_archive_find(&top, "ds/model", &input, &off, NULL), 0);
	assert_int_equal(input, 0);
	assert_int_equal(off, f->first.data[1]);
	assert_int_equal(dcp_archive_find(&ds, "optim.1", &input, &off, NULL), 0);
	assert_int_equal(input, 1);
	assert_int_equal(off, f->second.data[0]);
	assert_int_equal(dcp_archive_find(&top, "file", &input, &off, NULL), 0);
	assert_int_equal(input, 2);
	assert_int_equal(off, 0);
	assert_int_equal(dcp_archive_find(&ds, "file", &input, &off, NULL), -ENOENT);
	dcp_dir_close(&ds);
	dcp_dir_close(&top);
}

static bool is_model(void *ctx, const struct dcp_dirent *e)
{
	(void)ctx;
	return strcmp(e->name, "model") == 0;
}

static void chosen_members_are_listed(void **state)
{
	struct fixture *f = *state;
	struct dcp_dir top, ds, part;

	assert_int_equal(dcp_dir_of_archive(f->a, "x", &top, NULL), 0);
	assert_int_equal(dcp_dir_open_at(&top, "ds", &ds, NULL), 0);
	assert_int_equal(dcp_dir_only(&ds, is_model, NULL, &part), 0);
	dcp_dir_close(&ds);
	dcp_dir_close(&top);
	check_names(&part, "model");
	check_input(&part, "model", "M0");
	dcp_dir_close(&part);
}

static void odd_archives_are_opened(void **state)
{
	struct t_tar t = { 0 };
	struct dcp_archive *a;
	struct t_dir tree;
	struct dcp_dir outer, top;
	struct dcp_input in = { 0 };
	struct dcp_err err = { 0 };

	(void)state;
	t_dir_make(&tree, "dir_archive");
	assert_int_equal(dcp_dir_open(tree.root, &outer, NULL), 0);

	t_case("no memory");
	t_fault_memory = 1;
	assert_int_equal(dcp_archive_create(&a), -ENOMEM);

	t_case("nothing in it");
	assert_int_equal(dcp_archive_create(&a), 0);
	assert_int_equal(dcp_dir_of_archive(a, "none", &top, NULL), 0);
	assert_int_equal(top.n, 0);
	assert_null(dcp_dir_find(&top, "x"));
	dcp_dir_close(&top);

	t_case("a file that is a directory, too: the file counts");
	t_tar_add(&t, "a/b", "B", 1);
	t_tar_add(&t, "a.b", "AB", 2);
	t_tar_add(&t, "a", "A", 1);
	t_tar_add(&t, "a/c", "C", 1);
	t_tar_end(&t);
	t_dir_put(&tree, "t", t.b.p, t.b.n);
	assert_int_equal(dcp_dir_input(&outer, "t", &in, NULL), 0);
	assert_int_equal(dcp_archive_add_tar(a, &in, &err), 0);
	assert_int_equal(dcp_dir_of_archive(a, "t", &top, NULL), 0);
	check_names(&top, "a a.b");
	assert_int_equal(dcp_dir_find(&top, "a")->size, 1);
	dcp_dir_close(&top);

	t_case("no tar");
	t_dir_put(&tree, "no", "what is this", 12);
	assert_int_equal(dcp_dir_input(&outer, "no", &in, NULL), 0);
	assert_int_equal(dcp_archive_add_tar(a, &in, &err), -EBADMSG);
	assert_null(in.blob.ops);
	dcp_archive_close(a);
	dcp_archive_close(NULL);
	dcp_dir_close(&outer);
	dcp_buf_finish(&t.b);
	t_dir_remove(&tree);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		T(members_are_listed_and_opened),
		T(members_have_places),
		T(chosen_members_are_listed),
		cmocka_unit_test(odd_archives_are_opened),
	};

	return cmocka_run_group_tests_name("dir_archive", tests, NULL, NULL);
}
