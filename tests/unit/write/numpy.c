/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/base/arena.h"
#include "core/origin/archive/archive.h"
#include "core/origin/origin.h"
#include "core/parse/numpy/numpy.h"
#include "core/write/write.h"
#include "tests/unit/t/write.h"

static const struct dcp_write_tensor tensors[] = {
	T_WRITE_WHOLE("layer.1.w", DCP_DTYPE_F32, 4, 2, 3),
	T_WRITE_WHOLE("a/b", DCP_DTYPE_BF16, 2, 5, 0),
	T_WRITE_WHOLE("empty", DCP_DTYPE_I64, 8, 0, 4),
};

static const char *const names[] = { "layer.1.w.npy", "a%2Fb.npy", "empty.npy" };

static const struct dcp_write_set set = { .tensors = tensors,
					  .ntensors = DCP_LEN(tensors),
					  .ranks = 1 };

/* An .npy of tensor @t stands in @src. */
static void check_npy(const struct dcp_source *src, size_t t)
{
	unsigned char bytes[64];
	struct dcp_npy npy;

	assert_int_equal(dcp_npy_read(src, &npy, NULL), 0);
	assert_int_equal(npy.dtype, tensors[t].dtype);
	assert_int_equal(npy.ndim, tensors[t].ndim);
	assert_memory_equal(npy.shape, tensors[t].shape, npy.ndim * sizeof(*npy.shape));
	assert_int_equal(npy.off % 64, 0);
	assert_int_equal(npy.off + npy.nbytes, src->size);
	assert_int_equal(dcp_source_read(src, npy.off, bytes, npy.nbytes), 0);
	for (uint64_t b = 0; b < npy.nbytes; b++)
		assert_int_equal(bytes[b], t_write_byte(t, 0, b));
}

static void directories_are_written(void **state)
{
	const struct dcp_write_opts opts = { 0 };
	struct t_write w;

	(void)state;
	assert_int_equal(t_write_run(&w, &dcp_write_npy, &set, &opts, NULL), 0);
	assert_int_equal(w.nfiles, 3);
	for (size_t i = 0; i < 3; i++) {
		const struct dcp_buf *b = &t_write_file(&w, names[i])->bytes;
		const struct dcp_source src = dcp_source_mem(b->p, b->n);

		check_npy(&src, i);
	}
	t_write_finish(&w);
}

static void archives_are_written(void **state)
{
	const struct dcp_write_opts opts = { .name = "w.npz" };
	struct dcp_zip_member *m;
	struct dcp_arena arena;
	struct dcp_source src;
	struct t_write w;
	size_t n;

	(void)state;
	dcp_arena_init(&arena, 1 << 20);
	assert_int_equal(t_write_run(&w, &dcp_write_npz, &set, &opts, NULL), 0);
	assert_true(w.nfiles == 1 && w.file[0].last);
	src = dcp_source_mem(w.file[0].bytes.p, w.file[0].bytes.n);
	assert_int_equal(dcp_zip_list(&src, &arena, &m, &n, NULL), 0);
	assert_int_equal(n, 3);
	for (size_t i = 0; i < n; i++) {
		char name[32];
		struct dcp_source npy;
		uint64_t off;

		snprintf(name, sizeof(name), "%s.npy", tensors[i].key);
		assert_string_equal(m[i].name, name);
		assert_int_equal(dcp_zip_data(&src, &m[i], &off, NULL), 0);
		npy = dcp_source_window(&src, off, m[i].size);
		check_npy(&npy, i);
	}
	dcp_arena_finish(&arena);
	t_write_finish(&w);
}

static void unfit_tensors_are_refused(void **state)
{
	struct dcp_write_tensor t = tensors[1];
	char key[300] = "";

	(void)state;
	assert_null(dcp_write_npy.refuses(&t));
	t.dtype = DCP_DTYPE_F8_E4M3;
	assert_non_null(dcp_write_npy.refuses(&t));
	memset(key, 'k', sizeof(key) - 1);
	t = tensors[1];
	t.key = key;
	assert_string_equal(dcp_write_npy.refuses(&t), "its key is too long for a file's name");
	assert_null(dcp_write_npz.refuses(&t));
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(directories_are_written),
		cmocka_unit_test(archives_are_written),
		cmocka_unit_test(unfit_tensors_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
