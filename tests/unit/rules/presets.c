/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Presets: the keys and shapes that each framework stores of a small model become those of its
 * Hugging Face model, all of them and nothing else, and the preset is found by them.
 */
#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/rules/rules.h"
#include "tests/unit/t.h"
#include "tests/unit/t/sink.h"

/* "KEY 24 10": a line each, {i} and {e} for 0 and 1. */
#define LLAMA_LAYER                                                                            \
	"model.layers.{i}.self_attn.q_proj.weight 24 10\n"                                     \
	"model.layers.{i}.self_attn.k_proj.weight 12 10\n"                                     \
	"model.layers.{i}.self_attn.v_proj.weight 12 10\n"                                     \
	"model.layers.{i}.self_attn.o_proj.weight 10 24\n"                                     \
	"model.layers.{i}.input_layernorm.weight 10\n"                                         \
	"model.layers.{i}.post_attention_layernorm.weight 10\n"
#define LLAMA_ENDS                                                                             \
	"model.embed_tokens.weight 20 10\nmodel.norm.weight 10\nlm_head.weight 20 10\n"
#define LLAMA_MLP                                                                              \
	"model.layers.{i}.mlp.gate_proj.weight 8 10\nmodel.layers.{i}.mlp.up_proj.weight 8 "   \
	"10\n"                                                                                 \
	"model.layers.{i}.mlp.down_proj.weight 10 8\n"
#define LLAMA LLAMA_ENDS LLAMA_LAYER LLAMA_MLP
#define QWEN3_NORMS                                                                            \
	"model.layers.{i}.self_attn.q_norm.weight "                                            \
	"6\nmodel.layers.{i}.self_attn.k_norm.weight 6\n"
#define EXPERTS                                                                                \
	"model.layers.{i}.mlp.gate.weight 2 10\n"                                              \
	"model.layers.{i}.mlp.experts.{e}.gate_proj.weight 8 10\n"                             \
	"model.layers.{i}.mlp.experts.{e}.up_proj.weight 8 10\n"                               \
	"model.layers.{i}.mlp.experts.{e}.down_proj.weight 10 8\n"

#define TITAN_ENDS "tok_embeddings.weight 20 10\nnorm.weight 10\n"
#define TITAN_FFN                                                                              \
	"layers.{i}.feed_forward.w1.weight 8 10\nlayers.{i}.feed_forward.w3.weight 8 10\n"     \
	"layers.{i}.feed_forward.w2.weight 10 8\n"
#define TITAN_NORMS "layers.{i}.attention_norm.weight 10\nlayers.{i}.ffn_norm.weight 10\n"
#define TITAN_ATTENTION(in)                                                                    \
	"layers.{i}.attention." in "wq.weight 24 10\nlayers.{i}.attention." in                 \
	"wk.weight 12 10\nlayers.{i}.attention." in                                            \
	"wv.weight 12 10\nlayers.{i}.attention.wo.weight 10 24\n"
#define TITAN_EXPERTS(at, w1, w3, w2)                                                          \
	"layers.{i}.moe.router.gate.weight 2 10\nlayers.{i}.moe." at w1                        \
	" 2 8 10\nlayers.{i}.moe." at w3 " 2 8 10\nlayers.{i}.moe." at w2 " 2 10 8\n"

/* clang-format off */
static const struct {
	const char *preset, *model, *source, *want;
} cases[] = {
	{ "torchtitan-llama3", "llama",
	  TITAN_ENDS "lm_head.weight 20 10\n" TITAN_ATTENTION("qkv_linear.") TITAN_FFN TITAN_NORMS
	  "optimizer.state.norm.weight.exp_avg 10\n", LLAMA },
	{ "lora", "",
	  "unet.mid.to_q.lora_A.weight 4 6\nunet.mid.to_q.lora_B.weight 6 4\nunet.mid.to_q.alpha 1\noptimizer.state.exp_avg 4\n",
	  "unet.mid.to_q.lora_A.weight 4 6\nunet.mid.to_q.lora_B.weight 6 4\nunet.mid.to_q.alpha 1\n" },
	{ "torchtitan-llama3", "llama", /* gate and up in turn */
	  TITAN_ENDS "lm_head.weight 20 10\n" TITAN_ATTENTION("qkv_linear.") TITAN_NORMS
	  "layers.{i}.feed_forward.w13.weight 16 10\nlayers.{i}.feed_forward.w2.weight 10 8\n", LLAMA },
	{ "torchtitan-llama3", "llama", /* stacked */
	  TITAN_ENDS "lm_head.weight 20 10\n" TITAN_ATTENTION("qkv_linear.") TITAN_NORMS
	  "layers.{i}.feed_forward.w13.weight 2 8 10\nlayers.{i}.feed_forward.w2.weight 10 8\n", LLAMA },
	{ "torchtitan-qwen3", "qwen3_moe", /* experts */
	  TITAN_ENDS "lm_head.weight 20 10\n" TITAN_ATTENTION("qkv_linear.") TITAN_NORMS
	  "layers.{i}.attention.q_norm.weight 6\nlayers.{i}.attention.k_norm.weight 6\nlayers.{i}.moe.router.gate.weight 2 10\n"
	  "layers.{i}.moe.routed_experts.inner_experts.w13 2 8 2 10\nlayers.{i}.moe.routed_experts.inner_experts.w2_EDF 2 10 8\n",
	  LLAMA_ENDS LLAMA_LAYER QWEN3_NORMS EXPERTS },
	{ "meta", "llama",
	  TITAN_ENDS "output.weight 20 10\nrope.freqs 3\n" TITAN_ATTENTION("") TITAN_FFN TITAN_NORMS, LLAMA },
	{ "meta", "llama", /* torchtitan, whole state dicts with a prefix */
	  "model.tok_embeddings.weight 20 10\nmodel.norm.weight 10\nmodel.output.weight 20 10\n"
	  "model.layers.{i}.attention.wq.weight 24 10\nmodel.layers.{i}.feed_forward.w1.weight 8 10\n",
	  LLAMA_ENDS "model.layers.{i}.self_attn.q_proj.weight 24 10\nmodel.layers.{i}.mlp.gate_proj.weight 8 10\n" },
	{ "torchtitan-qwen3", "qwen3",
	  TITAN_ENDS "output.weight 20 10\n" TITAN_ATTENTION("") TITAN_FFN TITAN_NORMS
	  "layers.{i}.attention.q_norm.weight 6\nlayers.{i}.attention.k_norm.weight 6\n", LLAMA QWEN3_NORMS },
	{ "torchtitan-qwen3", "qwen3_moe",
	  TITAN_ENDS "lm_head.weight 20 10\n" TITAN_ATTENTION("qkv_linear.") TITAN_NORMS
	  "layers.{i}.attention.q_norm.weight 6\nlayers.{i}.attention.k_norm.weight 6\n"
	  TITAN_EXPERTS("routed_experts.inner_experts.", "w1_EFD", "w3_EFD", "w2_EDF"),
	  LLAMA_ENDS LLAMA_LAYER QWEN3_NORMS EXPERTS },
	{ "torchtitan-deepseek-v3", "deepseek_v3",
	  TITAN_ENDS "output.weight 20 10\n" TITAN_NORMS TITAN_EXPERTS("experts.", "w1", "w3", "w2")
	  "layers.{i}.attention.wq_a.weight 4 10\nlayers.{i}.attention.q_norm.weight 4\n"
	  "layers.{i}.attention.wq_b.weight 24 4\nlayers.{i}.attention.wkv_a.weight 5 10\n"
	  "layers.{i}.attention.kv_norm.weight 3\nlayers.{i}.attention.wkv_b.weight 40 3\n"
	  "layers.{i}.attention.wo.weight 10 24\nlayers.{i}.moe.expert_bias 2\n"
	  "layers.{i}.moe.shared_experts.w1.weight 8 10\nlayers.{i}.moe.shared_experts.w2.weight 10 8\n"
	  "layers.{i}.moe.shared_experts.w3.weight 8 10\n",
	  LLAMA_ENDS EXPERTS "model.layers.{i}.input_layernorm.weight 10\n"
	  "model.layers.{i}.post_attention_layernorm.weight 10\nmodel.layers.{i}.self_attn.o_proj.weight 10 24\n"
	  "model.layers.{i}.self_attn.q_a_proj.weight 4 10\nmodel.layers.{i}.self_attn.q_a_layernorm.weight 4\n"
	  "model.layers.{i}.self_attn.q_b_proj.weight 24 4\nmodel.layers.{i}.self_attn.kv_a_proj_with_mqa.weight 5 10\n"
	  "model.layers.{i}.self_attn.kv_a_layernorm.weight 3\nmodel.layers.{i}.self_attn.kv_b_proj.weight 40 3\n"
	  "model.layers.{i}.mlp.gate.e_score_correction_bias 2\n"
	  "model.layers.{i}.mlp.shared_experts.gate_proj.weight 8 10\n"
	  "model.layers.{i}.mlp.shared_experts.up_proj.weight 8 10\n"
	  "model.layers.{i}.mlp.shared_experts.down_proj.weight 10 8\n" },
	{ "torchtitan-gpt-oss", "gpt_oss",
	  TITAN_ENDS "lm_head.weight 20 10\n" TITAN_ATTENTION("qkv_linear.") TITAN_NORMS "layers.{i}.attention.sinks 4\n"
	  "layers.{i}.attention.qkv_linear.wk.bias 12\nlayers.{i}.moe.expert_bias_E 2\n"
	  "layers.{i}.moe.router.gate.weight 2 10\nlayers.{i}.moe.router.gate.bias 2\n"
	  "layers.{i}.moe.routed_experts.inner_experts.mlp1_weight_EGD 2 16 10\n"
	  "layers.{i}.moe.routed_experts.inner_experts.mlp1_bias_EG 2 16\n"
	  "layers.{i}.moe.routed_experts.inner_experts.mlp2_weight_EDF 2 10 8\n"
	  "layers.{i}.moe.routed_experts.inner_experts.mlp2_bias_ED 2 10\n",
	  LLAMA_ENDS LLAMA_LAYER "model.layers.{i}.self_attn.k_proj.bias 12\nmodel.layers.{i}.self_attn.sinks 4\n"
	  "model.layers.{i}.mlp.router.weight 2 10\nmodel.layers.{i}.mlp.router.bias 2\n"
	  "model.layers.{i}.mlp.experts.gate_up_proj 2 10 16\nmodel.layers.{i}.mlp.experts.gate_up_proj_bias 2 16\n"
	  "model.layers.{i}.mlp.experts.down_proj 2 8 10\nmodel.layers.{i}.mlp.experts.down_proj_bias 2 10\n" },
	{ "torchtitan-qwen3-5", "qwen3_5_moe",
	  TITAN_ENDS "lm_head.weight 20 10\nlayers.0.attn.A_log 4\nlayers.0.attn.in_proj_z.weight 8 10\n"
	  "layers.0.attn.in_proj_q.weight 6 10\nlayers.0.attn.in_proj_k.weight 6 10\nlayers.0.attn.in_proj_v.weight 8 10\n"
	  "layers.0.attn.conv_q.weight 6 1 4\nlayers.0.attn.conv_k.weight 6 1 4\nlayers.0.attn.conv_v.weight 8 1 4\n"
	  "layers.1.attn.wq.weight 48 10\nlayers.1.attn.q_norm.weight 6\nlayers.1.moe.shared_experts.gate.weight 1 10\n"
	  TITAN_EXPERTS("routed_experts.inner_experts.", "w1_EFD", "w3_EFD", "w2_EDF")
	  "vision_encoder.patch_embed.weight 9 24\nvision_encoder.pos_embed 7 9\nvision_encoder.layers.{i}.attn.wq.bias 9\n"
	  "vision_encoder.layers.{i}.attn.wk.bias 9\nvision_encoder.layers.{i}.attn.wv.bias 9\nvision_encoder.layers.{i}.norm1.bias 9\n"
	  "vision_encoder.merger.norm.weight 9\n",
	  "model.language_model.embed_tokens.weight 20 10\nmodel.language_model.norm.weight 10\nlm_head.weight 20 10\n"
	  "model.language_model.layers.0.linear_attn.A_log 4\nmodel.language_model.layers.0.linear_attn.in_proj_z.weight 8 10\n"
	  "model.language_model.layers.0.linear_attn.in_proj_qkv.weight 20 10\nmodel.language_model.layers.0.linear_attn.conv1d.weight 20 1 4\n"
	  "model.language_model.layers.1.self_attn.q_proj.weight 48 10\nmodel.language_model.layers.1.self_attn.q_norm.weight 6\n"
	  "model.language_model.layers.1.mlp.shared_expert_gate.weight 1 10\nmodel.language_model.layers.{i}.mlp.gate.weight 2 10\n"
	  "model.language_model.layers.{i}.mlp.experts.gate_up_proj 2 16 10\nmodel.language_model.layers.{i}.mlp.experts.down_proj 2 10 8\n"
	  "model.visual.patch_embed.proj.weight 9 3 2 2 2\nmodel.visual.pos_embed.weight 7 9\nmodel.visual.blocks.{i}.attn.qkv.bias 27\n"
	  "model.visual.blocks.{i}.norm1.bias 9\nmodel.visual.merger.norm.weight 9\n" },
	{ "torchtitan-kimi", "kimi_k25",
	  TITAN_ENDS "layers.{i}.attention.wkv_a.weight 5 10\nlayers.{i}.moe.expert_bias_E 2\nlm_head.weight 20 10\n"
	  TITAN_EXPERTS("routed_experts.inner_experts.", "w1_EFD", "w3_EFD", "w2_EDF")
	  "vision_encoder.patch_embed.weight 9 12\nvision_encoder.layers.{i}.norm1.weight 9\nvision_encoder.layers.{i}.norm2.weight 8\n"
	  "vision_encoder.layers.{i}.attn.wq.weight 9 9\nvision_encoder.layers.{i}.attn.wk.weight 9 9\n"
	  "vision_encoder.layers.{i}.attn.wv.weight 9 9\nvision_encoder.projector.pre_norm.weight 9\n"
	  "vision_encoder.projector.linear_2.bias 10\n",
	  "language_model.model.embed_tokens.weight 20 10\nlanguage_model.model.norm.weight 10\nlanguage_model.lm_head.weight 20 10\n"
	  "language_model.model.layers.{i}.self_attn.kv_a_proj_with_mqa.weight 5 10\nlanguage_model.model.layers.{i}.mlp.gate.weight 2 10\n"
	  "language_model.model.layers.{i}.mlp.gate.e_score_correction_bias 2\n"
	  "language_model.model.layers.{i}.mlp.experts.{e}.gate_proj.weight 8 10\n"
	  "language_model.model.layers.{i}.mlp.experts.{e}.up_proj.weight 8 10\n"
	  "language_model.model.layers.{i}.mlp.experts.{e}.down_proj.weight 10 8\n"
	  "vision_tower.patch_embed.proj.weight 9 3 2 2\nvision_tower.encoder.blocks.{i}.norm0.weight 9\n"
	  "vision_tower.encoder.blocks.{i}.norm1.weight 8\nvision_tower.encoder.blocks.{i}.wqkv.weight 27 9\n"
	  "mm_projector.pre_norm.weight 9\nmm_projector.proj.2.bias 10\n" },
	{ "torchtitan-muse-glimmer", "muse_glimmer",
	  "tok_embeddings.embedding.weight 20 10\nnorm.weight 10\nlm_head.weight 20 10\n" TITAN_ATTENTION("qkv_linear.")
	  "layers.{i}.attention.o_gate.weight 24 10\nlayers.{i}.post_ffn_norm.weight 10\n"
	  "vision_encoder.layers.{i}.attn.wq.bias 8\nvision_encoder.layers.{i}.mlp.linear_fc1.weight 5 8\n",
	  "model.language_model.embed_tokens.weight 20 10\nmodel.language_model.norm.weight 10\nlm_head.weight 20 10\n"
	  "model.language_model.layers.{i}.self_attn.q_proj.weight 24 10\nmodel.language_model.layers.{i}.self_attn.k_proj.weight 12 10\n"
	  "model.language_model.layers.{i}.self_attn.v_proj.weight 12 10\nmodel.language_model.layers.{i}.self_attn.o_proj.weight 10 24\n"
	  "model.language_model.layers.{i}.self_attn.gate_proj.weight 24 10\n"
	  "model.language_model.layers.{i}.post_feedforward_layernorm.weight 10\n"
	  "model.vision_tower.layers.{i}.attn.q_proj.bias 8\nmodel.vision_tower.layers.{i}.mlp.fc1.weight 5 8\n" },
	{ "torchtune", "llama",
	  "tok_embeddings.weight 20 10\nnorm.scale 10\noutput.weight 20 10\n"
	  "layers.{i}.attn.q_proj.weight 24 10\nlayers.{i}.attn.k_proj.weight 12 10\n"
	  "layers.{i}.attn.v_proj.weight 12 10\nlayers.{i}.attn.output_proj.weight 10 24\n"
	  "layers.{i}.mlp.w1.weight 8 10\nlayers.{i}.mlp.w3.weight 8 10\nlayers.{i}.mlp.w2.weight 10 8\n"
	  "layers.{i}.sa_norm.scale 10\nlayers.{i}.mlp_norm.scale 10\n", LLAMA },
	{ "litgpt", "llama", /* the vocabulary padded */
	  "transformer.wte.weight 24 10\ntransformer.ln_f.weight 10\nlm_head.weight 24 10\n"
	  "transformer.h.{i}.attn.qkv.weight 48 10\ntransformer.h.{i}.attn.proj.weight 10 24\n"
	  "transformer.h.{i}.mlp.fc_1.weight 8 10\ntransformer.h.{i}.mlp.fc_2.weight 8 10\ntransformer.h.{i}.mlp.proj.weight 10 8\n"
	  "transformer.h.{i}.norm_1.weight 10\ntransformer.h.{i}.norm_2.weight 10\n", LLAMA },
	{ "litgpt", "qwen3", /* before 0.5 */
	  "transformer.wte.weight 20 10\ntransformer.ln_f.weight 10\nlm_head.weight 20 10\n"
	  "transformer.h.{i}.attn.attn.weight 48 10\ntransformer.h.{i}.attn.proj.weight 10 24\n"
	  "transformer.h.{i}.attn.norm_q.weight 6\ntransformer.h.{i}.attn.norm_k.weight 6\n"
	  "transformer.h.{i}.mlp.fc_1.weight 8 10\ntransformer.h.{i}.mlp.fc_2.weight 8 10\ntransformer.h.{i}.mlp.proj.weight 10 8\n"
	  "transformer.h.{i}.norm_1.weight 10\ntransformer.h.{i}.norm_2.weight 10\n", LLAMA QWEN3_NORMS },
	{ "megatron", "llama", /* stacked, the vocabulary padded */
	  "embedding.word_embeddings.weight 24 10\noutput_layer.weight 24 10\ndecoder.final_layernorm.weight 10\n"
	  "decoder.layers.self_attention.linear_qkv.weight 2 48 10\n"
	  "decoder.layers.self_attention.linear_qkv.layer_norm_weight 2 10\n"
	  "decoder.layers.self_attention.linear_proj.weight 2 10 24\n"
	  "decoder.layers.mlp.linear_fc1.weight 2 16 10\ndecoder.layers.mlp.linear_fc1.layer_norm_weight 2 10\n"
	  "decoder.layers.mlp.linear_fc2.weight 2 10 8\noptimizer.state.exp_avg.output_layer.weight 24 10\n", LLAMA },
	{ "megatron", "qwen2", /* by number, local norms, biases */
	  "embedding.word_embeddings.weight 20 10\noutput_layer.weight 20 10\ndecoder.final_layernorm.weight 10\n"
	  "decoder.layers.{i}.self_attention.linear_qkv.weight 48 10\n"
	  "decoder.layers.{i}.self_attention.linear_qkv.bias 48\n"
	  "decoder.layers.{i}.input_layernorm.weight 10\ndecoder.layers.{i}.pre_mlp_layernorm.weight 10\n"
	  "decoder.layers.{i}.self_attention.linear_proj.weight 10 24\n"
	  "decoder.layers.{i}.mlp.linear_fc1.weight 16 10\ndecoder.layers.{i}.mlp.linear_fc2.weight 10 8\n",
	  LLAMA "model.layers.{i}.self_attn.q_proj.bias 24\nmodel.layers.{i}.self_attn.k_proj.bias 12\n"
	  "model.layers.{i}.self_attn.v_proj.bias 12\n" },
	{ "megatron-moe", "qwen3_moe",
	  "embedding.word_embeddings.weight 20 10\noutput_layer.weight 20 10\ndecoder.final_layernorm.weight 10\n"
	  "decoder.layers.{i}.self_attention.linear_qkv.weight 48 10\n"
	  "decoder.layers.{i}.self_attention.linear_qkv.layer_norm_weight 10\n"
	  "decoder.layers.{i}.self_attention.q_layernorm.weight 6\ndecoder.layers.{i}.self_attention.k_layernorm.weight 6\n"
	  "decoder.layers.{i}.pre_mlp_layernorm.weight 10\ndecoder.layers.{i}.self_attention.linear_proj.weight 10 24\n"
	  "decoder.layers.{i}.mlp.router.weight 2 10\ndecoder.layers.{i}.mlp.experts.linear_fc1.weight{e} 16 10\n"
	  "decoder.layers.{i}.mlp.experts.linear_fc2.weight{e} 10 8\n", LLAMA_ENDS LLAMA_LAYER QWEN3_NORMS EXPERTS },
	{ "gpt-neox", "gpt_neox",
	  "module.0.word_embeddings.weight 24 10\nmodule.2.attention.query_key_value.weight 72 10\n"
	  "module.2.attention.query_key_value.bias 72\nmodule.2.attention.dense.weight 10 24\n"
	  "module.2.mlp.dense_h_to_4h.weight 8 10\nmodule.2.mlp.dense_4h_to_h.bias 10\nmodule.2.input_layernorm.bias 10\n"
	  "module.3.post_attention_layernorm.weight 10\nmodule.5.norm.weight 10\nmodule.6.final_linear.weight 24 10\n"
	  "fp32.0.word_embeddings.weight 24 10\n",
	  "gpt_neox.embed_in.weight 20 10\ngpt_neox.layers.0.attention.query_key_value.weight 72 10\n"
	  "gpt_neox.layers.0.attention.query_key_value.bias 72\ngpt_neox.layers.0.attention.dense.weight 10 24\n"
	  "gpt_neox.layers.0.mlp.dense_h_to_4h.weight 8 10\ngpt_neox.layers.0.mlp.dense_4h_to_h.bias 10\n"
	  "gpt_neox.layers.0.input_layernorm.bias 10\ngpt_neox.layers.1.post_attention_layernorm.weight 10\n"
	  "gpt_neox.final_layer_norm.weight 10\nembed_out.weight 20 10\n" },
	{ "paddle", "llama",
	  "llama.embed_tokens.weight 20 10\nllama.norm.weight 10\nlm_head.weight 10 20\n"
	  "llama.layers.{i}.self_attn.q_proj.weight 10 24\nllama.layers.{i}.self_attn.k_proj.weight 10 12\n"
	  "llama.layers.{i}.self_attn.v_proj.weight 10 12\nllama.layers.{i}.self_attn.o_proj.weight 24 10\n"
	  "llama.layers.{i}.mlp.gate_proj.weight 10 8\nllama.layers.{i}.mlp.up_proj.weight 10 8\n"
	  "llama.layers.{i}.mlp.down_proj.weight 8 10\nllama.layers.{i}.input_layernorm.weight 10\n"
	  "llama.layers.{i}.post_attention_layernorm.weight 10\n", LLAMA },
	{ "lightning", "llama", "state_dict.model.lm_head.weight 20 10\noptimizer_states.0.x 2\n", "lm_head.weight 20 10\n" },
	{ "composer", "mpt", "state.model.model.transformer.wte.weight 20 10\nstate.optimizers.Adam.x 2\n",
	  "transformer.wte.weight 20 10\n" },
	{ "composer", "mpt", "state/model/model.transformer.wte.weight 20 10\n", "transformer.wte.weight 20 10\n" },
	{ "deepspeed", "llama", "module.lm_head.weight 20 10\nfp32.lm_head.weight 20 10\nexp_avg.lm_head.weight 20 10\n",
	  "lm_head.weight 20 10\n" },
	{ "deepspeed-fp32", "llama", "fp32.lm_head.weight 20 10\nexp_avg.lm_head.weight 20 10\nstep.lm_head.weight 1\n",
	  "lm_head.weight 20 10\n" },
	{ "verl", "qwen2",
	  "actor.lm_head.weight 20 10\nactor.extra_state.rank0.rng 16\nactor.optim.state.0.exp_avg 3\ncritic.model.norm.weight 10\ndata 3\n",
	  "lm_head.weight 20 10\n" },
	{ "hf-experts", "qwen3_moe",
	  "model.module._orig_mod.model.layers.{i}.mlp.experts.gate_up_proj 2 16 10\nmodel.model.layers.{i}.mlp.experts.down_proj 2 10 8\n"
	  "model.layers.{i}.mlp.gate.weight 2 10\nmodel.model.norm.weight 10\nmodel.embed_tokens.weight 20 10\nlm_head.weight 20 10\n"
	  "optim.exp_avg.model.layers.{i}.mlp.experts.down_proj 2 10 8\nexp_avg.model.norm.weight 10\n", LLAMA_ENDS EXPERTS },
	{ "hf-mixtral", "mixtral",
	  "state_dict.model.model.layers.{i}.mlp.experts.gate_up_proj 2 16 10\nstate_dict.model.model.layers.{i}.mlp.experts.down_proj 2 10 8\n"
	  "state_dict.model.model.layers.{i}.mlp.gate.weight 2 10\nstate_dict.model.model.layers.{i}.self_attn.o_proj.weight 10 24\n"
	  "optimizer_states.0.state.1.exp_avg 3\n",
	  "model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight 8 10\nmodel.layers.{i}.block_sparse_moe.experts.{e}.w3.weight 8 10\n"
	  "model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight 10 8\nmodel.layers.{i}.block_sparse_moe.gate.weight 2 10\n"
	  "model.layers.{i}.self_attn.o_proj.weight 10 24\n" },
	{ "hf", "llama", "model.model.layers.{i}.mlp.w 3\noptimizer.state.x 3\nextra_state.rank0.rng.cpu 8\n", "model.layers.{i}.mlp.w 3\n" },
	{ "hf", "llama", /* a wrapper around each layer */
	  "model.layers.{i}.module.mlp.w 3\nmodel.norm.weight 2\n", "model.layers.{i}.mlp.w 3\nmodel.norm.weight 2\n" },
	{ "deepspeed", "llama", "module.model.layers.{i}.module.mlp.w 3\nmodule.norm.weight 2\n", "model.layers.{i}.mlp.w 3\nnorm.weight 2\n" },
	{ "hf", "llama", /* Accelerate's save_state() */
	  "model.model.norm.weight 10\noptimizer_0.optimizer.state.model.norm.weight.exp_avg 10\nrandom_states_0.torch_manual_seed 8\n"
	  "sampler.x 2\nsampler_1.x 2\ndl_state_dict.x 2\ncustom_checkpoint_0.shadow 10\n", "model.norm.weight 10\n" },
};
/* clang-format on */

struct entry {
	char key[128];
	uint32_t ndim;
	uint64_t shape[5];
};

struct list {
	struct entry e[128];
	size_t n;
};

/* One line for every number of its slots. */
static void add_line(struct list *l, const char *line, const char *end, int i, int e)
{
	struct entry *to = &l->e[l->n];
	const char *blank = memchr(line, ' ', (size_t)(end - line));
	bool has_i = false, has_e = false;
	size_t n = 0;

	assert_true(blank && l->n < DCP_LEN(l->e));
	memset(to, 0, sizeof(*to));
	for (const char *s = line; s < blank; s++) {
		if (*s != '{') {
			to->key[n++] = *s;
			continue;
		}
		has_i |= s[1] == 'i';
		has_e |= s[1] == 'e';
		to->key[n++] = (char)('0' + (s[1] == 'i' ? i : e));
		s += 2;
	}
	if ((i && !has_i) || (e && !has_e))
		return;
	while (blank < end) {
		char *next;

		to->shape[to->ndim++] = strtoull(blank, &next, 10);
		blank = next;
	}
	l->n++;
}

static void read_list(struct list *l, const char *text)
{
	l->n = 0;
	for (const char *eol; *text; text = eol + 1) {
		eol = strchr(text, '\n');
		for (int k = 0; k < 4; k++)
			add_line(l, text, eol, k / 2, k % 2);
	}
}

static int list_keys(void *ctx, int (*fn)(void *, uint64_t, const char *), void *fn_ctx,
		     struct dcp_err *err)
{
	const struct list *l = ctx;
	int rc = 0;

	(void)err;
	for (size_t i = 0; rc == 0 && i < l->n; i++)
		rc = fn(fn_ctx, i, l->e[i].key);
	return rc;
}

static int one_tensor(void *ctx, uint64_t number, struct dcp_arena *arena,
		      struct dcp_tensor *out, struct dcp_err *err)
{
	const struct entry *e = &((const struct list *)ctx)->e[number];
	struct dcp_piece *p = dcp_arena_calloc(arena, 1, sizeof(*p));
	uint64_t *lo = dcp_arena_calloc(arena, 5, sizeof(*lo));

	(void)err;
	assert_true(p && lo);
	*p = (struct dcp_piece){ .lo = lo, .len = e->shape };
	assert_true(dcp_shape_volume(e->shape, e->ndim, &p->run_n));
	p->nbytes = p->run_n;
	*out = (struct dcp_tensor){ .key = e->key,
				    .dtype = DCP_DTYPE_U8,
				    .dtype_name = "U8",
				    .itemsize = 1,
				    .ndim = e->ndim,
				    .shape = e->shape,
				    .pieces = p,
				    .npieces = 1 };
	return 0;
}

/* All that is wanted came out, whole and in its shape, and nothing else. */
static void check_told(const struct t_sink *told, const struct list *want)
{
	for (size_t i = 0; i < want->n; i++) {
		const struct entry *e = &want->e[i];
		const struct dcp_tensor *t = t_sink_tensor(told, e->key);

		if (!t || t->error)
			fail_msg("%s: %s", e->key, t ? t->error : "it did not come out");
		assert_int_equal(t->ndim, e->ndim);
		for (uint32_t d = 0; d < t->ndim; d++)
			assert_int_equal(t->shape[d], e->shape[d]);
	}
	for (size_t i = 0, k = 0; i < told->ntensors; i++) {
		for (k = 0; k < want->n && strcmp(told->tensor[i].key, want->e[k].key) != 0;)
			k++;
		if (k == want->n)
			fail_msg("%s is not wanted", told->tensor[i].key);
	}
	assert_int_equal(told->ntensors, want->n);
}

static void presets_map_their_models(void **state)
{
	static const struct dcp_file_id file = { .name = "f" };
	static struct list source, want;
	struct dcp_rules_preset found;
	struct dcp_err err = { 0 };

	(void)state;
	for (size_t c = 0; c < DCP_LEN(cases); c++) {
		struct dcp_rules_config config = { .heads = 4,
						   .vision_heads = 2,
						   .vision_patch = 2,
						   .kv_heads = 2,
						   .head_dim = 6,
						   .hidden = 10,
						   .vocab = 20 };
		struct dcp_rules_source from = { .list = list_keys,
						 .tensor = one_tensor,
						 .ctx = &source,
						 .files = &file,
						 .nfiles = 1,
						 .config = &config };
		struct dcp_rules_report report = { 0 };
		struct t_sink told;
		struct dcp_rules *r;

		t_case(cases[c].preset);
		t_sink_init(&told, NULL);
		read_list(&source, cases[c].source);
		read_list(&want, cases[c].want);
		snprintf(config.model_type, sizeof(config.model_type), "%s", cases[c].model);
		assert_int_equal(dcp_rules_detect(&from, &found, &err), 0);
		assert_string_equal(found.name, cases[c].preset);
		assert_int_equal(dcp_rules_preset(found.name, &r, &err), 0);
		assert_int_equal(dcp_rules_map(r, &from, &told.sink, &report, &err), 0);
		assert_int_equal(report.unmatched, 0);
		check_told(&told, &want);
		t_sink_finish(&told);
		dcp_rules_free(r);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(presets_map_their_models) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
