/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rules: along which dimension do Megatron's tensor-parallel ranks hold a parameter?
 *
 * mp_rank files do not say; the names of the layers do. Rules are globs over whole keys, and
 * the first that matches counts. A file of rules in the version's directory stands before
 * those built in, one a line:
 *
 *	# keys as dcpfs shows them     how they are cut
 *	*.mixer.out_proj.weight        shard(1)
 *	*.mlp.gate_up.weight           shard(0, groups=2)   two halves, each cut by all ranks
 *	*.mixer.in_proj.weight         shard(0, parts=4:4:1:1:2)   parts of these proportions,
 *	                               each cut by all ranks
 *	*.router.*                     replicate
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

struct dcp_err;

#define DCP_MEGATRON_RULES "dcpfs.rules" /* the file's name */
#define DCP_MEGATRON_MAX_SIZES 8         /* proportions in a rule */

struct dcp_mrule {
	bool replicate;
	bool gated; /* one half or two: the sizes of the second layer say */
	uint32_t dim;
	uint32_t groups; /* as many parts of the same size */
	uint32_t old;    /* the same, but only before checkpoint_version 1; 0: as later */
	uint32_t nsizes; /* not 0: parts of these proportions instead */
	uint32_t size[DCP_MEGATRON_MAX_SIZES];
	unsigned line; /* in the file; 0: built in */
};

struct dcp_mrules {
	struct dcp_buf text; /* globs, each followed by a NUL */
	struct dcp_buf list;
};

/* Take the @n bytes of a file. -EBADMSG naming the line, -ENOMEM. */
int dcp_mrules_parse(struct dcp_mrules *r, const char *text, size_t n, struct dcp_err *err);
void dcp_mrules_finish(struct dcp_mrules *r);

/* The rule for @key; false: no rule matches, so how it is cut is not known. */
bool dcp_mrules_find(const struct dcp_mrules *r, const char *key, struct dcp_mrule *out);
