/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tensors has a model? A line each, as transformers saves it: KEY LENGTH..., once for every
 * {l} of its layers and {e} of its experts. Letters before a colon say when:
 *
 *   t  may be missing where embeddings are tied    a b  attention has biases (b: unless it says not)
 *   d  layers without experts, m with them         B    the MLP has
 *   q  the query has a low rank, n has not         s    there are shared experts
 *   p  layers of multi-token prediction, which stand after the others and may be missing
 */
#include <stdio.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/base/number.h"
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

static const struct {
	const char *models, *lines;
} families[] = {
	{ " llama mistral gemma granite smollm3 ", ENDS NORMS ATTN BIASES MLP
	  "B:" L "mlp.gate_proj.bias intermediate\nB:" L "mlp.up_proj.bias intermediate\nB:" L
	  "mlp.down_proj.bias hidden\n" },
	{ " qwen2 ", ENDS NORMS ATTN QKV_BIAS("") MLP },
	{ " qwen3 ", ENDS NORMS ATTN BIASES QK_NORMS MLP },
	{ " qwen2_moe ",
	  ENDS NORMS ATTN QKV_BIAS("") DENSE EXPERTS GATED(
		  "m:" L "mlp.shared_expert.",
		  "shared_intermediate") "m:" L "mlp.shared_expert_gate.weight 1 hidden\n" },
	{ " qwen3_moe ", ENDS NORMS ATTN BIASES QK_NORMS DENSE EXPERTS },
	{ " mixtral ",
	  ENDS NORMS ATTN L "block_sparse_moe.gate.weight experts hidden\n" L
			    "block_sparse_moe.experts.{e}.w1.weight intermediate hidden\n" L
			    "block_sparse_moe.experts.{e}.w2.weight hidden intermediate\n" L
			    "block_sparse_moe.experts.{e}.w3.weight intermediate hidden\n" },
	{ " gpt_oss ",
	  ENDS NORMS ATTN QKV_BIAS(
		  "b:") "b:" L "self_attn.o_proj.bias hidden\n" L "self_attn.sinks heads\n" L
			"mlp.router.weight experts hidden\n" L "mlp.router.bias experts\n" L
			"mlp.experts.gate_up_proj experts hidden 2*intermediate\n" L
			"mlp.experts.gate_up_proj_bias experts 2*intermediate\n" L
			"mlp.experts.down_proj experts intermediate hidden\n" L
			"mlp.experts.down_proj_bias experts hidden\n" },
	{ " deepseek_v2 ", ENDS NORMS MLA DENSE EXPERTS SHARED },
	{ " deepseek_v3 kimi_k2 ", ENDS NORMS MLA DENSE EXPERTS SHARED PREDICTION
	  "m:" L "mlp.gate.e_score_correction_bias experts\n" },
	{ " gemma2 ", ENDS NORMS FF_NORMS ATTN BIASES MLP },
	{ " gemma3_text ", ENDS NORMS FF_NORMS ATTN BIASES QK_NORMS MLP },
	{ " olmo2 ", ENDS POST_NORM L "post_feedforward_layernorm.weight hidden\n" ATTN BIASES L
				      "self_attn.q_norm.weight heads*head_dim\n" L
				      "self_attn.k_norm.weight kv_heads*head_dim\n" MLP },
	{ " phi3 ",
	  ENDS NORMS L "self_attn.qkv_proj.weight heads*head_dim+2*kv_heads*head_dim hidden\n" L
		       "self_attn.o_proj.weight hidden heads*head_dim\n" L
		       "mlp.gate_up_proj.weight 2*intermediate hidden\n" L
		       "mlp.down_proj.weight hidden intermediate\n" },
#undef L
#define L "gpt_neox.layers.{l}."
	{ " gpt_neox ",
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
	{ " gpt2 ",
	  "transformer.wte.weight vocab hidden\ntransformer.wpe.weight positions hidden\n"
	  "t:lm_head.weight vocab hidden\n" BOTH("transformer.ln_f", "hidden")
		  BOTH(L "ln_1", "hidden") BOTH(L "ln_2", "hidden") L
	  "attn.c_attn.weight hidden 3*hidden\n" L
	  "attn.c_attn.bias 3*hidden\n" BOTH(L "attn.c_proj", "hidden hidden") L
	  "mlp.c_fc.weight hidden intermediate\n" L
	  "mlp.c_fc.bias intermediate\n" BOTH(L "mlp.c_proj", "intermediate hidden") },
#undef L
#define L "transformer.blocks.{l}."
	{ " mpt ",
	  "transformer.wte.weight vocab hidden\ntransformer.norm_f.weight hidden\n"
	  "t:lm_head.weight vocab hidden\n" L "norm_1.weight hidden\n" L
	  "norm_2.weight hidden\n" L "attn.Wqkv.weight 3*hidden hidden\n" L
	  "attn.out_proj.weight hidden hidden\n" L "ffn.up_proj.weight 4*hidden hidden\n" L
	  "ffn.down_proj.weight hidden 4*hidden\n" },
};

struct expecting {
	const struct dcp_rules_config *config;
	dcp_rules_expect_fn *fn;
	void *ctx;
};

/* The product at *@s, of words and numbers; 0: config.json does not say, or it is too large. */
static uint64_t product(const struct expecting *t, const char **s)
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
static void lengths(const struct expecting *t, const char *s, struct dcp_rules_expected *out)
{
	bool known = true;

	out->ndim = 0;
	while (*s++ == ' ') {
		uint64_t sum = 0, v;

		do {
			v = product(t, &s);
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

/* Is the line meant, in this layer? */
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

static int expect_line(const struct expecting *t, const char *line)
{
	const char *colon = strchr(line, ':'), *end = strchr(line, '\n'), *key = line, *blank;
	const struct dcp_rules_config *c = t->config;
	struct dcp_rules_expected x = { 0 };
	uint64_t layers = 1, experts = 1;
	bool tied;
	int rc = 0;

	if (colon && colon < end)
		key = colon + 1;
	blank = strchr(key, ' ');
	tied = key > line && memchr(line, 't', (size_t)(key - line)) && c->tie != 0;
	lengths(t, blank, &x);
	if (memmem(key, (size_t)(blank - key), "{l}", 3))
		layers = c->layers + c->mtp_layers;
	if (memmem(key, (size_t)(blank - key), "{e}", 3))
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
			x.optional = tied || l >= c->layers;
			rc = t->fn(t->ctx, &x);
		}
	}
	return rc;
}

int dcp_rules_expect(const struct dcp_rules_config *c, dcp_rules_expect_fn *fn, void *ctx)
{
	const struct expecting t = { c, fn, ctx };
	const char *lines = NULL;
	char name[sizeof(c->model_type) + 2];
	uint64_t most; /* layers, and times experts */
	int rc = 0;

	snprintf(name, sizeof(name), " %s ", c->model_type);
	for (size_t i = 0;
	     !strchr(c->model_type, ' ') && c->model_type[0] && i < DCP_LEN(families); i++)
		if (strstr(families[i].models, name))
			lines = families[i].lines;
	if (!lines || !c->layers || dcp_ckd_add(&most, c->layers, c->mtp_layers) ||
	    dcp_ckd_mul(&most, most, DCP_MAX(c->experts, 1)) || most > MOST)
		return 0;
	for (; rc == 0 && *lines; lines = strchr(lines, '\n') + 1)
		rc = expect_line(&t, lines);
	return rc < 0 ? rc : 1;
}
