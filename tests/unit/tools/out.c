/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What people read: sizes, shapes, foreign text, tables, the progress line, and the list of
 * mounts that umount reads.
 */
#include "tests/unit/t.h"

#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <unistd.h>

#include "core/base/buf.h"
#include "core/checkpoint/mounts.h"
#include "tools/out.h"

/* clang-format off */
static const struct {
	uint64_t n;
	const char *size, *exact;
} sizes[] = {
	{ 0,                    "0 B",     "0 bytes" },
	{ 1,                    "1 B",     "1 byte" },
	{ 999,                  "999 B",   "999 bytes" },
	{ 1000,                 "1.00 kB", "1.00 kB (1,000 bytes)" },
	{ 1024,                 "1.02 kB", "1.02 kB (1,024 bytes)" },
	{ 9994,                 "9.99 kB", "9.99 kB (9,994 bytes)" },
	{ 9996,                 "10.0 kB", "10.0 kB (9,996 bytes)" },
	{ 99940,                "99.9 kB", "99.9 kB (99,940 bytes)" },
	{ 99960,                "100 kB",  "100 kB (99,960 bytes)" },
	{ 999400,               "999 kB",  "999 kB (999,400 bytes)" },
	{ 999500,               "1.00 MB", "1.00 MB (999,500 bytes)" },
	{ 1048576,              "1.05 MB", "1.05 MB (1,048,576 bytes)" },
	{ 140000000000,         "140 GB",  "140 GB (140,000,000,000 bytes)" },
	{ 18446744073709551615u, "18.4 EB", "18.4 EB (18,446,744,073,709,551,615 bytes)" },
};

static const struct {
	const char *what, *in, *out;
	size_t width;
} texts[] = {
	{ "plain text",               "model.norm",        "model.norm", 10 },
	{ "text in UTF-8",            "\xc3\xa4\xe2\x82\xac", "\xc3\xa4\xe2\x82\xac", 2 },
	{ "an escape sequence",       "a\033[31mb",        "a\\x1b[31mb", 10 },
	{ "newline and tab",          "a\n\tb",            "a\\x0a\\x09b", 10 },
	{ "DEL",                      "\x7f",              "\\x7f", 4 },
	{ "a C1 control",             "\xc2\x9b" "2J",     "\\xc2\\x9b2J", 10 },
	{ "an override of direction", "\xe2\x80\xaeok",   "\\xe2\\x80\\xaeok", 14 },
	{ "a byte order mark",        "\xef\xbb\xbf",     "\\xef\\xbb\\xbf", 12 },
	{ "a variation selector",     "\xef\xb8\x8f",     "\\xef\\xb8\\x8f", 12 },
	{ "a line separator",         "\xe2\x80\xa8",     "\\xe2\\x80\\xa8", 12 },
	{ "a dash beside those",      "\xe2\x80\x90",     "\xe2\x80\x90", 1 },
	{ "no-break space stays",     "\xc2\xa0",          "\xc2\xa0", 1 },
	{ "a byte that is not UTF-8", "a\xff" "b",         "a\\xffb", 6 },
	{ "a cut sequence",           "a\xe2\x82",         "a\\xe2\\x82", 9 },
	{ "NUL as C0 80",             "a\xc0\x80",         "a\\xc0\\x80", 9 },
	{ "nothing",                  "",                  "", 0 },
	{ "wide characters",          "a\xe9\x87\x8d\xe3\x81\xbf", "a\xe9\x87\x8d\xe3\x81\xbf", 5 },
	{ "a mark on a letter",       "e\xcc\x81" "x",    "e\xcc\x81" "x", 2 },
};

static const struct {
	const char *in;
	size_t max;
	bool utf8;
	const char *out;
} elided[] = {
	{ "abcdefghij", 10, false, "abcdefghij" },
	{ "abcdefghij", 9,  false, "ab..fghij" },
	{ "abcdefghij", 9,  true,  "ab\xe2\x80\xa6" "efghij" },
	{ "abcdefghij", 3,  false, "..j" },
	{ "abcdefghij", 2,  false, "ab" },
	{ "abcdefghij", 0,  false, "" },
	{ "layers.12.attention.weight", 16, true, "laye\xe2\x80\xa6" "12\xe2\x80\xa6" "n.weight" },
	{ "layers.22.attention.weight", 16, true, "laye\xe2\x80\xa6" "22\xe2\x80\xa6" "n.weight" },
	{ "12345678", 4, true, "\xe2\x80\xa6" "678" },
	{ "abcde\xe9\x87\x8d\xe9\x87\x8d\xe9\x87\x8d", 8, true, "a\xe2\x80\xa6\xe9\x87\x8d\xe9\x87\x8d\xe9\x87\x8d" },
	{ "\xe9\x87\x8d\xe9\x87\x8d", 3, false, ".." },
	{ "\xe9\x87\x8d\xe9\x87\x8d", 2, false, "\xe9\x87\x8d" },
	{ "abcdefe\xcc\x81", 4, true, "\xe2\x80\xa6" "efe\xcc\x81" },
	{ "\xc3\xa4\xc3\xb6\xc3\xbc\xc3\x9f\xc3\xa9", 4, true, "\xe2\x80\xa6\xc3\xbc\xc3\x9f\xc3\xa9" },
};

static const char mountinfo[] =
	"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
	"30 22 0:40 / /mnt/run1 ro,nosuid,nodev shared:9 master:3 - fuse.dcpfs /data/run1 ro,user_id=0\n"
	"31 22 0:41 / /mnt/with\\040space ro - fuse.dcpfs /data/a\\040b ro\n"
	"32 22 0:42 / /mnt/back\\134slash ro - fuse.dcpfs src ro\n"
	"33 22 0:43 / /mnt/other rw - tmpfs tmpfs rw\n"
	"34 33 0:44 / /mnt/other ro - fuse.dcpfs top ro\n"
	"35 22 0:45 / /mnt/under ro - fuse.dcpfs low ro\n"
	"36 35 0:46 / /mnt/under rw - tmpfs over rw\n"
	"37 22 0:47 / /mnt/cut ro\n"
	"nonsense\n"
	"\n"
	"38 22 0:48 / /mnt/last ro - fuse.sshfs host: ro";

static const struct {
	const char *what, *path, *fstype, *source;
} mounts[] = {
	{ "one of ours, with optional fields", "/mnt/run1",       "fuse.dcpfs", "/data/run1" },
	{ "a space in both names",             "/mnt/with space", "fuse.dcpfs", "/data/a b" },
	{ "a backslash",                       "/mnt/back\\slash", "fuse.dcpfs", "src" },
	{ "ours above another",                "/mnt/other",      "fuse.dcpfs", "top" },
	{ "another above ours",                "/mnt/under",      "tmpfs",      "over" },
	{ "a line that is cut",                "/mnt/cut",        NULL,         NULL },
	{ "no newline at the end",             "/mnt/last",       "fuse.sshfs", "host:" },
	{ "not there",                         "/mnt",            NULL,         NULL },
};
/* clang-format on */

static void sizes_are_printed(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(sizes); i++) {
		char size[OUT_SIZE], exact[64];

		t_case(sizes[i].size);
		assert_string_equal(out_size(size, sizes[i].n), sizes[i].size);
		assert_string_equal(out_size_exact(exact, sizes[i].n), sizes[i].exact);
	}
}

static void text_is_escaped_and_elided(void **state)
{
	(void)state;
	assert_non_null(setlocale(LC_CTYPE, "C.UTF-8")); /* what columns characters take */
	for (size_t i = 0; i < DCP_LEN(texts); i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

		t_case(texts[i].what);
		out_text(&b, texts[i].in);
		assert_string_equal(b.p ? b.p : "", texts[i].out);
		assert_int_equal(out_width(texts[i].out), texts[i].width);
	}
	for (size_t i = 0; i < DCP_LEN(elided); i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

		t_case(elided[i].out);
		out_elide(&b, elided[i].in, elided[i].max, elided[i].utf8);
		assert_string_equal(b.p ? b.p : "", elided[i].out);
	}
}

static void wrapping_keeps_words(void **state)
{
	static const struct {
		const char *what, *text;
		size_t col, indent, width;
		const char *want;
	} cases[] = {
		{ "what fits stays", "one two", 0, 2, 7, "one two" },
		{ "the last word goes down", "one two", 0, 2, 6, "one\n  two" },
		{ "a word wider than the line stands alone", "a wonderful b", 0, 1, 5,
		  "a\n wonderful\n b" },
		{ "from a column on", "one two", 5, 5, 11, "one\n     two" },
		{ "no width, no wrapping", "one two three", 0, 2, 0, "one two three" },
		{ "blanks are one", "  one   two  ", 0, 2, 80, "one two" },
		{ "columns, not bytes", "\xc3\xa4\xc3\xa4 \xc3\xb6", 0, 0, 4,
		  "\xc3\xa4\xc3\xa4 \xc3\xb6" },
		{ "nothing", "", 0, 2, 80, "" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

		t_case(cases[i].what);
		out_wrap(&b, cases[i].col, cases[i].indent, cases[i].width, cases[i].text);
		assert_string_equal(b.p ? b.p : "", cases[i].want);
	}
}

static void set(const char *name, const char *value)
{
	if (value)
		setenv(name, value, 1);
	else
		unsetenv(name);
}

/* Colours are for a terminal that has them, unless an option refuses them. */
static void colours_follow_the_terminal(void **state)
{
	static const struct {
		const char *what, *term, *no_color;
		bool tty, color;
	} cases[] = {
		{ "a terminal", "xterm", NULL, true, true },
		{ "NO_COLOR", "xterm", "1", true, false },
		{ "an empty NO_COLOR says nothing", "xterm", "", true, true },
		{ "one without colours", "dumb", NULL, true, false },
		{ "one of no name", NULL, NULL, true, false },
		{ "a file", "xterm", NULL, false, false },
	};
	int before = dup(STDOUT_FILENO), pty = posix_openpt(O_RDWR | O_NOCTTY), fd[2];

	(void)state;
	assert_true(pty >= 0 && grantpt(pty) == 0 && unlockpt(pty) == 0);
	fd[0] = open("/dev/null", O_WRONLY | O_CLOEXEC);
	fd[1] = open(ptsname(pty), O_RDWR | O_NOCTTY | O_CLOEXEC);
	assert_true(fd[0] >= 0 && fd[1] >= 0);
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct out o;

		t_case(cases[i].what);
		set("TERM", cases[i].term);
		set("NO_COLOR", cases[i].no_color);
		fflush(stdout);
		dup2(fd[cases[i].tty], STDOUT_FILENO);
		out_init(&o, OUT_TEXT);
		dup2(before, STDOUT_FILENO);
		assert_int_equal(o.color, cases[i].color);
		out_finish(&o);
	}
	close(fd[0]);
	close(fd[1]);
	close(pty);
	close(before);
}

static void causes_are_printed(void **state)
{
	static const struct out_left left[] = {
		{ "object", "o", "no text" },
		{ "tensor", "a", "x.pt: piece at [0]: cut" },
		{ "tensor", "b", "no such numbers" },
		{ "tensor", "c", "x.pt: piece at [4]: gone" },
		{ "tensor", "d", "no such numbers" },
		{ "tensor", "e", "no such numbers" },
		{ "tensor", "f", "no such numbers" },
		{ "tensor", "g", "x.pt: piece at [8]: gone" },
	};
	struct out o = { 0 };

	(void)state;
	t_case("tensors first, those with one cause together, three of them by name");
	out_causes(&o, "out:", left, DCP_LEN(left));
	assert_string_equal(o.buf.p, "out: 4 tensors b, d, e, ...: no such numbers\n"
				     "out: 3 tensors a, c, g: x.pt: piece at [0]: cut\n"
				     "out: 1 object o: no text\n");
	out_finish(&o);
}

static void times_are_printed(void **state)
{
	char buf[32];

	(void)state;
	assert_string_equal(out_time(buf, 0, true), "1970-01-01T00:00:00Z");
	assert_string_equal(out_time(buf, -1, true), "1969-12-31T23:59:59Z");
	assert_string_equal(out_time(buf, 1769770929999999999, true), "2026-01-30T11:02:09Z");
	out_time(buf, INT64_MAX, true);
	out_time(buf, INT64_MIN, true);
}

static const struct out_col cols[] = { { "KEY", .flex = true },
				       { "N", .right = true },
				       { "NOTE" } };

static void table_to(struct out *o, unsigned width, const char *key)
{
	struct out_table t;

	*o = (struct out){ .width = width };
	out_table_init(&t, cols, DCP_LEN(cols));
	out_table_cell(&t, key);
	out_table_printf(&t, "%d", 5);
	out_table_cell(&t, "");
	out_table_cell(&t, "b");
	out_table_printf(&t, "%d", 12345);
	out_table_cell(&t, "yes");
	out_table_print(&t, o, 2);
	out_table_finish(&t);
}

static void tables_are_aligned(void **state)
{
	struct out o;

	(void)state;
	t_case("columns line up and no line ends in a blank");
	table_to(&o, 0, "alpha");
	assert_string_equal(o.buf.p, "  KEY        N  NOTE\n"
				     "  alpha      5\n"
				     "  b      12345  yes\n");
	out_finish(&o);
	t_case("a long key gives way when the table must fit");
	table_to(&o, 30, "model.layers.10.attention.wq.weight");
	assert_string_equal(o.buf.p, "  KEY                  N  NOTE\n"
				     "  mod..10..weight      5\n"
				     "  b                12345  yes\n");
	out_finish(&o);
}

static void columns_give_way(void **state)
{
	static const struct out_col four[] = { { "KEY", .flex = true },
					       { "TYPE", .least = 6 },
					       { "N", .right = true },
					       { "NOTE" } };
	static const char *const cells[] = {
		"model.norm.weight",     "F32", "1", "", "train.info",
		"trainer_types.RunInfo", "",    ""
	};
	struct out o = { .width = 30 };
	struct out_table t;

	(void)state;
	t_case("an empty column goes, a type is shortened, the key stays whole");
	out_table_init(&t, four, DCP_LEN(four));
	for (size_t i = 0; i < DCP_LEN(cells); i++)
		out_table_cell(&t, cells[i]);
	out_table_print(&t, &o, 0);
	assert_string_equal(o.buf.p, "KEY                TYPE      N\n"
				     "model.norm.weight  F32       1\n"
				     "train.info         tr..Info\n");
	out_finish(&o);
	out_table_finish(&t);
}

static void empty_numbers_keep_their_place(void **state)
{
	static const struct out_col three[] = { { "A", .right = true },
						{ "BBB", .right = true },
						{ "C" } };
	static const char *const cells[] = { "1", "", "x", "22", "333", "y", "", "", "z" };
	struct out o = { 0 };
	struct out_table t;

	(void)state;
	t_case("a number that is not there keeps its place");
	out_table_init(&t, three, DCP_LEN(three));
	for (size_t i = 0; i < DCP_LEN(cells); i++)
		out_table_cell(&t, cells[i]);
	out_table_print(&t, &o, 0);
	assert_string_equal(o.buf.p, " A  BBB  C\n"
				     " 1       x\n"
				     "22  333  y\n"
				     "         z\n");
	out_finish(&o);
	out_table_finish(&t);
}

/* clang-format off */
static const struct out_field list_fields[] = {
	{ "kind", .only = OUT_ONLY_TSV }, { "key", "KEY", OUT_NAME }, { NULL, "STATE", OUT_STATE },
	{ "shape", "SHAPE" }, { "nbytes", "SIZE", OUT_BYTES }, { NULL, "BYTES", OUT_COUNT, OUT_LONG },
	{ "part", "PART", OUT_PART, .none = "-" }, { "changed", "CHANGED", OUT_SOME },
	{ "took", "TIME", OUT_SECONDS }, { "ok" }, { "note", .only = OUT_ONLY_JSON }, { NULL }
};

static const struct {
	const char *what;
	enum out_form form;
	bool lengthy;
	const char *text;
} lists[] = {
	{ "a table", OUT_TEXT, .text =
	  "KEY      STATE  SHAPE       SIZE   PART  CHANGED     TIME\n"
	  "a,\\x09b  ok     [16, 8]  2.05 kB  33.3%    1,000  1.500 s\n"
	  "c                                     -\n" },
	{ "with more columns", OUT_TEXT, .lengthy = true, .text =
	  "KEY      STATE  SHAPE       SIZE  BYTES   PART  CHANGED     TIME\n"
	  "a,\\x09b  ok     [16, 8]  2.05 kB  2,048  33.3%    1,000  1.500 s\n"
	  "c                                            -\n" },
	{ "JSON", OUT_JSON, .text =
	  "[{\"key\":\"a,\\tb\",\"shape\":[16,8],\"nbytes\":2048,\"part\":0.3333,\"changed\":1000,"
	  "\"took\":1.5,\"ok\":true,\"note\":null},{\"key\":\"c\",\"part\":null,\"changed\":0}]\n" },
	{ "TSV", OUT_TSV, .text =
	  "kind\tkey\tshape\tnbytes\tpart\tchanged\ttook\tok\n"
	  "tensor\ta,\\x09b\t[16, 8]\t2048\t0.3333\t1000\t1.500000000\ttrue\n"
	  "\tc\t\t\t\t0\t\t\n" },
	{ "CSV", OUT_CSV, .text =
	  "kind,key,shape,nbytes,part,changed,took,ok\n"
	  "tensor,\"a,\\x09b\",\"[16, 8]\",2048,0.3333,1000,1.500000000,true\n"
	  ",c,,,,0,,\n" },
	{ "names", OUT_NAMES, .text = "a,\\x09b\nc\n" },
};
/* clang-format on */

static void lists_have_all_fields_in_every_form(void **state)
{
	static const uint64_t shape[] = { 16, 8 };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(lists); i++) {
		struct out o = { .form = lists[i].form, .lengthy = lists[i].lengthy };

		t_case(lists[i].what);
		dcp_jsonw_init(&o.json, &o.buf, false);
		out_list(&o, NULL, list_fields);
		out_row(&o);
		out_put_str(&o, "kind", "tensor");
		out_put_str(&o, "key", "a,\tb");
		out_put_str(&o, "STATE", "ok");
		out_put_dims(&o, "shape", shape, 2);
		out_put_u64(&o, "nbytes", 2048);
		out_put_u64(&o, "BYTES", 2048);
		out_put_f64(&o, "part", 0.3333);
		out_put_u64(&o, "changed", 1000);
		out_put_seconds(&o, "took", 1.5);
		out_put_bool(&o, "ok", true);
		out_put_str(&o, "note", NULL);
		out_row_end(&o);
		out_row(&o);
		out_put_str(&o, "key", "c");
		out_put_f64(&o, "part", NAN);
		out_put_u64(&o, "changed", 0);
		out_row_end(&o);
		out_list_end(&o, true);
		dcp_buf_str(&o.buf, o.form == OUT_JSON ? "\n" : "");
		assert_string_equal(o.buf.p, lists[i].text);
		out_finish(&o);
	}
}

static void lists_without_rows_have_heads(void **state)
{
	static const char *const want[] = { "",
					    "KEY  STATE  SHAPE  SIZE  PART  CHANGED  TIME\n" };

	(void)state;
	for (size_t heads = 0; heads < 2; heads++) {
		struct out o = { 0 };

		t_case(heads ? "has its heads where that is asked for" : "is nothing");
		out_list(&o, NULL, list_fields);
		out_list_end(&o, heads);
		assert_string_equal(o.buf.p ? o.buf.p : "", want[heads]);
		out_finish(&o);
	}
}

static void every_line_fits(void **state)
{
	(void)state;
	for (unsigned width = 40; width < 100; width++) {
		struct out o;

		table_to(&o, width,
			 "a.very.long.key.indeed.with.many.components.and.more.of.them."
			 "than.any.reader.would.like.to.type");
		for (char *line = o.buf.p; *line;) {
			size_t n = strcspn(line, "\n");

			assert_true(n <= width);
			line += n + 1;
		}
		out_finish(&o);
	}
}

static void mounts_are_found(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(mounts); i++) {
		FILE *f = tmpfile();
		struct dcp_mount m = { 0 };
		int found;

		t_case(mounts[i].what);
		assert_non_null(f);
		fputs(mountinfo, f);
		rewind(f);
		found = dcp_mounts_read(f, mounts[i].path, &m);
		fclose(f);
		assert_int_equal(found, mounts[i].fstype != NULL);
		if (found) {
			assert_string_equal(m.fstype, mounts[i].fstype);
			assert_string_equal(m.source, mounts[i].source);
		}
	}
}

/* Those that would look the same when they are shortened are not. */
static void names_stay_different(void **state)
{
	static const struct out_col key_cols[] = { { "KEY", .flex = true },
						   { "N", .right = true } };
	static const char *const keys[] = { "model.layers.7.encoder_block.attention.weight",
					    "model.layers.7.decoder_block.attention.weight",
					    "model.layers.17.decoder_block.attention.weight" };
	struct out o = { .width = 30, .utf8 = true };
	struct out_table t;

	(void)state;
	out_table_init(&t, key_cols, DCP_LEN(key_cols));
	for (size_t i = 0; i < DCP_LEN(keys); i++) {
		out_table_cell(&t, keys[i]);
		out_table_printf(&t, "%zu", i);
	}
	out_table_print(&t, &o, 0);
	assert_string_equal(o.buf.p, "KEY                          N\n"
				     "model.la\xe2\x80\xa6"
				     "7\xe2\x80\xa6"
				     "e\xe2\x80\xa6tention.weight  0\n"
				     "model.la\xe2\x80\xa6"
				     "7\xe2\x80\xa6"
				     "d\xe2\x80\xa6tention.weight  1\n"
				     "model.la\xe2\x80\xa6"
				     "17\xe2\x80\xa6ttention.weight  2\n");
	out_table_finish(&t);
	dcp_buf_finish(&o.buf);
}

static void progress_lines_are_printed(void **state)
{
	static const char *const name = "decompressing model-00001-of-00030.safetensors.gz";
	char line[256];

	(void)state;
	progress_line(line, sizeof(line), 100, true, "shards", 500000000, 1000000000, 5e8);
	assert_string_equal(line,
			    "shards [##########..........]  50% 500 MB of 1.00 GB 500 MB/s "
			    "0:01 left");
	progress_line(line, sizeof(line), 100, false, "tensors", 7, 7, 7);
	assert_string_equal(line, "tensors [####################] 100% 7 of 7 7/s");
	t_case("more than all is all");
	progress_line(line, sizeof(line), 100, false, "x", 9, 7, 0);
	assert_non_null(strstr(line, "100%"));
	t_case("an unknown total has no bar");
	progress_line(line, sizeof(line), 100, false, "x", 9, 0, 9);
	assert_string_equal(line, "x 9 9/s");
	t_case("a slow start has an end in sight, even if far");
	progress_line(line, sizeof(line), 200, true, "x", 1, UINT64_MAX, 1);
	assert_non_null(strstr(line, "99:59:59 left"));
	t_case("40 columns");
	progress_line(line, sizeof(line), 39, true, name, 500000000, 1000000000, 5e8);
	assert_string_equal(line, "decompressing..  50% 500 MB/s 0:01 left");
	for (unsigned width = 20; width < 120; width++) {
		progress_line(line, sizeof(line), width, true, name, 1, 3, 5);
		assert_true(strlen(line) <= width);
		assert_non_null(strstr(line, " 33%"));
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_are_printed),
		cmocka_unit_test(text_is_escaped_and_elided),
		cmocka_unit_test(wrapping_keeps_words),
		cmocka_unit_test(colours_follow_the_terminal),
		cmocka_unit_test(times_are_printed),
		cmocka_unit_test(causes_are_printed),
		cmocka_unit_test(tables_are_aligned),
		cmocka_unit_test(columns_give_way),
		cmocka_unit_test(empty_numbers_keep_their_place),
		cmocka_unit_test(lists_have_all_fields_in_every_form),
		cmocka_unit_test(lists_without_rows_have_heads),
		cmocka_unit_test(every_line_fits),
		cmocka_unit_test(mounts_are_found),
		cmocka_unit_test(progress_lines_are_printed),
		cmocka_unit_test(names_stay_different),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
