/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A config.json from the job config that torchtitan writes on request (debug.save_config_file).
 * Sources: models/common and models/MODEL/__init__.py of torchtitan for names in the job config;
 * models/ of transformers for names in config.json.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/jsonw.h"
#include "core/hf/hf_int.h"
#include "core/parse/json.h"

/* Models as bits: each line of the tables below says to which models it applies. */
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
	const char *name; /* in torchtitan */
	const char *type, *class;
} models[] = {
	{ LLAMA, "llama3", "llama", "LlamaForCausalLM" },
	{ QWEN3, "qwen3", "qwen3", "Qwen3ForCausalLM" },
	{ QWEN3_MOE, "qwen3", "qwen3_moe", "Qwen3MoeForCausalLM" },
	{ GPT_OSS, "gpt_oss", "gpt_oss", "GptOssForCausalLM" },
	{ DEEPSEEK_V3, "deepseek_v3", "deepseek_v3", "DeepseekV3ForCausalLM" },
};

/* Where a value is found: in the model, or in its layers, which must agree. */
enum base { OF_MODEL, OF_LAYERS };

enum kind { COUNT, REAL, FLAG }; /* numbers above zero, true or false */

/* @must: nothing is inferred if the value is missing or of another kind. */
static const struct {
	unsigned of;
	const char *name;
	enum base base;
	const char *path;
	enum kind kind;
	bool must;
} values[] = {
	{ ALL, "hidden_size", OF_MODEL, "dim", COUNT, true },
	{ ALL, "vocab_size", OF_MODEL, "vocab_size", COUNT, true },
	{ ALL, "rms_norm_eps", OF_MODEL, "norm.eps", REAL, true },
	{ ALL, "tie_word_embeddings", OF_MODEL, "enable_weight_tying", FLAG, true },
	{ ALL, "num_attention_heads", OF_LAYERS, "attention.n_heads", COUNT, true },
	{ GROUPED, "num_key_value_heads", OF_LAYERS, "attention.qkv_linear.n_kv_heads", COUNT,
	  true },
	{ DEEPSEEK_V3, "num_key_value_heads", OF_LAYERS, "attention.n_heads", COUNT, true },
	{ GROUPED, "head_dim", OF_LAYERS, "attention.qkv_linear.head_dim", COUNT, true },
	{ ALL, "rope_theta", OF_LAYERS, "attention.rope.theta", REAL, true },
	{ ALL, "max_position_embeddings", OF_LAYERS, "attention.rope.max_seq_len", COUNT,
	  true },
	{ LLAMA | QWEN3, "intermediate_size", OF_LAYERS, "feed_forward.w1.out_features", COUNT,
	  true },
	{ DEEPSEEK_V3, "intermediate_size", OF_LAYERS, "feed_forward.w1.out_features", COUNT,
	  false },
	{ GPT_OSS, "intermediate_size", OF_LAYERS,
	  "moe.routed_experts.inner_experts.hidden_dim", COUNT, true },
	{ GPT_OSS, "swiglu_limit", OF_LAYERS, "moe.routed_experts.inner_experts.swiglu_limit",
	  REAL, false },
	{ GPT_OSS, "num_local_experts", OF_LAYERS, "moe.num_experts", COUNT, true },
	{ QWEN3_MOE, "num_experts", OF_LAYERS, "moe.num_experts", COUNT, true },
	{ DEEPSEEK_V3, "n_routed_experts", OF_LAYERS, "moe.num_experts", COUNT, true },
	{ QWEN3_MOE | DEEPSEEK_V3, "moe_intermediate_size", OF_LAYERS,
	  "moe.routed_experts.inner_experts.hidden_dim", COUNT, true },
	{ MOE, "num_experts_per_tok", OF_LAYERS, "moe.router.top_k", COUNT, true },
	{ QWEN3_MOE | DEEPSEEK_V3, "norm_topk_prob", OF_LAYERS, "moe.router.route_norm", FLAG,
	  true },
	{ DEEPSEEK_V3, "routed_scaling_factor", OF_LAYERS, "moe.router.route_scale", REAL,
	  true },
	{ DEEPSEEK_V3, "kv_lora_rank", OF_LAYERS, "attention.kv_lora_rank", COUNT, true },
	{ DEEPSEEK_V3, "qk_nope_head_dim", OF_LAYERS, "attention.qk_nope_head_dim", COUNT,
	  true },
	{ DEEPSEEK_V3, "qk_rope_head_dim", OF_LAYERS, "attention.qk_rope_head_dim", COUNT,
	  true },
	{ DEEPSEEK_V3, "v_head_dim", OF_LAYERS, "attention.v_head_dim", COUNT, true },
};

struct job {
	const struct dcp_json *of, *layers; /* the model */
	unsigned model;
	bool differ; /* layers differ in a value that config.json states for all of them */
	struct dcp_jsonw w;
};

/* The value at "a.b.c" below @o. */
static const struct dcp_json *find_value(const struct dcp_json *o, const char *path)
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

static bool is_same(const struct dcp_json *a, const struct dcp_json *b)
{
	const char *s = dcp_json_str(a), *t = dcp_json_str(b);
	double x = 0, y = 0;
	int p = -1, q = -1;

	dcp_json_bool(a, &p);
	dcp_json_bool(b, &q);
	return (s && t ? strcmp(s, t) == 0 : !s && !t) && p == q &&
	       dcp_json_f64(a, &x) == dcp_json_f64(b, &y) && x == y;
}

/* The value that all layers with the first member of @path agree on. That member is attention,
 * which every layer has, feed_forward or moe. */
static const struct dcp_json *of_layers(struct job *j, const char *path)
{
	const struct dcp_json *v = NULL;
	char part[16];
	bool any = false;

	snprintf(part, sizeof(part), "%.*s", (int)strcspn(path, "."), path);
	for (size_t i = 0, n = dcp_json_len(j->layers); i < n; i++) {
		const struct dcp_json *layer = dcp_json_at(j->layers, i);

		if (!dcp_json_is_object(find_value(layer, part))) {
			j->differ |= *part == 'a';
			continue;
		}
		if (any)
			j->differ |= !is_same(v, find_value(layer, path));
		else
			v = find_value(layer, path);
		any = true;
	}
	return v;
}

static uint64_t read_count(const struct dcp_json *v)
{
	uint64_t n = 0;

	return dcp_json_u64(v, &n) ? n : 0;
}

static bool says_text(struct job *j, const char *path, const char *text)
{
	const char *s = dcp_json_str(of_layers(j, path));

	return s && strcmp(s, text) == 0;
}

/* How many layers without experts come first; SIZE_MAX: a layer without experts follows a layer
 * with experts. */
static size_t dense_layers(const struct job *j)
{
	size_t dense = 0, n = dcp_json_len(j->layers);

	for (size_t i = 0; i < n; i++) {
		if (dcp_json_is_object(find_value(dcp_json_at(j->layers, i), "moe")))
			continue;
		if (dense++ < i)
			return SIZE_MAX;
	}
	return dense;
}

/* Which model is it? 0: an unknown model, or a variant that transformers does not have. */
static unsigned model_of(struct job *j, const char *name)
{
	size_t n = dcp_json_len(j->layers), dense = dense_layers(j);

	if (!n || dense == SIZE_MAX)
		return 0;
	if (strcmp(name, "llama3") == 0)
		return dense == n ? LLAMA : 0;
	if (strcmp(name, "qwen3") == 0)
		return dense == n ? QWEN3
		       : dense == 0 && says_text(j, "moe.router.score_func", "softmax")
			       ? QWEN3_MOE
			       : 0;
	if (strcmp(name, "gpt_oss") == 0)
		return dense == 0 ? GPT_OSS : 0;
	if (strcmp(name, "deepseek_v3") ==
	    0) /* with softmax it is not a model of transformers */
		return dense < n && says_text(j, "moe.router.score_func", "sigmoid")
			       ? DEEPSEEK_V3
			       : 0;
	return 0;
}

static bool put_value(struct job *j, const char *name, enum kind kind, const struct dcp_json *v)
{
	uint64_t n;
	double x;
	int yes = -1;

	dcp_json_bool(v, &yes);
	if (kind == COUNT  ? !dcp_json_u64(v, &n) || !n
	    : kind == REAL ? !dcp_json_f64(v, &x) || !(x > 0)
			   : yes < 0)
		return false;
	dcp_jsonw_key(&j->w, name);
	if (kind == COUNT)
		dcp_jsonw_u64(&j->w, n);
	else if (kind == REAL)
		dcp_jsonw_f64(&j->w, x);
	else
		dcp_jsonw_bool(&j->w, yes);
	return true;
}

static bool put_layers(struct job *j, const char *name, enum kind kind, const char *path)
{
	return put_value(j, name, kind, of_layers(j, path));
}

#define ROPE "attention.rope."

/* Write the scaling of positions beyond those of the first training. False: the job config does not
 * say how. */
static bool put_rope(struct job *j)
{
	static const char *const names[2][4] = {
		{ ROPE "rope_factor", ROPE "beta_slow", ROPE "beta_fast",
		  ROPE "original_seq_len" },
		{ ROPE "scaling_factor", ROPE "low_freq_factor", ROPE "high_freq_factor",
		  ROPE "original_max_position_embeddings" }
	};
	bool llama = says_text(j, ROPE "scaling", "llama"), ok;
	const char *const *name = names[llama];
	double factor = 0;

	if (!llama && !says_text(j, ROPE "scaling", "yarn"))
		return !of_layers(j, ROPE "scaling") || says_text(j, ROPE "scaling", "none");
	if (!llama && dcp_json_f64(of_layers(j, name[0]), &factor) && factor <= 1)
		return true;
	dcp_jsonw_put_object(&j->w, "rope_scaling");
	dcp_jsonw_put_str(&j->w, "rope_type", llama ? "llama3" : "yarn");
	ok = put_layers(j, "factor", REAL, name[0]) &&
	     put_layers(j, strrchr(name[1], '.') + 1, REAL, name[1]) &&
	     put_layers(j, strrchr(name[2], '.') + 1, REAL, name[2]) &&
	     put_layers(j, "original_max_position_embeddings", COUNT, name[3]);
	if (j->model == DEEPSEEK_V3)
		ok &= put_layers(j, "mscale", REAL, "attention.mscale") &&
		      put_layers(j, "mscale_all_dim", REAL, "attention.mscale");
	if (!llama)
		put_layers(j, "truncate", FLAG, ROPE "truncate");
	dcp_jsonw_end(&j->w);
	return ok;
}

static bool put_deepseek(struct job *j)
{
	uint64_t each = read_count(of_layers(j, "moe.routed_experts.inner_experts.hidden_dim")),
		 shared = read_count(of_layers(j, "moe.shared_experts.w1.out_features")),
		 rank = read_count(of_layers(j, "attention.q_lora_rank")),
		 groups = read_count(of_layers(j, "moe.router.num_expert_groups")),
		 taken = read_count(of_layers(j, "moe.router.num_limited_groups"));

	if (!each || shared % each)
		return false;
	dcp_jsonw_put_u64(&j->w, "n_shared_experts", shared / each);
	dcp_jsonw_put_u64(&j->w, "first_k_dense_replace", dense_layers(j));
	dcp_jsonw_put_u64(&j->w, "num_nextn_predict_layers",
			  dcp_json_len(find_value(j->of, "mtp_layers")));
	dcp_jsonw_put_u64(&j->w, "n_group", groups ? groups : 1);
	dcp_jsonw_put_u64(&j->w, "topk_group", taken ? taken : 1);
	dcp_jsonw_key(&j->w, "q_lora_rank");
	if (rank)
		dcp_jsonw_u64(&j->w, rank);
	else
		dcp_jsonw_null(&j->w);
	return true;
}

/* Write which layers have a sliding window, and its size. */
static void put_windows(struct job *j)
{
	uint64_t window = 0;

	dcp_jsonw_put_array(&j->w, "layer_types");
	for (size_t i = 0; i < dcp_json_len(j->layers); i++) {
		uint64_t n = read_count(
			find_value(dcp_json_at(j->layers, i), "attention.sliding_window_size"));

		j->differ |= n && window && n != window;
		dcp_jsonw_str(&j->w, n ? "sliding_attention" : "full_attention");
		window = n ? n : window;
	}
	dcp_jsonw_end(&j->w);
	if (window)
		dcp_jsonw_put_u64(&j->w, "sliding_window", window);
}

static bool put_all(struct job *j, const struct dcp_json *root)
{
	const char *dtype = dcp_json_str(find_value(root, "training.dtype"));

	for (size_t i = 0; i < DCP_LEN(models); i++)
		if (models[i].of == j->model) {
			dcp_jsonw_put_array(&j->w, "architectures");
			dcp_jsonw_str(&j->w, models[i].class);
			dcp_jsonw_end(&j->w);
			dcp_jsonw_put_str(&j->w, "model_type", models[i].type);
		}
	dcp_jsonw_put_u64(&j->w, "num_hidden_layers", dcp_json_len(j->layers));
	for (size_t i = 0; i < DCP_LEN(values); i++)
		if (values[i].of & j->model &&
		    !put_value(j, values[i].name, values[i].kind,
			       values[i].base == OF_MODEL ? find_value(j->of, values[i].path)
							  : of_layers(j, values[i].path)) &&
		    values[i].must)
			return false;
	if (!put_rope(j))
		return false;
	if (j->model == GPT_OSS)
		put_windows(j);
	else
		dcp_jsonw_put_str(&j->w, "hidden_act", "silu");
	if (dtype && dcp_dtype_from_torch(dtype, strlen(dtype)))
		dcp_jsonw_put_str(&j->w, "torch_dtype", dtype);
	return j->model != DEEPSEEK_V3 || put_deepseek(j);
}

int dcp_made_torchtitan(const char *json, size_t n, struct dcp_buf *out)
{
	struct job j = { 0 };
	dcp_auto_json struct dcp_json *root = NULL;
	const char *name;
	bool ok = false;
	int rc = dcp_json_parse(json, n, &root, NULL);

	if (rc < 0)
		return rc == -ENOMEM ? rc : 0;
	name = dcp_json_str(find_value(root, "model_spec.name"));
	j.of = find_value(root, "model_spec.model");
	j.layers = find_value(j.of, "layers");
	j.model = name ? model_of(&j, name) : 0;
	if (j.model) {
		dcp_jsonw_init(&j.w, out, true);
		dcp_jsonw_object(&j.w);
		dcp_jsonw_put_str(&j.w, "inferred_by_dcpfs",
				  "from the job config of torchtitan; what it does not say has "
				  "the defaults of transformers");
		ok = put_all(&j, root) && !j.differ;
		dcp_jsonw_end(&j.w);
		dcp_buf_str(out, "\n");
		rc = dcp_jsonw_error(&j.w);
	}
	return rc < 0 ? rc : ok;
}
