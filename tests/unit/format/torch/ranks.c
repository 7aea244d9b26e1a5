/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One torch.save file a rank, and the telling of a torch.save stream.
 *
 * covers: state, torch
 */
#include "tests/unit/t.h"

#include "core/format/format.h"
#include "core/format/torch/torch.h"
#include "core/origin/dir/dir.h"
#include "core/origin/origin.h"
#include "core/parse/torch/torch.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/manifest.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/pickle.h"
#include "tests/unit/t/parse/zip.h"
#include "tests/unit/t/sink.h"

static void golden_ranks_are_read(void **state)
{
	struct dcp_err err = { 0 };
	enum dcp_match match;
	struct dcp_dir dir;
	struct t_sink s;
	struct dcp_load in = { .dir = &dir, .sink = &s.sink };

	(void)state;
	assert_int_equal(dcp_dir_open("tests/golden/dcp-experimental/ckpt/step-9", &dir, NULL),
			 0);
	t_sink_init(&s, &dir);
	if (dcp_format_probe(&dir, &match, NULL, 0)->load(&in, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(
		t_manifest_check(&s, "dcp-experimental", "step-9/checkpoint_0.pt", "rank0."),
		3);
	assert_int_equal(
		t_manifest_check(&s, "dcp-experimental", "step-9/checkpoint_1.pt", "rank1."),
		3);
	assert_string_equal(t_sink_tensor(&s, "rank1.model.w")->path[0], "rank1");
	assert_string_equal(t_sink_fact(&s, "ranks"), "2");
	t_sink_finish(&s);
	dcp_dir_close(&dir);
}

/* What real ranks wrote: every version of the folder, and nothing else. */
static void golden_version(const char *folder, const char *name, int complete)
{
	char path[256];
	struct dcp_err err = { 0 };
	enum dcp_match match;
	struct dcp_dir dir;
	struct t_sink s;
	struct dcp_load in = { .dir = &dir, .sink = &s.sink };

	t_case(name);
	assert_true(complete);
	snprintf(path, sizeof(path), "tests/golden/%s/ckpt/%s", folder, name);
	assert_int_equal(dcp_dir_open(path, &dir, NULL), 0);
	t_sink_init(&s, &dir);
	if (dcp_format_probe(&dir, &match, NULL, 0)->load(&in, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(match, DCP_MATCH_YES);
	t_manifest_check(&s, folder, name, "");
	t_sink_finish(&s);
	dcp_dir_close(&dir);
}

static void golden_shards_are_placed(void **state)
{
	(void)state;
	t_manifest_each("torch-ranks", golden_version);
}

static void rank_names_are_known(void **state)
{
	/* clang-format off */
	static const struct {
		const char *file;
		int set; /* characters; -1: not a rank's */
		uint64_t rank, world;
	} rows[] = {
		{ "checkpoint_0.pt", 10, 0, 0 },
		{ "checkpoint_12.pt", 10, 12, 0 },
		{ "model_world_size_8_rank_3.pt", 18, 3, 8 },
		{ "extra_state_world_size_16_rank_15.pt", 25, 15, 16 },
		{ "model_world_size_8_rank_8.pt", -1, 0, 0 },
		{ "pytorch_model_fsdp_rank1.bin", 18, 1, 0 },
		{ "pytorch_model_fsdp_0_rank1.bin", 20, 1, 0 },
		{ "rank_2.pt", 0, 2, 0 },
		{ "rank2.pth", 0, 2, 0 },
		{ "consolidated.07.pth", 12, 7, 0 },
		{ "consolidated.7.pth", -1, 0, 0 },
		{ "consolidated.07.pt", -1, 0, 0 },
		{ "ep1-ba6-rank0.pt", -1, 0, 0 },
		{ "zero_pp_rank_0_mp_rank_00_optim_states.pt", -1, 0, 0 },
		{ "mp_rank_00.pt", -1, 0, 0 },
		{ "model_0.pt", -1, 0, 0 },
		{ "checkpoint_01.pt", -1, 0, 0 },
		{ "checkpoint_.pt", -1, 0, 0 },
		{ "rank_99999999999999999999.pt", -1, 0, 0 },
		{ "rank_2.txt", -1, 0, 0 },
		{ ".rank_2.pt", -1, 0, 0 },
		{ "frank2.pt", -1, 0, 0 },
	};
	/* clang-format on */

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_rank_name n;
		bool is = dcp_rank_name(rows[i].file, &n);

		t_case(rows[i].file);
		assert_int_equal(is, rows[i].set >= 0);
		if (!is)
			continue;
		assert_int_equal(n.len, rows[i].set);
		assert_int_equal(n.rank, rows[i].rank);
		assert_int_equal(n.world, rows[i].world);
	}
}

/* A rank's file that is damaged breaks the tensors it has a part of; the others are read. */
static void a_damaged_rank_breaks_its_keys_only(void **state)
{
	const char *root = "tests/golden/torch-ranks/ckpt/1-fsdp";
	struct dcp_err err = { 0 };
	enum dcp_match match;
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;
	struct dcp_load in = { .dir = &dir, .sink = &s.sink };

	(void)state;
	t_dir_make(&tree, "torch_ranks");
	for (int r = 0; r < 4; r++) {
		char path[256], name[64];
		size_t n;
		char *bytes;

		snprintf(name, sizeof(name), "model_world_size_4_rank_%d.pt", r);
		snprintf(path, sizeof(path), "%s/%s", root, name);
		bytes = t_slurp(path, &n);
		t_dir_put(&tree, name, bytes, r == 3 ? n / 2 : n);
		free(bytes);
	}
	assert_int_equal(dcp_dir_open(tree.root, &dir, NULL), 0);
	t_sink_init(&s, &dir);
	if (dcp_format_probe(&dir, &match, NULL, 0)->load(&in, &err) < 0)
		fail_msg("%s", err.msg);
	assert_non_null(
		strstr(t_sink_tensor(&s, "w1")->error,
		       "10 of 70 elements are missing: model_world_size_4_rank_3.pt: "));
	/* rank 3 had no rows of it */
	assert_null(t_sink_tensor(&s, "norm")->error);
	assert_null(t_sink_tensor(&s, "tiny")->error);
	assert_non_null(t_sink_object(&s, "rank3")->error);
	assert_non_null(t_sink_tensor(&s, "rank2.inv_freq"));
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

/* torch.save({"a": t, "b": t, "v": view of its second half, "n": [t, (t, 1)], "x": 5}) */
static void stream(struct t_zip *z)
{
	static const char data[24] = "............ABCDEFGHIJK";
	static const int64_t shape[] = { 3, 2 }, stride[] = { 1, 3 };
	static const int64_t half[] = { 3 }, one[] = { 1 };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	const char *const keys[] = { "a", "b" };

	*z = (struct t_zip){ .torch = true };
	t_pk_start(&b);
	t_pk_dict(&b);
	t_pk_mark(&b);
	for (int i = 0; i < 2; i++) {
		t_pk_str(&b, keys[i]);
		t_pk_tensor(&b, "FloatStorage", "0", 6, 0, shape, stride, 2);
	}
	t_pk_str(&b, "v");
	t_pk_tensor(&b, "FloatStorage", "0", 6, 3, half, one, 1);
	t_pk_str(&b, "t");
	t_pk_mark(&b);
	t_pk_tensor(&b, "FloatStorage", "0", 6, 3, half, one, 1);
	t_pk_int(&b, 1);
	t_pk_tuple(&b);
	t_pk_str(&b, "gone");
	t_pk_tensor(&b, "FloatStorage", "7", 6, 0, shape, stride, 2);
	t_pk_str(&b, "x");
	t_pk_int(&b, 5);
	t_pk_setitems(&b);
	t_pk_stop(&b);
	t_zip_add(z, "archive/data.pkl", b.p, b.n);
	t_zip_add(z, "archive/byteorder", "little", 6);
	t_zip_add(z, "archive/data/0", data, sizeof(data));
	t_zip_add(z, "archive/version", "3\n", 2);
	t_zip_end(z);
}

static bool skip_v(void *ctx, const char *key)
{
	(void)ctx;
	return strcmp(key, "p.v") == 0;
}

static void a_state_is_emitted_below_its_prefix(void **state)
{
	const char *prefix[] = { "p" };
	const struct dcp_tensor *t;
	const struct dcp_object *o;
	struct dcp_err err = { 0 };
	struct dcp_torch *torch;
	struct dcp_source src;
	struct t_sink s;
	struct t_zip z;
	struct dcp_torch_state ts = { .prefix = prefix, .nprefix = 1, .file = 3, .base = 1000 };

	(void)state;
	stream(&z);
	src = dcp_source_mem(z.b.p, z.b.n);
	if (dcp_torch_open(&src, 0, &torch, &err) < 0)
		fail_msg("%s", err.msg);
	ts.t = torch;

	t_case("each leaf on its own");
	t_sink_init(&s, NULL);
	ts.sink = &s.sink;
	assert_int_equal(dcp_torch_state_emit(&ts), 0);
	t = t_sink_tensor(&s, "p.a");
	assert_null(t->error);
	assert_null(t->alias_of);
	assert_string_equal(t->path[0], "p");
	assert_string_equal(t->path[1], "a");
	assert_int_equal(t->pieces[0].file, 3);
	assert_int_equal(t->pieces[0].off, 1000 + z.data[2]);
	assert_int_equal(t->pieces[0].nbytes, 24);
	assert_int_equal(t->pieces[0].stride[1], 3);
	assert_string_equal(t_sink_tensor(&s, "p.b")->alias_of, "p.a");
	t = t_sink_tensor(&s, "p.v");
	assert_null(t->alias_of); /* another part of the same storage */
	assert_int_equal(t->pieces[0].off, 1000 + z.data[2] + 12);
	assert_int_equal(t->pieces[0].nbytes, 12);
	assert_string_equal(t_sink_tensor(&s, "p.t.0")->alias_of, "p.v");
	o = t_sink_object(&s, "p.t");
	assert_string_equal(o->json, "[{\"$tensor\":\"p.t.0\"},1]");
	assert_non_null(t_sink_tensor(&s, "p.gone")->error);
	assert_string_equal(t_sink_object(&s, "p.x")->json, "5");
	t_sink_finish(&s);

	t_case("as one object, one tensor emitted by another adapter");
	t_sink_init(&s, NULL);
	ts.skip = skip_v;
	assert_int_equal(dcp_torch_state_emit_whole(&ts, "p"), 0);
	assert_int_equal(s.nobjects, 1);
	assert_string_equal(s.object[0].type, "dict");
	assert_null(t_sink_tensor(&s, "p.v"));
	assert_null(t_sink_tensor(&s, "p.t.0")->alias_of);
	assert_int_equal(s.ntensors, 4);
	t_sink_finish(&s);

	t_case("inside something compressed");
	t_sink_init(&s, NULL);
	ts.sealed = "is sealed";
	assert_int_equal(dcp_torch_state_emit(&ts), 0);
	assert_string_equal(t_sink_tensor(&s, "p.a")->error, "is sealed");
	assert_int_equal(t_sink_tensor(&s, "p.a")->npieces, 0);
	t_sink_finish(&s);

	dcp_torch_close(torch);
	t_zip_free(&z);
}

/* A rank whose file is damaged does not hide the others; when all are, there is nothing. */
static void damaged_ranks_are_refused(void **state)
{
	struct t_dir tree;
	struct t_zip z;

	(void)state;
	stream(&z);
	t_dir_make(&tree, "torch_ranks");
	t_dir_put(&tree, "checkpoint_0.pt", "what is this", 12);
	t_dir_put(&tree, "checkpoint_1.pt", z.b.p, z.b.n);
	for (int round = 0; round < 2; round++) {
		struct dcp_err err = { 0 };
		enum dcp_match match;
		struct dcp_dir dir;
		struct t_sink s;
		struct dcp_load in = { .dir = &dir, .sink = &s.sink };
		int rc;

		assert_int_equal(dcp_dir_open(tree.root, &dir, NULL), 0);
		t_sink_init(&s, &dir);
		rc = dcp_format_probe(&dir, &match, NULL, 0)->load(&in, &err);
		if (round == 0) {
			assert_int_equal(rc, 0);
			assert_non_null(t_sink_tensor(&s, "rank1.a"));
			assert_non_null(
				strstr(t_sink_object(&s, "rank0")->error, "checkpoint_0.pt: "));
		} else {
			assert_true(rc < 0);
			t_assert_says(&err, "checkpoint_1.pt: ");
		}
		t_sink_finish(&s);
		dcp_dir_close(&dir);
		t_dir_put(&tree, "checkpoint_1.pt", z.b.p, z.b.n / 2);
	}
	t_dir_remove(&tree);
	t_zip_free(&z);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_ranks_are_read),
		cmocka_unit_test(golden_shards_are_placed),
		cmocka_unit_test(rank_names_are_known),
		cmocka_unit_test(a_damaged_rank_breaks_its_keys_only),
		cmocka_unit_test(a_state_is_emitted_below_its_prefix),
		cmocka_unit_test(damaged_ranks_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
