/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names by which parts of a version are known.
 */
#include <fnmatch.h>

#include "core/base/base.h"
#include "core/format/parts/parts.h"

/* clang-format off */
/* Directories that are parts. A version may consist of one that is alone: nothing else is ever
 * called so. */
static const struct {
	const char *glob;
	bool alone;
} directories[] = {
	{ "pytorch_model_fsdp_[0-9]*", true },
	{ "pytorch_model_[0-9]*", true },
	{ "pytorch_model", true }, /* Accelerate's, of DeepSpeed */
	{ "global_step[0-9]*", false }, /* DeepSpeed's, of a Trainer; see parts.c */
	{ "optimizer_[0-9]*", false },
	{ "actor", true },
	{ "critic", true },
	{ "weights", true }, /* NeMo's, beside context/ */
	{ "model_weights", true }, /* beside model_config.yaml, unpacked or in a .nemo */
	{ "tp_rank_[0-9]*", true }, /* NeMo's before that: model_weights.ckpt of each rank */
	{ "dist_ckpt", true },
	{ "model", false },
	{ "optimizer", false },
	{ "optim", false },
	{ "lr_scheduler", false },
	{ "scheduler", false },
	{ "extra_state", false },
	{ "train_state", false },
	{ "recipe_state", false },
	{ "dataloader", false },
	{ "huggingface", false },
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
	"adapter_model.pt",  "weights.pt",
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

bool dcp_parts_is_dir(const struct dcp_dirent *e, bool *alone)
{
	for (size_t i = 0; e->is_dir && i < DCP_LEN(directories); i++)
		if (matches(directories[i].glob, e->name)) {
			*alone = directories[i].alone;
			return true;
		}
	return false;
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

bool dcp_parts_is_model(const char *name)
{
	for (size_t i = 0; i < DCP_LEN(models); i++)
		if (matches(models[i], name))
			return true;
	return false;
}
