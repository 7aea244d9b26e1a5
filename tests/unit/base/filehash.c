/* SPDX-License-Identifier: Apache-2.0 */
/* Digests are those of Python's hashlib, however the bytes come. */
#include "tests/unit/t.h"

#include "core/base/hash.h"

/* Of bytes 0, 7, 14, ...: the first 16 of blake2b and sha256. */
static const struct {
	size_t n;
	const char *blake2b, *sha256;
} known[] = {
	{ 0, "786a02f742015903c6c6fd852552d272", "e3b0c44298fc1c149afbf4c8996fb924" },
	{ 1, "2fa3f686df876995167e7c2e5d74c4c7", "6e340b9cffb37a989ca544e6bb780a2c" },
	{ 127, "08b38d2c2a521e8a819cdca2d43b52df", "67d79933e3c9aa8e89f481e071cfca1e" },
	{ 128, "0be555525cf1e0b9b74d2a743dd1ee31", "54c9eb041badfd7064645067b107661f" },
	{ 129, "31f95aa8eb1487ce670bc3c0c60ef98b", "5b55715b51c54661ed0cbd75ba5b00cf" },
	{ 256, "f8517f3d1accbf944ef17fc76662f7d9", "cd0f337ab3e6f7b4f9a40b8278670d10" },
	{ 257, "557107f675d4f77c880522bf50dfbcc2", "f081e3a3a5f4a17540748eb79992d870" },
	{ 1000, "b49dc7bf928d7dee879fafc64c1c9308", "89f4ff56a25dd1db06a4ce6033603775" },
};

static void check(enum dcp_filehash_kind kind, size_t n, size_t step, const char *want)
{
	uint8_t bytes[1000], out[DCP_FILEHASH_MOST];
	struct dcp_filehash *h = dcp_filehash_new(kind);
	char text[33];

	for (size_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)(7 * i);
	for (size_t i = 0; i < n; i += step)
		dcp_filehash_add(h, bytes + i, n - i < step ? n - i : step);
	dcp_filehash_end(h, out);
	for (size_t i = 0; i < 16; i++)
		snprintf(text + 2 * i, 3, "%02x", out[i]);
	assert_string_equal(text, want);
}

static void digests_agree_with_hashlib(void **state)
{
	static const size_t steps[] = { 1, 63, 128, 129, 1000 };

	(void)state;
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		for (size_t s = 0; s < sizeof(steps) / sizeof(*steps); s++) {
			check(DCP_FILEHASH_BLAKE2B, known[i].n, steps[s], known[i].blake2b);
			check(DCP_FILEHASH_SHA256, known[i].n, steps[s], known[i].sha256);
		}
}

static void names_are_exact(void **state)
{
	(void)state;
	assert_int_equal(dcp_filehash_named("sha256", 6), DCP_FILEHASH_SHA256);
	assert_int_equal(dcp_filehash_named("blake2b-sharded-9", 7), DCP_FILEHASH_BLAKE2B);
	assert_int_equal(dcp_filehash_named("sha2567", 7), DCP_FILEHASH_NONE);
	assert_int_equal(dcp_filehash_named("blake3", 6), DCP_FILEHASH_NONE);
	assert_int_equal(dcp_filehash_size(DCP_FILEHASH_SHA256), 32);
	assert_int_equal(dcp_filehash_size(DCP_FILEHASH_BLAKE2B), 64);
	assert_int_equal(dcp_filehash_size(DCP_FILEHASH_NONE), 0);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(digests_agree_with_hashlib),
		cmocka_unit_test(names_are_exact),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
