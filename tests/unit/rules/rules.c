/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules as a text: what fits which key, what comes out, and what is said of texts that are wrong.
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/rules/rules.h"
#include "tests/unit/t/sink.h"

static struct dcp_rules *parse(const char *text)
{
	struct dcp_rules *r = NULL;
	struct dcp_err err = { 0 };

	if (dcp_rules_parse(text, strlen(text), "x", &r, &err) < 0)
		fail_msg("%s", err.msg);
	return r;
}

/* ---- a source of keys, each a scalar ---- */

struct keys {
	const char *const *key; /* NULL-ended */
	const char *broken;     /* one that cannot be read */
	const char *part, *bias;
};

static int list_keys(void *ctx, int (*fn)(void *, uint64_t, const char *), void *fn_ctx,
		     struct dcp_err *err)
{
	const struct keys *k = ctx;
	int rc = 0;

	(void)err;
	for (uint64_t i = 0; rc == 0 && k->key[i]; i++)
		rc = fn(fn_ctx, i, k->key[i]);
	return rc;
}

static int tensor_of_key(void *ctx, uint64_t number, struct dcp_arena *arena,
			 struct dcp_tensor *out, struct dcp_err *err)
{
	const struct keys *k = ctx;
	struct dcp_piece *p = dcp_arena_calloc(arena, 1, sizeof(*p));

	(void)err;
	assert_non_null(p);
	*p = (struct dcp_piece){ .run_n = 1, .off = number, .nbytes = 1, .file = 1 };
	*out = (struct dcp_tensor){ .key = k->key[number],
				    .dtype = DCP_DTYPE_U8,
				    .dtype_name = "U8",
				    .itemsize = 1,
				    .pieces = p,
				    .npieces = 1 };
	if (k->broken && strcmp(k->broken, out->key) == 0)
		out->error = "a.bin: gone";
	return 0;
}

static void note(void *ctx, enum dcp_rules_what what, const char *key, unsigned line,
		 const char *text)
{
	static const char *const names[] = { "unmatched", "collision", "failed", "unused" };

	dcp_buf_printf(ctx, "%s %s %u: %s\n", names[what], key ? key : "-", line, text);
}

static const struct dcp_file_id files[] = { { .name = "a.bin" }, { .name = "b.bin" } };

/* What comes out of the keys, "DST=<number of the key>" separated by blanks, and what is said. */
static void map(const char *rules, const struct keys *k, struct dcp_buf *out,
		struct dcp_buf *said, struct dcp_rules_report *report)
{
	static const struct dcp_rules_config config = { .heads = 4, .kv_heads = 4, .vocab = 9 };
	struct dcp_rules *r = parse(rules);
	struct dcp_rules_source from = { .list = list_keys,
					 .tensor = tensor_of_key,
					 .config = &config,
					 .ctx = (void *)(uintptr_t)k,
					 .files = files,
					 .nfiles = 2,
					 .part = k->part,
					 .adapter = { k->bias } };
	struct dcp_err err = { 0 };
	struct t_sink s;

	t_sink_init(&s, NULL);
	*report = (struct dcp_rules_report){ .say = note, .ctx = said };
	assert_int_equal(dcp_rules_map(r, &from, &s.sink, report, &err), 0);
	for (size_t i = 0; i < s.ntensors; i++) {
		const struct dcp_tensor *t = &s.tensor[i];

		dcp_buf_printf(out, "%s%s", i ? " " : "", t->key);
		if (t->error) {
			dcp_buf_printf(out, "!(%s)", t->error);
			continue;
		}
		assert_int_equal(t->npieces, 1);
		assert_string_equal(s.file[t->pieces[0].file], "b.bin");
		dcp_buf_printf(out, "=%llu", (unsigned long long)t->pieces[0].off);
	}
	dcp_buf_add(out, "", 0);
	t_sink_finish(&s);
	dcp_rules_free(r);
}

#define KEYS(...) ((const char *const[]){ __VA_ARGS__, NULL })

/* clang-format off */
static const struct {
	const char *what, *rules;
	const char *const *keys;
	const char *want, *part, *bias;
} maps[] = {
	{ "everything as it is", "* -> *\n", KEYS("a", "b.c"), "a=0 b.c=1" },
	{ "the first rule wins", "a -> x\n* -> *", KEYS("a", "b"), "x=0 b=1" },
	{ "anchored", "a -> x\n", KEYS("aa", "ba", "a"), "x=2" },
	{ "a number carries over", "l.{i}.w -> layers.{i}.weight", KEYS("l.0.w", "l.17.w", "l.x.w"),
	  "layers.0.weight=0 layers.17.weight=1" },
	{ "a number is whole", "l{i} -> x{i}", KEYS("l1", "l1a", "l", "l12"), "x1=0 x12=3" },
	{ "numbers are added to", "{i}.w -> {i+4}.w", KEYS("0.w", "9.w"), "4.w=0 13.w=1" },
	{ "numbers are taken from", "{i}.w -> {i-2}.w", KEYS("2.w", "1.w"), "0.w=0" },
	{ "two numbers change places", "{a}.{b} -> {b}.{a}", KEYS("1.2"), "2.1=0" },
	{ "a slot twice is the same", "{a}.{a} -> {a}", KEYS("1.2", "3.3"), "3=1" },
	{ "stars in order", "*.a.* -> *.b.*", KEYS("x.a.y", ".a.", "x.a.a.y"), "x.b.y=0 .b.=1 x.b.a.y=2" },
	{ "a star tried again", "*.w{i} -> {i}", KEYS("x.wy.w3", "w1", ".w"), "3=0" },
	{ "a star at the end", "a* -> b*", KEYS("a", "abc", "ba"), "b=0 bbc=1" },
	{ "escapes", "a\\*b\\,c\\{\\\\d\\ e -> \\*", KEYS("a*b,c{\\d e", "axb,c{\\d e"), "*=0" },
	{ "drop", "drop a*, {i}.b\n* -> *", KEYS("a", "ab", "3.b", "b"), "b=3" },
	{ "strip, again and again", "strip module. model.\n* -> *", KEYS("module.model.module.a", "a.module."),
	  "a=0 a.module.=1" },
	{ "erase where a part begins", "erase _o.\n* -> *", KEYS("_o.a._o._o.b", "a_o.b"), "a.b=0 a_o.b=1" },
	{ "erase once where no dot follows", "erase _o\n* -> *", KEYS("_o_oa", "_ob._o.c"), "_oa=0 b..c=1" },
	{ "comments", "# a -> b\n\n  a -> c # d\n#* -> *", KEYS("a", "b"), "c=0" },
	{ "words of the grammar are keys, too", "\\drop -> \\->", KEYS("drop"), "->=0" },
	{ "a key made twice", "a -> x\nb -> x\n* -> *", KEYS("a", "b", "c"),
	  "x!(both a (line 1) and b (line 2) become this key) c=2" },
	{ "two keys for one part", "strip m.\na, b -> c : concat(0)", KEYS("a", "m.a", "b"),
	  "c!(both a and m.a are its part)" },
	{ "order", "a, b, c -> x, y, z : order(1, 2, 0)", KEYS("a", "b", "c"), "x=1 y=2 z=0" },
	{ "order of too few", "a, b, c -> x, y, z : order(1, 0)", KEYS("a", "b", "c"),
	  "x!(line 1: order: 3 tensors: expected each number from 0 on once) y!(line 1: order: 3 tensors: expected each number from 0 on once) "
	  "z!(line 1: order: 3 tensors: expected each number from 0 on once)" },
	{ "order twice the same", "a, b -> x, y : order(1, 1)", KEYS("a", "b"),
	  "x!(line 1: order: 2 tensors: expected each number from 0 on once) y!(line 1: order: 2 tensors: expected each number from 0 on once)" },
	{ "the last share is longer", "a, b -> x : reshape(1) concat(0) pad(4) shares(0)", KEYS("a", "b"),
	  "x!(line 1: shares: the shares of dimension 0 are not equally long)" },
	{ "the last share is shorter", "a, b -> x : reshape(1) pad(3) narrow(0, 1, 2) concat(0) pad(5) shares(0)", KEYS("a", "b"),
	  "x!(line 1: shares: the shares of dimension 0 are not equally long)" },
	{ "the default of several", "*.A.{from}.w -> *.w\n* -> *", KEYS("x.A.other.w", "x.A.default.w", "y.A.default.w", "z"), "x.w=1 y.w=2 z=3" },
	{ "the only one", "*.A.{from} -> *", KEYS("x.A.one", "y.A.one"), "x=0 y=1" },
	{ "of several none", "*.A.{from} -> *\n* -> *", KEYS("x.A.one", "y.A.two", "z"), "z=2" },
	{ "the one that was asked for", "*.A.{from} -> *\n* -> *", KEYS("x.A.default", "x.A.two", "z"), "x=1 z=2", "two" },
	{ "a name is whole", "A.{from}.w -> w\nA{from} -> x\n* -> *", KEYS("A.one.w", "A.o.ne.w", "Aone"), "w=0 A.o.ne.w=1 Aone=2" },
	{ "a name twice is the same", "{from}.{from} -> {from}\n* -> *", KEYS("ab.cd", "ab.ab"), "ab.cd=0 ab=1" },
	{ "what is dropped has no name", "drop {from}.b, *.c\n{from}.w -> w", KEYS("z.b", "y.c", "one.w"), "w=2" },
	{ "only where the adapter says so", "if bias = all: *.b -> *.c\nif bias = some: drop *.w\n* -> *", KEYS("x.b", "x.w"), "x.c=0 x.w=1", NULL, "all" },
	{ "or drop", "if bias = all: *.b -> *.c\nif bias = some: drop *.w\n* -> *", KEYS("x.b", "x.w"), "x.b=0", NULL, "some" },
	{ "two equal words of config.json", "if heads = vocab: *.b -> *.c\nif heads = kv_heads: *.b -> *.d", KEYS("x.b"), "x.d=0" },
	{ "none of which is there", "if layers = hidden: *.b -> *.c\n* -> *", KEYS("x.b"), "x.b=0" },
	{ "refused, whatever comes later", "refuse *.b\n* -> *", KEYS("x.b", "x.w"), "x.w=1" },
	{ "refused where the adapter says so", "if bias = all: refuse *.b\n* -> *", KEYS("x.b"), "", NULL, "all" },
	{ "no adapter says so", "if bias = all: *.b -> *.c\n* -> *", KEYS("x.b"), "x.b=0" },
	{ "one tensor is broken", "* -> x.*", KEYS("a", "bad"), "x.a=0 x.bad!(a.bin: gone)" },
};
/* clang-format on */

static void rules_map_keys(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(maps); i++) {
		dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT, said = DCP_BUF_INIT;
		struct keys k = { maps[i].keys, "bad", maps[i].part, maps[i].bias };
		struct dcp_rules_report report;

		t_case(maps[i].what);
		map(maps[i].rules, &k, &out, &said, &report);
		assert_string_equal(out.p, maps[i].want);
	}
}

static void mapping_reports_its_findings(void **state)
{
	static const char rules[] = "a -> x\nb -> x\ndrop c\nnever -> n\nm.{i} -> {i+layers}\n";
	dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT, said = DCP_BUF_INIT;
	struct keys k = { KEYS("a", "b", "c", "nevr", "m.1") };
	struct dcp_rules_report report;

	(void)state;
	map(rules, &k, &out, &said, &report);
	assert_string_equal(said.p,
			    "unmatched nevr 0: no rule fits it, nearest is never in line 4\n"
			    "unused - 4: no key fits this rule\n"
			    "collision x 1: both a (line 1) and b (line 2) become this key\n"
			    "failed m.1 5: the number of its new key needs what no config.json "
			    "has\n");
	assert_int_equal(report.mapped, 0);
	assert_int_equal(report.dropped, 1);
	assert_int_equal(report.unmatched, 1);
	assert_int_equal(report.collisions, 1);
	assert_int_equal(report.unused, 1);
}

static void names_inside_keys_are_chosen(void **state)
{
	static const char rules[] = "{from}.a -> a\nif bias = all: b -> b\n* -> *\n";
	dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT, said = DCP_BUF_INIT;
	struct keys k = { KEYS("one.a", "two.a", "c") };
	struct dcp_rules_report report;
	struct dcp_rules_source from = { .list = list_keys, .ctx = &k, .part = "three" };
	struct dcp_rules *r = parse(rules);
	struct dcp_err err = { 0 };
	struct t_sink s;

	(void)state;
	map(rules, &k, &out, &said, &report);
	assert_string_equal(
		said.p, "unmatched one.a 0: it is of one of several, none of which is called "
			"default: --hf-from NAME takes one\n"
			"unmatched two.a 0: it is of one of several, none of which is called "
			"default: --hf-from NAME takes one\n");
	assert_int_equal(report.unmatched, 2);
	k.part = "two";
	map(rules, &k, &out, &said, &report);
	assert_int_equal(report.dropped, 1);
	t_sink_init(&s, NULL);
	assert_int_equal(dcp_rules_map(r, &from, &s.sink, NULL, &err), -ENOKEY);
	assert_string_equal(err.msg, "these rules know of no \"three\" in keys");
	t_sink_finish(&s);
	dcp_rules_free(r);
}

/* clang-format off */
static const struct {
	const char *text, *says;
} bad[] = {
	{ "a", "x:1:2: expected -> or a comma" },
	{ "\na ->", "x:2:5: expected a key's pattern" },
	{ "a -> b c", "x:1:8: expected the end of the line or a comma" },
	{ "-> b", "x:1:1: expected a key's pattern" },
	{ "a, -> b", "x:1:4: expected a key's pattern" },
	{ "a -> {i}", "x:1:6: {i} is not on the left side" },
	{ "a -> *", "x:1:6: the left side has no * for this one" },
	{ "{} -> b", "x:1:1: a slot is written {i}; a bracket by itself \\{" },
	{ "a.{i+4} -> b", "x:1:3: a slot is written {i}; a bracket by itself \\{" },
	{ "{i} -> {i+}", "x:1:8: a slot is written {i}, {i+4} or {i+layers}; a bracket by itself \\{" },
	{ "{i} -> {i+layer}", "x:1:8: a slot is written {i}, {i+4} or {i+layers}; a bracket by itself \\{" },
	{ "{i}{j} -> b", "x:1:6: two slots need something between them" },
	{ "** -> b", "x:1:2: two slots need something between them" },
	{ "a\\", "x:1:2: a pattern ends in a lone \\" },
	{ "drop", "x:1:5: expected a key's pattern" },
	{ "drop a b", "x:1:8: expected the end of the line or a comma" },
	{ "strip", "x:1:6: expected what keys begin with: strip module." },
	{ "else  # nothing", "x:1:7: expected a reason, which is given for other keys" },
	{ "tie a b", "x:1:5: expected two keys: tie A = B" },
	{ "fewer a", "x:1:8: expected two patterns: fewer A, B" },
	{ "{from} -> {from+4}", "x:1:11: a slot is written {i}, {i+4} or {i+layers}; a bracket by itself \\{" },
	{ "if", "x:1:3: expected a value and a rule: if bias = all: A -> B" },
	{ "if bias = all a -> b", "x:1:4: expected a value and a rule: if bias = all: A -> B" },
	{ "if bias = : a -> b", "x:1:4: expected a value and a rule: if bias = all: A -> B" },
	{ "if bias is all: a -> b", "x:1:4: expected a value and a rule: if bias = all: A -> B" },
	{ "if rank = all: a -> b", "x:1:4: expected a value and a rule: if bias = all: A -> B" },
	{ "if heads = al: a -> b", "x:1:4: expected a value and a rule: if bias = all: A -> B" },
	{ "if bias = all: a", "x:1:17: expected -> or a comma" },
	{ "a -> \x01", "x:1:6: byte 0x01; rules are text" },
	{ "{a}.{b}.{c}.{d}.{e}.{f}.{g}.{h}.{i} -> x", "x:1:33: more than 8 slots in a rule" },
	{ "a -> b : Q", "x:1:10: Q is not an operation, nearest is \"T\"" },
	{ "a -> b : transpose", "x:1:10: transpose is not an operation" },
	{ "a -> b : stck(0)", "x:1:10: stck is not an operation, nearest is \"stack\"" },
	{ "a -> b : rope", "x:1:10: it is written rope(heads)" },
	{ "a -> b : T(1, 2)", "x:1:10: it is written T or T(hidden)" },
	{ "a -> b : rope(haeds)", "x:1:15: haeds is not a number of a model, nearest is \"heads\"" },
	{ "a -> b : rope(4", "x:1:16: expected ) or a comma" },
	{ "a -> b : rope(4]", "x:1:16: expected ) or a comma" },
	{ "a -> b : rope()", "x:1:15: expected a number" },
	{ "a -> b : rope(-4)", "x:1:10: it is written rope(heads)" },
	{ "a, b -> c, d : rope(4, 4, 4)", "x:1:16: found 3 numbers of heads for 2 tensors" },
	{ "a -> b : rope(4, 4)", "x:1:10: found 2 numbers of heads for 1 tensor" },
	{ "a -> b : rope(4)T", "x:1:17: a blank stands between operations" },
	{ "a -> b : rope(4x)", "x:1:15: 4x is not a number" },
	{ "a -> b : rope(99999999999999999999)", "x:1:15: 99999999999999999999 is not a number" },
	{ "a -> b : rope(1*2*3*4*5)", "x:1:23: more than 4 factors" },
	{ "a -> b : split(0, 2)", "x:1:6: 2 tensors, and 1 key for what comes out" },
	{ "a, b -> c", "x:1:9: 2 tensors, and 1 key for what comes out" },
	{ "a -> b, c : split(0, heads)", "x:1:13: into how many parts? split(0, 2), or their sizes: split(0, [2, 1, 1])" },
	{ "a -> b, c : split(0, [1, 1)", "x:1:27: expected ] or a comma" },
	{ "a -> b, c : split(0, [1, 1], 2)", "x:1:28: expected )" },
	{ "a -> b : concat(0, {e})", "x:1:20: no key of the rule has a slot {e}" },
	{ "a.{e} -> b.{e} : stack(0, {e})", "x:1:10: {e} was joined over" },
	{ "a.{e} -> b.{e} : unstack(0, {e})", "x:1:18: {e} is counted on the right side, once, and does not stand on the left" },
	{ "a -> b.{i}.{e} : unstack(0, {i})", "x:1:12: {e} is not on the left side" },
	{ "a -> b.{i} : unstack(0, {i}) unstack(0, {i})", "x:1:30: {i} is counted on the right side, once, and does not stand on the left" },
	{ "a -> b.{e} : unstack(0)", "x:1:14: it is written unstack(0, {e})" },
	{ "a.{i}, b -> c : concat(0)", "x:1:8: keys that become one have the same slots" },
	{ "a.{i}.{j} -> b : stack(0, {i}) stack(0, {j})", "x:1:32: keys are joined once, over a slot of the left side" },
	{ "a -> q, k : qkv(2, 2)", "x:1:6: 3 tensors, and 2 keys for what comes out" },
	{ "a -> q, k, v : qkv(2, 2, first)", "x:1:26: expected parts_first, parts_last or stored" },
	{ "a -> q, k, v : qkv(2, 2, stored, 1)", "x:1:32: expected )" },
	{ "a, b, c -> d : fuse_qkv(2, 2, stored)", "x:1:31: stored is not a number of a model" },
	{ "a -> b : cast", "x:1:10: it is written cast(bf16)" },
	{ "a -> b : cast(i8)", "x:1:15: expected f32, bf16 or f16" },
	{ "a -> b : cast(f16, 1)", "x:1:18: expected )" },
	{ "a, b -> c : fuse_qkv(2, 2)", "x:1:13: fuse_qkv is of 3 tensors, not of 2" },
};
/* clang-format on */

static void bad_texts_are_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(bad); i++) {
		struct dcp_rules *r = NULL;
		struct dcp_err err = { 0 };

		t_case(bad[i].text);
		assert_true(dcp_rules_parse(bad[i].text, strlen(bad[i].text), "x", &r, &err) <
			    0);
		assert_string_equal(err.msg, bad[i].says);
	}
}

/* Patterns made to try every way to match: each star is tried from one place on, not from all. */
static void slow_patterns_take_no_time(void **state)
{
	static const char *const parts[] = { "*a", "*{i}a", "*.a", "*1a.a" };
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT, key = DCP_BUF_INIT, out = DCP_BUF_INIT,
				    said = DCP_BUF_INIT;
	const char *keys[2] = { NULL };
	struct dcp_rules_report report;

	(void)state;
	for (int i = 0; i < 20000; i++)
		dcp_buf_str(&key, i % 2 ? "1a" : ".a");
	keys[0] = key.p;
	for (size_t i = 0; i < DCP_LEN(parts); i++) {
		struct keys k = { keys };

		t_case(parts[i]);
		dcp_buf_reset(&text);
		for (int n = 0; n < (strchr(parts[i], '{') ? 1 : 6); n++)
			dcp_buf_str(&text, parts[i]);
		dcp_buf_str(&text, "*b*a -> x\n");
		map(text.p, &k, &out, &said, &report);
		assert_int_equal(report.unmatched, 1);
	}
}

static void limits_are_kept(void **state)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_rules *r = NULL;
	struct dcp_err err = { 0 };

	(void)state;
	for (size_t i = 0; i <= DCP_RULES_MAX_RULES; i++)
		dcp_buf_str(&text, "a -> b\n");
	assert_int_equal(dcp_rules_parse(text.p, text.n, "x", &r, &err), -E2BIG);
	t_assert_says(&err, "x:4097:1: more than 4096 rules");
	dcp_buf_reset(&text);
	memset(dcp_buf_grow(&text, DCP_RULES_MAX_PATTERN + 1), 'a', DCP_RULES_MAX_PATTERN + 1);
	dcp_buf_str(&text, " -> b");
	assert_int_equal(dcp_rules_parse(text.p, text.n, "x", &r, &err), -E2BIG);
	t_assert_says(&err, "x:1:1: a pattern of 1025 bytes; the limit is 1024");
	assert_int_equal(dcp_rules_parse(text.p, DCP_RULES_MAX_TEXT + 1, "x", &r, &err),
			 -E2BIG);
	t_assert_says(&err, "the limit is 1048576");
}

static void presets_are_sound(void **state)
{
	struct dcp_rules_preset p;
	struct dcp_rules *r = NULL;
	struct dcp_err err = { 0 };
	const char *key, *of;
	size_t n = 0;

	(void)state;
	for (; dcp_rules_preset_at(n, &p); n++) {
		t_case(p.name);
		assert_int_equal(dcp_rules_preset(p.name, &r, &err), 0);
		assert_string_equal(dcp_rules_name(r), p.name);
		assert_true(strlen(p.about) > 10);
		assert_ptr_equal(strstr(p.text, p.about), p.text + 2);
		dcp_rules_free(r);
	}
	assert_true(n > 0);
	assert_int_equal(dcp_rules_preset("idenity", &r, &err), -ENOENT);
	assert_string_equal(err.msg, "no preset idenity, nearest is \"identity\"");
	assert_int_equal(dcp_rules_preset("hf", &r, &err), 0);
	assert_true(dcp_rules_tie(r, 0, &key, &of));
	assert_string_equal(key, "lm_head.weight");
	assert_string_equal(of, "model.embed_tokens.weight");
	assert_false(dcp_rules_tie(r, 1, &key, &of));
	dcp_rules_free(r);
}

/* clang-format off */
static const struct {
	const char *const *keys;
	const char *model, *want, *by;
} detections[] = {
	{ KEYS("model.embed_tokens.weight", "lm_head.weight"), "", "hf" },
	{ KEYS("w", "optimizer.state"), "", "hf" },
	{ KEYS("tok_embeddings.weight", "layers.0.attention.qkv_linear.wq.weight"), "", "torchtitan-llama3" },
	{ KEYS("tok_embeddings.weight", "layers.0.attention.qkv_linear.wq.weight"), "olmo", "hf" },
	{ KEYS("model.tok_embeddings.weight", "model.layers.0.attention.wq.weight", "model.layers.0.feed_forward.w1.weight"),
	  "llama", "meta" },
	{ KEYS("tok_embeddings.weight", "layers.0.attention.q_norm.weight", "layers.0.attention.k_norm.weight"), "qwen3",
	  "torchtitan-qwen3" },
	{ KEYS("tok_embeddings.weight", "layers.0.attention.wkv_a.weight", "layers.0.attention.wkv_b.weight"), "",
	  "torchtitan-deepseek-v3" },
	{ KEYS("tok_embeddings.weight", "layers.0.attn.output_proj.weight", "layers.0.sa_norm.scale"), "", "torchtune" },
	{ KEYS("model.transformer.wte.weight", "model.transformer.h.0.attn.qkv.weight", "model.transformer.h.0.norm_1.weight"), "", "litgpt" },
	{ KEYS("tok_embeddings.weight", "layers.0.attn.output_proj.weight", "layers.0.sa_norm.scale",
	       "layers.0.attn.q_proj.bias"), "", "hf" },
	{ KEYS("decoder.layers.self_attention.linear_qkv.weight", "decoder.layers.mlp.linear_fc1.weight"), "", "megatron" },
	{ KEYS("decoder.layers.0.self_attention.linear_qkv.weight", "decoder.layers.1.mlp.router.weight",
	       "decoder.layers.0.self_attention.q_layernorm.weight"), "", "megatron-moe" },
	{ KEYS("module.2.attention.query_key_value.weight", "module.2.attention.dense.weight",
	       "module.0.word_embeddings.weight", "fp32.0.word_embeddings.weight"), "", "gpt-neox" },
	{ KEYS("tok_embeddings.weight", "layers.0.attention.qkv_linear.wqkv.weight"), "llama", "torchtitan-llama3" },
	{ KEYS("tok_embeddings.weight", "layers.0.attention.qkv_linear.wq.weight", "layers.1.moe.router.gate.weight",
	       "layers.1.moe.shared_experts.w1.weight"), "", "torchtitan-llama4" },
	{ KEYS("llama.embed_tokens.weight", "llama.layers.0.self_attn.o_proj.weight"), "llama", "paddle" },
	{ KEYS("model.layers.0.self_attn.qkv_proj.weight", "model.layers.0.mlp.up_gate_proj.weight"), "qwen2", "paddle" },
	{ KEYS("model.layers.0.self_attn.qkv_proj.weight", "model.layers.0.mlp.gate_up_proj.weight"), "phi3", "hf" },
	{ KEYS("model.layers.0.self_attn.qkv_proj.weight", "model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.gate_up_proj.weight"),
	  "phi3", "paddle-phi3", "paddle" },
	{ KEYS("model.layers.0.self_attn.o_proj.weight", "lm_head.weight"), "llama", "paddle", "paddle" },
	{ KEYS("layers.0.fc.weight", "optimizer.state"), "", "paddle-unknown", "paddle" },
	{ KEYS("tok_embeddings.weight", "layers.0.attention.qkv_linear.wq.weight"), "", "paddle-unknown", "paddle" },
	{ KEYS("img_in.weight", "double_blocks.0.img_attn.qkv.weight", "single_blocks.0.linear1.weight"), "", "torchtitan-flux" },
	{ KEYS("model.layers.0.self_attn.o_proj.weight", "lm_head.weight"), "llama", "hf", "torch" },
	{ KEYS("gpt.embeddings.word_embeddings.weight", "gpt.decoder.layers.0.norm1.weight"), "", "paddle-gpt" },
	{ KEYS("module.2.attention.query_key_value.weight", "module.2.attention.dense.weight", "module.2.input_layernorm.scale", "module.0.word_embeddings.weight"),
	  "llama", "gpt-neox-llama" },
	{ KEYS("mp_rank_00.module.2.attention.query_key_value.weight", "module.2.attention.dense.weight", "module.2.input_layernorm.scale",
	       "module.0.word_embeddings.weight"), "mistral", "gpt-neox-llama" },
	{ KEYS("model.base_model.model.q.lora_A.other.weight", "optimizer.state"), "", "peft-model" },
	{ KEYS("module.base_model.model.q.lora_A.default.weight", "fp32.base_model.model.q.lora_A.default.weight"), "", "peft-model" },
	{ KEYS("module.base_model.model.q.base_layer.weight", "fp32.base_model.model.q.lora_A.default.weight"), "", "peft-zero3" },
	{ KEYS("base_model.model.q.lora_A.weight"), "", "peft" },
	{ KEYS("state_dict.model.lm_head.weight", "epoch"), "", "lightning" },
	{ KEYS("state/model/model.lm_head.weight"), "mpt", "composer" },
	{ KEYS("actor.model.layers.0.w", "critic.model.layers.0.w"), "", "verl" },
	{ KEYS("actor.w", "critic.w"), "", "hf" },
	{ KEYS("module.model.layers.0.mlp.experts.gate_up_proj", "module.model.layers.0.mlp.experts.down_proj"), "", "hf-experts" },
	{ KEYS("model.layers.1.mlp.experts.gate_up_proj", "model.layers.1.mlp.experts.down_proj"), "mixtral", "hf-mixtral" },
	{ KEYS("model.layers.1.mlp.experts.gate_up_proj", "model.layers.1.mlp.experts.down_proj"), "qwen3_5_moe_text", "hf" },
	{ KEYS("model.layers.1.mlp.experts.gate_up_proj", "model.layers.1.mlp.experts.down_proj",
	       "model.layers.1.mlp.experts.gate_up_proj_bias"), "gpt_oss", "hf" },
	{ KEYS("fp32.model.norm.weight", "module.model.norm.weight"), "", "deepspeed" },
	{ KEYS("fp32.model.norm.weight", "exp_avg.model.norm.weight"), "", "deepspeed-fp32" },
	{ KEYS("fp32.model.norm.weight", "fp32.model.steps", "module.model.steps"), "", "deepspeed-fp32" },
	{ KEYS("fp32.model.norm.weight", "module.model.norm.weight", "module.model.steps"), "", "deepspeed" },
	{ KEYS("module.model.layers.0.mlp.experts.gate_up_proj", "module.model.layers.0.mlp.experts.down_proj",
	       "fp32.model.layers.0.mlp.experts.gate_up_proj", "fp32.model.layers.0.mlp.experts.down_proj", "fp32.model.norm.weight"),
	  "", "deepspeed-fp32" },
};
/* clang-format on */

static void rules_are_detected(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(detections); i++) {
		struct keys k = { detections[i].keys };
		struct dcp_rules_config c = { .tie = -1 };
		struct dcp_rules_source from = { .list = list_keys,
						 .tensor = tensor_of_key,
						 .ctx = &k,
						 .config = &c,
						 .framework = detections[i].by };
		struct dcp_rules_preset p;
		struct dcp_err err = { 0 };

		t_case(detections[i].keys[0]);
		snprintf(c.model_type, sizeof(c.model_type), "%s", detections[i].model);
		assert_int_equal(dcp_rules_detect(&from, &p, &err), 0);
		assert_string_equal(p.name, detections[i].want);
	}
}

static int float_of_key(void *ctx, uint64_t number, struct dcp_arena *arena,
			struct dcp_tensor *out, struct dcp_err *err)
{
	int rc = tensor_of_key(ctx, number, arena, out, err);

	out->dtype = DCP_DTYPE_F32;
	out->dtype_name = "F32";
	out->itemsize = 4;
	((struct dcp_piece *)(uintptr_t)out->pieces)->nbytes = 4;
	return rc;
}

/* What is asked of all tensors does not change what a rule says of one. */
static void casts_are_applied(void **state)
{
	static const char *const want[] = { "F16", "BF16" };
	struct keys k = { KEYS("a", "b") };
	struct dcp_rules_source from = { .list = list_keys,
					 .tensor = float_of_key,
					 .ctx = &k,
					 .files = files,
					 .nfiles = 2,
					 .cast = DCP_DTYPE_BF16 };
	struct dcp_rules *r = parse("a -> a : cast(f16)\nb -> b\n");
	struct t_sink s;

	(void)state;
	t_sink_init(&s, NULL);
	assert_int_equal(dcp_rules_map(r, &from, &s.sink, NULL, NULL), 0);
	assert_int_equal(s.ntensors, 2);
	for (size_t i = 0; i < 2; i++)
		assert_string_equal(s.tensor[i].dtype_name, want[i]);
	t_sink_finish(&s);
	dcp_rules_free(r);
}

static void keys_of_wrapped_models_are_mapped(void **state)
{
	dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT, said = DCP_BUF_INIT;
	struct keys k = { NULL };
	struct dcp_rules_preset p;
	struct dcp_rules_report report;

	(void)state;
	for (size_t i = 0; dcp_rules_preset_at(i, &p) && strcmp(p.name, "hf") != 0; i++)
		;
	k.key = KEYS("model.model.layers.0._orig_mod.w", "model.lm_head.weight",
		     "optimizer.state.x", "rng_state", "module.model.model.norm.weight",
		     "model.module._orig_mod.model.embed_tokens.weight");
	map(p.text, &k, &out, &said, &report);
	assert_string_equal(out.p, "model.layers.0.w=0 lm_head.weight=1 model.norm.weight=4 "
				   "model.embed_tokens.weight=5");
	assert_int_equal(report.dropped, 2);
}

static void config_chooses_rules(void **state)
{
	static const char text[] =
		"{\"model_type\": \"llama\", \"num_attention_heads\": 8, \"hidden_size\": 64,"
		" \"num_hidden_layers\": 2, \"vocab_size\": 100, \"tie_word_embeddings\": "
		"false}";
	struct dcp_rules_config c;
	struct dcp_err err = { 0 };

	(void)state;
	assert_int_equal(dcp_rules_config_parse(text, strlen(text), &c, &err), 0);
	assert_string_equal(c.model_type, "llama");
	assert_int_equal(c.heads, 8);
	assert_int_equal(c.kv_heads, 8);
	assert_int_equal(c.head_dim, 8);
	assert_int_equal(c.layers, 2);
	assert_int_equal(c.vocab, 100);
	assert_int_equal(c.tie, 0);
	assert_int_equal(dcp_rules_config_parse("{}", 2, &c, &err), 0);
	assert_int_equal(c.heads, 0);
	assert_int_equal(c.tie, -1);
	assert_int_equal(dcp_rules_config_parse("[", 1, &c, &err), -EBADMSG);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rules_map_keys),
		cmocka_unit_test(mapping_reports_its_findings),
		cmocka_unit_test(slow_patterns_take_no_time),
		cmocka_unit_test(bad_texts_are_refused),
		cmocka_unit_test(limits_are_kept),
		cmocka_unit_test(presets_are_sound),
		cmocka_unit_test(rules_are_detected),
		cmocka_unit_test(casts_are_applied),
		cmocka_unit_test(keys_of_wrapped_models_are_mapped),
		cmocka_unit_test(config_chooses_rules),
		cmocka_unit_test(names_inside_keys_are_chosen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
