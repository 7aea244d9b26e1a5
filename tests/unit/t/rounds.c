/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/rounds.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/job/chunk.h"
#include "core/model/job/job_int.h"
#include "tools/load/load.h"

/* Of one size of stripes. */
struct trying {
	struct t_rounds *r;
	uint64_t *base; /* first stripe of each file, and how many there are */
	uint64_t *out;  /* bytes that are sent of each stripe */
	uint64_t *in;   /* bytes that the rank receives in each round */
	uint64_t *most; /* of each rank, received in one */
	uint32_t *to;   /* of each stripe, the last rank that gets a message; counted from 1 */
};

/* @n bytes of a stripe go to @rank. */
static void send_stripe(struct trying *t, uint64_t stripe, uint32_t rank, uint64_t n)
{
	struct t_rounds *r = t->r;
	uint32_t owner = (uint32_t)(stripe % r->ranks);
	uint64_t round = stripe / r->ranks;
	bool first = t->to[stripe] != rank + 1;

	if (owner == rank)
		return;
	if (owner / r->node != rank / r->node) {
		r->far_messages += first;
		r->far_bytes += n;
	}
	if (first) {
		r->messages++;
		r->of[owner].messages_out++;
		r->of[rank].messages_in++;
	}
	t->to[stripe] = rank + 1;
	r->bytes += n;
	r->of[owner].bytes_out += n;
	r->of[rank].bytes_in += n;
	t->out[stripe] += n;
	t->in[round] += n;
	t->most[rank] = DCP_MAX(t->most[rank], t->in[round]);
}

static int add_bytes(void *ctx, const struct dcp_strided *s)
{
	*(uint64_t *)ctx += dcp_strided_bytes(s);
	return 0;
}

/* Of runs that lie apart, those bytes alone. */
static void add_packed(struct trying *t, uint32_t rank, const struct job_needs *all)
{
	for (size_t i = 0; i < all->n; i++) {
		const struct dcp_strided *s = &all->v[i].s;
		uint64_t end = s->off + dcp_strided_extent(s), stripe = t->r->stripe;

		for (uint64_t k = s->off / stripe; dcp_chunk_is_packed(s) && k * stripe < end;
		     k++) {
			uint64_t n = 0;

			dcp_strided_clip(s, k * stripe, (k + 1) * stripe, 1, add_bytes, &n);
			if (n)
				send_stripe(t, t->base[all->v[i].file] + k, rank, n);
		}
	}
}

static int add_rank(struct trying *t, const struct dcp_job *job, uint32_t rank,
		    struct job_needs *all)
{
	struct dcp_chunk_range *v = NULL;
	size_t n = 0;
	int rc;

	rc = dcp_job_needs(all, rank, NULL);
	if (rc == 0)
		rc = dcp_chunk_ranges(all->v, all->n, true, &v, &n);
	memset(t->in, 0, (t->r->rounds + 1) * sizeof(*t->in));
	for (size_t i = 0; i < n && rc == 0; i++)
		for (uint64_t lo = v[i].lo, hi; lo < v[i].hi; lo = hi) {
			uint64_t number = lo / t->r->stripe;

			hi = DCP_MIN((number + 1) * t->r->stripe, v[i].hi);
			send_stripe(t, t->base[v[i].file] + number, rank, hi - lo);
		}
	free(v);
	if (rc == 0)
		add_packed(t, rank, all);
	return rc;
}

/* Once, with r->stripe. */
static int count_rounds(struct t_rounds *r, const struct dcp_job *job,
			const struct dcp_file_id *files, size_t nfiles, struct job_needs *all)
{
	struct trying t = { .r = r, .base = calloc(nfiles + 1, sizeof(*t.base)) };
	uint64_t n = 0;
	int rc = -ENOMEM;

	for (size_t i = 0; t.base && i < nfiles; i++) {
		t.base[i] = n;
		n += (files[i].size + r->stripe - 1) / r->stripe;
	}
	r->tries++;
	r->rounds = (n + r->ranks - 1) / r->ranks;
	r->messages = r->bytes = r->far_messages = r->far_bytes = r->most = 0;
	memset(r->of, 0, r->ranks * sizeof(*r->of));
	t.out = calloc(n + 1, sizeof(*t.out));
	t.in = calloc(r->rounds + 1, sizeof(*t.in));
	t.most = calloc(r->ranks, sizeof(*t.most));
	t.to = calloc(n + 1, sizeof(*t.to));
	if (t.base && t.out && t.in && t.most && t.to)
		rc = 0;
	for (uint32_t rank = 0; rank < r->ranks && rc == 0; rank++)
		rc = add_rank(&t, job, rank, all);
	for (uint32_t rank = 0; rank < r->ranks && rc == 0; rank++) {
		uint64_t most = 0;

		for (uint64_t s = rank; s < n; s += r->ranks)
			most = DCP_MAX(most, t.out[s]);
		r->most = DCP_MAX(r->most, most + t.most[rank]);
	}
	free(t.base);
	free(t.out);
	free(t.in);
	free(t.most);
	free(t.to);
	return rc;
}

int t_rounds_predict(struct t_rounds *r, const struct dcp_job *job,
		     const struct dcp_file_id *files, size_t nfiles)
{
	struct job_needs all;
	uint64_t next = 0;
	int rc = 0;

	dcp_job_needs_init(&all, job);
	r->tries = r->stripe = r->most = 0;
	r->node = DCP_MAX(r->node, 1u);
	r->of = calloc(r->ranks, sizeof(*r->of));
	if (!r->of)
		return -ENOMEM;
	while (rc == 0 &&
	       (next = dcp_stripe_size(r->staging, r->ranks, 0, next, r->most)) != r->stripe) {
		r->stripe = next;
		rc = count_rounds(r, job, files, nfiles, &all);
	}
	dcp_job_needs_finish(&all);
	return rc;
}

void t_rounds_free(struct t_rounds *r)
{
	free(r->of);
}
