/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPT-NeoX: how its layers are cut, which its files do not record. They are recognized by "args" in
 * the model files. Source: GPT-NeoX's megatron/model/transformer.py, megatron/mpu/layers.py and
 * tools/ckpts/convert_neox_to_hf.py.
 */
#include <string.h>
#include <strings.h>

#include "core/base/base.h"
#include "core/base/text.h"
#include "core/format/deepspeed/deepspeed_int.h"

enum { MAX_CONFIG = 1 << 20 }; /* bytes of a configuration file that are read */

static const char bias_why[] =
	"GPT-NeoX takes the sum of what the ranks hold, or what each holds, depending on "
	"gpt_j_residual: no file says it (configs/*.yml of the checkpoint does, where it was "
	"saved)";

/*
 * The rules hold only for models without grouped queries and without gates: there queries, keys and
 * values are in order head by head, and the first weight of an MLP is one matrix. No file records
 * these options. But without them the tensor has @height times as many rows as the model is wide.
 */
static const struct dcp_deepspeed_known neox[DCP_DEEPSPEED_NEOX] = {
	{ ".*\\b(word_embeddings|final_linear)\\.weight$", DCP_DEEPSPEED_CUT_ROWS, 0, NULL },
	{ ".*\\battention\\.query_key_value\\.(weight|bias)$", DCP_DEEPSPEED_CUT_ROWS, 3,
	  NULL },
	{ ".*\\bmlp\\.(dense_h_to_4h|linear1)\\.(weight|bias)$", DCP_DEEPSPEED_CUT_ROWS, 4,
	  NULL },
	{ ".*\\b(attention\\.dense|mlp\\.dense_4h_to_h|mlp\\.linear2)\\.weight$",
	  DCP_DEEPSPEED_CUT_COLUMNS, 0, NULL },
	{ ".*\\b(input_layernorm|post_attention_layernorm|norm)\\.(weight|bias|scale)$",
	  DCP_DEEPSPEED_CUT_AVERAGED, 0, NULL },
	{ ".*\\b(position_embeddings\\.weight|rotary_emb\\.inv_freq)$",
	  DCP_DEEPSPEED_CUT_AVERAGED, 0, NULL },
	{ ".*", DCP_DEEPSPEED_LIST_UNKNOWN, 0, "it is not known how GPT-NeoX shares it" },
	{ ".*\\b(attention\\.dense|mlp\\.dense_4h_to_h|mlp\\.linear2)\\.bias$",
	  DCP_DEEPSPEED_LIST_REFUSED, 0, bias_why },
};

bool dcp_deepspeed_is_neox(struct dcp_pv args, uint64_t *width)
{
	const struct dcp_pv *v = dcp_pv_get(args, "hidden_size");

	return v && dcp_pv_u64(*v, width) && *width > 0 && *width <= UINT32_MAX &&
	       dcp_pv_get(args, "model_parallel_size") &&
	       dcp_pv_get(args, "padded_vocab_size") && dcp_pv_get(args, "tokenizer_type");
}

/* ---- gpt_j_residual ---- */

/* The value of "gpt-j-residual" in a line of YAML or JSON; NULL: the line does not have it. */
static const char *find_value(const char *line)
{
	static const char key[] = "gpt-j-residual";
	const char *end = line + strlen(line);

	for (const char *p = line; (p = strstr(p, "gpt")) != NULL; p++) {
		size_t i = 0;

		while (key[i] && (p[i] == key[i] || (key[i] == '-' && p[i] == '_')))
			i++;
		if (key[i] || (p > line && !strchr(" \t{,\"'", p[-1])))
			continue;
		p += i;
		p += strspn(p, "\"' \t");
		if (*p == ':')
			return p + 1 + strspn(p + 1, "\"' \t");
		if (p == end)
			break;
	}
	return NULL;
}

static bool is_true(const char *value)
{
	return !strncasecmp(value, "true", 4) || !strncasecmp(value, "yes", 3) ||
	       !strncasecmp(value, "on", 2) || *value == '1';
}

/* Does the line of @text with gpt_j_residual turn it on? 1: yes, 0: no, -1: no such line. */
static int look_at_config(char *text)
{
	int found = -1;
	char *rest = text, *line;

	while (found < 0 && (line = strsep(&rest, "\n")) != NULL) {
		const char *value;

		for (char *p = line; (p = strchr(p, '#')) != NULL; p++)
			if (p == line || p[-1] == ' ' || p[-1] == '\t') {
				*p = '\0'; /* a comment */
				break;
			}
		value = find_value(line);
		if (value)
			found = is_true(value);
	}
	return found;
}

/*
 * Is gpt_j_residual on: are attention and MLP added up before the parts of their ranks? The options
 * of the run are in configs/ of the checkpoint, as YAML or JSON, if they were saved; the default is
 * no. Returns 1, 0, or -1 if the options are not there.
 */
static int is_parallel(struct dcp_deepspeed *ds)
{
	dcp_auto_dir struct dcp_dir dir = { 0 };
	int found = -1;

	if (!dcp_dir_find(ds->in->dir, "configs") ||
	    dcp_dir_open_at(ds->in->dir, "configs", &dir, NULL) < 0)
		return -1;
	for (size_t i = 0; found != 1 && i < dir.n; i++) {
		const char *name = dir.entries[i].name;
		dcp_auto_input struct dcp_input in = { 0 };
		dcp_auto_free char *text = NULL;
		int says;

		if (!dcp_has_extension(name, ".yml") && !dcp_has_extension(name, ".yaml") &&
		    !dcp_has_extension(name, ".json"))
			continue;
		if (dcp_dir_input(&dir, name, &in, NULL) < 0 || in.src.size > MAX_CONFIG)
			return -1; /* the option may be in this file */
		text = calloc(1, in.src.size + 1);
		if (!text || dcp_source_read(&in.src, 0, text, in.src.size) < 0)
			return -1;
		says = look_at_config(text);
		found = says < 0 ? 0 : says;
		if (says >= 0)
			break;
	}
	return found;
}

void dcp_deepspeed_neox(struct dcp_deepspeed *ds, uint64_t width,
			struct dcp_deepspeed_known out[DCP_DEEPSPEED_NEOX])
{
	struct dcp_deepspeed_known *bias = &out[DCP_DEEPSPEED_NEOX - 1];
	int parallel = is_parallel(ds);

	memcpy(out, neox, sizeof(neox));
	for (size_t i = 0; i < DCP_DEEPSPEED_NEOX; i++)
		out[i].height *= width;
	/*
	 * The bias of a weight that is cut by columns. With gpt_j_residual every rank has its own
	 * bias, which it adds before the ranks' results are added up. Without it all ranks hold the
	 * same bias, which is added to the sum.
	 */
	if (parallel >= 0)
		*bias = (struct dcp_deepspeed_known){ bias->pattern,
						      parallel ? DCP_DEEPSPEED_CUT_SUMMED
							       : DCP_DEEPSPEED_CUT_REPLICATED,
						      0, NULL };
}
