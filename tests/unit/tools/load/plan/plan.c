/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C interface: wants with regions, strides and conversions into memory of the caller; wants
 * that are refused; hooks; another version.
 * covers: plan, keyset, tools/load/open/open
 */
#include "tests/unit/t.h"

#include <sys/mman.h>

#include "core/model/dtype.h"
#include "tests/unit/t/load.h"

enum { GUARD = 0xa5, ROOM = 1 << 20 };

/* ---- in place ---- */

/* Memory that ends where a page begins that must not be touched. */
static uint8_t *guarded(size_t n)
{
	uint8_t *p = mmap(NULL, ROOM + 4096, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(p != MAP_FAILED && n <= ROOM);
	assert_int_equal(mprotect(p + ROOM, 4096, PROT_NONE), 0);
	memset(p, GUARD, ROOM);
	return p + ROOM - n;
}

static void unguard(uint8_t *p, size_t n)
{
	assert_int_equal(munmap(p + n - ROOM, ROOM + 4096), 0);
}

/* Region by region, into a destination of @stride elements; every other byte stays as it was. */
struct case_place {
	const char *what, *dtype;
	uint64_t lo[3], len[3];
	int64_t stride[3];
	uint32_t size; /* of an element in the destination */
};

static void expected_number(uint8_t *dst, const char *dtype, float x)
{
	if (!dtype || !strcmp(dtype, "F32"))
		memcpy(dst, &x, 4);
	else if (!strcmp(dtype, "BF16"))
		dcp_dtype_cast(DCP_DTYPE_F32, DCP_DTYPE_BF16, dst, &x, 1);
	else if (!strcmp(dtype, "F16"))
		dcp_dtype_cast(DCP_DTYPE_F32, DCP_DTYPE_F16, dst, &x, 1);
	else if (!strcmp(dtype, "F8_E4M3"))
		dcp_dtype_cast(DCP_DTYPE_F32, DCP_DTYPE_F8_E4M3, dst, &x, 1);
	else
		dcp_dtype_cast(DCP_DTYPE_F32, DCP_DTYPE_F8_E5M2, dst, &x, 1);
}

static void place_one(struct t_load *f, const struct case_place *c)
{
	size_t last = 0, n;
	uint8_t *dst, *want = malloc(ROOM);
	struct dcpload_plan *p = t_load_plan(f, 0);
	struct dcpload_part part;

	for (int d = 0; d < 3; d++)
		last += (c->len[d] - 1) * (uint64_t)c->stride[d];
	n = (last + 1) * c->size;
	dst = guarded(n);
	assert_non_null(want);
	memset(want, GUARD, ROOM);
	for (uint64_t i = 0; i < c->len[0]; i++)
		for (uint64_t j = 0; j < c->len[1]; j++)
			for (uint64_t k = 0; k < c->len[2]; k++) {
				uint64_t e =
					((c->lo[0] + i) * 8 + c->lo[1] + j) * 8 + c->lo[2] + k;
				uint64_t at = i * (uint64_t)c->stride[0] +
					      j * (uint64_t)c->stride[1] +
					      k * (uint64_t)c->stride[2];

				expected_number(want + ROOM - n + at * c->size, c->dtype,
						t_load_number(e + 1));
			}
	ok(f, dcpload_want(p,
			   &(struct dcpload_want){ .size = sizeof(struct dcpload_want),
						   .ndim = 3,
						   .key = "model.f",
						   .shape = (uint64_t[]){ 16, 8, 8 },
						   .lo = c->lo,
						   .len = c->len,
						   .dtype = c->dtype,
						   .dst = dst,
						   .stride = c->stride,
						   .user = want },
			   &f->err));
	ok(f, dcpload_plan_finish(p, &f->err));
	for (int i = 0; i < 3; i++) { /* as often as one likes */
		memset(dst, GUARD, n);
		ok(f, dcpload_execute(p, &f->err));
		assert_memory_equal(dst + n - ROOM, want, ROOM);
	}
	ok(f, dcpload_part(p, 0, &part));
	assert_ptr_equal(part.user, want);
	assert_ptr_equal(part.data, dst);
	assert_int_equal(part.itemsize, c->size);
	assert_int_equal(part.complete, 1);
	assert_memory_equal(part.shape, c->len, sizeof(c->len));
	assert_int_equal(dcpload_part(p, 1, &part), -ENOENT);
	ok(f, dcpload_check(p, &f->err));
	dst[0] ^= 1;
	fails(f, dcpload_check(p, &f->err), -EILSEQ, "differs from what is stored");
	dcpload_plan_free(p);
	unguard(dst, n);
	free(want);
}

static void places_are_planned(void **state)
{
	static const struct case_place cases[] = {
		{ "all of it", NULL, { 0 }, { 16, 8, 8 }, { 64, 8, 1 }, 4 },
		{ "a box", NULL, { 3, 1, 2 }, { 5, 6, 3 }, { 18, 3, 1 }, 4 },
		{ "a box with holes between rows",
		  NULL,
		  { 3, 1, 2 },
		  { 5, 6, 3 },
		  { 100, 7, 1 },
		  4 },
		{ "holes between elements",
		  NULL,
		  { 0, 0, 0 },
		  { 16, 8, 8 },
		  { 160, 20, 2 },
		  4 },
		{ "transposed", NULL, { 2, 0, 0 }, { 7, 8, 8 }, { 1, 7, 56 }, 4 },
		{ "one element", NULL, { 15, 7, 7 }, { 1, 1, 1 }, { 1, 1, 1 }, 4 },
		{ "to bfloat16", "BF16", { 0 }, { 16, 8, 8 }, { 64, 8, 1 }, 2 },
		{ "to float16, transposed", "F16", { 1, 2, 3 }, { 9, 5, 4 }, { 1, 9, 45 }, 2 },
		{ "to E4M3 with holes", "F8_E4M3", { 1, 0, 3 }, { 9, 8, 4 }, { 90, 9, 2 }, 1 },
		{ "to E5M2", "F8_E5M2", { 0 }, { 16, 8, 8 }, { 64, 8, 1 }, 1 },
		{ "to what it is", "F32", { 0, 3, 0 }, { 16, 2, 8 }, { 16, 8, 1 }, 4 },
	};

	struct t_load *f = *state;

	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		t_case(cases[i].what);
		f->ck = f->buffered;
		place_one(f, &cases[i]);
		f->ck = f->direct;
		place_one(f, &cases[i]);
	}
}

/* Wants that are refused, one after the other, of one plan that then loads the rest. */
static void bad_plans_are_refused(void **state)
{
	struct t_load *f = *state;
	const uint64_t shape[] = { 16, 8, 8 }, other[] = { 16, 8, 9 }, two[] = { 2, 2 },
		       zero[] = { 0, 0, 0 };
	const int64_t negative[] = { 64, -8, 1 };
	uint8_t *dst = calloc(1, 4096);
#define WANT .size = sizeof(struct dcpload_want), .dst = dst
#define WANT3 WANT, .ndim = 3
	const struct {
		const char *what;
		struct dcpload_want want;
		int rc;
		const char *says;
	} cases[] = {
		{ "no key", { WANT3 }, -EINVAL, "no key" },
		{ "no len", { WANT3, .key = "model.f", .lo = zero }, -EINVAL, "no len" },
		{ "a key that is close",
		  { WANT3, .key = "model.F" },
		  -ENOENT,
		  "Nearest: \"model." },
		{ "another shape",
		  { WANT3, .key = "model.f", .shape = other },
		  -EINVAL,
		  "is stored with shape [16, 8, 8], wanted with [16, 8, 9]" },
		{ "of another number of dimensions",
		  { WANT, .ndim = 2, .key = "model.f", .shape = two },
		  -EINVAL,
		  "wanted with [2, 2]" },
		{ "a region of another number of dimensions",
		  { WANT, .ndim = 2, .key = "model.f", .lo = zero, .len = two },
		  -EINVAL,
		  "has 3 dimensions, the region 2" },
		{ "strides of another number of dimensions",
		  { WANT, .ndim = 0, .key = "model.f", .stride = negative },
		  -EINVAL,
		  "has 3 dimensions, the region 0" },
		{ "a region that ends behind the tensor",
		  { WANT3, .key = "model.f", .lo = shape, .len = shape },
		  -EINVAL,
		  "outside of its shape [16, 8, 8]" },
		{ "no such dtype",
		  { WANT3, .key = "model.f", .dtype = "F31" },
		  -EINVAL,
		  "no dtype is called \"F31\"" },
		{ "a dtype that is not converted",
		  { WANT, .ndim = 2, .key = "model.b", .dtype = "F32" },
		  -EDOM,
		  "stored as U8, which is not converted to F32" },
		{ "a negative stride",
		  { WANT3, .key = "model.f", .stride = negative },
		  -EINVAL,
		  "stride of dimension 1 is negative" },
	};
#undef WANT
#undef WANT3
	struct dcpload_plan *p = t_load_plan(f, 0), *partial = t_load_plan(f, DCPLOAD_PARTIAL);
	struct dcpload_part part;
	const char *key, *why;
	uint64_t n = 0;

	assert_non_null(dst);
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		t_case(cases[i].what);
		fails(f, dcpload_want(p, &cases[i].want, &f->err), cases[i].rc, cases[i].says);
		assert_int_equal(dcpload_want(p, &cases[i].want, NULL), cases[i].rc);
		if (i < 2)
			continue;
		ok(f, dcpload_want(partial, &cases[i].want, &f->err));
		n++;
	}
	for (uint32_t list = 0; list <= DCPLOAD_BROKEN; list++)
		for (uint64_t i = 0; dcpload_plan_list(partial, list, i, &key, &why) == 0; i++)
			n--;
	assert_int_equal(n, 0);
	assert_int_equal(dcpload_plan_list(partial, DCPLOAD_MISSING, 0, &key, &why), 0);
	assert_string_equal(key, "model.F");
	assert_int_equal(dcpload_plan_list(partial, DCPLOAD_DTYPE, 1, &key, NULL), 0);
	assert_string_equal(key, "model.b");
	fails(f, dcpload_execute(p, &f->err), -EINVAL, "not finished");
	for (int i = 0; i < 2; i++) {
		struct dcpload_plan *now = i ? partial : p;
		uint64_t good = i ? DCP_LEN(cases) - 2 : 0;

		ok(f, dcpload_want(now,
				   &(struct dcpload_want){ .size = sizeof(struct dcpload_want),
							   .key = "model.b" },
				   &f->err));
		ok(f, dcpload_plan_finish(now, &f->err));
		fails(f, dcpload_plan_finish(now, &f->err), -EINVAL, "finished already");
		fails(f,
		      dcpload_want(now,
				   &(struct dcpload_want){ .size = sizeof(struct dcpload_want),
							   .key = "model.b" },
				   &f->err),
		      -EINVAL, "the plan is finished");
		ok(f, dcpload_execute(now, &f->err));
		ok(f, dcpload_check(now, &f->err));
		ok(f, dcpload_part(now, good, &part));
		assert_int_equal(part.complete, 1);
		for (uint64_t k = 0; k < 4096; k++)
			assert_int_equal(((uint8_t *)part.data)[k], t_load_byte(4096 + k, 1));
		for (uint64_t k = 0; k < good; k++) {
			ok(f, dcpload_part(now, k, &part));
			assert_int_equal(part.complete, 0);
			assert_ptr_equal(part.data, dst);
		}
	}
	for (int k = 0; k < 4096; k++)
		assert_int_equal(dst[k], 0);
	dcpload_plan_free(p);
	dcpload_plan_free(partial);
	free(dst);
}

/* ---- hooks ---- */

struct hooks {
	uint8_t *room; /* where a part goes */
	uint64_t resolved, committed, done, total;
	int fail_resolve, fail_commit, fail_progress;
};

static int hook_resolve(void *ctx, uint64_t number, struct dcpload_part *part)
{
	struct hooks *h = ctx;

	h->resolved |= (uint64_t)1 << number;
	part->data = h->room + number * 4096;
	return h->fail_resolve;
}

static int hook_commit(void *ctx, uint64_t number, const struct dcpload_part *part)
{
	struct hooks *h = ctx;

	__atomic_fetch_or(&h->committed, (uint64_t)part->complete << number, __ATOMIC_SEQ_CST);
	return h->fail_commit;
}

static int hook_progress(void *ctx, uint64_t done, uint64_t total)
{
	struct hooks *h = ctx;

	h->done = done;
	h->total = total;
	return h->fail_progress;
}

static void hooks_are_called(void **state)
{
	struct t_load *f = *state;
	struct hooks h = { .room = calloc(2, 4096) };
	const struct dcpload_hooks hooks = { .size = sizeof(hooks),
					     .ctx = &h,
					     .resolve = hook_resolve,
					     .commit = hook_commit,
					     .progress = hook_progress };

	assert_non_null(h.room);
	for (int way = 0; way < 2; way++) {
		struct dcpload_plan *p;
		struct dcpload_part part;

		f->ck = way ? f->direct : f->buffered;
		p = t_load_plan(f, 0);
		assert_int_equal(dcpload_plan_hooks(p, &hooks), 0);
		ok(f, dcpload_want_layout(p, "fsdp1", 0, NULL, &f->err));
		ok(f, dcpload_plan_finish(p, &f->err));
		h = (struct hooks){ .room = h.room };
		ok(f, dcpload_execute(p, &f->err));
		assert_int_equal(h.resolved, 3);
		assert_int_equal(h.committed, 3);
		assert_int_equal(h.total, 8192);
		ok(f, dcpload_part(p, 1, &part));
		assert_ptr_equal(part.data, h.room + 4096);
		ok(f, dcpload_check(p, &f->err));
		h.fail_resolve = -EDOM;
		fails(f, dcpload_execute(p, &f->err), -EDOM, "model.");
		h.fail_resolve = 0;
		h.fail_commit = -EXDEV;
		assert_int_equal(dcpload_execute(p, &f->err), -EXDEV);
		h.fail_commit = 0;
		h.fail_progress = -EINTR;
		assert_int_equal(dcpload_execute(p, &f->err), -EINTR);
		h.fail_progress = 0;
		ok(f, dcpload_execute(p, &f->err));
		ok(f, dcpload_check(p, &f->err));
		dcpload_plan_free(p);
	}
	free(h.room);
}

/* ---- other versions ---- */

static void destinations_are_rebased(void **state)
{
	struct t_load *f = *state;
	struct dcpload_config config = { .size = sizeof(config), .version = "2", .cache = "" };
	struct dcpload *second, *third;
	struct dcpload_plan *p = t_load_plan(f, 0);
	struct dcpload_part part;

	ok(f, dcpload_open(NULL, f->d.root, &config, &second, &f->err));
	config.version = NULL;
	ok(f, dcpload_open(NULL, f->d.root, &config, &third, &f->err));
	assert_string_equal(dcpload_version(third), "step-3");
	ok(f, dcpload_want_layout(p, "fsdp1", 0, NULL, &f->err));
	fails(f, dcpload_plan_rebase(p, second, &f->err), -EINVAL, "not finished");
	ok(f, dcpload_plan_finish(p, &f->err));
	ok(f, dcpload_execute(p, &f->err));
	ok(f, dcpload_plan_rebase(p, second, &f->err));
	ok(f, dcpload_execute(p, &f->err));
	ok(f, dcpload_check(p, &f->err));
	for (uint64_t i = 0; dcpload_part(p, i, &part) == 0; i++)
		if (!strcmp(part.key, "model.b"))
			assert_int_equal(((uint8_t *)part.data)[77], t_load_byte(4096 + 77, 2));
	fails(f, dcpload_plan_rebase(p, third, &f->err), -EINVAL, "another shape or dtype");
	ok(f, dcpload_execute(p, &f->err)); /* of what it was of */
	ok(f, dcpload_check(p, &f->err));
	ok(f, dcpload_plan_rebase(p, f->ck, &f->err));
	ok(f, dcpload_execute(p, &f->err));
	ok(f, dcpload_check(p, &f->err));
	dcpload_plan_free(p);
	dcpload_close(second);
	dcpload_close(third);
}

/* Which version is opened, and what is said where none can be. */
static void the_opened_version_is_reported(void **state)
{
	struct t_load *f = *state;
	struct dcpload_config config = { .size = sizeof(config), .cache = "" };
	struct dcpload *ck;
	const char *odd = NULL;

	t_case("none is complete");
	t_dir_text(&f->d, "odd/step-1/__0_0.distcp", "x");
	odd = t_dir_path(&f->d, "odd");
	fails(f, dcpload_open(NULL, odd, &config, &ck, &f->err), -EINVAL,
	      "no complete version; step-1 is incomplete: ");
	config.version = "1";
	fails(f, dcpload_open(NULL, odd, &config, &ck, &f->err), -EINVAL,
	      "step-1 is incomplete: ");
	config.version = "2";
	fails(f, dcpload_open(NULL, odd, &config, &ck, &f->err), -ENOENT,
	      "no version \"2\" in ");
	config.version = NULL;
	t_case("of two that cannot be opened the later is heard");
	t_dir_text(&f->d, "odd/step-2/model.safetensors", "none");
	t_dir_text(&f->d, "odd/step-3/model.safetensors", "none");
	fails(f, dcpload_open(NULL, odd, &config, &ck, &f->err), -EBADMSG, "step-3");
	t_case("an earlier one that can");
	t_load_put(&f->d, "odd/step-0/model.safetensors", T_LOAD_HEADER, 1);
	ok(f, dcpload_open(NULL, odd, &config, &ck, &f->err));
	assert_string_equal(dcpload_version(ck), "step-0");
	dcpload_close(ck);
	t_case("unknown ways");
	config.io = DCPLOAD_IO_GDS + 1;
	fails(f, dcpload_open(NULL, odd, &config, &ck, &f->err), -EINVAL,
	      "unknown io or exchange");
	config.io = DCPLOAD_IO_GDS;
	config.exchange = DCPLOAD_EXCHANGE_ALL + 1;
	fails(f, dcpload_open(NULL, odd, &config, &ck, &f->err), -EINVAL,
	      "unknown io or exchange");
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(places_are_planned, t_load_setup,
						t_load_teardown),
		cmocka_unit_test_setup_teardown(bad_plans_are_refused, t_load_setup,
						t_load_teardown),
		cmocka_unit_test_setup_teardown(hooks_are_called, t_load_setup,
						t_load_teardown),
		cmocka_unit_test_setup_teardown(destinations_are_rebased, t_load_setup,
						t_load_teardown),
		cmocka_unit_test_setup_teardown(the_opened_version_is_reported, t_load_setup,
						t_load_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
