/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks: what does the name of a rank's torch.save file say?
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A file's name, taken apart. */
struct dcp_rank_name {
	const char *set; /* of the files that belong together: the name up to the rank */
	size_t len;
	uint64_t rank;
	uint64_t world; /* how many ranks the name says there are; 0: it does not */
};

/* false: not the name of a rank's file. */
bool dcp_rank_name(const char *file, struct dcp_rank_name *out);
