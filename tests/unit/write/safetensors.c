/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seam of the writers, with their first format.
 * covers: write, formats
 */
#include "tests/unit/t.h"

#include <limits.h>

#include "core/base/arena.h"
#include "core/origin/origin.h"
#include "core/parse/safetensors/safetensors.h"
#include "core/write/write.h"
#include "tests/unit/t/write.h"

static const struct dcp_write_tensor tensors[] = {
	T_WRITE_WHOLE("layer.10.w", DCP_DTYPE_F32, 4, 2, 3),
	T_WRITE_WHOLE("layer.2.w", DCP_DTYPE_BF16, 2, 5, 0),
	T_WRITE_WHOLE("empty", DCP_DTYPE_I64, 8, 0, 4),
};

static const struct dcp_write_set set = {
	.tensors = tensors,
	.ntensors = DCP_LEN(tensors),
	.extras = &(const struct dcp_write_extra){ "config.json", 7 },
	.nextras = 1,
	.ranks = 1,
};

/* What our own reader says of a file, and that each tensor's bytes are there. */
static void check_file(const struct t_written *file, const char *const *keys, size_t n)
{
	const struct dcp_source src = dcp_source_mem(file->bytes.p, file->bytes.n);
	struct dcp_safetensors st;
	struct dcp_arena arena;
	struct dcp_err err = { 0 };

	dcp_arena_init(&arena, 1 << 20);
	if (dcp_safetensors_read(&src, &arena, &st, &err) < 0)
		fail_msg("%s: %s", file->name, err.msg);
	assert_int_equal(st.n, n);
	for (size_t i = 0; i < n; i++) {
		const struct dcp_safetensors_entry *e = &st.entries[i];
		size_t t = 0;

		assert_string_equal(e->name, keys[i]);
		while (strcmp(tensors[t].key, e->name) != 0)
			t++;
		assert_int_equal(e->dtype, tensors[t].dtype);
		assert_memory_equal(e->shape, tensors[t].shape, e->ndim * sizeof(uint64_t));
		for (uint64_t b = 0; b < e->nbytes; b++)
			assert_int_equal((unsigned char)file->bytes.p[e->off + b],
					 t_write_byte(t, 0, b));
		assert_int_equal(e->off % e->itemsize, 0);
	}
	dcp_arena_finish(&arena);
}

static void a_file_alone_is_written(void **state)
{
	const struct dcp_write_opts opts = { .name = "w.safetensors" };
	/* natural order would put 10 bytes of BF16 before the F32 */
	const char *const keys[] = { "empty", "layer.10.w", "layer.2.w" };
	struct t_write w;

	(void)state;
	assert_int_equal(t_write_run(&w, dcp_write_format("safetensors"), &set, &opts, NULL),
			 0);
	assert_int_equal(w.nfiles, 1);
	assert_true(w.file[0].last);
	check_file(t_write_file(&w, "w.safetensors"), keys, 3);
	t_write_finish(&w);
}

static void several_files_are_written(void **state)
{
	const struct dcp_write_opts opts = { .max_shard = 16 };
	const char *const first[] = { "empty", "layer.2.w" }, *const second[] = {
		"layer.10.w"
	};
	const struct t_written *index;
	struct t_write w;

	(void)state;
	assert_int_equal(t_write_run(&w, dcp_write_format("safetensors"), &set, &opts, NULL),
			 0);
	assert_int_equal(w.nfiles, 4);
	assert_int_equal(t_write_file(&w, "config.json")->bytes.n, 7);
	check_file(t_write_file(&w, "model-00001-of-00002.safetensors"), first, 2);
	check_file(t_write_file(&w, "model-00002-of-00002.safetensors"), second, 1);
	index = &w.file[3];
	assert_string_equal(index->name, "model.safetensors.index.json");
	assert_true(index->last && !w.file[2].last);
	assert_non_null(strstr(index->bytes.p, "\"total_size\": 34"));
	assert_non_null(
		strstr(index->bytes.p, "\"layer.10.w\": \"model-00002-of-00002.safetensors\""));
	t_write_finish(&w);
}

static void unfit_tensors_are_refused(void **state)
{
	const struct dcp_write_format *f = dcp_write_format("safetensors");
	struct dcp_write_tensor t = tensors[0];

	(void)state;
	assert_null(f->refuses(&t));
	t.key = "__metadata__";
	assert_non_null(f->refuses(&t));
	t = tensors[0];
	t.dtype = DCP_DTYPE_C128;
	assert_non_null(f->refuses(&t));
	assert_null(dcp_write_format("safetensor"));
}

struct failing {
	int calls, at;
};

static int count(struct failing *f)
{
	assert_true(f->calls <= f->at); /* nothing comes after the failure */
	return f->calls++ == f->at ? -ENOSPC : 0;
}

static int fail_file(void *ctx, const char *name, bool last)
{
	(void)name, (void)last;
	return count(ctx);
}

static int fail_bytes(void *ctx, const void *p, size_t n)
{
	(void)p, (void)n;
	return count(ctx);
}

static int fail_data(void *ctx, const struct dcp_write_run *run)
{
	(void)run;
	return count(ctx);
}

static int fail_crc32(void *ctx, uint32_t crc, size_t run)
{
	(void)crc, (void)run;
	return count(ctx);
}

/* A sink that fails at its n-th call gets no other, and its error comes out. */
static void failures_of_the_sink_are_returned(void **state)
{
	const struct dcp_write_opts opts = { .max_shard = 16 };
	struct failing f = { 0 };
	int rc;

	(void)state;
	do {
		const struct dcp_write_sink sink = { fail_file, fail_bytes, fail_data,
						     fail_crc32, &f };

		f.calls = 0;
		rc = dcp_write_plan(&dcp_write_safetensors, &set, &opts, &sink, NULL);
		assert_true(rc == 0 || rc == -ENOSPC);
		f.at++;
	} while (rc < 0);
	assert_int_equal(f.at, 12);
}

/* More than a file, and than a header, may have. */
static void oversized_files_and_headers_are_refused(void **state)
{
	static const uint64_t half = (uint64_t)1 << 62;
	const struct dcp_write_tensor two[] = { T_WRITE_WHOLE("a", DCP_DTYPE_U8, 1, half, 0),
						T_WRITE_WHOLE("b", DCP_DTYPE_U8, 1, half, 0) };
	const struct dcp_write_opts opts = { .name = "w.safetensors" };
	struct dcp_write_set of = { .tensors = two, .ntensors = 2, .ranks = 1 };
	struct failing f = { .at = INT_MAX };
	const struct dcp_write_sink sink = { fail_file, fail_bytes, fail_data, fail_crc32, &f };
	char *key = malloc(DCP_SAFETENSORS_MAX_HEADER + 1);
	struct dcp_write_tensor long_key = tensors[0];
	struct dcp_err err = { 0 };

	(void)state;
	assert_int_equal(dcp_write_plan(&dcp_write_safetensors, &of, &opts, &sink, NULL),
			 -EFBIG);
	memset(key, 'k', DCP_SAFETENSORS_MAX_HEADER);
	key[DCP_SAFETENSORS_MAX_HEADER] = '\0';
	long_key.key = key;
	of.tensors = &long_key;
	of.ntensors = 1;
	assert_int_equal(dcp_write_plan(&dcp_write_safetensors, &of, &opts, &sink, &err),
			 -E2BIG);
	t_assert_says(&err, "give --max-shard-size");
	free(key);
}

/* Part of a tensor as text, and its last two bytes as they are. */
static int plan_text(const struct dcp_write_set *of, const struct dcp_write_opts *opts,
		     struct dcp_writer *w, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf lengths = DCP_BUF_INIT;
	uint64_t n = 2 * DCP_WRITE_TEXT + 1, total;
	int rc = dcp_writer_measure(w, 0, 0, 100, n, &lengths, &total, err);

	(void)opts;
	if (rc < 0)
		return rc;
	assert_int_equal(DCP_NITEMS(lengths, uint64_t), 3);
	dcp_writer_file(w, "text", true);
	dcp_writer_text(w, 0, 0, 100, n, &lengths);
	assert_int_equal(w->at, total);
	dcp_writer_slice(w, 0, 0, of->tensors[0].shape[0] - 2, 2);
	return 0;
}

static void header_text_is_right(void **state)
{
	const struct dcp_write_format f = { .name = "text", .plan = plan_text };
	const struct dcp_write_opts opts = { 0 };
	const uint64_t n = 2 * DCP_WRITE_TEXT + 200;
	const struct dcp_write_tensor t[] = { T_WRITE_WHOLE("w", DCP_DTYPE_U8, 1, n, 0) };
	struct dcp_write_set one = { .tensors = t, .ntensors = 1, .ranks = 1 };
	const unsigned char *p;
	struct t_write w;
	uint64_t i = 100;

	(void)state;
	assert_int_equal(t_write_run(&w, &f, &one, &opts, NULL), -ENOTSUP);
	t_write_finish(&w);
	one.high = t_write_high;
	assert_int_equal(t_write_run(&w, &f, &one, &opts, NULL), 0);
	p = (const unsigned char *)w.file[0].bytes.p;
	for (; i < 100 + 2 * DCP_WRITE_TEXT + 1; i++) {
		if (t_write_byte(0, 0, i) < 0x80) {
			assert_int_equal(*p++, t_write_byte(0, 0, i));
			continue;
		}
		assert_int_equal((p[0] & 0x1f) << 6 | (p[1] & 0x3f), t_write_byte(0, 0, i));
		p += 2;
	}
	assert_int_equal(p[0], t_write_byte(0, 0, n - 2));
	assert_int_equal(p[1], t_write_byte(0, 0, n - 1));
	assert_int_equal((const char *)p + 2 - w.file[0].bytes.p, w.file[0].bytes.n);
	t_write_finish(&w);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_alone_is_written),
		cmocka_unit_test(several_files_are_written),
		cmocka_unit_test(unfit_tensors_are_refused),
		cmocka_unit_test(failures_of_the_sink_are_returned),
		cmocka_unit_test(header_text_is_right),
		cmocka_unit_test(oversized_files_and_headers_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
