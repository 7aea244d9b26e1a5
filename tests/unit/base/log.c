/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/base/err.h"

struct heard {
	unsigned lines;
	enum dcp_log_level level;
	char line[2048];
};

static void hear(void *ctx, enum dcp_log_level level, const char *line)
{
	struct heard *h = ctx;

	h->lines++;
	h->level = level;
	snprintf(h->line, sizeof(h->line), "%s", line);
}

static void lines_above_the_level_are_dropped(void **state)
{
	struct heard h = { 0 };
	struct dcp_log log = { .max = DCP_LOG_WARN, .emit = hear, .ctx = &h };

	(void)state;
	dcp_log(&log, DCP_LOG_INFO, "not %s", "heard");
	dcp_log(&log, DCP_LOG_DEBUG, "nor this");
	assert_int_equal(h.lines, 0);
	dcp_log(&log, DCP_LOG_WARN, "shard %d of %s", 3, "w");
	assert_int_equal(h.lines, 1);
	assert_int_equal(h.level, DCP_LOG_WARN);
	assert_string_equal(h.line, "shard 3 of w");
	dcp_log(&log, DCP_LOG_ERROR, "worse");
	assert_int_equal(h.lines, 2);
}

static void lines_without_a_listener_are_dropped(void **state)
{
	struct dcp_log deaf = { .max = DCP_LOG_DEBUG };

	(void)state;
	dcp_log(NULL, DCP_LOG_ERROR, "%s", "dropped");
	dcp_log(&deaf, DCP_LOG_ERROR, "%s", "dropped");
}

static void long_lines_are_cut(void **state)
{
	struct heard h = { 0 };
	struct dcp_log log = { .max = DCP_LOG_ERROR, .emit = hear, .ctx = &h };

	(void)state;
	dcp_log(&log, DCP_LOG_ERROR, "%01500d", 7);
	assert_int_equal(h.lines, 1);
	assert_int_equal(strlen(h.line), 1023);
}

T_TESTS()
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(lines_above_the_level_are_dropped),
		cmocka_unit_test(lines_without_a_listener_are_dropped),
		cmocka_unit_test(long_lines_are_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
