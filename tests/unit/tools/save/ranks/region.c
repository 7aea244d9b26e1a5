/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of arrays with strides, any of them, against one element at a time.
 * covers: given
 */
#include "tests/unit/t.h"

#include "tests/unit/t/random.h"
#include "tools/save/ranks/ranks_int.h"

enum { ROOM = 1 << 16 };

/* Lengths, and strides of dimensions in any order, with gaps, some of them backwards. */
static void invent(uint64_t *seed, struct save_region *r, uint64_t *len, int64_t *stride,
		   const char *memory)
{
	static const uint32_t sizes[] = { 1, 2, 3, 4, 8, 16 };
	uint32_t order[4] = { 0, 1, 2, 3 };
	int64_t step = 1;

	r->itemsize = sizes[t_random(seed, DCP_LEN(sizes))];
	r->ndim = (uint32_t)t_random(seed, 5);
	r->base = memory;
	r->len = len;
	r->stride = stride;
	for (uint32_t i = 0; i < r->ndim; i++) {
		uint32_t j = t_random(seed, 2) ? i : (uint32_t)t_random(seed, i + 1),
			 was = order[i];

		order[i] = order[j];
		order[j] = was;
		len[i] = 1 + t_random(seed, 5);
	}
	for (uint32_t i = r->ndim; i--;) {
		/* order[] may be no permutation of the first ndim; the others are skipped */
		uint32_t d = order[i] < r->ndim ? order[i] : i;

		stride[d] = step;
		step *= (int64_t)(len[d] + t_random(seed, 3) / 2);
		if (t_random(seed, 5) == 0 && len[d] > 1) {
			r->base += stride[d] * (int64_t)(len[d] - 1) * r->itemsize;
			stride[d] = -stride[d];
		}
	}
}

static void slowly(const struct save_region *r, char *out)
{
	uint64_t at[4] = { 0 };

	for (uint64_t n = save_region_bytes(r) / r->itemsize; n; n--, out += r->itemsize) {
		const char *from = r->base;

		for (uint32_t d = 0; d < r->ndim; d++)
			from += (int64_t)at[d] * r->stride[d] * (int64_t)r->itemsize;
		memcpy(out, from, r->itemsize);
		for (uint32_t d = r->ndim; d-- && ++at[d] == r->len[d];)
			at[d] = 0;
	}
}

static void regions_are_taken(void **state)
{
	uint64_t seed = t_random_seed(7);
	char *memory = malloc(ROOM), *want = malloc(ROOM), *got = malloc(ROOM);

	(void)state;
	print_message("DCPFS_TEST_SEED=%llu\n", (unsigned long long)seed);
	for (size_t i = 0; i < ROOM; i++)
		memory[i] = (char)t_random64(&seed);
	for (int round = 0; round < T_ROUNDS(4000); round++) {
		struct save_region r;
		uint64_t len[4], n, lo, hi;
		int64_t stride[4];

		invent(&seed, &r, len, stride, memory);
		n = save_region_bytes(&r);
		slowly(&r, want);
		lo = t_random(&seed, n);
		hi = lo + t_random(&seed, n - lo + 1);
		memset(got, 0, ROOM);
		save_region_take(&r, lo, got, hi - lo);
		assert_memory_equal(got, want + lo, hi - lo);
		save_region_take(&r, 0, got, n);
		assert_memory_equal(got, want, n);
		r.base = want;
		r.stride = NULL;
		save_region_take(&r, lo, got, hi - lo);
		assert_memory_equal(got, want + lo, hi - lo);
	}
	free(memory);
	free(want);
	free(got);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(regions_are_taken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
