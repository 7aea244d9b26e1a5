/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names by which parts of a version are known.
 */
#include <fnmatch.h>

#include "core/base/base.h"
#include "core/format/formats.h"
#include "core/format/parts/parts.h"
#include "core/model/order.h"

/* clang-format off */
/* Directories that are parts. A version may consist of one that is alone: nothing else is ever
 * called so. */
static const struct {
	const char *glob;
	bool alone;
	enum dcp_part_role role;
} directories[] = {
	{ "pytorch_model_fsdp_[0-9]*", true, DCP_PART_MODEL },
	{ "pytorch_model_[0-9]*", true, DCP_PART_MODEL },
	{ "pytorch_model", true, DCP_PART_MODEL }, /* Accelerate's, of DeepSpeed */
	{ "global_step[0-9]*", false, DCP_PART_STATE }, /* DeepSpeed's, of a Trainer; see parts.c */
	{ "optimizer_[0-9]*", false, DCP_PART_STATE },
	{ "actor", true, DCP_PART_MODEL },
	{ "critic", true, DCP_PART_MODEL },
	{ "weights", true, DCP_PART_MODEL }, /* NeMo's, beside context/ */
	{ "model_weights", true, DCP_PART_MODEL }, /* beside model_config.yaml, unpacked or in a .nemo */
	{ "tp_rank_[0-9]*", true, DCP_PART_STATE }, /* NeMo's before that: model_weights.ckpt of each rank */
	{ "mp_rank_[0-9]*", true, DCP_PART_STATE }, /* the same without pipeline stages; of files that Megatron or DeepSpeed do not have */
	{ "dist_ckpt", true, DCP_PART_MODEL },
	{ "modeling", true, DCP_PART_MODEL }, /* ColossalAI's, beside optimizer/ */
	{ "model", false, DCP_PART_MODEL },
	{ "optimizer", false, DCP_PART_STATE },
	{ "optim", false, DCP_PART_STATE },
	{ "lr_scheduler", false, DCP_PART_STATE },
	{ "scheduler", false, DCP_PART_STATE },
	{ "extra_state", false, DCP_PART_STATE },
	{ "train_state", false, DCP_PART_STATE },
	{ "recipe_state", false, DCP_PART_STATE },
	{ "dataloader", false, DCP_PART_STATE },
	{ "huggingface", false, DCP_PART_STATE },
};

/* Files that are parts. State files make a version of what lies beside them; others join one
 * that is. */
static const struct {
	const char *glob;
	bool state;
} files[] = {
	{ "optimizer.pt", true },
	{ "optimizer.bin", true },
	{ "optimizer_[0-9]*.bin", true },
	{ "optim.pt", true },
	{ "optimizer_state.pt", true },
	{ "scheduler.pt", true },
	{ "scheduler.bin", true },
	{ "scheduler_[0-9]*.bin", true },
	{ "lr_scheduler.pt", true },
	{ "lr_scheduler", true }, /* ColossalAI's */
	{ "scaler.pt", true },
	{ "rng_state.pth", true },
	{ "rng_state_[0-9]*.pth", true },
	{ "random_states_[0-9]*.pkl", true },
	{ "sampler.bin", true },
	{ "sampler_[0-9]*.bin", true },
	{ "dl_state_dict.bin", true },
	{ "dl_state_dict_[0-9]*.bin", true },
	{ "custom_checkpoint_[0-9]*.pkl", true },
	{ "dataloader.pt", true },
	{ "dataloader_[0-9]*.pt", true },
	{ "data.pt", true },
	{ "meta.pt", true },
	{ "common.pt", true },
	{ "extra_state.pt", true },
	{ "train_state.pt", true },
	{ "trainer_state.pt", true },
	{ "training_state.pt", true },
	{ "recipe_state.pt", true },
	{ "client_state.pt", true },
	{ "training_args.bin", false },
	{ "trainer_state.json", false },
};

/* Files beside the above that hold a model by themselves; other .pt files are versions. */
static const char *const models[] = {
	"model.pt",          "model.pth",           "model.bin",
	"pytorch_model.bin", "pytorch_model_*.bin", "adapter_model.bin",
	"adapter_model.pt",  "weights.pt",        "model_state", /* PaddleNLP's */
};

/* clang-format on */

static bool matches(const char *glob, const char *name)
{
	return fnmatch(glob, name, FNM_PERIOD) == 0;
}

bool dcp_parts_is_file(const struct dcp_dirent *e, bool *state)
{
	for (size_t i = 0; !e->is_dir && i < DCP_LEN(files); i++)
		if (matches(files[i].glob, e->name)) {
			*state = files[i].state;
			return true;
		}
	return false;
}

bool dcp_parts_is_dir(const struct dcp_dirent *e, bool *alone, enum dcp_part_role *role)
{
	for (size_t i = 0; e->is_dir && i < DCP_LEN(directories); i++)
		if (matches(directories[i].glob, e->name)) {
			*alone = directories[i].alone;
			if (role)
				*role = directories[i].role;
			return true;
		}
	return false;
}

bool dcp_parts_may_be_role(const struct dcp_dirent *e)
{
	static const char *const saves[] = { "best*", "last*", "final*", "latest*" };
	bool unused;

	for (size_t i = 0; i < DCP_LEN(saves); i++)
		if (matches(saves[i], e->name))
			return false;
	return e->is_dir && !e->is_link && *e->name != '.' && !dcp_order_is_save(e->name) &&
	       !dcp_parts_is_dir(e, &unused, NULL);
}

enum dcp_parts_home dcp_parts_home(const struct dcp_dir *dir)
{
	static const struct {
		const char *glob;
		enum dcp_parts_home home;
	} homes[] = {
		{ "model_index.json", DCP_HOME_PIPELINE },
		{ "modules.json", DCP_HOME_MODULES },
		{ "random_states_[0-9]*.pkl", DCP_HOME_STATES },
		{ "rng_state*.pth", DCP_HOME_STATES },
		{ "adapter_config.json", DCP_HOME_ADAPTER },
	};

	for (size_t h = 0; h < DCP_LEN(homes); h++)
		for (size_t i = 0; i < dir->n; i++)
			if (!dir->entries[i].is_dir &&
			    matches(homes[h].glob, dir->entries[i].name))
				return homes[h].home;
	return DCP_HOME_NONE;
}

bool dcp_parts_is_hf(const struct dcp_format *format)
{
	return format == &dcp_format_torch_hf || format == &dcp_format_torch_bin;
}

bool dcp_parts_is_model(const char *name)
{
	for (size_t i = 0; i < DCP_LEN(models); i++)
		if (matches(models[i], name))
			return true;
	return false;
}

enum dcp_part_role dcp_parts_role(const char *group)
{
	static const char *const states[] = {
		"optim*", "pytorch_optim*", "extra_state*", "*scheduler*",
		"rng*",   "random_states*", "dataloader*",  "*train*_state*",
	};

	for (size_t i = 0; i < DCP_LEN(states); i++)
		if (matches(states[i], group))
			return DCP_PART_STATE;
	return DCP_PART_MODEL;
}
