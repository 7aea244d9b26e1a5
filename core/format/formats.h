/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats: the families that formats.c puts in its table, each defined in the file of its name.
 */
#pragma once
#include "core/format/format.h"

/*
 * All families, in the order in which they are asked.
 *
 * Composer, the megatron rows and parts come first because they take only what has their marks
 * beside something else: a DCP directory with a meta.pt is parts', a DCP directory is not.
 * Paddle's plain files go before torch's: its trainers leave a training_args.bin beside them.
 * torch_bin comes after torch_hf: where both containers hold a model, it is the same one.
 * torch_save near the end: it takes any file that torch.save may have written; pickle only what has
 * no other name. torch_items goes before safetensors, whose consolidated twin stands beside it; so
 * does paddle_dist, whose data files may be safetensors. deepspeed_universal goes before deepspeed:
 * a converted checkpoint holds model files, too. numpy is last: arrays also lie beside checkpoints
 * of others.
 *
 * A family of one file, NAME.c, is built by its row here alone.
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

/* Families that hold checkpoints of others are handed the table; their rows are in formats.c. */
enum dcp_match dcp_parts_probe(dcp_families all, const struct dcp_dir *dir, char *why,
			       size_t n);
int dcp_parts_load(const struct dcp_load *in, struct dcp_err *err);
enum dcp_match dcp_archive_probe(dcp_families all, const struct dcp_dir *dir);
bool dcp_archive_group(dcp_families all, const char *file, char *version);
int dcp_archive_load(const struct dcp_load *in, struct dcp_err *err);
enum dcp_match dcp_numpy_probe(dcp_families all, const struct dcp_dir *dir);
bool dcp_numpy_group(const char *file, char *version);
int dcp_numpy_load(const struct dcp_load *in, struct dcp_err *err);
