/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/model/job/chunk.h"

static void sizes_fit_the_staging_memory(void **state)
{
	static const struct {
		uint64_t staging, ranks, slack, tried, most, want;
	} cases[] = {
		{ 64 << 20, 8, 0, 0, 0, 4 << 20 },
		{ 64 << 20, 8, 0, 4 << 20, 8 << 20, 4 << 20 },        /* it fits */
		{ 64 << 20, 4096, 0, 4 << 20, 504 << 20, 508 << 10 }, /* a part of it would */
		{ 64 << 20, 4096, 0, 4 << 20, 57 << 20, 2 << 20 },    /* hardly too large */
		{ 64 << 20, 4096, 0, 4096, 1 << 30, 4096 },           /* none is smaller */
		{ 64 << 20, 8, 0, 4 << 20, 64 << 20, 3727360 },       /* this always fits */
		{ 1 << 20, 4096, 4096, 0, 0, 253952 },
		{ 1 << 20, 4096, 4096, 253952, 1 << 30, 4096 },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++)
		assert_int_equal(dcp_stripe_size(cases[i].staging, (uint32_t)cases[i].ranks,
						 cases[i].slack, cases[i].tried, cases[i].most),
				 cases[i].want);
}

/* Each byte of each file is of one stripe, in order; owners take turns, over the ends of
 * files too. */
static void stripes_are_dealt(void **state)
{
	const struct dcp_file_id files[] = { { .size = 10 },
					     { .size = 0 },
					     { .size = 8192 },
					     { .size = 8193, .unpacked = 99999 } };
	struct dcp_stripes s = { .size = 4096, .ranks = 3 };
	uint64_t next = 0;

	(void)state;
	assert_int_equal(dcp_stripes_number(&s, files, DCP_LEN(files)), 0);
	for (uint32_t f = 0; f < DCP_LEN(files); f++) {
		assert_int_equal(s.base[f], next);
		for (uint64_t off = 0; off < files[f].size; off++) {
			uint64_t stripe = dcp_stripe_at(&s, f, off);

			next += stripe == next;
			assert_int_equal(stripe, next - 1);
			assert_int_equal(dcp_stripe_owner(&s, stripe), (next - 1) % 3);
			assert_int_equal(dcp_stripe_start(&s, f, stripe), off - off % 4096);
		}
	}
	assert_int_equal(s.base[DCP_LEN(files)], 6);
	assert_int_equal(dcp_stripe_rounds(&s), 2);
	free(s.base);
}

static void slots_fit_the_staging_memory(void **state)
{
	(void)state;
	assert_int_equal(dcp_slot_size(DCP_STRIPE_STAGING, DCP_SLOTS, DCP_SLOT_MOST),
			 DCP_SLOT_MOST);
	assert_int_equal(dcp_slot_size(1 << 20, DCP_SLOTS, DCP_SLOT_MOST), 85 * 4096);
	assert_int_equal(dcp_slot_size(4096, DCP_SLOTS, DCP_SLOT_MOST), 64 << 10);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_fit_the_staging_memory),
		cmocka_unit_test(stripes_are_dealt),
		cmocka_unit_test(slots_fit_the_staging_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
