/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job: what does the environment say about the job this process is a rank of?
 *
 * The only part of the loader that reads environment variables.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "tools/load/error.h"

#define LOAD_JOB_PORTS 16

struct load_job {
	const char *launcher; /* whose variables these are: "torchrun" */
	uint32_t rank, ranks;
	char host[256];        /* where rank 0 is */
	uint16_t port, nports; /* it listens on one of so many ports */
	char id[256];          /* no other job on the same host has it at the same time */
	const char *secret;    /* "": none was given */
	int timeout_ms;        /* for all ranks to come together */
};

/* The transport that the launcher of this process means: "mpi", "env" or "alone". */
const char *load_job_transport(void);

/* Ranks that a launcher of MPI programs says there are; 0: it does not say. */
uint32_t load_job_mpi_ranks(void);

/* How long ranks may take to come together. */
int load_job_timeout_ms(void);

/* -ENOENT: no launcher has set anything; -EINVAL: what it set makes no sense. */
int load_job_find(struct load_job *job, struct dcpload_error *err);

/* The first host of Slurm's list: "node[07-12,20],login1" -> "node07". -EINVAL. */
int load_job_first_host(const char *list, char *out, size_t size);
