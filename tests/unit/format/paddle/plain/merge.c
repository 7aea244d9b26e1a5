/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of several ranks: what is the same in all of them is one key, what differs stays per
 * rank.
 * covers: plain
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/format/formats.h"
#include "core/format/paddle/plain/plain_int.h"
#include "core/origin/origin.h"
#include "tests/unit/t/format/group.h"
#include "tests/unit/t/format/pdplain.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/parse/dir.h"

#define format (&dcp_format_paddle_plain)

enum { SMALL = 100, LARGE = 200000, EXACT = 65536 };

/*
 * The file of a rank: {"w": LARGE bytes, "e": EXACT bytes, "b": SMALL bytes, "n": @n, "t":
 * (SMALL bytes, 1)}, where bytes are those of the key but for those that @odd says.
 */
struct odd {
	const char *key; /* NULL: none */
	size_t at;       /* this byte of it is another one */
	const char *code;
};

static void push(struct dcp_buf *b, int protocol, const char *key, size_t n,
		 const struct odd *odd)
{
	uint8_t *v = malloc(n);
	bool is = odd->key && strcmp(odd->key, key) == 0;

	for (size_t i = 0; i < n; i++)
		v[i] = (uint8_t)(i * 7 + (i >> 8) + (uint8_t)*key);
	if (is && !odd->code)
		v[odd->at] ^= 1;
	t_pd_row(b, protocol, is && odd->code ? odd->code : "u1", v, n, 1);
	free(v);
}

static void put_file(struct t_dir *d, const char *file, int protocol, int64_t n,
		     const struct odd *odd)
{
	static const struct {
		const char *key;
		size_t n;
	} tensors[] = { { "w", LARGE }, { "e", EXACT }, { "b", SMALL } };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

	t_pk_start(&b);
	t_pk_dict(&b);
	t_pk_mark(&b);
	for (size_t i = 0; i < DCP_LEN(tensors); i++) {
		t_pk_str(&b, tensors[i].key);
		push(&b, protocol, tensors[i].key, tensors[i].n, odd);
	}
	t_pk_str(&b, "n");
	t_pk_int(&b, n);
	t_pk_str(&b, "t");
	t_pk_mark(&b);
	push(&b, protocol, "t", SMALL, odd);
	t_pk_int(&b, 1);
	t_pk_tuple(&b);
	t_pk_setitems(&b);
	t_pk_stop(&b);
	t_dir_put(d, file, b.p, b.n);
}

/* Keys of @g, sorted, in one text. */
static int compare(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void check_keys(const struct t_group *g, const char *want)
{
	const char *keys[64];
	char text[1024] = "";

	assert_true(g->s.ntensors < DCP_LEN(keys));
	for (size_t i = 0; i < g->s.ntensors; i++)
		keys[i] = g->s.tensor[i].key;
	qsort(keys, g->s.ntensors, sizeof(*keys), compare);
	for (size_t i = 0; i < g->s.ntensors; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", i ? " " : "",
			 keys[i]);
	assert_string_equal(text, want);
}

static void replicas_are_merged(void **state)
{
	/* clang-format off */
	static const struct {
		const char *what;
		struct odd odd;
		int protocol;
		const char *keys;
		const char *replicas;
	} rows[] = {
		{ "all the same", { NULL, 0, NULL }, 3, "b e t.0 w", "4 tensors that several files hold: shown once; of 1 of them" },
		{ "protocol 2, too", { NULL, 0, NULL }, 2, "b e t.0 w", "4 tensors" },
		{ "a small one differs: what was not looked at whole does, too", { "b", 99, NULL }, 3, "e rank0.b rank0.w rank1.b rank1.w t.0", "2 tensors that several files hold: shown once; of 0 of them" },
		{ "the last byte of the largest that is looked at whole", { "e", EXACT - 1, NULL }, 3, "b rank0.e rank0.w rank1.e rank1.w t.0", "2 tensors" },
		{ "the first byte of a large one", { "w", 0, NULL }, 3, "b e rank0.w rank1.w t.0", "3 tensors" },
		{ "the last byte of a large one", { "w", LARGE - 1, NULL }, 3, "b e rank0.w rank1.w t.0", "3 tensors" },
		{ "a byte in its middle", { "w", (LARGE - 4096) / 3, NULL }, 3, "b e rank0.w rank1.w t.0", "3 tensors" },
		{ "another dtype", { "b", 0, "i1" }, 3, "e rank0.b rank0.w rank1.b rank1.w t.0", "2 tensors" },
		{ "a tensor inside an object: both say which", { "t", 3, NULL }, 3, "b e rank0.t.0 rank0.w rank1.t.0 rank1.w", "2 tensors" },
	};
	/* clang-format on */

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct odd none = { NULL, 0, NULL };
		struct t_dir tree;
		struct t_group g;

		t_case(rows[i].what);
		t_dir_make(&tree, "paddle");
		put_file(&tree, "m_rank0.pdparams", rows[i].protocol, 0, &none);
		put_file(&tree, "m_rank1.pdparams", rows[i].protocol, 1, &rows[i].odd);
		t_group_load(&g, tree.root, format, NULL, 0);
		if (g.rc < 0)
			fail_msg("%s", g.err.msg);
		check_keys(&g, rows[i].keys);
		assert_memory_equal(t_sink_fact(&g.s, "replicas"), rows[i].replicas,
				    strlen(rows[i].replicas));
		assert_string_equal(t_sink_object(&g.s, "rank1.n")->json, "1");
		if (rows[i].odd.key && *rows[i].odd.key == 't')
			assert_string_equal(t_sink_object(&g.s, "rank1.t")->json,
					    "[{\"$tensor\":\"rank1.t.0\"},1]");
		else
			assert_string_equal(t_sink_object(&g.s, "t")->json,
					    "[{\"$tensor\":\"t.0\"},1]");
		t_group_finish(&g);
		t_dir_remove(&tree);
	}
}

/* Another protocol stores other bytes: nothing is known to be the same. */
static void other_encodings_are_not_merged(void **state)
{
	struct odd none = { NULL, 0, NULL };
	struct t_dir tree;
	struct t_group g;

	(void)state;
	t_dir_make(&tree, "paddle");
	put_file(&tree, "m_rank0.pdparams", 2, 0, &none);
	put_file(&tree, "m_rank1.pdparams", 3, 0, &none);
	t_group_load(&g, tree.root, format, NULL, 0);
	assert_int_equal(g.rc, 0);
	check_keys(&g, "rank0.b rank0.e rank0.t.0 rank0.w rank1.b rank1.e rank1.t.0 rank1.w");
	assert_null(t_sink_fact(&g.s, "replicas"));
	assert_string_equal(t_sink_object(&g.s, "n")->json, "0");
	t_group_finish(&g);
	t_dir_remove(&tree);
}

/* A damaged file holds nothing that could differ. */
static void damaged_ranks_do_not_stop_merging(void **state)
{
	struct odd none = { NULL, 0, NULL };
	struct t_dir tree;
	struct t_group g;

	(void)state;
	t_dir_make(&tree, "paddle");
	t_dir_text(&tree, "m_rank0.pdparams", "\x80\x04what");
	put_file(&tree, "m_rank1.pdparams", 4, 0, &none);
	put_file(&tree, "m_rank2.pdparams", 4, 0, &none);
	t_group_load(&g, tree.root, format, NULL, 0);
	assert_int_equal(g.rc, 0);
	check_keys(&g, "b e t.0 w");
	assert_non_null(t_sink_object(&g.s, "rank0")->error);
	t_group_finish(&g);
	t_dir_remove(&tree);
}

/* What may no longer be read is not looked up, and costs nothing. */
static void merging_keeps_to_its_budget(void **state)
{
	static const uint64_t lo[1], len[] = { LARGE };
	static const uint8_t bytes[LARGE];
	struct dcp_piece p = { .lo = lo, .len = len, .run_n = LARGE, .nbytes = LARGE };
	struct dcp_tensor t = {
		.dtype_name = "U8", .ndim = 1, .shape = len, .pieces = &p, .npieces = 1
	};
	struct dcp_source src = dcp_source_mem(bytes, sizeof(bytes));
	uint64_t left = 20000;
	struct dcp_plain_same same;

	(void)state;
	assert_int_equal(dcp_plain_same_read(&src, &t, &left, &same), 0);
	assert_true(same.known && same.sampled);
	assert_int_equal(left, 20000 - 4 * 4096);
	assert_int_equal(dcp_plain_same_read(&src, &t, &left, &same), 0);
	assert_false(same.known);
	assert_int_equal(left, 20000 - 4 * 4096);
	left = 1 << 20;
	p.off = 1; /* its end is not there */
	assert_int_equal(dcp_plain_same_read(&src, &t, &left, &same), 0);
	assert_false(same.known);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(replicas_are_merged),
		cmocka_unit_test(other_encodings_are_not_merged),
		cmocka_unit_test(damaged_ranks_do_not_stop_merging),
		cmocka_unit_test(merging_keeps_to_its_budget),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
