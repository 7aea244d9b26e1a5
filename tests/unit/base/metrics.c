/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics as text: heads, samples, and labels that no text breaks out of. */
#include "tests/unit/t.h"

#include "core/base/buf.h"

static void metrics_have_heads_and_samples(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

	(void)state;
	dcp_metric_gauge(&b, "x", "read_bytes", "bytes", "Bytes.", UINT64_MAX);
	dcp_metric_seconds(&b, "x", "wait_seconds", "Time.", 1000000001);
	assert_string_equal(b.p,
			    "# TYPE x_read_bytes gauge\n# UNIT x_read_bytes bytes\n"
			    "# HELP x_read_bytes Bytes.\nx_read_bytes 18446744073709551615\n"
			    "# TYPE x_wait_seconds gauge\n# UNIT x_wait_seconds seconds\n"
			    "# HELP x_wait_seconds Time.\nx_wait_seconds 1.000000001\n");
}

static void labels_escape_their_ends(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

	(void)state;
	dcp_metric_label(&b, "source", "a\"}\\ 1\nb");
	assert_string_equal(b.p, "source=\"a\\\"}\\\\ 1\\nb\"");
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(metrics_have_heads_and_samples),
		cmocka_unit_test(labels_escape_their_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
