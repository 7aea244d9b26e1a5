/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_group: one version of a directory whose files are versions, loaded into a sink.
 */
#pragma once
#include "core/base/err.h"
#include "core/format/format.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/sink.h"

struct t_group {
	struct dcp_dir dir; /* only its files */
	struct t_sink s;
	struct dcp_err err;
	int rc; /* what load() gave */
};

/* @group NULL: the only one there is. With @fail_at that call of the sink fails; 0: none. */
void t_group_load(struct t_group *g, const char *root, const struct dcp_format *format,
		  const char *group, size_t fail_at);
void t_group_finish(struct t_group *g);
