/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is damaged, missing or a lie in a Paddle checkpoint costs the keys that need it, with a
 * message that says what and where; the others stay.
 * covers: dist, key
 */
#include "tests/unit/t.h"

#include <unistd.h>

#include "core/base/buf.h"
#include "core/format/formats.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/format/paddle.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/sink.h"

/*
 * "w" is 4x3, rows 0-1 in 0_0.distcp and 2-3 in 1_0.distcp; "b" is a vector in 0_0.distcp, "c"
 * one in 1_0.distcp.
 */
enum { W0, W1, B, C, N };

struct world {
	char generation;
	struct t_pd_piece p[N + 2];
	size_t n;
	const char *code[2]; /* of w's arrays */
	int64_t shape[2][2]; /* of w's arrays, as stored */
	bool without[2];     /* w's array is left out of that file */
	struct dcp_buf more; /* goes into 1_0.distcp in front of everything */
};

static const float values[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };

static void world_init(struct world *w)
{
	*w = (struct world){ .generation = 'C', .n = N, .code = { "f4", "f4" } };
	for (int i = 0; i < N; i++)
		w->p[i] = (struct t_pd_piece){ .key = i == B   ? "b"
						      : i == C ? "c"
							       : "w",
					       .dtype = "float32",
					       .replica = -1,
					       .file = i == W0 || i == B ? "0_0.distcp"
									 : "1_0.distcp" };
	for (int i = W0; i <= W1; i++) {
		struct t_pd_piece *p = &w->p[i];

		p->ndim = 2;
		p->lo[0] = 2 * i;
		p->len[0] = 2;
		p->len[1] = 3;
		p->shape[0] = 4;
		p->shape[1] = 3;
		memcpy(w->shape[i], p->len, sizeof(w->shape[i]));
	}
	for (int i = B; i <= C; i++) {
		w->p[i].ndim = 1;
		w->p[i].len[0] = w->p[i].shape[0] = 3;
	}
}

static void world_write(struct world *w, const struct t_dir *dir)
{
	struct dcp_buf b = DCP_BUF_INIT;
	const int64_t three = 3;

	for (int i = 0; i < 2; i++) {
		dcp_buf_reset(&b);
		t_paddle_open(&b, 4);
		if (i)
			dcp_buf_add(&b, w->more.p, w->more.n);
		if (!w->without[i])
			t_paddle_array(&b, "w", w->code[i], w->p[i].flat ? 1 : 2, w->shape[i],
				       values + 6 * i, w->shape[i][0] == 1 ? 12 : 24);
		t_paddle_array(&b, i ? "c" : "b", "f4", 1, &three, values, 12);
		t_paddle_close(&b);
		t_dir_put(dir, i ? "1_0.distcp" : "0_0.distcp", b.p, b.n);
	}
	dcp_buf_reset(&b);
	t_paddle_meta(&b, w->generation, w->p, w->n);
	t_dir_put(dir, "0.metadata", b.p, b.n);
	dcp_buf_finish(&b);
	dcp_buf_finish(&w->more);
}

/* ---- what is changed before it is written ---- */

static void nothing(struct world *w)
{
	(void)w;
}

static void outside(struct world *w)
{
	w->p[W1].file = "../1_0.distcp";
}

static void absolute(struct world *w)
{
	w->p[W1].file = "/etc/passwd";
}

static void unnamed(struct world *w)
{
	w->p[W1].file = NULL;
}

static void no_array(struct world *w)
{
	w->without[1] = true;
}

static void other_cut(struct world *w)
{
	w->shape[1][0] = 3;
	w->shape[1][1] = 2;
}

static void other_dtype(struct world *w)
{
	w->code[1] = "i4";
}

static void hole(struct world *w)
{
	w->p[W1] = w->p[B];
	w->p[W1].key = "w2";
}

static void negative_offset(struct world *w)
{
	w->p[W1].lo[0] = -2;
}

static void negative_length(struct world *w)
{
	w->p[N] = w->p[W1];
	w->p[N].key = "v";
	w->p[N].len[0] = -1;
	w->p[N].file = NULL;
	w->n = N + 1;
}

static void run_too_long(struct world *w)
{
	w->p[W1].flat = true;
	w->p[W1].run[0] = 1;
	w->p[W1].run[1] = 7;
	w->shape[1][0] = 6;
}

static void run_backwards(struct world *w)
{
	w->p[W1].flat = true;
	w->p[W1].run[0] = 7;
	w->p[W1].run[1] = 1;
}

static void run_short(struct world *w)
{
	w->p[W1].flat = true;
	w->p[W1].len[0] = 1;
	w->p[W1].lo[0] = 3;
	w->p[W1].run[1] = 2;
	w->shape[1][0] = 6;
}

static void shapes_differ(struct world *w)
{
	w->p[W1].shape[0] = 5;
}

static void dtypes_differ(struct world *w)
{
	w->p[W1].dtype = "int32";
}

static void ranks_differ(struct world *w)
{
	w->p[W1].ndim = 1;
}

static void leaves_shape(struct world *w)
{
	w->p[W0].shape[0] = w->p[W1].shape[0] = 3;
}

/* What an even cut would have given: two rows from the third of three. */
static void unclipped(struct world *w)
{
	leaves_shape(w);
	w->shape[1][0] = 1;
}

static void shape_overflows(struct world *w)
{
	for (int i = W0; i <= W1; i++)
		w->p[i].shape[0] = w->p[i].shape[1] = INT64_MAX;
}

static void length_overflows(struct world *w)
{
	w->generation = 'B';
	w->p[W1].lo[0] = INT64_MAX;
	w->p[W1].len[0] = INT64_MAX;
	w->p[W1].lo[1] = w->p[W1].len[1] = INT64_MAX;
}

static void not_listed(struct world *w)
{
	w->p[W0].only_stored = w->p[W1].only_stored = true;
}

static void object_array(struct world *w)
{
	w->code[1] = "O8";
}

/* os.system("touch PWNED") where an array should be, and under a key of its own. */
static void malice(struct world *w)
{
	const char *const keys[] = { "w", "evil" };

	w->without[1] = true;
	for (int i = 0; i < 2; i++) {
		t_pk_str(&w->more, keys[i]);
		t_pk_global(&w->more, "os", "system");
		t_pk_mark(&w->more);
		t_pk_str(&w->more, "touch PWNED");
		t_pk_tuple(&w->more);
		t_pk_reduce(&w->more);
	}
}

static void bad_slices(struct world *w)
{
	t_pk_str(&w->more, "UnpackBigParamInfor@@");
	t_pk_int(&w->more, 7);
	t_pk_str(&w->more, "UnpackBigParamInfor@@");
	t_pk_dict(&w->more);
	t_pk_mark(&w->more);
	t_pk_str(&w->more, "w");
	t_pk_int(&w->more, 7);
	t_pk_setitems(&w->more);
}

#define STALE                                                                                  \
	"0.metadata says its piece [2:4, 0:3] is an array of shape [2, 3], 1_0.distcp holds"

/* clang-format off */
static const struct {
	const char *what;
	void (*change)(struct world *w);
	const char *says; /* about w; NULL: it can be read */
	bool c;           /* c can be read, too */
} faults[] = {
	{ "a healthy one", nothing, NULL, true },
	{ "a file outside the directory", outside, "0.metadata: storage_metadata names \"../1_0.distcp\"", true },
	{ "an absolute file", absolute, "names \"/etc/passwd\"", true },
	{ "no file", unnamed, "storage_metadata of 0.metadata names no file for its piece [2:4, 0:3]", true },
	{ "a file without the array", no_array, "1_0.distcp holds no array of that key, 0.metadata says it does", true },
	{ "stale metadata", other_cut, STALE " [3, 2]: stale metadata", true },
	{ "another dtype", other_dtype, "0.metadata says it is F32, 1_0.distcp holds I32", true },
	{ "a hole", hole, "elements [2:4, 0:3] are stored nowhere", true },
	{ "a negative offset", negative_offset, "0.metadata: a piece has a negative global_offset", true },
	{ "a negative length is an empty piece", negative_length, NULL, true },
	{ "a run that leaves its box", run_too_long, "its piece [2:4, 0:3] has a flattened_range that ends at 7", true },
	{ "a run that ends before it starts", run_backwards, "flattened_range (start, stop)", true },
	{ "a run that is too short", run_short, "0.metadata says its piece [3:4, 0:3] is an array of shape [2], 1_0.distcp holds [6]", true },
	{ "shapes that differ", shapes_differ, "disagree about global_shape", true },
	{ "dtypes that differ", dtypes_differ, "different dtypes", true },
	{ "numbers of dimensions that differ", ranks_differ, "different numbers of dimensions", true },
	{ "a piece outside the shape", leaves_shape, "its piece [2:4, 0:3] does not lie inside its shape [3, 3]", true },
	{ "one whose array has only what lies inside", unclipped, NULL, true },
	{ "a shape that overflows", shape_overflows, "does not fit in 64 bits", true },
	{ "a box that overflows", length_overflows, "does not fit in 64 bits", true },
	{ "no pieces", not_listed, "0.metadata lists no piece of it", true },
	{ "an array of objects", object_array, "1_0.distcp: array of dtype O8", true },
	{ "a call of a shell", malice, "1_0.distcp holds no array of that key", true },
	{ "slices that are none", bad_slices, "1_0.distcp: UnpackBigParamInfor@@ does not say", false },
};
/* clang-format on */

static void load(const struct t_dir *tree, struct dcp_dir *dir, struct t_sink *s)
{
	struct dcp_load in = { .dir = dir, .sink = &s->sink };
	struct dcp_err err = { 0 };

	assert_int_equal(dcp_dir_open(tree->root, dir, NULL), 0);
	t_sink_init(s, dir);
	if (dcp_format_paddle_dist.load(&in, &err) < 0)
		fail_msg("%s", err.msg);
}

/* The key's bytes are those of @want; or its error says @says. */
static void check_key(const struct t_sink *s, const char *key, const char *says,
		      const float *want, size_t n)
{
	const struct dcp_tensor *t = t_sink_tensor(s, key);
	struct dcp_err err = { 0 };
	char *bytes;
	size_t got;

	assert_non_null(t);
	bytes = t_sink_read(s, t, &got, &err);
	if (says) {
		assert_null(bytes);
		t_assert_says(&err, says);
		return;
	}
	if (!bytes)
		fail_msg("%s: %s", key, err.msg);
	assert_int_equal(got, n * sizeof(*want));
	assert_memory_equal(bytes, want, got);
	free(bytes);
}

static void bad_keys_are_reported(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(faults); i++) {
		struct world w;
		struct dcp_dir dir;
		struct t_dir tree;
		struct t_sink s;

		t_case(faults[i].what);
		t_dir_make(&tree, "paddle");
		world_init(&w);
		faults[i].change(&w);
		world_write(&w, &tree);
		load(&tree, &dir, &s);
		check_key(&s, "w", faults[i].says, values,
			  faults[i].change == unclipped ? 9 : 12);
		check_key(&s, "b", NULL, values, 3);
		check_key(&s, "c", faults[i].c ? NULL : "1_0.distcp", values, 3);
		if (faults[i].change == malice) {
			const char *json = t_sink_object(&s, "evil")->json;

			assert_non_null(strstr(json, "\"$class\":\"os.system\""));
			assert_int_equal(access("PWNED", F_OK), -1);
		}
		t_sink_finish(&s);
		dcp_dir_close(&dir);
		t_dir_remove(&tree);
	}
}

/* ---- files ---- */

static void missing_files_are_reported(void **state)
{
	static const struct {
		const char *what, *bytes;
		const char *says;
	} rows[] = {
		{ "missing", NULL, "1_0.distcp" },
		{ "empty", "", "1_0.distcp: " },
		{ "no pickle", "what is this", "1_0.distcp: " },
		{ "cut", "\x80\x04\x95\xff", "1_0.distcp: " },
		{ "another object", "\x80\x02]q\x01.", "1_0.distcp: the pickle holds list" },
		{ "a call for a dict", "cos\nsystem\n(S'touch PWNED'\ntR.",
		  "1_0.distcp: the pickle holds os.system, expected a dict" },
		{ "keys that are no text", "\x80\x02}K\x01K\x02s.",
		  "1_0.distcp: a key is int, expected str" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct world w;
		struct dcp_dir dir;
		struct t_dir tree;
		struct t_sink s;

		t_case(rows[i].what);
		t_dir_make(&tree, "paddle");
		world_init(&w);
		world_write(&w, &tree);
		t_dir_delete(&tree, "1_0.distcp");
		if (rows[i].bytes)
			t_dir_text(&tree, "1_0.distcp", rows[i].bytes);
		load(&tree, &dir, &s);
		check_key(&s, "w", rows[i].says, NULL, 0);
		check_key(&s, "c", rows[i].says, NULL, 0);
		check_key(&s, "b", NULL, values, 3);
		assert_int_equal(access("PWNED", F_OK), -1);
		t_sink_finish(&s);
		dcp_dir_close(&dir);
		t_dir_remove(&tree);
	}
}

/* Without metadata there is nothing to show. */
static void bad_metadata_is_refused(void **state)
{
	static const char *const damaged[] = { "", "hello", "\x80\x02}." };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(damaged); i++) {
		struct dcp_err err = { 0 };
		struct world w;
		struct dcp_dir dir;
		struct t_dir tree;
		struct t_sink s;
		struct dcp_load in = { .dir = &dir, .sink = &s.sink };

		t_dir_make(&tree, "paddle");
		world_init(&w);
		world_write(&w, &tree);
		t_dir_text(&tree, "0.metadata", damaged[i]);
		assert_int_equal(dcp_dir_open(tree.root, &dir, NULL), 0);
		t_sink_init(&s, &dir);
		assert_int_equal(dcp_format_paddle_dist.load(&in, &err), -EBADMSG);
		t_assert_says(&err, "0.metadata is damaged (copy it again, or use another");
		assert_int_equal(s.ntensors, 0);
		t_sink_finish(&s);
		dcp_dir_close(&dir);
		t_dir_remove(&tree);
	}
}

/* ---- what is no fault ---- */

/* A copy stands in for one that is lost; the metadata of all copies is the same piece. */
static void differing_copies_are_reported(void **state)
{
	struct world w;
	struct dcp_dir dir;
	struct t_dir tree;
	struct t_sink s;

	(void)state;
	t_dir_make(&tree, "paddle");
	world_init(&w);
	w.p[N] = w.p[C]; /* c's first copy: in a file that is not there */
	w.p[N].file = "7_0.distcp";
	w.p[C].only_stored = true;
	w.p[C].replica = 1;
	w.p[N].replica = 0;
	w.n = N + 1;
	world_write(&w, &tree);
	load(&tree, &dir, &s);
	check_key(&s, "c", NULL, values, 3);
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

/* Two cuts of one tensor in metadata, the arrays of one of them in the files. */
static void the_stored_cut_is_taken(void **state)
{
	struct world w;
	struct dcp_dir dir;
	struct t_dir tree;
	struct t_sink s;

	(void)state;
	t_dir_make(&tree, "paddle");
	world_init(&w);
	w.generation = 'B';
	memmove(w.p + 2, w.p + 1, sizeof(*w.p) * 3);
	w.p[1] = w.p[0]; /* [0:4, 0:1] of 0_0.distcp, which holds [0:2, 0:3] */
	w.p[1].len[0] = 4;
	w.p[1].len[1] = 1;
	w.n = N + 1;
	world_write(&w, &tree);
	load(&tree, &dir, &s);
	check_key(&s, "w", NULL, values, 12);
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

/* Keys that only a data file knows, and values that are no arrays. */
static void stray_files_are_reported(void **state)
{
	struct world w;
	struct dcp_dir dir;
	struct t_dir tree;
	struct t_sink s;
	int64_t two = 2;

	(void)state;
	t_dir_make(&tree, "paddle");
	world_init(&w);
	t_paddle_open(&w.more, 4);
	dcp_buf_reset(&w.more);
	dcp_buf_add(&w.more, "\0\4", 2); /* as bytes, not text */
	t_paddle_array(&w.more, "new", "f4", 1, &two, values, 8);
	memmove(w.more.p, w.more.p + 2, w.more.n -= 2);
	t_pk_str(&w.more, "step");
	t_pk_int(&w.more, 12);
	world_write(&w, &tree);
	load(&tree, &dir, &s);
	check_key(&s, "new",
		  "1_0.distcp holds a piece of it, but 0.metadata does not say of what", NULL,
		  0);
	check_key(&s, "w", NULL, values, 12);
	assert_int_equal(s.nobjects, 1);
	assert_string_equal(t_sink_object(&s, "step")->json, "12");
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

/* What Paddle itself leaves when a second save is cut another way: w is refused, b is new. */
static void stale_metadata_is_refused(void **state)
{
	struct dcp_err err = { 0 };
	struct dcp_dir dir;
	struct t_sink s;
	struct dcp_load in = { .dir = &dir, .sink = &s.sink };
	size_t n;
	char *b;

	(void)state;
	assert_int_equal(dcp_dir_open("tests/golden/paddle-dist-stale/other-cut", &dir, NULL),
			 0);
	t_sink_init(&s, &dir);
	assert_int_equal(dcp_format_paddle_dist.load(&in, &err), 0);
	check_key(&s, "w", "stale metadata, the data was saved again in another cut", NULL, 0);
	b = t_sink_read(&s, t_sink_tensor(&s, "b"), &n, &err);
	assert_non_null(b);
	free(b);
	t_sink_finish(&s);
	dcp_dir_close(&dir);
}

/* Data written long after its metadata is worth a word, once. */
static void late_data_gets_a_warning(void **state)
{
	struct world w;
	struct dcp_dir dir;
	struct t_dir tree;
	struct t_sink s;

	(void)state;
	for (int late = 0; late < 2; late++) {
		t_dir_make(&tree, "paddle");
		world_init(&w);
		world_write(&w, &tree);
		t_dir_touch(&tree, "0.metadata", 1000 * 1000000000ll);
		for (int r = 0; r < 2; r++)
			t_dir_touch(&tree, r ? "1_0.distcp" : "0_0.distcp",
				    (late ? 1601 : 1599) * 1000000000ll);
		load(&tree, &dir, &s);
		if (late)
			assert_non_null(strstr(t_sink_fact(&s, "warning"),
					       "was written 601 seconds after 0.metadata"));
		else
			assert_null(t_sink_fact(&s, "warning"));
		check_key(&s, "w", NULL, values, 12);
		t_sink_finish(&s);
		dcp_dir_close(&dir);
		t_dir_remove(&tree);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bad_keys_are_reported),
		cmocka_unit_test(missing_files_are_reported),
		cmocka_unit_test(bad_metadata_is_refused),
		cmocka_unit_test(differing_copies_are_reported),
		cmocka_unit_test(the_stored_cut_is_taken),
		cmocka_unit_test(stray_files_are_reported),
		cmocka_unit_test(stale_metadata_is_refused),
		cmocka_unit_test(late_data_gets_a_warning),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
