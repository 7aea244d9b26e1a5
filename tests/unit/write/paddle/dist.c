/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A set of two ranks. The bytes, told by their CRC-32, are those that CPython unpickled to the
 * right values; tests/cli/export_families reads such files back.
 * covers: dist, write/numpy
 */
#include "tests/unit/t.h"

#include "core/base/hash.h"
#include "core/write/write.h"
#include "tests/unit/t/write.h"

/* Of rows 0 to 1, 2, and 3 to 4, the last ones also cut behind the first column. */
static const struct dcp_write_part parts[] = {
	{ 0, 2, (const uint64_t[]){ 0, 0 }, (const uint64_t[]){ 2, 3 } },
	{ 1, 2, (const uint64_t[]){ 2, 0 }, (const uint64_t[]){ 1, 3 } },
	{ 0, 2, (const uint64_t[]){ 3, 0 }, (const uint64_t[]){ 2, 1 } },
	{ 1, 2, (const uint64_t[]){ 3, 1 }, (const uint64_t[]){ 2, 2 } },
	{ 1, 2, (const uint64_t[]){ 5, 0 }, (const uint64_t[]){ 0, 3 } },
};

static const struct dcp_write_tensor tensors[] = {
	{ .key = "m.w",
	  .path = (const char *const[]){ "m", "w" },
	  .npath = 2,
	  .dtype = DCP_DTYPE_BF16,
	  .itemsize = 2,
	  .ndim = 2,
	  .shape = (const uint64_t[]){ 5, 3 },
	  .parts = parts,
	  .nparts = DCP_LEN(parts),
	  .same_as = DCP_WRITE_ALONE },
	T_WRITE_WHOLE("b", DCP_DTYPE_F32, 4, 2, 0),
};

static const struct dcp_write_set set = { .tensors = tensors,
					  .ntensors = DCP_LEN(tensors),
					  .ranks = 2 };
static const struct dcp_write_opts no_opts;

static void check(const struct t_write *w, const char *name, size_t n, uint32_t crc)
{
	const struct t_written *f = t_write_file(w, name);

	if (f->bytes.n != n || dcp_crc32(0, f->bytes.p, f->bytes.n) != crc)
		fail_msg("%s: %zu bytes, CRC %08x", name, f->bytes.n,
			 dcp_crc32(0, f->bytes.p, f->bytes.n));
}

/*
 * The boxes that are a rank's second of a tensor lie in files of their own, an empty one nowhere.
 */
static void both_files_are_written(void **state)
{
	static const struct {
		const struct dcp_write_format *f;
		size_t n;
		uint32_t crc;
	} rows[] = { { &dcp_write_paddle_dist, 816, 0xd3cc5a43 },
		     { &dcp_write_paddle_dist_31, 603, 0x0bceb569 } };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct t_write w;

		t_case(rows[i].f->name);
		assert_int_equal(t_write_run(&w, rows[i].f, &set, &no_opts, NULL), 0);
		assert_int_equal(w.nfiles, 5);
		assert_string_equal(w.file[4].name, "0.metadata");
		assert_true(w.file[4].last && !w.file[0].last);
		check(&w, "0.metadata", rows[i].n, rows[i].crc);
		check(&w, "0_0.distcp", 307, 0x56facf21);
		check(&w, "1_0.distcp", 211, 0x610b0e03);
		check(&w, "2_0.distcp", 209, 0xa8730059);
		check(&w, "3_0.distcp", 213, 0x456e16e2);
		t_write_finish(&w);
	}
}

static void unfit_tensors_are_refused(void **state)
{
	struct dcp_write_tensor t = tensors[1];

	(void)state;
	assert_null(dcp_write_paddle_dist.refuses(&t));
	t.dtype = DCP_DTYPE_F8_E4M3;
	assert_null(dcp_write_paddle_dist.refuses(&t));
	t.dtype = DCP_DTYPE_U32;
	assert_non_null(dcp_write_paddle_dist.refuses(&t));
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(both_files_are_written),
		cmocka_unit_test(unfit_tensors_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
