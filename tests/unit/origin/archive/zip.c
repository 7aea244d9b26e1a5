/* SPDX-License-Identifier: Apache-2.0 */
/* covers: archive */
#include "tests/unit/t.h"

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/origin/archive/archive.h"
#include "tests/unit/t/parse/source.h"
#include "tests/unit/t/parse/zip.h"

static int list(const struct dcp_source *src, struct dcp_arena *arena,
		struct dcp_zip_member **m, size_t *n, struct dcp_err *err)
{
	memset(err, 0, sizeof(*err));
	dcp_arena_init(arena, 64u << 20);
	return dcp_zip_list(src, arena, m, n, err);
}

/* Every member where the writer put it, with the bytes it was given. */
static void check_against_writer(const struct t_zip *z)
{
	struct dcp_source src = dcp_source_mem(z->b.p, z->b.n);
	struct dcp_zip_member *m = NULL;
	struct dcp_arena arena;
	struct dcp_err err;
	size_t n = 0;

	assert_int_equal(list(&src, &arena, &m, &n, &err), 0);
	assert_int_equal(n, z->n);
	for (size_t i = 0; i < n; i++) {
		uint64_t off = 0;

		assert_int_equal(m[i].header_off, z->local[i]);
		assert_true(m[i].stored);
		assert_int_equal(dcp_zip_data(&src, &m[i], &off, &err), 0);
		assert_int_equal(off, z->data[i]);
	}
	dcp_arena_finish(&arena);
}

#define TORCH .z.torch = true
/* clang-format off */
static const struct {
	const char *what;
	size_t members, name_n, size;
	struct t_zip z;
} good[] = {
	{ "no members at all",                      0, 0, 0 },
	{ "plain writer, one empty member",         1, 1, 0 },
	{ "torch's writer",                         7, 16, 100, TORCH },
	{ "torch's writer, empty members",          7, 16, 0, TORCH },
	{ "torch's writer, data aligned to 4096",   7, 16, 100, TORCH, .z.align = 4096 },
	{ "torch's writer, crc switched off",       3, 16, 9, TORCH, .z.no_crc = true },
	{ "zip64 fields on everything",             9, 16, 100, TORCH, .z.zip64 = true },
	{ "plain writer with zip64 fields",         9, 16, 100, .z.zip64 = true },
	{ "archive comment",                        2, 10, 5, .z.comment = "a comment" },
	{ "an end record's signature in a comment", 2, 10, 5,
	  .z.comment = "PK\5\6 and twenty-two bytes more are here" },
	{ "directory longer than the first read",   130, 16, 3, TORCH },
	{ "directory longer than a window",         1500, 250, 1, TORCH },
	{ "name longer than a small buffer",        2, 298, 1 },
};
/* clang-format on */

static void good_archives_are_listed(void **state)
{
	static const uint8_t bytes[128] = { 1, 2, 3 };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(good); i++) {
		struct t_zip z = good[i].z;
		char name[300];

		t_case(good[i].what);
		for (size_t k = 0; k < good[i].members; k++) {
			snprintf(name, sizeof(name), "%0*zu", (int)good[i].name_n, k);
			t_zip_add(&z, name, bytes, good[i].size);
		}
		t_zip_end(&z);
		check_against_writer(&z);
		t_zip_free(&z);
	}
}

/* Whichever of the records at the end the first read misses. */
static void long_comments_are_searched(void **state)
{
	static const size_t lengths[] = {
		3900, 3990, 4040, 4054, 4055, 4074, 4075, 4096, 0xffff
	};
	char comment[0x10000];

	(void)state;
	for (size_t i = 0; i < 2 * DCP_LEN(lengths); i++) {
		struct t_zip z = { .comment = comment, .zip64 = i % 2 };

		memset(comment, 'c', sizeof(comment));
		comment[lengths[i / 2]] = '\0';
		t_zip_add(&z, "x", "1234", 4);
		t_zip_end(&z);
		check_against_writer(&z);
		t_zip_free(&z);
	}
}

static void small_archive_is_one_read(void **state)
{
	static const char *const names[] = { "archive/data.pkl",
					     "archive/.format_version",
					     "archive/.storage_alignment",
					     "archive/byteorder",
					     "archive/data/0",
					     "archive/version",
					     "archive/.data/serialization_id" };
	struct t_zip z = { .torch = true };
	dcp_auto_free char *big = calloc(1, 100000);
	struct dcp_zip_member *m = NULL;
	struct dcp_source mem;
	struct dcp_arena arena;
	struct t_source src;
	struct dcp_err err;
	size_t n = 0;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(names); i++)
		t_zip_add(&z, names[i], big, i == 4 ? 100000 : 40);
	t_zip_end(&z);
	mem = dcp_source_mem(z.b.p, z.b.n);
	t_source_init(&src, &mem);
	assert_int_equal(list(&src.base, &arena, &m, &n, &err), 0);
	assert_int_equal(n, DCP_LEN(names));
	assert_int_equal(src.calls, 1);
	dcp_arena_finish(&arena);
	t_zip_free(&z);
}

/* ---- an archive of 12 GiB that is nowhere: two headers and a tail, the rest made up ---- */

struct huge {
	struct dcp_source base;
	struct dcp_buf tail;
	uint64_t second; /* header of the second member */
};

static const uint64_t first_size = 5ull << 30, second_size = 7ull << 30;

static void local_header(uint8_t *p, const char *name)
{
	memset(p, 0, 64);
	memcpy(p, "PK\3\4\0\0\x08\x08", 8);
	memset(p + 18, 0xff, 8);
	p[26] = (uint8_t)strlen(name);
	p[28] = 20; /* zip64 field, which need not be read */
	memcpy(p + 30, name, strlen(name));
}

static int huge_read(const struct dcp_source *src, uint64_t off, void *buf, size_t n)
{
	const struct huge *h = (const struct huge *)(const void *)src;
	uint64_t tail = src->size - h->tail.n;
	uint8_t header[64], *to = buf;

	for (size_t i = 0; i < n; i++) {
		uint64_t at = off + i, head = at < h->second ? 0 : h->second;

		local_header(header, head ? "archive/data/1" : "archive/data/0");
		if (at >= tail)
			to[i] = (uint8_t)h->tail.p[at - tail];
		else
			to[i] = at - head < sizeof(header) ? header[at - head] : 0xcd;
	}
	return 0;
}

static void members_beyond_4_gib_are_found(void **state)
{
	struct huge h = { .second = 64 + first_size };
	uint64_t dir = h.second + 64 + second_size, dir_n, off = 0;
	struct dcp_zip_member *m = NULL;
	struct dcp_arena arena;
	struct dcp_err err;
	size_t n = 0;

	(void)state;
	t_zip_entry64(&h.tail, "archive/data/0", first_size, 0);
	t_zip_entry64(&h.tail, "archive/data/1", second_size, h.second);
	dir_n = h.tail.n;
	t_zip_tail64(&h.tail, dir + dir_n, 2, dir_n, dir);
	h.base = (struct dcp_source){ .read = huge_read, .size = dir + h.tail.n };

	assert_int_equal(list(&h.base, &arena, &m, &n, &err), 0);
	assert_int_equal(n, 2);
	assert_int_equal(m[0].size, first_size);
	assert_int_equal(m[1].header_off, h.second);
	assert_int_equal(dcp_zip_data(&h.base, &m[1], &off, &err), 0);
	assert_int_equal(off, h.second + 30 + 14 + 20);
	assert_true(off + m[1].size <= dir);
	dcp_arena_finish(&arena);

	/* One byte more than fits before the directory. */
	dcp_buf_reset(&h.tail);
	t_zip_entry64(&h.tail, "archive/data/0", dir - 30 - 14 + 1, 0);
	t_zip_entry64(&h.tail, "archive/data/1", second_size, h.second);
	t_zip_tail64(&h.tail, dir + dir_n, 2, dir_n, dir);
	assert_int_equal(list(&h.base, &arena, &m, &n, &err), -EBADMSG);
	t_assert_says(&err, "does not end before the central directory");
	dcp_arena_finish(&arena);
	dcp_buf_finish(&h.tail);
}

/* ---- refusals ---- */

static void bad_archive(const char *name, const char *p, size_t n, int code, const char *says)
{
	struct dcp_source src = dcp_source_mem(p, n);
	struct dcp_zip_member *m = NULL;
	struct dcp_arena arena;
	struct dcp_err err;
	size_t count = 0;
	uint64_t off;
	int r = list(&src, &arena, &m, &count, &err);

	(void)name;
	for (size_t i = 0; r == 0 && i < count; i++)
		r = m[i].stored ? dcp_zip_data(&src, &m[i], &off, &err)
				: dcp_fail_at(&err, -ENOTSUP, 0, "not stored");
	assert_int_equal(r, code);
	if (code)
		t_assert_says(&err, says);
	dcp_arena_finish(&arena);
}

static void bad_archives_are_refused(void **state)
{
	(void)state;
	t_bad_each("tests/bad/zip", bad_archive);
}

static void make_small(struct t_zip *z, bool zip64)
{
	*z = (struct t_zip){ .torch = true, .zip64 = zip64 };
	t_zip_add(z, "archive/data.pkl", "0123456789", 10);
	t_zip_add(z, "archive/data/0", "abcdef", 6);
	t_zip_end(z);
}

/* Whatever the bytes say: an error, or members and data inside the source. */
static void check_promises(const void *p, size_t size)
{
	struct dcp_source src = dcp_source_mem(p, size);
	struct dcp_zip_member *m = NULL;
	struct dcp_arena arena;
	struct dcp_err err;
	size_t n = 0;

	if (list(&src, &arena, &m, &n, &err) == 0)
		for (size_t i = 0; i < n; i++) {
			uint64_t off = 0;

			assert_true(m[i].header_off < size);
			if (m[i].stored)
				assert_true(dcp_range_ok(m[i].header_off, m[i].size, size));
			if (dcp_zip_data(&src, &m[i], &off, &err) == 0 && m[i].stored)
				assert_true(dcp_range_ok(off, m[i].size, size));
		}
	dcp_arena_finish(&arena);
}

static void every_cut_is_refused(void **state)
{
	struct t_zip z;

	(void)state;
	make_small(&z, true);
	for (size_t n = 0; n < z.b.n; n++) {
		dcp_auto_free char *cut = malloc(n + 1);
		struct dcp_source src = dcp_source_mem(cut, n);
		struct dcp_zip_member *m = NULL;
		struct dcp_arena arena;
		struct dcp_err err;
		size_t count = 0;

		memcpy(cut, z.b.p, n);
		assert_int_equal(list(&src, &arena, &m, &count, &err), -EBADMSG);
		assert_int_not_equal(err.code, 0);
		dcp_arena_finish(&arena);
	}
	t_zip_free(&z);
}

static void changed_bytes_break_no_promise(void **state)
{
	static const uint8_t values[] = { 0, 1, 0x7f, 0x80, 0xff };

	(void)state;
	for (int zip64 = 0; zip64 < 2; zip64++) {
		struct t_zip z;

		make_small(&z, zip64);
		for (size_t at = 0; at < z.b.n; at++)
			for (size_t i = 0; i < DCP_LEN(values); i++) {
				char was = z.b.p[at];

				z.b.p[at] = (char)values[i];
				check_promises(z.b.p, z.b.n);
				z.b.p[at] = was;
			}
		t_zip_free(&z);
	}
}

static void failing_reads_are_passed_on(void **state)
{
	struct t_zip z = { .torch = true };
	struct dcp_zip_member *m = NULL;
	struct dcp_source mem;
	struct dcp_arena arena;
	struct t_source src;
	struct dcp_err err;
	size_t n = 0;
	uint64_t off;

	(void)state;
	for (int i = 0; i < 200; i++) {
		char name[32];

		snprintf(name, sizeof(name), "archive/data/%d", i);
		t_zip_add(&z, name, "x", 1);
	}
	t_zip_end(&z);
	mem = dcp_source_mem(z.b.p, z.b.n);
	for (unsigned at = 1; at <= 3; at++) {
		int r;

		t_source_init(&src, &mem);
		src.fail_at = at;
		r = list(&src.base, &arena, &m, &n, &err);
		if (at < 3)
			assert_int_equal(r, -EIO);
		else
			assert_int_equal(dcp_zip_data(&src.base, &m[7], &off, &err), -EIO);
		dcp_arena_finish(&arena);
	}
	t_zip_free(&z);
}

static void memory_runs_out_politely(void **state)
{
	struct dcp_zip_member *m = NULL;
	struct dcp_source src;
	struct dcp_arena arena;
	struct t_zip z;
	struct dcp_err err;
	size_t n = 0, limit = 0;
	int r;

	(void)state;
	make_small(&z, false);
	src = dcp_source_mem(z.b.p, z.b.n);
	do {
		dcp_arena_init(&arena, limit += 16);
		r = dcp_zip_list(&src, &arena, &m, &n, &err);
		assert_true(r == 0 || r == -ENOMEM);
		dcp_arena_finish(&arena);
	} while (r < 0);
	assert_true(limit > 64);
	t_zip_free(&z);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(good_archives_are_listed),
		cmocka_unit_test(long_comments_are_searched),
		cmocka_unit_test(small_archive_is_one_read),
		cmocka_unit_test(members_beyond_4_gib_are_found),
		cmocka_unit_test(bad_archives_are_refused),
		cmocka_unit_test(every_cut_is_refused),
		cmocka_unit_test(changed_bytes_break_no_promise),
		cmocka_unit_test(failing_reads_are_passed_on),
		cmocka_unit_test(memory_runs_out_politely),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
