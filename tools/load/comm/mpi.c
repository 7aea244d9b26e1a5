/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libdcpload-mpi.so: the transport over Open MPI. It is a separate module, so that one package
 * works on machines with and without MPI; comm.c opens it.
 *
 * Every wait is a loop of MPI_Testall, which sleeps when it takes long and ends at the deadline.
 * MPI cannot limit the time of MPI_Init, MPI_Finalize and MPI_Comm_split; the last is begun only
 * when all ranks have reported that they are there. After a deadline operations are still in
 * progress: the communicator cannot be used any more, its memory is not freed, MPI is not
 * finalized, and close() returns at once. The program should then end by _exit(); mpirun ends the
 * other ranks.
 *
 * When a rank dies, mpirun ends the others unless told otherwise (--enable-recovery).
 */
#include <errno.h>
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/system.h"
#include "tools/load/comm/comm.h"

#define CHUNK (1ull << 30) /* bytes per message: counts are int */
#define SMALL (64u << 10)  /* bytes kept for messages, because load_agree() must not allocate */
#define SPIN 200           /* tests before the first sched_yield() */
#define YIELD_MS 200       /* time before the first sleep */
#define SLEEP_NS 10000
#define SLEEP_MOST_NS 1000000
#define CLOSE_MS 10000 /* limit for the other ranks to close */

struct mpi {
	struct dcpload_comm comm;
	MPI_Comm c;
	bool finalize;               /* MPI was initialized here */
	bool broken;                 /* after a failure: operations may never end */
	struct dcpload_error failed; /* the last failure */
	char *small;
};

static int mpi_failed(struct mpi *t, int code, const char *what)
{
	char text[MPI_MAX_ERROR_STRING] = "";
	int n = 0, class = MPI_ERR_OTHER;

	MPI_Error_string(code, text, &n);
	MPI_Error_class(code, &class);
	t->broken = true;
	return load_fail(&t->failed,
			 class == MPI_ERR_TRUNCATE ? -EPROTO
			 : class == MPI_ERR_NO_MEM ? -ENOMEM
						   : -EIO,
			 "%s: %s", what, text);
}

static int mpi_wait(struct mpi *t, int n, MPI_Request *req, const char *what, int timeout_ms)
{
	int64_t start = dcp_now_ms(), deadline = start + timeout_ms, now;
	struct timespec pause = { 0, SLEEP_NS };

	for (uint64_t i = 0;; i++) {
		int done = 0, code = MPI_Testall(n, req, &done, MPI_STATUSES_IGNORE);

		if (code == MPI_ERR_IN_STATUS)
			/* the only error that a request of ours can have */
			code = MPI_ERR_TRUNCATE;
		if (code != MPI_SUCCESS)
			return mpi_failed(t, code, what);
		if (done)
			return 0;
		if (i < SPIN)
			continue;
		now = dcp_now_ms();
		if (now >= deadline)
			break;
		/* Data moves only during calls of MPI: a rank that sleeps delays the others. */
		if (now - start < YIELD_MS) {
			sched_yield();
			continue;
		}
		nanosleep(&pause, NULL);
		pause.tv_nsec = DCP_MIN(pause.tv_nsec + pause.tv_nsec / 8, SLEEP_MOST_NS);
	}
	t->broken = true;
	return load_fail(&t->failed, -ETIMEDOUT,
			 "%s: another rank did not answer within %.1f s", what,
			 timeout_ms / 1000.0);
}

/* Uses memory of its own, which is leaked if the operation does not end: MPI may write to it when
 * the caller's memory is gone. */
static int mpi_allgather(void *ctx, const void *mine, size_t n, void *all, int timeout_ms)
{
	struct mpi *t = ctx;
	uint64_t whole;
	char *room;
	MPI_Request req;
	int code, rc;

	if (t->broken)
		return t->failed.code;
	if (n > INT_MAX || dcp_ckd_mul(&whole, n, t->comm.ranks + 1ull))
		return load_fail(&t->failed, -EMSGSIZE,
				 "messages of %zu bytes from every rank are too long for MPI",
				 n);
	room = whole <= SMALL ? t->small : malloc(whole);
	if (!room)
		return load_fail(&t->failed, -ENOMEM, "%s", strerror(ENOMEM));
	if (n)
		memcpy(room, mine, n);
	code = MPI_Iallgather(room, (int)n, MPI_BYTE, room + n, (int)n, MPI_BYTE, t->c, &req);
	rc = code == MPI_SUCCESS ? mpi_wait(t, 1, &req, "MPI_Iallgather", timeout_ms)
				 : mpi_failed(t, code, "MPI_Iallgather");
	if (rc == 0 && n)
		memcpy(all, room + n, n * t->comm.ranks);
	if (rc == 0 && room != t->small)
		free(room);
	return rc;
}

/* Post the messages to or from @peer, in order; appends to @req. */
static int mpi_post(struct mpi *t, bool send, int peer, char *p, uint64_t n, MPI_Request *req,
		    int *nreq)
{
	for (uint64_t at = 0; at < n; at += CHUNK) {
		int now = (int)DCP_MIN(CHUNK, n - at);
		int code = send ? MPI_Isend(p + at, now, MPI_BYTE, peer, 0, t->c, &req[*nreq])
				: MPI_Irecv(p + at, now, MPI_BYTE, peer, 0, t->c, &req[*nreq]);

		if (code != MPI_SUCCESS)
			return mpi_failed(t, code, send ? "MPI_Isend" : "MPI_Irecv");
		++*nreq;
	}
	return 0;
}

static int mpi_alltoallv(void *ctx, const void *const *send, const uint64_t *nsend,
			 void *const *recv, const uint64_t *nrecv, int timeout_ms)
{
	struct mpi *t = ctx;
	uint32_t me = t->comm.rank, ranks = t->comm.ranks;
	uint64_t most = 0;
	MPI_Request *req;
	int n = 0, rc = 0;

	if (t->broken)
		return t->failed.code;
	if (nsend[me] != nrecv[me])
		return load_fail(&t->failed, -EPROTO,
				 "%llu bytes to this rank itself, expected %llu",
				 (unsigned long long)nsend[me], (unsigned long long)nrecv[me]);
	for (uint32_t r = 0; r < ranks; r++)
		most += nsend[r] / CHUNK + nrecv[r] / CHUNK + 2;
	req = most <= INT_MAX ? malloc(most * sizeof(MPI_Request)) : NULL;
	if (!req)
		return load_fail(&t->failed, -ENOMEM, "%s", strerror(ENOMEM));
	/* Receives come first, so that data has a destination when it arrives. */
	for (uint32_t i = 1; i < ranks && rc == 0; i++) {
		uint32_t r = (me + ranks - i) % ranks;

		rc = mpi_post(t, false, (int)r, recv[r], nrecv[r], req, &n);
	}
	for (uint32_t i = 1; i < ranks && rc == 0; i++) {
		uint32_t r = (me + i) % ranks;

		/* MPI takes a pointer to non-const data that it only reads. */
		rc = mpi_post(t, true, (int)r, (char *)(uintptr_t)send[r], nsend[r], req, &n);
	}
	if (rc == 0 && nsend[me])
		memcpy(recv[me], send[me], nsend[me]);
	if (rc == 0)
		rc = mpi_wait(t, n, req, "MPI_Irecv", timeout_ms);
	/* MPI must not write to memory of the caller later. */
	for (int i = 0; rc == -ETIMEDOUT && i < n; i++)
		if (req[i] != MPI_REQUEST_NULL)
			MPI_Cancel(&req[i]);
	free(req);
	return rc;
}

static void mpi_explain(void *ctx, struct dcpload_error *err)
{
	const struct mpi *t = ctx;

	if (t->failed.code)
		*err = t->failed;
}

static void mpi_close(void *ctx)
{
	struct mpi *t = ctx;
	MPI_Request req;
	int finalized = 1;

	MPI_Finalized(&finalized);
	if (!t->broken && !finalized && t->finalize &&
	    (MPI_Ibarrier(t->c, &req) != MPI_SUCCESS ||
	     mpi_wait(t, 1, &req, "MPI_Ibarrier", CLOSE_MS) < 0))
		t->broken = true;
	if (t->broken)
		return; /* MPI may still write to its memory */
	if (!finalized)
		MPI_Comm_free(&t->c);
	if (!finalized && t->finalize)
		MPI_Finalize();
	free(t->small);
	free(t);
}

static int mpi_split(void *ctx, uint32_t color, uint32_t key, struct dcpload_comm **out,
		     int timeout_ms);

/* Make a communicator of a duplicate of @c, or with @own, of @c itself. */
static int mpi_new(MPI_Comm c, bool own, int timeout_ms, struct dcpload_comm **out,
		   struct dcpload_error *err)
{
	struct mpi *t = calloc(1, sizeof(*t));
	int rank = 0, ranks = 0, level = 0, code, rc = 0;
	MPI_Request req;

	if (t)
		t->small = malloc(SMALL);
	if (!t || !t->small) {
		free(t);
		return load_say(err, -ENOMEM);
	}
	MPI_Comm_rank(c, &rank);
	MPI_Comm_size(c, &ranks);
	MPI_Query_thread(&level);
	t->comm = (struct dcpload_comm){
		.size = sizeof(t->comm),
		.rank = (uint32_t)rank,
		.ranks = (uint32_t)ranks,
		.flags = level < MPI_THREAD_SERIALIZED ? DCPLOAD_COMM_ONE_THREAD : 0,
		.name = "mpi",
		.ctx = t,
		.allgather = mpi_allgather,
		.alltoallv = mpi_alltoallv,
		.split = mpi_split,
		.close = mpi_close,
		.explain = mpi_explain,
	};
	t->c = c;
	if (!own) {
		code = MPI_Comm_idup(c, &t->c, &req);
		rc = code == MPI_SUCCESS ? mpi_wait(t, 1, &req, "MPI_Comm_idup", timeout_ms)
					 : mpi_failed(t, code, "MPI_Comm_idup");
	}
	if (rc < 0) {
		if (err)
			*err = t->failed;
		return rc; /* MPI may still write to @t: leak it */
	}
	MPI_Comm_set_errhandler(t->c, MPI_ERRORS_RETURN);
	*out = &t->comm;
	return 0;
}

static int mpi_split(void *ctx, uint32_t color, uint32_t key, struct dcpload_comm **out,
		     int timeout_ms)
{
	struct mpi *t = ctx;
	struct load_wish mine = { color, key };
	dcp_auto_free struct load_wish *all = calloc(t->comm.ranks, sizeof(*all));
	int rc = all ? mpi_allgather(t, &mine, sizeof(mine), all, timeout_ms) : -ENOMEM, code;
	uint32_t first, n, place;
	MPI_Comm c;

	if (rc < 0)
		return rc;
	/* The color of MPI is a non-negative int, so the first rank of the group is the color; the
	 * key is the position in the group. */
	first = load_group(all, t->comm.ranks, t->comm.rank, &n, &place);
	code = MPI_Comm_split(t->c, (int)first, (int)place, &c);
	if (code != MPI_SUCCESS)
		return mpi_failed(t, code, "MPI_Comm_split");
	return mpi_new(c, true, timeout_ms, out, &t->failed);
}

/* MPI_COMM_WORLD, if it has as many ranks as the launcher said. */
static int mpi_world(uint32_t expect, int timeout_ms, struct dcpload_comm **out,
		     struct dcpload_error *err)
{
	int on = 0, level = 0, ranks = 0, code = MPI_SUCCESS, rc;

	MPI_Initialized(&on);
	if (!on)
		code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
	if (code != MPI_SUCCESS)
		return load_fail(err, -EIO, "MPI_Init_thread failed with code %d", code);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	/* If the launcher is of another MPI, each rank would believe to be alone. */
	rc = expect && expect != (uint32_t)ranks
		     ? load_fail(
			       err, -EPROTO,
			       "Open MPI sees %d ranks, the launcher started %u: it belongs to "
			       "another MPI; use mpirun of Open MPI, torchrun or srun",
			       ranks, expect)
		     : mpi_new(MPI_COMM_WORLD, false, timeout_ms, out, err);
	if (rc == 0)
		((struct mpi *)(*out)->ctx)->finalize = !on;
	else if (rc == -EPROTO && !on)
		MPI_Finalize();
	return rc;
}

int dcpload_mpi_open(uint32_t abi, const void *mpi_comm, uint32_t expect, int timeout_ms,
		     struct dcpload_comm **out, struct dcpload_error *err)
{
	char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
	int n = 0, on = 0, off = 0, inter = 0;

	if (abi != DCPLOAD_ABI)
		return load_fail(err, -ELIBBAD, "libdcpload-mpi.so is of ABI %u, expected %u",
				 DCPLOAD_ABI, abi);
	MPI_Get_library_version(version, &n);
	if (strncmp(version, "Open MPI", 8) != 0)
		return load_fail(err, -ELIBBAD, "this process has %.60s, expected Open MPI",
				 version);
	MPI_Initialized(&on);
	MPI_Finalized(&off);
	if (off)
		return load_fail(err, -EINVAL, "MPI is finalized in this process");
	if (!mpi_comm)
		return mpi_world(expect, timeout_ms, out, err);
	if (!on)
		return load_fail(err, -EINVAL, "MPI is not initialized in this process");
	MPI_Comm_test_inter(*(const MPI_Comm *)mpi_comm, &inter);
	if (inter)
		return load_fail(err, -EINVAL,
				 "found an intercommunicator, expected an intracommunicator");
	return mpi_new(*(const MPI_Comm *)mpi_comm, false, timeout_ms, out, err);
}
