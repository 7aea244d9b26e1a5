/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the needs of one rank after the other, by the steps of the loader (tools/load/plan). It
 * works for every way of reading, and for tensors that share bytes. */
#include "core/model/job/job_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"

/* The needs of one rank. Descriptors of a kind are made once and reused for each of its tensors. */

struct job_described {
	struct job_described *next;
	uint32_t pattern;
	/* bytes of a tensor that only a view reads, because it must be decoded */
	uint64_t views;
	struct dcp_strided s;
};

struct describing {
	struct dcp_arena *arena;
	struct job_described **end; /* where the next descriptor is linked */
	bool swap, any, opaque;
};

static int describe_strided(void *ctx, const struct dcp_strided *s)
{
	struct describing *x = ctx;
	struct job_described *d;

	if (dcp_job_is_zeros(s->piece))
		return 0;
	x->opaque |= dcp_job_is_opaque(s->piece) || (x->any && x->swap != s->piece->swap);
	x->swap = s->piece->swap;
	x->any = true;
	if (x->opaque)
		return -ECANCELED;
	d = dcp_arena_calloc(x->arena, 1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	d->pattern = s->piece->file;
	d->s = *s;
	d->s.piece = NULL;
	*x->end = d;
	x->end = &d->next;
	return 0;
}

static int describe_kind(struct job_needs *x, const struct job_kind *k, uint32_t rank,
			 struct job_described **out, struct dcp_err *err)
{
	struct describing d = { .arena = &x->arena, .end = out };
	struct dcp_tiling tl;
	struct dcp_cut cut;
	uint64_t volume;
	int rc;

	*out = NULL;
	dcp_arena_reset(&x->scratch);
	rc = dcp_layout_cut_by_rule(x->job->opts.to, &k->to, rank, k->t.ndim, k->t.shape,
				    &x->scratch, &cut, err);
	if (rc <= 0 || k->t.npieces == 0 || !dcp_cut_volume(&cut, &volume) || !volume)
		return DCP_MIN(rc, 0);
	rc = dcp_tiling_init(&tl, &k->t, &x->scratch, err);
	if (rc == 0)
		rc = dcp_strided_emit(&tl, &cut, describe_strided, &d);
	if (!d.opaque)
		return rc;
	*out = dcp_arena_calloc(&x->arena, 1, sizeof(**out));
	if (!*out)
		return -ENOMEM;
	(*out)->views = volume * k->t.itemsize;
	return 0;
}

static int emit_needs(struct job_needs *x, const struct job_tensor *t)
{
	const struct job_kind *k = JOB_AT(x->job->kind, struct job_kind, t->kind);

	for (const struct job_described *d = x->of[t->kind]; d; d = d->next) {
		const struct job_item *item;
		struct dcp_chunk_need *need;

		x->views += d->views;
		if (d->views)
			continue;
		if (DCP_GROW(x->v, x->cap, x->n) < 0)
			return -ENOMEM;
		item = JOB_AT(x->job->item, struct job_item, t->item + d->pattern);
		need = &x->v[x->n++];
		*need = (struct dcp_chunk_need){ d->s, item->file, 1 };
		need->s.off += item->off;
		if (k->t.pieces[d->pattern].swap || k->casts)
			need->want = k->t.itemsize;
	}
	return 0;
}

void dcp_job_needs_init(struct job_needs *x, const struct dcp_job *job)
{
	*x = (struct job_needs){ .job = job };
	dcp_arena_init(&x->arena, job->opts.memory);
	dcp_arena_init(&x->scratch, job->opts.memory);
}

void dcp_job_needs_finish(struct job_needs *x)
{
	dcp_arena_finish(&x->scratch);
	dcp_arena_finish(&x->arena);
	free(x->v);
}

int dcp_job_needs(struct job_needs *x, uint32_t rank, struct dcp_err *err)
{
	const struct dcp_job *job = x->job;
	int rc = 0;

	x->n = 0;
	x->views = 0;
	if (rank >= dcp_layout_ranks(job->opts.to))
		return 0;
	dcp_arena_reset(&x->arena);
	x->of = dcp_arena_calloc(&x->arena, job->kind.n + 1, sizeof(struct job_described *));
	if (!x->of)
		rc = -ENOMEM;
	for (size_t i = 0; rc >= 0 && i < job->kind.n; i++)
		rc = describe_kind(x, JOB_AT(job->kind, struct job_kind, i), rank, &x->of[i],
				   err);
	for (uint64_t i = 0; rc >= 0 && i < job->tensor.n; i++)
		rc = emit_needs(x, JOB_AT(job->tensor, struct job_tensor, i));
	return rc == -ENOMEM ? dcp_job_no_memory(job, err) : DCP_MIN(rc, 0);
}

enum { ELEMENT = 16 /* bytes of the largest element */ };

/* Bytes [lo, hi) of a file, read with a stripe. */
struct part {
	uint64_t stripe, lo, hi;
	uint32_t file;
};

/* The sums; each is NULL if it is not wanted. */
struct sums {
	const struct dcp_job *job;
	struct dcp_job_flow *rank, *group;
	uint64_t *rows; /* from ranks [first, first + n) to each */
	uint32_t first, n;
	dcp_job_read_fn fn; /* called for reads of @reader; DCP_JOB_EACH: of any rank */
	void *ctx;
	uint32_t reader;
	struct job_needs needs;
	/* of DCP_JOB_ALL */
	const struct dcp_stripes *of;
	uint64_t *out, *in, *most_in; /* by stripe; by round, of the rank; by rank */
	struct job_vec *part;
	size_t sorted; /* number of merged parts */
};

/* Add @bytes that @from reads and @to needs. */
static void add_move(struct sums *x, uint32_t from, uint32_t to, uint64_t bytes)
{
	uint32_t group = x->job->opts.group;

	if (x->rows && from - x->first < x->n)
		x->rows[(size_t)(from - x->first) * x->job->ranks + to] += bytes;
	if (!x->rank)
		return;
	if (from == to)
		x->rank[to].keeps += bytes;
	else
		x->rank[to].receives += bytes;
	if (from != to && x->job->opts.exchange == DCP_JOB_ALL)
		x->rank[from].sends += bytes;
	if (from / group == to / group) {
		x->group[to / group].keeps += bytes;
	} else {
		x->group[to / group].receives += bytes;
		x->group[from / group].sends += bytes;
	}
}

static int add_bytes(void *ctx, const struct dcp_strided *s)
{
	*(uint64_t *)ctx += dcp_strided_bytes(s);
	return 0;
}

static uint64_t bytes_between(const struct dcp_chunk_need *need, uint64_t lo, uint64_t hi)
{
	uint64_t n = 0;

	dcp_strided_clip(&need->s, lo, hi, need->want, add_bytes, &n);
	return n;
}

/* ---- stripes of all ranks ---- */

static int by_place(const void *a, const void *b)
{
	const struct part *x = a, *y = b;

	return x->stripe != y->stripe ? DCP_CMP(x->stripe, y->stripe) : DCP_CMP(x->lo, y->lo);
}

static void merge_parts(struct sums *x)
{
	struct part *v = x->part->p;
	size_t n = 0;

	if (!x->part->n)
		return;
	DCP_SORT(v, x->part->n, by_place);
	for (size_t i = 1; i < x->part->n; i++) {
		if (v[i].stripe == v[n].stripe && v[i].lo <= v[n].hi)
			v[n].hi = DCP_MAX(v[n].hi, v[i].hi);
		else
			v[++n] = v[i];
	}
	x->part->n = x->sorted = n + 1;
}

static int add_part(struct sums *x, uint64_t stripe, uint32_t file, uint64_t lo, uint64_t n)
{
	if (x->part->n >= 2 * x->sorted + 4096)
		merge_parts(x);
	if (dcp_job_room((struct dcp_job *)(uintptr_t)x->job, x->part, 1, sizeof(struct part)) <
	    0)
		return -ENOMEM;
	*JOB_AT(*x->part, struct part, x->part->n++) =
		(struct part){ stripe, lo, lo + n, file };
	return 0;
}

struct packing {
	struct sums *x;
	uint64_t stripe;
	uint32_t file;
};

/* Runs that are far apart are read one by one. */
static int add_series(void *ctx, const struct dcp_chunk_series *s)
{
	const struct packing *p = ctx;
	bool far = s->step > DCP_STRIDED_NEAR;
	uint64_t n = far ? s->run : (s->count - 1) * s->step + s->run;
	int rc = 0;

	for (uint64_t i = 0; i < (far ? s->count : 1) && rc == 0; i++)
		rc = add_part(p->x, p->stripe, p->file, s->off + i * s->step, n);
	return rc;
}

static int add_packed(void *ctx, const struct dcp_strided *s)
{
	return dcp_chunk_pack(s, add_series, ctx);
}

static void send_stripe(struct sums *x, uint32_t rank, uint64_t stripe, uint64_t bytes)
{
	uint32_t owner = dcp_stripe_owner(x->of, stripe);

	add_move(x, owner, rank, bytes);
	if (owner == rank || !x->out)
		return;
	x->out[stripe] += bytes;
	x->in[stripe / x->of->ranks] += bytes;
	x->most_in[rank] = DCP_MAX(x->most_in[rank], x->in[stripe / x->of->ranks]);
}

static int send_ranges(struct sums *x, uint32_t rank)
{
	struct dcp_chunk_range *v = NULL;
	size_t n = 0;
	int rc = dcp_chunk_ranges(x->needs.v, x->needs.n, true, &v, &n);

	for (size_t i = 0; i < n && rc == 0; i++)
		for (uint64_t lo = v[i].lo, hi; lo < v[i].hi && rc == 0; lo = hi) {
			uint64_t stripe = dcp_stripe_at(x->of, v[i].file, lo), end;

			hi = DCP_MIN(dcp_stripe_start(x->of, v[i].file, stripe + 1), v[i].hi);
			end = x->job->converts ? DCP_MIN(hi + ELEMENT, v[i].hi) : hi;
			send_stripe(x, rank, stripe, end - lo);
			if (x->part)
				rc = add_part(x, stripe, v[i].file, lo, end - lo);
		}
	free(v);
	return rc;
}

static int send_packed(struct sums *x, uint32_t rank)
{
	uint64_t size = x->of->size;
	int rc = 0;

	for (size_t i = 0; i < x->needs.n && rc == 0; i++) {
		const struct dcp_chunk_need *need = &x->needs.v[i];
		uint64_t end = need->s.off + dcp_strided_extent(&need->s);
		struct packing p = { x, 0, need->file };

		if (!dcp_chunk_is_packed(&need->s))
			continue;
		for (uint64_t lo = need->s.off - need->s.off % size; lo < end && rc == 0;
		     lo += size) {
			uint64_t bytes = bytes_between(need, lo, lo + size);

			p.stripe = dcp_stripe_at(x->of, need->file, lo);
			if (bytes)
				send_stripe(x, rank, p.stripe, bytes);
			if (bytes && x->part)
				rc = dcp_strided_clip(&need->s, lo, lo + size, need->want,
						      add_packed, &p);
		}
	}
	return rc;
}

static int send_all(struct sums *x, struct dcp_err *err)
{
	uint64_t rounds = dcp_stripe_rounds(x->of);
	int rc = 0;

	for (uint32_t r = 0; r < x->job->ranks && rc == 0; r++) {
		if (x->in)
			memset(x->in, 0, (rounds + 1) * sizeof(*x->in));
		rc = dcp_job_needs(&x->needs, r, err);
		if (rc == 0)
			rc = send_ranges(x, r);
		if (rc == 0)
			rc = send_packed(x, r);
	}
	return rc;
}

/* Deal stripes of @size bytes; *@most: the largest number of message bytes of a rank in a round. */
static int deal_stripes(struct sums *x, struct dcp_job *job, uint64_t size, uint64_t *most,
			struct dcp_err *err)
{
	uint64_t n, *memory;
	int rc;

	free(job->of.base);
	job->of = (struct dcp_stripes){ .size = size, .ranks = job->ranks };
	if (dcp_stripes_number(&job->of, job->opts.files, job->opts.nfiles) < 0)
		return -ENOMEM;
	n = job->of.base[job->of.nfiles];
	memory = calloc(n + dcp_stripe_rounds(&job->of) + 2 + job->ranks, sizeof(*memory));
	if (!memory)
		return -ENOMEM;
	x->of = &job->of;
	x->out = memory;
	x->most_in = x->out + n + 1;
	x->in = x->most_in + job->ranks;
	job->part.n = x->sorted = 0;
	for (uint32_t r = 0; r < job->ranks; r++)
		job->rank[r].keeps = job->rank[r].sends = job->rank[r].receives = 0;
	for (uint32_t g = 0; g < job->groups; g++)
		job->group[g].keeps = job->group[g].sends = job->group[g].receives = 0;
	rc = send_all(x, err);
	*most = 0;
	for (uint64_t s = 0; s < n; s++) { /* from here on @out is by rank */
		uint64_t *sum = &x->out[s % job->ranks];

		*sum = DCP_MAX(*sum, x->out[s]);
	}
	for (uint32_t r = 0; r < job->ranks; r++)
		*most = DCP_MAX(*most, x->most_in[r] + (r < n ? x->out[r] : 0));
	merge_parts(x);
	free(memory);
	return rc;
}

static int deal_all(struct sums *x, struct dcp_job *job, struct dcp_err *err)
{
	uint64_t slack = job->converts ? DCP_CHUNK_BLOCK : 0, next, most = 0;
	int rc = 0;

	x->part = &job->part;
	while (rc == 0 && (next = dcp_stripe_size(job->staging, job->ranks, slack, job->of.size,
						  most)) != job->of.size)
		rc = deal_stripes(x, job, next, &most, err);
	return rc;
}

static int read_stripes(struct sums *x)
{
	const struct dcp_job *job = x->job;
	const struct part *v = job->part.p;
	int rc = 0;

	for (size_t i = 0, next; i < job->part.n && rc >= 0; i = next) {
		uint32_t owner = dcp_stripe_owner(&job->of, v[i].stripe);
		uint64_t lo = v[i].lo - v[i].lo % DCP_CHUNK_BLOCK, hi = 0, to;

		for (next = i; next < job->part.n && v[next].stripe == v[i].stripe; next++) {
			uint64_t from = v[next].lo - v[next].lo % DCP_CHUNK_BLOCK;

			if (hi && from > hi + DCP_STRIDED_NEAR)
				break;
			to = dcp_div_up(v[next].hi, DCP_CHUNK_BLOCK) * DCP_CHUNK_BLOCK;
			hi = DCP_MAX(hi, to);
		}
		hi = DCP_MIN(hi, job->opts.files[v[i].file].size);
		if (x->reader == DCP_JOB_EACH || x->reader == owner)
			rc = x->fn(x->ctx, owner, v[i].file, lo, hi - lo);
	}
	return rc;
}

/* ---- chunks of a group ---- */

struct group {
	uint32_t first, n;
	const struct dcp_chunk_range **of;
	size_t *nof;
	struct dcp_chunks *chunks;
};

/* Find which member reads which of the needs of @rank. */
static void take_needs(struct sums *x, const struct group *g, uint32_t rank,
		       const uint32_t *owner)
{
	const struct dcp_chunks *c = g->chunks;

	for (size_t i = 0; i < x->needs.n; i++) {
		const struct dcp_chunk_need *need = &x->needs.v[i];
		uint64_t end = need->s.off + dcp_strided_extent(&need->s);
		size_t k;

		DCP_BISECT(k, 0, c->nstretch,
			   c->stretch[k].file < need->file ||
				   (c->stretch[k].file == need->file &&
				    c->stretch[k].hi <= need->s.off));
		for (; k < c->nstretch && c->stretch[k].file == need->file &&
		       c->stretch[k].lo < end;
		     k++)
			add_move(x, g->first + owner[k], rank,
				 bytes_between(need, c->stretch[k].lo, c->stretch[k].hi));
	}
}

static int take_all(struct sums *x, const struct group *g, struct dcp_err *err)
{
	const struct dcp_chunks *c = g->chunks;
	uint32_t *owner = calloc(c->nstretch + 1, sizeof(*owner));
	int rc = owner ? 0 : -ENOMEM;

	for (size_t k = 0; k < c->n && rc >= 0; k++)
		for (size_t i = c->first[k]; i < c->first[k + 1] && rc >= 0; i++) {
			const struct dcp_chunk_stretch *s = &c->stretch[i];
			uint64_t size = x->job->opts.files[s->file].size;

			owner[i] = (uint32_t)(k % g->n);
			if (x->fn &&
			    (x->reader == DCP_JOB_EACH || x->reader == g->first + owner[i]))
				rc = x->fn(x->ctx, g->first + owner[i], s->file, s->lo,
					   DCP_MIN((uint64_t)s->n, size - s->lo));
		}
	for (uint32_t m = 0; m < g->n && rc >= 0 && !x->fn; m++) {
		rc = dcp_job_needs(&x->needs, g->first + m, err);
		if (rc == 0)
			take_needs(x, g, g->first + m, owner);
	}
	free(owner);
	return rc;
}

static int add_group(struct sums *x, uint32_t first, uint32_t n, struct dcp_err *err)
{
	bool device = x->job->opts.device;
	uint64_t slot = dcp_slot_size(x->job->staging, device ? DCP_DEVICE_SLOTS : DCP_SLOTS,
				      device ? DCP_DEVICE_SLOT_MOST : DCP_SLOT_MOST);
	struct group g = { .first = first, .n = n };
	int rc = 0;

	g.of = calloc(n, sizeof(*g.of));
	g.nof = calloc(n, sizeof(*g.nof));
	if (!g.of || !g.nof)
		rc = -ENOMEM;
	for (uint32_t m = 0; m < n && rc == 0; m++) {
		struct dcp_chunk_range *v = NULL;

		rc = dcp_job_needs(&x->needs, first + m, err);
		if (rc == 0)
			rc = dcp_chunk_ranges(x->needs.v, x->needs.n, false, &v, &g.nof[m]);
		g.of[m] = v;
	}
	if (rc == 0)
		rc = dcp_chunks_create(g.of, g.nof, n, slot, x->job->converts, &g.chunks);
	if (rc == 0)
		rc = take_all(x, &g, err);
	dcp_chunks_free(g.chunks);
	for (uint32_t m = 0; m < n && g.of; m++)
		free((void *)(uintptr_t)g.of[m]);
	free(g.of);
	free(g.nof);
	return rc;
}

/* ---- each rank by itself, from the page cache ---- */

struct running {
	struct sums *x;
	uint32_t rank, file;
};

static int read_series(void *ctx, const struct dcp_chunk_series *s)
{
	const struct running *r = ctx;
	int rc = 0;

	for (uint64_t i = 0; i < s->count && rc >= 0; i++)
		rc = r->x->fn(r->x->ctx, r->rank, r->file, s->off + i * s->step, s->run);
	return rc;
}

static int by_file(const void *a, const void *b)
{
	const struct dcp_chunk_need *x = a, *y = b;

	return x->file != y->file ? DCP_CMP(x->file, y->file) : DCP_CMP(x->s.off, y->s.off);
}

static int add_alone(struct sums *x, uint32_t rank, struct dcp_err *err)
{
	int rc = dcp_job_needs(&x->needs, rank, err);

	if (x->needs.n)
		DCP_SORT(x->needs.v, x->needs.n, by_file);
	for (size_t i = 0; i < x->needs.n && rc >= 0; i++) {
		struct running r = { x, rank, x->needs.v[i].file };

		add_move(x, rank, rank, dcp_strided_bytes(&x->needs.v[i].s));
		if (x->fn)
			rc = dcp_chunk_pack(&x->needs.v[i].s, read_series, &r);
	}
	return rc;
}

/* ---- any of them ---- */

static bool is_alone(const struct dcp_job *job)
{
	return job->opts.exchange == DCP_JOB_NEVER && !job->opts.direct && !job->opts.device;
}

/* Add all groups, or if @reader is a rank, only its group. */
static int add_groups(struct sums *x, struct dcp_err *err)
{
	const struct dcp_job *job = x->job;
	bool alone = job->opts.exchange == DCP_JOB_NEVER;
	uint32_t size = alone ? 1 : job->opts.group, n;
	int rc = 0;

	for (uint32_t first = 0; first < job->ranks && rc >= 0; first += n) {
		n = DCP_MIN(size, job->ranks - first);
		if (x->reader != DCP_JOB_EACH && x->reader - first >= n)
			continue;
		rc = is_alone(job) ? add_alone(x, first, err) : add_group(x, first, n, err);
	}
	return rc;
}

static void begin_sums(struct sums *x, const struct dcp_job *job)
{
	*x = (struct sums){ .job = job, .reader = DCP_JOB_EACH, .of = &job->of };
	dcp_job_needs_init(&x->needs, job);
}

static int each_flows(struct dcp_job *job, struct dcp_err *err)
{
	struct sums x;
	int rc = 0;

	for (uint32_t r = 0; r < job->ranks && is_alone(job); r++) {
		struct dcp_job_flow *f = &job->rank[r];

		f->keeps = f->needs - f->reads; /* so far @reads counts reads through views */
		f->reads = f->needs;
		job->group[r / job->opts.group].keeps += f->keeps;
	}
	if (is_alone(job))
		return 0;
	begin_sums(&x, job);
	x.rank = job->rank;
	x.group = job->group;
	rc = job->opts.exchange == DCP_JOB_ALL ? deal_all(&x, job, err) : add_groups(&x, err);
	dcp_job_needs_finish(&x.needs);
	return rc;
}

static int each_sends(const struct dcp_job *job, uint32_t first, uint32_t n, uint64_t *rows,
		      struct dcp_err *err)
{
	struct sums x;
	int rc;

	begin_sums(&x, job);
	x.rows = rows;
	x.first = first;
	x.n = n;
	rc = job->opts.exchange == DCP_JOB_ALL ? send_all(&x, err) : add_groups(&x, err);
	dcp_job_needs_finish(&x.needs);
	return rc;
}

static int each_receives(const struct dcp_job *job, uint32_t rank, uint64_t *from,
			 struct dcp_err *err)
{
	uint32_t most = dcp_job_rows(job->ranks);
	uint64_t *rows = calloc((size_t)most * job->ranks, sizeof(*rows));
	int rc = rows ? 0 : -ENOMEM;

	for (uint32_t first = 0, n; first < job->ranks && rc == 0; first += n) {
		n = DCP_MIN(job->ranks - first, most);
		memset(rows, 0, (size_t)n * job->ranks * sizeof(*rows));
		rc = each_sends(job, first, n, rows, err);
		for (uint32_t i = 0; i < n && rc == 0; i++)
			from[first + i] = rows[(size_t)i * job->ranks + rank];
	}
	free(rows);
	return rc;
}

static int each_reads(const struct dcp_job *job, uint32_t rank, dcp_job_read_fn fn, void *ctx)
{
	struct sums x;
	int rc;

	begin_sums(&x, job);
	x.fn = fn;
	x.ctx = ctx;
	x.reader = rank;
	rc = job->opts.exchange == DCP_JOB_ALL ? read_stripes(&x) : add_groups(&x, NULL);
	dcp_job_needs_finish(&x.needs);
	return rc;
}

const struct job_way dcp_job_each = { each_flows, each_sends, each_receives, each_reads };
