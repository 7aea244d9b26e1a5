/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of any size, and regions that are read alone.
 * covers: place, tools/load/open/keys
 */
#include "tests/unit/t.h"

#include "tests/unit/t/load.h"

enum { GUARD = 0xa5 };

/* ---- alone ---- */

static void test_read(void **state)
{
	struct t_load *f = *state;
	const uint64_t lo[] = { 5, 2, 1 }, len[] = { 8, 5, 7 }, step[] = { 3, 2, 4 },
		       behind[] = { 9, 5, 8 }, zero[] = { 1, 0, 1 };
	float got[3 * 3 * 2 + 1];
	uint8_t b[4096];
	struct dcpload_tensor t;

	got[18] = 7;
	ok(f, dcpload_read(f->ck, "model.f", lo, len, step, got, 72, &f->err));
	for (uint64_t i = 0; i < 18; i++)
		assert_true(got[i] ==
			    t_load_number(1 + ((5 + i / 6 * 3) * 8 + 2 + i / 2 % 3 * 2) * 8 +
					  1 + i % 2 * 4));
	assert_true(got[18] == 7);
	ok(f, dcpload_read(f->ck, "model.b", NULL, NULL, NULL, b, sizeof(b), &f->err));
	assert_int_equal(b[4095], t_load_byte(8191, 1));
	fails(f, dcpload_read(f->ck, "model.f", lo, len, step, got, 76, &f->err), -EINVAL,
	      "has 72 bytes, the buffer 76");
	fails(f, dcpload_read(f->ck, "model.f", behind, len, NULL, got, 72, &f->err), -EINVAL,
	      "not inside");
	fails(f, dcpload_read(f->ck, "model.f", lo, len, zero, got, 72, &f->err), -EINVAL,
	      "dimension 1");
	fails(f, dcpload_read(f->ck, "model.g", lo, len, zero, got, 72, &f->err), -ENOENT,
	      "nearest is model.");
	ok(f, dcpload_tensor(f->ck, "model.f", &t, &f->err));
	assert_string_equal(t.dtype, "F32");
	assert_int_equal(t.ndim, 3);
	assert_int_equal(t.nbytes, 4096);
}

/* ---- large elements ---- */

/* Of 5,000 bytes, which no chunk's end spares, and of more than any buffer. */
static void test_large_elements(void **state)
{
	static const struct {
		uint32_t size;
		uint64_t n;
	} cases[] = { { 5000, 300 }, { 2000000, 3 }, { 6000000, 2 }, { 24, 1000 } };
	static const uint32_t ios[] = { DCPLOAD_IO_BUFFERED, DCPLOAD_IO_DIRECT };
	struct t_load *f = *state;

	for (size_t i = 0; i < 2 * DCP_LEN(cases); i++) {
		struct dcpload_config config = {
			.size = sizeof(config), .io = ios[i % 2], .staging = 1, .cache = ""
		};
		uint64_t size = cases[i / 2].size, n = cases[i / 2].n, all = size * n;
		uint8_t *file = malloc(128 + all), *dst = malloc(2 * all);
		struct dcpload_want want = { .size = sizeof(want),
					     .ndim = 1,
					     .key = "x",
					     .stride = (int64_t[]){ 2 },
					     .dst = dst };
		struct dcpload_part part;
		struct dcpload_plan *p;
		struct dcpload *ck;
		char name[32];

		assert_true(file && dst);
		memset(file, ' ', 128);
		memcpy(file, "\x93NUMPY\x01\x00\x76\x00", 10);
		snprintf((char *)file + 10, 118,
			 "{'descr': '|S%llu', 'fortran_order': False, 'shape': (%llu,), }",
			 (unsigned long long)size, (unsigned long long)n);
		file[10 + strlen((char *)file + 10)] = ' ';
		file[127] = '\n';
		for (uint64_t k = 0; k < all; k++)
			file[128 + k] = t_load_byte(k, 9);
		snprintf(name, sizeof(name), "wide-%zu/x.npy", i);
		t_dir_put(&f->d, name, file, 128 + all);
		snprintf(name, sizeof(name), "wide-%zu", i);
		ok(f, dcpload_open(NULL, t_dir_path(&f->d, name), &config, &ck, &f->err));
		ok(f, dcpload_plan_create(ck, 0, &p, &f->err));
		ok(f, dcpload_want(p, &want, &f->err));
		ok(f, dcpload_plan_finish(p, &f->err));
		memset(dst, GUARD, 2 * all);
		ok(f, dcpload_execute(p, &f->err));
		ok(f, dcpload_part(p, 0, &part));
		assert_int_equal(part.itemsize, size);
		assert_int_equal(part.ndim, 1);
		for (uint64_t k = 0; k < n; k++) {
			assert_memory_equal(dst + 2 * k * size, file + 128 + k * size, size);
			assert_int_equal(dst[2 * k * size + size], GUARD);
		}
		ok(f, dcpload_check(p, &f->err));
		dcpload_plan_free(p);
		dcpload_close(ck);
		free(file);
		free(dst);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_read, t_load_setup, t_load_teardown),
		cmocka_unit_test_setup_teardown(test_large_elements, t_load_setup,
						t_load_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
