/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines against tables.
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "tools/opt.h"

struct got {
	bool flag, other, word;
	int form;
	const char *text;
	uint64_t n, mode, size;
	uint32_t id, next; /* next: nothing is written after id */
	int choice;
};

static const char *const choices[] = { "one", "two", NULL };

/* clang-format off */
static const struct opt sub[] = {
	{ 0, "word",  NULL,    "a flag",       OPT_FLAG,   .off = offsetof(struct got, word) },
	{ 0, "id",    "N",     "a number",     OPT_UINT,   .off = offsetof(struct got, id),
	  .bytes = sizeof(uint32_t), .max = 100, .def = 7 },
	{ 0, "mode",  "OCTAL", "a mode",       OPT_OCTAL,  .off = offsetof(struct got, mode), .max = 0777 },
	{ 0, "old",   NULL,    "nothing",      OPT_PASS },
	{ 0, "x-*",   NULL,    "nothing",      OPT_PASS },
	{ 0, "never", NULL,    "not possible", OPT_REFUSE },
	OPT_END
};

static const struct opt opts[] = {
	{ 'f', "flag",   NULL,   "a flag",    OPT_FLAG,   .off = offsetof(struct got, flag) },
	{ 'g', "other",  NULL,   "another",   OPT_FLAG,   .off = offsetof(struct got, other) },
	{ 't', "text",   "TEXT", "a text",    OPT_TEXT,   .off = offsetof(struct got, text) },
	{ 0,   "first",  NULL,   "a form",    OPT_FORM,   .off = offsetof(struct got, form), .def = 1 },
	{ 0,   "second", NULL,   "a form",    OPT_FORM,   .off = offsetof(struct got, form), .def = 2 },
	{ 0,   "number", "N",    "a number",  OPT_UINT,   .off = offsetof(struct got, n), .def = 5 },
	{ 0,   "size",   "SIZE", "bytes",     OPT_SIZE,   .off = offsetof(struct got, size) },
	{ 0,   "choice", "WHAT", "a choice",  OPT_CHOICE, .off = offsetof(struct got, choice),
	  .choices = choices },
	{ 'o', "list",   "LIST", "a list",    OPT_LIST,   .sub = sub },
	OPT_END
};

static const struct opt_operand operands[] = {
	{ "SOURCE", false, OPT_SOURCE }, { "MORE", true, OPT_ANY }, { 0 }
};

#define DEF .n = 5, .id = 7

static const struct {
	const char *what;
	const char *line; /* words separated by '|' */
	struct got want;
	const char *operand[2];
	const char *says; /* NULL: it is accepted */
} rows[] = {
	{ "an operand alone",              "s",                       { DEF }, { "s" }, NULL },
	{ "both operands",                 "s|m",                     { DEF }, { "s", "m" }, NULL },
	{ "no operand",                    "-f",                      { DEF }, { 0 }, "SOURCE is missing" },
	{ "one operand too many",          "s|m|x",                   { DEF }, { 0 }, "\"x\" is one operand too many" },
	{ "options before operands",       "-f|s",                    { DEF, .flag = true }, { "s" }, NULL },
	{ "options behind operands",       "s|-f",                    { DEF, .flag = true }, { "s" }, NULL },
	{ "a bundle of letters",           "-fg|s",                   { DEF, .flag = true, .other = true }, { "s" }, NULL },
	{ "a letter's value apart",        "-t|v|s",                  { DEF, .text = "v" }, { "s" }, NULL },
	{ "a letter's value attached",     "-ftv|s",                  { DEF, .flag = true, .text = "v" }, { "s" }, NULL },
	{ "a letter without its value",    "s|-t",                    { DEF }, { 0 }, "-t needs TEXT" },
	{ "a long flag",                   "--flag|s",                { DEF, .flag = true }, { "s" }, NULL },
	{ "a long value apart",            "--text|v|s",              { DEF, .text = "v" }, { "s" }, NULL },
	{ "a long value attached",         "--text=v=w|s",            { DEF, .text = "v=w" }, { "s" }, NULL },
	{ "an empty value",                "--text=|s",               { DEF, .text = "" }, { "s" }, NULL },
	{ "a long option without value",   "s|--text",                { DEF }, { 0 }, "--text needs TEXT" },
	{ "a value for a flag",            "--flag=1|s",              { DEF }, { 0 }, "--flag takes no value" },
	{ "a value that looks like one",   "--text|-f|s",             { DEF, .text = "-f" }, { "s" }, NULL },
	{ "the last one counts",           "--text=a|--text=b|s",     { DEF, .text = "b" }, { "s" }, NULL },
	{ "a slip of the finger",          "--flog|s",                { DEF }, { 0 }, "no option --flog; nearest is --flag" },
	{ "nothing like it",               "--qqqqqqqq|s",            { DEF }, { 0 }, "no option --qqqqqqqq" },
	{ "prefixes are not names",        "--fla|s",                 { DEF }, { 0 }, "nearest is --flag" },
	{ "an unknown letter",             "-z|s",                    { DEF }, { 0 }, "no option -z" },
	{ "quiet, beside another",         "-qf|s",                   { DEF, .flag = true }, { "s" }, NULL },
	{ "a lone dash is an operand",     "-",                       { DEF }, { "-" }, NULL },
	{ "two dashes end the options",    "--|-f",                   { DEF }, { "-f" }, NULL },
	{ "a form",                        "--second|s",              { DEF, .form = 2 }, { "s" }, NULL },
	{ "a form twice",                  "--first|--first|s",       { DEF, .form = 1 }, { "s" }, NULL },
	{ "two forms",                     "--second|--first|s",      { DEF }, { 0 }, "--second and --first do not go together" },
	{ "a number",                      "--number=12|s",           { .n = 12, .id = 7 }, { "s" }, NULL },
	{ "the largest number",            "--number=18446744073709551615|s",
	  { .n = UINT64_MAX, .id = 7 }, { "s" }, NULL },
	{ "a number beyond 64 bits",       "--number=18446744073709551616|s", { DEF }, { 0 }, "--number takes a number" },
	{ "a number that wraps to small",  "--number=36893488147419103233|s", { DEF }, { 0 }, "--number takes a number" },
	{ "a number that wraps at its digits", "--number=30000000000000000000|s", { DEF }, { 0 }, "--number takes a number" },
	{ "a number of 40 digits",         "--number=1000000000000000000000000000000000000000|s", { DEF }, { 0 }, "--number takes a number" },
	{ "zeros in front of a number",    "--number=0000000000000000000000000000000000000012|s", { .n = 12, .id = 7 }, { "s" }, NULL },
	{ "a negative number",             "--number=-1|s",           { DEF }, { 0 }, "not \"-1\"" },
	{ "a number with a unit",          "--number=1k|s",           { DEF }, { 0 }, "not \"1k\"" },
	{ "bytes",                         "--size=123|s",            { DEF, .size = 123 }, { "s" }, NULL },
	{ "bytes of a thousand",           "--size=5MB|s",            { DEF, .size = 5000000 }, { "s" }, NULL },
	{ "bytes of 1024",                 "--size=3GiB|s",           { DEF, .size = 3ull << 30 }, { "s" }, NULL },
	{ "the same, short",               "--size=2T|s",             { DEF, .size = 2ull << 40 }, { "s" }, NULL },
	{ "bytes beyond 64 bits",          "--size=16384PiB|s",       { DEF }, { 0 }, "like 500MB or 32GiB, not \"16384PiB\"" },
	{ "bytes that wrap at their digits", "--size=30000000000000000000|s", { DEF }, { 0 }, "not \"30000000000000000000\"" },
	{ "bytes of 40 digits",            "--size=1000000000000000000000000000000000000000K|s", { DEF }, { 0 }, "like 500MB" },
	{ "zeros in front of bytes",       "--size=000000000000000000000003K|s", { DEF, .size = 3072 }, { "s" }, NULL },
	{ "bytes of no such unit",         "--size=1X|s",             { DEF }, { 0 }, "not \"1X\"" },
	{ "a unit without a number",       "--size=GB|s",             { DEF }, { 0 }, "not \"GB\"" },
	{ "something behind the unit",     "--size=1GBs|s",           { DEF }, { 0 }, "not \"1GBs\"" },
	{ "a choice",                      "--choice=two|s",          { DEF, .choice = 1 }, { "s" }, NULL },
	{ "a choice in capitals",          "--choice=TWO|s",          { DEF, .choice = 1 }, { "s" }, NULL },
	{ "not a choice",                  "--choice=three|s",        { DEF }, { 0 }, "one of one, two, not \"three\"" },
	{ "a list",                        "-o|word,id=3,mode=022|s", { .n = 5, .word = true, .id = 3, .mode = 022 }, { "s" }, NULL },
	{ "a list in two parts",           "-o|word|-o|id=3|s",       { .n = 5, .word = true, .id = 3 }, { "s" }, NULL },
	{ "a list attached",               "-oword|s",                { DEF, .word = true }, { "s" }, NULL },
	{ "empty items of a list",         "-o|,word,,|s",            { DEF, .word = true }, { "s" }, NULL },
	{ "words that are passed over",    "-o|old,x-a.b=c,x-|s",     { DEF }, { "s" }, NULL },
	{ "a word that is refused",        "-o|never|s",              { DEF }, { 0 }, "-o never: not possible" },
	{ "an unknown word",               "-o|wort|s",               { DEF }, { 0 }, "no option -o wort; nearest is -o word" },
	{ "a word without its value",      "-o|id|s",                 { DEF }, { 0 }, "-o id needs =N" },
	{ "a word with a value",           "-o|word=1|s",             { DEF }, { 0 }, "-o word takes no value" },
	{ "a number above its limit",      "-o|id=101|s",             { DEF }, { 0 }, "from 0 to 100, not \"101\"" },
	{ "a mode with the digit 8",       "-o|mode=08|s",            { DEF }, { 0 }, "octal number up to 0777, not \"08\"" },
	{ "a mode with too many bits",     "-o|mode=1000|s",          { DEF }, { 0 }, "up to 0777" },
};
/* clang-format on */

/* Cut @line at '|' into @argv; returns how many words. */
static int split(char *line, char **argv)
{
	int argc = 0;
	char *word;

	while ((word = strsep(&line, "|")))
		argv[argc++] = word;
	return argc;
}

static void assert_same_text(const char *got, const char *want)
{
	if (want)
		assert_string_equal(got, want);
	else
		assert_null(got);
}

/* Words find their rows: optional ones are left out from the left. */
static void operands_find_their_rows(void **state)
{
	static const struct opt_operand key[] = { { "SOURCE", false, OPT_SOURCE },
						  { "VERSION", true, OPT_VERSION },
						  { "KEY", false, OPT_KEY },
						  { 0 } };
	static const struct opt_operand may[] = { { "SOURCE", false, OPT_SOURCE },
						  { "VERSION", true, OPT_VERSION },
						  { "KEY", true, OPT_KEY },
						  { 0 } };
	static const struct opt version[] = {
		{ .name = "version", .arg = "V", .kind = OPT_OPERAND, .what = OPT_VERSION },
		OPT_END
	};
	static const struct {
		const char *what, *line;
		const struct opt_operand *operands;
		const char *want[3];
		const char *says;
	} cases[] = {
		{ "the middle is left out", "s|k", key, { "s", NULL, "k" }, NULL },
		{ "all three", "s|v|k", key, { "s", "v", "k" }, NULL },
		{ "the last is missing", "s", key, { 0 }, "KEY is missing" },
		{ "the first of two optional is left out",
		  "s|k",
		  may,
		  { "s", NULL, "k" },
		  NULL },
		{ "both are left out", "s", may, { "s" }, NULL },
		{ "by an option", "s|--version=v|k", key, { "s", "v", "k" }, NULL },
		{ "by an option in front", "--version|v|s", may, { "s", "v" }, NULL },
		{ "the last option counts",
		  "--version=u|--version=v|s",
		  may,
		  { "s", "v" },
		  NULL },
		{ "by both",
		  "s|u|k|--version=v",
		  key,
		  { 0 },
		  "\"k\" is one operand too many: VERSION was given by an option" },
		{ "an empty word", "s||k", key, { 0 }, "VERSION is an empty word" },
		{ "an empty key", "s|", key, { "s", NULL, "" }, NULL },
		{ "four", "s|v|k|x", key, { 0 }, "\"x\" is one operand too many" },
		{ "six", "s|v|k|x|y|z", key, { 0 }, "\"x\" is one operand too many" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		char line[64], *argv[8];
		struct opt_args args;
		struct dcp_err err = { 0 };
		int rc, none;

		t_case(cases[i].what);
		snprintf(line, sizeof(line), "%s", cases[i].line);
		rc = opt_parse(version, cases[i].operands, split(line, argv), argv, &none,
			       &args, &err);
		assert_int_equal(rc, cases[i].says ? -EINVAL : 0);
		if (cases[i].says)
			t_assert_says(&err, cases[i].says);
		for (size_t k = 0; !cases[i].says && k < 3; k++)
			assert_same_text(args.operand[k], cases[i].want[k]);
	}
}

static void options_are_parsed(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		char line[128], *argv[16];
		struct got got = { 0 };
		struct opt_args args;
		struct dcp_err err = { 0 };
		int rc;

		t_case(rows[i].what);
		snprintf(line, sizeof(line), "%s", rows[i].line);
		rc = opt_parse(opts, operands, split(line, argv), argv, &got, &args, &err);
		if (rows[i].says) {
			assert_int_equal(rc, -EINVAL);
			t_assert_says(&err, rows[i].says);
			continue;
		}
		assert_int_equal(rc, 0);
		assert_false(args.help);
		assert_same_text(args.operand[0], rows[i].operand[0]);
		assert_same_text(args.operand[1], rows[i].operand[1]);
		assert_same_text(got.text, rows[i].want.text);
		got.text = rows[i].want.text;
		assert_int_equal(got.form, rows[i].want.form);
		assert_int_equal(got.flag, rows[i].want.flag);
		assert_int_equal(got.other, rows[i].want.other);
		assert_int_equal(got.word, rows[i].want.word);
		assert_int_equal(got.n, rows[i].want.n);
		assert_int_equal(got.mode, rows[i].want.mode);
		assert_int_equal(got.id, rows[i].want.id);
		assert_int_equal(got.next, rows[i].want.next);
		assert_int_equal(got.size, rows[i].want.size);
		assert_int_equal(got.choice, rows[i].want.choice);
	}
}

/* One that may be repeated: as often as there is room. */
static void repeated_options_have_a_limit(void **state)
{
	struct {
		struct opt_texts texts;
		const char *next;
	} got;
	const struct opt repeated[] = {
		{ .letter = 'k', .name = "key", .arg = "KEY", .kind = OPT_TEXTS }, OPT_END
	};
	static const struct opt_operand none[] = { { 0 } };
	char line[] = "-kx", *argv[OPT_MAX_TEXTS + 1];
	struct dcp_err err = { 0 };
	struct opt_args args;

	(void)state;
	for (int n = OPT_MAX_TEXTS; n <= OPT_MAX_TEXTS + 1; n++) {
		memset(&got, 0, sizeof(got));
		for (int i = 0; i < n; i++)
			argv[i] = line;
		assert_int_equal(opt_parse(repeated, none, n, argv, &got, &args, &err),
				 n > OPT_MAX_TEXTS ? -EINVAL : 0);
		assert_int_equal(got.texts.n, OPT_MAX_TEXTS);
		assert_string_equal(got.texts.v[OPT_MAX_TEXTS - 1], "x");
		assert_null(got.next);
	}
	t_assert_says(&err, "--key: at most 64 times");
}

static void values_are_spelled(void **state)
{
	static const struct opt given = { 0,
					  "text",
					  "TEXT",
					  "",
					  OPT_TEXT,
					  .off = offsetof(struct got, text),
					  .alike = OPT_GIVEN };
	struct got got = {
		.flag = true, .text = "a b", .n = 5, .size = 1ull << 40, .choice = 1
	};
	static const char *const want[] = { "yes",           "no", "a b", "", "", "5",
					    "1099511627776", NULL, "" };

	(void)state;
	for (size_t i = 0; opts[i].name; i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

		t_case(opts[i].name);
		opt_value(&opts[i], &got, &b);
		assert_string_equal(b.p ? b.p : "", want[i] ? want[i] : choices[1]);
	}
	for (int none = 0; none < 2; none++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

		got.text = none ? NULL : "x";
		got.choice = 99; /* a default that is none of the choices */
		opt_value(&given, &got, &b);
		assert_string_equal(b.p, none ? "no" : "yes");
		dcp_buf_reset(&b);
		opt_value(opt_by_name(opts, "choice", 6), &got, &b);
		assert_string_equal(b.p ? b.p : "", "");
	}
}

/* Help wins over what is missing, but not over an error in front of it. */
static void help_wins_over_missing_words(void **state)
{
	static const struct {
		const char *what, *line;
		int rc;
	} cases[] = {
		{ "-h alone", "-h", 0 },
		{ "--help behind an operand", "s|--help", 0 },
		{ "-h in a bundle", "-fh", 0 },
		{ "behind nonsense", "--nonsense|--help", -EINVAL },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		char line[64], *argv[8];
		struct got got = { 0 };
		struct opt_args args;

		t_case(cases[i].what);
		snprintf(line, sizeof(line), "%s", cases[i].line);
		assert_int_equal(
			opt_parse(opts, operands, split(line, argv), argv, &got, &args, NULL),
			cases[i].rc);
		assert_int_equal(args.help, cases[i].rc == 0);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_are_parsed),
		cmocka_unit_test(operands_find_their_rows),
		cmocka_unit_test(repeated_options_have_a_limit),
		cmocka_unit_test(values_are_spelled),
		cmocka_unit_test(help_wins_over_missing_words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
