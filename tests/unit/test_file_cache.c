/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache of files: what stays in it, what goes first, and what that costs.
 */
#include "tests/unit/t.h"

#include <stdlib.h>
#include <time.h>

#include "fs/file/file_int.h"
#include "fs/fs.h"

enum { MANY = 60000 };

static struct dcpfs fs;

static struct dcpfs_file *insert(uint64_t ino, struct dcpfs_version *ver)
{
	struct dcpfs_file *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	f->ino = ino;
	f->refs = 1;
	f->ver = ver;
	if (ver)
		ver->refs++;
	return dcpfs_cache_insert(&fs, f);
}

static bool is_cached(uint64_t ino)
{
	struct dcpfs_file *f = dcpfs_cache_find(&fs, ino);

	if (f)
		dcpfs_file_put(&fs, f);
	return f != NULL;
}

/* More open files than the limit: none goes, and an insert does not walk over them. */
static void open_files_cost_nothing(void **state)
{
	static struct dcpfs_file *open[MANY];
	clock_t began = clock();

	(void)state;
	fs.files = dcpfs_cache_create();
	for (uint64_t i = 0; i < MANY; i++)
		open[i] = insert(i + 1, NULL);
	for (uint64_t i = 0; i < MANY; i++)
		assert_true(is_cached(i + 1));
	assert_in_range((clock() - began) / CLOCKS_PER_SEC, 0, 5);
	for (size_t i = 0; i < MANY; i++)
		dcpfs_file_put(&fs, open[i]);
	dcpfs_file_put(&fs, insert(MANY + 1, NULL));
	assert_false(is_cached(1));
	assert_false(is_cached(MANY - DCPFS_CACHE_FILES + 1));
	assert_true(is_cached(MANY - DCPFS_CACHE_FILES + 2));
	assert_true(is_cached(MANY + 1));
	dcpfs_cache_destroy(&fs);
}

/* The one whose use ended longest ago goes first; using it again makes it the last. */
static void the_longest_unused_goes_first(void **state)
{
	(void)state;
	fs.files = dcpfs_cache_create();
	for (uint64_t i = 1; i <= DCPFS_CACHE_FILES; i++)
		dcpfs_file_put(&fs, insert(i, NULL));
	assert_true(is_cached(1));
	dcpfs_file_put(&fs, insert(5000, NULL));
	assert_true(is_cached(1));
	assert_false(is_cached(2));
	assert_true(is_cached(3));
	dcpfs_cache_destroy(&fs);
}

/* A version knows how many of its files are in use, and of its ranks; one that leaves takes
 * what is idle along. */
static void versions_count_their_files(void **state)
{
	struct dcpfs_version ver = { .refs = 1 }, rank = { .refs = 1, .of = &ver };
	struct dcpfs_file *a, *b, *c;

	(void)state;
	fs.files = dcpfs_cache_create();
	a = insert(1, &ver);
	b = insert(2, &ver);
	c = insert(3, &rank);
	assert_int_equal(ver.open, 3);
	dcpfs_file_put(&fs, a);
	assert_int_equal(ver.open, 2);
	a = dcpfs_cache_find(&fs, 1);
	assert_int_equal(ver.open, 3);
	dcpfs_file_hold(b);
	dcpfs_file_put(&fs, b);
	dcpfs_file_put(&fs, b);
	dcpfs_file_put(&fs, c);
	assert_int_equal(ver.open, 1);
	dcpfs_cache_forget(&fs, &rank, true);
	assert_int_equal(rank.refs, 1);
	dcpfs_cache_forget(&fs, &ver, true);
	assert_int_equal(ver.refs, 2); /* b is gone, a is still open */
	assert_false(is_cached(1));
	dcpfs_file_put(&fs, a);
	assert_int_equal(ver.refs, 1);
	dcpfs_cache_destroy(&fs);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open_files_cost_nothing),
		cmocka_unit_test(the_longest_unused_goes_first),
		cmocka_unit_test(versions_count_their_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
