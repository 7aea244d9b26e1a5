/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Destinations on a device: every conversion, strides, reversed bytes, by the kernel and by the
 * host; memory of the caller, and its stream. Without a device (DCPFS_DEVICE) there is nothing to
 * test.
 * covers: tools/load/place/ship, place, tools/load/memory/cuda
 * covers: tools/load/memory/cuda_abi, tools/load/memory/memory
 */
#include "tests/unit/t.h"

#include "core/model/dtype.h"
#include "tests/unit/t/load.h"
#include "tools/load/load.h"
#include "tools/load/memory/memory.h"

#define EACH 4096 /* elements of a tensor */

/*
 * All that can be converted, at odd offsets; any bytes are numbers, NaNs and infinities among them.
 */
static const char *const stored[] = { "F64",     "F32",     "F16", "BF16", "F8_E4M3",
				      "F8_E5M2", "F8_E8M0", "U8",  "I16" };
static const char *const shown[] = { NULL, "F32", "BF16", "F16", "F8_E4M3", "F8_E5M2" };

static uint32_t size_of(const char *dtype)
{
	return dcp_dtype_info(dcp_dtype_from_name(dtype))->size;
}

static int setup(void **state)
{
	struct t_dir *d = calloc(1, sizeof(*d));
	char header[2048] = "{";
	uint64_t n = 1, end = 0, x = 7;
	uint8_t *p;

	*state = d;
	t_dir_make(d, "test_ship");
	for (size_t i = 0; i < DCP_LEN(stored); i++) {
		uint64_t bytes = (uint64_t)EACH * size_of(stored[i]);

		n += (uint64_t)snprintf(
			header + n, sizeof(header) - n,
			"%s\"%s\":{\"dtype\":\"%s\",\"shape\":[8,16,32],\"data_offsets\":[%llu,"
			"%llu]}",
			i ? "," : "", stored[i], stored[i], (unsigned long long)end,
			(unsigned long long)(end + bytes));
		end += bytes;
	}
	header[n++] = '}';
	while (n % 8 != 3)
		header[n++] = ' ';
	p = malloc(8 + n + end);
	assert_non_null(p);
	memcpy(p, &n, 8);
	memcpy(p + 8, header, n);
	for (uint64_t i = 0; i < end; i++)
		p[8 + n + i] = (uint8_t)t_load_byte(i + x, 5);
	t_dir_put(d, "step-1/model.safetensors", p, 8 + n + end);
	free(p);
	return 0;
}

static int teardown(void **state)
{
	t_dir_remove(*state);
	free(*state);
	return 0;
}

static struct dcpload *open_on(const struct t_dir *d, const char *name, const char *device)
{
	const struct dcpload_config config = { .size = sizeof(config),
					       .device = device,
					       .cache = "" };
	struct dcpload_error err;
	struct dcpload *ck;

	if (dcpload_open(NULL, t_dir_path(d, name), &config, &ck, &err) < 0)
		fail_msg("%s", err.text);
	return ck;
}

/* Have the driver refuse the kernel, so that the host converts. */
static void with_kernel(bool with)
{
	if (with)
		unsetenv("FAKE_CUDA_FAIL");
	else
		setenv("FAKE_CUDA_FAIL", "cuModuleLoadData:0:222", 1);
}

static const char *device(void)
{
	const char *name = getenv("DCPFS_DEVICE");

	assert_non_null(name); /* run as tools/load/place/ship-device */
	return name;
}

/* ---- conversions ---- */

static void elements_are_converted(void **state)
{
	struct t_dir *d = *state;
	const char *name = device();

	for (size_t i = 0; i < 2 * DCP_LEN(shown); i++) {
		const char *to = shown[i / 2];
		struct dcpload_error err = { 0 };
		struct dcpload *host = open_on(d, "step-1", NULL), *there;
		struct dcpload_part part;
		struct dcpload_plan *a, *b;
		uint8_t *got = malloc(EACH * 8);

		with_kernel(i % 2);
		there = open_on(d, "step-1", name);
		assert_int_equal(dcpload_plan_create(host, 0, &a, &err), 0);
		assert_int_equal(dcpload_plan_create(there, 0, &b, &err), 0);
		for (size_t k = 0; k < DCP_LEN(stored); k++) {
			bool can = to && dcp_dtype_can_cast(dcp_dtype_from_name(stored[k]),
							    dcp_dtype_from_name(to));
			const struct dcpload_want want = { .size = sizeof(want),
							   .key = stored[k],
							   .dtype = can ? to : NULL };

			assert_int_equal(dcpload_want(a, &want, &err), 0);
			assert_int_equal(dcpload_want(b, &want, &err), 0);
		}
		assert_int_equal(dcpload_plan_finish(a, &err), 0);
		assert_int_equal(dcpload_execute(a, &err), 0);
		assert_int_equal(dcpload_plan_finish(b, &err), 0);
		for (int again = 0; again < 2; again++)
			if (dcpload_execute(b, &err) < 0)
				fail_msg("%s", err.text);
		for (uint64_t k = 0; k < DCP_LEN(stored); k++) {
			int32_t number;

			t_case(stored[k]);
			assert_int_equal(dcpload_part(a, k, &part), 0);
			assert_int_equal(dcpload_part_memory(b, k, &number),
					 DCPLOAD_MEMORY_DEVICE);
			assert_int_equal(number, 0);
			assert_int_equal(dcpload_part_read(b, k, 0, got, part.nbytes, &err), 0);
			assert_memory_equal(got, part.data, part.nbytes);
			assert_int_equal(dcpload_part_read(b, k, 1, got, part.nbytes, &err),
					 -EINVAL);
		}
		assert_int_equal(dcpload_check(b, &err), 0);
		dcpload_plan_free(a);
		dcpload_close(host);
		dcpload_close(there); /* memory of the plan outlives it */
		assert_int_equal(dcpload_part_read(b, 0, 0, got, 8, &err), 0);
		dcpload_plan_free(b);
		free(got);
	}
	with_kernel(true);
}

/* ---- memory of the caller ---- */

/*
 * A region into every second column of a larger array, or into rows of it, and what is between
 * stays zero.
 */
static void strided_destinations_are_filled(void **state)
{
	static const int64_t strides[][3] = { { 16 * 32 * 3, 32 * 3, 2 },
					      { 16 * 32 * 3, 32 * 3, 1 },
					      { 16 * 32 * 3 + 8, 32 * 3, 1 } };
	const uint64_t lo[] = { 1, 3, 5 }, len[] = { 3, 5, 20 };
	struct t_dir *d = *state;
	const char *name = device();

	for (size_t i = 0; i < 2 * DCP_LEN(stored); i++) {
		struct dcpload_error err = { 0 };
		const char *key = stored[i / 2], *to = i % 4 < 2 ? NULL : "BF16";
		struct dcpload *ck;
		struct load_device *dev;
		uint64_t n = 6 * 16 * 32 * 3 * 8;
		uint8_t *got = malloc(n), *expected = calloc(1, n);
		struct dcpload_plan *p;
		struct dcpload_want want = { .size = sizeof(want),
					     .ndim = 3,
					     .key = key,
					     .lo = lo,
					     .len = len,
					     .stride = strides[i / 4 % DCP_LEN(strides)] };
		struct load_target t;

		t_case(key);
		if (to && dcp_dtype_can_cast(dcp_dtype_from_name(key), DCP_DTYPE_BF16))
			want.dtype = to;
		with_kernel(i % 2);
		ck = open_on(d, "step-1", name);
		dev = ck->device;
		assert_int_equal(dev->scatters, i % 2);
		assert_int_equal(dev->kind->alloc(dev, n, &want.dst), 0);
		assert_int_equal(dev->kind->zero(dev, want.dst, n), 0);
		assert_int_equal(dcpload_plan_create(ck, 0, &p, &err), 0);
		assert_int_equal(dcpload_want(p, &want, &err), 0);
		assert_int_equal(dcpload_plan_finish(p, &err), 0);
		if (dcpload_execute(p, &err) < 0 || dcpload_check(p, &err) < 0)
			fail_msg("%s", err.text);
		assert_int_equal(dcpload_part_read(p, 0, 0, got, 1, &err), -EINVAL);
		assert_int_equal(dev->kind->fetch(dev, got, want.dst, n), 0);
		t = p->want[0].target;
		for (uint64_t e = 0; e < 3 * 5 * 20; e++) {
			uint64_t at = (uint64_t)(load_address(&t, e) - t.base);

			memcpy(expected + at, got + at, t.to);
		}
		assert_memory_equal(got, expected, n);
		dcpload_plan_free(p);
		dev->kind->free(dev, want.dst, n);
		dcpload_close(ck);
		free(got);
		free(expected);
	}
	with_kernel(true);
}

/* Some destinations are the host's, some pinned, some of another device. */
static void kinds_of_memory_are_shipped(void **state)
{
	struct t_dir *d = *state;
	const char *name = device();
	struct dcpload_error err = { 0 };
	struct dcpload *ck = open_on(d, "step-1", name),
		       *other = open_on(d, "step-1", "cuda:1");
	struct load_device *dev = ck->device;
	uint8_t *host = malloc(EACH * 4), *pinned = malloc(EACH * 4);
	struct dcpload_want want = { .size = sizeof(want), .key = "F32", .dst = host };
	struct dcpload_plan *p;
	void *there;

	assert_int_equal(dev->kind->pin(dev, pinned, EACH * 4), 0);
	assert_int_equal(dcpload_plan_create(ck, 0, &p, &err), 0);
	assert_int_equal(dcpload_want(p, &want, &err), 0);
	want.dst = pinned;
	assert_int_equal(dcpload_want(p, &want, &err), 0);
	want.dst = NULL;
	assert_int_equal(dcpload_want(p, &want, &err), 0);
	assert_int_equal(dcpload_plan_finish(p, &err), 0);
	assert_int_equal(dcpload_execute(p, &err), 0);
	assert_int_equal(dcpload_check(p, &err), 0);
	for (uint64_t i = 0; i < 3; i++)
		assert_int_equal(dcpload_part_memory(p, i, NULL), i);
	assert_int_equal(dcpload_part_memory(p, 3, NULL), -ENOENT);
	assert_memory_equal(host, pinned, EACH * 4);
	assert_int_equal(dcpload_part_read(p, 2, 0, host, EACH * 4, &err), 0);
	assert_memory_equal(host, pinned, EACH * 4);
	dcpload_plan_free(p);
	assert_int_equal(other->device->kind->alloc(other->device, EACH * 4, &there), 0);
	want.dst = there;
	assert_int_equal(dcpload_plan_create(ck, 0, &p, &err), 0);
	assert_int_equal(dcpload_want(p, &want, &err), 0);
	assert_int_equal(dcpload_plan_finish(p, &err), 0);
	assert_int_equal(dcpload_execute(p, &err), -EXDEV);
	assert_non_null(
		strstr(err.text,
		       "F32: the memory is of cuda:1, but the tensors are loaded into cuda:0"));
	dcpload_plan_free(p);
	other->device->kind->free(other->device, there, EACH * 4);
	dev->kind->unpin(dev, pinned);
	dcpload_close(ck);
	dcpload_close(other);
	free(host);
	free(pinned);
}

/* As dlpack.h has it. */
struct DLManagedTensor {
	void *data;
	int32_t device_type, device, ndim;
	uint8_t code, bits;
	uint16_t lanes;
	int64_t *shape, *strides;
	uint64_t byte_offset;
	void *manager;
	void (*deleter)(struct DLManagedTensor *self);
};

/* Destinations of every kind of memory, allocated by the library and given to it by a caller. */
static void destinations_are_allocated(void **state)
{
	static const struct {
		const char *name;
		int memory, number, dlpack;
	} rows[] = {
		{ "cuda,pinned", DCPLOAD_MEMORY_PINNED, -1, 3 },
		{ "cuda:1,managed", DCPLOAD_MEMORY_MANAGED, 1, 13 },
		{ "auto,managed", DCPLOAD_MEMORY_MANAGED, 0, 13 },
	};
	struct t_dir *d = *state;
	struct dcpload_error err = { 0 };
	uint8_t *host = malloc(EACH * 4);

	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcpload *ck = open_on(d, "step-1", rows[i].name);
		struct dcpload_want want = { .size = sizeof(want), .key = "F32" };
		struct dcpload_plan *p, *q;
		struct dcpload_part part, copy;
		struct DLManagedTensor *t;
		int32_t number;

		t_case(rows[i].name);
		assert_int_equal(dcpload_plan_create(ck, 0, &p, &err), 0);
		assert_int_equal(dcpload_want(p, &want, &err), 0);
		assert_int_equal(dcpload_plan_finish(p, &err), 0);
		if (dcpload_execute(p, &err) < 0 || dcpload_check(p, &err) < 0)
			fail_msg("%s", err.text);
		assert_int_equal(dcpload_part(p, 0, &part), 0);
		assert_int_equal(dcpload_part_memory(p, 0, &number), rows[i].memory);
		assert_int_equal(number, rows[i].number);
		assert_int_equal(dcpload_part_read(p, 0, 0, host, EACH * 4, &err), 0);
		assert_memory_equal(host, part.data, EACH * 4);
		memset(part.data, 0, EACH * 4); /* as the caller's */
		want.dst = part.data;
		assert_int_equal(dcpload_plan_create(ck, 0, &q, &err), 0);
		assert_int_equal(dcpload_want(q, &want, &err), 0);
		assert_int_equal(dcpload_plan_finish(q, &err), 0);
		if (dcpload_execute(q, &err) < 0 || dcpload_check(q, &err) < 0)
			fail_msg("%s", err.text);
		assert_int_equal(dcpload_part_memory(q, 0, NULL), rows[i].memory);
		assert_int_equal(dcpload_part(q, 0, &copy), 0);
		assert_memory_equal(host, copy.data, EACH * 4);
		dcpload_plan_free(q);
		assert_int_equal(dcpload_part_dlpack(p, 0, &t, &err), 0);
		assert_int_equal(t->device_type, rows[i].dlpack);
		t->deleter(t);
		dcpload_plan_free(p);
		dcpload_close(ck);
	}
	free(host);
}

/* ---- events ---- */

enum {
	BIG = 2948640
}; /* bytes: 13 slots of 1 MiB of staging, and 20,000 that are copied soon */

struct waiting {
	struct load_device *dev;
	void *lane, *mark;
	uint8_t *got;
	uint64_t queued, committed;
	int rc;
};

/* What waits for the event, and for nothing else, finds all of the part. */
static int on_queued(void *ctx, uint64_t number, const struct dcpload_part *part, void *event)
{
	struct waiting *w = ctx;

	if (part->complete || number || w->committed)
		return -EPROTO;
	w->queued++;
	if (w->rc || w->dev->kind->follow(w->dev, w->lane, event) < 0 ||
	    w->dev->kind->mark(w->dev, w->mark, w->lane) < 0 ||
	    load_device_wait(w->dev, w->mark, 10000) < 0 ||
	    w->dev->kind->fetch(w->dev, w->got, part->data, part->nbytes) < 0)
		return w->rc ? w->rc : -EIO;
	for (uint64_t i = 0; i < BIG; i++)
		if (w->got[i] != t_load_byte(i, 5))
			return -EILSEQ;
	return 0;
}

static int on_commit(void *ctx, uint64_t number, const struct dcpload_part *part)
{
	struct waiting *w = ctx;

	(void)part;
	w->committed += number == 0 && w->queued == 0; /* too early */
	return 0;
}

static void queued_bytes_arrive(void **state)
{
	struct t_dir *d = *state;
	static const char header[] =
		"{\"big\":{\"dtype\":\"U8\",\"shape\":[2948640],\"data_offsets\":[0,2948640]}}";
	const uint64_t n = sizeof(header) - 1;
	uint8_t *file = malloc(8 + n + BIG), *host = malloc(BIG);
	struct waiting w = { .got = malloc(BIG) };
	struct dcpload_hooks hooks = {
		.size = sizeof(hooks), .ctx = &w, .commit = on_commit, .queued = on_queued
	};
	struct dcpload_config config = { .size = sizeof(config),
					 .device = device(),
					 .io = DCPLOAD_IO_DIRECT,
					 .staging = 1 << 20,
					 .cache = "" };
	struct dcpload_want want = { .size = sizeof(want), .key = "big" };
	struct dcpload_error err = { 0 };
	struct dcpload_plan *p;
	struct dcpload *ck;

	memcpy(file, &n, 8);
	memcpy(file + 8, header, n);
	for (uint64_t i = 0; i < BIG; i++)
		file[8 + n + i] = t_load_byte(i, 5);
	t_dir_put(d, "big/model.safetensors", file, 8 + n + BIG);
	if (dcpload_open(NULL, t_dir_path(d, "big"), &config, &ck, &err) < 0)
		fail_msg("%s", err.text);
	setenv("FAKE_CUDA_SLOW", "8", 1);
	w.dev = ck->device;
	assert_int_equal(w.dev->kind->lane_open(w.dev, &w.lane), 0);
	assert_int_equal(w.dev->kind->mark_open(w.dev, &w.mark), 0);
	assert_int_equal(dcpload_plan_create(ck, 0, &p, &err), 0);
	assert_int_equal(dcpload_plan_hooks(p, &hooks), 0);
	assert_int_equal(dcpload_want(p, &want, &err), 0);
	want.dst = host; /* the host's memory has no events */
	assert_int_equal(dcpload_want(p, &want, &err), 0);
	assert_int_equal(dcpload_plan_finish(p, &err), 0);
	for (uint64_t i = 1; i < 4; i++) {
		if (dcpload_execute(p, &err) < 0)
			fail_msg("%s", err.text);
		assert_true(w.queued == i && w.committed == 0);
	}
	w.rc = -ENODATA; /* of the caller's ends the load */
	assert_int_equal(dcpload_execute(p, &err), -ENODATA);
	unsetenv("FAKE_CUDA_SLOW");
	dcpload_plan_free(p);
	w.dev->kind->mark_close(w.dev, w.mark);
	w.dev->kind->lane_close(w.dev, w.lane);
	dcpload_close(ck);
	free(w.got);
	free(host);
	free(file);
}

/*
 * What the caller has queued is done before its memory is written, which begins with clearing its
 * padding.
 */
static int give_own(void *ctx, uint64_t number, struct dcpload_part *part)
{
	(void)number;
	part->data = ctx;
	return 0;
}

static void streams_are_followed(void **state)
{
	enum { FILLED = EACH / 3, BYTES = (FILLED + 1) * 8 };
	struct t_dir *d = *state;
	const char *keys[] = { "F64" };
	const struct dcpload_select select = { .size = sizeof(select),
					       .nkeys = 1,
					       .keys = keys };
	struct dcpload_hooks hooks = { .size = sizeof(hooks), .resolve = give_own };
	struct dcpload_error err = { 0 };
	struct dcpload *ck = open_on(d, "step-1", device());
	struct load_device *dev = ck->device;
	uint8_t *junk = malloc(BYTES), *got = malloc(BYTES);
	struct dcpload_plan *p;
	void *lane, *there;

	t_dir_text(d, "flat.dcpl", "mesh a=3\n* flat@a\n");
	memset(junk, 7, BYTES);
	assert_int_equal(dev->kind->lane_open(dev, &lane), 0);
	assert_int_equal(dev->kind->alloc(dev, BYTES, &there), 0);
	hooks.ctx = there;
	assert_int_equal(dcpload_plan_create(ck, 0, &p, &err), 0);
	assert_int_equal(dcpload_plan_hooks(p, &hooks), 0);
	assert_int_equal(dcpload_plan_stream(p, lane), 0);
	if (dcpload_want_layout(p, t_dir_path(d, "flat.dcpl"), 2, &select, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(dcpload_plan_finish(p, &err), 0);
	for (int i = 0; i < 200; i++)
		assert_int_equal(dev->kind->copy(dev, lane, there, junk, BYTES), 0);
	if (dcpload_execute(p, &err) < 0 || dcpload_check(p, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(dcpload_part_read(p, 0, 0, got, BYTES, &err), 0);
	for (int i = (EACH - 2 * (FILLED + 1)) * 8; i < BYTES; i++)
		assert_int_equal(got[i], 0);
	dcpload_plan_free(p);
	dev->kind->lane_close(dev, lane);
	dev->kind->free(dev, there, BYTES);
	dcpload_close(ck);
	free(junk);
	free(got);
}

/* ---- reversed bytes ---- */

static void swapped_elements_arrive(void **state)
{
	static const char *const codes[] = { ">f8", ">f4", ">f2", ">i8", ">c8", ">c16" };
	struct t_dir *d = *state;
	const char *name = device();

	for (size_t i = 0; i < 4 * DCP_LEN(codes); i++) {
		const char *code = codes[i / 4], *to = i % 4 < 2 ? NULL : "BF16";
		uint32_t size = (uint32_t)atoi(code + 2);
		uint8_t *file = malloc(128 + 3000 * 16);
		struct dcpload_error err = { 0 };
		struct dcpload_plan *p;
		struct dcpload *ck;
		struct dcpload_want want = { .size = sizeof(want), .key = "x" };
		char at[32];

		memset(file, ' ', 128);
		memcpy(file, "\x93NUMPY\x01\x00\x76\x00", 10);
		snprintf((char *)file + 10, 118,
			 "{'descr': '%s', 'fortran_order': False, 'shape': (3000,), }", code);
		file[10 + strlen((char *)file + 10)] = ' ';
		file[127] = '\n';
		for (uint64_t k = 0; k < 3000ull * size; k++)
			file[128 + k] = t_load_byte(k, 9);
		snprintf(at, sizeof(at), "swapped-%zu/x.npy", i);
		t_dir_put(d, at, file, 128 + 3000ull * size);
		snprintf(at, sizeof(at), "swapped-%zu", i);
		t_case(code);
		with_kernel(i % 2);
		ck = open_on(d, at, name);
		want.dtype = to && code[1] == 'f' ? to : NULL;
		assert_int_equal(dcpload_plan_create(ck, 0, &p, &err), 0);
		assert_int_equal(dcpload_want(p, &want, &err), 0);
		assert_int_equal(dcpload_plan_finish(p, &err), 0);
		if (dcpload_execute(p, &err) < 0 || dcpload_check(p, &err) < 0)
			fail_msg("%s", err.text);
		dcpload_plan_free(p);
		dcpload_close(ck);
		free(file);
	}
	with_kernel(true);
}

/* ---- tensors that are given away ---- */

static void dlpack_tensors_are_given(void **state)
{
	struct t_dir *d = *state;
	const char *name = getenv("DCPFS_DEVICE");
	struct dcpload_error err = { 0 };
	struct dcpload *ck = open_on(d, "step-1", name);
	struct dcpload_want want = { .size = sizeof(want), .key = "BF16" };
	struct DLManagedTensor *t, *other;
	uint16_t *own = malloc(EACH * 2), *got = malloc(EACH * 2);
	struct load_device *dev;
	struct dcpload_plan *p;

	assert_int_equal(dcpload_plan_create(ck, 0, &p, &err), 0);
	assert_int_equal(dcpload_want(p, &want, &err), 0);
	want.dst = own;
	assert_int_equal(dcpload_want(p, &want, &err), 0);
	assert_int_equal(dcpload_plan_finish(p, &err), 0);
	assert_int_equal(dcpload_execute(p, &err), 0);
	assert_int_equal(dcpload_part_dlpack(p, 0, &t, &err), 0);
	assert_int_equal(dcpload_part_dlpack(p, 0, &other, &err), 0);
	assert_int_equal(dcpload_part_dlpack(p, 1, &t, &err), -EINVAL);
	assert_int_equal(dcpload_part_dlpack(p, 2, &t, &err), -EINVAL);
	dev = load_device_share(ck->device);
	dcpload_plan_free(p);
	dcpload_close(ck);
	other->deleter(other);
	assert_int_equal(t->device_type, name ? 2 : 1);
	assert_int_equal(t->device, 0);
	assert_int_equal(t->ndim, 3);
	assert_true(t->shape[0] == 8 && t->shape[1] == 16 && t->shape[2] == 32 && !t->strides);
	assert_true(t->code == 4 && t->bits == 16 && t->lanes == 1 && t->byte_offset == 0);
	assert_int_equal(load_memory_of(dev)->fetch(dev, got, t->data, EACH * 2), 0);
	assert_memory_equal(got, own, EACH * 2);
	t->deleter(t);
	load_device_close(dev);
	free(own);
	free(got);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(elements_are_converted),
		cmocka_unit_test(strided_destinations_are_filled),
		cmocka_unit_test(kinds_of_memory_are_shipped),
		cmocka_unit_test(destinations_are_allocated),
		cmocka_unit_test(queued_bytes_arrive),
		cmocka_unit_test(streams_are_followed),
		cmocka_unit_test(swapped_elements_arrive),
		cmocka_unit_test(dlpack_tensors_are_given),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
