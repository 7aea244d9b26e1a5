/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arguments of a Megatron-LM run, as each of its files has them: an argparse.Namespace.
 */
#include "core/format/megatron/megatron_int.h"
#include "core/parse/pickle/pickle.h"

static bool is_said(struct dcp_pv args, const char *name)
{
	return dcp_pv_at(args, name).type != DCP_PV_NONE;
}

static uint64_t number_of(struct dcp_pv args, const char *name)
{
	uint64_t n = 0;

	return dcp_pv_u64(dcp_pv_at(args, name), &n) && n <= INT32_MAX ? n : 0;
}

static bool is_true(struct dcp_pv args, const char *name)
{
	return number_of(args, name) != 0;
}

/* Each group of queries has one key and one value; with an output gate, queries count twice.
 * Arguments that are older than groups say nothing, and forks had ways of their own then. */
static uint64_t count_qkv_heads(struct dcp_pv args, uint64_t heads)
{
	uint64_t groups = heads;

	if (!is_said(args, "group_query_attention"))
		return 0;
	if (is_true(args, "group_query_attention"))
		groups = number_of(args, "num_query_groups");
	if (!heads || !groups)
		return 0;
	return heads * (is_true(args, "attention_output_gate") ? 2 : 1) + 2 * groups;
}

static void take_args(struct dcp_margs *a, struct dcp_pv args)
{
	*a = (struct dcp_margs){
		.tp = number_of(args, "tensor_model_parallel_size"),
		.pp = number_of(args, "pipeline_model_parallel_size"),
		.ep = number_of(args, "expert_model_parallel_size"),
		.etp = number_of(args, "expert_tensor_parallel_size"),
		.layers = number_of(args, "num_layers"),
		.hidden = number_of(args, "hidden_size"),
		.ffn = number_of(args, "ffn_hidden_size"),
		.heads = number_of(args, "num_attention_heads"),
		.vocab = number_of(args, "padded_vocab_size"),
		.experts = number_of(args, "num_experts"),
		.kv_channels = number_of(args, "kv_channels"),
		.varied = is_said(args, "heterogeneous_layers_config_path") ||
			  is_said(args, "heterogeneous_layers_config_encoded_json"),
	};
	a->moe_ffn = number_of(args, "moe_ffn_hidden_size");
	if (!a->moe_ffn)
		a->moe_ffn = a->ffn;
	if (!a->tp) /* before checkpoint_version 3 */
		a->tp = number_of(args, "model_parallel_size");
	a->value_channels = a->kv_channels;
	if (is_true(args, "multi_latent_attention"))
		a->value_channels = number_of(args, "v_head_dim");
	a->q_rank = number_of(args, "q_lora_rank");
	a->kv_rank = number_of(args, "kv_lora_rank");
	if (a->kv_rank)
		a->kv_rank += number_of(args, "qk_pos_emb_head_dim");
	a->qkv_heads = count_qkv_heads(args, a->heads);
}

void dcp_mlegacy_read_args(struct dcp_mlegacy *m, struct dcp_pv root)
{
	const struct dcp_pv *args = dcp_pv_get(root, "args");
	const struct dcp_pv version = dcp_pv_at(root, "checkpoint_version");
	uint64_t n;

	/* Megatron takes a file without a version for one of the first. */
	m->version = 0;
	if (version.type == DCP_PV_FLOAT)
		m->version = version.f;
	else if (dcp_pv_u64(version, &n))
		m->version = (double)n;
	if (args)
		take_args(&m->args, *args);
}
