/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm: the ranks of a job, and how they talk.
 *
 * A transport is a struct dcpload_comm (dcpload.h) and a row of the table in comm.c: mpi, env, alone. What
 * every collective step of the loader needs on top of it is here.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "tools/load/dcpload.h"
#include "tools/load/error.h"

/* Just this process. Needs no closing. */
extern const struct dcpload_comm load_alone;

/* Is @comm, which may be the caller's own, filled as dcpload.h says? -EINVAL. */
int load_comm_check(const struct dcpload_comm *comm, struct dcpload_error *err);

/* A function of @comm returned @rc: its failure goes into @err. Returns @rc. */
int load_comm_say(const struct dcpload_comm *comm, int rc, struct dcpload_error *err);

/*
 * Collective: do all ranks agree that what came before went well? @rc and @err are this rank's;
 * afterwards those of the lowest rank that failed, on all ranks. A transport that fails is an
 * error of its own. Returns the common code, 0 when no rank's was negative. Allocates nothing
 * for up to 8192 ranks, so that it can tell of a lack of memory.
 */
int load_agree(const struct dcpload_comm *comm, int rc, struct dcpload_error *err,
	       int timeout_ms);

/* Collective: what every rank has to say, each as long as it likes. */
struct load_blobs {
	void **at;   /* ranks pointers into one allocation, each 16-byte aligned */
	uint64_t *n; /* bytes each */
	void *memory;
};
/* On success load_blobs_free(@out); on a failure, which is that of all ranks, @out is empty. -EOVERFLOW:
 * more than 64 GiB. */
int load_gather(const struct dcpload_comm *comm, const void *mine, uint64_t n,
		struct load_blobs *out, struct dcpload_error *err, int timeout_ms);
void load_blobs_free(struct load_blobs *b);

/*
 * Collective: which ranks share this machine's memory? @node[r] is the number of rank r's node,
 * from 0 in order of the first rank; ranks share one when kernel, host name, user and PID namespace
 * are the same.
 */
int load_nodes(const struct dcpload_comm *comm, uint32_t *node, uint32_t *nnodes,
	       struct dcpload_error *err, int timeout_ms);
