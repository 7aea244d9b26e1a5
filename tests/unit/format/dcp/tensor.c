/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a look into the items of tensors finds.
 */
#include "core/format/format.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t.h"
#include "tests/unit/t/format/dcp.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/zip.h"
#include "tests/unit/t/sink.h"

/*
 * torch.save of a tensor of 3 bytes, or of one of a class that keeps its elements in that, or has
 * them as they are.
 */
static void save_bytes(struct dcp_buf *out, bool wrapped, bool transparent)
{
	static const int64_t shape[] = { 3 }, stride[] = { 1 };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct t_zip z = { .torch = true };

	t_pk_start(&b);
	if (wrapped) {
		t_pk_global(&b, "torch._tensor", "_rebuild_from_type_v2");
		t_pk_mark(&b);
		t_pk_global(&b, "torch._utils", "_rebuild_wrapper_subclass");
		t_pk_global(&b, "torchao", "Int8Tensor");
		t_pk_mark(&b);
		t_pk_global(&b, "torchao", "Int8Tensor");
		t_pk_global(&b, "torch", transparent ? "uint8" : "bfloat16");
		t_pk_dims(&b, shape, 1);
		t_pk_tuple(&b);
		t_pk_dict(&b);
		t_pk_mark(&b);
		t_pk_str(&b, "qdata");
	}
	t_pk_tensor(&b, "ByteStorage", "0", 3, 0, shape, stride, 1);
	if (wrapped) {
		t_pk_str(&b, "setting");
		t_pk_none(&b);
		t_pk_setitems(&b);
		t_pk_tuple(&b);
		t_pk_reduce(&b);
	}
	t_pk_stop(&b);
	t_zip_add(&z, "archive/data.pkl", b.p, b.n);
	t_zip_add(&z, "archive/data/0", "abc", 3);
	t_zip_end(&z);
	dcp_buf_add(out, z.b.p, z.b.n);
	t_zip_free(&z);
}

/*
 * What keeps its elements otherwise is shown as torch.save's are, if it is whole, however its
 * length compares with that of the elements it stands for; else it is broken, and said to be.
 */
static void subclasses_are_taken_apart(void **state)
{
	static const int64_t shape[] = { 4096 }, chunks[] = { 0, 2048, 2048, 2048 };
	static const int64_t few[] = { 3 };
	static const struct {
		const char *key, *dtype;
		const int64_t *shape;
		size_t nchunks;
		bool wrapped, transparent;
		const char *error; /* "" none; NULL: told as parts */
	} cases[] = {
		{ "bytes", "uint8", few, 1, false, false, "" },
		{ "long", "bfloat16", shape, 1, true, false, NULL },
		{ "short", "bfloat16", few, 1, true, false, NULL },
		{ "bytes again", "uint8", few, 1, false, false, "" },
		{ "as long as bytes", "uint8", few, 1, true, false, NULL },
		{ "cut", "bfloat16", shape, 2, true, false,
		  "data, item at byte 19: a shard that is not a tensor of several, of the "
		  "shape" },
		{ "in a wrapper of the same type and shape", "uint8", few, 1, true, true, "" },
		{ "of another type", "int16", few, 1, false, false,
		  "stored as U8, the metadata says I16" },
	};
	dcp_auto_buf struct dcp_buf meta = DCP_BUF_INIT, data = DCP_BUF_INIT;
	int64_t plain_at, through_at;
	struct t_dir tree;
	struct dcp_dir dir;
	struct dcp_err err = { 0 };
	struct t_sink s;

	(void)state;
	dcp_buf_str(&data, "something before it");
	save_bytes(&data, true, false);
	plain_at = (int64_t)data.n;
	save_bytes(&data, false, false);
	through_at = (int64_t)data.n;
	save_bytes(&data, true, true);
	t_dir_make(&tree, "torch_dcp");
	t_dir_put(&tree, "data", data.p, data.n);
	t_dcp_begin(&meta);
	t_dcp_section(&meta, "state_dict_metadata");
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		const int64_t whole[] = { 0, cases[i].shape[0] };

		t_dcp_tensor(&meta, cases[i].key, cases[i].dtype, 1, cases[i].shape,
			     cases[i].nchunks, cases[i].nchunks == 1 ? whole : chunks);
	}
	t_dcp_end_section(&meta);
	t_dcp_section(&meta, "storage_data");
	for (size_t i = 0; i < DCP_LEN(cases); i++)
		for (size_t k = 0; k < cases[i].nchunks; k++)
			t_dcp_stored(&meta, cases[i].key, 1, chunks + 2 * k, "data",
				     cases[i].transparent ? through_at
				     : cases[i].wrapped   ? 19
							  : plain_at,
				     cases[i].transparent ? (int64_t)data.n - through_at
				     : cases[i].wrapped   ? plain_at - 19
							  : through_at - plain_at);
	t_dcp_end_section(&meta);
	t_dcp_end(&meta);
	t_dir_put(&tree, ".metadata", meta.p, meta.n);
	t_sink_load(&tree, &dir, &s);
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		const struct dcp_tensor *t = t_sink_tensor(&s, cases[i].key);
		char part[64], *bytes;
		size_t n;

		t_case(cases[i].key);
		snprintf(part, sizeof(part), "%s.qdata", cases[i].key);
		if (cases[i].error && *cases[i].error) {
			if (!t->error || !strstr(t->error, cases[i].error))
				fail_msg("%s", t->error ? t->error : "no error");
			continue;
		}
		if (!cases[i].error) {
			assert_null(t);
			assert_string_equal(t_sink_object(&s, cases[i].key)->type,
					    "torchao.Int8Tensor");
			t = t_sink_tensor(&s, part);
			assert_int_equal(t->npath, 2);
		}
		bytes = t_sink_read(&s, t, &n, &err);
		assert_non_null(bytes);
		assert_int_equal(n, 3);
		assert_memory_equal(bytes, "abc", 3);
		free(bytes);
	}
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

/* Whatever call of the sink fails, its code comes out and nothing leaks. */
static unsigned long read_calls(void)
{
	unsigned long n = 0;
	char line[64];
	FILE *f = fopen("/proc/self/io", "re");

	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		sscanf(line, "syscr: %lu", &n);
	fclose(f);
	return n;
}

/* Where no item can be looked at (a file of holes, of another kind of stream), not each is. */
static void unknown_items_are_read_few_times(void **state)
{
	enum { KEYS = 4000 };
	static const int64_t shape[] = { 64 }, chunk[] = { 0, 64 };
	dcp_auto_buf struct dcp_buf meta = DCP_BUF_INIT, data = DCP_BUF_INIT;
	unsigned long before;
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;
	char key[16];

	(void)state;
	t_dir_make(&tree, "torch_dcp");
	memset(dcp_buf_grow(&data, KEYS * 100), 0, KEYS * 100);
	t_dir_put(&tree, "data", data.p, data.n);
	t_dcp_begin(&meta);
	for (int section = 0; section < 2; section++) {
		t_dcp_section(&meta, section ? "storage_data" : "state_dict_metadata");
		for (int i = 0; i < KEYS; i++) {
			snprintf(key, sizeof(key), "w%d", i);
			if (section)
				t_dcp_stored(&meta, key, 1, chunk, "data", i * 100, 100);
			else
				t_dcp_tensor(&meta, key, "uint8", 1, shape, 1, chunk);
		}
		t_dcp_end_section(&meta);
	}
	t_dcp_end(&meta);
	t_dir_put(&tree, ".metadata", meta.p, meta.n);
	before = read_calls();
	t_sink_load(&tree, &dir, &s);
	assert_int_equal(s.ntensors, KEYS);
	assert_in_range(read_calls() - before, 1, 3000);
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(subclasses_are_taken_apart),
		cmocka_unit_test(unknown_items_are_read_few_times),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
