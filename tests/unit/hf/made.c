/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A config.json from what a checkpoint keeps of its model: Megatron's arguments, Composer's
 * metadata; from torchtitan's job config. Composer's tokenizers.
 *
 * covers: made
 */
#include "tests/unit/t.h"

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/text.h"
#include "core/hf/hf_int.h"
#include "core/rules/rules.h"
#include "core/store/version/version.h"
#include "tests/unit/t/index.h"

/* clang-format off */
#define KNOWN "\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 4, \"kv_channels\": 6, " \
	"\"ffn_hidden_size\": 24, \"padded_vocab_size\": 40, \"norm_epsilon\": 1e-05, " \
	"\"max_position_embeddings\": 32, "
#define OLD "\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 4, \"padded_vocab_size\": 40, " \
	"\"max_position_embeddings\": 32, \"layernorm_epsilon\": 1e-05, \"tokenizer_type\": "
#define ROPE KNOWN "\"rotary_base\": 500000, \"position_embedding_type\": \"rope\", \"swiglu\": true, " \
	"\"normalization\": \"RMSNorm\", \"add_bias_linear\": false"
#define MOE ROPE ", \"num_experts\": 8, \"moe_router_topk\": 2, \"moe_ffn_hidden_size\": 10"
#define MLA MOE ", \"multi_latent_attention\": true, \"kv_lora_rank\": 6, \"qk_head_dim\": 4, " \
	"\"qk_pos_emb_head_dim\": 2, \"v_head_dim\": 5, \"moe_shared_expert_intermediate_size\": 20"

/* Arguments, and lines that the config.json has then; none: nothing is inferred. */
static const struct {
	const char *what, *args, *want[6];
} cases[] = {
	{ "dense", ROPE, { "\"model_type\": \"llama\"", "\"num_key_value_heads\": 4", "\"head_dim\": 6", "\"vocab_size\": 40",
			   "\"rope_theta\": 500000", "\"tie_word_embeddings\": true" } },
	{ "groups", ROPE ", \"group_query_attention\": true, \"num_query_groups\": 2", { "\"num_key_value_heads\": 2" } },
	{ "groups that are not in use", ROPE ", \"group_query_attention\": false, \"num_query_groups\": 1", { "\"num_key_value_heads\": 4" } },
	{ "the vocabulary without padding", ROPE ", \"vocab_size\": 37", { "\"vocab_size\": 37" } },
	{ "longer positions", ROPE ", \"use_rope_scaling\": true, \"rope_scaling_factor\": 8.0",
	  { "\"rope_type\": \"llama3\"", "\"factor\": 8.0", "\"original_max_position_embeddings\": 8192" } },
	{ "a dtype", ROPE ", \"params_dtype\": {\"$class\": \"torch.dtype\", \"args\": [\"bfloat16\"]}", { "\"torch_dtype\": \"bfloat16\"" } },
	{ "biases of queries", ROPE ", \"add_qkv_bias\": true", { "\"model_type\": \"qwen2\"" } },
	{ "norms of queries", ROPE ", \"qk_layernorm\": true", { "\"model_type\": \"qwen3\"" } },
	{ "experts", MOE, { "\"model_type\": \"mixtral\"", "\"intermediate_size\": 10", "\"num_experts_per_tok\": 2", "\"num_local_experts\": 8" } },
	{ "experts, norms", MOE ", \"qk_layernorm\": true", { "\"model_type\": \"qwen3_moe\"", "\"moe_intermediate_size\": 10", "\"norm_topk_prob\": true" } },
	{ "half an expert more", ROPE ", \"num_experts\": 8.5", { "\"model_type\": \"llama\"" } },
	{ "experts and a shared one", MOE ", \"add_qkv_bias\": true, \"moe_shared_expert_intermediate_size\": 14, \"moe_shared_expert_gate\": true, "
	  "\"moe_router_pre_softmax\": true", { "\"model_type\": \"qwen2_moe\"", "\"shared_expert_intermediate_size\": 14", "\"norm_topk_prob\": false" } },
	{ "low ranks", MLA ", \"moe_layer_freq\": [0, 1]", { "\"model_type\": \"deepseek_v2\"", "\"first_k_dense_replace\": 1", "\"n_shared_experts\": 2",
	  "\"q_lora_rank\": null", "\"rope_type\": \"yarn\"", "\"original_max_position_embeddings\": 4096" } },
	{ "low ranks, sigmoid", MLA ", \"moe_router_score_function\": \"sigmoid\", \"q_lora_rank\": 8, \"mtp_num_layers\": 1, \"rope_type\": \"rope\"",
	  { "\"model_type\": \"deepseek_v3\"", "\"q_lora_rank\": 8", "\"num_nextn_predict_layers\": 1", "\"first_k_dense_replace\": 0" } },
	{ "learned positions", KNOWN "\"position_embedding_type\": \"learned_absolute\", \"add_bias_linear\": true, \"normalization\": \"LayerNorm\", "
	  "\"bias_gelu_fusion\": true", { "\"model_type\": \"gpt2\"", "\"n_embd\": 16", "\"n_positions\": 32", "\"activation_function\": \"gelu_fast\"" } },
	{ "arguments of 2020", OLD "\"GPT2BPETokenizer\", \"openai_gelu\": true", { "\"model_type\": \"gpt2\"", "\"n_head\": 4", "\"n_positions\": 32",
	  "\"vocab_size\": 40", "\"activation_function\": \"gelu_new\"", "\"tie_word_embeddings\": true" } },
	{ "those of BERT", OLD "\"BertWordPieceLowerCase\"", { NULL } },
	{ "without a tokenizer", OLD "null", { NULL } },
	{ "of 2023, with an argument for rotation", OLD "\"GPT2BPETokenizer\", \"use_rotary_position_embeddings\": true", { NULL } },
	{ "without positions", OLD "\"GPT2BPETokenizer\", \"add_position_embedding\": false", { NULL } },
	{ "nothing", "", { NULL } },
	{ "no positions", KNOWN "\"position_embedding_type\": \"none\"", { NULL } },
	{ "no number of layers", "\"num_layers\": null, " ROPE, { NULL } },
	{ "a number that is none", "\"hidden_size\": \"16\", " ROPE, { NULL } },
	{ "not gated", "\"swiglu\": false, " ROPE, { NULL } },
	{ "biases", "\"add_bias_linear\": true, " ROPE, { NULL } },
	{ "half of a head turned", "\"rotary_percent\": 0.5, " ROPE, { NULL } },
	{ "other norms", "\"normalization\": \"LayerNorm\", " ROPE, { NULL } },
	{ "every other layer has experts", MOE ", \"moe_layer_freq\": 2", { NULL } },
	{ "dense layers among the others", MLA ", \"moe_layer_freq\": [0, 1, 0]", { NULL } },
	{ "a shared expert without a gate", MOE ", \"moe_shared_expert_intermediate_size\": 14", { NULL } },
};
/* clang-format on */

/* So that a sanitizer sees a byte read behind it. */
static char *exact_copy(const char *text, size_t n)
{
	char *p = malloc(n + !n);

	assert_non_null(p);
	memcpy(p, text, n);
	return p;
}

static void megatrons_arguments_make_a_config(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		dcp_auto_buf struct dcp_buf args = DCP_BUF_INIT, out = DCP_BUF_INIT;
		struct dcp_rules_config c;
		char *exact;
		int rc;

		t_case(cases[i].what);
		dcp_buf_printf(&args, "{\"$class\":\"argparse.Namespace\",\"state\":{%s}}",
			       cases[i].args);
		exact = exact_copy(args.p, args.n);
		rc = dcp_made_megatron(exact, args.n, &out);
		free(exact);
		assert_int_equal(rc, cases[i].want[0] != NULL);
		if (rc == 0)
			continue;
		assert_int_equal(dcp_rules_config_parse(out.p, out.n, &c, NULL), 0);
		assert_true(strstr(out.p, "inferred_by_dcpfs") && c.heads && c.layers &&
			    c.vocab);
		for (size_t k = 0; k < DCP_LEN(cases[i].want) && cases[i].want[k]; k++)
			if (!strstr(out.p, cases[i].want[k]))
				fail_msg("%s is not in %s", cases[i].want[k], out.p);
	}
}

/* Any part of it, and any byte of it another: refused or not, it is read within its bounds. */
static void damage(const char *text, size_t n,
		   int (*infer)(const char *json, size_t n, struct dcp_buf *out))
{
	for (size_t i = 0; i < n; i++) {
		dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
		char *exact = exact_copy(text, i);

		infer(exact, i, &out);
		free(exact);
		dcp_buf_reset(&out);
		exact = exact_copy(text, n);
		exact[i] ^= 0x15;
		infer(exact, n, &out);
		free(exact);
	}
}

static void damaged_arguments_are_survived(void **state)
{
	static const char text[] = "{\"state\":{" MLA ", \"moe_layer_freq\": [0, 1]}}";

	(void)state;
	damage(text, sizeof(text) - 1, dcp_made_megatron);
}

/* clang-format off */
#define ROPE_BY(how, factor) "\"rope\": {\"theta\": 500000, \"max_seq_len\": 131072, \"scaling\": \"" how "\", \"scaling_factor\": 8.0, " \
	"\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192, \"rope_factor\": " factor ", " \
	"\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"original_seq_len\": 4096, \"truncate\": false}"
#define ROPE_OF(how) ROPE_BY(how, "32")
#define QKV_OF(heads) "\"attention\": {\"n_heads\": " heads ", \"qkv_linear\": {\"head_dim\": 6, \"n_kv_heads\": 2}, "
#define QKV QKV_OF("4")
#define FFN "\"moe\": null, \"feed_forward\": {\"w1\": {\"out_features\": 24}}"
#define JOB_MOE_OF(how, shared) "\"moe\": {\"num_experts\": 8, \"routed_experts\": {\"inner_experts\": {\"hidden_dim\": 10, \"swiglu_limit\": 7.0}}, " \
	"\"router\": {\"top_k\": 2, \"score_func\": \"" how "\", \"route_norm\": true, \"route_scale\": 2.5, \"num_expert_groups\": null}, " \
	"\"shared_experts\": {\"w1\": {\"out_features\": " shared "}}}"
#define JOB_MOE(how) JOB_MOE_OF(how, "20")
#define LOW "{\"attention\": {\"n_heads\": 4, \"q_lora_rank\": 0, \"kv_lora_rank\": 6, \"qk_nope_head_dim\": 4, \"qk_rope_head_dim\": 2, " \
	"\"v_head_dim\": 5, \"mscale\": 0.7, " ROPE_OF("yarn") "}, "
#define LLAMA "{" QKV ROPE_OF("llama") "}, " FFN "}"
#define DENSE "{" QKV ROPE_OF("none") "}, " FFN "}"
#define EXPERTS "{" QKV ROPE_OF("none") "}, " JOB_MOE("softmax") "}"
#define JOB_AS(name, layers, dtype) "{\"model_spec\": {\"name\": \"" name "\", \"model\": {\"dim\": 16, \"vocab_size\": 40, \"norm\": {\"eps\": 1e-05}, " \
	"\"enable_weight_tying\": true, \"mtp_layers\": [{}], \"layers\": [" layers "]}}, \"training\": {\"dtype\": \"" dtype "\"}}"
#define JOB(name, layers) JOB_AS(name, layers, "float32")

static const struct {
	const char *what, *job, *want[7], *not;
} jobs[] = {
	{ "llama", JOB("llama3", LLAMA ", " LLAMA), { "\"model_type\": \"llama\"", "\"num_hidden_layers\": 2", "\"head_dim\": 6",
	  "\"num_key_value_heads\": 2", "\"rope_type\": \"llama3\"", "\"intermediate_size\": 24", "\"rms_norm_eps\": 1e-05" } },
	{ "qwen", JOB("qwen3", DENSE), { "\"model_type\": \"qwen3\"", "\"tie_word_embeddings\": true", "\"torch_dtype\": \"float32\"", "\"rope_theta\": 500000" } },
	{ "qwen with experts", JOB("qwen3", EXPERTS), { "\"model_type\": \"qwen3_moe\"", "\"num_experts\": 8", "\"moe_intermediate_size\": 10",
	  "\"num_experts_per_tok\": 2", "\"norm_topk_prob\": true" } },
	{ "gpt-oss", JOB("gpt_oss", "{" QKV "\"sliding_window_size\": 128, " ROPE_OF("yarn") "}, " JOB_MOE("softmax") "}, {" QKV ROPE_OF("yarn") "}, " JOB_MOE("softmax") "}"),
	  { "\"num_local_experts\": 8", "\"sliding_window\": 128", "\"sliding_attention\"", "\"full_attention\"", "\"truncate\": false",
	    "\"swiglu_limit\": 7.0", "\"factor\": 32.0" } },
	{ "deepseek", JOB("deepseek_v3", LOW FFN "}, " LOW JOB_MOE("sigmoid") "}"), { "\"model_type\": \"deepseek_v3\"", "\"first_k_dense_replace\": 1",
	  "\"n_shared_experts\": 2", "\"q_lora_rank\": null", "\"mscale_all_dim\": 0.7", "\"num_nextn_predict_layers\": 1", "\"n_group\": 1" } },
	{ "deepseek with softmax", JOB("deepseek_v3", LOW FFN "}, " LOW JOB_MOE("softmax") "}"), { NULL } },
	{ "a dense layer behind one with experts", JOB("deepseek_v3", LOW JOB_MOE("sigmoid") "}, " LOW FFN "}, " LOW JOB_MOE("sigmoid") "}"), { NULL } },
	{ "layers whose positions differ", JOB("llama3", LLAMA ", " DENSE ", " LLAMA), { NULL } },
	{ "layers with other heads", JOB("qwen3", DENSE ", {" QKV_OF("8") ROPE_OF("none") "}, " FFN "}, " DENSE), { NULL } },
	{ "layers with other shared experts", JOB("deepseek_v3", LOW JOB_MOE("sigmoid") "}, " LOW JOB_MOE_OF("sigmoid", "30") "}, " LOW JOB_MOE("sigmoid") "}"), { NULL } },
	{ "layers that score otherwise", JOB("qwen3", EXPERTS ", {" QKV ROPE_OF("none") "}, " JOB_MOE("sigmoid") "}"), { NULL } },
	{ "layers without a value that others have", JOB("qwen3", DENSE ", {\"attention\": {}, " FFN "}"), { NULL } },
	{ "a layer without attention", JOB("qwen3", DENSE ", {" FFN "}"), { NULL } },
	{ "windows of two widths", JOB("gpt_oss", "{" QKV "\"sliding_window_size\": 128, " ROPE_OF("yarn") "}, " JOB_MOE("softmax") "}, {" QKV
	  "\"sliding_window_size\": 64, " ROPE_OF("yarn") "}, " JOB_MOE("softmax") "}"), { NULL } },
	{ "llama with experts", JOB("llama3", EXPERTS), { NULL } },
	{ "no layers", JOB("llama3", ""), { NULL } },
	{ "another model", JOB("flux", DENSE), { NULL } },
	{ "no heads", JOB("llama3", "{" FFN "}"), { NULL } },
	{ "no model", "{\"model_spec\": 1}", { NULL } },
	{ "no JSON", "{\"model_spec\":", { NULL } },
	{ "half a head", JOB("llama3", "{" QKV_OF("4.5") ROPE_OF("none") "}, " FFN "}"), { NULL } },
	{ "heads that are true", JOB("llama3", "{" QKV_OF("true") ROPE_OF("none") "}, " FFN "}"), { NULL } },
	{ "fewer heads than none", JOB("llama3", "{" QKV_OF("-4") ROPE_OF("none") "}, " FFN "}"), { NULL } },
	{ "no head at all", JOB("llama3", "{" QKV_OF("0") ROPE_OF("none") "}, " FFN "}"), { NULL } },
	{ "positions in a way of their own", JOB("llama3", "{" QKV ROPE_OF("ntk") "}, " FFN "}"), { NULL } },
	{ "longer positions, nothing of how", JOB("llama3", "{" QKV "\"rope\": {\"theta\": 500000, \"max_seq_len\": 64, \"scaling\": \"llama\"}}, " FFN "}"), { NULL } },
	{ "yarn by nothing", JOB("qwen3", "{" QKV ROPE_BY("yarn", "1") "}, " FFN "}"), { "\"hidden_act\": \"silu\"" }, "rope_scaling" },
	{ "a dtype that is none", JOB_AS("qwen3", DENSE, "no/dtype"), { "\"hidden_act\": \"silu\"" }, "torch_dtype" },
	{ "half a shared expert", JOB("deepseek_v3", LOW JOB_MOE_OF("sigmoid", "25") "}"), { NULL } },
};
/* clang-format on */

static void torchtitans_job_makes_a_config(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(jobs); i++) {
		dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
		size_t n = strlen(jobs[i].job);
		char *exact = exact_copy(jobs[i].job, n);
		struct dcp_rules_config c;

		t_case(jobs[i].what);
		assert_int_equal(dcp_made_torchtitan(exact, n, &out), jobs[i].want[0] != NULL);
		free(exact);
		if (!jobs[i].want[0])
			continue;
		assert_int_equal(dcp_rules_config_parse(out.p, out.n, &c, NULL), 0);
		assert_true(strstr(out.p, "inferred_by_dcpfs") && c.heads == 4 && c.layers &&
			    c.vocab == 40);
		for (size_t k = 0; k < DCP_LEN(jobs[i].want) && jobs[i].want[k]; k++)
			if (!strstr(out.p, jobs[i].want[k]))
				fail_msg("%s is not in %s", jobs[i].want[k], out.p);
		if (jobs[i].not )
			assert_null(strstr(out.p, jobs[i].not ));
	}
}

/* As damaged_arguments_are_survived(), with all that a job config may have. */
static void damaged_jobs_are_survived(void **state)
{
	static const char text[] = JOB("deepseek_v3", LOW FFN "}, " LOW JOB_MOE("sigmoid") "}");

	(void)state;
	damage(text, sizeof(text) - 1, dcp_made_torchtitan);
}

/* ---- Composer ---- */

/* An object at "a|b|c" below what Composer keeps of a model. */
static void keep(const struct dcp_sink *sink, const char *at, const char *json)
{
	char text[300], key[300], *part = text, *bar;
	const char *path[16];
	struct dcp_object o = { .key = key, .path = path, .type = "int", .json = json };

	snprintf(text, sizeof(text), "state|integrations|huggingface|%s", at);
	snprintf(key, sizeof(key), "%s", text);
	for (char *c = key; (c = strchr(c, '|'));)
		*c = '.';
	do {
		path[o.npath++] = part;
		bar = strchr(part, '|');
		if (bar)
			*bar++ = '\0';
		part = bar;
	} while (part);
	o.json_len = json ? strlen(json) : 0;
	o.error = json ? NULL : "it is damaged";
	assert_int_equal(sink->object(sink->ctx, &o), 0);
}

#define CONTENT "model|config|content|"

static void keep_config(const struct dcp_sink *sink)
{
	keep(sink, "model|config|file_extension", "\".json\"");
	keep(sink, CONTENT "model_type", "\"mpt\"");
}

static void keep_file(const struct dcp_sink *sink, const char *name, const char *extension,
		      const char *content, const char *json)
{
	char at[200], value[40];

	snprintf(at, sizeof(at), "tokenizer|%s|file_extension", name);
	snprintf(value, sizeof(value), "\"%s\"", extension);
	keep(sink, at, value);
	snprintf(at, sizeof(at), "tokenizer|%s|content%s", name, content);
	keep(sink, at, json);
}

/* What is made of the index; finish it. */
static struct dcp_buf find(struct t_index *p, struct dcp_assets *a)
{
	struct dcp_buf made = DCP_BUF_INIT;

	t_index_reopen(p);
	assert_int_equal(dcp_made_find(p->ix, a, &made), 0);
	return made;
}

/* Its text without blanks between values, or "" where it is not made. */
static const char *text_of(const struct dcp_buf *made, const char *name)
{
	struct dcp_made *m = dcp_made_named(made, name);

	if (!m)
		return "";
	assert_string_equal(m->from, "state.integrations.huggingface");
	if (dcp_has_extension(name, ".json"))
		for (char *s = m->text.p, *to = s; (*to = *s); s++)
			to += !strchr(" \n", *s);
	return m->text.p;
}

static void composers_state_makes_a_config(void **state)
{
	static const char *const leaves[][2] = {
		{ "_attn_implementation_autoset", "true" },
		{ "architectures|0", "\"MPTForCausalLM\"" },
		{ "attn_config|alibi", "true" },
		{ "attn_config|deep|er|0|x", "1" },
		{ "attn_config|deep|er|1|x", "2.5" },
		{ "id2label|0", "\"no\"" },
		{ "id2label|1", "\"yes\"" },
		{ "empty", "{}" },
		{ "gap|0", "1" },
		{ "gap|2", "2" },
		{ "a.b|c.d", "1e-05" },
	};
	struct t_index *p = *state;
	struct dcp_assets none = { 0 };
	struct dcp_buf made;
	char at[200];

	t_tell_object(&p->sink, "state.model.x", "1");
	keep_config(&p->sink);
	for (size_t i = 0; i < DCP_LEN(leaves); i++) {
		snprintf(at, sizeof(at), CONTENT "%s", leaves[i][0]);
		keep(&p->sink, at, leaves[i][1]);
	}
	keep(&p->sink, "model|config|class", "\"X\"");
	keep(&p->sink, "model|peft_config|file_extension", "\".json\"");
	keep(&p->sink, "model|peft_config|content|r", "8");
	made = find(p, &none);
	assert_string_equal(
		text_of(&made, "config.json"),
		"{\"model_type\":\"mpt\",\"architectures\":[\"MPTForCausalLM\"],"
		"\"attn_config\":{\"alibi\":true,\"deep\":{\"er\":[{\"x\":1},{\"x\":2.5}]"
		"}},\"id2label\":{\"0\":\"no\",\"1\":\"yes\"},\"empty\":{},\"gap\":{\"0\":1,"
		"\"2\":2},\"a.b\":{\"c.d\":1e-05}}");
	assert_true(none.config.n > 0);
	assert_string_equal(text_of(&made, "adapter_config.json"), "{\"r\":8}");
	assert_int_equal(DCP_NITEMS(made, struct dcp_made), 2);
	dcp_made_finish(&made);
	dcp_assets_finish(&none);
}

static void composers_state_makes_tokenizer_files(void **state)
{
	/*
	 * A file's name and extension, where its content lies, that; the file that is made of it,
	 * and its text.
	 */
	static const struct {
		const char *name, *extension, *content, *json, *made, *text;
	} files[] = {
		{ "added_tokens.json", ".json", "|<x>", "5", "added_tokens.json",
		  "{\"<x>\":5}" },
		{ "old", ".json", "|a", "1", "old.json", "{\"a\":1}" },
		{ "whole.json", ".json", "", "{\"a\":[]}", "whole.json", "{\"a\":[]}" },
		{ "v.txt", ".txt", "", "[\"a\",\"\\u00e9\",\"\"]", "v.txt", "a\n\u00e9\n" },
		{ "bare.txt", ".txt", "", "[\"a\",\"b\"]", "bare.txt", "a\nb\n" },
		{ "t.jinja", ".jinja", "", "\"{%\\n%}\"", "t.jinja", "{%\n%}" },
		{ "x.py", ".py", "", "\"pass\"", "x.py", "pass" },
		{ "t.model", ".model", "", "{\"$bytes\":\"AQL/\"}", "t.model", "\1\2\xff" },
		/* what is no such file, or cannot be read */
		{ "n.txt", ".txt", "", "[1]", "n.txt", NULL },
		{ "m.txt", ".txt", "", "3", "m.txt", NULL },
		{ "d.json", ".json", "|a", NULL, "d.json", NULL },
		{ "o.py", ".py", "", "[]", "o.py", NULL },
		{ "q.py", ".py", "|a", "\"x\"", "q.py", NULL },
		{ "b.model", ".model", "", "{\"$bytes\":\"A!\"}", "b.model", NULL },
		{ "c.model", ".model", "", "\"text\"", "c.model", NULL },
		{ "e.exe", ".exe", "", "\"x\"", "e.exe", NULL },
		/* names that lead out, or are ours */
		{ "../evil", ".py", "", "\"x\"", "../evil.py", NULL },
		{ "/etc/evil.py", ".py", "", "\"x\"", "/etc/evil.py", NULL },
		{ "..", ".py", "", "\"x\"", "...py", NULL },
		{ "", ".json", "|a", "1", ".json", NULL },
		{ "README.md", ".txt", "", "[]", "README.md.txt", NULL },
		{ "a\nb.py", ".py", "", "\"x\"", "a\nb.py", NULL },
		{ "model.safetensors.index.json", ".json", "|a", "1",
		  "model.safetensors.index.json", NULL },
		{ "deep.txt", ".txt", "|0|0", "\"a\"", "deep.txt", NULL },
		{ "config.json", ".json", "|model_type", "\"evil\"", "", NULL },
		{ "below.json", ".json", "|a", "1", "below.json", NULL },
	};
	static const char *const parts[][2] = {
		{ "tokenizer|t.json|content|added_tokens_decoder|0|content", "\"<s>\"" },
		{ "tokenizer|t.json|content|added_tokens_decoder|1|content", "\"</s>\"" },
		{ "tokenizer|t.json|content|vocab|0", "1" },
		{ "tokenizer|t.json|content|vocab|1", "0" },
		{ "tokenizer|t.json|content|merges|0|0", "\"a\"" },
		{ "tokenizer|t.json|content|merges|0|1", "\"b\"" },
		{ "tokenizer|t.json|content|unigram|vocab|0|0", "\"a\"" },
		{ "tokenizer|t.json|content|unigram|vocab|0|1", "-1.5" },
		{ "tokenizer|t.json|content|leaves|vocab|0", "[\"a\",-1.5]" },
		{ "tokenizer|l.txt|content|0", "\"a\"" },
		{ "tokenizer|l.txt|content|1", "\"\"" },
	};
	struct t_index *p = *state;
	struct dcp_assets none = { 0 };
	struct dcp_buf made;

	keep_config(&p->sink);
	for (size_t i = 0; i < DCP_LEN(files); i++)
		keep_file(&p->sink, files[i].name, files[i].extension, files[i].content,
			  files[i].json);
	keep(&p->sink, "tokenizer|below.json|content|a|b", "2"); /* below a value */
	keep(&p->sink, "tokenizer|empty.json|file_extension", "\".json\"");
	keep(&p->sink, "tokenizer|t.json|file_extension", "\".json\"");
	for (size_t i = 0; i < 9; i++)
		keep(&p->sink, parts[i][0], parts[i][1]);
	keep(&p->sink, "tokenizer|l.txt|file_extension", "\".txt\"");
	for (size_t i = 9; i < DCP_LEN(parts); i++)
		keep(&p->sink, parts[i][0], parts[i][1]);
	made = find(p, &none);
	for (size_t i = 0; i < DCP_LEN(files); i++) {
		t_case(files[i].made);
		if (files[i].text)
			assert_string_equal(text_of(&made, files[i].made), files[i].text);
		else
			assert_null(dcp_made_named(&made, files[i].made));
	}
	assert_string_equal(text_of(&made, "config.json"), "{\"model_type\":\"mpt\"}");
	assert_string_equal(text_of(&made, "empty.json"), "{}");
	assert_string_equal(text_of(&made, "l.txt"), "a\n");
	assert_string_equal(text_of(&made, "t.json"),
			    "{\"added_tokens_decoder\":{\"0\":{\"content\":\"<s>\"},\"1\":{"
			    "\"content\":\"</s>\"}"
			    "},\"vocab\":{\"0\":1,\"1\":0},\"merges\":[[\"a\",\"b\"]],"
			    "\"unigram\":{\"vocab\":"
			    "[[\"a\",-1.5]]},\"leaves\":{\"vocab\":[[\"a\",-1.5]]}}");
	dcp_made_finish(&made);
	dcp_assets_finish(&none);
}

/* Files beside the weights come first, and a tokenizer is of one origin. */
static void files_beside_weights_come_first(void **state)
{
	struct t_index *p = *state;
	struct dcp_asset beside[] = { { .name = "tokenizer.json" }, { .name = "config.json" } };
	struct dcp_assets a = { .at = beside, .n = 2 };
	struct dcp_buf made;

	keep_config(&p->sink);
	keep_file(&p->sink, "tokenizer.json", ".json", "|a", "1");
	keep_file(&p->sink, "vocab.txt", ".txt", "", "[]");
	dcp_buf_str(&a.config, "{}");
	made = find(p, &a);
	assert_int_equal(DCP_NITEMS(made, struct dcp_made), 0);
	assert_string_equal(a.config.p, "{}");
	dcp_made_finish(&made);
	t_case("a config.json that cannot be read, and another's tokenizer");
	dcp_buf_reset(&a.config);
	beside[0].name = "other.json";
	assert_int_equal(dcp_made_find(p->ix, &a, &made), 0);
	assert_int_equal(DCP_NITEMS(made, struct dcp_made), 3);
	dcp_made_finish(&made);
	dcp_assets_finish(&a);
}

static void unknown_objects_make_nothing(void **state)
{
	struct t_index *p = *state;
	struct dcp_assets none = { 0 };
	struct dcp_buf made;

	t_tell_object(&p->sink, "args", "{\"state\":{}}");
	keep_file(&p->sink, "vocab.txt", ".txt", "", "[]"); /* of no model */
	made = find(p, &none);
	assert_int_equal(DCP_NITEMS(made, struct dcp_made), 0);
	assert_int_equal(none.config.n, 0);
	dcp_made_finish(&made);
	dcp_assets_finish(&none);
}

/* A config that has no dtype to change stays as it is, and no file is made of it. */
static void configs_without_a_dtype_stay(void **state)
{
	static const char text[] = "{\"_class_name\": \"FluxTransformer2DModel\"}";
	struct dcp_assets a = { 0 };
	struct dcp_buf made = DCP_BUF_INIT;

	(void)state;
	dcp_buf_str(&a.config, text);
	assert_int_equal(dcp_made_retype(&a, DCP_DTYPE_BF16, &made), 0);
	assert_int_equal(a.config.n, strlen(text));
	assert_string_equal(a.config.p, text);
	assert_int_equal(made.n, 0);
	dcp_assets_finish(&a);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(megatrons_arguments_make_a_config),
		cmocka_unit_test(damaged_arguments_are_survived),
		cmocka_unit_test(torchtitans_job_makes_a_config),
		cmocka_unit_test(damaged_jobs_are_survived),
		cmocka_unit_test_setup_teardown(composers_state_makes_a_config, t_index_setup,
						t_index_teardown),
		cmocka_unit_test_setup_teardown(composers_state_makes_tokenizer_files,
						t_index_setup, t_index_teardown),
		cmocka_unit_test_setup_teardown(files_beside_weights_come_first, t_index_setup,
						t_index_teardown),
		cmocka_unit_test_setup_teardown(unknown_objects_make_nothing, t_index_setup,
						t_index_teardown),
		cmocka_unit_test(configs_without_a_dtype_stay),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
