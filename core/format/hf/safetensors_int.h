/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors_int: what the files that read a directory of safetensors share; only they
 * include it.
 */
#pragma once
#include "core/format/hf/files.h"

/* Read the header of file @i. A damaged file is kept with its error. */
int dcp_hf_read(struct dcp_hf *h, uint32_t i, struct dcp_err *err);

/* Take the entries of set @i in, whose files were read. */
int dcp_hf_add_set(struct dcp_hf *h, uint32_t i);

/* Emit every key that was found, and the keys that only the index names. */
int dcp_hf_emit(struct dcp_hf *h);
