/* SPDX-License-Identifier: Apache-2.0 */
/* The streaming hash behind a digest; digests of whole tensors are tested by tests/cli. */
#include "tests/unit/t.h"

#include "core/base/hash.h"
#include "core/store/view/digest.h"

/* As xxHash's own program tells them. */
static const struct {
	const char *text;
	uint64_t high, low;
} known[] = {
	{ "", 0x99aa06d3014798d8u, 0x6001c324468d497fu },
	{ "abc", 0x06b05ab6733a6185u, 0x78af5f94892f3950u },
};

static void is_xxh3_128(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(known); i++) {
		struct dcp_hash128 *h = dcp_hash128_new();
		uint64_t out[2];

		t_case(known[i].text);
		assert_non_null(h);
		for (const char *p = known[i].text; *p; p++)
			dcp_hash128_add(h, p, 1);
		dcp_hash128_end(h, out);
		assert_int_equal(out[0], known[i].high);
		assert_int_equal(out[1], known[i].low);
	}
	assert_int_equal(DCP_DIGEST_TEXT, 2 * 32 + 1); /* SHA-256 is longer */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(is_xxh3_128),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
