/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm: the ranks of a job, and how they communicate.
 *
 * A transport fills a struct dcpload_comm (dcpload.h) and has a row in the table of comm.c: mpi,
 * env, alone. This header has the collective functions that the loader needs on top of any
 * transport.
 */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
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
 * Collective: did the preceding step succeed on all ranks? @rc and @err are the result of this
 * rank. Afterwards all ranks have the @err of the lowest rank that failed; -ETIMEDOUT counts only
 * if no rank has another error, -ECANCELED only if no rank has -ETIMEDOUT either. err->rank is that
 * rank, or the rank that an earlier agreement named. Returns the code of that error, 0 if all ranks
 * succeeded, or an error of the transport. Allocates nothing for up to 8192 ranks, so that it can
 * report a lack of memory.
 */
int load_agree(const struct dcpload_comm *comm, int rc, struct dcpload_error *err,
	       int timeout_ms);

/* The messages of all ranks, each of any length. */
struct load_blobs {
	void **at;   /* by rank: pointers into @memory, 16-byte aligned */
	uint64_t *n; /* by rank: bytes */
	void *memory;
};
/* Collective: give @n bytes, and get the bytes of all ranks; free @out with load_blobs_free(). A
 * failure is the same on all ranks and leaves @out empty. -EOVERFLOW: more than 64 GiB. */
int load_gather(const struct dcpload_comm *comm, const void *mine, uint64_t n,
		struct load_blobs *out, struct dcpload_error *err, int timeout_ms);
/* The same, but only rank 0 gets the messages: other ranks get out->n only, and hold no more than a
 * part of the messages at a time. */
int load_gather_first(const struct dcpload_comm *comm, const void *mine, uint64_t n,
		      struct load_blobs *out, struct dcpload_error *err, int timeout_ms);
/* The same as load_gather(), for a record that has @n bytes on every rank. -EPROTO: the sizes
 * differ, so ranks run different releases. */
int load_gather_same(const struct dcpload_comm *comm, const void *mine, uint64_t n,
		     struct load_blobs *out, struct dcpload_error *err, int timeout_ms);
void load_blobs_free(struct load_blobs *b);

/* An option, and its value as users write it. */
struct load_alike {
	const char *name, *value;
};
/* Collective. Check that all ranks have the same values of the @n options. -EINVAL: @err names an
 * option that differs, and both values; -EPROTO: ranks run different releases. */
int load_compare(const struct dcpload_comm *comm, const struct load_alike *own, size_t n,
		 struct dcpload_error *err, int timeout_ms);
/* Collective. The same as alltoallv() of @comm, done by gathering the messages of every rank, 16
 * MiB at a time: for ranks of one node, and small messages. */
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

/* module: the function that libdcpload-mpi.so exports for libdcpload. */

/* Open MPI_COMM_WORLD (@mpi_comm NULL), or a duplicate of the MPI_Comm that @mpi_comm points to.
 * @abi: DCPLOAD_ABI of the caller; @expect: the expected number of ranks, 0: any number. */
DCPLOAD_API int dcpload_mpi_open(uint32_t abi, const void *mpi_comm, uint32_t expect,
				 int timeout_ms, struct dcpload_comm **out,
				 struct dcpload_error *err);

/*
 * job: reads the environment variables that describe the job of this process.
 *
 * Only this part of the loader reads variables of launchers and the loader's own (DCPLOAD_...);
 * directories of caches and layouts come from tools/load/error.h.
 */

#define LOAD_JOB_PORTS 16

/* Where the ranks of a job are. */
enum load_spread {
	LOAD_SPREAD_UNKNOWN,
	LOAD_SPREAD_NODE,  /* all ranks are on this node */
	LOAD_SPREAD_NODES, /* on several */
};

struct load_launch {
	const char *launcher; /* the launcher that set the variables: "torchrun" */
	uint32_t rank, ranks;
	enum load_spread spread;
	char host[256];        /* where rank 0 is */
	uint16_t port, nports; /* rank 0 listens on one of @nports ports from @port on */
	char id[256];          /* unique among the jobs that run on the same host */
	const char *secret;    /* the user's, from DCPLOAD_SECRET; "": none */
	const char *key;       /* a random text that the launcher gave all ranks; "": none */
};

/* The transport that fits the launcher of this process: "mpi", "env" or "alone". */
const char *load_job_transport(void);

/* Number of ranks that a launcher of MPI programs has set; 0: not set. */
uint32_t load_job_mpi_ranks(void);

/* Time for all ranks to connect: DCPLOAD_TIMEOUT, else @given, else a minute. -EINVAL: the variable
 * is not a number of seconds. */
int load_job_timeout(uint32_t given, int *ms, struct dcpload_error *err);

/*
 * The position of this process among the processes of its node, as its launcher has set it
 * (LOCAL_RANK, or the variables of mpirun and srun); -1: not set. -EINVAL: the variable is not a
 * number.
 */
int load_job_local_rank(int32_t *out, struct dcpload_error *err);

/* -ENOENT: no launcher has set anything; -EINVAL: a variable is invalid or missing. */
int load_job_find(struct load_launch *job, struct dcpload_error *err);

/* The first host of Slurm's list: "node[07-12,20],login1" -> "node07". -EINVAL. */
int load_job_first_host(const char *list, char *out, size_t size);

/*
 * transport: how each kind of communicator is opened.
 *
 * Each returns a communicator that its own close() frees, or a negative errno described in @err.
 */

/* The wish of a rank when a communicator is split, as sent to the other ranks. */
struct load_wish {
	uint32_t color, key;
};

/* The group of rank @own has the ranks of its color, ordered by key. Returns its first rank; *n:
 * how many ranks it has; *place: the position of @own. */
static inline uint32_t load_group(const struct load_wish *all, uint32_t ranks, uint32_t own,
				  uint32_t *n, uint32_t *place)
{
	uint32_t first = own;

	*n = *place = 0;
	for (uint32_t r = 0; r < ranks; r++) {
		if (all[r].color != all[own].color)
			continue;
		++*n;
		*place += all[r].key < all[own].key || (all[r].key == all[own].key && r < own);
		if (all[r].key < all[first].key || (all[r].key == all[first].key && r < first))
			first = r;
	}
	return first;
}

/* Can the module for MPI be opened? If not, @why is the reason. */
bool load_mpi_try(char *why, size_t size);

/* TCP, or Unix sockets, between the ranks that torchrun, srun or mpirun started. */
int load_tcp_open(const struct dcpload_comm_config *config, struct dcpload_comm **out,
		  struct dcpload_error *err);

/*
 * step: work of unknown duration, done in a thread while the ranks keep sending each other signs of
 * life. So a rank with much work is not mistaken for a dead rank, and a rank that is stopped is
 * detected within the timeout.
 */

struct load_step {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t ended;
	int (*fn)(void *ctx); /* 0 or a negative errno, which @ctx describes */
	void *ctx;
	bool running;
	bool done; /* lock */
	int rc;
};

void load_step_init(struct load_step *s);
void load_step_start(struct load_step *s, int (*fn)(void *ctx), void *ctx);
/*
 * Collective: wait until the work of every rank has ended; with @hasty only until the work of any
 * rank has failed. 0, or a failure of the transport. The work of this rank may still run: call
 * load_step_join().
 */
int load_step_wait(struct load_step *s, const struct dcpload_comm *comm, bool hasty,
		   int timeout_ms, struct dcpload_error *err);
/* Wait until the work of this rank has ended, and return its result. */
int load_step_join(struct load_step *s);

/*
 * Collective. Run a whole step. *@done is the result of @fn, to be passed to load_agree(). If
 * another rank is lost, @stop (may be NULL) makes the work end early, and the failure is returned,
 * described in @err and the same on all ranks. @stop is also called if the work cannot start. With
 * a single rank, @fn is just called.
 */
int load_step_run(const struct dcpload_comm *comm, int (*fn)(void *ctx),
		  void (*stop)(void *ctx), void *ctx, int *done, int timeout_ms,
		  struct dcpload_error *err);
