/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A config.json from the job config that torchtitan writes on request (debug.save_config_file). Names there:
 * torchtitan, models/common and models/MODEL/__init__.py; names in config.json: transformers, models/.
 */
#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/jsonw.h"
#include "core/parse/json.h"
#include "core/rules/rules.h"

/* Which models have a line of the tables below. */
enum {
	LLAMA = 1,
	QWEN3 = 2,
	QWEN3_MOE = 4,
	GPT_OSS = 8,
	DEEPSEEK_V3 = 16,
	MOE = QWEN3_MOE | GPT_OSS | DEEPSEEK_V3,
	GROUPED = LLAMA | QWEN3 | QWEN3_MOE | GPT_OSS,
	ALL = 31
};

static const struct {
	unsigned of;
	const char *name; /* there */
	const char *type, *class;
} models[] = {
	{ LLAMA, "llama3", "llama", "LlamaForCausalLM" },
	{ QWEN3, "qwen3", "qwen3", "Qwen3ForCausalLM" },
	{ QWEN3_MOE, "qwen3", "qwen3_moe", "Qwen3MoeForCausalLM" },
	{ GPT_OSS, "gpt_oss", "gpt_oss", "GptOssForCausalLM" },
	{ DEEPSEEK_V3, "deepseek_v3", "deepseek_v3", "DeepseekV3ForCausalLM" },
};

/* Where a value stands: in the model, its first layer, or its last. */
enum base { OF_MODEL, OF_FIRST, OF_LAST };

/* @must: without it nothing is inferred. */
static const struct {
	unsigned of;
	const char *name;
	enum base base;
	const char *path;
	bool must;
} values[] = {
	{ ALL, "hidden_size", OF_MODEL, "dim", true },
	{ ALL, "vocab_size", OF_MODEL, "vocab_size", true },
	{ ALL, "rms_norm_eps", OF_MODEL, "norm.eps", true },
	{ ALL, "tie_word_embeddings", OF_MODEL, "enable_weight_tying", true },
	{ ALL, "num_attention_heads", OF_FIRST, "attention.n_heads", true },
	{ GROUPED, "num_key_value_heads", OF_FIRST, "attention.qkv_linear.n_kv_heads", true },
	{ DEEPSEEK_V3, "num_key_value_heads", OF_FIRST, "attention.n_heads", true },
	{ GROUPED, "head_dim", OF_FIRST, "attention.qkv_linear.head_dim", true },
	{ ALL, "rope_theta", OF_FIRST, "attention.rope.theta", true },
	{ ALL, "max_position_embeddings", OF_FIRST, "attention.rope.max_seq_len", true },
	{ LLAMA | QWEN3, "intermediate_size", OF_FIRST, "feed_forward.w1.out_features", true },
	{ DEEPSEEK_V3, "intermediate_size", OF_FIRST, "feed_forward.w1.out_features", false },
	{ GPT_OSS, "intermediate_size", OF_LAST, "moe.routed_experts.inner_experts.hidden_dim",
	  true },
	{ GPT_OSS, "swiglu_limit", OF_LAST, "moe.routed_experts.inner_experts.swiglu_limit",
	  false },
	{ GPT_OSS, "num_local_experts", OF_LAST, "moe.num_experts", true },
	{ QWEN3_MOE, "num_experts", OF_LAST, "moe.num_experts", true },
	{ DEEPSEEK_V3, "n_routed_experts", OF_LAST, "moe.num_experts", true },
	{ QWEN3_MOE | DEEPSEEK_V3, "moe_intermediate_size", OF_LAST,
	  "moe.routed_experts.inner_experts.hidden_dim", true },
	{ MOE, "num_experts_per_tok", OF_LAST, "moe.router.top_k", true },
	{ QWEN3_MOE | DEEPSEEK_V3, "norm_topk_prob", OF_LAST, "moe.router.route_norm", true },
	{ DEEPSEEK_V3, "routed_scaling_factor", OF_LAST, "moe.router.route_scale", true },
	{ DEEPSEEK_V3, "kv_lora_rank", OF_FIRST, "attention.kv_lora_rank", true },
	{ DEEPSEEK_V3, "qk_nope_head_dim", OF_FIRST, "attention.qk_nope_head_dim", true },
	{ DEEPSEEK_V3, "qk_rope_head_dim", OF_FIRST, "attention.qk_rope_head_dim", true },
	{ DEEPSEEK_V3, "v_head_dim", OF_FIRST, "attention.v_head_dim", true },
};

struct job {
	const struct dcp_json *base[3]; /* by enum base */
	const struct dcp_json *layers;
	unsigned model;
	struct dcp_jsonw w;
};

/* "a.b.c" below @o. */
static const struct dcp_json *at(const struct dcp_json *o, const char *path)
{
	char name[64];

	for (size_t n; *path; path += n + (path[n] == '.')) {
		n = strcspn(path, ".");
		if (n >= sizeof(name))
			return NULL;
		memcpy(name, path, n);
		name[n] = '\0';
		o = dcp_json_get(o, name);
	}
	return o;
}

static uint64_t count(const struct dcp_json *o, const char *path)
{
	uint64_t n = 0;

	return dcp_json_u64(at(o, path), &n) ? n : 0;
}

static double real(const struct dcp_json *o, const char *path)
{
	double x = 0;

	return dcp_json_f64(at(o, path), &x) ? x : 0;
}

static bool says(const struct dcp_json *o, const char *path, const char *text)
{
	const char *s = dcp_json_str(at(o, path));

	return s && strcmp(s, text) == 0;
}

/* How many layers without experts come first; SIZE_MAX: there are some behind one that has them. */
static size_t dense_layers(const struct job *j)
{
	size_t dense = 0, n = dcp_json_len(j->layers);

	for (size_t i = 0; i < n; i++) {
		if (dcp_json_is_object(at(dcp_json_at(j->layers, i), "moe")))
			continue;
		if (dense++ < i)
			return SIZE_MAX;
	}
	return dense;
}

/* Which model is it? 0: none that is known here, or one that transformers has not so. */
static unsigned model_of(const struct job *j, const char *name)
{
	size_t n = dcp_json_len(j->layers), dense = dense_layers(j);
	const struct dcp_json *router = at(j->base[OF_LAST], "moe.router");

	if (!n || dense == SIZE_MAX)
		return 0;
	if (strcmp(name, "llama3") == 0)
		return dense == n ? LLAMA : 0;
	if (strcmp(name, "qwen3") == 0)
		return dense == n                                            ? QWEN3
		       : dense == 0 && says(router, "score_func", "softmax") ? QWEN3_MOE
									     : 0;
	if (strcmp(name, "gpt_oss") == 0)
		return dense == 0 ? GPT_OSS : 0;
	if (strcmp(name, "deepseek_v3") == 0) /* with softmax it is no model of transformers */
		return dense < n && says(router, "score_func", "sigmoid") ? DEEPSEEK_V3 : 0;
	return 0;
}

/* A number, true, or false. */
static bool put_value(struct job *j, const char *name, const struct dcp_json *v)
{
	uint64_t n;
	double x;
	int yes = -1;

	dcp_json_bool(v, &yes);
	if (yes < 0 && !dcp_json_u64(v, &n) && !dcp_json_f64(v, &x))
		return false;
	dcp_jsonw_key(&j->w, name);
	if (yes >= 0)
		dcp_jsonw_bool(&j->w, yes);
	else if (dcp_json_u64(v, &n))
		dcp_jsonw_u64(&j->w, n);
	else
		dcp_jsonw_f64(&j->w, x);
	return true;
}

static void put_real(struct job *j, const char *name, double x)
{
	dcp_jsonw_key(&j->w, name);
	dcp_jsonw_f64(&j->w, x);
}

/* Positions beyond those of the first training. */
static void put_rope(struct job *j)
{
	const struct dcp_json *rope = at(j->base[OF_FIRST], "attention.rope");
	bool llama = says(rope, "scaling", "llama"),
	     yarn = says(rope, "scaling", "yarn") && real(rope, "rope_factor") > 1;
	double mscale = real(j->base[OF_FIRST], "attention.mscale");

	if (!llama && !yarn)
		return;
	dcp_jsonw_key(&j->w, "rope_scaling");
	dcp_jsonw_object(&j->w);
	dcp_jsonw_put_str(&j->w, "rope_type", llama ? "llama3" : "yarn");
	put_real(j, "factor", real(rope, llama ? "scaling_factor" : "rope_factor"));
	put_real(j, llama ? "low_freq_factor" : "beta_slow",
		 real(rope, llama ? "low_freq_factor" : "beta_slow"));
	put_real(j, llama ? "high_freq_factor" : "beta_fast",
		 real(rope, llama ? "high_freq_factor" : "beta_fast"));
	if (j->model == DEEPSEEK_V3) {
		put_real(j, "mscale", mscale);
		put_real(j, "mscale_all_dim", mscale);
	}
	if (yarn)
		put_value(j, "truncate", at(rope, "truncate"));
	dcp_jsonw_put_u64(
		&j->w, "original_max_position_embeddings",
		count(rope, llama ? "original_max_position_embeddings" : "original_seq_len"));
	dcp_jsonw_end(&j->w);
}

static bool put_deepseek(struct job *j)
{
	const struct dcp_json *first = j->base[OF_FIRST], *last = j->base[OF_LAST];
	uint64_t each = count(last, "moe.routed_experts.inner_experts.hidden_dim"),
		 shared = count(last, "moe.shared_experts.w1.out_features"),
		 rank = count(first, "attention.q_lora_rank"),
		 groups = count(last, "moe.router.num_expert_groups"),
		 taken = count(last, "moe.router.num_limited_groups");

	if (!each || shared % each)
		return false;
	dcp_jsonw_put_u64(&j->w, "n_shared_experts", shared / each);
	dcp_jsonw_put_u64(&j->w, "first_k_dense_replace", dense_layers(j));
	dcp_jsonw_put_u64(&j->w, "num_nextn_predict_layers",
			  dcp_json_len(at(j->base[OF_MODEL], "mtp_layers")));
	dcp_jsonw_put_u64(&j->w, "n_group", groups ? groups : 1);
	dcp_jsonw_put_u64(&j->w, "topk_group", taken ? taken : 1);
	dcp_jsonw_key(&j->w, "q_lora_rank");
	if (rank)
		dcp_jsonw_u64(&j->w, rank);
	else
		dcp_jsonw_null(&j->w);
	return true;
}

/* Layers that see what is near alone, and how far. */
static void put_windows(struct job *j)
{
	uint64_t window = 0;

	dcp_jsonw_key(&j->w, "layer_types");
	dcp_jsonw_array(&j->w);
	for (size_t i = 0; i < dcp_json_len(j->layers); i++) {
		uint64_t n = count(dcp_json_at(j->layers, i), "attention.sliding_window_size");

		dcp_jsonw_str(&j->w, n ? "sliding_attention" : "full_attention");
		window = n ? n : window;
	}
	dcp_jsonw_end(&j->w);
	if (window)
		dcp_jsonw_put_u64(&j->w, "sliding_window", window);
}

static bool put_all(struct job *j, const struct dcp_json *root)
{
	const char *dtype = dcp_json_str(at(root, "training.dtype"));

	for (size_t i = 0; i < DCP_LEN(models); i++)
		if (models[i].of == j->model) {
			dcp_jsonw_key(&j->w, "architectures");
			dcp_jsonw_array(&j->w);
			dcp_jsonw_str(&j->w, models[i].class);
			dcp_jsonw_end(&j->w);
			dcp_jsonw_put_str(&j->w, "model_type", models[i].type);
		}
	dcp_jsonw_put_u64(&j->w, "num_hidden_layers", dcp_json_len(j->layers));
	for (size_t i = 0; i < DCP_LEN(values); i++)
		if (values[i].of & j->model &&
		    !put_value(j, values[i].name,
			       at(j->base[values[i].base], values[i].path)) &&
		    values[i].must)
			return false;
	put_rope(j);
	if (j->model == GPT_OSS)
		put_windows(j);
	else
		dcp_jsonw_put_str(&j->w, "hidden_act", "silu");
	if (dtype)
		dcp_jsonw_put_str(&j->w, "torch_dtype", dtype);
	return j->model != DEEPSEEK_V3 || put_deepseek(j);
}

int dcp_rules_infer_job(const char *json, size_t n, struct dcp_buf *out)
{
	struct job j = { 0 };
	struct dcp_json *root;
	const char *name;
	bool ok = false;
	int rc = dcp_json_parse(json, n, &root, NULL);

	if (rc < 0)
		return rc == -ENOMEM ? rc : 0;
	name = dcp_json_str(at(root, "model_spec.name"));
	j.base[OF_MODEL] = at(root, "model_spec.model");
	j.layers = at(j.base[OF_MODEL], "layers");
	j.base[OF_FIRST] = dcp_json_at(j.layers, 0);
	j.base[OF_LAST] = dcp_json_at(j.layers, dcp_json_len(j.layers) - 1);
	j.model = name ? model_of(&j, name) : 0;
	if (j.model) {
		dcp_jsonw_init(&j.w, out, true);
		dcp_jsonw_object(&j.w);
		dcp_jsonw_put_str(&j.w, "inferred_by_dcpfs",
				  "from the job config of torchtitan; what it does not say has "
				  "the defaults of transformers");
		ok = put_all(&j, root);
		dcp_jsonw_end(&j.w);
		dcp_buf_str(out, "\n");
		rc = dcp_jsonw_error(&j.w);
	}
	dcp_json_free(root);
	return rc < 0 ? rc : ok;
}
