/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats: the rows of the table, each in a file of its own.
 */
#pragma once
#include "core/write/write.h"

extern const struct dcp_write_format dcp_write_safetensors;
extern const struct dcp_write_format dcp_write_npy;
extern const struct dcp_write_format dcp_write_npz;
extern const struct dcp_write_format dcp_write_paddle_binary;
extern const struct dcp_write_format dcp_write_paddle_vars;
extern const struct dcp_write_format dcp_write_paddle;
extern const struct dcp_write_format dcp_write_paddle_dist;
extern const struct dcp_write_format dcp_write_paddle_dist_31;
extern const struct dcp_write_format dcp_write_deepspeed_universal;
extern const struct dcp_write_format dcp_write_torch_dcp;
extern const struct dcp_write_format dcp_write_torch_save;
