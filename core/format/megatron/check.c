/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a Megatron-LM checkpoint says elsewhere of a tensor's size: in the layer after it, in
 * the arguments of the run.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/number.h"
#include "core/format/megatron/megatron_int.h"

/* ---- gates ---- */

/* First layers, and how the weight of the second is called. */
static const char *const pairs[][2] = { { "linear_fc1.", "linear_fc2.weight" },
					{ "dense_h_to_4h.", "dense_4h_to_h.weight" },
					{ ".weight1", ".weight2" } };

/* The second layer of the same rank, or NULL. */
static const struct dcp_tensor *find_second(const struct dcp_mjoin *j)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT, name = DCP_BUF_INIT;
	struct dcp_mplace place = j->place;
	uint32_t number = DCP_INTERN_NONE;

	for (size_t i = 0; i < DCP_LEN(pairs) && number == DCP_INTERN_NONE; i++) {
		const char *at = strstr(place.key, pairs[i][0]);
		const char *end = place.key + strlen(place.key);

		if (!at)
			continue;
		/* The number of an expert stands at the end of "weight3" and "bias3". */
		if (dcp_buf_printf(&key, "%.*s%s%s", (int)(at - j->place.key), j->place.key,
				   pairs[i][1],
				   at[0] == '.' ? "" : dcp_digits_before(at, end)) < 0)
			return NULL;
		place.key = key.p;
		if (dcp_mplace_print(&place, &name) == 0)
			number = dcp_intern_find(&j->m->model.names, name.p, name.n);
		break;
	}
	if (number == DCP_INTERN_NONE)
		return NULL;
	for (const struct dcp_copy *c = dcp_copies_at(&j->m->model, number)->first; c;
	     c = c->next)
		if (!c->t.error && c->t.ndim == 2)
			return &c->t;
	return NULL;
}

/* One half or two? The second layer's inputs are as many as the first one's outputs, of a gated
 * one half as many. */
void dcp_mjoin_see_gate(struct dcp_mjoin *j)
{
	const struct dcp_tensor *second = find_second(j);
	struct dcp_mview v;
	uint64_t rows, inputs;

	if (!dcp_mjoin_view(j, &j->copy[0]->t, &v))
		return;
	if (!second || j->rule.dim >= v.ndim) {
		dcp_fail(&j->why, -EBADMSG,
			 "whether it is two halves (SwiGLU) cannot be seen, its second layer "
			 "is not there: say shard(%u) or shard(%u, groups=2) "
			 "in " DCP_MEGATRON_RULES,
			 j->rule.dim, j->rule.dim);
		return;
	}
	rows = v.dim[j->rule.dim];
	inputs = v.ndim == 3 ? second->shape[0] / v.dim[0] : second->shape[1];
	if (inputs == 0 || (rows != inputs && (rows % 2 || rows / 2 != inputs))) {
		dcp_fail(&j->why, -EBADMSG,
			 "a rank holds %" PRIu64
			 " of its rows, and its second layer has %" PRIu64
			 " inputs there: expected as many or half as many; say how it is cut "
			 "in " DCP_MEGATRON_RULES,
			 rows, inputs);
		return;
	}
	j->rule.groups = rows == inputs ? 1 : 2;
}

/* ---- arguments ---- */

static bool begins(const char *key, const char *with)
{
	return strncmp(key, with, strlen(with)) == 0;
}

/* Is it of the layers that the arguments describe? Those of vision towers are others. */
static bool is_layer(const char *key)
{
	return begins(key, "encoder.layers.") || begins(key, "decoder.layers.") ||
	       begins(key, "transformer.layers.") || begins(key, "layers.");
}

/* 0: they do not say. */
static uint64_t expected_size(const struct dcp_mjoin *j)
{
	const struct dcp_margs *a = &j->m->args;
	const char *key = j->key;

	if (begins(key, "embedding.word_embeddings") || begins(key, "word_embeddings") ||
	    begins(key, "output_layer.") || begins(key, "lm_head."))
		return a->vocab;
	if (!is_layer(key) || a->varied || j->place.holder != DCP_MHOLD_ALL ||
	    strstr(key, "shared_experts"))
		return 0;
	if (strstr(key, "linear_fc") || strstr(key, "dense_h_to_4h") ||
	    strstr(key, "dense_4h_to_h"))
		return a->ffn * j->rule.groups;
	if (strstr(key, "linear_q_down_proj."))
		return a->q_rank;
	if (strstr(key, "linear_kv_down_proj."))
		return a->kv_rank;
	if (strstr(key, "linear_qkv_down_proj."))
		return a->q_rank + a->kv_rank;
	if (strstr(key, "linear_proj.") || strstr(key, "attention.dense."))
		return a->value_channels * a->heads;
	if (strstr(key, "linear_qkv.") || strstr(key, ".query_key_value."))
		return a->kv_channels * a->qkv_heads;
	return 0;
}

void dcp_mjoin_see_latent(struct dcp_mjoin *j)
{
	uint64_t want = expected_size(j);

	for (uint32_t i = 0; i < j->nparts && want; i++) {
		const struct dcp_copy *c = j->copy[i];

		if (!c || c->t.error || !c->t.ndim)
			continue;
		if (c->t.shape[0] != want)
			j->rule = (struct dcp_mrule){ .dim = 0, .groups = 1 };
		return;
	}
}

void dcp_mjoin_check_args(struct dcp_mjoin *j)
{
	uint64_t want = expected_size(j), is = j->shape[j->rule.dim];

	if (j->rule.line || !want || want == is)
		return;
	dcp_fail(&j->why, -EBADMSG,
		 "the parts of %u tensor-parallel ranks make %" PRIu64
		 " along dimension %u, the arguments of the run say %" PRIu64
		 ": say how it is cut in " DCP_MEGATRON_RULES,
		 j->nparts, is, j->rule.dim, want);
}
