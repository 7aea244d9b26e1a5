/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signatures, by the vectors that Amazon published for Signature Version 4 and for S3.
 */
#include "core/remote/s3.h"

#include "core/base/buf.h"
#include "tests/unit/t.h"

#define SUITE                                                                                  \
	"20150830T123600Z", "us-east-1", "service", "AKIDEXAMPLE",                             \
		"wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
#define S3                                                                                     \
	"20130524T000000Z", "us-east-1", "s3", "AKIAIOSFODNN7EXAMPLE",                         \
		"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
#define S3_HEADS                                                                               \
	"host:examplebucket.s3.amazonaws.com\nx-amz-content-sha256:" DCP_SIGN_EMPTY            \
	"\nx-amz-date:20130524T000000Z\n"
#define SUITE_HEADS "host:example.amazonaws.com\nx-amz-date:20150830T123600Z\n"

/* clang-format off */
static const struct {
	const char *what;
	struct dcp_sign sign;
	const char *signature;
} cases[] = {
	{ "get-vanilla",
	  { "GET", "/", "", SUITE_HEADS, DCP_SIGN_EMPTY, SUITE },
	  "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31" },
	{ "get-vanilla-query-order-key-case",
	  { "GET", "/", "Param1=value1&Param2=value2", SUITE_HEADS, DCP_SIGN_EMPTY, SUITE },
	  "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500" },
	{ "post-vanilla",
	  { "POST", "/", "", SUITE_HEADS, DCP_SIGN_EMPTY, SUITE },
	  "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b" },
	{ "S3: a part of an object",
	  { "GET", "/test.txt", "",
	    "host:examplebucket.s3.amazonaws.com\nrange:bytes=0-9\nx-amz-content-sha256:" DCP_SIGN_EMPTY "\nx-amz-date:20130524T000000Z\n",
	    DCP_SIGN_EMPTY, S3 },
	  "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41" },
	{ "S3: a list",
	  { "GET", "/", "max-keys=2&prefix=J", S3_HEADS, DCP_SIGN_EMPTY, S3 },
	  "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7" },
	{ "S3: a name without a value",
	  { "GET", "/", "lifecycle=", S3_HEADS, DCP_SIGN_EMPTY, S3 },
	  "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543" },
};
/* clang-format on */

static void published_vectors_agree(void **state)
{
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
		const char *signature;

		t_case(cases[i].what);
		assert_int_equal(dcp_sign_v4(&cases[i].sign, &out), 0);
		signature = strstr(out.p, "Signature=");
		assert_non_null(signature);
		assert_string_equal(signature + 10, cases[i].signature);
	}
}

static void the_header_names_signed_fields(void **state)
{
	dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;

	assert_int_equal(dcp_sign_v4(&cases[0].sign, &out), 0);
	assert_string_equal(
		out.p,
		"AWS4-HMAC-SHA256 "
		"Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
		"SignedHeaders=host;x-amz-date, "
		"Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
	assert_null(strstr(out.p, cases[0].sign.secret));
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(published_vectors_agree),
		cmocka_unit_test(the_header_names_signed_fields),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
