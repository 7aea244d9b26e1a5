/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats: the rows of the table, each in a file of its own.
 */
#pragma once
#include "core/write/write.h"

extern const struct dcp_write_format dcp_write_safetensors;
