/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/origin/origin.h"
#include "core/parse/torch/torch.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/parse/zip.h"

enum { ROWS = 4, COLUMNS = 8, SPARE = 40, NUMEL = ROWS * COLUMNS + SPARE };

/* An item as torch.save writes it; what is different from the usual one is said by the fields. */
struct kind {
	const char *class;
	uint8_t fill;
	int64_t first; /* element of the storage at which the tensor begins */
	bool no_byteorder, byteorder_last, two_storages;
};

static void add_byteorder(struct t_zip *z)
{
	t_zip_add(z, "archive/byteorder", "little", 6);
}

static void make(struct t_zip *z, const struct kind *k)
{
	static const int64_t shape[] = { ROWS, COLUMNS }, stride[] = { COLUMNS, 1 };
	uint8_t data[NUMEL * 4];
	struct dcp_buf b = DCP_BUF_INIT;

	*z = (struct t_zip){ .torch = true };
	memset(data, k->fill, sizeof(data));
	t_pk_start(&b);
	t_pk_tensor(&b, k->class, "0", NUMEL, k->first, shape, stride, 2);
	t_pk_stop(&b);
	t_zip_add(z, "archive/data.pkl", b.p, b.n);
	if (!k->no_byteorder && !k->byteorder_last)
		add_byteorder(z);
	t_zip_add(z, "archive/data/0", data, sizeof(data));
	if (k->two_storages)
		t_zip_add(z, "archive/data/1", data, 16);
	if (k->byteorder_last)
		add_byteorder(z);
	t_zip_add(z, "archive/version", "3\n", 2);
	t_zip_end(z);
	dcp_buf_finish(&b);
}

/* Open the item by @f, and compare the result with a parse. Returns whether its head was known. */
static bool is_known(struct dcp_torch_frames *f, const struct t_zip *z)
{
	struct dcp_source src = dcp_source_mem(z->b.p, z->b.n);
	uint64_t hits = dcp_torch_frames_hits(f);
	struct dcp_torch_tensor is, parsed;
	int rc;

	memset(&is, 0, sizeof(is));
	memset(&parsed, 0, sizeof(parsed));
	rc = dcp_torch_item(f, &src, &is, NULL);
	assert_int_equal(rc, dcp_torch_item(NULL, &src, &parsed, NULL));
	if (rc == 1)
		assert_memory_equal(&is, &parsed, sizeof(is));
	return dcp_torch_frames_hits(f) > hits;
}

static bool is_kind_known(struct dcp_torch_frames *f, struct kind k)
{
	struct t_zip z;
	bool known;

	make(&z, &k);
	known = is_known(f, &z);
	t_zip_free(&z);
	return known;
}

static void items_with_equal_heads_are_recognised(void **state)
{
	struct dcp_torch_frames *f = dcp_torch_frames_create();

	assert_non_null(f);
	assert_false(is_kind_known(f, (struct kind){ "FloatStorage", 1 }));
	assert_true(is_kind_known(f, (struct kind){ "FloatStorage", 2 }));
	t_case("another dtype of the same size");
	assert_false(is_kind_known(f, (struct kind){ "IntStorage", 2 }));
	assert_true(is_kind_known(f, (struct kind){ "IntStorage", 3 }));
	t_case("another element of the storage");
	assert_false(is_kind_known(f, (struct kind){ "FloatStorage", 2, .first = 16 }));
	t_case("the first is still known");
	assert_true(is_kind_known(f, (struct kind){ "FloatStorage", 4 }));
	dcp_torch_frames_destroy(f);
}

static void odd_items_are_parsed_each_time(void **state)
{
	static const struct {
		const char *what;
		struct kind k;
	} cases[] = {
		{ "no byteorder", { "FloatStorage", 1, .no_byteorder = true } },
		{ "byteorder behind the data", { "FloatStorage", 1, .byteorder_last = true } },
		{ "two storages", { "FloatStorage", 1, .two_storages = true } },
	};

	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct dcp_torch_frames *f = dcp_torch_frames_create();

		t_case(cases[i].what);
		assert_false(is_kind_known(f, cases[i].k));
		assert_false(is_kind_known(f, cases[i].k));
		dcp_torch_frames_destroy(f);
	}
}

/* Any changed byte before the data, but for the checksum of the storage, means a parse. */
static void items_with_a_changed_head_are_parsed(void **state)
{
	struct t_zip z;

	make(&z, &(struct kind){ "FloatStorage", 1 });
	for (size_t i = 0; i <= z.data[2]; i++) {
		struct dcp_torch_frames *f = dcp_torch_frames_create();
		bool crc = i >= z.local[2] + 14 && i < z.local[2] + 18;

		assert_false(is_known(f, &z));
		z.b.p[i] ^= 0x10;
		assert_int_equal(is_known(f, &z), crc || i == z.data[2]);
		z.b.p[i] ^= 0x10;
		dcp_torch_frames_destroy(f);
	}
	t_zip_free(&z);
}

static void longer_items_are_parsed(void **state)
{
	struct dcp_torch_frames *f = dcp_torch_frames_create();
	struct t_zip z;

	make(&z, &(struct kind){ "FloatStorage", 1 });
	assert_false(is_known(f, &z));
	dcp_buf_add(&z.b, "", 1);
	assert_false(is_known(f, &z));
	t_zip_free(&z);
	dcp_torch_frames_destroy(f);
}

/* More kinds than are kept: the oldest are parsed again, and no answer is wrong. */
static void old_frames_make_room(void **state)
{
	static const char *const class[] = { "FloatStorage", "IntStorage" };
	struct dcp_torch_frames *f = dcp_torch_frames_create();

	for (int round = 0; round < 2; round++)
		for (int64_t first = 0; first <= SPARE; first++)
			for (size_t k = 0; k < DCP_LEN(class); k++)
				is_kind_known(f, (struct kind){ class[k], 1, .first = first });
	assert_int_equal(dcp_torch_frames_hits(f), 0);
	assert_true(is_kind_known(f, (struct kind){ "IntStorage", 1, .first = SPARE }));
	dcp_torch_frames_destroy(f);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(items_with_equal_heads_are_recognised),
		cmocka_unit_test(odd_items_are_parsed_each_time),
		cmocka_unit_test(items_with_a_changed_head_are_parsed),
		cmocka_unit_test(longer_items_are_parsed),
		cmocka_unit_test(old_frames_make_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
