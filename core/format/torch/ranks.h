/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks: what does the name of a rank's torch.save file say? And how do Meta's ranks hold a Llama?
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/format/gather/join.h"

/* A file's name, taken apart. */
struct dcp_rank_name {
	const char *set; /* of the files that belong together: the name up to the rank */
	size_t len;
	uint64_t rank;
	uint64_t world; /* how many ranks the name says there are; 0: it does not */
};

/* false: not the name of a rank's file. */
bool dcp_rank_name(const char *file, struct dcp_rank_name *out);

/* The ranks of consolidated.<RR>.pth. */
bool dcp_rank_is_meta(const struct dcp_rank_name *name);

struct dcp_meta {
	struct dcp_copies *whole;     /* gets all parts, as pieces of the whole */
	struct dcp_copies embeddings; /* until the width of the model is known */
	uint64_t width;               /* 0: not known */
	size_t nranks;
};

/*
 * Rank number @who holds @t, a key without the rank in front. Returns 1 when it is none of those
 * that Meta's ranks are known to hold, -ENOMEM, -E2BIG.
 */
int dcp_meta_add(struct dcp_meta *m, const struct dcp_tensor *t, uint32_t who,
		 const char *file);

/* After the last of them. */
int dcp_meta_end(struct dcp_meta *m);
