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
