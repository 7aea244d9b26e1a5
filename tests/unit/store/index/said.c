/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file has what those files say from which its tensors come, and a value that they say
 * differently is that of the first.
 */
#include "tests/unit/t.h"

#include "core/store/index/index.h"
#include "core/store/index/index_int.h"
#include "tests/unit/t/index.h"

static void tell(struct t_index *p, const char *key, const char *const *pairs)
{
	char name[] = "x.bin";
	uint32_t number;

	name[0] = key[0];
	t_dir_put(&p->dir, name, "12345678", 8);
	assert_int_equal(dcp_emit_file(&p->sink, name, &number), 0);
	assert_int_equal(dcp_emit_said(&p->sink, name, NULL, NULL), 0);
	for (; *pairs; pairs += 2)
		assert_int_equal(dcp_emit_said(&p->sink, name, pairs[0], pairs[1]), 0);
	t_tell_vector(&p->sink, key, number, 0, 8, NULL);
}

static void check(struct t_index *p, const char *keys, const char *want)
{
	struct dcp_said *said;
	const char *object;

	assert_int_equal(dcp_said_create(p->ix, &said), 0);
	for (int again = 0; again < 2; again++) {
		for (const char *k = keys; *k; k++) {
			const char key[] = { *k, '\0' };
			struct dcp_row row = t_index_row(p, DCP_ROW_TENSOR, key);

			assert_int_equal(dcp_said_add(said, row.id), 0);
		}
		assert_int_equal(dcp_said_take(said, &object), 0);
		assert_string_equal(object ? object : "nothing", want);
	}
	dcp_said_free(said);
}

static void each_file_has_its_own(void **state)
{
	struct t_index *p = *state;

	tell(p, "k", (const char *const[]){ "t", "1", "u", "2", "format", "np", NULL });
	tell(p, "l", (const char *const[]){ "v", "3", "t", "4", NULL });
	tell(p, "m", (const char *const[]){ NULL });
	t_index_reopen(p);
	check(p, "k", "{\"format\":\"np\",\"t\":\"1\",\"u\":\"2\"}");
	check(p, "l", "{\"v\":\"3\",\"t\":\"4\"}");
	check(p, "m", "{}");
	check(p, "lmk", "{\"format\":\"np\",\"t\":\"1\",\"u\":\"2\",\"v\":\"3\"}");
	check(p, "", "{}");
}

static void equal_metadata_is_for_all(void **state)
{
	struct t_index *p = *state;

	tell(p, "k", (const char *const[]){ "t", "1", NULL });
	tell(p, "l", (const char *const[]){ "t", "1", NULL });
	t_index_reopen(p);
	check(p, "l", "{\"t\":\"1\"}");
}

static void damage_is_refused(void **state)
{
	static const char *const facts[] = { "",
					     "{",
					     "{\"says\":[{}],\"files\":[[0,1]]}",
					     "{\"says\":[{}],\"files\":[[9,0]]}",
					     "{\"says\":[{}],\"files\":[0]}",
					     "{\"says\":[{}],\"files\":[[-1,0]]}" };
	struct t_index *p = *state;

	for (size_t i = 0; i < DCP_LEN(facts); i++) {
		struct dcp_said *said;

		if (i)
			t_index_setup(state);
		p = *state;
		dcp_emit_meta(&p->sink, "metadata_files", facts[i]);
		t_index_reopen(p);
		assert_int_equal(dcp_said_create(p->ix, &said), -EBADMSG);
		if (i + 1 < DCP_LEN(facts))
			t_index_teardown(state);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(each_file_has_its_own, t_index_setup,
						t_index_teardown),
		cmocka_unit_test_setup_teardown(equal_metadata_is_for_all, t_index_setup,
						t_index_teardown),
		cmocka_unit_test_setup_teardown(damage_is_refused, t_index_setup,
						t_index_teardown),
	};

	return cmocka_run_group_tests_name("store_said", tests, NULL, NULL);
}
