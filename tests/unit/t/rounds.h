/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_rounds: what the ranks of a job send each other where each byte is read once, found out by one
 * process from what the planner says that each rank needs. Nothing here knows cmocka, so that the
 * benchmark can use it.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct dcp_file_id;
struct dcp_job;

struct t_rounds {
	uint32_t ranks;
	uint32_t node;    /* ranks of one; 0: 1 */
	uint64_t staging; /* bytes of each rank, for slots and messages */
	/* found out */
	uint64_t tries;  /* sizes of stripes that were tried */
	uint64_t stripe; /* bytes */
	uint64_t rounds;
	uint64_t messages, bytes;         /* of all ranks: not empty, not to itself; in them */
	uint64_t far_messages, far_bytes; /* of these, to other nodes */
	uint64_t most; /* bytes of messages of a rank in a round, in and out */
	/* the same of each rank; t_rounds_free() */
	struct t_rounds_of {
		uint64_t messages_out, messages_in, bytes_out, bytes_in;
	} * of;
};

/* @r has ranks, node and staging. -ENOMEM, or what the planner returns. */
int t_rounds_predict(struct t_rounds *r, const struct dcp_job *job,
		     const struct dcp_file_id *files, size_t nfiles);
void t_rounds_free(struct t_rounds *r);
