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
	.marks =
		(const struct dcp_mark[]){
			{ "@(*.npz|*.npy)",
			  "a directory of more than numpy arrays (name the file that is meant)",
			  .general = true },
			{ 0 },
		},
};

#define ROW(name) &dcp_format_##name,
const struct dcp_format *const dcp_formats[] = { DCP_FAMILIES(ROW) NULL };
