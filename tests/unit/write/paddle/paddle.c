/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes are told by their CRC-32: CPython unpickled them to the right values.
 * tests/cli/export_families reads such files back, tests/python/paddle_save_proof.py has Paddle
 * read them.
 */
#include "tests/unit/t.h"

#include "core/base/hash.h"
#include "core/write/write.h"
#include "tests/unit/t/write.h"

static const struct dcp_write_tensor tensors[] = {
	T_WRITE_WHOLE("w", DCP_DTYPE_BF16, 2, 50, 2),
	T_WRITE_WHOLE("b", DCP_DTYPE_F32, 4, 2, 0),
	T_WRITE_WHOLE("empty", DCP_DTYPE_F32, 4, 0, 3),
};

static const char *const lr_path[] = { "LR_Scheduler", "last_lr" }, *const step_path[] = {
	"step"
};

static const struct dcp_object objects[] = {
	{ .key = "LR_Scheduler.last_lr",
	  .path = lr_path,
	  .npath = 2,
	  .type = "float",
	  .json = "0.5",
	  .json_len = 3 },
	{ .key = "step",
	  .path = step_path,
	  .npath = 1,
	  .type = "int",
	  .json = "7",
	  .json_len = 1 },
};

/* The first is a state dict, the second is not, since a number stands in its outermost dict. */
static void both_protocols_are_written(void **state)
{
	static const struct {
		size_t nobjects;
		unsigned protocol;
		size_t n;
		uint32_t crc;
	} rows[] = {
		{ 1, 0, 584, 0x70462285 }, { 1, 2, 790, 0xa3f6cbc0 }, { 1, 3, 630, 0x49241993 },
		{ 2, 4, 596, 0x236a8d98 }, { 2, 2, 810, 0xedcf4134 }, { 2, 3, 647, 0xadc0a1c5 },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		const struct dcp_write_opts opts = { .name = "a.pdopt",
						     .protocol = rows[i].protocol };
		const struct dcp_write_set set = { .tensors = tensors,
						   .ntensors = DCP_LEN(tensors),
						   .objects = objects,
						   .nobjects = rows[i].nobjects,
						   .ranks = 1,
						   .high = t_write_high };
		struct t_write w;
		uint32_t crc;

		assert_int_equal(t_write_run(&w, &dcp_write_paddle, &set, &opts, NULL), 0);
		assert_true(w.nfiles == 1 && w.file[0].last);
		crc = dcp_crc32(0, w.file[0].bytes.p, w.file[0].bytes.n);
		if (w.file[0].bytes.n != rows[i].n || crc != rows[i].crc)
			fail_msg("row %zu: %zu, 0x%08x", i, w.file[0].bytes.n, crc);
		t_write_finish(&w);
	}
}

/* ---- arrays of 1 GiB and more, of which only the places are seen ---- */

struct seen {
	size_t nruns, n;
	struct dcp_write_run run[4];
	char bytes[4096]; /* of the format */
};

static int no_file(void *ctx, const char *name, bool last)
{
	(void)ctx, (void)name, (void)last;
	return 0;
}

static int see_bytes(void *ctx, const void *p, size_t n)
{
	struct seen *s = ctx;

	assert_true(n <= sizeof(s->bytes) - s->n);
	memcpy(s->bytes + s->n, p, n);
	s->n += n;
	return 0;
}

static int see_run(void *ctx, const struct dcp_write_run *run)
{
	struct seen *s = ctx;

	assert_true(s->nruns < DCP_LEN(s->run));
	s->run[s->nruns++] = *run;
	return 0;
}

static void run_big(struct seen *s, unsigned protocol, uint64_t n)
{
	const struct dcp_write_tensor t[] = { T_WRITE_WHOLE("w", DCP_DTYPE_F32, 4, n, 0) };
	const struct dcp_write_set set = { .tensors = t, .ntensors = 1, .ranks = 1 };
	const struct dcp_write_opts opts = { .protocol = protocol };
	const struct dcp_write_sink sink = { no_file, see_bytes, see_run, NULL, s };

	*s = (struct seen){ 0 };
	assert_int_equal(dcp_write_plan(&dcp_write_paddle, &set, &opts, &sink, NULL), 0);
}

static void big_tensors_are_written(void **state)
{
	const uint64_t most = ((1u << 30) - 1) / 4;
	struct seen s;

	(void)state;
	run_big(&s, 3, most);
	assert_int_equal(s.nruns, 1);
	run_big(&s, 3, 2 * most + 5);
	assert_int_equal(s.nruns, 3);
	assert_int_equal(s.run[0].n, 4 * most);
	assert_int_equal(s.run[1].off, 4 * most);
	assert_int_equal(s.run[2].off, 8 * most);
	assert_int_equal(s.run[2].n, 20);
	assert_non_null(memmem(s.bytes, s.n, "K\x05\x85", 3)); /* its shape: (5,) */
	run_big(&s, 4, 2 * most + 5);
	assert_int_equal(s.nruns, 1);
}

/* numpy's byte order of what has one byte. */
static void bytes_have_no_byte_order(void **state)
{
	const struct dcp_write_tensor t[] = { T_WRITE_WHOLE("u", DCP_DTYPE_U8, 1, 3, 0) };
	const struct dcp_write_set set = { .tensors = t, .ntensors = 1, .ranks = 1 };
	struct t_write w;

	(void)state;
	assert_int_equal(t_write_run(&w, &dcp_write_paddle, &set,
				     &(struct dcp_write_opts){ .protocol = 3 }, NULL),
			 0);
	assert_non_null(memmem(w.file[0].bytes.p, w.file[0].bytes.n, "X\1\0\0\0|", 6));
	t_write_finish(&w);
}

/* Two of a key, of which one would be lost. */
static void writing_twice_gives_the_same(void **state)
{
	const struct dcp_write_tensor two[] = { tensors[0], tensors[0] };
	const struct dcp_write_set set = { .tensors = two, .ntensors = 2, .ranks = 1 };
	const struct dcp_write_opts opts = { 0 };
	struct dcp_err err = { 0 };
	struct t_write w;

	(void)state;
	assert_int_equal(t_write_run(&w, &dcp_write_paddle, &set, &opts, &err), -EINVAL);
	t_assert_says(&err, "two entries are called w");
	t_write_finish(&w);
}

static void unfit_tensors_are_refused(void **state)
{
	const struct dcp_write_set set = { .tensors = tensors, .ntensors = 1, .ranks = 1 };
	struct dcp_write_opts opts = { .protocol = 5 };
	struct dcp_write_tensor t = tensors[1];
	struct dcp_object o = objects[1];
	struct dcp_err err = { 0 };
	struct t_write w;

	(void)state;
	assert_null(dcp_write_paddle.refuses(&t));
	assert_null(dcp_write_paddle.refuses_object(&o));
	t.dtype = DCP_DTYPE_F8_E4M3;
	assert_non_null(dcp_write_paddle.refuses(&t));
	assert_int_equal(t_write_run(&w, &dcp_write_paddle, &set, &opts, &err), -EINVAL);
	t_assert_says(&err, "protocol 5");
	o.json = "{\"$class\": \"torch.dtype\", \"args\": [\"float32\"]}";
	o.json_len = strlen(o.json);
	assert_non_null(dcp_write_paddle.refuses_object(&o));
	opts.protocol = 2; /* not supported */
	assert_int_equal(t_write_run(&w, &dcp_write_paddle, &set, &opts, &err), -EINVAL);
	t_assert_says(&err, "give 3 or 4");
	t_write_finish(&w);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(both_protocols_are_written),
		cmocka_unit_test(big_tensors_are_written),
		cmocka_unit_test(bytes_have_no_byte_order),
		cmocka_unit_test(writing_twice_gives_the_same),
		cmocka_unit_test(unfit_tensors_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
