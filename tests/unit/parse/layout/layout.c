/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts as a thing: which rule a key finds, spellings, printing, meshes, the built-in ones,
 * limits.
 * covers: model/layout/layout
 */
#include "tests/unit/t/model/layout.h"
#include "tests/unit/t/random.h"

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/model/tensor.h"
#include "core/parse/layout/layout.h"

static struct dcp_layout *named(const char *name)
{
	struct dcp_layout *l = NULL;
	struct dcp_err err = { 0 };

	if (dcp_layout_named(name, &l, &err) < 0)
		fail_msg("%s", err.msg);
	return l;
}

/* Printing @l and parsing that gives an equal layout with the same print. */
static void check_print(const struct dcp_layout *l)
{
	dcp_auto_buf struct dcp_buf once = DCP_BUF_INIT, twice = DCP_BUF_INIT;
	struct dcp_layout *again;

	assert_int_equal(dcp_layout_print(l, &once), 0);
	again = t_layout(once.p);
	assert_int_equal(dcp_layout_print(again, &twice), 0);
	assert_string_equal(once.p, twice.p);
	assert_true(dcp_layout_hash(l) == dcp_layout_hash(again));
	dcp_layout_free(again);
}

/* clang-format off */
static const struct {
	const char *glob, *key;
	bool match;
} globs[] = {
	{ "w", "w", true },                     { "w", "ww", false },
	{ "*", "", true },                      { "*", "a.b", true },
	{ "**", "a.b", true },                  { "a*", "a", true },
	{ "*.weight", "x.weight", true },       { "*.weight", ".weight", true },
	{ "*.weight", "weight", false },        { "*.weight", "x.weight.y", false },
	{ "*.q.*", "a.q.b", true },             { "*.q.*", "a.qq.b", false },
	{ "a*b*c", "abc", true },               { "a*b*c", "axbxbxc", true },
	{ "a*b*c", "axcxb", false },            { "*ab*ab", "abxab", true },
	{ "*ab*ab", "ab", false },              { "*aab", "aaab", true },
	{ "?", "a", true },                     { "?", "", false },
	{ "a?c", "abc", true },                 { "a?c", "ac", false },
	{ "*?b", "ab", true },                  { "*?b", "b", false },
	{ "l.{3}", "l.3", true },               { "l.{3}", "l.03", true },
	{ "l.{3}", "l.33", false },             { "l.{3}", "l.", false },
	{ "l.{0-15}.w", "l.15.w", true },       { "l.{0-15}.w", "l.16.w", false },
	{ "l.{16-}.w", "l.16.w", true },        { "l.{16-}.w", "l.15.w", false },
	{ "l.{*}.w", "l.7.w", true },           { "l.{*}.w", "l.x.w", false },
	{ "*{1}", "l.1", true },                { "*{1}", "l.11", false },
	{ "*{1}", "l11.1", true },              { "*.{2}.*", "a.1.2.b", true },
	{ "*.{2}.*", "a.1.3.b", false },        { "*.{*}.*.{5}.*", "l.2.e.4.e.5.w", true },
	{ "{*}", "99999999999999999999", false },
	{ "\\*", "*", true },                   { "\\*", "a", false },
	{ "a\\{b", "a{b", true },               { "w\\(0\\)\\@x", "w(0)@x", true },
	{ "\\drop", "drop", true },             { "a\\ b", "a b", true },
	{ "\xc3\xa4*", "\xc3\xa4.w", true },    { "*\xff", "a\xff", true },
	{ "x#y", "x#y", true },
};

static const struct {
	const char *what, *text, *print;
} prints[] = {
	{ "one mesh dimension needs no name", "mesh tp=2\n* shard(0)", "mesh tp=2\n* shard(0)@tp\n" },
	{ "copies are left out", "mesh dp=2 tp=2\n* replicate@dp shard(0)@tp", "mesh dp=2 tp=2\n* shard(0)@tp\n" },
	{ "nothing but copies", "mesh dp=2 tp=2\n* replicate", "mesh dp=2 tp=2\n* replicate\n" },
	{ "comments, blanks, no last newline", "# a\n\n mesh dp=2   # b\nmesh tp=2\r\n\t* \t drop # c", "mesh dp=2 tp=2\n* drop\n" },
	{ "a mark in front", "\xef\xbb\xbfmesh tp=2\n* replicate", "mesh tp=2\n* replicate\n" },
	{ "every word of shard",
	  "mesh tp=2\na shard( 0 ,balanced)\nb shard(dim=-1, even)\nc shard(0,last)\nd shard(0,pad,optional)\ne shard(0, sizes = [ 1 , 2 ])\nf shard(0,groups=[2,1],even)",
	  "mesh tp=2\na shard(0, balanced)@tp\nb shard(-1, even)@tp\nc shard(0, last)@tp\nd shard(0, pad, optional)@tp\ne shard(0, sizes=[1,2])@tp\nf shard(0, even, groups=[2,1])@tp\n" },
	{ "the other placements",
	  "mesh pp=4\na strided(0,sf=3)\nb interleave(1)\nc interleave(1,block=4)\nd flat\ne flat(pad=8,optional)\nf flat(tight)\ng flat(even)\nh colwise\ni rowwise(groups=[1,1])\nj.{*} stage(layers=9,balanced)\nk only( pp = 0-1 | -1 )",
	  "mesh pp=4\na strided(0, 3)@pp\nb interleave(1, 1)@pp\nc interleave(1, 4)@pp\nd flat@pp\ne flat(pad=8, optional)@pp\nf flat(tight)@pp\ng flat(even)@pp\nh colwise@pp\ni rowwise(groups=[1,1])@pp\nj.{*} stage(9, balanced)@pp\nk only(pp=0-1|-1)\n" },
	{ "only of several", "mesh a=2 b=3 c=4\n* only(b=1, a=0) shard(0)@c", "mesh a=2 b=3 c=4\n* only(b=1, a=0) shard(0)@c\n" },
	{ "torch", "mesh a=2 b=2\n* [Replicate(), _StridedShard(dim=1, sf=2)]", "mesh a=2 b=2\n* strided(1, 2)@b\n" },
	{ "paddle", "mesh a=2 b=2\n* dims_mapping=[1,-1,0]\nx [0, -1]", "mesh a=2 b=2\n* shard(0, last)@b shard(2, last)@a\nx shard(0, last)@a\n" },
	{ "paddle 3.3", "mesh a=2 b=2\n* dims_mapping=[[1, 0], []]\nx [[], [0]]\ny [[0],-1,[1]]", "mesh a=2 b=2\n* shard(0, last)@b shard(0, last)@a\nx shard(1, last)@a\ny shard(0, last)@a shard(2, last)@b\n" },
	{ "paddle's none", "mesh a=2 b=2\n* dims_mapping=[]\nx [-1]", "mesh a=2 b=2\n* replicate\nx replicate\n" },
	{ "tp_plan",
	  "{\"layers.*.mlp\": \"gather\", \"layers.*.mlp.up\": \"colwise_rep\",\n \"lm_head\": \"colwise\"}",
	  "mesh tp=1\n"
	  "layers.{*}.mlp.up layers.{*}.mlp.up.* *.layers.{*}.mlp.up *.layers.{*}.mlp.up.* colwise@tp\n"
	  "layers.{*}.mlp layers.{*}.mlp.* *.layers.{*}.mlp *.layers.{*}.mlp.* replicate\n"
	  "lm_head lm_head.* *.lm_head *.lm_head.* colwise@tp\n"
	  "* replicate\n" },
	{ "tp_plan with a mesh, placements and a list",
	  "{\"w\": \"shard(0)@dp rowwise@tp\", \"drop\": [-1, 0], \"mesh\": \"dp=2 tp=4\", \"v\": \"packed_colwise\"}",
	  "mesh dp=2 tp=4\n"
	  "\\drop \\drop.* *.\\drop *.\\drop.* shard(1, last)@dp\n"
	  "v v.* *.v *.v.* colwise(groups=[1,1])@tp\n"
	  "w w.* *.w *.w.* shard(0)@dp rowwise@tp\n"
	  "* replicate\n" },
	{ "ep_plan beside a tp_plan",
	  "{\"mesh\": \"ep=2 tp=4\", \"x\": \"ep_dispatch_experts\", \"x.w\": \"grouped_gemm\", \"e\": \"embedding_colwise\"}",
	  "mesh ep=2 tp=4\n"
	  "x.w x.w.* *.x.w *.x.w.* shard(0, even, optional)@ep\n"
	  "e e.* *.e *.e.* shard(1, optional)@tp\n"
	  "x x.* *.x *.x.* replicate\n"
	  "* replicate\n" },
	{ "ep_plan over the ranks of tp", "{\"mesh\": \"dp=2 tp=4\", \"w\": \"grouped_gemm\"}",
	  "mesh dp=2 tp=4\nw w.* *.w *.w.* shard(0, even, optional)@tp\n* replicate\n" },
};
/* clang-format on */

static void globs_match_keys(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(globs); i++) {
		struct dcp_layout_rule rule;
		struct dcp_layout *l;
		char text[128];

		t_case(globs[i].glob);
		snprintf(text, sizeof(text), "mesh tp=2\n%s replicate\n", globs[i].glob);
		l = t_layout(text);
		assert_int_equal(dcp_layout_rule(l, globs[i].key, &rule), globs[i].match);
		check_print(l);
		dcp_layout_free(l);
	}
}

/* The plainest matcher there is. */
static bool plain_match(const char *glob, const char *key)
{
	if (*glob == '\0')
		return *key == '\0';
	if (*glob == '*')
		return plain_match(glob + 1, key) || (*key && plain_match(glob, key + 1));
	return *key && (*glob == '?' || *glob == *key) && plain_match(glob + 1, key + 1);
}

static void random_globs_match_as_plainly_written(void **state)
{
	uint64_t seed = 1;
	size_t hits = 0;

	(void)state;
	for (int round = 0; round < 20000; round++) {
		char glob[9] = "", key[13] = "", text[64];
		struct dcp_layout_rule rule;
		struct dcp_layout *l;
		bool want;

		for (size_t i = 0; i < sizeof(glob) + sizeof(key) - 2; i++) {
			if (i < sizeof(glob) - 1)
				glob[i] = "ab*?.*ab"[t_random(&seed, 8)];
			else
				key[i - sizeof(glob) + 1] = "ab.a"[t_random(&seed, 4)];
		}
		glob[1 + t_random(&seed, 8)] = '\0';
		key[t_random(&seed, 13)] = '\0';
		snprintf(text, sizeof(text), "mesh tp=2\n%s drop", glob);
		l = t_layout(text);
		want = plain_match(glob, key);
		hits += want;
		if (dcp_layout_rule(l, key, &rule) != want)
			fail_msg("%s against %s", glob, key);
		dcp_layout_free(l);
	}
	assert_true(hits > 1000 && hits < 19000);
}

static void layouts_are_printed(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(prints); i++) {
		dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
		struct dcp_layout *l;

		t_case(prints[i].what);
		l = t_layout(prints[i].text);
		assert_int_equal(dcp_layout_print(l, &out), 0);
		assert_string_equal(out.p, prints[i].print);
		check_print(l);
		dcp_layout_free(l);
	}
}

static void equal_layouts_have_equal_hashes(void **state)
{
	struct dcp_layout *a = t_layout("mesh dp=2 tp=4\n*.w [Shard(0), Replicate()]\n");
	struct dcp_layout *b =
		t_layout("mesh dp=2 tp=4 # x\n\n*.w  shard(0)@dp replicate@tp\n");
	struct dcp_layout *c = t_layout("mesh dp=4 tp=2\n*.w shard(0)@dp\n");
	struct dcp_layout *d = t_layout("mesh dp=2 tp=4\n*.w shard(0)@tp\n");

	(void)state;
	assert_true(dcp_layout_hash(a) == dcp_layout_hash(b));
	assert_true(dcp_layout_hash(a) != dcp_layout_hash(c));
	assert_true(dcp_layout_hash(a) != dcp_layout_hash(d));
	dcp_layout_free(a);
	dcp_layout_free(b);
	dcp_layout_free(c);
	dcp_layout_free(d);
	dcp_layout_free(NULL);
}

static void ranks_are_row_major(void **state)
{
	struct dcp_layout *l = t_layout("mesh pp=2 dp=3 tp=4\n* replicate\n");
	const struct dcp_mesh *mesh = dcp_layout_mesh(l);

	(void)state;
	assert_string_equal(dcp_layout_name(l), "test");
	assert_int_equal(mesh->ndim, 3);
	assert_string_equal(mesh->dim[1], "dp");
	assert_int_equal(mesh->size[2], 4);
	assert_int_equal(dcp_layout_ranks(l), 24);
	for (uint32_t rank = 0; rank < 24; rank++) {
		uint32_t at[DCP_LAYOUT_MAX_DIMS];

		dcp_layout_coords(l, rank, at);
		assert_int_equal((at[0] * 3 + at[1]) * 4 + at[2], rank);
	}
	dcp_layout_free(l);
}

static void the_first_rule_decides_and_explains(void **state)
{
	dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
	struct dcp_layout *l = t_layout("mesh dp=2 tp=4\n\n"
					"*.q.w *.k.w [Replicate(), Shard(0)]\n"
					"*.w colwise@tp shard(-1)@dp\n");
	struct dcp_err err = { 0 };
	const uint64_t shape[] = { 4 };
	struct dcp_arena arena;
	struct dcp_cut cut;
	unsigned line = 0;

	(void)state;
	dcp_arena_init(&arena, 4096);
	assert_int_equal(dcp_layout_explain(l, "l.k.w", &out, &line), 0);
	assert_string_equal(out.p, "shard(0)@tp");
	assert_int_equal(line, 3);
	dcp_buf_reset(&out);
	assert_int_equal(dcp_layout_explain(l, "l.o.w", &out, &line), 0);
	assert_string_equal(out.p, "colwise@tp shard(-1)@dp");
	assert_int_equal(line, 4);
	assert_int_equal(dcp_layout_explain(l, "l.v.bias", &out, &line), -ENOENT);
	assert_int_equal(dcp_layout_cut(l, 3, "l.k.v", 1, shape, &arena, &cut, &err), -EINVAL);
	assert_string_equal(err.msg,
			    "test: key l.k.v, rank 3: no rule matches; the nearest is *.k.w "
			    "(line 3); a last rule \"* replicate\" takes the rest");
	assert_int_equal(dcp_layout_cut(l, 8, "l.k.w", 1, shape, &arena, &cut, &err), -EINVAL);
	assert_string_equal(err.msg, "test: there is no rank 8, only 0 to 7");
	dcp_arena_finish(&arena);
	dcp_layout_free(l);
}

static void objects_follow_ranks_with_their_key(void **state)
{
	struct dcp_layout *l =
		t_layout("mesh pp=2 tp=2\n"
			 "*.layers.{*}.* stage(4)@pp shard(0)@tp\n"
			 "rng.* drop\nhead.* only(pp=1) replicate\nw.* shard(9)@tp\n");

	(void)state;
	assert_true(dcp_layout_has_object(l, 0, "m.layers.1.extra"));
	assert_false(dcp_layout_has_object(l, 2, "m.layers.1.extra"));
	assert_true(dcp_layout_has_object(l, 3, "m.layers.2.extra"));
	assert_true(dcp_layout_has_object(l, 3, "m.layers.9.extra"));
	assert_false(dcp_layout_has_object(l, 0, "rng.0"));
	assert_false(dcp_layout_has_object(l, 1, "head.x"));
	assert_true(dcp_layout_has_object(l, 2, "head.x"));
	assert_true(dcp_layout_has_object(l, 2, "w.step"));
	assert_true(dcp_layout_has_object(l, 2, "no.rule"));
	dcp_layout_free(l);
}

static void rules_move_to_another_mesh(void **state)
{
	dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
	struct dcp_layout *l = t_layout("mesh tp=2\n*.q shard(0)\n\n*.x only(tp=1) shard(1)\n"),
			  *m;
	struct dcp_err err = { 0 };
	unsigned line;

	(void)state;
	assert_int_equal(dcp_layout_on_mesh(l, "dp3,tp8", &m, NULL), 0);
	assert_string_equal(dcp_layout_name(m), "mesh:dp3,tp8:test");
	assert_int_equal(dcp_layout_ranks(m), 24);
	assert_int_equal(dcp_layout_explain(m, "a.x", &out, &line), 0);
	assert_string_equal(out.p, "only(tp=1) shard(1)@tp");
	assert_int_equal(line, 4);
	check_print(m);
	dcp_layout_free(m);
	assert_int_equal(dcp_layout_on_mesh(l, "dp=2 tq=2", &m, &err), -EINVAL);
	assert_string_equal(
		err.msg,
		"mesh:dp=2 tq=2:test:2: the mesh has no dimension \"tp\", nearest is \"dp\"");
	assert_int_equal(dcp_layout_on_mesh(l, "tp1", &m, &err), -EINVAL);
	assert_string_equal(err.msg, "mesh:tp1:test:4: only: tp has coordinates 0 to 0, not 1");
	assert_int_equal(dcp_layout_on_mesh(l, "tp", &m, &err), -EINVAL);
	t_assert_says(&err, "a mesh is written dp=2 tp=4, not tp");
	assert_int_equal(dcp_layout_on_mesh(l, "", &m, &err), -EINVAL);
	dcp_layout_free(l);
}

/* clang-format off */
static const struct {
	const char *layout, *key, *rule;
} preset_rows[] = {
	{ "fsdp8", "anything", "shard(0, optional)@fsdp" },
	{ "dim2x4", "anything", "shard(2, optional)@dim" },
	{ "tp4:llama", "model.layers.0.self_attn.q_proj.weight", "colwise@tp" },
	{ "tp4:llama", "model.layers.0.self_attn.o_proj.weight", "rowwise@tp" },
	{ "tp4:llama", "layers.10.mlp.down_proj.weight", "rowwise@tp" },
	{ "tp4:llama", "model.embed_tokens.weight", "shard(0, optional)@tp" },
	{ "tp4:llama", "embed_tokens.weight", "shard(0, optional)@tp" },
	{ "tp4:llama", "lm_head.weight", "shard(0, optional)@tp" },
	{ "tp4:llama", "model.norm.weight", "replicate" },
	{ "tp4:llama", "model.layers.0.input_layernorm.weight", "replicate" },
	{ "tp4:llama", "optim.state.model.layers.0.mlp.up_proj.weight.exp_avg", "colwise@tp" },
	{ "tp4:llama", "exp_avg.layers.0.mlp.gate_proj.weight", "colwise@tp" },
	{ "tp4:llama", "optimizer.state.layers.0.self_attn.q_proj.weight.step", "colwise@tp" },
	{ "tp4:llama", "module.layers.0.attention.wo.weight", "rowwise@tp" },
	{ "tp4:llama", "layers.0.feed_forward.w2.weight", "rowwise@tp" },
	{ "tp4:llama", "tok_embeddings.weight", "shard(0, optional)@tp" },
	{ "tp4:llama", "model.layers.0.mlp.gate_up_proj.weight", "colwise(groups=[1,1])@tp" },
	{ "tp4:llama", "optim.param_groups.0.lr", "replicate" },
	{ "tp4:qwen", "model.layers.0.self_attn.q_proj.bias", "colwise@tp" },
	{ "tp4:qwen", "model.layers.0.self_attn.o_proj.bias", "rowwise@tp" },
	{ "tp4:qwen", "model.layers.0.self_attn.q_norm.weight", "replicate" },
	{ "tp4:qwen", "model.layers.3.mlp.experts.17.down_proj.weight", "rowwise@tp" },
	{ "tp4:qwen", "model.layers.3.mlp.shared_expert.gate_proj.weight", "replicate" },
	{ "tp4:qwen3-next", "model.layers.3.mlp.shared_expert.gate_proj.weight", "colwise@tp" },
	{ "tp4:qwen3-next", "model.layers.3.mlp.shared_expert_gate.weight", "replicate" },
	{ "tp4:qwen3-next", "model.layers.0.linear_attn.in_proj_qkvz.weight", "colwise@tp" },
	{ "tp4:qwen", "model.layers.3.mlp.shared_expert_gate.weight", "replicate" },
	{ "tp4:qwen", "model.layers.3.mlp.gate.weight", "replicate" },
	{ "tp4:qwen", "model.layers.3.mlp.experts.gate_up_proj", "colwise(groups=[1,1])@tp" },
	{ "tp4:qwen", "model.layers.3.mlp.experts.down_proj", "rowwise@tp" },
	{ "tp2:mixtral", "model.layers.0.block_sparse_moe.experts.7.w1.weight", "colwise@tp" },
	{ "tp2:mixtral", "model.layers.0.block_sparse_moe.experts.7.w2.weight", "rowwise@tp" },
	{ "tp2:mixtral", "model.layers.0.block_sparse_moe.gate.weight", "replicate" },
	{ "tp2:mixtral", "model.layers.0.self_attn.k_proj.weight", "colwise@tp" },
	{ "tp2:gpt-neox", "gpt_neox.layers.0.attention.query_key_value.bias", "colwise@tp" },
	{ "tp2:gpt-neox", "gpt_neox.layers.0.attention.dense.weight", "rowwise@tp" },
	{ "tp2:gpt-neox", "gpt_neox.layers.0.mlp.dense_4h_to_h.bias", "rowwise@tp" },
	{ "tp2:gpt-neox", "gpt_neox.embed_in.weight", "replicate" },
	{ "tp2:gpt-neox", "lm_head.weight", "shard(0, optional)@tp" },
	{ "tp2:gpt-neox", "embed_out.weight", "shard(0, optional)@tp" },
	{ "tp2:gpt-neox", "gpt_neox.layers.0.attention.bias", "replicate" },
	{ "tp2:gpt2", "transformer.h.0.attn.c_attn.weight", "shard(1, groups=[1,1,1], optional)@tp" },
	{ "tp2:gpt2", "h.0.attn.c_attn.bias", "shard(0, groups=[1,1,1], optional)@tp" },
	{ "tp2:gpt2", "h.0.attn.c_proj.weight", "shard(0, optional)@tp" },
	{ "tp2:gpt2", "h.0.mlp.c_fc.bias", "shard(0, optional)@tp" },
	{ "tp2:gpt2", "h.0.mlp.c_proj.bias", "replicate" },
	{ "tp2:gpt2", "h.0.crossattention.c_attn.weight", "shard(1, groups=[1,1], optional)@tp" },
	{ "tp2:gpt2", "wte.weight", "shard(0, optional)@tp" },
	{ "tp2:gpt2", "wpe.weight", "replicate" },
	{ "tp2:gpt2", "h.0.attn.bias", "replicate" },
};

static const struct {
	const char *name;
	int code;
	const char *says;
} unnamed[] = {
	{ "fdsp8", -ENOENT, "no built-in layout \"fdsp8\", nearest is fsdp<N>; there are fsdp<N>, dim<k>x<N> and tp<N>:<preset>" },
	{ "FSDP8", -ENOENT, "no built-in layout \"FSDP8\", nearest is fsdp<N>" },
	{ "dims0x4", -ENOENT, "nearest is dim<k>x<N>" },
	{ "zzzzzz", -ENOENT, "no built-in layout \"zzzzzz\"; there are" },
	{ "", -ENOENT, "no built-in layout \"\"" },
	{ "8", -ENOENT, "no built-in layout \"8\"" },
	{ "fsdp", -EINVAL, "layout \"fsdp\" should read fsdp<N>, with 1 to 1048576 ranks" },
	{ "fsdp0", -EINVAL, "should read fsdp<N>" },
	{ "fsdp08", -EINVAL, "should read fsdp<N>" },
	{ "fsdp-8", -EINVAL, "should read fsdp<N>" },
	{ "fsdp8x", -EINVAL, "should read fsdp<N>" },
	{ "fsdp1048577", -EINVAL, "should read fsdp<N>" },
	{ "fsdp99999999999999999999", -EINVAL, "should read fsdp<N>" },
	{ "dim4", -EINVAL, "should read dim<k>x<N>" },
	{ "dim0x0", -EINVAL, "should read dim<k>x<N>" },
	{ "dim64x2", -EINVAL, "should read dim<k>x<N>" },
	{ "tp4", -EINVAL, "should read tp<N>:<preset>, with 1 to 1048576 ranks; presets are llama, qwen, " },
	{ "tp:llama", -EINVAL, "should read tp<N>:<preset>" },
	{ "tp4:lama", -EINVAL, "layout \"tp4:lama\": no preset \"lama\", nearest is \"llama\"; there are llama, qwen, qwen3-next, mixtral, gpt-neox and gpt2" },
	{ "tp4:", -EINVAL, "no preset \"\"" },
};
/* clang-format on */

static void presets_know_their_models(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(preset_rows); i++) {
		dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
		struct dcp_layout *l = named(preset_rows[i].layout);
		unsigned line = 1;

		t_case(preset_rows[i].key);
		assert_string_equal(dcp_layout_name(l), preset_rows[i].layout);
		assert_int_equal(dcp_layout_explain(l, preset_rows[i].key, &out, &line), 0);
		assert_string_equal(out.p, preset_rows[i].rule);
		assert_int_equal(line, 0);
		check_print(l);
		dcp_layout_free(l);
	}
}

static void unknown_names_are_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(unnamed); i++) {
		struct dcp_err err = { 0 };
		struct dcp_layout *l;

		t_case(unnamed[i].name);
		assert_int_equal(dcp_layout_named(unnamed[i].name, &l, &err), unnamed[i].code);
		t_assert_says(&err, unnamed[i].says);
	}
}

static void built_in_layouts_replicate_scalars(void **state)
{
	static const char *const names[] = { "fsdp4", "dim1x4", "tp4:llama", "tp4:gpt2" };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(names); i++) {
		struct dcp_layout *l = named(names[i]);
		const uint64_t shape[] = { 3 };
		struct dcp_arena arena;
		struct dcp_cut cut;

		dcp_arena_init(&arena, 4096);
		for (uint32_t rank = 0; rank < 4; rank++) {
			assert_int_equal(dcp_layout_cut(l, rank, "s.q_proj.weight.step", 0,
							NULL, &arena, &cut, NULL),
					 1);
			assert_int_equal(cut.ndim, 0);
		}
		assert_int_equal(
			dcp_layout_cut(l, 3, "h.c_fc.weight", 1, shape, &arena, &cut, NULL), 1);
		assert_int_equal(cut.axis[0].len, i == 0 ? 0 : 3);
		dcp_arena_finish(&arena);
		dcp_layout_free(l);
	}
}

/* @n times @what behind "mesh tp=2\n". */
static int parse_many(const char *head, const char *what, size_t n, const char *tail,
		      struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_layout *l = NULL;
	int rc;

	dcp_buf_str(&text, head);
	for (size_t i = 0; i < n; i++)
		dcp_buf_str(&text, what);
	dcp_buf_str(&text, tail);
	rc = dcp_layout_parse("big", text.p, text.n, &l, err);
	dcp_layout_free(l);
	return rc;
}

static void limits_are_kept(void **state)
{
	static const struct {
		const char *head, *what;
		size_t most;
		const char *tail, *says;
	} limits[] = {
		{ "mesh tp=2\n", "* drop\n", DCP_LAYOUT_MAX_RULES, "",
		  "big:4098: more than 4096 rules" },
		{ "mesh tp=2\n", "a ", DCP_LAYOUT_MAX_GLOBS, "drop", "more than 16384 globs" },
		{ "mesh tp=2\n", "a", DCP_LAYOUT_MAX_GLOB, " drop",
		  "1025 bytes; the limit is 1024" },
		{ "mesh tp=2\n* drop\n", "#", DCP_LAYOUT_MAX_TEXT - 17, "",
		  "1048577 bytes; a layout has at most 1048576" },
		{ "mesh tp=2\na shard(0, groups=[1", ",1", DCP_LAYOUT_MAX_SPANS - 1, "])\n",
		  "more than 65536 numbers in lists" },
		{ "mesh tp=2\na", " only(tp=0)", 32, "", "more than 32 placements" },
		{ "mesh tp=1048576\n* only(tp=0", "|0", 255, ")", "more than 256 ranges" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(limits); i++) {
		struct dcp_err err = { 0 };

		t_case(limits[i].says);
		assert_int_equal(parse_many(limits[i].head, limits[i].what, limits[i].most,
					    limits[i].tail, &err),
				 0);
		assert_int_equal(parse_many(limits[i].head, limits[i].what, limits[i].most + 1,
					    limits[i].tail, &err),
				 -E2BIG);
		t_assert_says(&err, limits[i].says);
	}
}

static void tensors_of_65_dimensions_are_refused(void **state)
{
	struct dcp_layout *l = named("fsdp2");
	uint64_t shape[DCP_MAX_NDIM + 1] = { 0 };
	struct dcp_err err = { 0 };
	struct dcp_arena arena;
	struct dcp_cut cut;

	(void)state;
	dcp_arena_init(&arena, 1 << 16);
	assert_int_equal(dcp_layout_cut(l, 0, "w", DCP_MAX_NDIM, shape, &arena, &cut, &err), 1);
	assert_int_equal(dcp_layout_cut(l, 0, "w", DCP_MAX_NDIM + 1, shape, &arena, &cut, &err),
			 -E2BIG);
	assert_string_equal(err.msg, "fsdp2: key w, rank 0: 65 dimensions; the limit is 64");
	dcp_arena_finish(&arena);
	dcp_layout_free(l);
}

T_TESTS()
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(globs_match_keys),
		cmocka_unit_test(random_globs_match_as_plainly_written),
		cmocka_unit_test(layouts_are_printed),
		cmocka_unit_test(equal_layouts_have_equal_hashes),
		cmocka_unit_test(ranks_are_row_major),
		cmocka_unit_test(the_first_rule_decides_and_explains),
		cmocka_unit_test(objects_follow_ranks_with_their_key),
		cmocka_unit_test(rules_move_to_another_mesh),
		cmocka_unit_test(presets_know_their_models),
		cmocka_unit_test(unknown_names_are_refused),
		cmocka_unit_test(built_in_layouts_replicate_scalars),
		cmocka_unit_test(limits_are_kept),
		cmocka_unit_test(tensors_of_65_dimensions_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
