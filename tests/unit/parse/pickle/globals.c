/* SPDX-License-Identifier: Apache-2.0 */
/* Names that a pickle imports, however they are spelled. */
#include "tests/unit/t.h"

#include "core/base/err.h"
#include "core/origin/origin.h"
#include "core/parse/pickle/pickle.h"

static int note(void *ctx, const char *module, const char *name, uint64_t off)
{
	char *out = ctx;
	size_t n = strlen(out);

	(void)off;
	snprintf(out + n, 200 - n, "%s %s;", module ? module : "?", name ? name : "?");
	return 0;
}

static int names_of(const void *p, size_t n, char out[200], uint64_t *end)
{
	struct dcp_source src = dcp_source_mem(p, n);
	struct dcp_err err;

	out[0] = '\0';
	return dcp_globals(&src, 0, end, note, out, &err);
}

#define ASSERT_NAMES(pickle, rc, want)                                                         \
	do {                                                                                   \
		char out_[200];                                                                \
		uint64_t end_;                                                                 \
		assert_int_equal(names_of(pickle, sizeof(pickle) - 1, out_, &end_), rc);       \
		assert_string_equal(out_, want);                                               \
	} while (0)

static void every_spelling_of_a_name_is_seen(void **state)
{
	(void)state;
	ASSERT_NAMES("cos\nsystem\n(S'x'\ntR.", 0, "os system;");
	ASSERT_NAMES("(S'x'\nios\nsystem\n.", 0, "os system;");
	ASSERT_NAMES("\x80\x04\x8c\x02os\x8c\x06system\x93)R.", 0, "os system;");
	ASSERT_NAMES("\x80\x04X\x02\0\0\0osX\x06\0\0\0system\x93.", 0, "os system;");
	ASSERT_NAMES("\x80\x04\x8d\x02\0\0\0\0\0\0\0os\x8d\x06\0\0\0\0\0\0\0system\x93.", 0,
		     "os system;");
	ASSERT_NAMES("\x80\x04\x8c\x02os\x94\x8c\x06system\x94"
		     "0h\x00h\x01\x93.",
		     0, "os system;");
	ASSERT_NAMES("Vos\np5\n0Vsystem\np300\n0g5\ng300\n\x93.", 0, "os system;");
	ASSERT_NAMES("\x8c\x02osq\x07"
		     "0\x8c\x06systemr\x08\0\0\0"
		     "0h\x07j\x08\0\0\0\x93.",
		     0, "os system;");
	ASSERT_NAMES("\x8c\x02os\x8c\x06system(K\x01K\x02"
		     "1\x93.",
		     0, "os system;");
	ASSERT_NAMES("\x8c\x01x\x8c\x02os\x32"
		     "0\x8c\x06system\x93.",
		     0, "os system;");
}

static void computed_names_are_unknown(void **state)
{
	(void)state;
	ASSERT_NAMES("\x8c\x02osK\x01\x93.", 0, "? ?;");
	ASSERT_NAMES("C\x02osC\x06system\x93.", 0, "? ?;"); /* bytes are no name */
	ASSERT_NAMES("\x93.", 0, "? ?;");
	ASSERT_NAMES("\x82\x01.", 0, "? ?;");
	ASSERT_NAMES("\x84\x01\x02\x03\x04.", 0, "? ?;");
}

static void names_before_damage_are_seen(void **state)
{
	(void)state;
	ASSERT_NAMES("cos\nsystem\n\xff", -EBADMSG, "os system;");
	ASSERT_NAMES("cos\nsystem\n", -EBADMSG, "os system;");
	ASSERT_NAMES("cos\nsystem\nB\xff\xff\xff\xffxx.", -EBADMSG, "os system;");
	ASSERT_NAMES("cos\nsys", -EBADMSG, "");
}

static void end_is_behind_stop(void **state)
{
	char out[200];
	uint64_t end;

	(void)state;
	assert_int_equal(names_of("\x80\x02N.cos\nsystem\n.", 17, out, &end), 0);
	assert_int_equal(end, 4);
	assert_string_equal(out, "");
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_spelling_of_a_name_is_seen),
		cmocka_unit_test(computed_names_are_unknown),
		cmocka_unit_test(names_before_damage_are_seen),
		cmocka_unit_test(end_is_behind_stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
