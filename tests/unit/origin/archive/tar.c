/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tar: names and places of members; archives that are refused, each with its reason.
 *
 * covers: archive
 */
#include "tests/unit/t.h"

#include "core/base/arena.h"
#include "core/origin/archive/archive.h"
#include "core/origin/origin.h"
#include "tests/unit/t/parse/source.h"
#include "tests/unit/t/parse/tar.h"

struct listing {
	struct dcp_arena arena;
	struct dcp_tar_member *m;
	size_t n;
	struct dcp_err err;
};

static int list(struct listing *l, const struct t_tar *t)
{
	struct dcp_source src = dcp_source_mem(t->b.p, t->b.n);

	*l = (struct listing){ 0 };
	dcp_arena_init(&l->arena, 64u << 20);
	return dcp_tar_list(&src, &l->arena, &l->m, &l->n, &l->err);
}

static void long_name(char *to, size_t n)
{
	memset(to, 'd', n);
	for (size_t i = 60; i < n; i += 61)
		to[i] = '/';
	to[n - 1] = 'e';
	to[n] = '\0';
}

/* The same files in every dialect, back in order of their names. */
static void every_dialect_is_listed(void **state)
{
	static const struct t_tar kinds[] = {
		{ .old = true },
		{ .n = 0 },
		{ .gnu = true },
		{ .base256 = true },
		{ .gnu = true, .base256 = true },
	};
	static const size_t sizes[] = { 0, 1, 511, 512, 513, 5000 };
	static char data[5000];
	char name[4000];

	(void)state;
	for (size_t i = 0; i < DCP_LEN(kinds); i++) {
		struct t_tar t = kinds[i];
		struct listing l;

		print_message("           dialect %zu\n", i);
		memset(data, 'x', sizeof(data));
		for (size_t k = DCP_LEN(sizes); k-- > 0;) {
			snprintf(name, sizeof(name), "dir/%zu.pt", k);
			t_tar_add(&t, name, data, sizes[k]);
		}
		if (!t.old) {
			long_name(name, 3000);
			t_tar_add(&t, name, "long", 4);
		}
		t_tar_end(&t);
		if (list(&l, &t) < 0)
			fail_msg("%s", l.err.msg);
		assert_int_equal(l.n, DCP_LEN(sizes) + !t.old);
		for (size_t k = 0; k < DCP_LEN(sizes); k++) {
			const struct dcp_tar_member *m = &l.m[l.n - DCP_LEN(sizes) + k];
			char want[32];

			snprintf(want, sizeof(want), "dir/%zu.pt", k);
			assert_string_equal(m->name, want);
			assert_int_equal(m->size, sizes[k]);
			assert_int_equal(m->off, t.data[DCP_LEN(sizes) - 1 - k]);
		}
		if (!t.old) {
			assert_string_equal(l.m[0].name, name);
			assert_int_equal(l.m[0].off, t.data[t.n - 1]);
			assert_memory_equal(t.b.p + l.m[0].off, "long", 4);
		}
		dcp_arena_finish(&l.arena);
		dcp_buf_finish(&t.b);
	}
}

static void other_members_are_left_out(void **state)
{
	dcp_auto_buf struct dcp_buf pax = DCP_BUF_INIT;
	struct t_tar t = { 0 };
	struct listing l;

	(void)state;
	t_tar_record(&pax, "comment", "for all");
	t_tar_raw(&t, 'g', "global", pax.n, pax.p, pax.n);
	t_tar_raw(&t, '5', "./", 0, "", 0);
	t_tar_raw(&t, '5', "deepspeed/", 0, "", 0);
	t_tar_add(&t, "./deepspeed/a.pt", "A", 1);
	t_tar_raw(&t, '2', "link", 0, "", 0);
	t_tar_raw(&t, '1', "hard", 700, "", 0); /* pax may say the size of its target */
	t_tar_raw(&t, '6', "fifo", 0, "", 0);
	t_tar_raw(&t, 'K', "././@LongLink", 3, "abc", 3);
	t_tar_raw(&t, '7', ".//b", 1, "B", 1);
	dcp_buf_reset(&pax);
	t_tar_record(&pax, "size", "3");
	t_tar_record(&pax, "path", "c");
	t_tar_raw(&t, 'x', "PaxHeaders/x", pax.n, pax.p, pax.n);
	t_tar_raw(&t, '0', "shown as c", 0, "CCC", 3);
	t_tar_raw(&t, '\0', "old directory/", 0, "", 0);
	t_tar_end(&t);
	dcp_buf_str(&t.b, "what follows the end mark is ignored");
	if (list(&l, &t) < 0)
		fail_msg("%s", l.err.msg);
	assert_int_equal(l.n, 3);
	assert_string_equal(l.m[0].name, "b");
	assert_string_equal(l.m[1].name, "c");
	assert_int_equal(l.m[1].size, 3);
	assert_string_equal(l.m[2].name, "deepspeed/a.pt");
	dcp_arena_finish(&l.arena);
	dcp_buf_finish(&t.b);
}

/* What stands in front of a header is for that one alone, whatever it is the header of. */
static void extra_headers_hold_for_one_member(void **state)
{
	static const char types[] = { '1', '2', '5', '6' };
	static const char *const names[] = { "a", "b", "c", "d", "e" };
	char name[150];

	(void)state;
	long_name(name, 149);
	for (int gnu = 0; gnu < 2; gnu++) {
		dcp_auto_buf struct dcp_buf pax = DCP_BUF_INIT;
		struct t_tar t = { .gnu = gnu };
		struct listing l;

		t_tar_record(&pax, "path", name);
		t_tar_record(&pax, "size", "700");
		for (size_t i = 0; i < DCP_LEN(types); i++) {
			if (gnu)
				t_tar_raw(&t, 'L', "././@LongLink", 150, name, 150);
			else
				t_tar_raw(&t, 'x', "PaxHeaders/x", pax.n, pax.p, pax.n);
			t_tar_raw(&t, types[i], "cut off", 0, "", 0);
			t_tar_add(&t, names[i], "1", 1);
		}
		dcp_buf_reset(&pax);
		t_tar_record(&pax, "size", "3");
		t_tar_raw(&t, 'x', "PaxHeaders/x", pax.n, pax.p, pax.n);
		t_tar_raw(&t, '0', "sized", 0, "CCC", 3);
		t_tar_add(&t, names[4], "1", 1);
		t_tar_end(&t);
		if (list(&l, &t) < 0)
			fail_msg("%s", l.err.msg);
		assert_int_equal(l.n, DCP_LEN(names) + 1);
		for (size_t i = 0; i < DCP_LEN(names); i++) {
			assert_string_equal(l.m[i].name, names[i]);
			assert_int_equal(l.m[i].size, 1);
		}
		assert_string_equal(l.m[DCP_LEN(names)].name, "sized");
		assert_int_equal(l.m[DCP_LEN(names)].size, 3);
		dcp_arena_finish(&l.arena);
		dcp_buf_finish(&t.b);
	}
}

static void prefixes_are_part_of_names(void **state)
{
	struct t_tar t = { 0 };
	struct listing l;
	char name[101];

	(void)state;
	memset(name, 'n', 100); /* as long as the field: no NUL */
	name[100] = '\0';
	t_tar_raw(&t, '0', name, 0, "", 0);
	t_tar_poke(&t, 0, 345, "some/where", 10);
	t_tar_raw(&t, '0', "gnu", 0, "", 0);
	t_tar_poke(&t, 1, 345, "some/where", 10);
	t_tar_poke(&t, 1, 257, "ustar  ", 8); /* has other things there */
	t_tar_end(&t);
	assert_int_equal(list(&l, &t), 0);
	assert_int_equal(l.n, 2);
	assert_string_equal(l.m[0].name, "gnu");
	assert_int_equal(strlen(l.m[1].name), 111);
	assert_int_equal(strncmp(l.m[1].name, "some/where/nnn", 14), 0);
	dcp_arena_finish(&l.arena);
	dcp_buf_finish(&t.b);
}

/* clang-format off */
static const struct {
	const char *what;
	char type;
	const char *name, *pax;   /* "name=value": a pax header in front */
	uint64_t size;            /* as the header says; the member has one byte */
	size_t at;                /* bytes of the header that are changed */
	const char *poke;
	bool no_end, bad_sum;
	int code;
	const char *says;
} faults[] = {
	{ "a name that climbs", '0', "../x", NULL, 1, 0, NULL, false, false, -EXDEV, "is called ../x: an archive that leads outside" },
	{ "a name that climbs later", '0', "a/../../x", NULL, 1, 0, NULL, false, false, -EXDEV, "leads outside" },
	{ "a name that ends climbing", '0', "a/..", NULL, 1, 0, NULL, false, false, -EXDEV, "leads outside" },
	{ "an absolute name", '0', "/etc/passwd", NULL, 1, 0, NULL, false, false, -EXDEV, "is called /etc/passwd" },
	{ "a pax name that climbs", '0', "x", "path=../../x", 1, 0, NULL, false, false, -EXDEV, "../../x" },
	{ "no name", '0', "", NULL, 1, 0, NULL, false, false, -EBADMSG, "a file without a name" },
	{ "only a dot", '0', "./", NULL, 1, 0, NULL, false, false, -EBADMSG, "a file without a name" },
	{ "a sparse file", 'S', "x", NULL, 1, 0, NULL, false, false, -ENOTSUP, "a sparse file" },
	{ "a sparse file of pax", '0', "x", "GNU.sparse.major=1", 1, 0, NULL, false, false, -ENOTSUP, "a sparse file" },
	{ "a volume's second part", 'M', "x", NULL, 1, 0, NULL, false, false, -ENOTSUP, "multi-volume" },
	{ "an unknown type", 'Q', "x", NULL, 1, 0, NULL, false, false, -ENOTSUP, "type 0x51" },
	{ "longer than the archive", '0', "x", NULL, 1 << 20, 0, NULL, false, false, -EBADMSG, "ends past the end of the archive, which has 10240: was it cut?" },
	{ "a size near 2^64", '0', "x", NULL, UINT64_MAX, 0, NULL, false, false, -EBADMSG, "ends past the end" },
	{ "a size that wraps the offset", '0', "x", NULL, UINT64_MAX - 1023, 0, NULL, false, false, -EBADMSG, "ends past the end" },
	{ "a negative size", '0', "x", NULL, 1, 124, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", false, false, -EBADMSG, "a size that is not a number" },
	{ "a size beyond 64 bits", '0', "x", NULL, 1, 124, "\x80\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01", false, false, -EBADMSG, "a size that is not a number" },
	{ "a size in words", '0', "x", NULL, 1, 124, "12 monkeys  ", false, false, -EBADMSG, "a size that is not a number" },
	{ "no size", '0', "x", NULL, 1, 124, "            ", false, false, -EBADMSG, "a size that is not a number" },
	{ "a pax size in words", '0', "x", "size=much", 1, 0, NULL, false, false, -EBADMSG, "a pax size that is not a number" },
	{ "a pax size beyond 64 bits", '0', "x", "size=99999999999999999999", 1, 0, NULL, false, false, -EBADMSG, "a pax size that is not a number" },
	{ "a checksum that is wrong", '0', "x", NULL, 1, 0, NULL, false, true, -EBADMSG, "its checksum is wrong" },
	{ "no end mark", '0', "x", NULL, 1, 0, NULL, true, false, -EBADMSG, "no end mark in the archive of 1024 bytes: was it cut?" },
};
/* clang-format on */

static void bad_archives_are_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(faults); i++) {
		dcp_auto_buf struct dcp_buf pax = DCP_BUF_INIT;
		struct t_tar t = { .base256 = faults[i].size > UINT32_MAX };
		struct listing l;

		t_case(faults[i].what);
		if (faults[i].pax) {
			size_t n = strcspn(faults[i].pax, "=");
			char name[32];

			snprintf(name, sizeof(name), "%.*s", (int)n, faults[i].pax);
			t_tar_record(&pax, name, faults[i].pax + n + 1);
			t_tar_raw(&t, 'x', "pax", pax.n, pax.p, pax.n);
		}
		t_tar_raw(&t, faults[i].type, faults[i].name, faults[i].size, "1", 1);
		if (faults[i].poke)
			t_tar_poke(&t, t.n - 1, faults[i].at, faults[i].poke, 12);
		if (faults[i].bad_sum)
			t.b.p[t.header[0] + 150] ^= 1;
		if (!faults[i].no_end)
			t_tar_end(&t);
		assert_int_equal(list(&l, &t), faults[i].code);
		assert_int_equal(l.err.code, faults[i].code);
		t_assert_says(&l.err, faults[i].says);
		assert_null(l.m);
		dcp_arena_finish(&l.arena);
		dcp_buf_finish(&t.b);
	}
}

static void equal_names_are_refused(void **state)
{
	struct t_tar t = { 0 };
	struct listing l;

	(void)state;
	t_tar_add(&t, "a", "1", 1);
	t_tar_add(&t, "b", "2", 1);
	t_tar_add(&t, "./a", "3", 1);
	t_tar_end(&t);
	assert_int_equal(list(&l, &t), -EBADMSG);
	t_assert_says(&l.err, "two members are called a");
	dcp_arena_finish(&l.arena);
	dcp_buf_finish(&t.b);
}

static void damaged_pax_records_are_refused(void **state)
{
	static const char *const bodies[] = {
		"path=x\n",
		"9 path=x\n extra",
		"99 path=x\n",
		"5 a=b",
		"3 =",
		"8 path=x",
		"0 \n",
		"18446744073709551620 path=x\n",
		"7 pathx\n",
		"-3 a=b\n",
		"10 path=a\0b\n",
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(bodies); i++) {
		size_t n = i == DCP_LEN(bodies) - 1 ? 11 : strlen(bodies[i]);
		struct t_tar t = { 0 };
		struct listing l;

		t_case(bodies[i]);
		t_tar_raw(&t, 'x', "pax", n, bodies[i], n);
		t_tar_add(&t, "a", "1", 1);
		t_tar_end(&t);
		assert_int_equal(list(&l, &t), -EBADMSG);
		assert_non_null(strstr(l.err.msg, "invalid pax header")
					?: strstr(l.err.msg, "NUL"));
		dcp_arena_finish(&l.arena);
		dcp_buf_finish(&t.b);
	}
}

static void limits_are_kept(void **state)
{
	struct t_tar t = { 0 };
	struct listing l;
	char *much = calloc(1, 2u << 20);
	struct dcp_source src;

	(void)state;
	t_tar_raw(&t, 'L', "long", 2u << 20, much, 2u << 20);
	t_tar_add(&t, "a", "1", 1);
	t_tar_end(&t);
	assert_int_equal(list(&l, &t), -E2BIG);
	t_assert_says(&l.err, "2097152 bytes, at most 1048576 are read");
	dcp_arena_finish(&l.arena);
	dcp_buf_finish(&t.b);

	t = (struct t_tar){ 0 };
	t_tar_add(&t, "a", "1", 1);
	t_tar_end(&t);
	src = dcp_source_mem(t.b.p, t.b.n);
	dcp_arena_init(&l.arena, 8);
	assert_int_equal(dcp_tar_list(&src, &l.arena, &l.m, &l.n, &l.err), -ENOMEM);
	dcp_arena_finish(&l.arena);
	dcp_buf_finish(&t.b);
	free(much);
}

/* Whatever is cut off, nothing is listed. */
static void every_cut_is_refused(void **state)
{
	struct t_tar t = { .gnu = true };
	struct listing l;
	char name[200];
	size_t end;

	(void)state;
	long_name(name, 150);
	t_tar_add(&t, name, "12345", 5);
	t_tar_add(&t, "b", "67890", 5);
	end = t.b.n;
	t_tar_end(&t);
	for (t.b.n = 0; t.b.n < end + 512; t.b.n += 7) {
		assert_int_equal(list(&l, &t), -EBADMSG);
		assert_true(l.err.msg[0]);
		dcp_arena_finish(&l.arena);
	}
	t.b.n = end + 512; /* one block of zeros is an end */
	assert_int_equal(list(&l, &t), 0);
	dcp_arena_finish(&l.arena);
	dcp_buf_finish(&t.b);
}

static void failing_reads_are_passed_on(void **state)
{
	struct t_tar t = { .gnu = true };
	struct t_source faulty;
	struct dcp_source mem;
	char name[200];

	(void)state;
	long_name(name, 150);
	t_tar_add(&t, name, "12345", 5);
	t_tar_end(&t);
	mem = dcp_source_mem(t.b.p, t.b.n);
	for (unsigned at = 1; at <= 4; at++) {
		struct listing l = { 0 };

		dcp_arena_init(&l.arena, 1 << 20);
		t_source_init(&faulty, &mem);
		faulty.fail_at = at;
		assert_int_equal(dcp_tar_list(&faulty.base, &l.arena, &l.m, &l.n, &l.err),
				 -EIO);
		t_assert_says(&l.err, "cannot be read");
		dcp_arena_finish(&l.arena);
	}
	dcp_buf_finish(&t.b);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_dialect_is_listed),
		cmocka_unit_test(other_members_are_left_out),
		cmocka_unit_test(extra_headers_hold_for_one_member),
		cmocka_unit_test(prefixes_are_part_of_names),
		cmocka_unit_test(bad_archives_are_refused),
		cmocka_unit_test(equal_names_are_refused),
		cmocka_unit_test(damaged_pax_records_are_refused),
		cmocka_unit_test(limits_are_kept),
		cmocka_unit_test(every_cut_is_refused),
		cmocka_unit_test(failing_reads_are_passed_on),
	};

	return cmocka_run_group_tests_name("tar", tests, NULL, NULL);
}
