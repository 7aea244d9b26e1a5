/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSpeed checkpoints whose files are missing, damaged, of two saves, or made to harm.
 * covers: deepspeed, load, model_file, optim_file, slice, layout
 */
#include "tests/unit/t.h"

#include "core/format/formats.h"
#include "core/store/index/index.h"
#include "core/store/version/version.h"
#include "tests/unit/t/format/ds.h"
#include "tests/unit/t/format/torch.h"

#define OPTIM(r) "zero_pp_rank_" #r "_mp_rank_00_optim_states.pt"
#define MODEL(r) "zero_pp_rank_" #r "_mp_rank_00_model_states.pt"

/* Over 4 ranks: 26 elements padded to 32, 8 a rank: a over 0 and 1, b over 1 and 2, c over 2
 * and 3. */
static const struct t_ds_param three[] = {
	{ "a", { 3, 5 }, 2, 0, false, NULL },
	{ "b", { 7 }, 1, 0, false, NULL },
	{ "c", { 2, 2 }, 2, 0, false, NULL },
	{ "ice", { 9 }, 1, 0, true, NULL },
};

static void cut_file(const struct t_dir *d, const char *name)
{
	t_dir_put(d, name, "PK\3\4 and no more", 16);
}

/* @good and @bad: letters of the parameters, and what @state of the bad ones says. */
static void expect(const struct t_ds_loaded *l, const char *state, const char *good,
		   const char *bad, const char *why)
{
	if (l->rc < 0)
		fail_msg("%s", l->err.msg);
	for (const char *p = good; *p; p++) {
		char key[40], name[2] = { *p, 0 };

		snprintf(key, sizeof(key), "%s.%s", state, name);
		t_ds_check_one(&l->s, key, state, name, *p == 'a' ? 15 : *p == 'b' ? 7 : 4);
	}
	for (const char *p = bad; *p; p++) {
		char key[40];
		const struct dcp_tensor *t;

		snprintf(key, sizeof(key), "%s.%c", state, *p);
		t = t_sink_tensor(&l->s, key);
		if (!t || !t->error)
			fail_msg("%s is not broken", key);
		if (!strstr(t->error, why))
			fail_msg("\"%s\" does not say \"%s\"", t->error, why);
		assert_int_equal(t->ndim, *p == 'b' ? 1 : 2);
	}
}

static void broken_file(const struct t_ds_loaded *l, const char *name, const char *why)
{
	const struct dcp_object *o = t_sink_object(&l->s, name);

	if (!o || !o->error)
		fail_msg("%s is not told as broken", name);
	if (!strstr(o->error, why))
		fail_msg("\"%s\" does not say \"%s\"", o->error, why);
}

static const struct t_ds zero1 = {
	.stage = 1, .world = 4, .param = three, .nparams = 3, .ngroups = 1, .lean = true
};
static const struct t_ds zero3 = {
	.stage = 3, .world = 4, .param = three, .nparams = 4, .ngroups = 1
};

static void missing_ranks_break_their_keys_only(void **state)
{
	struct t_ds_loaded l;

	(void)state;
	t_case("stage 1: whoever lies with it is broken");
	t_ds_make(&l, &zero1);
	t_dir_delete(&l.tree, OPTIM(2));
	t_ds_load(&l, NULL, false);
	expect(&l, "fp32", "a", "bc",
	       OPTIM(2) " is missing: rank 2 of 4 holds a part of it there");
	expect(&l, "exp_avg_sq", "a", "bc", "rank 2 of 4");
	t_ds_unload(&l);

	t_case("stage 1: the first");
	t_ds_make(&l, &zero1);
	t_dir_delete(&l.tree, OPTIM(0));
	t_ds_load(&l, NULL, false);
	expect(&l, "fp32", "bc", "a", OPTIM(0) " is missing: rank 0 of 4");
	t_ds_unload(&l);

	t_case("stage 3: all have a part on all ranks, if they are big enough");
	t_ds_make(&l, &zero3);
	t_dir_delete(&l.tree, OPTIM(3));
	t_ds_load(&l, NULL, false);
	expect(&l, "fp32", "", "abc", OPTIM(3) " is missing: rank 3 of 4");
	t_ds_check_one(&l.s, "fp32.ice", "module", "ice", 9);
	t_ds_unload(&l);

	t_case("stage 3: a model file holds a fragment of what was frozen");
	t_ds_make(&l, &zero3);
	t_dir_delete(&l.tree, MODEL(1));
	t_ds_load(&l, NULL, false);
	expect(&l, "fp32", "abc", "", "");
	assert_non_null(strstr(t_sink_tensor(&l.s, "fp32.ice")->error,
			       MODEL(1) " is missing: rank 1 of 4"));
	t_ds_unload(&l);

	t_case("stage 3: the file that would have named everything");
	t_ds_make(&l, &zero3);
	t_dir_delete(&l.tree, MODEL(0));
	t_ds_load(&l, NULL, false);
	expect(&l, "fp32", "abc", "", "");
	t_ds_unload(&l);

	t_case("not committed: nothing is shown");
	t_ds_make(&l, &zero1);
	t_dir_delete(&l.tree, OPTIM(3));
	t_ds_load(&l, NULL, true);
	assert_int_equal(l.rc, -EINVAL);
	t_assert_says(&l.err, OPTIM(3) " is missing and \"latest\" does not name this version");
	t_ds_unload(&l);
}

static void damaged_files_break_their_keys_only(void **state)
{
	struct t_ds_loaded l;

	(void)state;
	t_case("an optimizer file");
	t_ds_make(&l, &zero1);
	cut_file(&l.tree, OPTIM(1));
	t_ds_load(&l, NULL, false);
	expect(&l, "fp32", "c", "ab", "rank 1: " OPTIM(1) ": ");
	broken_file(&l, OPTIM(1), OPTIM(1) ": ");
	t_ds_unload(&l);

	t_case("the model file: flat tensors without names");
	t_ds_make(&l, &zero1);
	cut_file(&l.tree, "mp_rank_00_model_states.pt");
	t_ds_load(&l, NULL, false);
	assert_int_equal(l.rc, 0);
	broken_file(&l, "mp_rank_00_model_states.pt", "mp_rank_00_model_states.pt: ");
	assert_null(t_sink_tensor(&l.s, "fp32.a"));
	assert_int_equal(t_sink_tensor(&l.s,
				       OPTIM(3) ".optimizer_state_dict.base_optimizer_state"
						".state.0.exp_avg")
				 ->shape[0],
			 8);
	t_ds_unload(&l);

	t_case("all of them");
	t_ds_make(&l, &zero1);
	cut_file(&l.tree, "mp_rank_00_model_states.pt");
	for (int r = 0; r < 4; r++) {
		char name[60];

		snprintf(name, sizeof(name), "zero_pp_rank_%d_mp_rank_00_optim_states.pt", r);
		cut_file(&l.tree, name);
	}
	t_ds_load(&l, NULL, false);
	assert_int_equal(l.rc, -EBADMSG);
	t_assert_says(&l.err, "mp_rank_00_model_states.pt: ");
	t_ds_unload(&l);
}

static void disagreeing_ranks_are_refused(void **state)
{
	struct t_ds c = zero1;
	struct t_ds_loaded l;

	(void)state;
	t_case("a rank of a save by more ranks");
	c.wrong_count = 7;
	t_ds_make(&l, &c);
	t_ds_load(&l, NULL, false);
	expect(&l, "fp32", "c", "ab",
	       OPTIM(1) " was saved by 7 ranks, " OPTIM(0) " by 4: are they of one save?");
	broken_file(&l, OPTIM(1), "7 ranks");
	t_ds_unload(&l);

	t_case("ranks left over from a save by more");
	c = zero1;
	c.world = 2;
	t_ds_make(&l, &zero1);
	t_ds_write(&c, &l.tree, "");
	t_ds_load(&l, NULL, false);
	expect(&l, "fp32", "abc", "", "");
	broken_file(&l, OPTIM(2), "was saved by 4 ranks, " OPTIM(0) " by 2");
	t_ds_unload(&l);

	t_case("two files of one rank");
	t_ds_make(&l, &zero1);
	t_dir_text(&l.tree, "bf16_" OPTIM(1), "");
	cut_file(&l.tree, "bf16_" OPTIM(1));
	t_ds_load(&l, NULL, false);
	broken_file(&l, OPTIM(1), "are both of rank 1");
	t_ds_unload(&l);

	t_case("a flat tensor of another length");
	c = zero1;
	c.short_flat = 2;
	t_ds_make(&l, &c);
	t_ds_load(&l, NULL, false);
	expect(&l, "fp32", "c", "ab",
	       OPTIM(1) " (rank 1): its fp32 of group 0 has 7 elements, expected 8");
	t_ds_unload(&l);

	t_case("a state that one rank lacks");
	c = zero1;
	c.no_moment = 4;
	t_ds_make(&l, &c);
	t_ds_load(&l, NULL, false);
	expect(&l, "fp32", "abc", "", "");
	expect(&l, "exp_avg", "ab", "c", OPTIM(3) " (rank 3) has no exp_avg of group 0");
	t_ds_unload(&l);

	t_case("stage 3: model files that list different shapes");
	c = zero3;
	c.nparams = 3;
	c.wrong_shape = 3;
	t_ds_make(&l, &c);
	t_ds_load(&l, NULL, false);
	expect(&l, "fp32", "ab", "c",
	       MODEL(0) " and " MODEL(2) " disagree on param_shapes from \"c\" on");
	t_ds_unload(&l);

	t_case("stage 3: sizes that do not add up to the flat tensors");
	c = zero3;
	c.short_flat = 1;
	t_ds_make(&l, &c);
	t_ds_load(&l, NULL, false);
	expect(&l, "exp_avg", "", "abc", "has 6 elements, expected 7 by param_shapes");
	t_ds_unload(&l);
}

/* ---- invalid values ---- */

static void begin(struct t_stream *s)
{
	memset(s, 0, sizeof(*s));
	t_pk_start(&s->pk);
	t_pk_dict(&s->pk);
	t_pk_mark(&s->pk);
}

static void end(struct t_stream *s, const struct t_ds_loaded *l, const char *name)
{
	t_pk_setitems(&s->pk);
	t_stream_put(s, &l->tree, name);
}

/* {"optimizer_state_dict": {@key: @v}} */
static void put_optim(const struct t_ds_loaded *l, const char *key, void (*v)(struct dcp_buf *))
{
	struct t_stream *s = calloc(1, sizeof(*s));

	assert_non_null(s);
	begin(s);
	t_stream_key(s, "optimizer_state_dict");
	t_pk_dict(&s->pk);
	t_pk_mark(&s->pk);
	t_stream_key(s, key);
	v(&s->pk);
	t_pk_setitems(&s->pk);
	end(s, l, OPTIM(0));
	free(s);
}

static void push_list(struct dcp_buf *b)
{
	t_pk_list(b);
}

static void push_evil(struct dcp_buf *b)
{
	t_pk_global(b, "os", "system");
	t_pk_mark(b);
	t_pk_str(b, "touch PWNED");
	t_pk_tuple(b);
	t_pk_reduce(b);
}

/* {@key: @v, "global_steps": 3} */
static void put_model(const struct t_ds_loaded *l, const char *key, void (*v)(struct dcp_buf *))
{
	struct t_stream *s = calloc(1, sizeof(*s));

	assert_non_null(s);
	begin(s);
	t_stream_key(s, key);
	v(&s->pk);
	t_stream_key(s, "global_steps");
	t_pk_int(&s->pk, 3);
	end(s, l, "mp_rank_00_model_states.pt");
	free(s);
}

static void push_huge_shapes(struct dcp_buf *b)
{
	static const int64_t huge[] = { INT64_MAX, 3 }, big[] = { INT64_MAX / 32 };

	t_pk_list(b);
	t_pk_mark(b);
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "a");
	t_pk_dims(b, huge, 2);
	t_pk_str(b, "b");
	t_pk_dims(b, big, 1);
	t_pk_str(b, "d");
	t_pk_dims(b, big, 1);
	t_pk_str(b, "e");
	t_pk_str(b, "not a shape");
	t_pk_int(b, 5);
	t_pk_dims(b, big, 1);
	t_pk_setitems(b);
	t_pk_appends(b);
}

static void nonsense_in_states_is_refused(void **state)
{
	static const char *const optim_keys[] = {
		"single_partition_of_fp32_groups",
		"fp32_flat_groups",
		"partition_count",
		"base_optimizer_state",
		"param_alignment_paddings",
	};
	static const char *const model_keys[] = {
		"module",
		"optimizer",
		"param_shapes",
		"frozen_param_shapes",
		"buffer_names",
		"shared_params",
		"frozen_param_fragments",
		"client",
	};
	struct t_ds_loaded l;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(optim_keys); i++) {
		t_case(optim_keys[i]);
		t_ds_make(&l, &zero1);
		put_optim(&l, optim_keys[i], push_evil);
		t_ds_load(&l, NULL, false);
		expect(&l, "fp32", "bc", "a", OPTIM(0) " has no master weights");
		t_ds_unload(&l);
		t_ds_make(&l, &zero1);
		put_optim(&l, optim_keys[i], push_list);
		t_ds_load(&l, NULL, false);
		assert_int_equal(l.rc, 0);
		t_ds_unload(&l);
	}
	for (size_t i = 0; i < DCP_LEN(model_keys); i++) {
		t_case(model_keys[i]);
		t_ds_make(&l, &zero1);
		put_model(&l, model_keys[i], push_evil);
		t_ds_load(&l, NULL, false);
		assert_int_equal(l.rc, 0);
		assert_string_equal(
			t_sink_object(&l.s, "mp_rank_00_model_states.pt.global_steps")->json,
			"3");
		t_ds_unload(&l);
	}
	t_case("a stage 1 of old with no group");
	t_ds_make(&l, &zero1);
	put_optim(&l, "local_sub_partitions_of_fp32_groups", push_list);
	t_ds_load(&l, NULL, false);
	assert_int_equal(l.rc, 0);
	assert_non_null(t_sink_tensor(&l.s, "fp32.a")->error);
	t_ds_unload(&l);

	t_case("shapes that overflow");
	t_ds_make(&l, &zero1);
	put_model(&l, "param_shapes", push_huge_shapes);
	t_ds_load(&l, NULL, false);
	assert_int_equal(l.rc, 0);
	for (const char *p = "abde"; *p; p++) {
		char key[16];

		snprintf(key, sizeof(key), "fp32.%c", *p);
		assert_non_null(t_sink_tensor(&l.s, key)->error);
	}
	t_ds_unload(&l);
}

/* ---- a directory of versions ---- */

static void missing_ranks_leave_a_version_incomplete(void **state)
{
	struct dcp_store_opts opts = { 0 };
	struct dcp_version *v;
	struct dcp_scan scan;
	struct dcp_err err = { 0 };
	struct t_dir tree;

	(void)state;
	t_dir_make(&tree, "deepspeed_faults");
	t_ds_write(&zero1, &tree, "global_step9/");
	t_ds_write(&zero1, &tree, "global_step10/");
	t_ds_write(&zero1, &tree, "global_step20/");
	t_dir_text(&tree, "latest", "global_step10\n");
	t_dir_text(&tree, "zero_to_fp32.py", "print()\n");
	t_dir_delete(&tree, "global_step10/" OPTIM(1));
	t_dir_delete(&tree, "global_step20/" OPTIM(3));
	t_dir_delete(&tree, "global_step9/" OPTIM(0));
	if (dcp_scan(tree.root, &scan, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(scan.n, 3);

	t_case("a rank is missing, and latest names another version");
	assert_string_equal(scan.found[0].name, "global_step9");
	assert_false(scan.found[0].complete);
	assert_string_equal(scan.found[0].why,
			    OPTIM(0) " is missing: the save was interrupted or is still "
				     "running");

	t_case("the same in the version that latest names: keys are broken");
	assert_string_equal(scan.found[1].name, "global_step10");
	assert_true(scan.found[1].complete);
	if (dcp_version_open(tree.root, &scan.found[1], &opts, &v, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(dcp_index_counts(dcp_version_index(v))->broken, 6);
	dcp_version_close(v);

	t_case("ranks are missing, and no name tells so");
	assert_string_equal(scan.found[2].name, "global_step20");
	assert_true(scan.found[2].complete);
	assert_int_equal(dcp_version_open(tree.root, &scan.found[2], &opts, &v, &err), -EINVAL);
	t_assert_says(&err, OPTIM(3) " is missing and \"latest\" does not name this version");
	dcp_scan_finish(&scan);

	t_case("a version by itself: whatever is there is shown");
	if (dcp_scan(t_dir_path(&tree, "global_step9"), &scan, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(scan.n, 1);
	assert_true(scan.single && scan.found[0].complete);
	if (dcp_version_open(t_dir_path(&tree, "global_step9"), &scan.found[0], &opts, &v,
			     &err) < 0)
		fail_msg("%s", err.msg);
	dcp_version_close(v);
	dcp_scan_finish(&scan);

	t_case("a stray file beside the versions does not hide them");
	t_dir_text(&tree, OPTIM(0), "");
	if (dcp_scan(tree.root, &scan, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(scan.n, 3);
	assert_false(scan.single);
	dcp_scan_finish(&scan);
	t_dir_remove(&tree);
}

/* Whatever call of the sink fails, that is the end of it. */
static void failures_of_the_sink_are_returned(void **state)
{
	struct t_ds_loaded l;

	(void)state;
	for (size_t at = 1;; at++) {
		struct dcp_load in = { .dir = &l.dir, .sink = &l.s.sink };

		t_ds_make(&l, &zero3);
		assert_int_equal(dcp_dir_open(l.tree.root, &l.dir, NULL), 0);
		t_sink_init(&l.s, &l.dir);
		l.s.fail_at = at;
		l.rc = dcp_format_deepspeed.load(&in, &l.err);
		if (l.rc == 0 && l.s.calls < at) {
			t_ds_unload(&l);
			break;
		}
		assert_int_equal(l.rc, -ENOSPC);
		assert_int_equal(l.s.calls, at);
		t_ds_unload(&l);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(missing_ranks_break_their_keys_only),
		cmocka_unit_test(damaged_files_break_their_keys_only),
		cmocka_unit_test(disagreeing_ranks_are_refused),
		cmocka_unit_test(nonsense_in_states_is_refused),
		cmocka_unit_test(missing_ranks_leave_a_version_incomplete),
		cmocka_unit_test(failures_of_the_sink_are_returned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
