/* SPDX-License-Identifier: Apache-2.0 */
#include "core/hf/hf_int.h"

#include <string.h>

#include "core/base/text.h"
#include "core/rules/rules.h"
#include "core/store/index/index.h"

static const char peft_json[] = "adapter_config.json";

static const struct dcp_adapter peft = {
	.stem = "adapter_model",
	.config = peft_json,
	.loader = "PEFT",
	.use = "    PeftModel.from_pretrained(model, \"<this directory>\")\n"
	       "    vllm serve MODEL --enable-lora --lora-modules NAME=<this directory>\n"
};
static const struct dcp_adapter mlx = {
	.stem = "adapters",
	.config = peft_json,
	.loader = "MLX",
	.use = "    mlx_lm.generate --model MODEL --adapter-path <this directory>\n"
};
static const struct dcp_adapter pipeline = {
	.stem = "pytorch_lora_weights",
	.loader = "diffusers",
	.use = "    pipeline.load_lora_weights(\"<this directory>\")    # of diffusers\n"
	       "\nComfyUI and others take the file itself.\n"
};
static const struct dcp_adapter plain = {
	.stem = "adapter_model",
	.use = "The program that saved it loads it: its keys are as they were saved.\n"
};

/* In a model that PEFT wraps, one of this many first or last keys shows the adapter. */
enum { WRAPPED_KEYS = 1024 };

/* What is true of the keys seen so far. */
struct keys {
	bool any, peft, all_peft, lora, all_lora, lower, of_text;
};

static bool begins_with_any(const char *key, const char *const *with, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strncmp(key, with[i], strlen(with[i])) == 0)
			return true;
	return false;
}

static void look_at(struct keys *k, const char *key)
{
	static const char *const of_peft[] = { "base_model.", "prompt_embeddings",
					       "prefix_task_" };
	static const char *const of_text[] = { "model.layers.", "layers.", "transformer.h." };
	enum dcp_lora lora = dcp_rules_lora(key);
	size_t n = strlen(key);

	k->any = true;
	k->peft |= strstr(key, "base_model.model.") != NULL ||
		   begins_with_any(key, of_peft + 1, DCP_LEN(of_peft) - 1);
	k->all_peft &= begins_with_any(key, of_peft, DCP_LEN(of_peft));
	k->lora |= lora == DCP_LORA_YES;
	k->all_lora &= lora != DCP_LORA_NO;
	k->lower |= dcp_ends_with(key, n, ".lora_a");
	k->of_text |= begins_with_any(key, of_text, DCP_LEN(of_text));
}

/*
 * Look at keys from row @after on. All keys are read as long as every key so far may belong to an
 * adapter; otherwise, if @wrapped, up to WRAPPED_KEYS, until a key shows that PEFT wraps the model.
 */
static int look_from(struct dcp_index *ix, int64_t after, bool wrapped, struct keys *k)
{
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	size_t n = 0;
	int rc = dcp_index_scan(ix, DCP_ROW_TENSOR, after, true, &scan);

	while (rc >= 0 &&
	       (k->all_peft || k->all_lora || (wrapped && !k->peft && n < WRAPPED_KEYS)) &&
	       (rc = dcp_index_scan_next(scan, &row)) > 0) {
		look_at(k, row.key);
		n++;
	}
	return rc < 0 ? rc : 0;
}

int dcp_adapter_find(struct dcp_index *ix, const struct dcp_assets *assets, bool wrapped,
		     const struct dcp_adapter **out)
{
	const struct dcp_index_counts *counts = dcp_index_counts(ix);
	int64_t last = (int64_t)(counts->tensors + counts->objects) - WRAPPED_KEYS;
	struct keys k = { .all_peft = true, .all_lora = true };
	bool config = !assets->config.n && dcp_assets_has(assets, peft_json);
	int rc = look_from(ix, 0, wrapped, &k);

	if (rc == 0 && last > 0)
		rc = look_from(ix, last, wrapped, &k);
	if (rc < 0)
		return rc;
	*out = k.peft && (wrapped || k.all_peft) ? &peft
	       : !k.lora || !k.all_lora          ? config ? &peft : NULL
	       : config                          ? k.lower ? &mlx : &peft
	       : k.of_text                       ? &plain
						 : &pipeline;
	return 1;
}
