/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What cannot be right is kept, with a reason that helps a person.
 */
#include "tests/unit/t.h"

#include <unistd.h>

#include "core/store/index/index.h"
#include "tests/unit/t/index.h"

static const struct {
	const char *what;
	const char *says; /* NULL: nothing is wrong */
	uint64_t n;       /* elements of a vector of halves */
	struct {
		uint64_t lo, len, off, nbytes;
		uint32_t file; /* 0: a.bin of 4096 bytes, 1: missing, 2: leads out */
		uint64_t stride, run_lo, run_n; /* run_n 0: the whole box */
		uint8_t enc, filter;
	} pieces[3];
	uint64_t nbytes;      /* as kept; UINT64_MAX: 2 * n */
	uint32_t itemsize;    /* 0: 2 */
	enum dcp_dtype dtype; /* OTHER: F16 */
	bool partly;          /* what lies in other pieces can be read */
} checks[] = {
	/* clang-format off */
	{ "two halves", NULL, 8, { { 0, 4, 0, 8 }, { 4, 4, 4088, 8 } }, UINT64_MAX },
	{ "a byte too few in the file", "a.bin is 4,096 bytes; metadata expects at least 4,097 "
	  "(bytes 4,089-4,096, piece 2 of 2): was the writer interrupted?",
	  8, { { 0, 4, 0, 8 }, { 4, 4, 4089, 8 } }, UINT64_MAX, .partly = true },
	{ "all of it behind the end", "metadata expects at least 1,000,000,008 (bytes "
	  "1,000,000,000-1,000,000,007, piece 1 of 1)", 4, { { 0, 4, 1000000000, 8 } }, UINT64_MAX,
	  .partly = true },
	{ "offset and length wrap", "lies at 18446744073709551615+8", 4,
	  { { 0, 4, UINT64_MAX, 8 } }, UINT64_MAX },
	{ "fewer bytes than elements", "a.bin: piece 1 of 1 has 7 bytes at 0; its elements take 8",
	  4, { { 0, 4, 0, 7 } }, UINT64_MAX },
	{ "more bytes than elements", NULL, 4, { { 0, 4, 0, 100 } }, UINT64_MAX },
	{ "strides reach the last byte", NULL, 4, { { 0, 4, 0, 20, .stride = 3 } }, UINT64_MAX },
	{ "strides reach one too far", "has 19 bytes at 0; its elements take 20", 4,
	  { { 0, 4, 0, 19, .stride = 3 } }, UINT64_MAX },
	{ "stride zero repeats one", NULL, 4, { { 0, 4, 0, 2, .stride = 0 } , }, UINT64_MAX },
	{ "strides wrap", "its elements take 18,446,744,073,709,551,615", 4,
	  { { 0, 4, 0, 100, .stride = 1ull << 63 } }, UINT64_MAX },
	{ "a torch item shorter than its elements", "has 7 bytes at 0; its elements take 8", 4,
	  { { 0, 4, 0, 7, .enc = DCP_ENC_TORCH } }, UINT64_MAX },
	{ "a torch item longer", NULL, 4, { { 0, 4, 0, 700, .enc = DCP_ENC_TORCH } }, UINT64_MAX },
	{ "a compressed item of any length", NULL, 400,
	  { { 0, 400, 0, 7, .enc = DCP_ENC_TORCH, .filter = DCP_FILTER_ZSTD } }, UINT64_MAX },
	{ "strides and a run", "piece 1 of 2 holds a part of its box with strides", 4,
	  { { 0, 4, 0, 8, .stride = 1, .run_n = 2 }, { 0, 4, 0, 8, .run_lo = 2, .run_n = 2 } },
	  UINT64_MAX },
	{ "a hole", "elements [4:8] are stored nowhere", 8, { { 0, 4, 0, 8 } }, UINT64_MAX },
	{ "an overlap", "overlap", 8, { { 0, 5, 0, 10 }, { 4, 4, 0, 8 } }, UINT64_MAX },
	{ "outside the shape", "leaves dimension 0", 8, { { 4, 8, 0, 16 } }, UINT64_MAX },
	{ "a missing file", "gone.bin: No such file", 4, { { 0, 4, 0, 8, 1 } }, UINT64_MAX,
	  .partly = true },
	{ "a file outside", "leads outside the directory", 4, { { 0, 4, 0, 8, 2 } }, UINT64_MAX,
	  .partly = true },
	{ "a missing file and one never named", "piece 2 of 2 names file 77 of 3", 8,
	  { { 0, 4, 0, 8, 1 }, { 4, 4, 0, 8, 77 } }, UINT64_MAX },
	{ "too few bytes in a missing file", "its elements take 8", 4, { { 0, 4, 0, 7, 1 } },
	  UINT64_MAX },
	{ "a file never named", "piece 1 of 1 names file 77 of 3", 4, { { 0, 4, 0, 8, 77 } },
	  UINT64_MAX },
	{ "no elements need no bytes", NULL, 0, { { 0 } }, UINT64_MAX },
	{ "no elements, in a missing file", NULL, 0, { { 0, 0, 5, 6, 1 } }, UINT64_MAX },
	{ "2^63 - 2 bytes", "stored nowhere", (1ull << 62) - 1, { { 0 } }, UINT64_MAX },
	{ "2^63 bytes", "more bytes than fit in 63 bits", 1ull << 62, { { 0 } }, 0 },
	{ "2^64 bytes", "more bytes than fit in 63 bits", 1ull << 63, { { 0 } }, 0 },
	{ "an element of the wrong size", "elements of 4 bytes; F16 has 2", 4, { { 0, 4, 0, 16 } },
	  0, .itemsize = 4 },
	/* clang-format on */
};

static void tell_check(struct t_index *p, size_t i, const char *key, const uint32_t file[3])
{
	static const uint64_t zero = 0;
	struct dcp_piece pieces[3] = { 0 };
	struct dcp_tensor t = { .key = key,
				.dtype = DCP_DTYPE_F16,
				.itemsize = 2,
				.ndim = 1,
				.shape = &checks[i].n,
				.pieces = pieces };

	if (checks[i].itemsize)
		t.itemsize = checks[i].itemsize;
	for (size_t k = 0; k < 3; k++) {
		uint32_t f = checks[i].pieces[k].file;

		if (!checks[i].pieces[k].nbytes)
			continue;
		pieces[t.npieces++] = (struct dcp_piece){
			.lo = &checks[i].pieces[k].lo,
			.len = &checks[i].pieces[k].len,
			.stride =
				checks[i].pieces[k].stride ? &checks[i].pieces[k].stride : NULL,
			.run_lo = checks[i].pieces[k].run_lo,
			.run_n = checks[i].pieces[k].run_n ? checks[i].pieces[k].run_n
							   : checks[i].pieces[k].len,
			.off = checks[i].pieces[k].off,
			.nbytes = checks[i].pieces[k].nbytes,
			.file = f < 3 ? file[f] : f,
			.enc = checks[i].pieces[k].enc,
			.filter = checks[i].pieces[k].filter,
		};
		if (!strcmp(checks[i].what, "stride zero repeats one"))
			pieces[t.npieces - 1].stride = &zero;
	}
	assert_int_equal(p->sink.tensor(p->sink.ctx, &t), 0);
}

static void bad_items_are_broken(void **state)
{
	struct t_index *p = *state;
	const struct dcp_tensor alias = { .key = "alias",
					  .dtype = DCP_DTYPE_F16,
					  .itemsize = 2,
					  .ndim = 1,
					  .shape = (const uint64_t[]){ 4 },
					  .alias_of = "a missing file" };
	uint32_t file[3] = { p->file };
	struct dcp_row row;
	size_t broken = 1;

	assert_int_equal(p->sink.file(p->sink.ctx, "gone.bin", &file[1]), 0);
	assert_int_equal(symlinkat("/etc/passwd", p->dir.fd, "out.bin"), 0);
	assert_int_equal(p->sink.file(p->sink.ctx, "out.bin", &file[2]), 0);
	assert_int_equal(p->sink.file(p->sink.ctx, "a.bin", &file[0]), 0);
	assert_int_equal(file[0], p->file);
	for (size_t i = 0; i < DCP_LEN(checks); i++)
		tell_check(p, i, checks[i].what, file);
	p->sink.tensor(p->sink.ctx, &alias);
	t_index_reopen(p);
	row = t_index_row(p, DCP_ROW_TENSOR, "alias");
	assert_true(row.broken && row.partly && row.alias_of);
	for (size_t i = 0; i < DCP_LEN(checks); i++) {
		struct dcp_err said = { 0 };
		struct dcp_tensor t;

		t_case(checks[i].what);
		row = t_index_row(p, DCP_ROW_TENSOR, checks[i].what);
		t = t_index_tensor(p, row.id);
		if (!checks[i].says)
			assert_null(t.error);
		assert_int_equal(row.broken, checks[i].says != NULL);
		assert_int_equal(row.partly, checks[i].partly);
		assert_int_equal(t.partly, checks[i].partly);
		dcp_fail_at(&said, 0, 0, "%s", t.error ? t.error : "");
		if (checks[i].says)
			t_assert_says(&said, checks[i].says);
		assert_int_equal(row.nbytes,
				 checks[i].nbytes == UINT64_MAX ? 2 * checks[i].n : 0);
		broken += row.broken;
	}
	assert_int_equal(dcp_index_counts(p->ix)->broken, broken);
}

static void adapters_error_stays(void **state)
{
	struct t_index *p = *state;
	struct dcp_tensor t = { .key = "k",
				.dtype = DCP_DTYPE_F16,
				.itemsize = 2,
				.ndim = 1,
				.shape = U64S(1ull << 63),
				.error = "the adapter's reason" };

	assert_int_equal(p->sink.tensor(p->sink.ctx, &t), 0);
	t.key = "too many dimensions";
	t.error = NULL;
	t.ndim = 65;
	t.shape = NULL;
	assert_int_equal(p->sink.tensor(p->sink.ctx, &t), 0);
	t_index_reopen(p);
	assert_string_equal(t_index_tensor(p, 1).error, "the adapter's reason");
	assert_int_equal(t_index_row(p, DCP_ROW_TENSOR, "k").nbytes, 0);
	assert_string_equal(t_index_tensor(p, 2).error, "it has more than 64 dimensions");
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(bad_items_are_broken, t_index_setup,
						t_index_teardown),
		cmocka_unit_test_setup_teardown(adapters_error_stays, t_index_setup,
						t_index_teardown),
	};
	return cmocka_run_group_tests_name("index_check", tests, NULL, NULL);
}
