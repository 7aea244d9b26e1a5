/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places in buckets, and the list of parts that completes an upload. Requests: tests/cli/bucket.py.
 * covers: remote/range, remote/s3
 */
#include "core/remote/s3.h"

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/remote/remote.h"
#include "tests/unit/t.h"

/* clang-format off */
static const struct {
	const char *url, *base, *key; /* base NULL: refused */
} places[] = {
	{ "s3://bucket/run/step-5", "s3://bucket/", "run/step-5" },
	{ "gs://bucket/run/", "gs://bucket/", "run/" },
	{ "s3://bucket", "s3://bucket/", "" },
	{ "s3://b/x", NULL, NULL },
	{ "s3://buck et/x", NULL, NULL },
	{ "s3://bucket/a//b", NULL, NULL },
	{ "s3://bucket/../b", NULL, NULL },
};
/* clang-format on */

static void places_are_split(void **state)
{
	for (size_t i = 0; i < DCP_LEN(places); i++) {
		struct dcp_remote *r = NULL;
		struct dcp_err err = { 0 };
		char *key = NULL;

		t_case(places[i].url);
		assert_int_equal(dcp_bucket_of(places[i].url, &r, &key, &err),
				 places[i].base ? 0 : -EINVAL);
		if (places[i].base) {
			assert_string_equal(r->base, places[i].base);
			assert_string_equal(key, places[i].key);
		} else {
			assert_string_not_equal(err.msg, "");
		}
		free(key);
	}
}

static void tags_of_parts_are_text_of_xml(void **state)
{
	dcp_auto_buf struct dcp_buf body = DCP_BUF_INIT;

	dcp_bucket_add_part(&body, 7, "\"a<b&c>\"");
	assert_string_equal(body.p, "<Part><PartNumber>7</PartNumber>"
				    "<ETag>\"a&#60;b&#38;c&#62;\"</ETag></Part>");
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(places_are_split),
		cmocka_unit_test(tags_of_parts_are_text_of_xml),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
