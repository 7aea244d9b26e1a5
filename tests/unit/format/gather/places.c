/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors at one place are one; every other difference makes them two. */
#include "tests/unit/t.h"

#include "core/format/gather/places.h"

static const char *find(struct dcp_places *p, uint64_t off, const char *dtype, const char *key)
{
	const char *alias = NULL;

	dcp_buf_reset(&p->place);
	dcp_buf_varint(&p->place, off);
	dcp_buf_str(&p->place, dtype);
	assert_int_equal(dcp_places_find(p, key, &alias), 0);
	return alias;
}

static void the_first_is_remembered(void **state)
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

static void many(void **state)
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
		cmocka_unit_test(the_first_is_remembered),
		cmocka_unit_test(many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
