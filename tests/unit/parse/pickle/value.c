/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a reader of values sees: batches through a hook, and the accessors.
 * covers: pickle
 */
#include "tests/unit/t/parse/pickle.h"

#include "core/parse/pickle/pickle_int.h"

static int parse(const void *bytes, size_t n, size_t memory, struct dcp_pickle **out,
		 struct dcp_err *err)
{
	struct dcp_source src = dcp_source_mem(bytes, n);
	struct dcp_pickle_opts opts = { .memory = memory };

	*err = (struct dcp_err){ 0 };
	return dcp_pickle_read(&src, &opts, out, NULL, err);
}

static struct dcp_pickle *must_parse(const void *bytes, size_t n)
{
	struct dcp_pickle *p;
	struct dcp_err err;

	if (parse(bytes, n, 0, &p, &err) < 0)
		fail_msg("%s", err.msg);
	return p;
}

/* Bytes and their number, for a table row. */
#define B(literal) literal, sizeof(literal) - 1

#define ADD(b, literal) dcp_buf_add(b, literal, sizeof(literal) - 1)

#define MUST_PARSE(literal) must_parse(literal, sizeof(literal) - 1)

static void add(struct dcp_buf *b, const char *bytes, size_t n, unsigned times)
{
	while (times--)
		dcp_buf_add(b, bytes, n);
}

/* ---- hook ---- */

struct seen {
	char text[512];
	int answer;
};

static int note_pairs(void *ctx, struct dcp_pv where, size_t depth, const struct dcp_pv *kv,
		      size_t npairs, struct dcp_err *err)
{
	struct seen *seen = ctx;
	char *at = t_pickle_text(where), *key = t_pickle_text(kv[0]);
	size_t n = strlen(seen->text);

	snprintf(seen->text + n, sizeof(seen->text) - n, "%s@%zu:%s*%zu ", at, depth, key,
		 npairs);
	free(at);
	free(key);
	if (seen->answer < 0)
		return dcp_fail_at(err, seen->answer, 7, "the hook said so");
	return seen->answer;
}

static int parse_hooked(const void *bytes, size_t n, size_t memory, struct seen *seen,
			struct dcp_pickle **out, struct dcp_err *err)
{
	struct dcp_pickle_hook hook = { note_pairs, seen };
	struct dcp_pickle_opts opts = { .hook = &hook, .memory = memory };
	struct dcp_source src = dcp_source_mem(bytes, n);

	*err = (struct dcp_err){ 0 };
	return dcp_pickle_read(&src, &opts, out, NULL, err);
}

#define U(s) "\x8c\x01" s

static void hook_sees_where(void **state)
{
	static const struct {
		const char *what, *bytes;
		size_t n;
		const char *seen, *rest, *taken;
	} rows[] = {
		{ "outermost", B("}(NNu."), "None@0:None*1 ", "{None:None,}", "{}" },
		{ "one by one", B("}K\x01NsK\x02Ns."), "None@0:1*1 None@0:2*1 ",
		  "{1:None,2:None,}", "{}" },
		{ "inside another", B("}(" U("a") "}(K\x01Nu" U("b") "}K\x02Nsu."),
		  "'a'@2:1*1 'b'@4:2*1 None@0:'a'*2 ", "{'a':{1:None,},'b':{2:None,},}", "{}" },
		{ "in a list", B("](}K\x01Nse."), "[]@1:1*1 ", "[{1:None,},]", "[{},]" },
		{ "made in one go", B("(K\x01NK\x02Nd."), "None@0:1*2 ", "{1:None,2:None,}",
		  "{}" },
		{ "nothing to set", B("}(u."), "", "{}", "{}" },
		{ "items of an object", B("cm\nC\n)RNNs."), "",
		  "call(<m C>,(),dict={None:None,})", "call(<m C>,(),dict={None:None,})" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++)
		for (int answer = 0; answer < 2; answer++) {
			struct seen seen = { .answer = answer };
			struct dcp_pickle *p;
			struct dcp_err err;
			char *got;

			t_case(rows[i].what);
			if (parse_hooked(rows[i].bytes, rows[i].n, 0, &seen, &p, &err) < 0)
				fail_msg("%s", err.msg);
			got = t_pickle_text(dcp_pickle_root(p));
			assert_string_equal(got, answer ? rows[i].taken : rows[i].rest);
			if (!answer || i != 2) /* taken pairs are gone from the outer dict */
				assert_string_equal(seen.text, rows[i].seen);
			free(got);
			dcp_pickle_free(p);
		}
}

static void hook_may_stop(void **state)
{
	struct seen seen = { .answer = -EUCLEAN };
	struct dcp_pickle *p = NULL;
	struct dcp_err err;

	(void)state;
	assert_int_equal(parse_hooked("}(NNu.", 6, 0, &seen, &p, &err), -EUCLEAN);
	assert_string_equal(err.msg, "the hook said so");
	assert_null(p);
}

static int take(void *ctx, struct dcp_pv where, size_t depth, const struct dcp_pv *kv,
		size_t npairs, struct dcp_err *err)
{
	(void)where, (void)depth, (void)kv, (void)err;
	*(size_t *)ctx += npairs;
	return 1;
}

static void pairs_taken_by_hooks_are_freed(void **state)
{
	enum { PAIRS = 50000 };
	static const char pair[] = U("k") "cm\nC\n)\x81}(" U("a") U("b") U("c") "]ub";
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	size_t taken = 0;
	struct dcp_pickle_hook hook = { take, &taken };
	struct dcp_pickle_opts opts = { .hook = &hook, .memory = 512 << 10 };
	struct dcp_source src;
	struct dcp_pickle *p;

	(void)state;
	dcp_buf_str(&b, "}");
	for (unsigned i = 0; i < PAIRS; i++) {
		add(&b, "(", i % 1000 == 0, 1);
		dcp_buf_add(&b, pair, sizeof(pair) - 1);
		add(&b, "u", i % 1000 == 999, 1);
	}
	dcp_buf_str(&b, ".");
	src = dcp_source_mem(b.p, b.n);
	assert_int_equal(dcp_pickle_read(&src, &opts, &p, NULL, NULL), 0);
	assert_int_equal(taken, PAIRS + 2 * PAIRS); /* two in the state of each, too */
	dcp_pickle_free(p);
}

/* ---- accessors ---- */

static void old_and_new_names_are_the_same(void **state)
{
	static const struct {
		const char *what, *stored, *asked;
		bool same;
	} rows[] = {
		{ "as it is", "builtins", "builtins", true },
		{ "old name stored", "__builtin__", "builtins", true },
		{ "old name asked for", "builtins", "__builtin__", true },
		{ "old copyreg", "copy_reg", "copyreg", true },
		{ "new numpy", "numpy._core.multiarray", "numpy.core.multiarray", true },
		{ "new numpy asked for", "numpy.core.multiarray", "numpy._core.multiarray",
		  true },
		{ "numpy core itself", "numpy._core", "numpy.core", true },
		{ "only looks like it", "numpy._corex", "numpy.corex", false },
		{ "longer", "builtinsx", "__builtin__", false },
		{ "shorter", "numpy.cor", "numpy._core", false },
		{ "another", "os", "builtins", false },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		struct dcp_pickle *p;

		t_case(rows[i].what);
		dcp_buf_printf(&b, "c%s\nf\n)R.", rows[i].stored);
		p = must_parse(b.p, b.n);
		assert_int_equal(dcp_pv_is_object(dcp_pickle_root(p), rows[i].asked, "f"),
				 rows[i].same);
		assert_false(dcp_pv_is_object(dcp_pickle_root(p), rows[i].asked, "g"));
		dcp_pickle_free(p);
	}
}

static void values_are_looked_at(void **state)
{
	struct dcp_pickle *p = MUST_PARSE("(" U("a") "\x8c\x03"
						     "a\0bK\x07J\xff\xff\xff\xff\x88N]t.");
	size_t n;
	const struct dcp_pv *v = dcp_pv_items(dcp_pickle_root(p), &n);
	uint64_t u = 0;

	(void)state;
	assert_int_equal(n, 7);
	assert_true(dcp_pv_is_str(v[0], "a"));
	assert_false(dcp_pv_is_str(v[0], "ab"));
	assert_false(dcp_pv_is_str(v[1], "a"));
	assert_false(dcp_pv_is_str(v[2], "7"));
	assert_string_equal(dcp_pv_str(v[0]), "a");
	assert_null(dcp_pv_str(v[2]));
	assert_true(dcp_pv_u64(v[2], &u));
	assert_int_equal(u, 7);
	assert_false(dcp_pv_u64(v[3], &u));
	assert_true(dcp_pv_u64(v[4], &u));
	assert_int_equal(u, 1);
	assert_false(dcp_pv_u64(v[5], &u));
	assert_null(dcp_pv_items(v[0], &n));
	assert_int_equal(n, 0);
	assert_null(dcp_pv_pairs(v[6], &n));
	assert_int_equal(n, 0);
	assert_null(dcp_pv_get(v[6], "a"));
	assert_false(dcp_pv_is_mapping(v[6]));
	assert_false(dcp_pv_is_global(v[0], "m", "f"));
	dcp_pickle_free(p);
}

static void fields_are_found(void **state)
{
#define PAIR(v) U("k") "K" v
	static const struct {
		const char *what, *bytes;
		size_t n;
		int want; /* of "k"; -1: not there */
		bool mapping;
	} rows[] = {
		{ "dict", B("}" PAIR("\x01") "s."), 1, true },
		{ "the last duplicate", B("}(" PAIR("\x01") PAIR("\x02") "u."), 2, true },
		{ "another key", B("}(K\x01K\x02u."), -1, true },
		{ "OrderedDict", B("ccollections\nOrderedDict\n)R" PAIR("\x03") "s."), 3,
		  true },
		{ "Counter", B("ccollections\nCounter\n}" PAIR("\x04") "s\x85R."), 4, true },
		{ "Counter of nothing", B("ccollections\nCounter\n)R."), -1, true },
		{ "state", B("cm\nC\n)\x81}" PAIR("\x05") "sb."), 5, false },
		{ "slots",
		  B("cm\nC\n)\x81N}" PAIR("\x06") "s\x86"
						  "b."),
		  6, false },
		{ "dict and slots",
		  B("cm\nC\n)\x81}" PAIR("\x07") "s}\x86"
						 "b."),
		  7, false },
		{ "no state", B("cm\nC\n)\x81."), -1, false },
		{ "three in the state",
		  B("cm\nC\n)\x81NNN\x87"
		    "b."),
		  -1, false },
		{ "items before state", B("cm\nC\n)\x81" PAIR("\x08") "s}" PAIR("\x09") "sb."),
		  8, false },
		{ "called with a dict", B("cm\nC\n}" PAIR("\x0a") "s\x85R."), -1, false },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		const struct dcp_pv *v;
		struct dcp_pickle *p;

		t_case(rows[i].what);
		p = must_parse(rows[i].bytes, rows[i].n);
		v = dcp_pv_get(dcp_pickle_root(p), "k");
		assert_int_equal(v ? v->i : -1, rows[i].want);
		assert_int_equal(dcp_pv_at(dcp_pickle_root(p), "k").type,
				 v ? DCP_PV_INT : DCP_PV_NONE);
		assert_int_equal(dcp_pv_is_mapping(dcp_pickle_root(p)), rows[i].mapping);
		dcp_pickle_free(p);
	}
}

static void elements_and_dimensions_are_read(void **state)
{
	struct dcp_pickle *p = must_parse(B("(K\x04K\x02t."));
	struct dcp_pv v = dcp_pickle_root(p);
	uint64_t to[2] = { 0 };
	uint32_t n = 0;

	(void)state;
	assert_int_equal(dcp_pv_item(v, 1).i, 2);
	assert_int_equal(dcp_pv_item(v, 2).type, DCP_PV_NONE);
	assert_int_equal(dcp_pv_item(dcp_pv_item(v, 0), 0).type, DCP_PV_NONE);
	assert_false(dcp_pv_dims(v, 1, to, &n));
	assert_true(dcp_pv_dims(v, 2, to, &n));
	assert_int_equal(n, 2);
	assert_int_equal(to[0], 4);
	assert_false(dcp_pv_dims(dcp_pv_item(v, 0), 2, to, &n));
	dcp_pickle_free(p);
	p = must_parse(B("(K\x04Nt."));
	assert_false(dcp_pv_dims(dcp_pickle_root(p), 2, to, &n));
	dcp_pickle_free(p);
}

/* Many names, among them repeated ones: the same node for the same name. */
static void names_are_stored_once(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	const struct dcp_pv *v;
	struct dcp_pickle *p;
	size_t n, same = 0;

	(void)state;
	dcp_buf_str(&b, "(");
	for (unsigned i = 0; i < 2000; i++)
		dcp_buf_printf(&b, "cm\nf%u\n", i % 1000);
	dcp_buf_str(&b, "t.");
	p = must_parse(b.p, b.n);
	v = dcp_pv_items(dcp_pickle_root(p), &n);
	for (size_t i = 0; i < 1000; i++) {
		assert_string_equal(v[i].node->name, v[i + 1000].node->name);
		same += v[i].node == v[i + 1000].node;
	}
	assert_true(same > 950); /* a few may find no place in the table */
	dcp_pickle_free(p);
}

/* Equal calls share what they can; changing one changes no other. */
static void shared_calls_part_when_changed(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_pickle *p;
	const struct dcp_pv *v;
	size_t n;
	char *got;

	(void)state;
	dcp_buf_str(&b, "(");
	for (unsigned i = 0; i < 200; i++) {
		dcp_buf_str(&b, "ctorch\nSize\nK\x01K\x02\x86\x85R");
		dcp_buf_str(&b, i == 150 ? "}b" : i == 151 ? "NNs" : i == 152 ? "Na" : "");
	}
	dcp_buf_str(&b, "t.");
	p = must_parse(b.p, b.n);
	v = dcp_pv_items(dcp_pickle_root(p), &n);
	assert_ptr_equal(v[198].node->obj, v[199].node->obj);
	assert_ptr_not_equal(v[198].node, v[199].node);
	for (size_t i = 140; i < 160; i++) {
		got = t_pickle_text(v[i]);
		assert_string_equal(
			got, i == 150   ? "call(<torch Size>,((1,2,),),state={})"
			     : i == 151 ? "call(<torch Size>,((1,2,),),dict={None:None,})"
			     : i == 152 ? "call(<torch Size>,((1,2,),),list=[None,])"
					: "call(<torch Size>,((1,2,),))");
		free(got);
	}
	dcp_pickle_free(p);
}

T_TESTS()
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(hook_sees_where),
		cmocka_unit_test(hook_may_stop),
		cmocka_unit_test(pairs_taken_by_hooks_are_freed),
		cmocka_unit_test(old_and_new_names_are_the_same),
		cmocka_unit_test(values_are_looked_at),
		cmocka_unit_test(fields_are_found),
		cmocka_unit_test(elements_and_dimensions_are_read),
		cmocka_unit_test(names_are_stored_once),
		cmocka_unit_test(shared_calls_part_when_changed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
