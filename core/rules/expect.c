/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a model, one on each line, as transformers saves it: KEY LENGTH..., once for every
 * {l} of its layers and {e} of its experts. Letters before a colon are conditions:
 *
 *   t  may be missing if embeddings are tied       a b  attention has biases (b: by default)
 *   d  layers without experts, m with them         B    the MLP has biases
 *   q  the query has a low rank, n has not         s    there are shared experts
 *   p  layers of multi-token prediction, which stand after the others and may be missing
 *   o  may be missing
 *
 * A length of ? is not known. A family also has the prefix that its keys lose in a model without
 * its head. Of some families only a few tensors are listed, enough to find the prefix of all.
 */
#include <stdio.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/base/text.h"
#include "core/rules/rules_int.h"

enum { MOST = 1 << 20 }; /* layers times experts */

#define L "model.layers.{l}."
#define ENDS                                                                                   \
	"model.embed_tokens.weight vocab hidden\nmodel.norm.weight hidden\n"                   \
	"t:lm_head.weight vocab hidden\n"
#define IN_NORM L "input_layernorm.weight hidden\n"
#define POST_NORM L "post_attention_layernorm.weight hidden\n"
#define NORMS IN_NORM POST_NORM
#define ATTN                                                                                   \
	L "self_attn.q_proj.weight heads*head_dim hidden\n" L                                  \
	  "self_attn.k_proj.weight kv_heads*head_dim hidden\n" L                               \
	  "self_attn.v_proj.weight kv_heads*head_dim hidden\n" L                               \
	  "self_attn.o_proj.weight hidden heads*head_dim\n"
#define QKV_BIAS(when)                                                                         \
	when L "self_attn.q_proj.bias heads*head_dim\n" when L                                 \
	       "self_attn.k_proj.bias kv_heads*head_dim\n" when L                              \
	       "self_attn.v_proj.bias kv_heads*head_dim\n"
#define BIASES QKV_BIAS("a:") "a:" L "self_attn.o_proj.bias hidden\n"
#define QK_NORMS L "self_attn.q_norm.weight head_dim\n" L "self_attn.k_norm.weight head_dim\n"
#define GATED(at, n)                                                                           \
	at "gate_proj.weight " n " hidden\n" at "up_proj.weight " n " hidden\n" at             \
	   "down_proj.weight hidden " n "\n"
#define MLP GATED(L "mlp.", "intermediate")
#define DENSE GATED("d:" L "mlp.", "intermediate")
#define EXPERTS                                                                                \
	"m:" L "mlp.gate.weight experts hidden\n" GATED("m:" L "mlp.experts.{e}.",             \
							"moe_intermediate")
#define FF_NORMS                                                                               \
	L "pre_feedforward_layernorm.weight hidden\n" L                                        \
	  "post_feedforward_layernorm.weight hidden\n"
#define MLA                                                                                    \
	"q:" L "self_attn.q_a_proj.weight q_rank hidden\nq:" L                                 \
	"self_attn.q_a_layernorm.weight q_rank\nq:" L                                          \
	"self_attn.q_b_proj.weight heads*nope_dim+heads*rope_dim q_rank\nn:" L                 \
	"self_attn.q_proj.weight heads*nope_dim+heads*rope_dim hidden\n" L                     \
	"self_attn.kv_a_proj_with_mqa.weight kv_rank+rope_dim hidden\n" L                      \
	"self_attn.kv_a_layernorm.weight kv_rank\n" L                                          \
	"self_attn.kv_b_proj.weight heads*nope_dim+heads*v_dim kv_rank\n" L                    \
	"self_attn.o_proj.weight hidden heads*v_dim\n"
#define SHARED GATED("sm:" L "mlp.shared_experts.", "shared_experts*moe_intermediate")
#define PREDICTION                                                                             \
	"p:" L "enorm.weight hidden\np:" L "hnorm.weight hidden\np:" L                         \
	"eh_proj.weight hidden 2*hidden\np:" L "shared_head.norm.weight hidden\np:" L          \
	"shared_head.head.weight vocab hidden\np:" L "embed_tokens.weight vocab hidden\n"
#define BOTH(key, n) key ".weight " n "\n" key ".bias hidden\n"
#define LINEAR(key, out, in) key ".weight " out " " in "\n" key ".bias " out "\n"
#define BERT(at)                                                                               \
	at "embeddings.word_embeddings.weight vocab hidden\n" at                               \
	   "embeddings.position_embeddings.weight positions hidden\n" at                       \
	   "embeddings.token_type_embeddings.weight ? hidden\n" BOTH(                          \
		   at "embeddings.LayerNorm",                                                  \
		   "hidden") "o:" at "pooler.dense.weight hidden hidden\no:" at                \
			     "pooler.dense.bias hidden\n" BERT_LAYER(at "encoder.layer.{l}.")
#define BERT_LAYER(at)                                                                         \
	LINEAR(at "attention.self.query", "hidden", "hidden")                                  \
	LINEAR(at "attention.self.key", "hidden", "hidden")                                    \
	LINEAR(at "attention.self.value", "hidden", "hidden")                                  \
	LINEAR(at "attention.output.dense", "hidden", "hidden")                                \
	BOTH(at "attention.output.LayerNorm", "hidden")                                        \
	LINEAR(at "intermediate.dense", "intermediate", "hidden")                              \
	LINEAR(at "output.dense", "hidden", "intermediate")                                    \
	BOTH(at "output.LayerNorm", "hidden")

static const struct {
	const char *models, *base, *lines;
	bool some; /* the list is not complete */
} families[] = {
	{ " llama mistral gemma granite smollm3 ", "model.",
	  ENDS NORMS ATTN BIASES MLP "B:" L "mlp.gate_proj.bias intermediate\nB:" L
				     "mlp.up_proj.bias intermediate\nB:" L
				     "mlp.down_proj.bias hidden\n" },
	{ " qwen2 ", "model.", ENDS NORMS ATTN QKV_BIAS("") MLP },
	{ " qwen3 ", "model.", ENDS NORMS ATTN BIASES QK_NORMS MLP },
	{ " qwen2_moe ", "model.",
	  ENDS NORMS ATTN QKV_BIAS("") DENSE EXPERTS GATED(
		  "m:" L "mlp.shared_expert.",
		  "shared_intermediate") "m:" L "mlp.shared_expert_gate.weight 1 hidden\n" },
	{ " qwen3_moe ", "model.", ENDS NORMS ATTN BIASES QK_NORMS DENSE EXPERTS },
	{ " mixtral ", "model.",
	  ENDS NORMS ATTN L "block_sparse_moe.gate.weight experts hidden\n" L
			    "block_sparse_moe.experts.{e}.w1.weight intermediate hidden\n" L
			    "block_sparse_moe.experts.{e}.w2.weight hidden intermediate\n" L
			    "block_sparse_moe.experts.{e}.w3.weight intermediate hidden\n" },
	{ " gpt_oss ", "model.",
	  ENDS NORMS ATTN QKV_BIAS(
		  "b:") "b:" L "self_attn.o_proj.bias hidden\n" L "self_attn.sinks heads\n" L
			"mlp.router.weight experts hidden\n" L "mlp.router.bias experts\n" L
			"mlp.experts.gate_up_proj experts hidden 2*intermediate\n" L
			"mlp.experts.gate_up_proj_bias experts 2*intermediate\n" L
			"mlp.experts.down_proj experts intermediate hidden\n" L
			"mlp.experts.down_proj_bias experts hidden\n" },
	{ " deepseek_v2 ", "model.", ENDS NORMS MLA DENSE EXPERTS SHARED },
	{ " deepseek_v3 kimi_k2 ", "model.",
	  ENDS NORMS MLA DENSE EXPERTS SHARED PREDICTION
	  "m:" L "mlp.gate.e_score_correction_bias experts\n" },
	{ " gemma2 ", "model.", ENDS NORMS FF_NORMS ATTN BIASES MLP },
	{ " gemma3_text ", "model.", ENDS NORMS FF_NORMS ATTN BIASES QK_NORMS MLP },
	{ " olmo2 ", "model.",
	  ENDS POST_NORM L "post_feedforward_layernorm.weight hidden\n" ATTN BIASES L
			   "self_attn.q_norm.weight heads*head_dim\n" L
			   "self_attn.k_norm.weight kv_heads*head_dim\n" MLP },
	{ " phi3 ", "model.",
	  ENDS NORMS L "self_attn.qkv_proj.weight heads*head_dim+2*kv_heads*head_dim hidden\n" L
		       "self_attn.o_proj.weight hidden heads*head_dim\n" L
		       "mlp.gate_up_proj.weight 2*intermediate hidden\n" L
		       "mlp.down_proj.weight hidden intermediate\n" },
#undef L
#define L "gpt_neox.layers.{l}."
	{ " gpt_neox ", "gpt_neox.",
	  "gpt_neox.embed_in.weight vocab hidden\nt:embed_out.weight vocab hidden\n" BOTH(
		  "gpt_neox.final_layer_norm", "hidden") BOTH(L "input_layernorm", "hidden")
		  BOTH(L "post_attention_layernorm", "hidden") L
	  "attention.query_key_value.weight 3*hidden hidden\nb:" L
	  "attention.query_key_value.bias 3*hidden\n" L
	  "attention.dense.weight hidden hidden\nb:" L "attention.dense.bias hidden\n" L
	  "mlp.dense_h_to_4h.weight intermediate hidden\n" L
	  "mlp.dense_h_to_4h.bias intermediate\n" BOTH(L "mlp.dense_4h_to_h",
						       "hidden intermediate") },
#undef L
#define L "transformer.h.{l}."
	{ " gpt2 ", "transformer.",
	  "transformer.wte.weight vocab hidden\ntransformer.wpe.weight positions hidden\n"
	  "t:lm_head.weight vocab hidden\n" BOTH("transformer.ln_f", "hidden")
		  BOTH(L "ln_1", "hidden") BOTH(L "ln_2", "hidden") L
	  "attn.c_attn.weight hidden 3*hidden\n" L
	  "attn.c_attn.bias 3*hidden\n" BOTH(L "attn.c_proj", "hidden hidden") L
	  "mlp.c_fc.weight hidden intermediate\n" L
	  "mlp.c_fc.bias intermediate\n" BOTH(L "mlp.c_proj", "intermediate hidden") },
#undef L
#define L "transformer.blocks.{l}."
	{ " mpt ", "transformer.",
	  "transformer.wte.weight vocab hidden\ntransformer.norm_f.weight hidden\n"
	  "t:lm_head.weight vocab hidden\n" L "norm_1.weight hidden\n" L
	  "norm_2.weight hidden\n" L "attn.Wqkv.weight 3*hidden hidden\n" L
	  "attn.out_proj.weight hidden hidden\n" L "ffn.up_proj.weight 4*hidden hidden\n" L
	  "ffn.down_proj.weight hidden 4*hidden\n" },
	{ " bert ", "bert.", BERT("bert.") },
	{ " roberta xlm-roberta camembert ", "roberta.", BERT("roberta.") },
#undef L
#define L "distilbert.transformer.layer.{l}."
	{ " distilbert ", "distilbert.",
	  "distilbert.embeddings.word_embeddings.weight vocab hidden\n"
	  "distilbert.embeddings.position_embeddings.weight positions hidden\n" BOTH(
		  "distilbert.embeddings.LayerNorm", "hidden")
		  LINEAR(L "attention.q_lin", "hidden", "hidden") LINEAR(L "attention.k_lin",
									 "hidden", "hidden")
			  LINEAR(L "attention.v_lin", "hidden", "hidden")
				  LINEAR(L "attention.out_lin", "hidden", "hidden")
					  LINEAR(L "ffn.lin1", "intermediate", "hidden")
						  LINEAR(L "ffn.lin2", "hidden", "intermediate")
							  BOTH(L "sa_layer_norm", "hidden")
								  BOTH(L "output_layer_"
									 "norm",
								       "hidden") },
	{ " arcee bitnet cohere cohere2 dots1 ernie4_5 exaone4 glm glm4 glm4_moe granitemoe "
	  "helium "
	  "hunyuan_v1_dense minimax nemotron olmoe qwen3_next seed_oss stablelm starcoder2 ",
	  "model.", "model.embed_tokens.weight\nmodel.norm.weight\n", true },
	{ " phi ", "model.", "model.embed_tokens.weight\nmodel.final_layernorm.weight\n",
	  true },
	{ " bloom falcon ", "transformer.",
	  "transformer.word_embeddings.weight\ntransformer.ln_f.weight\n", true },
	{ " gptj gpt_bigcode codegen ", "transformer.",
	  "transformer.wte.weight\ntransformer.ln_f.weight\n", true },
	{ " opt ", "model.",
	  "model.decoder.embed_tokens.weight\nmodel.decoder.embed_positions.weight\n", true },
	{ " t5 mt5 umt5 ", "", "shared.weight\nencoder.final_layer_norm.weight\n", true },
	{ " whisper ", "model.",
	  "model.encoder.conv1.weight\nmodel.decoder.embed_tokens.weight\n", true },
	{ " vit ", "vit.", "vit.embeddings.cls_token\nvit.layernorm.weight\n", true },
	{ " UNet2DConditionModel UNet2DModel UNet3DConditionModel UNetMotionModel "
	  "UNetSpatioTemporalConditionModel ",
	  "",
	  "conv_in.weight\nconv_in.bias\ntime_embedding.linear_1.weight\n"
	  "conv_out.weight\nconv_out.bias\n",
	  true },
	{ " AutoencoderKL VQModel ", "",
	  "encoder.conv_in.weight\nencoder.conv_out.weight\ndecoder.conv_in.weight\n"
	  "decoder.conv_out.weight\n",
	  true },
	{ " FluxTransformer2DModel ", "",
	  "x_embedder.weight\ncontext_embedder.weight\nproj_out.weight\n", true },
	{ " WanTransformer3DModel ", "", "patch_embedding.weight\nproj_out.weight\n", true },
	{ " CogVideoXTransformer3DModel ", "", "patch_embed.proj.weight\nproj_out.weight\n",
	  true },
	{ " QwenImageTransformer2DModel ", "",
	  "img_in.weight\ntxt_in.weight\nproj_out.weight\n", true },
	{ " SD3Transformer2DModel ", "",
	  "pos_embed.proj.weight\ncontext_embedder.weight\nproj_out.weight\n", true },
};

/* Components of keys of optimizers begin with one of these; with a dot: the whole component. */
static const char *const training[] = { "optim",
					"exp_avg",
					"max_exp_avg",
					"momentum_buffer",
					"moment1",
					"moment2",
					"grad.",
					"grads.",
					"gradient",
					"square_avg",
					"adam",
					"opt.",
					"opt_state",
					"mu.",
					"nu.",
					"step.",
					"velocity",
					"param_groups",
					"frozen_param_fragments" };

bool dcp_rules_is_training(const char *key)
{
	for (const char *s = key; *s; s += *s != '\0') {
		size_t here = strcspn(s, "./");

		for (size_t i = 0; i < DCP_LEN(training); i++) {
			size_t n = strlen(training[i]), whole = training[i][n - 1] == '.';

			if (strncmp(s, training[i], n - whole) == 0 &&
			    (!whole || here == n - 1))
				return true;
		}
		s += here;
	}
	return false;
}

struct expecting {
	const struct dcp_rules_config *config;
	const char *base;
	dcp_rules_expect_fn *fn;
	void *ctx;
};

/* The product at *@s, of words and numbers; 0: config.json does not say, or it is too large. */
static uint64_t read_product(const struct expecting *t, const char **s)
{
	uint64_t out = 1;

	do {
		size_t n = strcspn(*s, "*+ \n");
		struct amount one = { .n = 1 };
		uint64_t v = 0;

		one.f[0].word = dcp_rules_word_at(*s, n);
		dcp_take_number(&(const char *){ *s }, NULL, DCP_ANY_DIGITS, &one.f[0].value);
		if (dcp_rules_amount(&one, t->config, &v, NULL) < 0 ||
		    dcp_ckd_mul(&out, out, v))
			out = 0;
		*s += n;
	} while (*(*s)++ == '*');
	--*s;
	return out;
}

/* The lengths at @s; ndim 0 if one of them is not known. */
static void read_lengths(const struct expecting *t, const char *s,
			 struct dcp_rules_expected *out)
{
	bool known = true;

	out->ndim = 0;
	while (*s++ == ' ') {
		uint64_t sum = 0, v;

		do {
			v = read_product(t, &s);
			known &= v && !dcp_ckd_add(&sum, sum, v);
		} while (*s == '+' && s++);
		out->shape[out->ndim++] = sum;
	}
	if (!known)
		out->ndim = 0;
}

static bool is_moe(const struct dcp_rules_config *c, uint64_t layer)
{
	return c->experts && layer >= c->dense_layers &&
	       (c->moe_step < 2 || (layer + 1) % c->moe_step == 0);
}

/* Do the conditions of the line hold for this layer? */
static bool is_meant(const struct dcp_rules_config *c, const char *when, size_t n,
		     uint64_t layer)
{
	bool meant = true;

	for (size_t i = 0; i < n; i++)
		meant &= when[i] == 'p'   ? layer >= c->layers
			 : when[i] == 'a' ? c->attention_bias == 1
			 : when[i] == 'b' ? c->attention_bias != 0
			 : when[i] == 'B' ? c->mlp_bias == 1
			 : when[i] == 'd' ? !is_moe(c, layer)
			 : when[i] == 'm' ? is_moe(c, layer)
			 : when[i] == 'q' ? c->q_rank != 0
			 : when[i] == 'n' ? c->q_rank == 0
			 : when[i] == 's' ? c->shared_experts != 0
					  : true;
	return meant;
}

/* Is it a classifier, or a model without a head? The tensors after its layers differ from those of
 * a language model. */
static bool has_other_head(const struct dcp_rules_config *c)
{
	return c->architecture[0] && !strstr(c->architecture, "CausalLM") &&
	       !strstr(c->architecture, "LMHead");
}

static int expect_line(const struct expecting *t, const char *line)
{
	const char *colon = strchr(line, ':'), *end = strchr(line, '\n'), *key = line, *blank;
	const struct dcp_rules_config *c = t->config;
	struct dcp_rules_expected x = { 0 };
	uint64_t layers = 1, experts = 1;
	bool may_miss;
	int rc = 0;

	if (colon && colon < end)
		key = colon + 1;
	blank = key + strcspn(key, " \n");
	may_miss = key > line && ((memchr(line, 't', (size_t)(key - line)) &&
				   (c->tie != 0 || has_other_head(c))) ||
				  memchr(line, 'o', (size_t)(key - line)));
	read_lengths(t, blank, &x);
	if (memmem(key, (size_t)(blank - key), "{l}", 3))
		layers = c->layers + c->mtp_layers;
	x.of_expert = memmem(key, (size_t)(blank - key), "{e}", 3);
	if (x.of_expert)
		experts = c->experts;
	for (uint64_t l = 0; l < layers; l++) {
		if (!is_meant(c, line, (size_t)(key - line), l))
			continue;
		for (uint64_t e = 0; rc == 0 && e < experts; e++) {
			char text[200];
			size_t n = 0;

			for (const char *s = key; s < blank; s++) {
				if (*s != '{') {
					text[n++] = *s;
					continue;
				}
				n += (size_t)snprintf(
					text + n, 24, "%llu",
					(unsigned long long)(s[1] == 'l' ? l : e));
				s += 2;
			}
			text[n] = '\0';
			x.key = text;
			x.bare = text + (strncmp(text, t->base, strlen(t->base)) == 0
						 ? strlen(t->base)
						 : 0);
			x.optional = may_miss || (layers > 1 && l >= c->layers);
			rc = t->fn(t->ctx, &x);
		}
	}
	return rc;
}

/* The family of the model, or -1. */
static int find_family(const struct dcp_rules_config *c)
{
	const char *is = c->model_type[0] ? c->model_type : c->class_name;
	char name[sizeof(c->model_type) + 2];

	snprintf(name, sizeof(name), " %s ", is);
	for (size_t i = 0; !strchr(is, ' ') && *is && i < DCP_LEN(families); i++)
		if (strstr(families[i].models, name))
			return (int)i;
	return -1;
}

bool dcp_rules_has_head(const struct dcp_rules_config *c, const char *key)
{
	int i = find_family(c);
	const char *base = i < 0 ? "" : families[i].base;

	return *base && strncmp(key, base, strlen(base)) != 0 && !dcp_rules_is_training(key) &&
	       (has_other_head(c) || !strstr(families[i].lines, "t:"));
}

int dcp_rules_expect(const struct dcp_rules_config *c, dcp_rules_expect_fn *fn, void *ctx)
{
	int i = find_family(c), rc = 0;
	const struct expecting t = { c, i < 0 ? "" : families[i].base, fn, ctx };
	const char *lines = i < 0 ? NULL : families[i].lines;
	uint64_t most; /* number of layers, multiplied by the experts if a line counts them */

	if (!lines || (!c->layers && !families[i].some) ||
	    dcp_ckd_add(&most, c->layers, c->mtp_layers) ||
	    dcp_ckd_mul(&most, most, DCP_MAX(c->experts, 1)) || most > MOST)
		return 0;
	for (; rc == 0 && *lines; lines = strchr(lines, '\n') + 1)
		rc = expect_line(&t, lines);
	return rc < 0 ? rc : families[i].some ? DCP_RULES_SOME : DCP_RULES_ALL;
}
