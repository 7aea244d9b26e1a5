/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors_int: what the files that read a directory of safetensors share; nobody else
 * includes it.
 */
#pragma once
#include "core/format/hf/files.h"

/* Read the header of file @i. A damaged file is kept with its error. */
int dcp_hf_read(struct dcp_hf *h, uint32_t i, struct dcp_err *err);

/* Choose what goes in front of the keys of set @i, whose files were read, and take their
 * entries in. */
int dcp_hf_add_set(struct dcp_hf *h, uint32_t i);

/* @key as it is shown, in memory that the next call uses again; NULL: out of memory. */
const char *dcp_hf_key(struct dcp_hf *h, const struct dcp_hf_set *set, const char *key);

/* Tell every key that was found, and those that only the index names. */
int dcp_hf_emit(struct dcp_hf *h);
