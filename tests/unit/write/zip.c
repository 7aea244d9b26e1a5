/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What core/origin/archive/zip reads of it; that other programs read it is tests/cli/export.py's.
 */
#include "tests/unit/t.h"

#include "core/base/arena.h"
#include "core/base/bytes.h"
#include "core/base/hash.h"
#include "core/origin/archive/archive.h"
#include "core/origin/origin.h"
#include "core/write/write.h"
#include "tests/unit/t/write.h"

static const struct dcp_write_tensor tensors[] = {
	T_WRITE_WHOLE("a", DCP_DTYPE_F32, 4, 25, 0),
	T_WRITE_WHOLE("b", DCP_DTYPE_U8, 1, 9, 0),
};
static const struct dcp_write_set set = { .tensors = tensors, .ntensors = 2, .ranks = 1 };

static int plan_way(struct dcp_writer *w, enum dcp_zip_way way)
{
	struct dcp_zipper z;

	dcp_writer_file(w, "x.zip", true);
	dcp_writer_bytes(w, "before", 6);
	dcp_zipper_begin(&z, w, way);
	dcp_zipper_bytes(&z, "x/empty", NULL, 0);
	dcp_zipper_bytes(&z, "x/text", "hello", 5);
	if (w->set->ntensors > 1)
		dcp_zipper_part(&z, "x/b", NULL, 0, 1, 0);
	dcp_zipper_part(&z, "x/data", "head", 4, 0, 0);
	if (w->set->ntensors == 1)
		dcp_zipper_bytes(&z, "x/late", "bye", 3);
	return dcp_zipper_end(&z);
}

static int plan_python(const struct dcp_write_set *s, const struct dcp_write_opts *opts,
		       struct dcp_writer *w, struct dcp_err *err)
{
	(void)s, (void)opts, (void)err;
	return plan_way(w, DCP_ZIP_PYTHON);
}

static int plan_torch(const struct dcp_write_set *s, const struct dcp_write_opts *opts,
		      struct dcp_writer *w, struct dcp_err *err)
{
	(void)s, (void)opts, (void)err;
	return plan_way(w, DCP_ZIP_TORCH);
}

static void check(int (*plan)(const struct dcp_write_set *, const struct dcp_write_opts *,
			      struct dcp_writer *, struct dcp_err *),
		  size_t align)
{
	const struct dcp_write_format f = { .plan = plan };
	struct dcp_zip_member *m;
	struct dcp_source src;
	struct dcp_arena arena;
	struct dcp_err err = { 0 };
	struct t_write w;
	const char *p;
	uint64_t off[4];
	size_t n;

	assert_int_equal(t_write_run(&w, &f, &set, &(struct dcp_write_opts){ 0 }, NULL), 0);
	p = w.file[0].bytes.p + 6;
	src = dcp_source_mem(p, w.file[0].bytes.n - 6);
	dcp_arena_init(&arena, 1 << 20);
	if (dcp_zip_list(&src, &arena, &m, &n, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(n, 4);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(dcp_zip_data(&src, &m[i], &off[i], &err), 0);
	assert_string_equal(m[0].name, "x/empty");
	assert_string_equal(m[1].name, "x/text");
	assert_memory_equal(p + off[1], "hello", 5);
	assert_string_equal(m[2].name, "x/b");
	assert_string_equal(m[3].name, "x/data");
	assert_int_equal(m[3].size, 104);
	assert_memory_equal(p + off[3], "head", 4);
	for (size_t i = 0; i < 100; i++)
		assert_int_equal((unsigned char)p[off[3] + 4 + i], t_write_byte(0, 0, i));
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(off[i] % align, 0);
		assert_int_equal(m[i].crc32, dcp_crc32(0, p + off[i], m[i].size));
	}
	dcp_arena_finish(&arena);
	t_write_finish(&w);
}

/* An archive of which only the bytes around the data are kept. */
struct around {
	char bytes[4096];
	size_t n;
	uint64_t data; /* bytes of it */
};

static int no_file(void *ctx, const char *name, bool last)
{
	(void)ctx, (void)name, (void)last;
	return 0;
}

static int keep(void *ctx, const void *p, size_t n)
{
	struct around *a = ctx;

	assert_true(n <= sizeof(a->bytes) - a->n);
	memcpy(a->bytes + a->n, p, n);
	a->n += n;
	return 0;
}

static int count(void *ctx, const struct dcp_write_run *run)
{
	((struct around *)ctx)->data += run->length;
	return 0;
}

static int no_sum(void *ctx, uint32_t crc, size_t run)
{
	(void)crc, (void)run;
	return keep(ctx, "\0\0\0", 4);
}

static const char *find(const struct around *a, const char *from, const char *signature)
{
	const char *p = memmem(from, (size_t)(a->bytes + a->n - from), signature, 4);

	assert_non_null(p);
	return p;
}

/* 5 GiB: numbers that do not fit stand in fields of 64 bits. */
static void large_archives_are_written(void **state)
{
	const struct dcp_write_tensor t[] = { T_WRITE_WHOLE("a", DCP_DTYPE_U8, 1, 5ull << 30,
							    0) };
	const struct dcp_write_set of = { .tensors = t, .ntensors = 1, .ranks = 1 };

	(void)state;
	for (int torch = 0; torch < 2; torch++) {
		const struct dcp_write_format f = { .plan = torch ? plan_torch : plan_python };
		struct around a = { .n = 0 };
		const struct dcp_write_sink sink = { no_file, keep, count, no_sum, &a };
		const char *p = a.bytes, *late, *end;

		t_case(torch ? "torch" : "python");
		assert_int_equal(
			dcp_write_plan(&f, &of, &(struct dcp_write_opts){ 0 }, &sink, NULL), 0);
		for (int i = 0; i < 3; i++)
			p = find(&a, p, "PK\1\2") + 4;
		assert_int_equal(dcp_load_le32(p + 16), 0xffffffff);
		assert_int_equal(dcp_load_le32(p + 20), 0xffffffff);
		assert_memory_equal(p + 42, "x/data\1\0\20\0", 10);
		assert_int_equal(dcp_load_le64(p + 52), 4 + (5ull << 30));
		/* what comes behind it has its place in such a field */
		late = find(&a, a.bytes, "x/late");
		p = find(&a, p, "PK\1\2") + 4;
		assert_int_equal(dcp_load_le32(p + 16), 3);
		assert_int_equal(dcp_load_le32(p + 38), 0xffffffff);
		assert_memory_equal(p + 42, "x/late\1\0\10\0", 10);
		assert_int_equal(dcp_load_le64(p + 52),
				 a.data + (uint64_t)(late - 30 - a.bytes) - strlen("before"));
		end = find(&a, p, "PK\6\6");
		assert_int_equal(dcp_load_le64(find(&a, end, "PK\6\7") + 8),
				 a.data + (uint64_t)(end - a.bytes) - strlen("before"));
	}
}

static void python_reads_the_archive(void **state)
{
	(void)state;
	check(plan_python, 1);
}

static void torch_reads_the_archive(void **state)
{
	(void)state;
	check(plan_torch, 64);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(python_reads_the_archive),
		cmocka_unit_test(torch_reads_the_archive),
		cmocka_unit_test(large_archives_are_written),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
