/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm: the ranks of a job, and how they communicate.
 *
 * A transport fills a struct dcpload_comm (dcpload.h) and has a row in the table of comm.c: mpi,
 * env, alone. Here is what the collective steps of the loader need on top of any transport.
 */
#pragma once
#include <stdint.h>

#include "tools/load/dcpload.h"
#include "tools/load/error.h"

/* This process alone. Need not be closed. */
extern const struct dcpload_comm load_alone;

/* Check that @comm, perhaps the caller's own, is filled in as dcpload.h says. -EINVAL. */
int load_comm_check(const struct dcpload_comm *comm, struct dcpload_error *err);

/* Describe in @err the failure @rc that a function of @comm returned. Returns @rc. */
int load_comm_say(const struct dcpload_comm *comm, int rc, struct dcpload_error *err);

/*
 * Collective: did the preceding step succeed on all ranks? @rc and @err are this rank's result;
 * afterwards @err is, on all ranks, that of the lowest rank that failed (-ETIMEDOUT only if no rank
 * has another error, -ECANCELED only if none has that), and err->rank that rank, or the one that an
 * earlier agreement named. Returns its code, 0 when all succeeded, or an error of the transport.
 * Allocates nothing for up to 8192 ranks, so that it can report a lack of memory.
 */
int load_agree(const struct dcpload_comm *comm, int rc, struct dcpload_error *err,
	       int timeout_ms);

/* The messages of all ranks, each of any length. */
struct load_blobs {
	void **at;   /* by rank: pointers into @memory, 16-byte aligned */
	uint64_t *n; /* by rank: bytes */
	void *memory;
};
/*
 * Collective: give @n bytes, get those of all ranks; free @out with load_blobs_free(). A failure is
 * the same on all ranks and leaves @out empty. -EOVERFLOW: more than 64 GiB.
 */
int load_gather(const struct dcpload_comm *comm, const void *mine, uint64_t n,
		struct load_blobs *out, struct dcpload_error *err, int timeout_ms);
/*
 * The same for rank 0 alone: others only learn out->n, and hold no more than a part of the messages
 * at a time.
 */
int load_gather_first(const struct dcpload_comm *comm, const void *mine, uint64_t n,
		      struct load_blobs *out, struct dcpload_error *err, int timeout_ms);
/* The same as load_gather() with a record that has @n bytes on every rank. -EPROTO: the
 * sizes differ, so ranks run different releases. */
int load_gather_same(const struct dcpload_comm *comm, const void *mine, uint64_t n,
		     struct load_blobs *out, struct dcpload_error *err, int timeout_ms);
void load_blobs_free(struct load_blobs *b);

/* An option, and its value as people write it. */
struct load_alike {
	const char *name, *value;
};
/*
 * Collective. Have all ranks the same values of the @n options? -EINVAL says which differs, and
 * both values; -EPROTO: ranks run different releases.
 */
int load_compare(const struct dcpload_comm *comm, const struct load_alike *own, size_t n,
		 struct dcpload_error *err, int timeout_ms);
/*
 * Collective. The same as alltoallv() of @comm, by gathering what every rank sends, in turns of 16
 * MiB: for ranks of one node, and little.
 */
int load_gather_mine(const struct dcpload_comm *comm, const void *const *send,
		     const uint64_t *nsend, void *const *recv, const uint64_t *nrecv,
		     struct dcpload_error *err, int timeout_ms);

/*
 * Collective: which ranks can share memory? @node[r] becomes the number of rank r's node; nodes are
 * numbered from 0 by their lowest rank. Ranks are on one node when their kernel, host name, user
 * and PID namespace are the same.
 */
int load_nodes(const struct dcpload_comm *comm, uint32_t *node, uint32_t *nnodes,
	       struct dcpload_error *err, int timeout_ms);

/*
 * module: the function that libdcpload-mpi.so exports for libdcpload.
 */

/*
 * MPI_COMM_WORLD (@mpi_comm NULL), or a duplicate of what @mpi_comm points to. @abi: DCPLOAD_ABI of
 * the caller; @expect: how many ranks there should be, 0: any number.
 */
DCPLOAD_API int dcpload_mpi_open(uint32_t abi, const void *mpi_comm, uint32_t expect,
				 int timeout_ms, struct dcpload_comm **out,
				 struct dcpload_error *err);
