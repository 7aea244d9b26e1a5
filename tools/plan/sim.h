/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim: how long would that take on other machines? On paper: bytes over rates.
 *
 * Nodes of @gpus ranks each, in order of rank. A node's storage delivers @disk bytes a second,
 * all storage together @store at most; a node's network takes @net a second in each direction.
 * Nothing else costs time: no latency, no seek, no CPU, and inside a node bytes move for free.
 *
 *   each rank for itself   the slowest node: what its ranks need, each for itself, over @disk
 *   each node for itself   what its ranks need, common bytes once (a shared page cache)
 *   together               the slowest node's parts over @disk, while the slowest node's
 *                          exchange with others goes over @net: each rank that needs a byte
 *                          is sent it
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct dcp_err;
struct dcp_job_flow;

struct plan_sim {
	bool on;
	uint64_t nodes, gpus;
	double disk, store, net; /* bytes a second; store 0: no limit of its own */
};

/* "nodes=64,gpus=8,disk=25GB/s,net=50GB/s,store=400GB/s" for @ranks ranks. gpus: 8, nodes: as
 * many as it takes, disk: 25 GB/s, net: 50 GB/s where not given. -EINVAL. */
int plan_sim_parse(struct plan_sim *s, const char *text, uint32_t ranks, struct dcp_err *err);

/* A rate: "25GB/s", "400Gb/s" (bits), "3.5GiB/s", "2e9". */
bool plan_sim_rate(const char *text, double *out);

struct plan_time {
	const char *way;   /* "together" */
	double read, send; /* seconds; send 0: nothing is sent */
	double total;      /* of the slower of both */
	const char *limit; /* what takes longest */
	uint32_t node;     /* the slowest */
};

enum { PLAN_WAYS = 3 };

/* @rank, @node: flows of @ranks ranks and of their nodes (dcp_job_flows()). @held: ranks hold
 * everything, so that only the last way has a meaning. Returns how many were filled. */
uint32_t plan_sim_times(const struct plan_sim *s, const struct dcp_job_flow *rank,
			uint32_t ranks, const struct dcp_job_flow *node, uint32_t nodes,
			bool held, struct plan_time out[PLAN_WAYS]);
