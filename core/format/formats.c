/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/formats.h"

#include <stddef.h>

static enum dcp_match probe_parts(const struct dcp_dir *dir, char *why, size_t n)
{
	return dcp_parts_probe(dcp_formats, dir, why, n);
}

static enum dcp_match probe_archive(const struct dcp_dir *dir, char *why, size_t n)
{
	return dcp_archive_probe(dcp_formats, dir);
}

static bool group_archive(const char *file, char *version)
{
	return dcp_archive_group(dcp_formats, file, version);
}

static enum dcp_match probe_numpy(const struct dcp_dir *dir, char *why, size_t n)
{
	return dcp_numpy_probe(dcp_formats, dir);
}

const struct dcp_format dcp_format_parts = {
	.name = "parts",
	.what = "checkpoints of several parts (Accelerate, Hugging Face Trainer, Lightning, "
		"verl)",
	.composite = true,
	.probe = probe_parts,
	.load = dcp_parts_load,
};

const struct dcp_format dcp_format_archive = {
	.name = "archive",
	.what = "tar archives and compressed files of the others",
	.probe = probe_archive,
	.group = group_archive,
	.load = dcp_archive_load,
};

const struct dcp_format dcp_format_numpy = {
	.name = "numpy",
	.what = "numpy's .npz and .npy files",
	.shy = true,
	.probe = probe_numpy,
	.group = dcp_numpy_group,
	.load = dcp_numpy_load,
};

/*
 * Composer, the megatron rows and parts come first because they take only what has their marks
 * beside something else: a DCP directory with a meta.pt is parts', a DCP directory is not.
 * Paddle's plain files go before torch's: its trainers leave a training_args.bin beside them.
 * torch_bin comes after torch_hf: where both containers hold a model, it is the same one. torch_save
 * near the end: it takes any file that torch.save may have written; pickle only what has no
 * other name.
 */
/* clang-format off */
const struct dcp_format *const dcp_formats[] = {
	&dcp_format_composer,
	&dcp_format_megatron,
	&dcp_format_megatron_legacy,
	&dcp_format_torch_items, /* before safetensors: its consolidated twin stands beside it */
	&dcp_format_parts,
	&dcp_format_torch_dcp,
	&dcp_format_torch_dcp_local,
	&dcp_format_paddle_dist, /* before safetensors, which its data files may be */
	&dcp_format_paddle_parts,
	&dcp_format_torch_hf,
	&dcp_format_paddle_plain,
	&dcp_format_torch_bin,
	&dcp_format_torch_ranks,
	/* A converted checkpoint holds model files too, and both hold torch.save files. */
	&dcp_format_deepspeed_universal,
	&dcp_format_deepspeed,
	&dcp_format_archive,
	&dcp_format_torch_save,
	&dcp_format_pickle,
	&dcp_format_numpy, /* last: arrays also lie beside checkpoints of others */
	NULL,
};
/* clang-format on */
