/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/origin/origin.h"
#include "core/parse/paddle/paddle.h"
#include "core/write/write.h"
#include "tests/unit/t/write.h"

static const struct dcp_write_tensor tensors[] = {
	T_WRITE_WHOLE("w_10", DCP_DTYPE_F32, 4, 2, 3),
	T_WRITE_WHOLE("w.1", DCP_DTYPE_BF16, 2, 300, 0),
	T_WRITE_WHOLE("empty", DCP_DTYPE_I64, 8, 0, 4),
};

static const struct dcp_write_set set = { .tensors = tensors,
					  .ntensors = DCP_LEN(tensors),
					  .ranks = 1 };

static const struct dcp_write_opts no_opts;

/* The stream at @at is tensor @t; returns where the next begins. */
static uint64_t check_stream(const struct t_written *file, uint64_t at, size_t t)
{
	const struct dcp_source src = dcp_source_mem(file->bytes.p, file->bytes.n);
	struct dcp_lodtensor x;

	assert_int_equal(dcp_lodtensor_read(&src, at, &x, NULL), 0);
	assert_int_equal(x.dtype, tensors[t].dtype);
	assert_int_equal(x.ndim, tensors[t].ndim);
	assert_memory_equal(x.shape, tensors[t].shape, x.ndim * sizeof(*x.shape));
	for (uint64_t b = 0; b < x.nbytes; b++)
		assert_int_equal((unsigned char)file->bytes.p[x.off + b],
				 t_write_byte(t, 0, b));
	return x.off + x.nbytes;
}

static void directories_are_written(void **state)
{
	static const size_t order[] = { 2, 1, 0 };
	const struct t_written *params, *model;
	struct dcp_paddle_program p;
	struct dcp_source src;
	struct t_write w;
	uint64_t at = 0;

	(void)state;
	assert_int_equal(t_write_run(&w, &dcp_write_paddle_binary, &set, &no_opts, NULL), 0);
	assert_int_equal(w.nfiles, 2);
	params = t_write_file(&w, "model.pdiparams");
	model = t_write_file(&w, "model.pdmodel");
	assert_true(params->last && !model->last);
	src = dcp_source_mem(model->bytes.p, model->bytes.n);
	assert_int_equal(dcp_paddle_program_read(&src, &p, NULL), 0);
	assert_int_equal(p.n, 3);
	for (size_t i = 0; i < 3; i++) {
		at = check_stream(params, at, order[i]);
		assert_string_equal(p.vars[i].name, tensors[order[i]].key);
		for (uint32_t k = 0; k < p.vars[i].ndim; k++)
			assert_int_equal(p.vars[i].dims[k], tensors[order[i]].shape[k]);
	}
	assert_int_equal(at, params->bytes.n);
	dcp_paddle_program_finish(&p);
	t_write_finish(&w);
}

/* What Paddle writes of f4 (2, 3). */
static void a_tensor_alone_is_written(void **state)
{
	static const uint8_t head[26] = { [16] = 6, [20] = 8, 5, 16, 2, 16, 3 };
	const struct dcp_write_set one = { .tensors = tensors, .ntensors = 1, .ranks = 1 };
	const struct dcp_write_opts opts = { .name = "w.pdtensor" };
	struct t_write w;

	(void)state;
	assert_int_equal(t_write_run(&w, &dcp_write_paddle_binary, &one, &opts, NULL), 0);
	assert_int_equal(w.nfiles, 1);
	assert_int_equal(t_write_file(&w, "w.pdtensor")->bytes.n, 50);
	assert_memory_equal(w.file[0].bytes.p, head, sizeof(head));
	assert_int_equal(check_stream(&w.file[0], 0, 0), 50);
	t_write_finish(&w);
}

static void variables_are_written(void **state)
{
	struct t_write w;

	(void)state;
	assert_int_equal(t_write_run(&w, &dcp_write_paddle_vars, &set, &no_opts, NULL), 0);
	assert_int_equal(w.nfiles, 3);
	for (size_t i = 0; i < 3; i++)
		check_stream(t_write_file(&w, tensors[i].key), 0, i);
	t_write_finish(&w);
}

static void unfit_tensors_are_refused(void **state)
{
	struct dcp_write_tensor t = tensors[0];

	(void)state;
	assert_null(dcp_write_paddle_binary.refuses(&t));
	t.dtype = DCP_DTYPE_U16;
	assert_non_null(dcp_write_paddle_binary.refuses(&t));
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(directories_are_written),
		cmocka_unit_test(a_tensor_alone_is_written),
		cmocka_unit_test(variables_are_written),
		cmocka_unit_test(unfit_tensors_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
