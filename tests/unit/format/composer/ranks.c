/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file a rank: tensors in parts are put together, and what is missing breaks only what needs
 * it.
 * covers: composer
 */
#include "tests/unit/t.h"

#include "core/format/format.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/format/composer.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/sink.h"

struct opened {
	struct t_sink s;
	struct dcp_dir dir;
	struct dcp_err err;
	int rc;
};

static void load(struct opened *o, const char *path)
{
	enum dcp_match match;
	struct dcp_load in = { .dir = &o->dir, .formats = dcp_formats, .sink = &o->s.sink };
	const struct dcp_format *format;

	*o = (struct opened){ .rc = 0 };
	assert_int_equal(dcp_dir_open(path, &o->dir, NULL), 0);
	t_sink_init(&o->s, &o->dir);
	format = dcp_format_probe(&o->dir, &match, NULL, 0);
	assert_string_equal(format->name, "composer");
	o->rc = format->load(&in, &o->err);
}

static void finish(struct opened *o)
{
	t_sink_finish(&o->s);
	dcp_dir_close(&o->dir);
}

static void check_w(const struct t_sink *s, int64_t rows)
{
	const struct dcp_tensor *w = t_sink_tensor(s, "state.model.w");
	struct dcp_err err = { 0 };
	float *got;
	size_t n;

	assert_non_null(w);
	assert_string_equal(w->dtype_name, "F32");
	assert_int_equal(w->ndim, 2);
	assert_int_equal(w->shape[0], rows);
	assert_string_equal(w->path[2], "w");
	got = (float *)(void *)t_sink_read(s, w, &n, &err);
	if (!got)
		fail_msg("%s", err.msg);
	assert_int_equal(n, rows * 2 * (int64_t)sizeof(*got));
	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < 2; j++)
			assert_true(got[i * 2 + j] == (float)(10 * i + j));
	free(got);
}

static void ranks_are_put_together(void **state)
{
	static const struct {
		int64_t ranks, rows;
	} shapes[] = { { 1, 4 }, { 2, 5 }, { 3, 7 }, { 4, 9 }, { 4, 3 }, { 7, 100 } };

	(void)state;
	for (int kind = 0; kind < 4; kind++)
		for (size_t i = 0; i < DCP_LEN(shapes); i++) {
			struct t_composer_rank k = { .ranks = shapes[i].ranks,
						     .rows = shapes[i].rows,
						     .old = kind % 2,
						     .by_column = kind / 2 };
			struct opened o;
			struct t_dir to;
			char count[8];

			print_message("           %d ranks, %d rows\n", (int)k.ranks,
				      (int)k.rows);
			t_dir_make(&to, "composer");
			for (k.r = 0; k.r < k.ranks; k.r++)
				t_composer_rank_file(&to, &k);
			load(&o, to.root);
			if (o.rc < 0)
				fail_msg("%s", o.err.msg);
			check_w(&o.s, k.rows);
			assert_int_equal(o.s.ntensors, 2);
			assert_null(t_sink_tensor(&o.s, "state.model.b")->error);
			assert_int_equal(o.s.nobjects, k.ranks + 1);
			assert_string_equal(t_sink_object(&o.s, "state.run_name")->json,
					    "\"tiny\"");
			assert_string_equal(t_sink_object(&o.s, "state.only0")->json, "0");
			snprintf(count, sizeof(count), "%d", (int)k.ranks);
			if (k.ranks > 1)
				assert_string_equal(t_sink_fact(&o.s, "ranks"), count);
			finish(&o);
			t_dir_remove(&to);
		}
}

/* Broken is what needs the rank; all else can be read. */
static void faulty_ranks_break_their_keys_only(void **state)
{
	static const struct {
		const char *what, *says;
		struct t_composer_rank one; /* what rank 1 does otherwise */
		const char *bytes;          /* or its whole file */
		bool gone;
	} cases[] = {
		{ "no file",
		  "6 of 14 elements are missing: ep0-ba2-rank1.pt is not there",
		  { 0 },
		  NULL,
		  true },
		{ "a damaged file",
		  "6 of 14 elements are missing: ep0-ba2-rank1.pt: not a torch.save stream",
		  { 0 },
		  "what is this",
		  false },
		{ "another size",
		  "ep0-ba2-rank0.pt and ep0-ba2-rank1.pt disagree about its dtype or shape",
		  { .more_rows = 1 },
		  NULL,
		  false },
		{ "another dtype",
		  "ep0-ba2-rank1.pt: ShardedTensor of BF16 with a local part of F32",
		  { .dtype = "bfloat16" },
		  NULL,
		  false },
		{ "another shape than it says",
		  "ep0-ba2-rank1.pt: ShardedTensor whose local shard has another shape",
		  { .bad_sizes = 1 },
		  NULL,
		  false },
		{ "no state",
		  "ep0-ba2-rank1.pt: ShardedTensor whose state has no metadata",
		  { .no_state = true },
		  NULL,
		  false },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct t_composer_rank k = { .ranks = 3, .rows = 7 };
		const struct dcp_tensor *w;
		struct opened o;
		struct t_dir to;

		t_case(cases[i].what);
		t_dir_make(&to, "composer");
		for (k.r = 0; k.r < 3; k.r++) {
			struct t_composer_rank mine = k.r == 1 ? cases[i].one : k;

			mine.r = k.r;
			mine.ranks = 3;
			mine.rows = 7;
			if (k.r != 1 || (!cases[i].gone && !cases[i].bytes))
				t_composer_rank_file(&to, &mine);
		}
		if (cases[i].bytes)
			t_dir_text(&to, "ep0-ba2-rank1.pt", cases[i].bytes);
		load(&o, to.root);
		assert_int_equal(o.rc, 0);
		w = t_sink_tensor(&o.s, "state.model.w");
		assert_non_null(w->error);
		if (!strstr(w->error, cases[i].says))
			fail_msg("\"%s\" does not say \"%s\"", w->error, cases[i].says);
		assert_null(t_sink_tensor(&o.s, "state.model.b")->error);
		assert_string_equal(t_sink_object(&o.s, "state.only2")->json, "2");
		if (cases[i].bytes)
			assert_non_null(strstr(t_sink_object(&o.s, "ep0-ba2-rank1.pt")->error,
					       "not a torch.save stream"));
		finish(&o);
		t_dir_remove(&to);
	}
}

static void unreadable_ranks_are_refused(void **state)
{
	struct opened o;
	struct t_dir to;

	(void)state;
	t_dir_make(&to, "composer");
	t_dir_text(&to, "ba2-rank0.pt", "what is this");
	t_dir_text(&to, "ba2-rank1.pt", "");
	load(&o, to.root);
	assert_true(o.rc < 0);
	t_assert_says(&o.err, "ba2-rank1.pt: empty");
	finish(&o);
	t_dir_remove(&to);
}

/* The sink's failures end the load at once, wherever they come. */
static void the_sink_fails(void **state)
{
	struct t_composer_rank k = { .ranks = 2, .rows = 5 };
	struct dcp_dir dir;
	enum dcp_match match;
	struct t_dir to;
	size_t calls;

	(void)state;
	t_dir_make(&to, "composer");
	for (k.r = 0; k.r < 2; k.r++)
		t_composer_rank_file(&to, &k);
	assert_int_equal(dcp_dir_open(to.root, &dir, NULL), 0);
	for (size_t at = 0;; at++) {
		struct t_sink s;
		struct dcp_load in = { .dir = &dir, .formats = dcp_formats, .sink = &s.sink };
		int rc;

		t_sink_init(&s, &dir);
		s.fail_at = at;
		rc = dcp_format_probe(&dir, &match, NULL, 0)->load(&in, NULL);
		if (at == 0)
			calls = s.calls;
		assert_int_equal(rc, at && at <= calls ? -ENOSPC : 0);
		if (at)
			assert_int_equal(s.calls, at <= calls ? at : calls);
		t_sink_finish(&s);
		if (at > calls)
			break;
	}
	dcp_dir_close(&dir);
	t_dir_remove(&to);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks_are_put_together),
		cmocka_unit_test(faulty_ranks_break_their_keys_only),
		cmocka_unit_test(unreadable_ranks_are_refused),
		cmocka_unit_test(the_sink_fails),
	};

	return cmocka_run_group_tests_name("composer_ranks", tests, NULL, NULL);
}
