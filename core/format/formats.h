/* SPDX-License-Identifier: Apache-2.0 */
/* formats: the families in the table of formats.c; each is defined in the file of its name. */
#pragma once
#include "core/format/format.h"

/*
 * All families, in the order in which they are asked.
 *
 * Composer, the megatron rows and parts come first because they accept a directory only if their
 * marks lie beside other files: a DCP directory with a meta.pt belongs to parts, a DCP directory
 * without it does not. Paddle's plain files come before torch's, because Paddle's trainers leave a
 * training_args.bin beside them. torch_bin comes after torch_hf: if both kinds of files hold a
 * model, it is the same model. torch_items and paddle_dist come before torch_hf: the former may
 * have a consolidated copy of the model in safetensors beside its files, the latter data files
 * in safetensors. deepspeed_universal comes before deepspeed because a converted checkpoint also
 * holds model files. torch_save comes near the end because it accepts any file that torch.save may
 * have written; pickle accepts only files that no other family knows. numpy is last because arrays
 * also lie beside checkpoints of other families.
 *
 * A family with only one file, NAME.c, needs only its row in this table to be built.
 */
/* clang-format off */
#define DCP_FAMILIES(row) \
	row(composer) \
	row(megatron) \
	row(megatron_legacy) \
	row(torch_items) \
	row(fairseq2) \
	row(nanotron) \
	row(parts) \
	row(torch_dcp) \
	row(torch_dcp_local) \
	row(paddle_dist) \
	row(paddle_parts) \
	row(torch_hf) \
	row(paddle_plain) \
	row(torch_bin) \
	row(torch_ranks) \
	row(deepspeed_universal) \
	row(deepspeed) \
	row(archive) \
	row(torch_save) \
	row(pickle) \
	row(numpy)
/* clang-format on */

#define DCP_FAMILY(name) extern const struct dcp_format dcp_format_##name;
DCP_FAMILIES(DCP_FAMILY)
#undef DCP_FAMILY

/* Families that contain checkpoints of other families get the table as an argument; their rows are
 * in formats.c. */
enum dcp_match dcp_parts_probe(dcp_families all, const struct dcp_dir *dir, char *why,
			       size_t n);
int dcp_parts_load(const struct dcp_load *in, struct dcp_err *err);
enum dcp_match dcp_archive_probe(dcp_families all, const struct dcp_dir *dir);
bool dcp_archive_group(dcp_families all, const char *file, char *version);
int dcp_archive_load(const struct dcp_load *in, struct dcp_err *err);
enum dcp_match dcp_numpy_probe(dcp_families all, const struct dcp_dir *dir);
bool dcp_numpy_group(const char *file, char *version);
int dcp_numpy_load(const struct dcp_load *in, struct dcp_err *err);
