/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of any size, and regions that are read alone; placing at random, element by element.
 * covers: place, tools/load/open/keys
 */
#include "tests/unit/t.h"

#include <unistd.h>

#include "tests/unit/t/load.h"
#include "tests/unit/t/random.h"
#include "tools/load/load.h"

enum { GUARD = 0xa5 };

/* ---- by chance ---- */

enum { DIMS = 4, SOURCE = 64 << 10, ROOM = 256 << 10, MARGIN = 64 };

static uint64_t seed;

static uint64_t pick(uint64_t below)
{
	return t_random(&seed, below);
}

/* A destination for elements of any kind, in rows that are anywhere. */
struct target {
	struct load_target t;
	uint64_t shape[DIMS], n; /* elements */
	int64_t stride[DIMS];
	uint64_t span; /* elements from the first to behind the last */
};

static void random_target(struct target *x)
{
	static const uint32_t sizes[] = { 1, 2, 3, 4, 7, 8, 12, 16 };
	struct load_target *t = &x->t;
	uint32_t order[DIMS] = { 0, 1, 2, 3 }, d;
	uint64_t step = 1 + pick(2), dense = 1;
	bool row_major = pick(3) == 0;

	*x = (struct target){ .n = 1, .span = 1 };
	t->shape = x->shape;
	t->dtype = t->shown = (enum dcp_dtype)pick(DCP_DTYPE_COUNT);
	for (int i = 0; i < 8 && t->shown == t->dtype && pick(3); i++) {
		enum dcp_dtype to = (enum dcp_dtype)pick(DCP_DTYPE_COUNT);

		if (to != t->dtype && dcp_dtype_can_cast(t->dtype, to))
			t->shown = to;
	}
	t->from = t->dtype ? dcp_dtype_info(t->dtype)->size : sizes[pick(DCP_LEN(sizes))];
	t->to = t->dtype == t->shown ? t->from : dcp_dtype_info(t->shown)->size;
	if (pick(3) == 0)
		t->swap = dcp_dtype_swap_unit(t->dtype, t->from);
	t->ndim = (uint32_t)pick(DIMS + 1);
	for (d = 0; d < t->ndim; d++) {
		x->shape[d] = 1 + pick(pick(3) ? 6 : t->ndim == 1 ? 3000 : 14);
		x->n *= x->shape[d];
	}
	for (d = t->ndim; d > 1 && !row_major; d--) {
		uint32_t j = (uint32_t)pick(d), was = order[d - 1];

		order[d - 1] = order[j];
		order[j] = was;
	}
	for (uint32_t k = t->ndim; k-- > 0;) {
		d = order[k];
		x->stride[d] = (int64_t)(row_major ? dense : step);
		x->span += (x->shape[d] - 1) * (uint64_t)x->stride[d];
		dense *= x->shape[d];
		step = step * x->shape[d] + (pick(4) ? 0 : pick(9));
	}
	t->plain = row_major && t->dtype == t->shown && t->swap <= 1;
	if (row_major && pick(2))
		return;
	if (t->plain)
		t->plain = false; /* strides that say what is so without them */
	t->stride = x->stride;
	t->inner = 1;
	dense = 1;
	for (d = t->ndim; d-- > 0; dense *= x->shape[d]) {
		if (x->shape[d] != 1 && (uint64_t)x->stride[d] != dense)
			break;
		t->inner *= x->shape[d];
	}
}

/* Runs of whole elements of the array, none of them twice, from anywhere in the source. */
static struct dcp_strided random_runs(const struct target *x)
{
	uint64_t run = pick(2) ? 2000 : 20;
	struct dcp_strided s = { .run = 1 + pick(DCP_MIN(x->n, run)) };
	uint64_t end = s.run, file = s.run, unit = x->t.from;

	for (uint32_t k = DCP_STRIDED_DIMS; k-- > 0;) {
		uint64_t step = end + (pick(2) ? pick(7) : 0), most = (x->n - end) / step + 1;

		if (most < 2 || pick(3) == 0)
			continue;
		memmove(s.count + 1, s.count, s.ndim * sizeof(*s.count));
		memmove(s.dst_stride + 1, s.dst_stride, s.ndim * sizeof(*s.count));
		memmove(s.file_stride + 1, s.file_stride, s.ndim * sizeof(*s.count));
		s.count[0] = 2 + pick(DCP_MIN(most - 1, 9u));
		s.dst_stride[0] = step * unit;
		s.file_stride[0] = (pick(4) ? file : 1) * unit + pick(3);
		end += (s.count[0] - 1) * step;
		file += (s.count[0] - 1) * s.file_stride[0] / unit + 1;
		s.ndim++;
	}
	s.run *= unit;
	s.dst = pick(x->n - end + 1) * unit;
	return s;
}

/* The same by definition. */
static void place_each(const struct target *x, const struct dcp_strided *s, const uint8_t *src,
		       uint8_t *to)
{
	uint64_t runs = dcp_strided_bytes(s) / s->run;
	uint32_t unit = x->t.swap > 1 ? x->t.swap : 1;

	for (uint64_t i = 0; i < runs * s->run / x->t.from; i++) {
		uint64_t rest = i / (s->run / x->t.from), place = 0, e;
		uint64_t off = i % (s->run / x->t.from) * x->t.from, dst = s->dst + off;
		uint8_t own[16];

		for (uint32_t k = s->ndim; k-- > 0; rest /= s->count[k]) {
			off += rest % s->count[k] * s->file_stride[k];
			dst += rest % s->count[k] * s->dst_stride[k];
		}
		for (uint32_t b = 0; b < x->t.from; b++)
			own[b] = src[off + b / unit * unit + (unit - 1 - b % unit)];
		e = dst / x->t.from;
		for (uint32_t d = x->t.ndim; d-- > 0; e /= x->shape[d])
			place += e % x->shape[d] * (uint64_t)x->stride[d];
		if (x->t.dtype == x->t.shown)
			memcpy(to + place * x->t.to, own, x->t.to);
		else
			dcp_dtype_cast(x->t.dtype, x->t.shown, to + place * x->t.to, own, 1);
	}
}

static void random_runs_are_placed(void **state)
{
	uint8_t *src = malloc(SOURCE + MARGIN), *got = malloc(ROOM), *want = malloc(ROOM);
	uint64_t kinds[2] = { 0 };

	(void)state;
	assert_true(src && got && want);
	seed = t_random_seed(7);
	for (size_t i = 0; i < SOURCE; i++)
		src[i] = (uint8_t)pick(256);
	for (int round = 0; round < T_ROUNDS(20000); round++) {
		uint64_t first = seed, all, at;
		struct dcp_strided s;
		struct target x;

		random_target(&x);
		s = random_runs(&x);
		all = x.span * x.t.to + 2 * MARGIN;
		if (all > ROOM || dcp_strided_extent(&s) > SOURCE / 2)
			continue;
		memset(got, GUARD, all);
		memset(want, GUARD, all);
		at = pick(SOURCE / 2);
		x.t.base = (char *)got + MARGIN;
		load_place(&x.t, &s, src + at);
		place_each(&x, &s, src + at, want + MARGIN);
		if (memcmp(got, want, all))
			fail_msg("DCPFS_TEST_SEED=0x%llx: %s to %s, %u dimensions, swap %u, "
				 "inner %llu, runs of %llu bytes over %u dimensions",
				 (unsigned long long)first, dcp_dtype_info(x.t.dtype)->name,
				 dcp_dtype_info(x.t.shown)->name, x.t.ndim, x.t.swap,
				 (unsigned long long)x.t.inner, (unsigned long long)s.run,
				 s.ndim);
		kinds[x.t.plain]++;
	}
	assert_true(kinds[0] > T_ROUNDS(5000) && kinds[1] > T_ROUNDS(500));
	free(src);
	free(got);
	free(want);
}

/* ---- alone ---- */

static void boxes_with_steps_are_read(void **state)
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
	      "Nearest: \"model.");
	ok(f, dcpload_tensor(f->ck, "model.f", &t, &f->err));
	assert_string_equal(t.dtype, "F32");
	assert_int_equal(t.ndim, 3);
	assert_int_equal(t.nbytes, 4096);
}

static void pieces_are_placed(void **state)
{
	struct t_load *f = *state;
	const struct dcpload_piece *piece;
	size_t n;

	ok(f, dcpload_pieces(f->ck, "model.f", &piece, &n, &f->err));
	assert_int_equal(n, 1);
	assert_non_null(strstr(piece->file, ".safetensors"));
	for (int d = 0; d < 3; d++) {
		assert_int_equal(piece->lo[d], 0);
		assert_int_equal(piece->len[d], d ? 8 : 16);
	}
	fails(f, dcpload_pieces(f->ck, "model.g", &piece, &n, &f->err), -ENOENT,
	      "Nearest: \"model.");
}

/* Where it is one run of bytes in a file: that file and place. */
static void a_single_run_of_a_file_is_named(void **state)
{
	const struct dcpload_config config = { .size = sizeof(config),
					       .version = "20",
					       .cache = "" };
	static char want[1 << 20], got[1 << 20];
	struct t_load *f = *state;
	struct dcpload_tensor t;
	struct dcpload *ck;
	uint64_t next = 0, at;
	int fd, rc, found[2] = { 0 };

	ok(f, dcpload_open(NULL, "tests/golden/dcp-fsdp2/ckpt", &config, &ck, &f->err));
	while (dcpload_next_tensor(ck, &next, &t, &f->err) > 0) {
		char key[256];

		snprintf(key, sizeof(key), "%s", t.key); /* the next answer takes its place */
		assert_true(t.nbytes <= sizeof(want));
		ok(f, dcpload_read(ck, key, NULL, NULL, NULL, want, t.nbytes, &f->err));
		rc = dcpload_run(ck, key, &fd, &at, &f->err);
		found[rc == 0]++;
		if (rc < 0) {
			assert_int_equal(rc, -ENOTSUP);
			continue;
		}
		assert_int_equal(pread(fd, got, t.nbytes, (off_t)at), t.nbytes);
		assert_memory_equal(got, want, t.nbytes);
		close(fd);
	}
	assert_true(found[0] > 5 && found[1] > 5);
	dcpload_close(ck);
	t_case("a file that has changed since it was opened");
	ok(f, dcpload_run(f->ck, "model.b", &fd, &at, &f->err));
	close(fd);
	t_load_put(&f->d, "step-1/model.safetensors", T_LOAD_HEADER, 2);
	t_dir_touch(&f->d, "step-1/model.safetensors", 1700000000000000000);
	fails(f, dcpload_run(f->ck, "model.b", &fd, &at, &f->err), -ESTALE, "model.b");
}

/* ---- large elements ---- */

/* Of 5,000 bytes, which no chunk's end spares, and of more than any buffer. */
static void large_elements_are_placed(void **state)
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
		cmocka_unit_test(random_runs_are_placed),
		cmocka_unit_test_setup_teardown(boxes_with_steps_are_read, t_load_setup,
						t_load_teardown),
		cmocka_unit_test_setup_teardown(pieces_are_placed, t_load_setup,
						t_load_teardown),
		cmocka_unit_test_setup_teardown(a_single_run_of_a_file_is_named, t_load_setup,
						t_load_teardown),
		cmocka_unit_test_setup_teardown(large_elements_are_placed, t_load_setup,
						t_load_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
