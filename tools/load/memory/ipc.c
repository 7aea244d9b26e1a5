/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/memory/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROBE = 4096 /* bytes that are mapped to find out whether IPC works */ };

struct load_ipc {
	const struct dcpload_comm *comm;
	struct load_device *d;
	void *lane, *mark;
	char *mine;      /* this rank's window */
	char **at;       /* mapped windows of the other ranks; NULL: not mapped */
	uint64_t *bytes; /* of each */
	/* from each rank to each: offset in the window; on the diagonal: did the rank fail? */
	uint64_t *told;
	int timeout_ms;
};

/* The handle of a window. bytes 0: there is no window. */
struct handle {
	struct load_shared shared;
	uint64_t bytes;
};

static int agree_on(const struct load_ipc *n, int rc, struct dcpload_error *err)
{
	return load_agree(n->comm, load_device_said(n->d, rc, err), err, n->timeout_ms);
}

/* ---- windows ---- */

int load_ipc_map(struct load_ipc *n, void *mine, uint64_t bytes, struct dcpload_error *err)
{
	const struct load_memory *kind = n->d->kind;
	struct handle own = { .bytes = bytes };
	struct load_blobs b;
	int rc = agree_on(n, bytes ? kind->share(n->d, mine, &own.shared) : 0, err);

	if (rc == 0)
		rc = load_gather_same(n->comm, &own, sizeof(own), &b, err, n->timeout_ms);
	if (rc < 0)
		return rc;
	n->mine = mine;
	for (uint32_t r = 0; r < n->comm->ranks; r++) {
		const struct handle *h = b.at[r];

		n->bytes[r] = h->bytes;
		if (r != n->comm->rank && n->bytes[r] && rc == 0)
			rc = kind->map(n->d, &h->shared, h->bytes, (void **)&n->at[r]);
	}
	load_blobs_free(&b);
	return agree_on(n, rc, err);
}

/*
 * Wait until no copy is in flight: at most half of the timeout, so that this rank can report before
 * the other ranks give up.
 */
static int settle_copies(struct load_ipc *n)
{
	return load_device_settle(n->d, n->mark, n->lane, n->timeout_ms / 2);
}

int load_ipc_unmap(struct load_ipc *n, struct dcpload_error *err)
{
	int rc = settle_copies(n);

	for (uint32_t r = 0; r < n->comm->ranks; r++) {
		if (n->at[r] && load_device_runs(n->d)) /* the device may still read it */
			rc = -ETIMEDOUT;
		else if (n->at[r] && n->d->kind->unmap(n->d, n->at[r]) < 0)
			rc = -EREMOTEIO;
		n->at[r] = NULL;
	}
	return agree_on(n, rc, err);
}

int load_ipc_copy(struct load_ipc *n, void *dst, const void *src, uint64_t bytes)
{
	return n->d->kind->copy(n->d, n->lane, dst, src, bytes);
}

int load_ipc_meet(struct load_ipc *n, const void *const *send, const uint64_t *nsend,
		  void **recv, const uint64_t *nrecv, int *failed, struct dcpload_error *err)
{
	const struct dcpload_comm *comm = n->comm;
	uint32_t ranks = comm->ranks, self = comm->rank;
	uint64_t *mine = n->told + (size_t)ranks * ranks;
	bool some = false;
	int rc;

	*failed = *failed < 0 ? *failed : settle_copies(n);
	for (uint32_t r = 0; r < ranks; r++)
		mine[r] = nsend[r] ? (uint64_t)((const char *)send[r] - n->mine) : 0;
	mine[self] = *failed < 0;
	rc = comm->allgather(comm->ctx, mine, ranks * sizeof(*mine), n->told, n->timeout_ms);
	if (rc < 0)
		return load_comm_say(comm, rc, err);
	for (uint32_t r = 0; r < ranks; r++)
		some |= n->told[(size_t)r * ranks + r] != 0;
	if (some)
		return agree_on(n, *failed, err);
	for (uint32_t r = 0; r < ranks; r++) {
		uint64_t at = n->told[(size_t)r * ranks + self];

		if (r == self || !nrecv[r])
			continue;
		recv[r] = n->at[r] + at;
		if (at > n->bytes[r] || nrecv[r] > n->bytes[r] - at) {
			snprintf(n->d->said, sizeof(n->d->said),
				 "rank %u sends what is not in its window", r);
			*failed = -EPROTO;
		}
	}
	return 0;
}

/* ---- opening ---- */

static int prepare_ipc(struct load_ipc *n, const struct dcpload_comm *comm,
		       struct load_device *d, int timeout_ms, struct dcpload_error *err)
{
	size_t ranks = comm->ranks;
	int rc;

	if (!n)
		return load_fail(err, -ENOMEM, "out of memory");
	n->comm = comm;
	n->d = d;
	n->timeout_ms = timeout_ms;
	n->at = calloc(ranks, sizeof(*n->at));
	n->bytes = calloc(ranks, sizeof(*n->bytes));
	n->told = calloc(ranks * (ranks + 1), sizeof(*n->told));
	if (!n->at || !n->bytes || !n->told)
		return load_fail(err, -ENOMEM, "out of memory");
	rc = d->kind->lane_open(d, &n->lane);
	if (rc == 0)
		rc = d->kind->mark_open(d, &n->mark);
	return load_device_said(n->d, rc, err);
}

/* Each rank reads a number from the window of every other rank. */
static int read_each(struct load_ipc *n)
{
	uint32_t r, number;
	int rc = 0;

	for (r = 0; r < n->comm->ranks && rc == 0; r++) {
		if (r == n->comm->rank)
			continue;
		rc = n->d->kind->fetch(n->d, &number, n->at[r], sizeof(number));
		if (rc < 0 || number == r)
			continue;
		snprintf(n->d->said, sizeof(n->d->said),
			 "what rank %u wrote is not what is read", r);
		rc = -EIO;
	}
	return rc;
}

static int probe_memory(struct load_ipc *n, struct dcpload_error *err)
{
	struct load_device *d = n->d;
	void *p = NULL;
	int unmapped = 0, rc = d->kind->alloc(d, PROBE, &p);

	if (rc == 0)
		rc = load_ipc_copy(n, p, &n->comm->rank, sizeof(n->comm->rank));
	if (rc == 0)
		rc = settle_copies(n);
	rc = agree_on(n, rc, err);
	if (rc == 0) {
		rc = load_ipc_map(n, p, PROBE, err);
		if (rc == 0)
			rc = agree_on(n, read_each(n), err);
		unmapped = load_ipc_unmap(n, rc < 0 ? NULL : err);
	}
	if (unmapped < 0 || load_device_runs(d))
		load_device_keep(d,
				 "%d bytes of it are kept until the process ends: other "
				 "ranks may have them mapped",
				 PROBE);
	else if (p)
		d->kind->free(d, p, PROBE);
	return rc < 0 ? rc : unmapped;
}

int load_ipc_open(const struct dcpload_comm *comm, struct load_device *d, const char *why_not,
		  int timeout_ms, struct load_ipc **out, struct dcpload_error *err)
{
	struct load_ipc *n = *out;
	int rc = 0;

	if (why_not) {
		rc = load_fail(err, -ENOTSUP, "%s", why_not);
	} else if (!n) {
		n = calloc(1, sizeof(*n));
		rc = prepare_ipc(n, comm, d, timeout_ms, err);
	}
	rc = load_agree(comm, rc, err, timeout_ms);
	if (rc == 0 && !*out)
		rc = probe_memory(n, err);
	if (rc == 0)
		*out = n;
	else if (!*out)
		load_ipc_close(n);
	return rc;
}

void load_ipc_close(struct load_ipc *n)
{
	if (!n)
		return;
	if (n->mark)
		n->d->kind->mark_close(n->d, n->mark);
	if (n->lane)
		n->d->kind->lane_close(n->d, n->lane);
	free(n->at);
	free(n->bytes);
	free(n->told);
	free(n);
}
