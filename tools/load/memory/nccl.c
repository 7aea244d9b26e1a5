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

/*
 * No call of NCCL blocks: the loader waits for its operations until a deadline, and after any
 * failure aborts the communicator, which cannot be used any more. The other ranks do not learn of a
 * failure here: they wait for this rank until their deadline, half of the job's timeout, so that
 * all ranks are back in time for the next agreement.
 */
struct nccl {
	struct load_link link;
	struct load_nccl_calls call;
	struct ncclComm *c; /* NULL: none yet, or it was aborted */
	uint32_t ranks, self;
	int version;
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
	static char text[32]; /* every thread writes the same text */
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

static struct nccl *nccl_of(struct load_link *l)
{
	return (struct nccl *)l;
}

static uint32_t get_version(const struct load_link *l)
{
	return (uint32_t)((const struct nccl *)l)->version;
}

/* ---- failures ---- */

static int give_up(struct nccl *n, int rc)
{
	if (n->c && n->link.d->kind->enter(n->link.d) == 0) {
		n->call.ncclCommAbort(n->c);
		n->link.d->kind->leave(n->link.d);
	}
	n->c = NULL;
	return rc;
}

static int say_failed(struct nccl *n, unsigned code, const char *call)
{
	const char *more = n->call.ncclGetLastError(n->c);

	snprintf(n->link.d->said, sizeof(n->link.d->said), "%s: %s%s%.100s", call,
		 n->call.ncclGetErrorString(code), more && *more ? ": " : "", more ? more : "");
	return give_up(n, -EREMOTEIO);
}

static bool is_fine(unsigned code)
{
	return code == LOAD_NCCL_SUCCESS || code == LOAD_NCCL_IN_PROGRESS;
}

/* Name the ranks that this rank waits for, as far as it can know. */
static const char *name_others(const struct nccl *n, char *text, size_t size)
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
static int settle_call(struct nccl *n, const char *call, void *mark, int timeout_ms)
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
		rc = state ? 0 : mark ? n->link.d->kind->passed(n->link.d, mark) : 1;
		if (rc)
			return rc < 0 ? give_up(n, rc) : 0;
		if (dcp_now_ns(CLOCK_MONOTONIC) > until) {
			char ranks[12 * MOST_NAMED + 24];
			const char *who = name_others(n, ranks, sizeof(ranks));

			snprintf(n->link.d->said, sizeof(n->link.d->said),
				 "%s: %s%.100s did not answer within %.1f s", call, who, ranks,
				 timeout_ms / 1000.0);
			return give_up(n, -ETIMEDOUT);
		}
		nanosleep(&look, NULL);
		look.tv_nsec = DCP_MIN(look.tv_nsec + look.tv_nsec / 8, LOOK_MOST_NS);
	}
}

/* ---- opening ---- */

static int prepare_nccl(struct load_link *l, struct dcpload_error *err)
{
	struct nccl *n = nccl_of(l);

	n->ranks = l->comm->ranks;
	n->self = l->comm->rank;
	return open_library(&n->call, &n->version, err);
}

static int check_ready(struct load_link *l)
{
	struct nccl *n = nccl_of(l);

	if (n->c)
		return 0;
	snprintf(n->link.d->said, sizeof(n->link.d->said), "NCCL failed before");
	return -EREMOTEIO;
}

static int enter_context(struct nccl *n)
{
	int rc = n->link.d->kind->enter(n->link.d);

	if (rc < 0)
		snprintf(n->link.d->said, sizeof(n->link.d->said),
			 "its context cannot be used");
	return rc < 0 ? give_up(n, rc) : 0;
}

/* Collective: all ranks join the communicator with the id that rank 0 sends. */
static int join_ranks(struct load_link *l, struct dcpload_error *err)
{
	const struct dcpload_comm *comm = l->comm;
	struct nccl *n = nccl_of(l);
	struct load_nccl_config config = { .size = sizeof(config),
					   .magic = LOAD_NCCL_MAGIC,
					   .version = LOAD_NCCL_LEAST };
	struct load_nccl_id id = { "" };
	struct load_blobs b;
	unsigned code = n->self == 0 ? n->call.ncclGetUniqueId(&id) : 0;
	int rc = code ? say_failed(n, code, "ncclGetUniqueId") : 0;

	rc = load_agree(comm, load_device_said(n->link.d, rc, err), err, n->link.timeout_ms);
	if (rc == 0)
		rc = load_gather(comm, &id, n->self ? 0 : sizeof(id), &b, err,
				 n->link.timeout_ms);
	if (rc < 0)
		return rc;
	if (b.n[0] == sizeof(id))
		memcpy(&id, b.at[0], sizeof(id));
	load_blobs_free(&b);
	rc = enter_context(n);
	if (rc == 0) {
		code = n->call.ncclCommInitRankConfig(&n->c, (int)n->ranks, id, (int)n->self,
						      &config);
		rc = is_fine(code) ? settle_call(n, "ncclCommInitRankConfig", NULL,
						 n->link.timeout_ms / 2)
				   : say_failed(n, code, "ncclCommInitRankConfig");
		n->link.d->kind->leave(n->link.d);
	}
	return load_agree(comm, load_device_said(n->link.d, rc, err), err, n->link.timeout_ms);
}

static void finish_nccl(struct load_link *l)
{
	give_up(nccl_of(l), 0);
}

/* ---- messages ---- */

/* Learn whether a rank has failed, so that this rank does not wait for it. */
static int meet_ranks(struct load_link *l, const void *const *send, const uint64_t *nsend,
		      void **recv, const uint64_t *nrecv, int *failed,
		      struct dcpload_error *err)
{
	(void)send, (void)nsend, (void)recv, (void)nrecv;
	return load_agree(l->comm, *failed, err, l->timeout_ms);
}

static int end_execution(struct load_link *l, int rc)
{
	if (rc < 0)
		load_link_settle(l);
	return 0;
}

/* Wait for an aborted operation, after which nothing uses its memory. If it does not end soon, the
 * other ranks waited for the device of this rank. */
static int await_end(struct nccl *n, const char *call, int rc)
{
	char said[sizeof(n->link.d->said)];

	memcpy(said, n->link.d->said, sizeof(said));
	load_device_settle(n->link.d, n->link.mark, n->link.lane, n->link.timeout_ms / 4);
	memcpy(n->link.d->said, said, sizeof(said));
	if (!load_device_runs(n->link.d))
		return rc;
	snprintf(n->link.d->said, sizeof(n->link.d->said),
		 "%s: what is queued did not end within %.1f s, nor when it was given up", call,
		 n->link.timeout_ms / 2000.0);
	return -EREMOTEIO;
}

/* Wait until @call, the last call of an operation, is done; it returned @code. */
static int finish_call(struct nccl *n, unsigned code, const char *call)
{
	int timeout = n->link.timeout_ms / 2, rc = is_fine(code)
							   ? settle_call(n, call, NULL, timeout)
							   : say_failed(n, code, call);

	if (rc == 0) {
		rc = n->link.d->kind->mark(n->link.d, n->link.mark, n->link.lane);
		rc = rc < 0 ? give_up(n, rc) : settle_call(n, call, n->link.mark, timeout);
	}
	n->link.d->kind->leave(n->link.d);
	n->nsend = n->nrecv = NULL;
	return rc == -ETIMEDOUT ? await_end(n, call, rc) : rc;
}

static int exchange_messages(struct load_link *l, const void *const *send,
			     const uint64_t *nsend, void *const *recv, const uint64_t *nrecv)
{
	struct nccl *n = nccl_of(l);
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
						n->c, n->link.lane);
		if (!is_fine(code))
			break;
		call = "ncclRecv";
		if (nrecv[d])
			code = n->call.ncclRecv(recv[d], nrecv[d], LOAD_NCCL_UINT8, (int)d,
						n->c, n->link.lane);
	}
	end = n->call.ncclGroupEnd();
	return is_fine(code) ? finish_call(n, end, "ncclGroupEnd") : finish_call(n, code, call);
}

static int gather_parts(struct load_link *l, void *all, uint64_t bytes)
{
	struct nccl *n = nccl_of(l);
	int rc = enter_context(n);

	return rc < 0 ? rc
		      : finish_call(n,
				    n->call.ncclAllGather((char *)all + n->self * bytes, all,
							  bytes, LOAD_NCCL_UINT8, n->c,
							  n->link.lane),
				    "ncclAllGather");
}

/* Copy all messages, @bytes in all, to @there on the device, by way of the host's buffer @here.
 * Messages of this rank to itself stay where they are. */
static int copy_to_device(struct nccl *n, char *there, char *here, uint64_t bytes,
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
	return load_link_copy(&n->link, there, here, bytes);
}

static int exchange_in_host(struct load_link *l, const void *const *send, const uint64_t *nsend,
			    void *const *recv, const uint64_t *nrecv, struct dcpload_error *err)
{
	struct nccl *n = nccl_of(l);
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
		rc = n->link.d->kind->alloc(n->link.d, bytes, &there);
	if (rc == 0)
		rc = copy_to_device(n, there, here, bytes, send, nsend, nrecv, from, to);
	rc = load_agree(l->comm, load_device_said(l->d, rc, err), err, l->timeout_ms);
	if (rc == 0) {
		rc = exchange_messages(l, from, nsend, to, nrecv);
		for (uint32_t d = 0; d < n->ranks && rc == 0; d++)
			if (nrecv[d])
				rc = n->link.d->kind->fetch(n->link.d, recv[d], to[d],
							    nrecv[d]);
		rc = load_agree(l->comm, load_device_said(l->d, rc, err), err, l->timeout_ms);
	}
	if (rc < 0)
		load_link_settle(l);
	if (there && !load_device_runs(n->link.d))
		n->link.d->kind->free(n->link.d, there, bytes);
	if (here && !load_device_runs(n->link.d))
		load_host.free(NULL, here, bytes);
	return rc;
}

const struct load_link_kind load_nccl = {
	.name = "NCCL",
	.size = sizeof(struct nccl),
	.prepare = prepare_nccl,
	.join = join_ranks,
	.version = get_version,
	.ready = check_ready,
	.finish = finish_nccl,
	.meet = meet_ranks,
	.exchange = exchange_messages,
	.gather = gather_parts,
	.alltoallv = exchange_in_host,
	.end = end_execution,
};
