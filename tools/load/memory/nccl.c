/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/memory/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/base.h"
#include "core/base/system.h"
#include "tools/load/memory/nccl_abi.h"

#define LIBRARY "libnccl.so.2"

enum {
	LOOK_NS = 20000,        /* between polls of an operation */
	LOOK_MOST_NS = 1000000, /* once it has taken long */
	MOST_NAMED = 6,         /* limit of ranks named in a message */
};

struct load_nccl {
	struct load_nccl_calls call;
	struct load_device *d;
	struct ncclComm *c; /* NULL: none yet, or it was aborted */
	void *lane, *mark;
	uint32_t ranks, self;
	int version, timeout_ms;
	const uint64_t *nsend,
		/* bytes to and from each rank that are in flight; NULL: all ranks take part */
		*nrecv;
};

/* ---- the library ---- */

static int open_library(struct load_nccl_calls *call, int *version, struct dcpload_error *err)
{
#define NAME(result, name, arguments) #name,
	static const char *const names[] = { LOAD_NCCL_CALLS(NAME) };
#undef NAME
	char why[256];
	unsigned code;
	int rc = dcp_library_open(LIBRARY, names, DCP_LEN(names), (void **)call, why,
				  sizeof(why));

	_Static_assert(sizeof(*call) == sizeof(names), "pointers alone");
	if (rc < 0)
		return load_fail(err, rc, "%s%s", why,
				 rc == -ELIBBAD ? ": NCCL 2.14 or later is needed" : "");
	code = call->ncclGetVersion(version);
	if (code)
		return load_fail(err, -ELIBBAD, "ncclGetVersion: %s",
				 call->ncclGetErrorString(code));
	if (*version < LOAD_NCCL_LEAST)
		return load_fail(err, -ELIBBAD,
				 LIBRARY " is of version %d; 2.14.0, which is %d, is the "
					 "oldest that is supported",
				 *version, LOAD_NCCL_LEAST);
	return 0;
}

const char *load_nccl_library(void)
{
	static char text[32]; /* the same whenever it is written */
	struct load_nccl_calls call;
	struct dcpload_error err;
	int version;

	if (open_library(&call, &version, &err) < 0)
		return NULL;
	snprintf(text, sizeof(text), "%d.%d.%d", version / 10000, version / 100 % 100,
		 version % 100);
	return text;
}

int load_nccl_probe(char *found, size_t size)
{
	struct load_nccl_calls call;
	struct dcpload_error err;
	int version, rc = open_library(&call, &version, &err);

	if (rc < 0)
		snprintf(found, size, "%s", err.text);
	else
		snprintf(found, size, LIBRARY ", NCCL %s", load_nccl_library());
	return rc;
}

uint32_t load_nccl_version(const struct load_nccl *n)
{
	return (uint32_t)n->version;
}

/* ---- failures ---- */

static int give_up(struct load_nccl *n, int rc)
{
	if (n->c && n->d->kind->enter(n->d) == 0) {
		n->call.ncclCommAbort(n->c);
		n->d->kind->leave(n->d);
	}
	n->c = NULL;
	return rc;
}

static int say_failed(struct load_nccl *n, unsigned code, const char *call)
{
	const char *more = n->call.ncclGetLastError(n->c);

	snprintf(n->d->said, sizeof(n->d->said), "%s: %s%s%.100s", call,
		 n->call.ncclGetErrorString(code), more && *more ? ": " : "", more ? more : "");
	return give_up(n, -EREMOTEIO);
}

static bool is_fine(unsigned code)
{
	return code == LOAD_NCCL_SUCCESS || code == LOAD_NCCL_IN_PROGRESS;
}

/* Name the ranks that this rank waits for, as far as it can know. */
static const char *name_others(const struct load_nccl *n, char *text, size_t size)
{
	uint32_t count = 0;
	size_t at = 0;

	*text = '\0';
	for (uint32_t r = 0; r < n->ranks; r++) {
		if (r == n->self || (n->nsend && !n->nsend[r] && !n->nrecv[r]))
			continue;
		if (count++ < MOST_NAMED)
			at += (size_t)snprintf(text + at, size - at, "%s%u",
					       count > 1 ? ", " : "", r);
	}
	if (count > MOST_NAMED)
		snprintf(text + at, size - at, " and %u more", count - MOST_NAMED);
	return count == 0 ? "the GPU" : count == 1 ? "rank " : "one of the ranks ";
}

/* Wait until NCCL has finished @call; with @mark, until the device has. */
static int settle_call(struct load_nccl *n, const char *call, void *mark, int timeout_ms)
{
	struct timespec look = { .tv_nsec = LOOK_NS };
	int64_t until = dcp_now_ns(CLOCK_MONOTONIC) + timeout_ms * DCP_NS_PER_MS;

	for (;;) {
		unsigned state = LOAD_NCCL_SUCCESS,
			 code = n->call.ncclCommGetAsyncError(n->c, &state);
		int rc;

		if (code)
			return say_failed(n, code, "ncclCommGetAsyncError");
		if (!is_fine(state))
			return say_failed(n, state, call);
		rc = state ? 0 : mark ? n->d->kind->passed(n->d, mark) : 1;
		if (rc)
			return rc < 0 ? give_up(n, rc) : 0;
		if (dcp_now_ns(CLOCK_MONOTONIC) > until) {
			char ranks[12 * MOST_NAMED + 24];
			const char *who = name_others(n, ranks, sizeof(ranks));

			snprintf(n->d->said, sizeof(n->d->said),
				 "%s: %s%.100s did not answer within %.1f s", call, who, ranks,
				 timeout_ms / 1000.0);
			return give_up(n, -ETIMEDOUT);
		}
		nanosleep(&look, NULL);
		look.tv_nsec = DCP_MIN(look.tv_nsec + look.tv_nsec / 8, LOOK_MOST_NS);
	}
}

/* ---- opening ---- */

static int prepare_nccl(struct load_nccl *n, const struct dcpload_comm *comm,
			struct load_device *d, int timeout_ms, struct dcpload_error *err)
{
	int rc;

	if (!n)
		return load_fail(err, -ENOMEM, "out of memory");
	n->ranks = comm->ranks;
	n->self = comm->rank;
	n->timeout_ms = timeout_ms;
	rc = open_library(&n->call, &n->version, err);
	if (rc < 0)
		return rc;
	n->d = d;
	rc = d->kind->lane_open(d, &n->lane);
	if (rc == 0)
		rc = d->kind->mark_open(d, &n->mark);
	return load_device_said(d, rc, err);
}

int load_nccl_ready(struct load_nccl *n)
{
	if (n->c)
		return 0;
	snprintf(n->d->said, sizeof(n->d->said), "NCCL failed before");
	return -EREMOTEIO;
}

static int enter_context(struct load_nccl *n)
{
	int rc = n->d->kind->enter(n->d);

	if (rc < 0)
		snprintf(n->d->said, sizeof(n->d->said), "its context cannot be used");
	return rc < 0 ? give_up(n, rc) : 0;
}

/* Collective: all ranks join the communicator with the id that rank 0 sends. */
static int meet_ranks(struct load_nccl *n, const struct dcpload_comm *comm,
		      struct dcpload_error *err)
{
	struct load_nccl_config config = { .size = sizeof(config),
					   .magic = LOAD_NCCL_MAGIC,
					   .version = LOAD_NCCL_LEAST };
	struct load_nccl_id id = { "" };
	struct load_blobs b;
	unsigned code = n->self == 0 ? n->call.ncclGetUniqueId(&id) : 0;
	int rc = code ? say_failed(n, code, "ncclGetUniqueId") : 0;

	rc = load_agree(comm, load_device_said(n->d, rc, err), err, n->timeout_ms);
	if (rc == 0)
		rc = load_gather(comm, &id, n->self ? 0 : sizeof(id), &b, err, n->timeout_ms);
	if (rc < 0)
		return rc;
	if (b.n[0] == sizeof(id))
		memcpy(&id, b.at[0], sizeof(id));
	load_blobs_free(&b);
	rc = enter_context(n);
	if (rc == 0) {
		code = n->call.ncclCommInitRankConfig(&n->c, (int)n->ranks, id, (int)n->self,
						      &config);
		rc = is_fine(code)
			     ? settle_call(n, "ncclCommInitRankConfig", NULL, n->timeout_ms / 2)
			     : say_failed(n, code, "ncclCommInitRankConfig");
		n->d->kind->leave(n->d);
	}
	return load_agree(comm, load_device_said(n->d, rc, err), err, n->timeout_ms);
}

int load_nccl_open(const struct dcpload_comm *comm, struct load_device *d, const char *why_not,
		   int timeout_ms, struct load_nccl **out, struct dcpload_error *err)
{
	struct load_nccl *n = *out;
	int rc = 0;

	if (why_not) {
		rc = load_fail(err, -ENOTSUP, "%s", why_not);
	} else if (n) {
		rc = load_device_said(n->d, load_nccl_ready(n), err);
	} else {
		n = calloc(1, sizeof(*n));
		rc = prepare_nccl(n, comm, d, timeout_ms, err);
	}
	rc = load_agree(comm, rc, err, timeout_ms);
	if (rc == 0 && !*out)
		rc = meet_ranks(n, comm, err);
	if (rc == 0)
		*out = n;
	else if (!*out)
		load_nccl_close(n);
	return rc;
}

void load_nccl_close(struct load_nccl *n)
{
	if (!n)
		return;
	give_up(n, 0);
	if (n->mark)
		n->d->kind->mark_close(n->d, n->mark);
	if (n->lane)
		n->d->kind->lane_close(n->d, n->lane);
	free(n);
}

/* ---- messages ---- */

int load_nccl_copy(struct load_nccl *n, void *dst, const void *src, uint64_t bytes)
{
	return n->d->kind->copy(n->d, n->lane, dst, src, bytes);
}

void load_nccl_drop(struct load_nccl *n)
{
	load_device_settle(n->d, n->mark, n->lane, n->timeout_ms / 2);
}

/*
 * Wait for an aborted operation, after which nothing uses its memory. If it does not end soon, the
 * device of this rank is the one that the other ranks waited for.
 */
static int await_end(struct load_nccl *n, const char *call, int rc)
{
	char said[sizeof(n->d->said)];

	memcpy(said, n->d->said, sizeof(said));
	load_device_settle(n->d, n->mark, n->lane, n->timeout_ms / 4);
	memcpy(n->d->said, said, sizeof(said));
	if (!load_device_runs(n->d))
		return rc;
	snprintf(n->d->said, sizeof(n->d->said),
		 "%s: what is queued did not end within %.1f s, nor when it was given up", call,
		 n->timeout_ms / 2000.0);
	return -EREMOTEIO;
}

/* Wait until @call, the last call of an operation, is done; it returned @code. */
static int finish_call(struct load_nccl *n, unsigned code, const char *call)
{
	int timeout = n->timeout_ms / 2, rc = is_fine(code)
						      ? settle_call(n, call, NULL, timeout)
						      : say_failed(n, code, call);

	if (rc == 0) {
		rc = n->d->kind->mark(n->d, n->mark, n->lane);
		rc = rc < 0 ? give_up(n, rc) : settle_call(n, call, n->mark, timeout);
	}
	n->d->kind->leave(n->d);
	n->nsend = n->nrecv = NULL;
	return rc == -ETIMEDOUT ? await_end(n, call, rc) : rc;
}

int load_nccl_exchange(struct load_nccl *n, const void *const *send, const uint64_t *nsend,
		       void *const *recv, const uint64_t *nrecv)
{
	const char *call = "ncclGroupStart";
	unsigned code, end;
	int rc = enter_context(n);

	if (rc < 0)
		return rc;
	code = n->call.ncclGroupStart();
	if (!is_fine(code))
		return finish_call(n, code, call);
	n->nsend = nsend;
	n->nrecv = nrecv;
	for (uint32_t d = 0; d < n->ranks && is_fine(code); d++) {
		call = "ncclSend";
		if (nsend[d])
			code = n->call.ncclSend(send[d], nsend[d], LOAD_NCCL_UINT8, (int)d,
						n->c, n->lane);
		if (!is_fine(code))
			break;
		call = "ncclRecv";
		if (nrecv[d])
			code = n->call.ncclRecv(recv[d], nrecv[d], LOAD_NCCL_UINT8, (int)d,
						n->c, n->lane);
	}
	end = n->call.ncclGroupEnd();
	return is_fine(code) ? finish_call(n, end, "ncclGroupEnd") : finish_call(n, code, call);
}

int load_nccl_gather(struct load_nccl *n, void *all, uint64_t bytes)
{
	int rc = enter_context(n);

	return rc < 0 ? rc
		      : finish_call(n,
				    n->call.ncclAllGather((char *)all + n->self * bytes, all,
							  bytes, LOAD_NCCL_UINT8, n->c,
							  n->lane),
				    "ncclAllGather");
}

/*
 * Copy all messages, @bytes together, through @here to @there on the device; messages of this rank
 * to itself stay where they are.
 */
static int to_device(struct load_nccl *n, char *there, char *here, uint64_t bytes,
		     const void *const *send, const uint64_t *nsend, const uint64_t *nrecv,
		     const void **from, void **to)
{
	uint64_t at = 0;

	for (uint32_t d = 0; d < n->ranks; d++) {
		from[d] = there + at;
		if (nsend[d])
			memcpy(here + at, send[d], nsend[d]);
		at += nsend[d];
		to[d] = there + at;
		at += nrecv[d];
	}
	return load_nccl_copy(n, there, here, bytes);
}

int load_nccl_alltoallv(struct load_nccl *n, const struct dcpload_comm *comm,
			const void *const *send, const uint64_t *nsend, void *const *recv,
			const uint64_t *nrecv, int timeout_ms, struct dcpload_error *err)
{
	dcp_auto_free const void **from = calloc(n->ranks, sizeof(*from));
	dcp_auto_free void **to = calloc(n->ranks, sizeof(*to));
	uint64_t bytes = 1;
	void *there = NULL, *here = NULL;
	int rc = from && to ? 0 : -ENOMEM;

	for (uint32_t d = 0; d < n->ranks; d++)
		bytes += nsend[d] + nrecv[d];
	if (rc == 0)
		rc = load_host.alloc(NULL, bytes, &here);
	if (rc == 0)
		rc = n->d->kind->alloc(n->d, bytes, &there);
	if (rc == 0)
		rc = to_device(n, there, here, bytes, send, nsend, nrecv, from, to);
	rc = load_agree(comm, load_device_said(n->d, rc, err), err, timeout_ms);
	if (rc == 0) {
		rc = load_nccl_exchange(n, from, nsend, to, nrecv);
		for (uint32_t d = 0; d < n->ranks && rc == 0; d++)
			if (nrecv[d])
				rc = n->d->kind->fetch(n->d, recv[d], to[d], nrecv[d]);
		rc = load_agree(comm, load_device_said(n->d, rc, err), err, timeout_ms);
	}
	if (rc < 0)
		load_nccl_drop(n);
	if (there && !load_device_runs(n->d))
		n->d->kind->free(n->d, there, bytes);
	if (here && !load_device_runs(n->d))
		load_host.free(NULL, here, bytes);
	return rc;
}
