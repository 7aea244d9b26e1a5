/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/base/hash.h"

/* clang-format off */
static const struct {
	const char *what, *text;
	uint64_t want;
} known[] = {
	/* fixed since xxHash 0.8; what a cached index holds depends on them */
	{ "nothing",  "",    0x2d06800538d394c2u },
	{ "one byte", "a",   0xe6c632b61e964e1fu },
	{ "a word",   "abc", 0x78af5f94892f3950u },
};
/* clang-format on */

static void hashes_agree_with_xxh3(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(known); i++) {
		t_case(known[i].what);
		assert_int_equal(dcp_hash64(known[i].text, strlen(known[i].text)),
				 known[i].want);
	}
}

static void fields_and_their_order_count(void **state)
{
	uint64_t ab = dcp_hash64_more(dcp_hash64_more(1, "a", 1), "b", 1);

	(void)state;
	assert_int_equal(ab, dcp_hash64_more(dcp_hash64_more(1, "a", 1), "b", 1));
	assert_int_not_equal(ab, dcp_hash64_more(dcp_hash64_more(1, "b", 1), "a", 1));
	assert_int_not_equal(ab, dcp_hash64_more(1, "ab", 2));
	assert_int_not_equal(ab, dcp_hash64_more(dcp_hash64_more(2, "a", 1), "b", 1));
}

/* One bit at a time, as the definition has it. */
static uint32_t crc_of(const uint8_t *p, size_t n)
{
	uint32_t crc = ~0u;

	for (size_t i = 0; i < n; i++) {
		crc ^= p[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
	}
	return ~crc;
}

static void crcs_of_parts_are_joined(void **state)
{
	uint8_t p[400]; /* several steps of the processor's */

	(void)state;
	for (size_t i = 0; i < sizeof(p); i++)
		p[i] = (uint8_t)(i * 37 + 11);
	for (size_t from = 0; from < 9; from++)
		for (size_t n = 0; n + from <= sizeof(p); n++) {
			uint32_t head = dcp_crc32(0, p, from);

			assert_int_equal(dcp_crc32(0, p + from, n), crc_of(p + from, n));
			assert_int_equal(dcp_crc32(head, p + from, n), crc_of(p, from + n));
			assert_int_equal(dcp_crc32_join(head, crc_of(p + from, n), n),
					 crc_of(p, from + n));
		}
}

static void crcs_agree_with_zlib(void **state)
{
	const char *text = "123456789";

	(void)state;
	assert_int_equal(dcp_crc32(0, text, 9), 0xcbf43926);
	assert_int_equal(dcp_crc32(dcp_crc32(0, text, 4), text + 4, 5), 0xcbf43926);
	assert_int_equal(dcp_crc32(0, "", 0), 0);
}

T_TESTS()
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(hashes_agree_with_xxh3),
		cmocka_unit_test(fields_and_their_order_count),
		cmocka_unit_test(crcs_agree_with_zlib),
		cmocka_unit_test(crcs_of_parts_are_joined),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
