/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/parse/parse.h"

/* clang-format off */
static const struct {
	const char *what, *head;
	size_t n;
	const char *says; /* NULL: nothing known */
} cases[] = {
	{ "a Git LFS pointer", "version https://git-lfs.github.com/spec/v1\noid", 46, "git lfs pull" },
	{ "one that was cut", "version https://git-lfs", 23, NULL },
	{ "a web page", "<!DOCTYPE html>", 15, "download failed" },
	{ "GGUF", "GGUF\3\0\0\0", 8, "GGUF" },
	{ "ggjt", "tjgg\1\0\0\0", 8, "GGML" },
	{ "ExecuTorch has it behind an offset", "\x18\0\0\0ET12", 8, "ExecuTorch" },
	{ "a zip archive", "PK\3\4\0\0", 6, "zip" },
	{ "a pickle of protocol 4", "\x80\x04\x95", 3, "a pickle" },
	{ "protocol 9 is none", "\x80\x09\x95", 3, NULL },
	{ "gzip", "\x1f\x8b\x08", 3, "gzip" },
	{ "safetensors", "\x40\0\0\0\0\0\0\0{\"", 10, "safetensors" },
	{ "a length of a gigabyte is none", "\0\0\0\x40\0\0\0\0{\"", 10, NULL },
	{ "zeros", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16, "nothing written" },
	{ "few zeros may be anything", "\0\0\0\0\0\0\0\0", 8, NULL },
	{ "text", "hello", 5, NULL },
	{ "nothing", "", 0, NULL },
};
/* clang-format on */

static void magic_bytes_are_known(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		char *exact = malloc(cases[i].n ? cases[i].n : 1);
		const char *got;

		t_case(cases[i].what);
		memcpy(exact, cases[i].head, cases[i].n);
		got = dcp_magic(exact, cases[i].n);
		if (!cases[i].says)
			assert_null(got);
		else if (!got || !strstr(got, cases[i].says))
			fail_msg("\"%s\" does not say \"%s\"", got ? got : "", cases[i].says);
		free(exact);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(magic_bytes_are_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
