/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_composer: saves of Composer of which each rank wrote a file, its tensors in parts.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct t_dir;
struct t_zip;

/*
 * What rank @r of @ranks saves of a tensor "w" of @rows x 2 floats, cut along dim 0 in pieces
 * of ceil(rows / ranks): element (i, j) is 10 i + j. Beside it "b", the same on all ranks, and
 * "only<r>".
 */
struct t_composer_rank {
	int64_t r, ranks, rows;
	bool old;          /* as torch 1.13 spells the class: an instance, state by BUILD */
	const char *dtype; /* as the metadata says; NULL: float32 */
	int64_t more_rows; /* its metadata claims so many more rows */
	int64_t bad_sizes; /* added to shard_sizes[0] of its own shard */
	bool no_state, by_column; /* the shard is stored column-major */
};

/* Its file as a torch.save archive; @z is to be freed. */
void t_composer_rank(struct t_zip *z, const struct t_composer_rank *k);

/* The same into @to, as "ep0-ba2-rank<r>.pt". */
void t_composer_rank_file(const struct t_dir *to, const struct t_composer_rank *k);
