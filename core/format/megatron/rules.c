/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/megatron/megatron_int.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"

enum { MAX_STARS = 8 }; /* in a glob: each multiplies the ways to match it */

/* A rule of the file: where its glob starts in text. */
struct entry {
	struct dcp_mrule rule;
	size_t glob;
};

#define REPLICATE                                                                              \
	{                                                                                      \
		.replicate = true                                                              \
	}
#define CUT(d)                                                                                 \
	{                                                                                      \
		.dim = (d), .groups = 1                                                        \
	}
#define GATED(d)                                                                               \
	{                                                                                      \
		.gated = true, .dim = (d), .groups = 1                                         \
	}
/* Rows of each rank: once (parts, heads, head size), now (heads, parts, head size). */
#define FUSED(parts)                                                                           \
	{                                                                                      \
		.dim = 0, .groups = 1, .old = (parts)                                          \
	}

/*
 * Column-parallel layers are cut along their outputs (dim 0, with their bias), row-parallel
 * ones along their inputs (dim 1, their bias on every rank). Sources: megatron/core/transformer
 * and tensor_parallel/layers.py, and megatron/model of 2019 to 2023.
 */
/* clang-format off */
static const struct {
	const char *glob;
	struct dcp_mrule rule;
} known[] = {
	{ "*._extra_state*", REPLICATE }, /* Megatron itself keeps the first rank's */
	/* norms first: some are parts of linear layers (linear_qkv.layer_norm_weight) */
	{ "*.mixer.norm.weight", CUT(0) }, /* except Mamba's, over the cut inner dimension */
	{ "*norm*", REPLICATE },
	{ "*position_embeddings.weight", REPLICATE },
	{ "*tokentype_embeddings.weight", REPLICATE },
	{ "*rotary_pos_emb*", REPLICATE },
	{ "*router.*", REPLICATE },
	{ "*shared_experts.gate_weight", REPLICATE },
	{ "*pooler.*", REPLICATE },
	{ "*binary_head.*", REPLICATE },
	{ "*lm_head.dense.*", REPLICATE },
	{ "*_down_proj.*", REPLICATE }, /* multi-latent attention; but see dcp_mjoin_see_latent() */
	{ "*_latent_proj.*", REPLICATE }, /* experts in a smaller space */
	/* column-parallel */
	{ "*word_embeddings.weight", CUT(0) },
	{ "word_embeddings_for_head.weight", CUT(0) },
	{ "*output_layer.weight", CUT(0) },
	{ "*output_layer.bias", CUT(0) },
	{ "*lm_head.weight", CUT(0) },
	{ "*lm_head.bias", CUT(0) },
	{ "*linear_qkv.weight", CUT(0) },
	{ "*linear_qkv.bias", CUT(0) },
	{ "*linear_q.weight", CUT(0) },
	{ "*linear_q.bias", CUT(0) },
	{ "*linear_kv.weight", CUT(0) },
	{ "*linear_kv.bias", CUT(0) },
	{ "*linear_q_proj.*", CUT(0) },
	{ "*_up_proj.*", CUT(0) },
	{ "*query_key_value.*", FUSED(3) },
	{ "*attention.query.*", CUT(0) },
	{ "*attention.key_value.*", FUSED(2) },
	{ "*.softmax_offset", CUT(0) },
	{ "*.eh_proj.weight", CUT(0) },
	{ "*.mixer.A_log", CUT(0) },
	{ "*.mixer.D", CUT(0) },
	{ "*.mixer.dt_bias", CUT(0) },
	{ "*linear_fc1.weight*", GATED(0) },
	{ "*linear_fc1.bias*", GATED(0) },
	{ "*dense_h_to_4h.weight", GATED(0) },
	{ "*dense_h_to_4h.bias", GATED(0) },
	/* experts of a grouped GEMM in one matrix, as [experts, inputs, outputs] */
	{ "*.experts.weight1", GATED(2) },
	{ "*.experts.weight2", CUT(1) },
	/* row-parallel */
	{ "*linear_proj.weight", CUT(1) },
	{ "*attention.dense.weight", CUT(1) },
	{ "*linear_fc2.weight*", CUT(1) },
	{ "*.mixer.out_proj.weight", CUT(1) },
	{ "*dense_4h_to_h.weight", CUT(1) },
	{ "*linear_proj.bias", REPLICATE },
	{ "*attention.dense.bias", REPLICATE },
	{ "*linear_fc2.bias*", REPLICATE },
	{ "*dense_4h_to_h.bias", REPLICATE },
};
/* clang-format on */

bool dcp_mrules_find(const struct dcp_mrules *r, const char *key, struct dcp_mrule *out)
{
	const struct entry *own = DCP_ITEMS(r->list, struct entry);

	for (size_t i = 0; i < r->list.n / sizeof(*own); i++)
		if (fnmatch(r->text.p + own[i].glob, key, 0) == 0) {
			*out = own[i].rule;
			return true;
		}
	for (size_t i = 0; i < DCP_LEN(known); i++)
		if (fnmatch(known[i].glob, key, 0) == 0) {
			*out = known[i].rule;
			return true;
		}
	return false;
}

/* "4:1:1)" and nothing after it. */
static bool read_sizes(const char *s, struct dcp_mrule *rule)
{
	int end = 0;

	for (rule->nsizes = 0; rule->nsizes < DCP_MEGATRON_MAX_SIZES; s++) {
		uint32_t *size = &rule->size[rule->nsizes];

		if (sscanf(s, " %7u %n", size, &end) != 1 || *size == 0)
			return false;
		rule->nsizes++;
		s += end;
		if (*s != ':')
			return strcmp(s, ")") == 0;
	}
	return false;
}

static bool read_placement(const char *s, struct dcp_mrule *rule)
{
	int end = 0;

	rule->groups = 1;
	if (strcmp(s, "replicate") == 0) {
		rule->replicate = true;
		return true;
	}
	if (sscanf(s, "shard( %2u %n", &rule->dim, &end) != 1)
		return false;
	s += end;
	if (strcmp(s, ")") == 0)
		return true;
	end = 0;
	if (sscanf(s, ", groups = %4u )%n", &rule->groups, &end) == 1 && end && !s[end])
		return rule->groups > 0;
	rule->groups = 1;
	end = 0;
	sscanf(s, ", parts =%n", &end);
	return end && read_sizes(s + end, rule);
}

static int count_stars(const char *glob)
{
	int n = 0;

	for (; *glob; glob++)
		n += *glob == '*';
	return n;
}

static int read_line(struct dcp_mrules *r, char *line, unsigned number, struct dcp_err *err)
{
	char *end = line + strcspn(line, "#"), *space;
	struct entry e = { .rule = { .line = number }, .glob = r->text.n };

	while (end > line && strchr(" \t\r", end[-1]))
		end--;
	*end = '\0';
	line += strspn(line, " \t");
	if (!*line)
		return 0;
	space = line + strcspn(line, " \t");
	if (*space)
		*space++ = '\0';
	space += strspn(space, " \t");
	if (count_stars(line) > MAX_STARS)
		return dcp_fail(err, -EBADMSG,
				DCP_MEGATRON_RULES ":%u: a glob of more than %d stars", number,
				MAX_STARS);
	if (!read_placement(space, &e.rule))
		return dcp_fail(err, -EBADMSG,
				DCP_MEGATRON_RULES ":%u: \"%.80s\" does not say how it is cut: "
						   "expected replicate, shard(D), "
						   "shard(D, groups=N) or "
						   "shard(D, parts=N:N...)",
				number, line);
	dcp_buf_add(&r->text, line, strlen(line) + 1);
	dcp_buf_add(&r->list, &e, sizeof(e));
	return dcp_buf_error(&r->text) | dcp_buf_error(&r->list);
}

int dcp_mrules_parse(struct dcp_mrules *r, const char *text, size_t n, struct dcp_err *err)
{
	const char *end = text + n;
	int rc = 0;

	for (unsigned number = 1; text < end && rc == 0; number++) {
		const char *stop = memchr(text, '\n', (size_t)(end - text));
		size_t len = (size_t)((stop ? stop : end) - text);
		char line[1024];

		if (len >= sizeof(line) || memchr(text, '\0', len))
			return dcp_fail(err, -EBADMSG,
					DCP_MEGATRON_RULES
					":%u: a line of at most %zu characters "
					"is expected",
					number, sizeof(line) - 1);
		memcpy(line, text, len);
		line[len] = '\0';
		rc = read_line(r, line, number, err);
		text += len + 1;
	}
	return rc;
}

void dcp_mrules_finish(struct dcp_mrules *r)
{
	dcp_buf_finish(&r->text);
	dcp_buf_finish(&r->list);
}
