/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include <sys/mman.h>
#include <unistd.h>

#include "core/origin/origin.h"
#include "core/parse/parse.h"

static int decode(const char *text, size_t n, uint64_t want, char *out, size_t size,
		  struct dcp_err *err)
{
	struct dcp_source src = dcp_source_mem(text, n);
	int fd = memfd_create("latin1", MFD_CLOEXEC), rc;

	*err = (struct dcp_err){ 0 };
	rc = dcp_latin1_decode_fd(&src, fd, want, err);
	if (rc == 0)
		assert_int_equal(pread(fd, out, size, 0), want);
	close(fd);
	return rc;
}

static void every_byte_is_decoded(void **state)
{
	char text[512], out[512];
	size_t n = 0;
	struct dcp_err err;

	(void)state;
	for (unsigned c = 0; c < 256; c++) {
		if (c >= 0x80)
			text[n++] = (char)(0xc0 | c >> 6);
		text[n++] = (char)(c < 0x80 ? c : 0x80 | (c & 0x3f));
	}
	assert_int_equal(decode(text, n, 256, out, sizeof(out), &err), 0);
	for (unsigned c = 0; c < 256; c++)
		assert_int_equal((uint8_t)out[c], c);
	assert_int_equal(decode("", 0, 0, out, sizeof(out), &err), 0);
}

/* Characters of two bytes lie across the end of every chunk that is read at once. */
static void characters_across_chunks_are_decoded(void **state)
{
	enum { WANT = 100001 };
	char *text = malloc(2 * WANT), *out = malloc(WANT);
	struct dcp_err err;

	(void)state;
	text[0] = 'a';
	for (size_t i = 1; i < WANT; i++)
		memcpy(text + 2 * i - 1, "\xc3\xbf", 2);
	assert_int_equal(decode(text, 2 * WANT - 1, WANT, out, WANT, &err), 0);
	assert_int_equal(out[0], 'a');
	for (size_t i = 1; i < WANT; i++)
		assert_int_equal((uint8_t)out[i], 0xff);
	free(text);
	free(out);
}

static void other_characters_are_refused(void **state)
{
	static const struct {
		const char *what, *text;
		uint64_t want;
		const char *says;
	} rows[] = {
		{ "more than was asked for", "abc", 2, "more than 2 bytes" },
		{ "fewer than were asked for", "ab\xc3\xbf", 4, "fewer than 4 bytes" },
		{ "half a character at the end", "\xc3", 1, "not Latin-1 text" },
		{ "half a character behind others", "ab\xc3", 3, "not Latin-1 text" },
		{ "a character above Latin-1", "a\xc4\x80", 2, "not Latin-1 text" },
		{ "an overlong one", "\xc1\xbf", 1, "not Latin-1 text" },
		{ "no continuation", "\xc3\x41", 2, "not Latin-1 text" },
		{ "a continuation alone", "\xbf", 1, "not Latin-1 text" },
	};
	char out[8];

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_err err;

		t_case(rows[i].what);
		assert_int_equal(decode(rows[i].text, strlen(rows[i].text), rows[i].want, out,
					sizeof(out), &err),
				 -EBADMSG);
		t_assert_says(&err, rows[i].says);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_byte_is_decoded),
		cmocka_unit_test(characters_across_chunks_are_decoded),
		cmocka_unit_test(other_characters_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
