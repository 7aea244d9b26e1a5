/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A config.json from the arguments that Megatron trained with. Sources:
 * megatron/training/arguments.py of Megatron-LM for the meaning of arguments; models/ of
 * Megatron-Bridge for the names in transformers.
 */
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/jsonw.h"
#include "core/base/text.h"
#include "core/hf/hf_int.h"
#include "core/parse/json.h"

/* Models as bits: each line of the tables below says to which models it applies. */
enum {
	LLAMA = 1,
	QWEN2 = 2,
	QWEN3 = 4,
	MIXTRAL = 8,
	QWEN2_MOE = 16,
	QWEN3_MOE = 32,
	DEEPSEEK_V2 = 64,
	DEEPSEEK_V3 = 128,
	GPT2 = 256,
	DEEPSEEK = DEEPSEEK_V2 | DEEPSEEK_V3,
	QWEN_MOE = QWEN2_MOE | QWEN3_MOE,
	ROTARY = 255,
	HEAD_DIM = ROTARY & ~DEEPSEEK,
	MOE = MIXTRAL | QWEN_MOE | DEEPSEEK
};

enum { MAX_DIGITS = 32 };

static const struct {
	unsigned of;
	const char *type, *class;
} models[] = {
	{ LLAMA, "llama", "LlamaForCausalLM" },
	{ QWEN2, "qwen2", "Qwen2ForCausalLM" },
	{ QWEN3, "qwen3", "Qwen3ForCausalLM" },
	{ MIXTRAL, "mixtral", "MixtralForCausalLM" },
	{ QWEN2_MOE, "qwen2_moe", "Qwen2MoeForCausalLM" },
	{ QWEN3_MOE, "qwen3_moe", "Qwen3MoeForCausalLM" },
	{ DEEPSEEK_V2, "deepseek_v2", "DeepseekV2ForCausalLM" },
	{ DEEPSEEK_V3, "deepseek_v3", "DeepseekV3ForCausalLM" },
	{ GPT2, "gpt2", "GPT2LMHeadModel" },
};

/* A number, with its name in Megatron's arguments and in config.json. @must: without this number
 * nothing is inferred. */
static const struct {
	unsigned of;
	const char *name, *arg, *other;
	bool must;
} numbers[] = {
	{ ROTARY, "hidden_size", "hidden_size", NULL, true },
	{ ROTARY & ~(MIXTRAL | QWEN2_MOE | QWEN3_MOE), "intermediate_size", "ffn_hidden_size",
	  NULL, true },
	{ QWEN_MOE, "intermediate_size", "ffn_hidden_size", NULL, false },
	{ MIXTRAL, "intermediate_size", "moe_ffn_hidden_size", "ffn_hidden_size", true },
	{ ROTARY, "num_hidden_layers", "num_layers", NULL, true },
	{ ROTARY, "num_attention_heads", "num_attention_heads", NULL, true },
	{ HEAD_DIM, "head_dim", "kv_channels", NULL, true },
	{ ROTARY | GPT2, "vocab_size", "vocab_size", "padded_vocab_size", true },
	{ ROTARY, "max_position_embeddings", "max_position_embeddings", NULL, false },
	{ ROTARY, "rms_norm_eps", "norm_epsilon", "layernorm_epsilon", true },
	{ ROTARY, "rope_theta", "rotary_base", NULL, true },
	{ MIXTRAL, "num_local_experts", "num_experts", NULL, true },
	{ QWEN_MOE, "num_experts", "num_experts", NULL, true },
	{ MOE, "num_experts_per_tok", "moe_router_topk", NULL, true },
	{ QWEN_MOE | DEEPSEEK, "moe_intermediate_size", "moe_ffn_hidden_size",
	  "ffn_hidden_size", true },
	{ QWEN2_MOE, "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
	  NULL, true },
	{ DEEPSEEK, "n_routed_experts", "num_experts", NULL, true },
	{ DEEPSEEK, "n_group", "moe_router_num_groups", NULL, false },
	{ DEEPSEEK, "topk_group", "moe_router_group_topk", NULL, false },
	{ DEEPSEEK, "routed_scaling_factor", "moe_router_topk_scaling_factor", NULL, false },
	{ DEEPSEEK, "kv_lora_rank", "kv_lora_rank", NULL, true },
	{ DEEPSEEK, "qk_nope_head_dim", "qk_head_dim", NULL, true },
	{ DEEPSEEK, "qk_rope_head_dim", "qk_pos_emb_head_dim", NULL, true },
	{ DEEPSEEK, "v_head_dim", "v_head_dim", NULL, true },
	{ GPT2, "n_embd", "hidden_size", NULL, true },
	{ GPT2, "n_inner", "ffn_hidden_size", NULL, false },
	{ GPT2, "n_layer", "num_layers", NULL, true },
	{ GPT2, "n_head", "num_attention_heads", NULL, true },
	{ GPT2, "n_positions", "max_position_embeddings", NULL, true },
	{ GPT2, "layer_norm_epsilon", "norm_epsilon", "layernorm_epsilon", false },
};

/* The value of member @name, or of @other where it is missing or null; n 0: neither is there. */
static struct dcp_bytes find_member(struct dcp_bytes object, const char *name)
{
	struct dcp_json_walk w = { .text = (const char *)object.p, .n = object.n };
	struct dcp_bytes key, value;
	size_t n = strlen(name);

	while (object.n && dcp_json_walk(&w, &key, &value, NULL) == 1)
		if (key.n == n + 2 && memcmp(key.p + 1, name, n) == 0)
			return value;
	return (struct dcp_bytes){ 0 };
}

static bool is_text(struct dcp_bytes v, const char *text)
{
	return v.n == strlen(text) && memcmp(v.p, text, v.n) == 0;
}

static bool says_text(struct dcp_bytes args, const char *name, const char *text)
{
	return is_text(find_member(args, name), text);
}

static bool is_on(struct dcp_bytes args, const char *name)
{
	return says_text(args, name, "true");
}

static bool is_made_of(struct dcp_bytes v, const char *set)
{
	for (size_t i = 0; i < v.n; i++)
		if (!memchr(set, v.p[i], strlen(set)))
			return false;
	return v.n;
}

/* Read a number; n 0: missing, or not a number. */
static struct dcp_bytes read_number(struct dcp_bytes args, const char *name)
{
	struct dcp_bytes v = name ? find_member(args, name) : (struct dcp_bytes){ 0 };

	return v.n < MAX_DIGITS && is_made_of(v, "0123456789+-.eE") ? v
								    : (struct dcp_bytes){ 0 };
}

/* Read a whole number; 0: missing, or not a whole number. */
static uint64_t read_count(struct dcp_bytes args, const char *name)
{
	struct dcp_bytes v = read_number(args, name);
	const char *s = (const char *)v.p, *end;
	uint64_t n = 0;

	if (!v.n)
		return 0;
	end = s + v.n;
	return dcp_take_number(&s, end, DCP_ANY_DIGITS, &n) && s == end ? n : 0;
}

/* Is the argument @text, or missing, as in releases that did not have it? */
static bool is_or(struct dcp_bytes args, const char *name, const char *text)
{
	return !find_member(args, name).n || says_text(args, name, text);
}

/* Is it a GPT from before mid-2023, when positions were learned unless a separate argument said
 * otherwise? BERT and T5 had the same arguments, but other tokenizers. */
static bool is_early_gpt(struct dcp_bytes args)
{
	return !find_member(args, "position_embedding_type").n &&
	       !is_on(args, "use_rotary_position_embeddings") &&
	       is_or(args, "add_position_embedding", "true") &&
	       says_text(args, "tokenizer_type", "\"GPT2BPETokenizer\"");
}

/* Which model has these arguments? 0: an unknown model, or a variant that transformers does not
 * have. */
static unsigned model_of(struct dcp_bytes args)
{
	bool mla = is_on(args, "multi_latent_attention"),
	     moe = read_count(args, "num_experts") > 0,
	     shared = read_count(args, "moe_shared_expert_intermediate_size") > 0,
	     norms = is_on(args, "qk_layernorm"), bias = is_on(args, "add_qkv_bias");
	struct dcp_bytes percent = find_member(args, "rotary_percent");

	if (says_text(args, "position_embedding_type", "\"learned_absolute\"") ||
	    is_early_gpt(args))
		return !moe && !mla && !is_on(args, "swiglu") && !is_on(args, "squared_relu") &&
				       is_or(args, "add_bias_linear", "true") &&
				       is_or(args, "normalization", "\"LayerNorm\"")
			       ? GPT2
			       : 0;
	if (!says_text(args, "position_embedding_type", "\"rope\"") || !is_on(args, "swiglu") ||
	    is_on(args, "add_bias_linear") ||
	    !says_text(args, "normalization", "\"RMSNorm\"") ||
	    is_on(args, "apply_layernorm_1p") || is_on(args, "rotary_interleaved") ||
	    (percent.n && !is_text(percent, "1.0") && !is_text(percent, "1")))
		return 0;
	if (mla)
		return !moe ? 0
		       : says_text(args, "moe_router_score_function", "\"sigmoid\"")
			       ? DEEPSEEK_V3
			       : DEEPSEEK_V2;
	if (!moe)
		return norms ? QWEN3 : bias ? QWEN2 : LLAMA;
	if (!says_text(args, "moe_layer_freq", "1") && find_member(args, "moe_layer_freq").n)
		return 0;
	if (shared)
		return bias && is_on(args, "moe_shared_expert_gate") ? QWEN2_MOE : 0;
	return norms ? QWEN3_MOE : bias ? 0 : MIXTRAL;
}

static bool put_numbers(struct dcp_bytes args, unsigned model, struct dcp_jsonw *w)
{
	for (size_t i = 0; i < DCP_LEN(numbers); i++) {
		struct dcp_bytes v;

		if (!(numbers[i].of & model))
			continue;
		v = read_number(args, numbers[i].arg);
		if (!v.n)
			v = read_number(args, numbers[i].other);
		if (!v.n && numbers[i].must)
			return false;
		if (!v.n)
			continue;
		dcp_jsonw_key(w, numbers[i].name);
		dcp_jsonw_raw(w, (const char *)v.p, v.n);
	}
	return true;
}

/* Write the number of layers without experts if all of them come first: [0, 0, 1, 1]. False: any
 * other order. */
static bool put_dense_layers(struct dcp_bytes args, struct dcp_jsonw *w)
{
	struct dcp_bytes v = find_member(args, "moe_layer_freq");
	uint64_t dense = 0;
	bool experts = false;

	for (size_t i = 1; v.n && *v.p == '[' && i < v.n; i++) {
		if (v.p[i] == '0' && experts)
			return false;
		dense += v.p[i] == '0';
		experts |= v.p[i] == '1';
		if (!strchr("01, \n]", v.p[i]))
			return false;
	}
	if (v.n && *v.p != '[' && !is_text(v, "1"))
		return false;
	dcp_jsonw_put_u64(w, "first_k_dense_replace", dense);
	return true;
}

static bool put_deepseek(struct dcp_bytes args, struct dcp_jsonw *w)
{
	uint64_t each = read_count(args, "moe_ffn_hidden_size"),
		 shared = read_count(args, "moe_shared_expert_intermediate_size");

	if (!each || shared % each || !put_dense_layers(args, w))
		return false;
	dcp_jsonw_put_u64(w, "n_shared_experts", shared / each);
	dcp_jsonw_put_u64(w, "num_nextn_predict_layers", read_count(args, "mtp_num_layers"));
	dcp_jsonw_key(w, "q_lora_rank");
	if (read_count(args, "q_lora_rank"))
		dcp_jsonw_u64(w, read_count(args, "q_lora_rank"));
	else
		dcp_jsonw_null(w);
	return true;
}

static void put_factor(struct dcp_bytes args, const char *arg, const char *name,
		       struct dcp_jsonw *w)
{
	struct dcp_bytes v = read_number(args, arg);

	dcp_jsonw_key(w, name);
	dcp_jsonw_raw(w, v.n ? (const char *)v.p : "1.0", v.n ? v.n : 3);
}

/* Write the scaling of positions beyond those of the first training, as Llama 3.1 and DeepSeek use
 * it. */
static void put_rope(struct dcp_bytes args, unsigned model, struct dcp_jsonw *w)
{
	bool yarn = model & DEEPSEEK && !says_text(args, "rope_type", "\"rope\""),
	     llama = !(model & DEEPSEEK) && is_on(args, "use_rope_scaling");
	uint64_t trained = yarn ? read_count(args, "original_max_position_embeddings") : 0;

	if (!yarn && !llama)
		return;
	dcp_jsonw_put_object(w, "rope_scaling");
	dcp_jsonw_put_str(w, "rope_type", yarn ? "yarn" : "llama3");
	put_factor(args, yarn ? "rotary_scaling_factor" : "rope_scaling_factor", "factor", w);
	if (yarn) {
		put_factor(args, "mscale", "mscale", w);
		put_factor(args, "mscale_all_dim", "mscale_all_dim", w);
		dcp_jsonw_put_u64(w, "beta_fast", 32);
		dcp_jsonw_put_u64(w, "beta_slow", 1);
	} else {
		dcp_jsonw_key(w, "low_freq_factor");
		dcp_jsonw_raw(w, "1.0", 3);
		dcp_jsonw_key(w, "high_freq_factor");
		dcp_jsonw_raw(w, "4.0", 3);
	}
	dcp_jsonw_put_u64(w, "original_max_position_embeddings",
			  trained ? trained
			  : yarn  ? 4096
				  : 8192);
	dcp_jsonw_end(w);
}

static void put_rest(struct dcp_bytes args, unsigned model, struct dcp_jsonw *w)
{
	struct dcp_bytes dtype = find_member(args, "params_dtype");
	uint64_t groups = read_count(args, "num_query_groups");

	if (model == GPT2) {
		dcp_jsonw_put_str(w, "activation_function",
				  is_on(args, "openai_gelu")        ? "gelu_new"
				  : is_on(args, "bias_gelu_fusion") ? "gelu_fast"
								    : "gelu");
	} else {
		dcp_jsonw_put_str(w, "hidden_act", "silu");
		dcp_jsonw_put_u64(w, "num_key_value_heads",
				  is_on(args, "group_query_attention") && groups &&
						  !(model & DEEPSEEK)
					  ? groups
					  : read_count(args, "num_attention_heads"));
		put_rope(args, model, w);
	}
	if (model & (QWEN_MOE | DEEPSEEK))
		dcp_jsonw_put_bool(w, "norm_topk_prob",
				   model == DEEPSEEK_V3 ||
					   !is_on(args, "moe_router_pre_softmax"));
	dcp_jsonw_put_bool(w, "tie_word_embeddings",
			   !is_on(args, "untie_embeddings_and_output_weights"));
	for (size_t i = 0; i < 3; i++) {
		static const char *const known[] = { "bfloat16", "float16", "float32" };

		if (memmem(dtype.p ? (const void *)dtype.p : "", dtype.n, known[i],
			   strlen(known[i]))) {
			dcp_jsonw_put_str(w, "torch_dtype", known[i]);
			break;
		}
	}
}

int dcp_made_megatron(const char *json, size_t n, struct dcp_buf *out)
{
	const struct dcp_bytes whole = { (const uint8_t *)json, n };
	struct dcp_bytes args = find_member(whole, "state");
	unsigned model;
	struct dcp_jsonw w;
	bool ok;

	args = args.n && *args.p == '{' ? args : whole;
	model = model_of(args);
	if (!model)
		return 0;
	dcp_jsonw_init(&w, out, true);
	dcp_jsonw_object(&w);
	dcp_jsonw_put_str(
		&w, "inferred_by_dcpfs",
		"from the arguments of Megatron; what they do not say has the defaults "
		"of transformers");
	for (size_t i = 0; i < DCP_LEN(models); i++)
		if (models[i].of == model) {
			dcp_jsonw_put_array(&w, "architectures");
			dcp_jsonw_str(&w, models[i].class);
			dcp_jsonw_end(&w);
			dcp_jsonw_put_str(&w, "model_type", models[i].type);
		}
	ok = put_numbers(args, model, &w) && (!(model & DEEPSEEK) || put_deepseek(args, &w));
	put_rest(args, model, &w);
	dcp_jsonw_end(&w);
	dcp_buf_str(out, "\n");
	if (dcp_jsonw_error(&w))
		return dcp_jsonw_error(&w);
	return ok ? 1 : 0;
}
