/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job: strided runs in the form that the scatter kernel takes (memory/scatter.h).
 */
#pragma once
#include "tools/load/load.h"
#include "tools/load/memory/scatter.h"

/* The runs of @r, whose first byte is at @src of the device, to @t; all but j->first. false: the kernel cannot place
 * them. */
bool load_job_make(struct load_job *j, const struct load_target *t, const struct dcp_strided *r,
		   uint64_t src);
/* Extend @j by one run that continues where its run ends, on both sides. false: it does not. */
bool load_job_extend(struct load_job *j, const struct load_target *t,
		     const struct dcp_strided *r, uint64_t src);
/* Can it place whatever goes to @t? */
bool load_job_can(const struct load_target *t);
