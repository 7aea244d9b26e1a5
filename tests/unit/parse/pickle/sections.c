/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/origin/origin.h"
#include "core/parse/pickle/pickle.h"
#include "tests/unit/t/format/torch.h"

/* What was handed over, as text: "first:a=1 second:b=2 " */
struct seen {
	struct dcp_buf text;
	const char *stop; /* a key at which to fail */
	int roots;
};

static int note(struct seen *s, const char *section, struct dcp_pv key, struct dcp_pv v,
		struct dcp_err *err)
{
	if (s->stop && dcp_pv_is_str(key, s->stop))
		return dcp_fail(err, -E2BIG, "enough");
	dcp_buf_printf(&s->text, "%s:%s=%d ", section, dcp_pv_str(key),
		       v.type == DCP_PV_INT ? (int)v.i : -1);
	return 0;
}

static int add_first(void *ctx, struct dcp_pv key, struct dcp_pv v, struct dcp_err *err)
{
	return note(ctx, "first", key, v, err);
}

static int add_second(void *ctx, struct dcp_pv key, struct dcp_pv v, struct dcp_err *err)
{
	return note(ctx, "second", key, v, err);
}

static bool is_plan(struct dcp_pv where)
{
	return dcp_pv_is_str(where, "plan");
}

static int look(void *ctx, struct dcp_pv root, struct dcp_err *err)
{
	struct seen *s = ctx;

	s->roots++;
	return dcp_pv_is_object(root, "m", "Meta") ? 0 : dcp_fail(err, -EBADMSG, "no Meta");
}

static const struct dcp_section sections[] = {
	{ "first", false, add_first },
	{ "second", true, add_second },
};

static int read_sections(struct seen *s, const struct dcp_buf *b, struct dcp_err *err)
{
	const struct dcp_sections all = { sections, DCP_LEN(sections), is_plan, look, s };
	struct dcp_source src = dcp_source_mem(b->p, b->n);

	*err = (struct dcp_err){ 0 };
	return dcp_sections_read(&all, &src, err);
}

/* ---- pickles ---- */

static void start(struct dcp_buf *b)
{
	t_pk_start(b);
	t_pk_global(b, "m", "Meta");
	t_pk_mark(b);
	t_pk_tuple(b);
	t_pk_newobj(b);
	t_pk_dict(b);
	t_pk_mark(b);
}

static void stop(struct dcp_buf *b)
{
	t_pk_setitems(b);
	t_pk_build(b);
	t_pk_stop(b);
}

static void pair(struct dcp_buf *b, const char *key, int64_t v)
{
	t_pk_str(b, key);
	t_pk_int(b, v);
}

static void open_dict(struct dcp_buf *b, const char *name)
{
	t_pk_str(b, name);
	t_pk_dict(b);
	t_pk_mark(b);
}

/* OrderedDict(): its pairs are set in an object, which the hook does not see. */
static void open_ordered(struct dcp_buf *b, const char *name)
{
	t_pk_str(b, name);
	t_pk_global(b, "collections", "OrderedDict");
	t_pk_mark(b);
	t_pk_tuple(b);
	t_pk_reduce(b);
	t_pk_mark(b);
}

static void check(struct dcp_buf *b, const char *want)
{
	struct seen s = { 0 };
	struct dcp_err err;

	if (read_sections(&s, b, &err) < 0)
		fail_msg("%s", err.msg);
	dcp_buf_add(&s.text, "", 1);
	assert_string_equal(s.text.p, want);
	assert_int_equal(s.roots, 1);
	dcp_buf_finish(&s.text);
	dcp_buf_finish(b);
}

static void pairs_of_sections_are_seen(void **state)
{
	struct dcp_buf b = DCP_BUF_INIT;

	(void)state;
	start(&b); /* in batches, another field between them, a dict of the same name inside */
	open_dict(&b, "first");
	pair(&b, "a", 1);
	t_pk_setitems(&b);
	t_pk_mark(&b);
	pair(&b, "b", 2);
	open_dict(&b, "first");
	pair(&b, "inner", 3);
	t_pk_setitems(&b);
	t_pk_setitems(&b);
	pair(&b, "other", 4);
	open_dict(&b, "second");
	pair(&b, "c", 5);
	t_pk_setitems(&b);
	stop(&b);
	check(&b, "first:a=1 first:b=2 first:first=-1 second:c=5 ");

	start(&b); /* what the hook does not see comes last */
	open_ordered(&b, "first");
	pair(&b, "a", 1);
	t_pk_setitems(&b);
	open_dict(&b, "second");
	pair(&b, "c", 5);
	t_pk_setitems(&b);
	open_dict(&b, "plan");
	pair(&b, "skipped", 6);
	t_pk_setitems(&b);
	stop(&b);
	check(&b, "second:c=5 first:a=1 ");

	start(&b); /* an optional one that is None */
	open_dict(&b, "first");
	t_pk_setitems(&b);
	t_pk_str(&b, "second");
	t_pk_none(&b);
	stop(&b);
	check(&b, "");
}

static void bad_sections_are_refused(void **state)
{
	struct dcp_buf b = DCP_BUF_INIT;
	struct seen s = { .stop = "a" };
	struct dcp_err err;

	(void)state;
	start(&b);
	open_dict(&b, "first");
	pair(&b, "a", 1);
	t_pk_setitems(&b);
	stop(&b);
	assert_int_equal(read_sections(&s, &b, &err), -E2BIG);
	t_assert_says(&err, "enough");
	assert_int_equal(s.roots, 0);
	b.n -= 2; /* cut */
	s.stop = NULL;
	assert_int_equal(read_sections(&s, &b, &err), -EBADMSG);
	dcp_buf_reset(&b);
	start(&b);
	pair(&b, "second", 2);
	stop(&b);
	assert_int_equal(read_sections(&s, &b, &err), -EBADMSG);
	t_assert_says(&err, "first is missing, expected a dict");
	dcp_buf_reset(&b);
	start(&b);
	open_dict(&b, "first");
	t_pk_setitems(&b);
	pair(&b, "second", 2);
	stop(&b);
	assert_int_equal(read_sections(&s, &b, &err), -EBADMSG);
	t_assert_says(&err, "second is int, expected a dict");
	dcp_buf_reset(&b);
	t_pk_start(&b);
	t_pk_dict(&b);
	t_pk_stop(&b);
	assert_int_equal(read_sections(&s, &b, &err), -EBADMSG);
	t_assert_says(&err, "no Meta");
	dcp_buf_finish(&b);
	dcp_buf_finish(&s.text);
}

static void facts_of_sections_are_read(void **state)
{
	struct dcp_pnode node = { .data = (char *)(uintptr_t) "abc", .n = 3 };
	struct dcp_pv v = { .type = DCP_PV_STR, .node = &node };
	char out[4] = "x";

	(void)state;
	dcp_sections_fact(out, sizeof(out), (struct dcp_pv){ 0 });
	assert_string_equal(out, "x");
	dcp_sections_fact(out, 3, v);
	assert_string_equal(out, "x");
	dcp_sections_fact(out, 4, v);
	assert_string_equal(out, "abc");
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pairs_of_sections_are_seen),
		cmocka_unit_test(bad_sections_are_refused),
		cmocka_unit_test(facts_of_sections_are_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
