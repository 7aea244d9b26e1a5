/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/number.h"
#include "core/base/text.h"
#include "core/format/deepspeed/deepspeed_int.h"

/* Up to nine digits: no job has a billion ranks. */
static bool eat_number(const char **p, uint32_t *out)
{
	uint64_t v = 0;
	bool there = dcp_take_number(p, NULL, 9, &v);

	*out = (uint32_t)v;
	return there;
}

/* "mp_rank_00", and what follows must be @end. */
static bool eat_mp(const char *p, const char *end, struct dcp_ds_name *out)
{
	return dcp_take_text(&p, "mp_rank_") && eat_number(&p, &out->mp) && strcmp(p, end) == 0;
}

/* [bf16_|fp16_]zero_pp_rank_0_mp_rank_00_... */
static bool parse_zero(const char *p, struct dcp_ds_name *out)
{
	bool plain = !dcp_take_text(&p, "bf16_") && !dcp_take_text(&p, "fp16_");

	if (!dcp_take_text(&p, "zero_pp_rank_") || !eat_number(&p, &out->dp) ||
	    !dcp_take_text(&p, "_"))
		return false;
	out->sharded = true;
	out->kind = DCP_DS_OPTIM;
	/* Before 0.3.14 an underscore was forgotten. */
	if (eat_mp(p, "_optim_states.pt", out) || eat_mp(p, "optim_states.pt", out))
		return true;
	out->kind = DCP_DS_MODEL;
	return plain && eat_mp(p, "_model_states.pt", out);
}

/* layer_03-model_01-model_states.pt, layer_0_expert_5_mp_rank_00_model_states.pt */
static bool parse_layer(const char *p, struct dcp_ds_name *out)
{
	if (!dcp_take_text(&p, "layer_") || !eat_number(&p, &out->layer))
		return false;
	if (dcp_take_text(&p, "_expert_")) {
		out->kind = DCP_DS_EXPERT;
		return eat_number(&p, &out->expert) && dcp_take_text(&p, "_") &&
		       eat_mp(p, "_model_states.pt", out);
	}
	out->kind = DCP_DS_LAYER;
	if (dcp_take_text(&p, "-model_states.pt"))
		return !*p;
	return dcp_take_text(&p, "-model_") && eat_number(&p, &out->mp) &&
	       !strcmp(p, "-model_states.pt");
}

bool dcp_ds_name_parse(const char *name, struct dcp_ds_name *out)
{
	const char *p = name;

	*out = (struct dcp_ds_name){ .name = name, .kind = DCP_DS_MODEL };
	if (eat_mp(p, "_model_states.pt", out))
		return true;
	*out = (struct dcp_ds_name){ .name = name };
	if (parse_zero(p, out))
		return true;
	*out = (struct dcp_ds_name){ .name = name };
	if (parse_layer(p, out))
		return true;
	*out = (struct dcp_ds_name){ .name = name, .kind = DCP_DS_EXPERT };
	if (dcp_take_text(&p, "expert_"))
		return eat_number(&p, &out->expert) && dcp_take_text(&p, "_") &&
		       eat_mp(p, "_model_states.pt", out);
	out->kind = DCP_DS_EXPERT_OPTIM;
	return dcp_take_text(&p, "expp_rank_") && eat_number(&p, &out->expert) &&
	       dcp_take_text(&p, "_") && eat_mp(p, "_optim_states.pt", out);
}

void dcp_ds_name_of_rank(const struct dcp_ds_name *like, uint32_t dp, uint32_t mp,
			 char out[DCP_DS_NAME_MAX])
{
	const char *p = like->name;
	const char *what = like->kind == DCP_DS_MODEL ? "model" : "optim";
	int bits = strncmp(p, "bf16_", 5) == 0 || strncmp(p, "fp16_", 5) == 0 ? 5 : 0;
	size_t n = strlen(p);
	/* ".._00optim_states.pt" */
	bool joined = n > 16 && p[n - 16] != '_' && like->kind == DCP_DS_OPTIM;

	if (like->sharded)
		snprintf(out, DCP_DS_NAME_MAX,
			 "%.*szero_pp_rank_%" PRIu32 "_mp_rank_%02" PRIu32 "%s%s_states.pt",
			 bits, p, dp, mp, joined ? "" : "_", what);
	else
		snprintf(out, DCP_DS_NAME_MAX, "mp_rank_%02" PRIu32 "_%s_states.pt", mp, what);
}
