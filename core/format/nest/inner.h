/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inner: a checkpoint that stands inside another, whatever its family.
 */
#pragma once

struct dcp_err;
struct dcp_load;

/*
 * Emit the checkpoint in the directory of @in, recognized by the table of families. A directory
 * that is not a checkpoint itself but holds exactly one other directory is descended into, three
 * deep; file names emitted to the sink stay relative to in->dir. Where several files are
 * checkpoints by themselves, each one's keys get its name in front. -EINVAL when it is not a
 * checkpoint, or not a complete one; else what the family gave.
 */
int dcp_inner_load(const struct dcp_load *in, struct dcp_err *err);

/*
 * The directory @name below in->dir, in the same way. Its keys and paths get the component
 * @prefix in front, unless that is NULL.
 */
int dcp_inner_load_at(const struct dcp_load *in, const char *name, const char *prefix,
		      struct dcp_err *err);
