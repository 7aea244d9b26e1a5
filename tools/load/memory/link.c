/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/memory/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

int load_link_copy(struct load_link *l, void *dst, const void *src, uint64_t bytes)
{
	return l->d->kind->copy(l->d, l->lane, dst, src, bytes);
}

/* At most half of the timeout, so that this rank can report before the other ranks give up. */
int load_link_settle(struct load_link *l)
{
	return load_device_settle(l->d, l->mark, l->lane, l->timeout_ms / 2);
}

static int prepare_link(struct load_link *l, struct dcpload_error *err)
{
	int rc = l->kind->prepare(l, err);

	if (rc < 0)
		return rc;
	rc = l->d->kind->lane_open(l->d, &l->lane);
	if (rc == 0)
		rc = l->d->kind->mark_open(l->d, &l->mark);
	return load_device_said(l->d, rc, err);
}

int load_link_open(const struct load_link_kind *kind, const struct dcpload_comm *comm,
		   struct load_device *d, const char *why_not, int timeout_ms,
		   struct load_link **out, struct dcpload_error *err)
{
	struct load_link *l = *out;
	int rc = 0;

	if (why_not) {
		rc = load_fail(err, -ENOTSUP, "%s", why_not);
	} else if (l) {
		rc = load_device_said(d, kind->ready ? kind->ready(l) : 0, err);
	} else {
		l = calloc(1, kind->size);
		if (l)
			*l = (struct load_link){ kind, comm, d, .timeout_ms = timeout_ms };
		rc = l ? prepare_link(l, err) : load_fail(err, -ENOMEM, "out of memory");
	}
	rc = load_agree(comm, rc, err, timeout_ms);
	if (rc == 0 && !*out)
		rc = kind->join(l, err);
	if (rc == 0)
		*out = l;
	else if (!*out)
		load_link_close(l);
	return rc;
}

void load_link_close(struct load_link *l)
{
	if (!l)
		return;
	l->kind->finish(l);
	if (l->mark)
		l->d->kind->mark_close(l->d, l->mark);
	if (l->lane)
		l->d->kind->lane_close(l->d, l->lane);
	free(l);
}

/* ---- CUDA IPC ---- */

enum { PROBE = 4096 /* bytes that are mapped to find out whether IPC works */ };

struct ipc {
	struct load_link link;
	char *mine;      /* the window: memory of this rank that the others map */
	char **at;       /* mapped windows of the other ranks; NULL: not mapped */
	uint64_t *bytes; /* of each */
	/* from each rank to each: offset in its window; from a rank to itself: did it fail? */
	uint64_t *told;
};

static struct ipc *ipc_of(struct load_link *l)
{
	return (struct ipc *)l;
}

/* The handle of a window. bytes 0: there is no window. */
struct handle {
	struct load_shared shared;
	uint64_t bytes;
};

static int agree_on(const struct load_link *l, int rc, struct dcpload_error *err)
{
	return load_agree(l->comm, load_device_said(l->d, rc, err), err, l->timeout_ms);
}

static int map_windows(struct load_link *l, void *mine, uint64_t bytes,
		       struct dcpload_error *err)
{
	const struct load_memory *kind = l->d->kind;
	struct ipc *n = ipc_of(l);
	struct handle own = { .bytes = bytes };
	struct load_blobs b;
	int rc = agree_on(l, bytes ? kind->share(l->d, mine, &own.shared) : 0, err);

	if (rc == 0)
		rc = load_gather_same(l->comm, &own, sizeof(own), &b, err, l->timeout_ms);
	if (rc < 0)
		return rc;
	n->mine = mine;
	for (uint32_t r = 0; r < l->comm->ranks; r++) {
		const struct handle *h = b.at[r];

		n->bytes[r] = h->bytes;
		if (r != l->comm->rank && n->bytes[r] && rc == 0)
			rc = kind->map(l->d, &h->shared, h->bytes, (void **)&n->at[r]);
	}
	load_blobs_free(&b);
	return agree_on(l, rc, err);
}

/* Unmap the windows of the other ranks, also those of an execution that could not begin. */
static int unmap_windows(struct load_link *l, struct dcpload_error *err)
{
	struct ipc *n = ipc_of(l);
	int rc = load_link_settle(l);

	for (uint32_t r = 0; r < l->comm->ranks; r++) {
		if (n->at[r] && load_device_runs(l->d)) /* the device may still read it */
			rc = -ETIMEDOUT;
		else if (n->at[r] && l->d->kind->unmap(l->d, n->at[r]) < 0)
			rc = -EREMOTEIO;
		n->at[r] = NULL;
	}
	return agree_on(l, rc, err);
}

static int end_execution(struct load_link *l, int rc)
{
	return unmap_windows(l, NULL);
}

static int meet_ranks(struct load_link *l, const void *const *send, const uint64_t *nsend,
		      void **recv, const uint64_t *nrecv, int *failed,
		      struct dcpload_error *err)
{
	const struct dcpload_comm *comm = l->comm;
	struct ipc *n = ipc_of(l);
	uint32_t ranks = comm->ranks, self = comm->rank;
	uint64_t *mine = n->told + (size_t)ranks * ranks;
	bool some = false;
	int rc;

	if (*failed == 0)
		*failed = load_device_said(l->d, load_link_settle(l), err);
	for (uint32_t r = 0; r < ranks; r++)
		mine[r] = nsend[r] ? (uint64_t)((const char *)send[r] - n->mine) : 0;
	mine[self] = *failed < 0;
	rc = comm->allgather(comm->ctx, mine, ranks * sizeof(*mine), n->told, l->timeout_ms);
	if (rc < 0)
		return load_comm_say(comm, rc, err);
	for (uint32_t r = 0; r < ranks; r++)
		some |= n->told[(size_t)r * ranks + r] != 0;
	if (some)
		return load_agree(comm, *failed, err, l->timeout_ms);
	for (uint32_t r = 0; r < ranks; r++) {
		uint64_t at = n->told[(size_t)r * ranks + self];

		if (r == self || !nrecv[r])
			continue;
		recv[r] = n->at[r] + at;
		if (at > n->bytes[r] || nrecv[r] > n->bytes[r] - at) {
			snprintf(l->d->said, sizeof(l->d->said),
				 "rank %u sends what is not in its window", r);
			*failed = -EPROTO;
		}
	}
	return 0;
}

static int prepare_ipc(struct load_link *l, struct dcpload_error *err)
{
	struct ipc *n = ipc_of(l);
	size_t ranks = l->comm->ranks;

	n->at = calloc(ranks, sizeof(*n->at));
	n->bytes = calloc(ranks, sizeof(*n->bytes));
	n->told = calloc(ranks * (ranks + 1), sizeof(*n->told));
	return n->at && n->bytes && n->told ? 0 : load_fail(err, -ENOMEM, "out of memory");
}

/* Each rank reads a number from the window of every other rank. */
static int read_each(struct load_link *l)
{
	struct ipc *n = ipc_of(l);
	uint32_t r, number;
	int rc = 0;

	for (r = 0; r < l->comm->ranks && rc == 0; r++) {
		if (r == l->comm->rank)
			continue;
		rc = l->d->kind->fetch(l->d, &number, n->at[r], sizeof(number));
		if (rc < 0 || number == r)
			continue;
		snprintf(l->d->said, sizeof(l->d->said),
			 "what rank %u wrote is not what is read", r);
		rc = -EIO;
	}
	return rc;
}

/* All ranks map and read memory of each other. */
static int probe_memory(struct load_link *l, struct dcpload_error *err)
{
	struct load_device *d = l->d;
	void *p = NULL;
	int unmapped = 0, rc = d->kind->alloc(d, PROBE, &p);

	if (rc == 0)
		rc = load_link_copy(l, p, &l->comm->rank, sizeof(l->comm->rank));
	if (rc == 0)
		rc = load_link_settle(l);
	rc = agree_on(l, rc, err);
	if (rc == 0) {
		rc = map_windows(l, p, PROBE, err);
		if (rc == 0)
			rc = agree_on(l, read_each(l), err);
		unmapped = unmap_windows(l, rc < 0 ? NULL : err);
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

static void finish_ipc(struct load_link *l)
{
	struct ipc *n = ipc_of(l);

	free(n->at);
	free(n->bytes);
	free(n->told);
}

const struct load_link_kind load_ipc = {
	.name = "CUDA IPC",
	.size = sizeof(struct ipc),
	.one_node = true,
	.in_place = true,
	.prepare = prepare_ipc,
	.join = probe_memory,
	.finish = finish_ipc,
	.begin = map_windows,
	.meet = meet_ranks,
	.end = end_execution,
};
