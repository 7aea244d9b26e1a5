/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This rank's share of the data. save_data() writes parts that this rank holds alone. If the format
 * has whole tensors, each rank that holds a region of a tensor writes it at its offsets.
 */
#include "tools/save/ranks/ranks_int.h"

#include <errno.h>
#include <stdlib.h>

#include "core/base/base.h"
#include "core/base/hash.h"
#include "tools/save/save_int.h"

static struct save_given *given_of(const struct dcpsave *s, size_t tensor, size_t part)
{
	size_t number = s->from[s->first[tensor] + part];

	return number == SIZE_MAX ? NULL : &save_given(s)[number];
}

static bool is_due(const struct dcpsave *s, const struct save_given *g)
{
	return s->early ? !g->copy : g->copy || !(s->config.flags & DCPSAVE_ASYNC);
}

/* ---- parts ---- */

static bool has_part(void *ctx, size_t tensor, size_t part)
{
	const struct dcpsave *s = ctx;
	const struct save_given *g = s->gathers ? NULL : given_of(s, tensor, part);

	return g && is_due(s, g);
}

static int take_bytes(void *ctx, unsigned job, size_t tensor, size_t part, uint64_t off,
		      void *buf, size_t n, struct dcp_err *err)
{
	struct dcpsave *s = ctx;

	if (save_step_is_stopped(s))
		return dcp_fail(err, -ECANCELED, "%s: stopped, another rank failed", s->path);
	return save_given_take(given_of(s, tensor, part), job, off, buf, n, err);
}

/* ---- regions at their places ---- */

/* The place of the next byte of a region: runs of @run bytes that are consecutive in the tensor. */
struct places {
	const struct dcp_write_tensor *t;
	const struct save_given *g;
	uint64_t run;
	uint32_t k; /* dimensions that count runs */
};

static struct places places_of(const struct dcp_write_tensor *t, const struct save_given *g)
{
	struct places p = { .t = t, .g = g, .run = t->itemsize, .k = t->ndim };

	while (p.k && (p.k == t->ndim || g->region.len[p.k] == t->shape[p.k]))
		p.run *= g->region.len[--p.k];
	return p;
}

/* The offset in the tensor of byte @off of the region, and the number of consecutive bytes from
 * there. */
static uint64_t place_of(const struct places *p, uint64_t off, uint64_t *n)
{
	const uint64_t *len = p->g->region.len;
	uint64_t q = off / p->run, step = p->t->itemsize, at = 0;

	*n = p->run - off % p->run;
	for (uint32_t d = p->t->ndim; d--; step *= p->t->shape[d]) {
		uint64_t i = p->g->lo[d];

		if (d < p->k) {
			i += q % len[d];
			q /= len[d];
		}
		at += i * step;
	}
	return at + off % p->run;
}

/* Call save_put_end() afterwards, also after -ENOMEM. */
static int save_put_begin(struct save_putting *p, const struct dcpsave *s)
{
	const struct save_run *r = save_runs(s->save);
	size_t n = s->set.ntensors;

	*p = (struct save_putting){ .s = s, .fd = -1 };
	p->first = calloc(n + 1, sizeof(*p->first));
	p->next = calloc(save_nruns(p->s->save) + 1, sizeof(*p->next));
	if (!p->first || !p->next)
		return -ENOMEM;
	for (size_t i = save_nruns(p->s->save); i--;)
		if (r[i].tensor < n) {
			p->next[i] = p->first[r[i].tensor];
			p->first[r[i].tensor] = i + 1;
		}
	return 0;
}

/* Write bytes [at, at + n) of a tensor to the files of the format. */
static int save_put(struct save_putting *p, size_t tensor, const char *from, uint64_t at,
		    uint64_t n)
{
	const struct save *save = p->s->save;
	int rc = 0;

	for (size_t i = p->first[tensor]; rc == 0 && i; i = p->next[i - 1]) {
		const struct save_run *r = &save_runs(save)[i - 1];
		uint64_t lo = DCP_MAX(at, r->from), hi = DCP_MIN(at + n, r->from + r->raw);

		if (lo >= hi)
			continue;
		if (p->fd < 0 || p->file != r->file) {
			dcp_close_fd(&p->fd);
			p->fd = save_open(save, r->file);
			p->file = r->file;
		}
		rc = p->fd < 0 ? p->fd
			       : save_pwrite(p->fd, from + (lo - at), hi - lo,
					     r->off + (lo - r->from));
	}
	return rc;
}

static void save_put_end(struct save_putting *p)
{
	dcp_close_fd(&p->fd);
	free(p->first);
	free(p->next);
}

static int put_region(struct save_putting *p, const struct save_placed *of, char *buf,
		      struct dcp_err *err)
{
	const struct save_given *g = &save_given(p->s)[of->given];
	const struct places places = places_of(&p->s->set.tensors[of->tensor], g);
	uint64_t total = save_region_bytes(&g->region), n, run;
	int rc = 0;

	for (uint64_t off = 0; rc == 0 && off < total; off += n) {
		n = DCP_MIN(total - off, (uint64_t)SAVE_PIECE);
		rc = save_step_is_stopped(p->s) ? -ECANCELED
						: save_given_take(g, 0, off, buf, n, err);
		for (uint64_t at = 0; rc == 0 && at < n; at += run) {
			uint64_t to = place_of(&places, off + at, &run);

			run = DCP_MIN(run, n - at);
			rc = save_put(p, of->tensor, buf + at, to, run);
		}
	}
	return rc;
}

static int put_placed(struct dcpsave *s, struct dcp_err *err)
{
	const struct save_placed *of = DCP_ITEMS(s->placed, struct save_placed);
	size_t n = DCP_NITEMS(s->placed, struct save_placed);
	dcp_auto_free char *buf = malloc(SAVE_PIECE);
	struct save_putting p;
	int rc = n ? save_put_begin(&p, s) : 0;

	if (n == 0)
		return 0;
	if (!buf)
		rc = -ENOMEM;
	for (size_t i = 0; rc == 0 && i < n; i++) {
		const struct save_given *g = &save_given(s)[of[i].given];

		if (!is_due(s, g))
			continue;
		rc = put_region(&p, &of[i], buf, err);
		if (rc < 0 && rc != -ECANCELED && !err->msg[0])
			save_fail(s->save, rc, s->set.tensors[of[i].tensor].key, err);
		s->report.written += rc == 0 ? save_region_bytes(&g->region) : 0;
	}
	save_put_end(&p);
	return rc;
}

int save_shares(struct dcpsave *s, struct dcp_err *err)
{
	const struct save_source source = { .read = take_bytes, .has = has_part, .ctx = s };
	int rc = s->gathers ? 0 : put_placed(s, err);

	if (!s->save)
		return 0;
	return rc == 0 ? save_data(s->save, &source, err) : rc;
}

int save_check_placed(struct dcpsave *s, struct dcp_err *err)
{
	struct save *save = s->save;
	const struct save_run *run = save ? save_runs(save) : NULL;
	dcp_auto_free char *buf = malloc(SAVE_PIECE);
	int rc = buf ? 0 : -ENOMEM;

	if (!save)
		return 0;
	for (size_t i = 0; rc == 0 && i < save_nruns(save); i++, run++) {
		dcp_auto_fd int fd = -1;

		if (run->tensor >= s->set.ntensors || !s->is_placed[run->tensor])
			continue;
		for (uint64_t off = 0, k = run->piece; rc == 0 && off < run->n;
		     off += SAVE_PIECE, k++) {
			uint64_t n = DCP_MIN(run->n - off, (uint64_t)SAVE_PIECE);

			if (!s->gathers && k % s->comm->ranks != s->comm->rank)
				continue;
			if (run->crc32 && fd < 0)
				fd = save_open(save, run->file);
			if (run->crc32)
				rc = fd < 0 ? fd : save_pread(fd, buf, n, run->off + off);
			if (run->crc32 && rc == 0)
				save->sums[k].crc32 = dcp_crc32(0, buf, n);
			save->sums[k].done = 1;
		}
		if (rc < 0)
			return save_fail(save, rc, save_files(save)[run->file].name, err);
	}
	return rc;
}

/* ---- copies ---- */

int save_copy_shares(struct dcpsave *s, struct dcp_err *err)
{
	uint64_t left = s->config.staging ? s->config.staging : UINT64_MAX;
	struct save_given *g = save_given(s);
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < save_ngiven(s); i++, g++) {
		uint64_t n = save_region_bytes(&g->region);

		if (!g->own || n > left)
			continue;
		g->copy = malloc(DCP_MAX(n, 1));
		/* data without a copy is written before the program goes on */
		if (!g->copy)
			continue;
		rc = save_given_take(g, 0, 0, g->copy, n, err);
		g->region.base = g->copy;
		g->region.stride = NULL;
		g->read = NULL;
		g->device = NULL;
		s->report.copied += n;
		left -= n;
	}
	return rc;
}

/*
 * Sends all data to the ranks that write it, in rounds of bounded size. Each rank sends its tensors
 * one after the other as one stream of bytes, a piece in each round, and the ranks that write put
 * the pieces at their offsets. So a file of any length is made in the memory of one round.
 */

#define MOST ((uint64_t)32 << 20) /* bytes of a round, of all ranks */

/* Position in the stream of a rank. */
struct stream {
	size_t tensor;
	uint64_t at;   /* in the tensor */
	uint64_t left; /* in the stream */
};

struct gathering {
	struct dcpsave *s;
	uint64_t one;          /* limit of the bytes that a rank sends in a round */
	struct stream *stream; /* by rank */
	struct stream own;     /* reading position of this rank */
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

/* The next @n bytes of the stream of a rank: read into @buf, or write from @buf. */
static int pass_bytes(struct gathering *g, uint32_t rank, struct stream *at, char *buf,
		      uint64_t n, bool reads)
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

static int exchange_round(struct gathering *g, bool gets, uint64_t most)
{
	const struct dcpload_comm *comm = g->s->comm;
	int timeout = (int)g->s->config.timeout_ms;

	/* Without alltoallv() all ranks get everything. */
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

/* A rank that fails sets *@failed and goes on, so that the others do not wait for it. */
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
		*failed = pass_bytes(g, rank, &g->own, g->mine, g->n[rank], true);
	rc = exchange_round(g, gets, most);
	for (uint32_t r = 0; rc == 0 && gets && *failed == 0 && r < ranks; r++)
		*failed = pass_bytes(g, r, &g->stream[r], g->recv[r], g->n[r], false);
	return rc;
}

/* Compute how many bytes each rank sends; returns the largest number. */
static uint64_t measure_sends(struct gathering *g)
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

static int prepare_rounds(struct gathering *g, uint64_t *rounds)
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
	most = measure_sends(g);
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
	int rc = load_agree(s->comm, load_say(err, prepare_rounds(&g, &rounds)), err, timeout);

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
