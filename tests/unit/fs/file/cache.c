/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covers: model
 *
 * The cache of files: what stays in it, what goes first, and what that costs. Where in
 * model.safetensors which part lies.
 */
#include "tests/unit/t.h"

#include <stdlib.h>
#include <time.h>

#include "fs/file/file_int.h"
#include "fs/fs.h"

enum { MANY = 60000 };

static struct dcpfs fs;

static struct dcpfs_file *insert_text(uint64_t ino, struct dcpfs_version *ver, size_t n)
{
	struct dcpfs_file *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	f->ino = ino;
	f->text.n = n; /* it is not read */
	f->refs = 1;
	f->ver = ver;
	if (ver)
		ver->refs++;
	dcpfs_cache_begin(&fs, f);
	return dcpfs_cache_insert(&fs, f);
}

static struct dcpfs_file *insert(uint64_t ino, struct dcpfs_version *ver)
{
	return insert_text(ino, ver, 0);
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

/* As many bytes as fit, over and over; those of a file that went make room for others. */
static void bytes_of_text_are_bounded(void **state)
{
	enum { KEPT = 4, ROUNDS = 100 };
	struct dcpfs_file *open;

	(void)state;
	fs.files = dcpfs_cache_create();
	dcpfs_file_put(&fs, insert(1000, NULL));
	for (uint64_t i = 1; i <= ROUNDS; i++) {
		dcpfs_file_put(&fs, insert_text(i, NULL, DCPFS_CACHE_TEXT / KEPT));
		assert_int_equal(is_cached(i - (i > KEPT ? KEPT : 0)), i <= KEPT);
		for (uint64_t k = i > KEPT ? i - KEPT + 1 : 1; k <= i; k++)
			assert_true(is_cached(k));
	}
	assert_true(is_cached(1000)); /* it has no text */
	t_case("more than all of it, in use");
	open = insert_text(500, NULL, DCPFS_CACHE_TEXT + 1);
	assert_false(is_cached(ROUNDS));
	assert_true(is_cached(500));
	assert_true(is_cached(1000));
	dcpfs_file_put(&fs, open);
	t_case("and gone: there is room again");
	dcpfs_file_put(&fs, insert_text(501, NULL, DCPFS_CACHE_TEXT));
	assert_false(is_cached(500));
	assert_true(is_cached(501));
	assert_true(is_cached(1000));
	t_case("one file more than the limit: the text was used longest ago");
	for (uint64_t i = 1; i < DCPFS_CACHE_FILES; i++)
		dcpfs_file_put(&fs, insert(2000 + i, NULL));
	assert_true(is_cached(1000));
	assert_false(is_cached(501));
	assert_true(is_cached(2001));
	dcpfs_cache_destroy(&fs);
}

/* Of models, each with the files of its parts, few stay; of open ones all. */
static void idle_models_are_few(void **state)
{
	enum { MODELS = DCPFS_CACHE_MODELS + 3 };
	struct dcpfs_file *open[MODELS];

	(void)state;
	fs.files = dcpfs_cache_create();
	for (uint64_t i = 0; i < MODELS; i++) {
		open[i] = insert(i + 1, NULL);
		open[i]->content = DCPFS_PARTS;
	}
	for (uint64_t i = 0; i < MODELS; i++)
		assert_true(is_cached(i + 1));
	for (uint64_t i = 0; i < MODELS; i++)
		dcpfs_file_put(&fs, open[i]);
	assert_false(is_cached(3));
	assert_true(is_cached(4));
	assert_true(is_cached(MODELS));
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

/* Offsets at both sides of every border, and around parts without bytes. */
static void offsets_find_their_part(void **state)
{
	static const struct dcpfs_model_part parts[] = { { 0, 1 },  { 10, 2 }, { 10, 3 },
							 { 25, 4 }, { 26, 5 }, { 26, 6 } };
	static const struct {
		uint64_t off, inside, left;
		int64_t row; /* 0: the header */
	} rows[] = { { 0, 0, 64, 0 },  { 63, 63, 1, 0 }, { 64, 0, 10, 2 },
		     { 65, 1, 9, 2 },  { 73, 9, 1, 2 },  { 74, 0, 15, 4 },
		     { 75, 1, 14, 4 }, { 88, 14, 1, 4 }, { 89, 0, 1, 5 } };
	struct dcpfs_model m = { .header.n = 64, .size = 90 };

	(void)state;
	dcp_buf_add(&m.parts, parts, sizeof(parts));
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		uint64_t inside = 99, left = 99;
		const struct dcpfs_model_part *p =
			dcpfs_model_at(&m, rows[i].off, &inside, &left);

		assert_int_equal(p ? p->row : 0, rows[i].row);
		assert_int_equal(inside, rows[i].inside);
		assert_int_equal(left, rows[i].left);
	}
	dcp_buf_finish(&m.parts);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open_files_cost_nothing),
		cmocka_unit_test(the_longest_unused_goes_first),
		cmocka_unit_test(bytes_of_text_are_bounded),
		cmocka_unit_test(versions_count_their_files),
		cmocka_unit_test(idle_models_are_few),
		cmocka_unit_test(offsets_find_their_part),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
