/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All data to the ranks that write it, in rounds of bounded size: each rank sends the tensors that
 * are its to send one after the other as one stream of bytes, a piece a round, and those that write
 * put the pieces at their places. So a file of any length is made in the memory of one round.
 */
#include <errno.h>
#include <stdlib.h>

#include "tools/save/ranks/ranks_int.h"
#include "tools/save/save_int.h"

#define MOST ((uint64_t)32 << 20) /* bytes of a round, of all ranks */

/* Where a rank's stream is. */
struct stream {
	size_t tensor;
	uint64_t at;   /* in the tensor */
	uint64_t left; /* of all of it */
};

struct gathering {
	struct dcpsave *s;
	uint64_t one;          /* bytes that a rank sends in a round, at most */
	struct stream *stream; /* by rank */
	struct stream own;     /* where this rank's is read */
	uint64_t *n, *nsend;   /* by rank: bytes of this round */
	const void **send;
	void **recv;
	char *mine, *all;
	struct save_putting put;
	struct dcp_err err;
};

/* Bytes of a tensor. */
static uint64_t size_of(const struct dcpsave *s, size_t tensor)
{
	const struct dcp_write_tensor *t = &s->set.tensors[tensor];

	return dcp_write_part_bytes(t, &t->parts[0]);
}

/* The next @n bytes of a rank's stream: read into @buf, or written from it. */
static int pass(struct gathering *g, uint32_t rank, struct stream *at, char *buf, uint64_t n,
		bool reads)
{
	const struct dcpsave *s = g->s;
	int rc = 0;

	while (rc == 0 && n) {
		uint64_t size = s->sender[at->tensor] == rank ? size_of(s, at->tensor) : 0;
		uint64_t some = DCP_MIN(n, size - DCP_MIN(at->at, size));

		if (!some) {
			at->tensor++;
			at->at = 0;
			continue;
		}
		rc = reads ? save_given_take(&save_given(s)[s->from[s->first[at->tensor]]], 0,
					     at->at, buf, some, &g->err)
			   : save_put(&g->put, at->tensor, buf, at->at, some);
		at->at += some;
		buf += some;
		n -= some;
	}
	if (rc < 0 && !reads)
		save_fail(s->save, rc, s->set.tensors[at->tensor].key, &g->err);
	return rc;
}

static int exchange(struct gathering *g, bool gets, uint64_t most)
{
	const struct dcpload_comm *comm = g->s->comm;
	int timeout = (int)g->s->config.timeout_ms;

	/* Without a way for bulk data all ranks get everything. */
	for (uint32_t r = 0; r < comm->ranks; r++)
		g->recv[r] = g->all + r * (comm->alltoallv ? g->one : most);
	if (!comm->alltoallv)
		return comm->allgather(comm->ctx, g->mine, most, g->all, timeout);
	for (uint32_t r = 0; r < comm->ranks; r++) {
		g->send[r] = g->mine;
		g->nsend[r] = g->s->gathers[r] ? g->n[comm->rank] : 0;
	}
	for (uint32_t r = 0; !gets && r < comm->ranks; r++)
		g->n[r] = 0;
	return comm->alltoallv(comm->ctx, g->send, g->nsend, g->recv, g->n, timeout);
}

/* A rank that fails goes on, so that the others do not wait for it: *@failed. */
static int round_of(struct gathering *g, int *failed)
{
	struct dcpsave *s = g->s;
	uint32_t rank = s->comm->rank, ranks = s->comm->ranks;
	bool gets = s->gathers[rank];
	uint64_t sum = 0, most = 0;
	int rc;

	for (uint32_t r = 0; r < ranks; r++) {
		g->n[r] = DCP_MIN(g->stream[r].left, g->one);
		g->stream[r].left -= g->n[r];
		sum += g->n[r];
		most = DCP_MAX(most, g->n[r]);
	}
	s->report.rounds++;
	s->report.grouped = DCP_MAX(s->report.grouped, sum);
	if (*failed == 0)
		*failed = pass(g, rank, &g->own, g->mine, g->n[rank], true);
	rc = exchange(g, gets, most);
	for (uint32_t r = 0; rc == 0 && gets && *failed == 0 && r < ranks; r++)
		*failed = pass(g, r, &g->stream[r], g->recv[r], g->n[r], false);
	return rc;
}

/* How much each rank sends; the most of them. */
static uint64_t measure(struct gathering *g)
{
	const struct dcpsave *s = g->s;
	uint64_t most = 0;

	for (size_t i = 0; i < s->set.ntensors; i++) {
		struct stream *of = &g->stream[s->sender[i]];

		of->left += size_of(s, i);
		most = DCP_MAX(most, of->left);
	}
	return most;
}

static int prepare(struct gathering *g, uint64_t *rounds)
{
	struct dcpsave *s = g->s;
	uint64_t ranks = s->comm->ranks, limit = s->config.max_grouped, most;
	int rc = 0;

	g->stream = calloc(ranks, sizeof(*g->stream));
	g->n = calloc(2 * ranks, sizeof(*g->n));
	g->recv = calloc(ranks, sizeof(*g->recv));
	g->send = calloc(ranks, sizeof(*g->send));
	if (!g->stream || !g->n || !g->recv || !g->send)
		return -ENOMEM;
	g->nsend = g->n + ranks;
	most = measure(g);
	g->one = DCP_MAX((limit && limit < MOST ? limit : MOST) / ranks, 1);
	*rounds = dcp_div_up(most, g->one);
	g->mine = calloc(1, g->one);
	g->all = malloc(g->one * ranks);
	if (!g->mine || !g->all)
		rc = -ENOMEM;
	return rc == 0 && s->save ? save_put_begin(&g->put, s) : rc;
}

int save_gather(struct dcpsave *s, struct dcpload_error *err)
{
	struct gathering g = { .s = s, .put.fd = -1 };
	uint64_t rounds = 0;
	int timeout = (int)s->config.timeout_ms, failed = 0;
	int rc = load_agree(s->comm, load_say(err, prepare(&g, &rounds)), err, timeout);

	for (uint64_t i = 0; rc == 0 && i < rounds; i++) {
		rc = round_of(&g, &failed);
		if (rc < 0)
			load_comm_say(s->comm, rc, err);
	}
	s->report.written += failed ? 0 : s->report.own;
	if (rc == 0)
		rc = load_agree(s->comm, load_fail_err(err, failed, &g.err), err, timeout);
	save_put_end(&g.put);
	free(g.stream);
	free(g.n);
	free(g.recv);
	free(g.send);
	free(g.mine);
	free(g.all);
	return rc;
}
