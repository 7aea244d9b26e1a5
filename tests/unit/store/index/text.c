/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small parts of the index: shapes and paths as text, and the table of what was told.
 *
 * covers: write/writer
 */
#include "tests/unit/t.h"

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/store/index/write/write_int.h"

static const struct {
	const char *what, *text;
	bool ok;
	uint32_t ndim;
	uint64_t shape[4];
} shapes[] = {
	{ "no dimension", "[]", true, 0, { 0 } },
	{ "one", "[7]", true, 1, { 7 } },
	{ "three", "[1,0,4096]", true, 3, { 1, 0, 4096 } },
	{ "the largest", "[18446744073709551615]", true, 1, { UINT64_MAX } },
	{ "one more than the largest", "[18446744073709551616]", false, 0, { 0 } },
	{ "a sign", "[-1]", false, 0, { 0 } },
	{ "a blank", "[1, 2]", false, 0, { 0 } },
	{ "a comma at the end", "[1,]", false, 0, { 0 } },
	{ "a comma alone", "[,]", false, 0, { 0 } },
	{ "no comma", "[1 2]", false, 0, { 0 } },
	{ "open", "[1", false, 0, { 0 } },
	{ "closed only", "1]", false, 0, { 0 } },
	{ "one bracket", "[", false, 0, { 0 } },
	{ "nothing", "", false, 0, { 0 } },
	{ "text behind", "[1]2]", false, 0, { 0 } },
};

static void shapes_are_parsed(void **state)
{
	uint64_t shape[DCP_MAX_NDIM], many[DCP_MAX_NDIM + 1];
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	uint32_t ndim;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(shapes); i++) {
		t_case(shapes[i].what);
		ndim = 77;
		assert_int_equal(dcp_index_get_shape(shapes[i].text, strlen(shapes[i].text),
						     shape, &ndim),
				 shapes[i].ok);
		if (!shapes[i].ok)
			continue;
		assert_int_equal(ndim, shapes[i].ndim);
		for (uint32_t d = 0; d < ndim; d++)
			assert_int_equal(shape[d], shapes[i].shape[d]);
		dcp_buf_reset(&text);
		dcp_index_put_shape(&text, shape, ndim);
		assert_string_equal(text.p, shapes[i].text);
	}
	for (size_t d = 0; d <= DCP_MAX_NDIM; d++)
		many[d] = UINT64_MAX;
	dcp_buf_reset(&text);
	dcp_index_put_shape(&text, many, DCP_MAX_NDIM);
	assert_true(dcp_index_get_shape(text.p, text.n, shape, &ndim));
	assert_int_equal(ndim, DCP_MAX_NDIM);
	text.p[text.n - 1] = ',';
	dcp_buf_str(&text, "1]");
	assert_false(dcp_index_get_shape(text.p, text.n, shape, &ndim)); /* 65 of them */
}

static const struct {
	const char *what, *text;
	size_t n; /* components; SIZE_MAX: refused */
	const char *first;
} paths[] = {
	{ "none", "[]", 0, NULL },
	{ "one of its own", "[1]=a", 1, "a" },
	{ "empty components", "[0,0]=.", 2, "" },
	{ "one empty component", "[0]=", 1, "" },
	{ "any text", "[7]=\"\\\n[]=\xff", 1, "\"\\\n[]=\xff" },
	{ "a dot inside", "[3,1]=a.b.w", 2, "a.b" },
	{ "no text of its own", "[1]:a", SIZE_MAX, NULL },
	{ "not closed", "[1=a", SIZE_MAX, NULL },
	{ "no dot between", "[1,1]=a/w", SIZE_MAX, NULL },
	{ "more text", "[1]=ab", SIZE_MAX, NULL },
	{ "less text", "[3]=ab", SIZE_MAX, NULL },
	{ "lengths", "[4,5,6]", 3, "blok" },
	{ "one length", "[17]", 1, "blok.query.weight" },
	{ "lengths of fewer components", "[10,6]", 2, "blok.query" },
	{ "a length that ends within a component", "[3,6,6]", SIZE_MAX, NULL },
	{ "lengths that leave some of the key", "[4,5]", SIZE_MAX, NULL },
	{ "a length past the key", "[4,5,7]", SIZE_MAX, NULL },
	{ "a length of 2^64", "[18446744073709551616]", SIZE_MAX, NULL },
	{ "one length more", "[4,5,6,0]", SIZE_MAX, NULL },
	{ "a comma behind the lengths", "[4,5,6,]", SIZE_MAX, NULL },
	{ "a length and a word", "[4,query]", SIZE_MAX, NULL },
	{ "no length", "[,12]", SIZE_MAX, NULL },
	{ "nested", "[[]]", SIZE_MAX, NULL },
	{ "not an array", "{}", SIZE_MAX, NULL },
	{ "one bracket", "[", SIZE_MAX, NULL },
	{ "nothing", "", SIZE_MAX, NULL },
};

static void paths_are_parsed(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(paths); i++) {
		dcp_auto_free char *exact = malloc(strlen(paths[i].text) + 1);
		const char *const *path;
		struct dcp_arena arena;
		size_t n = strlen(paths[i].text), npath = 0;
		int code;

		t_case(paths[i].what);
		dcp_arena_init(&arena, 4096);
		memcpy(exact, paths[i].text, n); /* no NUL: reading it is an error */
		code = dcp_index_get_path(exact, n, "blok.query.weight", &arena, &path, &npath);
		assert_int_equal(code, paths[i].n == SIZE_MAX ? -EBADMSG : 0);
		if (code == 0)
			assert_int_equal(npath, paths[i].n);
		if (code == 0 && npath)
			assert_string_equal(path[0], paths[i].first);
		dcp_arena_finish(&arena);
	}
}

/* What is written is read back, and is nothing but lengths where the key says it all. */
static void paths_are_read_back(void **state)
{
	static const struct {
		const char *key, *path[3], *text;
		size_t n;
	} rows[] = {
		{ "w", { "w" }, "[1]", 1 },
		{ "a.b.w", { "a", "b.w" }, "[1,3]", 2 },
		{ "a..w", { "a", "", "w" }, "[1,0,1]", 3 },
		{ "", { "" }, "[0]", 1 },
		{ "a.w", { "a", "v" }, "[1,1]=a.v", 2 },
		{ "a.w", { "a" }, "[1]=a", 1 },
		{ "a", { "a", "w" }, "[1,1]=a.w", 2 },
		{ "a/w", { "a", "w" }, "[1,1]=a.w", 2 },
		{ "w", { "" }, "[0]=", 1 },
		{ "w", { "\xff.\n\"" }, "[4]=\xff.\n\"", 1 },
		{ "w", { NULL }, "[]", 0 },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_buf b = DCP_BUF_INIT;
		const char *const *path;
		struct dcp_arena arena;
		size_t n;

		t_case(rows[i].text);
		dcp_arena_init(&arena, 4096);
		dcp_index_put_path(&b, rows[i].key, rows[i].path, rows[i].n);
		assert_int_equal(b.n, strlen(rows[i].text));
		assert_memory_equal(b.p, rows[i].text, b.n);
		assert_int_equal(dcp_index_get_path((const char *)b.p, b.n, rows[i].key, &arena,
						    &path, &n),
				 0);
		assert_int_equal(n, rows[i].n);
		for (size_t k = 0; k < n; k++)
			assert_string_equal(path[k], rows[i].path[k]);
		dcp_buf_finish(&b);
		dcp_arena_finish(&arena);
	}
}

static void map_keeps_everything(void **state)
{
	struct dcp_index_map m = { 0 };
	uint32_t at, got;

	(void)state;
	at = 0;
	assert_int_equal(dcp_index_map_next(&m, 5, &at), 0);
	for (uint32_t i = 1; i <= 10000; i++) /* tags of which many are equal or neighbours */
		assert_int_equal(dcp_index_map_add(&m, (uint64_t)(i % 500) << 33, i), 0);
	for (uint32_t i = 1; i <= 10000; i++) {
		at = 0;
		do
			got = dcp_index_map_next(&m, (uint64_t)(i % 500) << 33, &at);
		while (got && got != i);
		assert_int_equal(got, i);
	}
	at = 0;
	assert_int_equal(dcp_index_map_next(&m, 7ull << 32, &at), 0);
	dcp_index_map_finish(&m);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(shapes_are_parsed),
		cmocka_unit_test(paths_are_parsed),
		cmocka_unit_test(paths_are_read_back),
		cmocka_unit_test(map_keeps_everything),
	};
	return cmocka_run_group_tests_name("index_text", tests, NULL, NULL);
}
