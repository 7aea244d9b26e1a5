/* SPDX-License-Identifier: Apache-2.0 */
/* The last lines of a mount's log, and what the program gets of them. */
#include "tests/unit/t.h"

#include <stdio.h>
#include <string.h>

#include "core/base/buf.h"
#include "fs/errors.h"

struct heard {
	unsigned n;
	enum dcp_log_level level;
	char last[64];
};

static void hear(void *ctx, enum dcp_log_level level, const char *line)
{
	struct heard *h = ctx;

	h->n++;
	h->level = level;
	snprintf(h->last, sizeof(h->last), "%s", line);
}

static void log_keeps_the_last_lines(void **state)
{
	struct heard heard = { 0 };
	struct dcp_log next = { DCP_LOG_WARN, hear, &heard };
	struct dcpfs_log *l = dcpfs_log_create(&next);
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	unsigned lines = 0;

	(void)state;
	for (unsigned i = 0; i < DCPFS_LOG_LINES + 3; i++)
		dcp_log(dcpfs_log_sink(l), DCP_LOG_WARN, "line %u", i);
	dcpfs_log_text(l, &b);
	for (size_t i = 0; i < b.n; i++)
		lines += b.p[i] == '\n';
	assert_int_equal(lines, DCPFS_LOG_LINES);
	assert_non_null(strstr(b.p, "Z line 3\n"));
	assert_non_null(strstr(b.p, "Z line 258\n"));
	assert_null(strstr(b.p, "Z line 2\n"));
	assert_int_equal(heard.n, DCPFS_LOG_LINES + 3);
	dcpfs_log_destroy(l);
}

static void log_shows_foreign_text_on_one_line(void **state)
{
	struct heard heard = { 0 };
	struct dcp_log next = { DCP_LOG_WARN, hear, &heard };
	struct dcpfs_log *l = dcpfs_log_create(&next);
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

	(void)state;
	dcp_log(dcpfs_log_sink(l), DCP_LOG_ERROR, "key a\nroot: b");
	dcp_log(dcpfs_log_sink(l), DCP_LOG_INFO, "only kept");
	dcpfs_log_text(l, &b);
	assert_non_null(strstr(b.p, " key a\\x0aroot: b\n"));
	assert_non_null(strstr(b.p, " only kept\n"));
	assert_int_equal(heard.n, 1);
	assert_int_equal(heard.level, DCP_LOG_ERROR);
	assert_string_equal(heard.last, "key a\\x0aroot: b");
	dcpfs_log_destroy(l);
}

static void failing_keys_are_logged_once(void **state)
{
	struct heard heard = { 0 };
	struct dcp_log log = { DCP_LOG_WARN, hear, &heard };
	struct dcpfs_errors *e = dcpfs_errors_create(&log);

	(void)state;
	dcpfs_errors_add(e, "v", NULL, NULL, "the version: said by others");
	assert_int_equal(heard.n, 0);
	dcpfs_errors_add(e, "v", "k", NULL, "first");
	dcpfs_errors_add(e, "v", "k", NULL, "second");
	assert_int_equal(heard.n, 1);
	assert_string_equal(heard.last, "first");
	for (int i = 0; i < 2 * DCPFS_ERRORS_LOGGED; i++) {
		char key[16];

		snprintf(key, sizeof(key), "%d", i);
		dcpfs_errors_add(e, "v", key, NULL, "x");
	}
	assert_int_equal(heard.n, DCPFS_ERRORS_LOGGED - 1);
	assert_string_equal(heard.last, "x; only .dcpfs/errors.json has the next ones");
	dcpfs_errors_destroy(e);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(log_keeps_the_last_lines),
		cmocka_unit_test(log_shows_foreign_text_on_one_line),
		cmocka_unit_test(failing_keys_are_logged_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
