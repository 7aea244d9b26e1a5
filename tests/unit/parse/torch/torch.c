/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/origin/origin.h"
#include "core/parse/torch/torch.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/golden.h"
#include "tests/unit/t/parse/source.h"
#include "tests/unit/t/parse/zip.h"

/* ---- tensors of real files against what the framework loaded ---- */

static void check_tensor(const struct dcp_source *src, const struct dcp_torch *t,
			 struct t_leaves *l, const json_t *entry)
{
	const json_t *shape = json_object_get(entry, "shape");
	struct t_leaf *leaf =
		t_leaves_find(l, json_string_value(json_object_get(entry, "key")));
	struct dcp_torch_tensor x;
	struct dcp_err err = { 0 };
	char hex[65];

	print_message("             %s\n", json_string_value(json_object_get(entry, "key")));
	assert_non_null(leaf);
	assert_true(leaf->is_tensor);
	if (dcp_torch_tensor(t, leaf->value, &x, &err) != 1)
		fail_msg("%s", err.msg);
	assert_string_equal(x.dtype_name, json_string_value(json_object_get(entry, "dtype")));
	assert_int_equal(x.ndim, json_array_size(shape));
	for (uint32_t d = 0; d < x.ndim; d++)
		assert_true((double)x.shape[d] == json_number_value(json_array_get(shape, d)));
	t_golden_digest(src, &x, hex);
	assert_string_equal(hex, json_string_value(json_object_get(entry, "sha256")));
}

static void check_aliases(const struct dcp_torch *t, struct t_leaves *l, const json_t *keys)
{
	struct dcp_torch_tensor first, x;
	json_t *key;
	size_t i;

	json_array_foreach(keys, i, key)
	{
		struct t_leaf *leaf = t_leaves_find(l, json_string_value(key));

		assert_non_null(leaf);
		assert_int_equal(dcp_torch_tensor(t, leaf->value, &x, NULL), 1);
		if (i == 0)
			first = x;
		assert_int_equal(x.off, first.off);
		assert_int_equal(x.storage_off, first.storage_off);
	}
}

static void check_version(const json_t *v)
{
	const char *name = json_string_value(json_object_get(v, "name"));
	const char *expect = json_string_value(json_object_get(v, "expect"));
	dcp_auto_free char *file = NULL;
	struct dcp_torch *t = NULL;
	struct t_leaves leaves;
	struct dcp_source src;
	struct dcp_err err = { 0 };
	char path[256];
	json_t *entry;
	size_t n, i;
	int r;

	t_case(name);
	snprintf(path, sizeof(path), "tests/golden/torch-save/ckpt/%s", name);
	file = t_file(path, &n);
	src = dcp_source_mem(file, n);
	r = dcp_torch_open(&src, 0, &t, &err);
	if (expect && strncmp(expect, "refuse", 6) == 0) {
		assert_int_equal(r, -ENOTSUP);
		return;
	}
	if (r < 0)
		fail_msg("%s", err.msg);
	t_leaves_collect(&leaves, t, true);
	json_array_foreach(json_object_get(v, "tensors"), i, entry)
		check_tensor(&src, t, &leaves, entry);
	json_array_foreach(json_object_get(v, "aliases"), i, entry)
		check_aliases(t, &leaves, entry);
	t_leaves_free(&leaves);
	dcp_torch_close(t);
}

static void golden_tensors_are_read(void **state)
{
	json_t *m = t_golden_manifest("torch-save"), *v;
	size_t i;

	(void)state;
	json_array_foreach(json_object_get(m, "versions"), i, v) check_version(v);
	json_decref(m);
}

/* ---- refusals ---- */

static void bad_stream(const char *name, const char *p, size_t n, int code, const char *says)
{
	struct dcp_source src = dcp_source_mem(p, n);
	struct dcp_torch *t = NULL;
	struct dcp_torch_tensor x;
	struct dcp_err err = { 0 };
	int r = dcp_torch_open(&src, 0, &t, &err);

	(void)name;
	if (r == 0) {
		struct dcp_pv root = dcp_torch_root(t);
		struct dcp_torch_parts parts;
		size_t items = 0;

		if (root.type == DCP_PV_TUPLE)
			root = dcp_pv_items(root, &items)[0];
		/* Tensors that are several are refused as one. */
		assert_true(dcp_torch_is_tensor(root) || code == -ENOTSUP ||
			    dcp_torch_parts(root, &parts));
		r = dcp_torch_tensor(t, root, &x, &err);
	}
	assert_int_equal(r, code);
	assert_int_equal(err.code, code);
	t_assert_says(&err, says);
	dcp_torch_close(t);
}

static void bad_streams_are_refused(void **state)
{
	(void)state;
	t_bad_each("tests/bad/torch", bad_stream);
}

/* ---- one value in an archive of torch's ---- */

struct built {
	struct t_zip z;
	struct dcp_source src;
	struct dcp_torch *t;
};

/* A stream whose data.pkl is @pickle and whose storage "0" has @n bytes. */
static void build(struct built *b, const struct dcp_buf *pickle, size_t n, const char *order)
{
	dcp_auto_free char *zeros = calloc(1, n + 1);

	*b = (struct built){ .z.torch = true };
	t_zip_add(&b->z, "archive/data.pkl", pickle->p, pickle->n);
	t_zip_add(&b->z, "archive/.format_version", "1", 1);
	t_zip_add(&b->z, "archive/.storage_alignment", "64", 2);
	if (order)
		t_zip_add(&b->z, "archive/byteorder", order, strlen(order));
	t_zip_add(&b->z, "archive/data/0", zeros, n);
	t_zip_add(&b->z, "archive/version", "3\n", 2);
	t_zip_add(&b->z, "archive/.data/serialization_id",
		  "0123456789012345678901234567890123456789", 40);
	t_zip_end(&b->z);
	b->src = dcp_source_mem(b->z.b.p, b->z.b.n);
}

static void built_free(struct built *b)
{
	dcp_torch_close(b->t);
	t_zip_free(&b->z);
}

enum wrap {
	PLAIN,
	V1,
	V3,
	PARAMETER,
	PARAMETER_STATE,
	SUBCLASS,
	SUBCLASS_OF_V3,
	DEVICE,
	SUBCLASS_OWN_FUNCTION,
	OTHER_FUNCTION,
	INSTANCE,
	JUST_A_TUPLE,
};

static void arguments(struct dcp_buf *b, const char *class, const char *dtype, int64_t numel)
{
	static const int64_t shape[] = { 2, 3 }, stride[] = { 3, 1 };

	t_pk_mark(b);
	t_pk_storage(b, class, "0", numel);
	t_pk_int(b, 0);
	t_pk_dims(b, shape, 2);
	t_pk_dims(b, stride, 2);
	t_pk_bool(b, false);
	t_pk_none(b);
	if (dtype)
		t_pk_global(b, "torch", dtype);
	t_pk_tuple(b);
}

static void wrapped(struct dcp_buf *b, enum wrap how, const char *class, const char *dtype,
		    int64_t numel)
{
	static const struct {
		const char *module, *name;
	} outer[] = {
		[PLAIN] = { "torch._utils", "_rebuild_tensor_v2" },
		[V1] = { "torch._utils", "_rebuild_tensor" },
		[V3] = { "torch._utils", "_rebuild_tensor_v3" },
		[PARAMETER] = { "torch._utils", "_rebuild_parameter" },
		[PARAMETER_STATE] = { "torch._utils", "_rebuild_parameter_with_state" },
		[SUBCLASS] = { "torch._tensor", "_rebuild_from_type_v2" },
		[SUBCLASS_OF_V3] = { "torch.tensor", "_rebuild_from_type" },
		[DEVICE] = { "torch._utils", "_rebuild_device_tensor_from_cpu_tensor" },
		[SUBCLASS_OWN_FUNCTION] = { "torch._tensor", "_rebuild_from_type_v2" },
		[OTHER_FUNCTION] = { "mine", "_rebuild_tensor_v2" },
		[INSTANCE] = { "torch._utils", "_rebuild_tensor_v2" },
	};

	t_pk_start(b);
	if (how != JUST_A_TUPLE)
		t_pk_global(b, outer[how].module, outer[how].name);
	if (how == PARAMETER || how == PARAMETER_STATE || how == DEVICE) {
		t_pk_mark(b);
		t_pk_global(b, "torch._utils",
			    dtype ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
		arguments(b, class, dtype, numel);
		t_pk_reduce(b);
		t_pk_bool(b, true);
		t_pk_none(b);
		t_pk_tuple(b);
	} else if (how == SUBCLASS || how == SUBCLASS_OF_V3 || how == SUBCLASS_OWN_FUNCTION) {
		t_pk_mark(b);
		t_pk_global(b, how == SUBCLASS_OWN_FUNCTION ? "mine" : "torch._utils",
			    how == SUBCLASS_OF_V3 ? "_rebuild_tensor_v3"
						  : "_rebuild_tensor_v2");
		t_pk_global(b, "mine", "Tensor");
		arguments(b, class, dtype, numel);
		t_pk_dict(b);
		t_pk_tuple(b);
	} else {
		arguments(b, class, dtype, numel);
	}
	if (how == INSTANCE)
		t_pk_newobj(b);
	else if (how != JUST_A_TUPLE)
		t_pk_reduce(b);
	t_pk_stop(b);
}

/* clang-format off */
static const struct {
	const char *what;
	enum wrap how;
	const char *class, *dtype; /* of the storage; argument of v3 */
	const char *order;
	int want;
	const char *name;          /* dtype_name */
	enum dcp_dtype type;
	uint32_t itemsize;
	bool swap;
} values[] = {
	{ "as torch writes it",            PLAIN, "FloatStorage", NULL, "little", 1, "F32", DCP_DTYPE_F32, 4, false },
	{ "no byteorder: little",          PLAIN, "FloatStorage", NULL, NULL, 1, "F32", DCP_DTYPE_F32, 4, false },
	{ "big-endian",                    PLAIN, "FloatStorage", NULL, "big", 1, "F32", DCP_DTYPE_F32, 4, true },
	{ "big-endian bytes need nothing", PLAIN, "ByteStorage", NULL, "big", 1, "U8", DCP_DTYPE_U8, 1, false },
	{ "big-endian untyped",            V3, "UntypedStorage", "uint16", "big", 1, "U16", DCP_DTYPE_U16, 2, true },
	{ "complex",                       PLAIN, "ComplexDoubleStorage", NULL, "big", 1, "C128", DCP_DTYPE_C128, 16, true },
	{ "before requires_grad",          V1, "HalfStorage", NULL, "little", 1, "F16", DCP_DTYPE_F16, 2, false },
	{ "float8",                        V3, "UntypedStorage", "float8_e4m3fn", "little", 1, "F8_E4M3", DCP_DTYPE_F8_E4M3, 1, false },
	{ "untyped without dtype: bytes",  PLAIN, "UntypedStorage", NULL, "little", 1, "U8", DCP_DTYPE_U8, 1, false },
	{ "bits16 keeps its name",         V3, "UntypedStorage", "bits16", "little", 1, "bits16", DCP_DTYPE_OTHER, 2, false },
	{ "int4 keeps its name",           V3, "UntypedStorage", "int4", "little", 1, "int4", DCP_DTYPE_OTHER, 1, false },
	{ "qint32 storage without scale",  PLAIN, "QInt32Storage", NULL, "little", 1, "qint32", DCP_DTYPE_OTHER, 4, false },
	{ "parameter",                     PARAMETER, "BFloat16Storage", NULL, "little", 1, "BF16", DCP_DTYPE_BF16, 2, false },
	{ "parameter of v3",               PARAMETER, "UntypedStorage", "uint32", "little", 1, "U32", DCP_DTYPE_U32, 4, false },
	{ "parameter with state",          PARAMETER_STATE, "LongStorage", NULL, "little", 1, "I64", DCP_DTYPE_I64, 8, false },
	{ "subclass of tensor",            SUBCLASS, "IntStorage", NULL, "little", 1, "I32", DCP_DTYPE_I32, 4, false },
	{ "old spelling of a subclass",    SUBCLASS_OF_V3, "UntypedStorage", "uint64", "little", 1, "U64", DCP_DTYPE_U64, 8, false },
	{ "from another device",           DEVICE, "BoolStorage", NULL, "little", 1, "BOOL", DCP_DTYPE_BOOL, 1, false },
	{ "subclass with its own rebuild", SUBCLASS_OWN_FUNCTION, "IntStorage", NULL, "little", 0 },
	{ "another module's function",      OTHER_FUNCTION, "IntStorage", NULL, "little", 0 },
	{ "an instance, not a call",       INSTANCE, "IntStorage", NULL, "little", 0 },
	{ "a tuple that looks like it",    JUST_A_TUPLE, "IntStorage", NULL, "little", 0 },
};
/* clang-format on */

static void rebuild_calls_are_recognised(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(values); i++) {
		uint32_t itemsize = values[i].itemsize ? values[i].itemsize : 4;
		bool untyped = strcmp(values[i].class, "UntypedStorage") == 0;
		dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT;
		struct dcp_torch_tensor x;
		struct built b;
		struct dcp_pv root;

		t_case(values[i].what);
		wrapped(&pickle, values[i].how, values[i].class, values[i].dtype,
			untyped ? 6 * itemsize : 6);
		build(&b, &pickle, 6 * itemsize, values[i].order);
		assert_int_equal(dcp_torch_open(&b.src, 0, &b.t, NULL), 0);
		root = dcp_torch_root(b.t);
		assert_int_equal(dcp_torch_is_tensor(root), values[i].want);
		assert_int_equal(dcp_torch_tensor(b.t, root, &x, NULL), values[i].want);
		if (values[i].want) {
			assert_string_equal(x.dtype_name, values[i].name);
			assert_int_equal(x.dtype, values[i].type);
			assert_int_equal(x.itemsize, values[i].itemsize);
			assert_int_equal(x.swap, values[i].swap);
			assert_int_equal(x.off, b.z.data[values[i].order ? 4 : 3]);
			assert_true(x.row_major);
		}
		built_free(&b);
	}
}

#define DIMS(...)                                                                              \
	{                                                                                      \
		__VA_ARGS__                                                                    \
	}
/* clang-format off */
static const struct {
	const char *what;
	size_t ndim;
	int64_t shape[4], stride[4], first;
	bool row_major;
	uint64_t off; /* in elements behind the storage */
} layouts[] = {
	{ "no dimensions",                  0, DIMS(0), DIMS(0), 5, true, 5 },
	{ "row-major",                      2, DIMS(2, 3), DIMS(3, 1), 0, true, 0 },
	{ "transposed",                     2, DIMS(3, 2), DIMS(1, 3), 0, false, 0 },
	{ "every third, from the second",   1, DIMS(4), DIMS(3), 2, false, 2 },
	{ "expanded: stride zero",          2, DIMS(7, 4), DIMS(0, 1), 8, false, 8 },
	{ "huge, but of one element",       1, DIMS(1ll << 59), DIMS(0), 11, false, 11 },
	{ "overlapping windows",            2, DIMS(10, 3), DIMS(1, 1), 0, false, 0 },
	{ "size one: any stride will do",   3, DIMS(1, 4, 1), DIMS(99, 1, 1ll << 40), 0, true, 0 },
	{ "the last element",               1, DIMS(1), DIMS(1), 11, true, 11 },
	{ "empty, said to start behind",    2, DIMS(0, 3), DIMS(3, 1), 12, true, 0 },
	{ "empty, shape beyond 64 bits",    3, DIMS(1ll << 62, 0, 1ll << 62), DIMS(1, 1, 1), 0, true, 0 },
};
/* clang-format on */

static void strides_are_read(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(layouts); i++) {
		dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT;
		struct dcp_torch_tensor x;
		struct dcp_err err = { 0 };
		struct built b;

		t_case(layouts[i].what);
		t_pk_start(&pickle);
		t_pk_tensor(&pickle, "DoubleStorage", "0", 12, layouts[i].first,
			    layouts[i].shape, layouts[i].stride, layouts[i].ndim);
		t_pk_stop(&pickle);
		build(&b, &pickle, 96, "little");
		assert_int_equal(dcp_torch_open(&b.src, 0, &b.t, &err), 0);
		if (dcp_torch_tensor(b.t, dcp_torch_root(b.t), &x, &err) != 1)
			fail_msg("%s", err.msg);
		assert_int_equal(x.ndim, layouts[i].ndim);
		assert_int_equal(x.row_major, layouts[i].row_major);
		assert_int_equal(x.storage_off, b.z.data[4]);
		assert_int_equal(x.off, b.z.data[4] + 8 * layouts[i].off);
		built_free(&b);
	}
}

/* ---- cost, limits, failures ---- */

static void one_tensor_is_two_reads(void **state)
{
	static const int64_t shape[] = { 25000 }, stride[] = { 1 };
	dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT;
	struct dcp_torch_tensor x;
	struct t_source src;
	struct built b;

	(void)state;
	t_pk_start(&pickle);
	t_pk_tensor(&pickle, "FloatStorage", "0", 25000, 0, shape, stride, 1);
	t_pk_stop(&pickle);
	build(&b, &pickle, 100000, "little");
	t_source_init(&src, &b.src);
	assert_int_equal(dcp_torch_open(&src.base, 0, &b.t, NULL), 0);
	assert_int_equal(dcp_torch_tensor(b.t, dcp_torch_root(b.t), &x, NULL), 1);
	assert_int_equal(x.off, b.z.data[4]);
	assert_int_equal(src.calls, 2);
	built_free(&b);
}

static void many_storages_are_found(void **state)
{
	static const int64_t shape[] = { 1 }, stride[] = { 1 };
	enum { N = 3000 };
	dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT;
	struct t_zip z = { .torch = true, .align = 4096 };
	const struct dcp_pv *item;
	struct dcp_torch *t = NULL;
	struct dcp_source src;
	char key[32];
	size_t n = 0;

	(void)state;
	t_pk_start(&pickle);
	t_pk_list(&pickle);
	t_pk_mark(&pickle);
	for (int i = 0; i < N; i++) {
		snprintf(key, sizeof(key), "%d", i);
		t_pk_tensor(&pickle, "IntStorage", key, 1, 0, shape, stride, 1);
	}
	t_pk_appends(&pickle);
	t_pk_stop(&pickle);
	t_zip_add(&z, "x/data.pkl", pickle.p, pickle.n);
	for (int i = 0; i < N; i++) { /* neither in numeric nor in string order */
		snprintf(key, sizeof(key), "x/data/%d", i * 7 % N);
		t_zip_add(&z, key, "abcd", 4);
	}
	t_zip_end(&z);
	src = dcp_source_mem(z.b.p, z.b.n);
	assert_int_equal(dcp_torch_open(&src, 0, &t, NULL), 0);
	item = dcp_pv_items(dcp_torch_root(t), &n);
	assert_int_equal(n, N);
	for (size_t i = 0; i < n; i++) {
		struct dcp_torch_tensor x;

		assert_int_equal(dcp_torch_tensor(t, item[i * 7 % N], &x, NULL), 1);
		assert_int_equal(x.off, z.data[1 + i]);
		assert_int_equal(x.off % 4096, 0);
	}
	dcp_torch_close(t);
	t_zip_free(&z);
}

/* An archive that is nowhere: what its writer would have put around 5 GiB, and zeros. */
struct huge {
	struct dcp_source base;
	const struct dcp_buf *head, *tail;
};

static int huge_read(const struct dcp_source *src, uint64_t off, void *buf, size_t n)
{
	const struct huge *h = (const struct huge *)(const void *)src;
	uint64_t tail = src->size - h->tail->n;
	char *to = buf;

	for (size_t i = 0; i < n; i++) {
		uint64_t at = off + i;

		to[i] = at < h->head->n ? h->head->p[at]
			: at >= tail    ? h->tail->p[at - tail]
					: 0;
	}
	return 0;
}

static void storages_beyond_4_gib_are_found(void **state)
{
	static const int64_t numel = 5ll << 28, shape[] = { 3 }, stride[] = { 9 << 25 };
	const uint64_t size = (uint64_t)numel * 4;
	dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT, tail = DCP_BUF_INIT;
	struct t_zip z = { .torch = true, .zip64 = true };
	struct dcp_torch *t = NULL;
	struct dcp_torch_tensor x;
	struct dcp_err err = { 0 };
	uint64_t dir, dir_n;
	struct huge h;

	(void)state;
	t_pk_start(&pickle);
	t_pk_tensor(&pickle, "FloatStorage", "0", numel, 5 << 27, shape, stride, 1);
	t_pk_stop(&pickle);
	t_zip_add(&z, "a/data.pkl", pickle.p, pickle.n);
	t_zip_add(&z, "a/data/0", "", 0);
	dir = z.b.n + size;
	t_zip_entry64(&tail, "a/data.pkl", pickle.n, z.local[0]);
	t_zip_entry64(&tail, "a/data/0", size, z.local[1]);
	dir_n = tail.n;
	t_zip_tail64(&tail, dir + dir_n, 2, dir_n, dir);
	h = (struct huge){ { .read = huge_read, .size = dir + tail.n }, &z.b, &tail };
	assert_int_equal(dcp_torch_open(&h.base, 0, &t, &err), 0);
	if (dcp_torch_tensor(t, dcp_torch_root(t), &x, &err) != 1)
		fail_msg("%s", err.msg);
	assert_int_equal(x.storage_off, z.data[1]);
	assert_int_equal(x.off, z.data[1] + (5ull << 29));
	assert_true(x.off + 4 * (2 * x.stride[0] + 1) > (uint64_t)UINT32_MAX);
	dcp_torch_close(t);
	t_zip_free(&z);
}

static void failing_reads_are_passed_on(void **state)
{
	static const char *const files[] = { "zip.pt", "legacy.pt" };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(files); i++) {
		dcp_auto_free char *file = NULL;
		struct dcp_torch *t = NULL;
		struct dcp_source mem;
		struct t_source src;
		char path[256];
		unsigned reads;
		size_t n;

		snprintf(path, sizeof(path), "tests/golden/torch-save/ckpt/%s", files[i]);
		file = t_file(path, &n);
		mem = dcp_source_mem(file, n);
		t_source_init(&src, &mem);
		assert_int_equal(dcp_torch_open(&src.base, 0, &t, NULL), 0);
		dcp_torch_close(t);
		reads = src.calls;
		for (unsigned at = 1; at <= reads; at++) {
			struct dcp_err err = { 0 };

			t_source_init(&src, &mem);
			src.fail_at = at;
			assert_int_equal(dcp_torch_open(&src.base, 0, &t, &err), -EIO);
			assert_int_equal(err.code, -EIO);
		}
	}
}

static void memory_is_limited(void **state)
{
	static const char *const files[] = { "zip.pt", "legacy.pt" };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(files); i++) {
		dcp_auto_free char *file = NULL;
		struct dcp_torch *t = NULL;
		struct dcp_source src;
		char path[256];
		size_t n, limit = 64;
		int r;

		snprintf(path, sizeof(path), "tests/golden/torch-save/ckpt/%s", files[i]);
		file = t_file(path, &n);
		src = dcp_source_mem(file, n);
		do {
			r = dcp_torch_open(&src, limit, &t, NULL);
			assert_true(r == 0 || r == -E2BIG || r == -ENOMEM);
			limit += limit / 4;
		} while (r < 0);
		assert_true(limit > 4096 && limit < 4u << 20);
		dcp_torch_close(t);
	}
}

static void long_bytes_come_from_the_stream(void **state)
{
	enum { N = 100000 };
	dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT;
	dcp_auto_free char *bytes = malloc(N);
	char part[16];
	struct built b;
	struct dcp_pv root;

	(void)state;
	for (size_t i = 0; i < N; i++)
		bytes[i] = (char)(i * 37 >> 4);
	t_pk_start(&pickle);
	t_pk_bytes(&pickle, bytes, N);
	t_pk_stop(&pickle);
	build(&b, &pickle, 1, NULL);
	assert_int_equal(dcp_torch_open(&b.src, 0, &b.t, NULL), 0);
	root = dcp_torch_root(b.t);
	assert_null(root.node->data);
	assert_int_equal(dcp_torch_read(b.t, root, N - 16, part, 16), 0);
	assert_memory_equal(part, bytes + N - 16, 16);
	assert_int_equal(dcp_torch_read(b.t, root, N - 15, part, 16), -EINVAL);
	assert_int_equal(dcp_torch_read(b.t, (struct dcp_pv){ .type = DCP_PV_INT }, 0, part, 0),
			 -EINVAL);
	built_free(&b);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_tensors_are_read),
		cmocka_unit_test(bad_streams_are_refused),
		cmocka_unit_test(rebuild_calls_are_recognised),
		cmocka_unit_test(strides_are_read),
		cmocka_unit_test(one_tensor_is_two_reads),
		cmocka_unit_test(many_storages_are_found),
		cmocka_unit_test(storages_beyond_4_gib_are_found),
		cmocka_unit_test(failing_reads_are_passed_on),
		cmocka_unit_test(memory_is_limited),
		cmocka_unit_test(long_bytes_come_from_the_stream),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
