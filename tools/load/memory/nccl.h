/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl: messages from device to device, between the ranks of a job, by NVIDIA's NCCL.
 *
 * No call of it blocks: what was begun is waited for until a deadline, and after any failure the
 * communicator is aborted and of no use any more. A failure here is not known to the other ranks:
 * they wait for this one until their deadline, half of the job's timeout, so that all are back in
 * time for the next agreement. Functions return 0 or a negative errno, and then load_device_said()
 * says more.
 */
#pragma once
#include <stdint.h>

#include "tools/load/comm/comm.h"
#include "tools/load/memory/memory.h"

struct load_nccl;

/*
 * Collective: a communicator of NCCL for all ranks of @comm, or none. @why_not: why this rank's @d
 * cannot take part; NULL: it can. *@out is what an earlier call made, or NULL. A failure leaves it
 * as it is.
 */
int load_nccl_open(const struct dcpload_comm *comm, struct load_device *d, const char *why_not,
		   int timeout_ms, struct load_nccl **out, struct dcpload_error *err);
/* Can it be used, or did it fail before? */
int load_nccl_ready(struct load_nccl *n);
/* Not collective. NULL: nothing happens. */
void load_nccl_close(struct load_nccl *n);
/* 22809: NCCL 2.28.9 */
uint32_t load_nccl_version(const struct load_nccl *n);
/* What there is of it on this machine, in a line: 0, or -ELIBACC, -ELIBBAD. */
int load_nccl_probe(char *found, size_t size);
/* Its version, "2.28.9"; NULL: there is none that can be used. */
const char *load_nccl_library(void);

/* Queue a copy of @bytes from host memory, which the next message may be sent from. */
int load_nccl_copy(struct load_nccl *n, void *dst, const void *src, uint64_t bytes);
/* After a failure: wait until no copy is under way. */
void load_nccl_drop(struct load_nccl *n);

/*
 * Collective. Messages in the memory of devices, as alltoallv() of struct dcpload_comm. They have
 * arrived when it returns.
 */
int load_nccl_exchange(struct load_nccl *n, const void *const *send, const uint64_t *nsend,
		       void *const *recv, const uint64_t *nrecv);
/* Collective. All ranks give @bytes, at rank * @bytes of @all, and get those of all. */
int load_nccl_gather(struct load_nccl *n, void *all, uint64_t bytes);
/*
 * Collective, the failure too. The same as alltoallv() of @comm, for messages in the host's memory.
 */
int load_nccl_alltoallv(struct load_nccl *n, const struct dcpload_comm *comm,
			const void *const *send, const uint64_t *nsend, void *const *recv,
			const uint64_t *nrecv, int timeout_ms, struct dcpload_error *err);
