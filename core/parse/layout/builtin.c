/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Built-in layouts. Presets are texts in the grammar itself, over module names of the models
 * as Hugging Face has them; anything may stand in front of a name, and the state an optimizer
 * keeps for a parameter (".exp_avg" after it) is cut as the parameter is.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/model/tensor.h"
#include "core/parse/layout/layout_int.h"

/* A parameter, and what is kept for it. */
#define PARAM(p) p " " p ".* "
#define LINEAR(m) PARAM("*." m ".weight") PARAM("*." m ".bias")
#define COLWISE(m) LINEAR(m) "colwise\n"
#define ROWWISE(m) LINEAR(m) "rowwise\n"
/* An embedding or output layer: by vocabulary. */
#define TABLE(m) PARAM("*" m ".weight") PARAM("*" m ".bias") "shard(0, optional)\n"
#define ATTENTION COLWISE("q_proj") COLWISE("k_proj") COLWISE("v_proj") ROWWISE("o_proj")
/* All experts in one tensor: [experts, 2 * inner, outer] and [experts, outer, inner]. */
#define EXPERTS                                                                                \
	PARAM("*.experts.gate_up_proj")                                                        \
	"colwise(groups=[1,1])\n" PARAM("*.experts.down_proj") "rowwise\n"
#define QWEN                                                                                   \
	ATTENTION EXPERTS COLWISE("gate_proj") COLWISE("up_proj") ROWWISE("down_proj")         \
		TABLE("embed_tokens") TABLE("lm_head")
#define REST "* replicate\n"

/* clang-format off */
static const struct {
	const char *name, *rules;
} presets[] = {
	{ "llama",
	  ATTENTION COLWISE("gate_proj") COLWISE("up_proj") ROWWISE("down_proj")
	  LINEAR("gate_up_proj") "colwise(groups=[1,1])\n"
	  COLWISE("wq") COLWISE("wk") COLWISE("wv") ROWWISE("wo")
	  COLWISE("w1") ROWWISE("w2") COLWISE("w3")
	  TABLE("embed_tokens") TABLE("lm_head") TABLE("tok_embeddings") TABLE("output") REST },
	{ "qwen", "*.shared_expert.* replicate\n" QWEN REST },
	{ "qwen3-next",
	  COLWISE("linear_attn.in_proj_*") COLWISE("linear_attn.out_proj") QWEN REST },
	{ "mixtral",
	  ATTENTION EXPERTS COLWISE("w1") ROWWISE("w2") COLWISE("w3")
	  TABLE("embed_tokens") TABLE("lm_head") REST },
	/* Rows of query_key_value are (heads, 3, head size): parts of it are whole heads. */
	{ "gpt-neox",
	  COLWISE("query_key_value") ROWWISE("attention.dense")
	  COLWISE("dense_h_to_4h") ROWWISE("dense_4h_to_h")
	  TABLE("lm_head") TABLE("embed_out") REST },
	/* Conv1D keeps its weights as [in, out]. */
	{ "gpt2",
	  PARAM("*.crossattention.c_attn.weight") "shard(1, groups=[1,1], optional)\n"
	  PARAM("*.crossattention.c_attn.bias") "shard(0, groups=[1,1], optional)\n"
	  PARAM("*.c_attn.weight") "shard(1, groups=[1,1,1], optional)\n"
	  PARAM("*.c_attn.bias") "shard(0, groups=[1,1,1], optional)\n"
	  PARAM("*.q_attn.weight") PARAM("*.c_fc.weight") "shard(1, optional)\n"
	  PARAM("*.q_attn.bias") PARAM("*.c_fc.bias") "shard(0, optional)\n"
	  PARAM("*.c_proj.weight") "shard(0, optional)\n"
	  TABLE("wte") TABLE("lm_head") REST },
};
/* clang-format on */

const char *dcp_layout_preset(size_t i)
{
	return i < DCP_LEN(presets) ? presets[i].name : NULL;
}

#define PRESETS "llama, qwen, qwen3-next, mixtral, gpt-neox and gpt2"

static const char *const stems[] = { "fsdp", "dim", "tp", NULL };
static const char *const forms[] = { "fsdp<N>", "dim<k>x<N>", "tp<N>:<preset>" };

/* A number without leading zeros, at most @most, at *@s. */
static bool number(const char **s, int64_t most, int64_t *out)
{
	const char *start = *s;

	return dcp_layout_int(s, start + strlen(start), out) && *start != '-' && *out <= most &&
	       (*start != '0' || *s == start + 1);
}

static bool ranks(const char **s, int64_t *out)
{
	return number(s, DCP_LAYOUT_MAX_RANKS, out) && *out >= 1;
}

static int bad_name(const char *name, const char *form, struct dcp_err *err)
{
	bool tp = form == forms[2];

	return dcp_fail(err, -EINVAL, "layout \"%.80s\" should read %s, with 1 to %u ranks%s%s",
			name, form, DCP_LAYOUT_MAX_RANKS, tp ? "; presets are " : "",
			tp ? PRESETS : "");
}

static int no_preset(const char *name, const char *preset, struct dcp_err *err)
{
	const char *known[DCP_LEN(presets) + 1] = { 0 };
	char near[64];

	for (size_t i = 0; i < DCP_LEN(presets); i++)
		known[i] = presets[i].name;
	dcp_layout_nearest(near, sizeof(near), preset, known);
	return dcp_fail(err, -EINVAL,
			"layout \"%.80s\": no preset \"%.40s\"%s; there are " PRESETS, name,
			preset, near);
}

static int no_name(const char *name, struct dcp_err *err)
{
	char stem[16] = "", near[64] = "";

	for (size_t i = 0; isalpha((unsigned char)name[i]) && i < sizeof(stem) - 1; i++)
		stem[i] = (char)tolower((unsigned char)name[i]);
	dcp_layout_nearest(near, sizeof(near), stem, stems);
	for (size_t i = 0; stems[i]; i++) {
		char quoted[24];

		snprintf(quoted, sizeof(quoted), "\"%s\"", stems[i]);
		if (strstr(near, quoted))
			snprintf(near, sizeof(near), ", nearest is %s", forms[i]);
	}
	return dcp_fail(err, -ENOENT, "no built-in layout \"%.80s\"%s; there are %s, %s and %s",
			name, near, forms[0], forms[1], forms[2]);
}

/* The text of the layout @name. */
static int text_of(const char *name, struct dcp_buf *out, struct dcp_err *err)
{
	size_t letters = strspn(name, "abcdefghijklmnopqrstuvwxyz");
	const char *s = name + letters;
	int64_t n, k;

	if (letters == 4 && memcmp(name, "fsdp", 4) == 0) {
		if (!ranks(&s, &n) || *s)
			return bad_name(name, forms[0], err);
		dcp_buf_printf(out, "mesh fsdp=%jd\n* shard(0, optional)\n", (intmax_t)n);
		return 0;
	}
	if (letters == 3 && memcmp(name, "dim", 3) == 0) {
		if (!number(&s, DCP_MAX_NDIM - 1, &k) || *s++ != 'x' || !ranks(&s, &n) || *s)
			return bad_name(name, forms[1], err);
		dcp_buf_printf(out, "mesh dim=%jd\n* shard(%jd, optional)\n", (intmax_t)n,
			       (intmax_t)k);
		return 0;
	}
	if (letters != 2 || memcmp(name, "tp", 2) != 0)
		return no_name(name, err);
	if (!ranks(&s, &n) || *s++ != ':')
		return bad_name(name, forms[2], err);
	for (size_t i = 0; i < DCP_LEN(presets); i++)
		if (strcmp(presets[i].name, s) == 0) {
			dcp_buf_printf(out, "mesh tp=%jd\n%s", (intmax_t)n, presets[i].rules);
			return 0;
		}
	return no_preset(name, s, err);
}

int dcp_layout_named(const char *name, struct dcp_layout **out, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	int rc = text_of(name, &text, err);

	if (rc == 0)
		rc = dcp_buf_error(&text);
	if (rc == 0)
		rc = dcp_layout_parse(name, text.p, text.n, out, err);
	for (size_t i = 0; rc == 0 && i < (*out)->nrule; i++)
		(*out)->rule[i].line = 0;
	return rc;
}
