/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors at one place are one; every other difference makes them two. */
#include "tests/unit/t.h"

#include "core/format/gather/join.h"
#include "core/model/tensor.h"

static const uint64_t lo[2], shape[] = { 2, 3 }, stride[] = { 1, 2 };

static const char *look(struct dcp_places *p, const struct dcp_piece *piece, const char *dtype,
			const char *key)
{
	struct dcp_tensor t = { .key = key,
				.dtype_name = dtype,
				.ndim = 2,
				.shape = shape,
				.pieces = piece,
				.npieces = 1 };

	assert_int_equal(dcp_places_find(p, &t), 0);
	return t.alias_of;
}

static const char *find(struct dcp_places *p, uint64_t off, const char *dtype, const char *key)
{
	const struct dcp_piece piece = { .lo = lo, .len = shape, .off = off };

	return look(p, &piece, dtype, key);
}

static void every_difference_makes_another_place(void **state)
{
	const struct dcp_piece pieces[] = {
		{ .lo = lo, .len = shape, .off = 8 },
		{ .lo = lo, .len = shape, .off = 8, .file = 1 },
		{ .lo = lo, .len = shape, .off = 8, .stride = stride },
		{ .lo = lo, .len = shape, .off = 8, .stride = lo }, /* torch's expand() */
		{ .lo = lo, .len = shape, .off = 8, .filter = DCP_FILTER_NEG },
		{ .lo = lo, .len = shape, .off = 8, .enc = DCP_ENC_TORCH },
		{ .lo = lo, .len = shape, .off = 8, .swap = true },
		{ .lo = lo, .len = shape, .off = 8, .run_lo = 1 },
		{ .lo = lo, .len = shape, .off = 8, .run_n = 1 },
		{ .lo = lo, .len = shape, .off = 8, .item_lo = 1 },
		{ .lo = lo, .len = shape, .off = 8, .item_n = 1 },
		{ .lo = lo, .len = stride, .off = 8 },
		{ .lo = stride, .len = shape, .off = 8 },
	};
	struct dcp_places p = { 0 };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(pieces); i++)
		assert_null(look(&p, &pieces[i], "F32", "first"));
	for (size_t i = 0; i < DCP_LEN(pieces); i++)
		assert_string_equal(look(&p, &pieces[i], "F32", "again"), "first");
	dcp_places_finish(&p);
}

static void the_first_key_is_remembered(void **state)
{
	struct dcp_places p = { 0 };

	(void)state;
	assert_null(find(&p, 8, "F32", "embed"));
	assert_null(find(&p, 8, "BF16", "other.type"));
	assert_null(find(&p, 16, "F32", ""));
	assert_string_equal(find(&p, 8, "F32", "lm_head"), "embed");
	assert_string_equal(find(&p, 8, "F32", "third"), "embed");
	assert_string_equal(find(&p, 8, "BF16", "again"), "other.type");
	assert_string_equal(find(&p, 16, "F32", "of.the.nameless"), "");
	dcp_places_finish(&p);
}

static void many_places_are_kept(void **state)
{
	struct dcp_places p = { 0 };
	char key[24];

	(void)state;
	for (unsigned i = 0; i < 5000; i++) {
		snprintf(key, sizeof(key), "k%u", i);
		assert_null(find(&p, i, "U8", key));
	}
	for (unsigned i = 0; i < 5000; i += 7) {
		snprintf(key, sizeof(key), "k%u", i);
		assert_string_equal(find(&p, i, "U8", "x"), key);
	}
	dcp_places_finish(&p);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first_key_is_remembered),
		cmocka_unit_test(many_places_are_kept),
		cmocka_unit_test(every_difference_makes_another_place),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
