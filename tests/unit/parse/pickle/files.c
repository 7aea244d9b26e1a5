/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pickles as files: what CPython wrote and reads back, what torch wrote, and malformed ones.
 * covers: pickle
 */
#include "tests/unit/t/parse/pickle.h"

#include <dirent.h>

#include "core/parse/pickle/pickle_int.h"

static const size_t windows[] = { 0, 16, 37, 100 };

static int read_file(const char *path, size_t window, struct dcp_pickle **out,
		     struct dcp_err *err)
{
	size_t n;
	char *bytes = t_slurp(path, &n);
	struct dcp_source src = dcp_source_mem(bytes, n);
	uint64_t end = 0;
	int r;

	*err = (struct dcp_err){ 0 };
	r = dcp_pickle_read_windowed(&src, NULL, window, out, &end, err);
	if (r == 0)
		assert_int_equal(end, n);
	free(bytes);
	return r;
}

static void cpython_reads_the_same(void **state)
{
	DIR *dir = opendir("tests/golden/pickle");
	unsigned seen = 0;

	(void)state;
	assert_non_null(dir);
	for (struct dirent *d; (d = readdir(dir)) != NULL;) {
		size_t stem = strlen(d->d_name) - DCP_MIN(strlen(d->d_name), (size_t)4), n;
		char path[512], *want;

		if (strcmp(d->d_name + stem, ".pkl"))
			continue;
		t_case(d->d_name);
		snprintf(path, sizeof(path), "tests/golden/pickle/%.*s.txt", (int)stem,
			 d->d_name);
		want = t_slurp(path, &n);
		snprintf(path, sizeof(path), "tests/golden/pickle/%s", d->d_name);
		for (size_t w = 0; w < DCP_LEN(windows); w++) {
			struct dcp_pickle *p;
			struct dcp_err err;
			char *got;

			if (read_file(path, windows[w], &p, &err) < 0)
				fail_msg("%s", err.msg);
			got = t_pickle_text(dcp_pickle_root(p));
			assert_int_equal(strlen(got) + 1, n); /* and a newline */
			assert_memory_equal(got, want, n - 1);
			free(got);
			dcp_pickle_free(p);
		}
		free(want);
		seen++;
	}
	closedir(dir);
	assert_true(seen >= 20);
}

static void every_cut_of_a_file_is_noticed(void **state)
{
	static const char *const paths[] = { "tests/golden/pickle/classes-0.pkl",
					     "tests/golden/pickle/classes-2.pkl",
					     "tests/golden/pickle/classes-5.pkl" };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(paths); i++) {
		size_t n;
		char *bytes = t_slurp(paths[i], &n);

		t_case(paths[i]);
		for (size_t cut = 0; cut < n; cut++) {
			struct dcp_source src = dcp_source_mem(bytes, cut);
			struct dcp_pickle *p;
			struct dcp_err err = { 0 };

			assert_int_equal(
				dcp_pickle_read_windowed(&src, NULL, 64, &p, NULL, &err),
				-EBADMSG);
			assert_true(err.off <= cut);
		}
		free(bytes);
	}
}

static void torch_metadata_is_read(void **state)
{
	static const char *const paths[] = {
		"tests/golden/dcp-plain/ckpt/flat/.metadata",
		"tests/golden/dcp-fsdp2/ckpt/step-10/.metadata",
		"tests/golden/dcp-sharded-tensor/ckpt/epoch_1/.metadata",
		"tests/golden/dcp-old-2.4.1/ckpt/step_100/.metadata",
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(paths); i++) {
		const struct dcp_pv *dict;
		struct dcp_pickle *p;
		struct dcp_err err;
		size_t n;

		t_case(paths[i]);
		if (read_file(paths[i], 0, &p, &err) < 0)
			fail_msg("%s", err.msg);
		assert_true(dcp_pv_is_object(dcp_pickle_root(p),
					     "torch.distributed.checkpoint.metadata",
					     "Metadata"));
		dict = dcp_pv_get(dcp_pickle_root(p), "state_dict_metadata");
		assert_non_null(dict);
		assert_true(dcp_pv_is_mapping(*dict));
		assert_non_null(dcp_pv_pairs(*dict, &n));
		assert_true(n > 1);
		assert_null(dcp_pv_get(dcp_pickle_root(p), "no such field"));
		dcp_pickle_free(p);
	}
}

/* clang-format off */
static const struct {
	const char *name;
	int code;
	const char *says;
} bad[] = {
	{ "empty-file", -EBADMSG, "pickle ends at byte 0 without STOP" },
	{ "no-stop", -EBADMSG, "pickle ends at byte 3 without STOP" },
	{ "protocol-without-number", -EBADMSG, "PROTO at byte 0 needs 1 byte" },
	{ "protocol-6", -ENOTSUP, "PROTO at byte 0 has protocol 6, expected at most 5" },
	{ "frame-past-end", -EBADMSG, "FRAME at byte 2 claims 3 bytes, has 2" },
	{ "frame-longest", -EBADMSG, "claims 18446744073709551615 bytes, has 2" },
	{ "short-unicode-past-end", -EBADMSG, "SHORT_BINUNICODE at byte 0 claims 200 bytes, has 11" },
	{ "unicode-past-end", -EBADMSG, "BINUNICODE at byte 0 claims 4294967295 bytes, has 5" },
	{ "unicode8-past-end", -EBADMSG, "BINUNICODE8 at byte 0 claims 18446744073709551615 bytes" },
	{ "bytes-past-end", -EBADMSG, "BINBYTES at byte 0 claims 6 bytes, has 5" },
	{ "bytes8-past-end", -EBADMSG, "BINBYTES8 at byte 0 claims 9223372036854775808 bytes" },
	{ "bytearray8-past-end", -EBADMSG, "BYTEARRAY8 at byte 0 claims 1099511627776 bytes" },
	{ "string-negative", -EBADMSG, "BINSTRING at byte 0 claims a negative length, -1" },
	{ "long4-negative", -EBADMSG, "LONG4 at byte 0 claims a negative length, -2147483648" },
	{ "long1-past-end", -EBADMSG, "LONG1 at byte 0 claims 9 bytes, has 5" },
	{ "long4-too-long", -E2BIG, "LONG4 at byte 0 is an integer of 4097 bytes, the limit is 4096" },
	{ "line-open", -EBADMSG, "GLOBAL at byte 0 has a line that does not end, 4 bytes are left" },
	{ "opcode-unknown", -ENOTSUP, "opcode 0xfe at byte 2 is unknown" },
	{ "ext1", -ENOTSUP, "EXT1 at byte 0 is refused" },
	{ "ext2", -ENOTSUP, "EXT2 at byte 0 is refused" },
	{ "ext4", -ENOTSUP, "EXT4 at byte 0 is refused" },
	{ "next-buffer", -ENOTSUP, "NEXT_BUFFER at byte 0 is refused" },
	{ "readonly-buffer", -ENOTSUP, "READONLY_BUFFER at byte 1 is refused" },
	{ "stop-on-nothing", -EBADMSG, "STOP at byte 0 leaves 0 values and 0 marks" },
	{ "stop-on-two", -EBADMSG, "STOP at byte 2 leaves 2 values and 0 marks" },
	{ "stop-on-mark", -EBADMSG, "STOP at byte 2 leaves 1 value and 1 mark," },
	{ "inst-on-full-stack", -EBADMSG, "STOP at byte 69 leaves 64 values and 0 marks" },
	{ "pop-nothing", -EBADMSG, "POP at byte 0 needs 1 value, 0 are" },
	{ "dup-nothing", -EBADMSG, "DUP at byte 0 needs 1 value, 0 are" },
	{ "dup-mark", -EBADMSG, "DUP at byte 2 needs 1 value, 0 are on the stack above the mark" },
	{ "tuple-without-mark", -EBADMSG, "TUPLE at byte 2 needs a mark" },
	{ "tuple2-of-one", -EBADMSG, "TUPLE2 at byte 1 needs 2 values, 1 is on the stack" },
	{ "tuple1-of-mark", -EBADMSG, "TUPLE1 at byte 2 needs 1 value, 0 are on the stack above" },
	{ "pop-mark-without-mark", -EBADMSG, "POP_MARK at byte 1 needs a mark" },
	{ "appends-without-list", -EBADMSG, "APPENDS at byte 2 needs 1 value, 0 are" },
	{ "appends-without-mark", -EBADMSG, "APPENDS at byte 2 needs a mark" },
	{ "append-below-mark", -EBADMSG, "APPEND at byte 3 needs 2 values, 1 is" },
	{ "reduce-on-one", -EBADMSG, "REDUCE at byte 1 needs 2 values" },
	{ "build-on-one", -EBADMSG, "BUILD at byte 1 needs 2 values" },
	{ "obj-without-class", -EBADMSG, "OBJ at byte 1 needs 1 value" },
	{ "inst-without-mark", -EBADMSG, "INST at byte 0 needs a mark" },
	{ "stack-global-of-one", -EBADMSG, "STACK_GLOBAL at byte 3 needs 2 values" },
	{ "persid-of-nothing", -EBADMSG, "BINPERSID at byte 0 needs 1 value" },
	{ "setitem-on-list", -EBADMSG, "SETITEM at byte 3 finds a list where it needs a dict" },
	{ "setitem-on-int", -EBADMSG, "finds an int where it needs a dict" },
	{ "setitems-on-tuple", -EBADMSG, "SETITEMS at byte 4 finds a tuple where it needs a dict" },
	{ "setitems-odd", -EBADMSG, "SETITEMS at byte 5 finds 3 values, which are not" },
	{ "dict-odd", -EBADMSG, "DICT at byte 4 finds 3 values, which are not" },
	{ "append-on-dict", -EBADMSG, "APPEND at byte 2 finds a dict where it needs a list" },
	{ "append-on-tuple", -EBADMSG, "APPEND at byte 2 finds a tuple where it needs a list" },
	{ "appends-on-set", -EBADMSG, "APPENDS at byte 3 finds a set where it needs a list" },
	{ "additems-on-list", -EBADMSG, "ADDITEMS at byte 3 finds a list where it needs a set" },
	{ "additems-on-frozenset", -EBADMSG, "finds a frozenset where it needs a set" },
	{ "build-on-dict", -EBADMSG, "BUILD at byte 2 finds a dict where it needs an object" },
	{ "build-on-global", -EBADMSG, "finds a global where it needs an object" },
	{ "build-on-int", -EBADMSG, "finds an int where it needs an object" },
	{ "reduce-calls-int", -EBADMSG, "REDUCE at byte 3 finds an int where it needs something to call" },
	{ "reduce-calls-str", -EBADMSG, "finds a str where it needs something to call" },
	{ "reduce-without-tuple", -EBADMSG, "finds a list where it needs a tuple of arguments" },
	{ "newobj-of-list", -EBADMSG, "NEWOBJ at byte 2 finds a list where it needs something to call" },
	{ "newobj-without-tuple", -EBADMSG, "finds None where it needs a tuple" },
	{ "newobj-ex-without-dict", -EBADMSG, "finds a tuple where it needs a dict of arguments" },
	{ "newobj-ex-without-tuple", -EBADMSG, "finds a dict where it needs a tuple of arguments" },
	{ "obj-of-int", -EBADMSG, "OBJ at byte 3 finds an int where it needs something to call" },
	{ "stack-global-of-int", -EBADMSG, "finds an int where it needs a str for module and name" },
	{ "stack-global-of-bytes", -EBADMSG, "finds a bytes where it needs a str for module and name" },
	{ "stack-global-nul", -EBADMSG, "STACK_GLOBAL at byte 7 has a name with a NUL in it" },
	{ "global-nul", -EBADMSG, "GLOBAL at byte 0 has a name that is not UTF-8 or has a NUL" },
	{ "global-not-utf8", -EBADMSG, "GLOBAL at byte 0 has a name that is not UTF-8 or has a NUL" },
	{ "memo-get-unknown", -EBADMSG, "BINGET at byte 0 fetches memo entry 0, which was never stored" },
	{ "memo-get-later", -EBADMSG, "BINGET at byte 0 fetches memo entry 0, which was never stored" },
	{ "memo-get-far", -EBADMSG, "LONG_BINGET at byte 0 fetches memo entry 4294967295, which" },
	{ "memo-get-text-unknown", -EBADMSG, "GET at byte 0 fetches memo entry 123456789, which" },
	{ "memo-get-not-number", -EBADMSG, "GET at byte 4 has no memo index" },
	{ "memo-get-negative", -EBADMSG, "GET at byte 4 has no memo index" },
	{ "memo-put-not-number", -EBADMSG, "PUT at byte 1 has no memo index" },
	{ "memo-put-longest", -EBADMSG, "PUT at byte 1 has no memo index" },
	{ "memo-put-nothing", -EBADMSG, "BINPUT at byte 0 needs 1 value" },
	{ "memo-put-mark", -EBADMSG, "BINPUT at byte 2 needs 1 value, 0 are on the stack above the mark" },
	{ "memoize-nothing", -EBADMSG, "MEMOIZE at byte 0 needs 1 value" },
	{ "memoize-after-holes", -ENOTSUP, "MEMOIZE at byte 3 follows PUT opcodes that left holes" },
	{ "int-empty", -EBADMSG, "INT at byte 0 has no decimal integer" },
	{ "int-hex", -EBADMSG, "INT at byte 0 has no decimal integer" },
	{ "int-octal", -EBADMSG, "INT at byte 0 has no decimal integer" },
	{ "int-space", -EBADMSG, "INT at byte 0 has no decimal integer" },
	{ "int-minus", -EBADMSG, "INT at byte 0 has no decimal integer" },
	{ "int-too-long", -E2BIG, "INT at byte 0 is an integer of 9999 digits" },
	{ "long-over-limit", -E2BIG, "LONG at byte 0 is an integer of 4097 bytes, the limit is 4096" },
	{ "long-no-digits", -EBADMSG, "LONG at byte 0 has no decimal integer" },
	{ "float-empty", -EBADMSG, "FLOAT at byte 0 has no decimal number" },
	{ "float-hex", -EBADMSG, "FLOAT at byte 0 has no decimal number" },
	{ "float-comma", -EBADMSG, "FLOAT at byte 0 has no decimal number" },
	{ "float-text-behind", -EBADMSG, "FLOAT at byte 0 has no decimal number" },
	{ "string-no-quotes", -EBADMSG, "STRING at byte 0 has no well-formed quoted string" },
	{ "string-one-quote", -EBADMSG, "STRING at byte 0 has no well-formed quoted string" },
	{ "string-quotes-differ", -EBADMSG, "STRING at byte 0 has no well-formed quoted string" },
	{ "string-bad-hex", -EBADMSG, "STRING at byte 0 has no well-formed quoted string" },
	{ "string-cut-hex", -EBADMSG, "STRING at byte 0 has no well-formed quoted string" },
	{ "string-backslash-last", -EBADMSG, "STRING at byte 0 has no well-formed quoted string" },
	{ "unicode-bad-escape", -EBADMSG, "UNICODE at byte 0 has a malformed escape" },
	{ "unicode-cut-escape", -EBADMSG, "UNICODE at byte 0 has a malformed escape" },
	{ "unicode-too-large", -EBADMSG, "UNICODE at byte 0 has a malformed escape" },
	{ "utf8-lone-byte", -EBADMSG, "SHORT_BINUNICODE at byte 0 is not UTF-8" },
	{ "utf8-overlong", -EBADMSG, "SHORT_BINUNICODE at byte 0 is not UTF-8" },
	{ "utf8-overlong-3", -EBADMSG, "SHORT_BINUNICODE at byte 0 is not UTF-8" },
	{ "utf8-cut", -EBADMSG, "SHORT_BINUNICODE at byte 0 is not UTF-8" },
	{ "utf8-too-large", -EBADMSG, "BINUNICODE at byte 0 is not UTF-8" },
	{ "utf8-late", -EBADMSG, "BINUNICODE at byte 0 is not UTF-8" },
	{ "persid-not-utf8", -EBADMSG, "PERSID at byte 0 is not UTF-8" },
	{ "deep-lists", -E2BIG, "APPEND at byte 1001 nests deeper than 500 levels" },
	{ "deep-tuples", -E2BIG, "TUPLE1 at byte 500 nests deeper than 500 levels" },
	{ "deep-dicts", -E2BIG, "nests deeper than 500 levels" },
	{ "deep-calls", -E2BIG, "nests deeper than 500 levels" },
	{ "deep-objects", -E2BIG, "nests deeper than 500 levels" },
	{ "deep-states", -E2BIG, "BUILD at byte " },
	{ "deep-ids", -E2BIG, "BINPERSID at byte 500 nests deeper than 500 levels" },
	{ "deep-sets", -E2BIG, "ADDITEMS at byte " },
	{ "deep-frozensets", -E2BIG, "FROZENSET at byte " },
	{ "deep-list-in-itself", -E2BIG, "APPEND at byte " },
};
/* clang-format on */

static void malformed_files_are_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(bad); i++) {
		char path[512];

		t_case(bad[i].name);
		snprintf(path, sizeof(path), "tests/bad/pickle/%s.pkl", bad[i].name);
		for (size_t w = 0; w < DCP_LEN(windows); w++) {
			struct dcp_pickle *p = NULL;
			struct dcp_err err;

			assert_int_equal(read_file(path, windows[w], &p, &err), bad[i].code);
			assert_int_equal(err.code, bad[i].code);
			t_assert_says(&err, bad[i].says);
			assert_null(p);
		}
	}
}

static void no_malformed_file_is_forgotten(void **state)
{
	DIR *dir = opendir("tests/bad/pickle");

	(void)state;
	assert_non_null(dir);
	for (struct dirent *d; (d = readdir(dir)) != NULL;) {
		bool listed = d->d_name[0] == '.';

		for (size_t i = 0; i < DCP_LEN(bad); i++)
			listed |= !strncmp(d->d_name, bad[i].name, strlen(bad[i].name)) &&
				  !strcmp(d->d_name + strlen(bad[i].name), ".pkl");
		if (!listed)
			fail_msg("no row for tests/bad/pickle/%s", d->d_name);
	}
	closedir(dir);
}

T_TESTS()
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(cpython_reads_the_same),
		cmocka_unit_test(every_cut_of_a_file_is_noticed),
		cmocka_unit_test(torch_metadata_is_read),
		cmocka_unit_test(malformed_files_are_refused),
		cmocka_unit_test(no_malformed_file_is_forgotten),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
