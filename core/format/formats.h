/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats: the families that formats.c puts in its table, each defined in the file of its name.
 */
#pragma once
#include "core/format/format.h"

extern const struct dcp_format dcp_format_deepspeed;
extern const struct dcp_format dcp_format_deepspeed_universal;
extern const struct dcp_format dcp_format_archive;
extern const struct dcp_format dcp_format_composer;
extern const struct dcp_format dcp_format_megatron;
extern const struct dcp_format dcp_format_megatron_legacy;
extern const struct dcp_format dcp_format_numpy;
extern const struct dcp_format dcp_format_paddle_dist;
extern const struct dcp_format dcp_format_paddle_parts;
extern const struct dcp_format dcp_format_paddle_plain;
extern const struct dcp_format dcp_format_parts;
extern const struct dcp_format dcp_format_pickle;
extern const struct dcp_format dcp_format_torch_bin;
extern const struct dcp_format dcp_format_torch_dcp;
extern const struct dcp_format dcp_format_torch_dcp_local;
extern const struct dcp_format dcp_format_torch_hf;
extern const struct dcp_format dcp_format_torch_items;
extern const struct dcp_format dcp_format_torch_ranks;
extern const struct dcp_format dcp_format_torch_save;

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
