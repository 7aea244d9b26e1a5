/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_file: plain pickles, and torch.save under their name. */
#include "tests/unit/t.h"

#include <unistd.h>

#include "core/format/format.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/zip.h"
#include "tests/unit/t/sink.h"

/* Load the one file @name of those bytes; the code of load(). */
static int load(struct t_sink *s, const char *name, const void *p, size_t n,
		struct dcp_err *err)
{
	enum dcp_match match;
	struct t_dir tree;
	struct dcp_dir dir;
	const struct dcp_format *f;
	int rc;

	t_dir_make(&tree, "pickle_file");
	t_dir_put(&tree, name, p, n);
	assert_int_equal(dcp_dir_open(t_dir_path(&tree, name), &dir, NULL), 0);
	f = dcp_format_probe(&dir, &match, NULL, 0);
	assert_non_null(f);
	assert_string_equal(f->name, "pickle");
	t_sink_init(s, NULL);
	rc = f->load(&(struct dcp_load){ .dir = &dir, .sink = &s->sink }, err);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
	return rc;
}

static void objects_are_emitted(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_err err = { 0 };
	struct t_sink s;

	(void)state;
	t_pk_start(&b);
	t_pk_dict(&b);
	t_pk_mark(&b);
	t_pk_str(&b, "step");
	t_pk_int(&b, 7);
	t_pk_str(&b, "deep");
	t_pk_dict(&b);
	t_pk_mark(&b);
	t_pk_str(&b, "args");
	t_pk_global(&b, "os", "system");
	t_pk_mark(&b);
	t_pk_str(&b, "touch PWNED");
	t_pk_tuple(&b);
	t_pk_reduce(&b);
	t_pk_setitems(&b);
	t_pk_setitems(&b);
	t_pk_stop(&b);
	assert_int_equal(load(&s, "random_states_0.pkl", b.p, b.n, &err), 0);
	assert_string_equal(t_sink_object(&s, "step")->json, "7");
	assert_string_equal(t_sink_object(&s, "deep.args")->json,
			    "{\"$class\":\"os.system\",\"args\":[\"touch PWNED\"]}");
	assert_string_equal(t_sink_object(&s, "deep.args")->path[1], "args");
	t_sink_finish(&s);
	assert_int_equal(access("PWNED", F_OK), -1);

	t_case("no mapping");
	dcp_buf_reset(&b);
	t_pk_start(&b);
	t_pk_int(&b, 5);
	t_pk_stop(&b);
	assert_int_equal(load(&s, "a.pickle", b.p, b.n, &err), 0);
	assert_string_equal(t_sink_object(&s, "a")->json, "5");
	t_sink_finish(&s);
}

/* {"model": {"w": array}, "lr": scalar, "seed": (array,)}, as Detectron2 dumps its models. */
static void arrays_are_emitted(void **state)
{
#define DTYPE "cnumpy\ndtype\n(Vf4\nI0\nI1\ntR(I3\nV<\nNNNI-1\nI-1\nI0\ntb"
#define ARRAY                                                                                  \
	"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntC\1btR(I1\n("           \
	"I2\nt" DTYPE "I00\nC\x08\0\0\x80?\0\0\0@tb"
	static const char pickle[] =
		"}Vmodel\n}Vw\n" ARRAY "ssVlr\ncnumpy.core.multiarray\nscalar\n(" DTYPE
		"C\4\0\0\0?tRsVseed\n(" ARRAY "ts.";
	struct dcp_err err = { 0 };
	struct t_sink s;
	const struct dcp_tensor *t;

	(void)state;
	assert_int_equal(load(&s, "m.pkl", pickle, sizeof(pickle) - 1, &err), 0);
	t = t_sink_tensor(&s, "model.w");
	assert_non_null(t);
	assert_string_equal(t->dtype_name, "F32");
	assert_int_equal(t->ndim, 1);
	assert_int_equal(t->shape[0], 2);
	assert_int_equal(t->npieces, 1);
	assert_memory_equal(pickle + t->pieces[0].off, "\0\0\x80?\0\0\0@", 8);
	assert_int_equal(s.ntensors, 1);
	assert_string_equal(t_sink_object(&s, "lr")->json, "0.5");
	assert_string_equal(
		t_sink_object(&s, "seed")->json,
		"[{\"$ndarray\":{\"dtype\":\"<f4\",\"shape\":[2],\"data\":[1.0,2.0]}}]");
	t_sink_finish(&s);
}

static void archives_of_torch_save_are_read(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	static const int64_t shape[] = { 3 }, stride[] = { 1 };
	struct dcp_err err = { 0 };
	struct t_zip z = { .torch = true };
	struct t_sink s;

	(void)state;
	t_pk_start(&b);
	t_pk_dict(&b);
	t_pk_mark(&b);
	t_pk_str(&b, "w");
	t_pk_tensor(&b, "ByteStorage", "0", 3, 0, shape, stride, 1);
	t_pk_setitems(&b);
	t_pk_stop(&b);
	t_zip_add(&z, "archive/data.pkl", b.p, b.n);
	t_zip_add(&z, "archive/data/0", "abc", 3);
	t_zip_end(&z);
	assert_int_equal(load(&s, "random_states_0.pkl", z.b.p, z.b.n, &err), 0);
	assert_int_equal(t_sink_tensor(&s, "w")->pieces[0].off, z.data[1]);
	t_sink_finish(&s);
	assert_int_equal(load(&s, "cut.pkl", z.b.p, z.b.n / 2, &err), -EBADMSG);
	t_assert_says(&err, "cut.pkl: ");
	t_sink_finish(&s);
	t_zip_free(&z);
}

static void damaged_pickles_are_refused(void **state)
{
	/* clang-format off */
	static const struct {
		const char *what, *bytes;
		size_t n;
	} rows[] = {
		{ "empty", "", 0 },
		{ "not a pickle", "what is this", 12 },
		{ "cut", "\x80\x02}(X\x04\0\0\0st", 11 },
		{ "an opcode of protocol 5 that is refused", "\x80\x05\x97.", 4 },
	};
	/* clang-format on */

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_err err = { 0 };
		struct t_sink s;

		t_case(rows[i].what);
		assert_true(load(&s, "x.pkl", rows[i].bytes, rows[i].n, &err) < 0);
		t_assert_says(&err, "x.pkl: ");
		assert_int_equal(s.nobjects, 0);
		t_sink_finish(&s);
	}
}

/* Lists of one shared list of lists, a hundred bytes that stand for millions. */
static void pickle_bombs_are_refused(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_err err = { 0 };
	struct t_sink s;

	(void)state;
	t_pk_start(&b);
	t_pk_list(&b);
	t_pk_put(&b, 0);
	dcp_buf_str(&b, "0"); /* POP */
	for (uint8_t i = 1; i < 40; i++) {
		t_pk_list(&b);
		t_pk_put(&b, i);
		t_pk_mark(&b);
		for (int k = 0; k < 10; k++)
			t_pk_get(&b, (uint8_t)(i - 1));
		t_pk_appends(&b);
		dcp_buf_str(&b, i < 39 ? "0" : "");
	}
	t_pk_stop(&b);
	assert_int_equal(load(&s, "x.pkl", b.p, b.n, &err), -E2BIG);
	t_assert_says(&err, "x.pkl: nested too deep");
	t_sink_finish(&s);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(arrays_are_emitted),
		cmocka_unit_test(objects_are_emitted),
		cmocka_unit_test(archives_of_torch_save_are_read),
		cmocka_unit_test(damaged_pickles_are_refused),
		cmocka_unit_test(pickle_bombs_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
