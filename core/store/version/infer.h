/* SPDX-License-Identifier: Apache-2.0 */
/* infer: the config.json that a checkpoint without one has in its objects. */
#pragma once

struct dcp_buf;
struct dcp_index;

/*
 * Its text in @out, and in @from where it comes from, for people. What Composer keeps of a Hugging
 * Face model is that model's own; from Megatron's arguments one is inferred (core/rules/infer.c).
 * 1; 0: there is nothing of the kind; -ENOMEM, or the index cannot be read.
 */
int dcp_config_infer(struct dcp_index *ix, struct dcp_buf *out, const char **from);
