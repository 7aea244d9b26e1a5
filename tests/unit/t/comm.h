/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_comm: the ranks of a job as threads, of this process or of one process for each node.
 *
 * A rank whose function has returned is gone, and its node with it: the others get -ECONNRESET, as
 * from a real transport.
 */
#pragma once
#include <stdint.h>

#include "tools/load/dcpload.h"

#define T_COMM_RANKS 64 /* at most, of a process; and nodes */

typedef int (*t_comm_rank_fn)(const struct dcpload_comm *comm, void *arg);

/*
 * Run @rank of all @ranks at once; the sum of what they returned. cmocka's assertions do not work
 * in them.
 */
int t_comm_run(uint32_t ranks, t_comm_rank_fn rank, void *arg);

/*
 * The same with a process for each node of @each ranks. Every message between ranks of two nodes
 * goes through a socket by itself. What ranks write in @arg, or what it points to, is seen outside
 * of their process only where that is shared memory. A process that dies, or leaks as a sanitizer
 * sees it, adds 1 to the sum, as does one that still runs after @patience_ms; it is killed.
 */
int t_comm_run_nodes(uint32_t nodes, uint32_t each, int patience_ms, t_comm_rank_fn rank,
		     void *arg);

/*
 * Of the node that the rank is on: what has arrived from others by alltoallv() so far. Stays as it
 * is while one of its ranks is outside of the transport.
 */
struct t_comm_node {
	uint32_t nodes; /* that the library can tell apart; 1 where host names cannot be set */
	uint64_t messages, bytes;
};
void t_comm_node(const struct dcpload_comm *comm, struct t_comm_node *out);
