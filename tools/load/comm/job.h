/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job: what the environment says about the job that this process is a rank of.
 *
 * The only part of the loader that reads variables of launchers and its own (DCPLOAD_...);
 * directories of caches and layouts come from tools/load/cache.h.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "tools/load/error.h"

#define LOAD_JOB_PORTS 16

/* Where the ranks of a job are. */
enum load_spread {
	LOAD_SPREAD_UNKNOWN,
	LOAD_SPREAD_NODE,  /* all of them on this node */
	LOAD_SPREAD_NODES, /* on several */
};

struct load_job {
	const char *launcher; /* whose variables these are: "torchrun" */
	uint32_t rank, ranks;
	enum load_spread spread;
	char host[256];        /* where rank 0 is */
	uint16_t port, nports; /* it listens on one of @nports ports from @port on */
	char id[256];          /* unique among the jobs that run on the same host */
	const char *secret;    /* the user's, from DCPLOAD_SECRET; "": none */
	const char *key;       /* a random text that the launcher gave all ranks; "": none */
};

/* The transport for the launcher of this process: "mpi", "env" or "alone". */
const char *load_job_transport(void);

/* Number of ranks that a launcher of MPI programs has set; 0: none has. */
uint32_t load_job_mpi_ranks(void);

/*
 * Time for all ranks to come together: DCPLOAD_TIMEOUT, else @given, else a minute. -EINVAL: the
 * variable is not a number of seconds.
 */
int load_job_timeout(uint32_t given, int *ms, struct dcpload_error *err);

/* The place of this process among those of its node, by its launcher (LOCAL_RANK, or what
 * mpirun and srun set); -1: not set. -EINVAL: the variable that counts is not a number. */
int load_job_local_rank(int32_t *out, struct dcpload_error *err);

/* -ENOENT: no launcher has set anything; -EINVAL: a variable is invalid or missing. */
int load_job_find(struct load_job *job, struct dcpload_error *err);

/* The first host of Slurm's list: "node[07-12,20],login1" -> "node07". -EINVAL. */
int load_job_first_host(const char *list, char *out, size_t size);
