/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What files say beside their tensors becomes facts, and no value is lost without a word.
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/store/index/index.h"
#include "tests/unit/t/index.h"

static void tell(struct t_index *p, const char *file, const char *name, const char *value)
{
	assert_int_equal(dcp_emit_said(&p->sink, file, name, value), 0);
}

static void files_are_merged(void **state)
{
	struct t_index *p = *state;
	const char *lost;

	tell(p, "1.safetensors", "title", "a \"b\"\n");
	tell(p, "1.safetensors", "format", "pt");
	tell(p, "2.safetensors", "title", "a \"b\"\n");
	tell(p, "2.safetensors", "more", "");
	tell(p, "3.safetensors", "title", "another");
	tell(p, "3.safetensors", "bad", "\xed\xa0\x80");
	t_index_reopen(p);
	assert_string_equal(dcp_index_meta(p->ix, "metadata"),
			    "{\"format\":\"pt\",\"title\":\"a \\\"b\\\"\\n\",\"more\":\"\"}");
	lost = dcp_index_meta(p->ix, "metadata_lost");
	assert_non_null(strstr(lost, "{\"name\":\"title\",\"why\":\"3.safetensors says "
				     "\\\"another\\\" in __metadata__ and 1.safetensors "));
	assert_non_null(strstr(lost, "{\"name\":\"bad\",\"why\":\"3.safetensors says it in "
				     "__metadata__; it is too long or not Unicode\"}"));
}

static void long_values_are_kept(void **state)
{
	struct t_index *p = *state;
	dcp_auto_buf struct dcp_buf value = DCP_BUF_INIT;

	memset(dcp_buf_grow(&value, 4 << 20), 'x', 4 << 20);
	value.p[value.n - 1] = '\0';
	tell(p, "1.safetensors", "long", value.p);
	tell(p, "1.safetensors", "too_long", value.p);
	t_index_reopen(p);
	assert_int_equal(strlen(dcp_index_meta(p->ix, "metadata")),
			 strlen("{\"long\":\"\"}") + value.n - 1);
	assert_non_null(strstr(dcp_index_meta(p->ix, "metadata_lost"), "\"too_long\""));
}

static void differing_files_are_kept_apart(void **state)
{
	struct t_index *p = *state;
	const char *const says[] = { "x", "x", NULL };
	char name[] = "0.bin", want[128];
	uint32_t number = 0;

	for (size_t i = 0; i < DCP_LEN(says); i++) {
		name[0] = (char)('0' + i);
		assert_int_equal(dcp_emit_file(&p->sink, name, &number), 0);
		tell(p, name, NULL, NULL);
		if (says[i])
			tell(p, name, "title", says[i]);
		if (i == 1)
			tell(p, name, "bad", "\xed\xa0\x80");
	}
	t_index_reopen(p);
	snprintf(want, sizeof(want),
		 "{\"says\":[{\"title\":\"x\"},{}],\"files\":[[%u,0],[%u,0],[%u,1]]}",
		 number - 2, number - 1, number);
	assert_string_equal(dcp_index_meta(p->ix, "metadata_files"), want);
}

static void equal_files_are_not_kept_apart(void **state)
{
	struct t_index *p = *state;

	tell(p, "0.bin", NULL, NULL);
	tell(p, "0.bin", "title", "x");
	tell(p, "1.bin", NULL, NULL);
	tell(p, "1.bin", "title", "x");
	t_index_reopen(p);
	assert_null(dcp_index_meta(p->ix, "metadata_files"));
}

static void empty_metadata_is_no_fact(void **state)
{
	struct t_index *p = *state;

	t_index_reopen(p);
	assert_null(dcp_index_meta(p->ix, "metadata"));
	assert_null(dcp_index_meta(p->ix, "metadata_lost"));
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(files_are_merged, t_index_setup,
						t_index_teardown),
		cmocka_unit_test_setup_teardown(long_values_are_kept, t_index_setup,
						t_index_teardown),
		cmocka_unit_test_setup_teardown(differing_files_are_kept_apart, t_index_setup,
						t_index_teardown),
		cmocka_unit_test_setup_teardown(equal_files_are_not_kept_apart, t_index_setup,
						t_index_teardown),
		cmocka_unit_test_setup_teardown(empty_metadata_is_no_fact, t_index_setup,
						t_index_teardown),
	};

	return cmocka_run_group_tests_name("index_said", tests, NULL, NULL);
}
