/* SPDX-License-Identifier: Apache-2.0 */
/* covers: paddle */
#include "tests/unit/t.h"

#include "core/base/base.h"
#include "core/origin/origin.h"
#include "core/parse/paddle/paddle.h"
#include "tests/unit/t/format/pdplain.h"

#include <fcntl.h>

static const char *const fixture[] = {
	"tests/golden/paddle-plain/ckpt/static/infer.json",
	"tests/golden/paddle-plain-26/ckpt/static/infer.pdmodel"
};

/* What both releases wrote for fc(4 -> 5) and fc(5 -> 3). */
static void golden_programs_are_read(void **state)
{
	static const char *const names[] = { "fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0" };
	static const int64_t dims[][2] = { { 5 }, { 4, 5 }, { 3 }, { 5, 3 } };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(fixture); i++) {
		dcp_auto_fd int fd = open(fixture[i], O_RDONLY | O_CLOEXEC);
		struct dcp_paddle_program p;
		struct dcp_source src;
		struct dcp_err err = { 0 };

		t_case(fixture[i]);
		assert_int_equal(dcp_source_fd(fd, &src), 0);
		if (dcp_paddle_program_read(&src, &p, &err) < 0)
			fail_msg("%s", err.msg);
		assert_int_equal(p.n, 4);
		for (size_t k = 0; k < p.n; k++) {
			assert_string_equal(p.vars[k].name, names[k]);
			assert_int_equal(p.vars[k].ndim, k % 2 ? 2 : 1);
			assert_memory_equal(p.vars[k].dims, dims[k],
					    p.vars[k].ndim * sizeof(int64_t));
		}
		dcp_paddle_program_finish(&p);
	}
}

/* Blocks inside blocks, what is not stored, a name twice, and an order that is not Paddle's. */
static void stored_variables_are_named(void **state)
{
	const int64_t dims[] = { -1, 3 };
	dcp_auto_buf struct dcp_buf block = DCP_BUF_INIT, inner = DCP_BUF_INIT;
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_paddle_program p;
	struct dcp_source src;

	(void)state;
	t_pb_varint(&block, 1, 0);
	t_pd_var(&block, "w10", T_PD_LOD_TENSOR, true, 5, dims, 2);
	t_pd_var(&block, "w2", T_PD_LOD_TENSOR, true, 5, NULL, 0);
	t_pd_var(&block, "activation", T_PD_LOD_TENSOR, false, 5, dims, 2);
	t_pd_var(&block, "feed", 9, true, 0, NULL, 0);
	t_pd_var(&block, "fetch", 10, true, 0, NULL, 0);
	t_pd_var(&block, "reader", 15, true, 0, NULL, 0);
	t_pd_var(&block, "raw", 17, true, 0, NULL, 0);
	t_pd_var(&inner, "w2", T_PD_LOD_TENSOR, true, 5, NULL, 0);
	t_pd_var(&inner, "a", T_PD_LOD_TENSOR, true, 5, NULL, 0);
	t_pb_bytes(&block, 4, "an operation", 12);
	t_pb_bytes(&b, 1, block.p, block.n);
	t_pb_varint(&b, 4, 7);
	t_pb_bytes(&b, 1, inner.p, inner.n);
	src = dcp_source_mem(b.p, b.n);
	assert_int_equal(dcp_paddle_program_read(&src, &p, NULL), 0);
	assert_int_equal(p.n, 3);
	assert_string_equal(p.vars[0].name, "a");
	assert_string_equal(p.vars[1].name, "w10");
	assert_string_equal(p.vars[2].name, "w2");
	assert_null(p.vars[2].dims);
	assert_int_equal(p.vars[1].dims[0], -1);
	assert_int_equal(p.vars[1].dims[1], 3);
	dcp_paddle_program_finish(&p);
}

static int read_text(const char *text, size_t n, struct dcp_paddle_program *p,
		     struct dcp_err *err)
{
	struct dcp_source src = dcp_source_mem(text, n);

	*err = (struct dcp_err){ 0 };
	return dcp_paddle_program_read(&src, p, err);
}

#define PIR(ops)                                                                               \
	"{\"base_code\":{\"magic\":\"pir\"},\"program\":{\"regions\":[{\"blocks\":[{"          \
	"\"ops\":[" ops "]}]}]}}"

#define ONES "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"

static void pir_programs_are_read(void **state)
{
	static const char ok[] =
		PIR("{\"#\":\"p\",\"A\":[0,1,1,\"z\"],\"O\":{\"TT\":{\"D\":[{},[-1,2]]}}},"
		    "{\"#\":\"1.add\"},{\"#\":\"p\",\"A\":[0,1,1,\"b\"],\"O\":{\"TT\":{\"D\":[{"
		    "},[" ONES ONES ONES ONES "1]]}}}");
	static const char nameless[] = PIR("{\"#\":\"p\",\"A\":[0]}");
	static const char config[] = "{\"architectures\":[\"x\"]}";
	static const char torn[] = "{\"base_code\":{\"magic\":\"pi";
	struct dcp_paddle_program p;
	struct dcp_err err;

	(void)state;
	assert_int_equal(read_text(ok, sizeof(ok) - 1, &p, &err), 0);
	assert_int_equal(p.n, 2);
	assert_string_equal(p.vars[0].name, "b");
	assert_null(p.vars[0].dims); /* more than a tensor has */
	assert_string_equal(p.vars[1].name, "z");
	assert_int_equal(p.vars[1].dims[0], -1);
	assert_int_equal(p.vars[1].dims[1], 2);
	dcp_paddle_program_finish(&p);
	assert_int_equal(read_text(nameless, sizeof(nameless) - 1, &p, &err), -EBADMSG);
	t_assert_says(&err, "has no name");
	assert_int_equal(read_text(config, sizeof(config) - 1, &p, &err), -EBADMSG);
	t_assert_says(&err, "base_code.magic is absent");
	assert_int_equal(read_text(torn, sizeof(torn) - 1, &p, &err), -EBADMSG);
}

/* Cut anywhere it is refused or has fewer variables; nothing is read past the end. */
static void cut_programs_are_refused(void **state)
{
	const int64_t dims[] = { 3 };
	dcp_auto_buf struct dcp_buf block = DCP_BUF_INIT, b = DCP_BUF_INIT;
	struct dcp_paddle_program p;
	struct dcp_err err;

	(void)state;
	t_pd_var(&block, "w", T_PD_LOD_TENSOR, true, 5, dims, 1);
	t_pb_bytes(&b, 1, block.p, block.n);
	for (size_t n = 0; n < b.n; n++) {
		assert_int_equal(read_text(b.p, n, &p, &err), -EBADMSG);
		t_assert_says(&err, n ? "ends inside a field" : "no block in it");
	}
}

static void impossible_names_are_refused(void **state)
{
	static char longest[65538];
	static const char nul[] = "\x0a\x0b\x1a\x09\x0a\x03"
				  "a\0b"
				  "\x18\x01\x12\x00";
	dcp_auto_buf struct dcp_buf block = DCP_BUF_INIT, b = DCP_BUF_INIT;
	struct dcp_paddle_program p;
	struct dcp_err err;

	(void)state;
	memset(longest, 'w', sizeof(longest) - 2);
	t_pd_var(&block, longest, T_PD_LOD_TENSOR, true, 5, NULL, 0);
	t_pb_bytes(&b, 1, block.p, block.n);
	assert_int_equal(read_text(b.p, b.n, &p, &err), 0);
	dcp_paddle_program_finish(&p);
	longest[sizeof(longest) - 2] = 'w';
	for (size_t i = 0; i < 2; i++) {
		dcp_buf_reset(&b);
		dcp_buf_reset(&block);
		t_pd_var(&block, i ? longest : "", T_PD_LOD_TENSOR, true, 5, NULL, 0);
		t_pb_bytes(&b, 1, block.p, block.n);
		assert_int_equal(read_text(b.p, b.n, &p, &err), -EBADMSG);
		t_assert_says(&err, i ? "a name of 65537 bytes" : "a name of 0 bytes");
	}
	assert_int_equal(read_text(nul, sizeof(nul) - 1, &p, &err), -EBADMSG);
	t_assert_says(&err, "holds a NUL");
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_programs_are_read),
		cmocka_unit_test(stored_variables_are_named),
		cmocka_unit_test(pir_programs_are_read),
		cmocka_unit_test(cut_programs_are_refused),
		cmocka_unit_test(impossible_names_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
