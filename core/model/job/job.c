/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/job/job_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/hash.h"
#include "core/base/jsonw.h"

/* ---- a job ---- */

int dcp_job_create(const struct dcp_job_opts *opts, struct dcp_job **out, struct dcp_err *err)
{
	struct dcp_job *job = calloc(1, sizeof(*job));

	if (!job)
		return dcp_fail(err, -ENOMEM, "out of memory");
	job->opts = *opts;
	job->opts.group = opts->group ? opts->group : 1;
	job->opts.staging = opts->staging ? opts->staging : DCP_STRIPE_STAGING;
	job->opts.memory = opts->memory ? opts->memory : DCP_JOB_MEMORY;
	job->ranks = dcp_layout_ranks(opts->to);
	if (opts->from)
		job->ranks = DCP_MAX(job->ranks, dcp_layout_ranks(opts->from));
	job->groups = (job->ranks + job->opts.group - 1) / job->opts.group;
	dcp_arena_init(&job->arena, job->opts.memory / 2);
	*out = job;
	return 0;
}

void dcp_job_free(struct dcp_job *job)
{
	if (!job)
		return;
	for (size_t i = 0; i < job->kind.n; i++) {
		const struct job_kind *k = JOB_AT(job->kind, struct job_kind, i);

		for (size_t p = 0; k->runs && p < k->t.npieces; p++)
			free(k->runs[p].v);
		free(k->runs);
	}
	free(job->sign.p);
	free(job->kind.p);
	free(job->slot.p);
	free(job->owner_of_pattern.p);
	free(job->tensor.p);
	free(job->item.p);
	free(job->copy.p);
	free(job->order);
	free(job->extent.p);
	free(job->part.p);
	free(job->of.base);
	free(job->rank);
	free(job->group);
	dcp_arena_finish(&job->arena);
	free(job);
}

/* ---- the end ---- */

int dcp_job_finish(struct dcp_job *job, struct dcp_err *err)
{
	uint64_t id[8] = { dcp_layout_hash(job->opts.to),
			   job->opts.from ? dcp_layout_hash(job->opts.from) : 0,
			   job->emitted,
			   job->opts.exchange,
			   job->opts.exchange == DCP_JOB_NODE ? job->opts.group : 0,
			   job->opts.direct,
			   0,
			   job->opts.device | (uint64_t)job->opts.dtype << 8 };
	int rc = dcp_job_find_wanted(job, err);

	if (rc == 0 && !job->opts.from && dcp_job_choose(job) < 0)
		rc = dcp_job_no_memory(job, err);
	if (rc == 0 && !job->opts.from)
		rc = dcp_job_find_union(job, err);
	if (rc == 0 && !job->opts.from)
		rc = dcp_job_find_flows(job, err);
	id[6] = job->of.size;
	job->digest = dcp_hash64(id, sizeof(id));
	job->finished = rc == 0;
	return rc;
}

uint64_t dcp_job_digest(const struct dcp_job *job)
{
	return job->digest;
}

uint32_t dcp_job_groups(const struct dcp_job *job)
{
	return job->groups;
}

void dcp_job_sum(const struct dcp_job *job, struct dcp_job_sum *out)
{
	*out = (struct dcp_job_sum){ .ranks = job->ranks,
				     .tensors = job->tensor.n,
				     .kinds = job->kind.n,
				     .unique = job->unique,
				     .extents = job->extent.n,
				     .stripe = job->of.size };
}

/* The table of bytes that each rank sends to each rank. */

struct rows {
	const struct dcp_job *job;
	uint32_t first, n, to; /* of these ranks, to this one (JOB_NONE: to each) */
	uint64_t *v;
};

static void row_move(void *ctx, const struct job_move *m)
{
	struct rows *rows = ctx;

	if (m->from - rows->first < rows->n)
		rows->v[(size_t)(m->from - rows->first) * rows->job->ranks + m->to] += m->bytes;
}

int dcp_job_sends(const struct dcp_job *job, uint32_t first, uint32_t n, uint64_t *rows,
		  struct dcp_err *err)
{
	struct rows r = { .job = job, .first = first, .n = n, .v = rows };

	memset(rows, 0, (size_t)n * job->ranks * sizeof(*rows));
	return job->opts.from ? dcp_job_moves(job, row_move, &r, err)
			      : dcp_job_way(job)->sends(job, first, n, rows, err);
}

static void column_move(void *ctx, const struct job_move *m)
{
	const struct rows *c = ctx;

	if (m->to == c->to)
		c->v[m->from] += m->bytes;
}

int dcp_job_receives(const struct dcp_job *job, uint32_t rank, uint64_t *from,
		     struct dcp_err *err)
{
	struct rows c = { .to = rank, .v = from };

	memset(from, 0, job->ranks * sizeof(*from));
	return job->opts.from ? dcp_job_moves(job, column_move, &c, err)
			      : dcp_job_way(job)->receives(job, rank, from, err);
}

int dcp_job_reads(const struct dcp_job *job, uint32_t rank, dcp_job_read_fn fn, void *ctx)
{
	int rc = job->opts.from ? 0 : dcp_job_way(job)->reads(job, rank, fn, ctx);

	return DCP_MIN(rc, 0);
}

static void put_sum(const struct dcp_job *job, struct dcp_jsonw *w)
{
	static const char *const ways[] = { "all", "node", "never" };
	struct dcp_job_sum sum;
	char hex[24];

	dcp_job_sum(job, &sum);
	snprintf(hex, sizeof(hex), "%016llx", (unsigned long long)dcp_job_digest(job));
	dcp_jsonw_put_str(w, "digest", hex);
	dcp_jsonw_put_u64(w, "group", job->opts.group);
	dcp_jsonw_put_str(w, "way", ways[job->opts.exchange]);
	dcp_jsonw_put_u64(w, "stripe", sum.stripe);
	dcp_jsonw_put_u64(w, "tensors", sum.tensors);
	dcp_jsonw_put_u64(w, "kinds", sum.kinds);
	dcp_jsonw_put_u64(w, "unique", sum.unique);
	dcp_jsonw_put_u64(w, "extents", sum.extents);
}

/* Write every file of the table, so that the plan can use their numbers. */
static int put_files(const struct dcp_job *job, struct dcp_jsonw *w)
{
	dcp_auto_free uint64_t *read = calloc(job->opts.nfiles + 1, sizeof(*read));
	const struct job_extent *e = job->extent.p;

	if (!read)
		return -ENOMEM;
	for (size_t i = 0; i < job->extent.n; i++)
		read[e[i].file] += e[i].n;
	dcp_jsonw_put_array(w, "files");
	for (size_t i = 0; i < job->opts.nfiles; i++) {
		dcp_jsonw_object(w);
		dcp_jsonw_put_str(w, "file", job->opts.files[i].name);
		dcp_jsonw_put_u64(w, "size", dcp_job_file_size(job, (uint32_t)i));
		dcp_jsonw_put_u64(w, "read", read[i]);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
	return 0;
}

static void put_flow(struct dcp_jsonw *w, const struct dcp_job_flow *f)
{
	dcp_jsonw_put_u64(w, "needs", f->needs);
	dcp_jsonw_put_u64(w, "reads", f->reads);
	dcp_jsonw_put_u64(w, "keeps", f->keeps);
	dcp_jsonw_put_u64(w, "sends", f->sends);
	dcp_jsonw_put_u64(w, "receives", f->receives);
}

static void put_move(struct dcp_jsonw *w, uint32_t from, uint32_t to, uint64_t n)
{
	dcp_jsonw_array(w);
	dcp_jsonw_u64(w, from);
	dcp_jsonw_u64(w, to);
	dcp_jsonw_u64(w, n);
	dcp_jsonw_end(w);
}

static int put_ranks(const struct dcp_job *job, struct dcp_jsonw *w, struct dcp_err *err)
{
	dcp_auto_free struct dcp_job_flow *f = calloc(job->ranks, sizeof(*f));
	int rc = f ? dcp_job_flows(job, f, NULL, err) : -ENOMEM;

	if (rc < 0)
		return rc;
	dcp_jsonw_put_array(w, "ranks");
	for (uint32_t r = 0; r < job->ranks; r++) {
		dcp_jsonw_object(w);
		dcp_jsonw_put_u64(w, "rank", r);
		put_flow(w, &f[r]);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
	return 0;
}

static int put_exchange(const struct dcp_job *job, struct dcp_jsonw *w, struct dcp_err *err)
{
	dcp_auto_free uint64_t *rows = NULL;
	uint32_t most = dcp_job_rows(job->ranks);
	int rc = 0;

	dcp_jsonw_key(w, "exchange");
	if (job->ranks > DCP_JOB_JSON_RANKS) {
		dcp_jsonw_null(w);
		return 0;
	}
	rows = calloc((size_t)most * job->ranks, sizeof(*rows));
	if (!rows)
		return -ENOMEM;
	dcp_jsonw_array(w);
	for (uint32_t first = 0; rc == 0 && first < job->ranks; first += most) {
		uint32_t n = DCP_MIN(job->ranks - first, most);

		rc = dcp_job_sends(job, first, n, rows, err);
		for (size_t i = 0; rc == 0 && i < (size_t)n * job->ranks; i++) {
			uint32_t from = first + (uint32_t)(i / job->ranks);
			uint32_t to = (uint32_t)(i % job->ranks);

			if (rows[i] && from != to)
				put_move(w, from, to, rows[i]);
		}
	}
	dcp_jsonw_end(w);
	return rc;
}

int dcp_job_json(const struct dcp_job *job, struct dcp_jsonw *w, struct dcp_err *err)
{
	int rc;

	put_sum(job, w);
	rc = put_files(job, w);
	if (rc == 0)
		rc = put_ranks(job, w, err);
	if (rc == 0)
		rc = put_exchange(job, w, err);
	if (rc == -ENOMEM)
		return dcp_job_no_memory(job, err);
	return rc ? rc : dcp_jsonw_error(w);
}

/* Each tensor becomes the number of its kind. */

enum { FIRST_SLOTS = 256, PIECE_WORDS = 3, HEAD_WORDS = 3 };

/* ---- what makes a kind ---- */

static void put_words(uint64_t **at, const uint64_t *v, size_t n)
{
	if (n)
		memcpy(*at, v, n * sizeof(*v));
	*at += n;
}

/* Can only a view read the tensor, because its elements are not in the file in the wanted form? */
static bool is_opaque(const struct dcp_job *job, const struct dcp_tensor *t,
		      const struct dcp_piece *p)
{
	return p->filter != DCP_FILTER_ZERO &&
	       (t->cast || p->filter != DCP_FILTER_NONE || p->enc != DCP_ENC_PLAIN ||
		(p->file < job->opts.nfiles && job->opts.files[p->file].unpacked));
}

static bool is_cast(const struct dcp_job *job, const struct dcp_tensor *t)
{
	enum dcp_dtype to = job->opts.dtype;

	return to != DCP_DTYPE_OTHER && to != t->dtype && dcp_dtype_is_float(t->dtype);
}

/* Turn the tensor into numbers: rules, shape, size of an element, and for each piece how it is
 * stored, its run and its box. Tensors with equal numbers are of the same kind. */
static int sign_tensor(struct dcp_job *job, const struct dcp_tensor *t,
		       const struct dcp_layout_rule *to, const struct dcp_layout_rule *from)
{
	size_t npieces = job->opts.from ? 0 : t->npieces, most;
	uint64_t *at;

	if (npieces > UINT32_MAX / 2)
		return -E2BIG;
	most = HEAD_WORDS + DCP_LEN(to->stage) + DCP_LEN(from->stage) + t->ndim +
	       npieces * (PIECE_WORDS + 3 * (size_t)t->ndim);
	job->sign.n = 0;
	if (dcp_job_room(job, &job->sign, most, sizeof(uint64_t)) < 0)
		return -ENOMEM;
	at = job->sign.p;
	*at++ = to->number | (uint64_t)from->number << 32;
	*at++ = t->ndim | (uint64_t)is_cast(job, t) << 16 | (uint64_t)t->itemsize << 32;
	*at++ = npieces;
	put_words(&at, to->stage, DCP_LEN(to->stage));
	if (job->opts.from)
		put_words(&at, from->stage, DCP_LEN(from->stage));
	put_words(&at, t->shape, t->ndim);
	for (size_t i = 0; i < npieces; i++) {
		const struct dcp_piece *p = &t->pieces[i];

		*at++ = (uint64_t)is_opaque(job, t, p) | (uint64_t)p->filter << 8 |
			(uint64_t)(p->stride != NULL) << 16 | (uint64_t)p->swap << 17;
		*at++ = p->run_lo;
		*at++ = p->run_n;
		put_words(&at, p->lo, t->ndim);
		put_words(&at, p->len, t->ndim);
		if (p->stride)
			put_words(&at, p->stride, t->ndim);
	}
	job->sign.n = (size_t)(at - (uint64_t *)job->sign.p);
	return 0;
}

static uint32_t *slot_of(const struct dcp_job *job, const uint64_t *numbers, size_t n,
			 uint64_t hash)
{
	uint32_t *slot = job->slot.p;

	for (size_t i = hash & (job->slot.n - 1);; i = (i + 1) & (job->slot.n - 1)) {
		const struct job_kind *k;

		if (!slot[i])
			return &slot[i];
		k = JOB_AT(job->kind, struct job_kind, slot[i] - 1);
		if (k->hash == hash && k->nsign == n &&
		    !memcmp(k->sign, numbers, n * sizeof(*numbers)))
			return &slot[i];
	}
}

/* Keep the table of kinds half empty. */
static int grow_slots(struct dcp_job *job)
{
	struct job_vec old = job->slot;
	size_t n = old.n ? old.n * 2 : FIRST_SLOTS;

	if (job->kind.n < old.n / 2)
		return 0;
	job->slot = (struct job_vec){ dcp_job_array(job, n, sizeof(uint32_t)), n, n };
	if (!job->slot.p) {
		job->slot = old;
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < job->kind.n; i++) {
		const struct job_kind *k = JOB_AT(job->kind, struct job_kind, i);

		*slot_of(job, k->sign, k->nsign, k->hash) = i + 1;
	}
	job->used -= old.n * sizeof(uint32_t);
	free(old.p);
	return 0;
}

/* ---- a new kind ---- */

/* Do the two pieces hold the same elements? */
static bool is_copy(const struct dcp_piece *a, const struct dcp_piece *b, uint32_t ndim)
{
	size_t n = ndim * sizeof(uint64_t);

	return a->run_lo == b->run_lo && a->run_n == b->run_n &&
	       (!n || (!memcmp(a->lo, b->lo, n) && !memcmp(a->len, b->len, n)));
}

/* Order pieces by the elements that they hold. */
static int compare_pieces(const void *x, const void *y, void *ctx)
{
	const struct job_kind *k = ctx;
	uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;

	return dcp_piece_compare(&k->t.pieces[a], &k->t.pieces[b], k->t.ndim) ?: DCP_CMP(a, b);
}

/* Are the two pieces stored in the same manner, so that one may be read in place of the other? */
static bool same_manner(const struct dcp_piece *a, const struct dcp_piece *b, uint32_t ndim)
{
	return a->enc == b->enc && a->filter == b->filter && a->item_lo == b->item_lo &&
	       a->item_n == b->item_n && !a->stride == !b->stride &&
	       (!a->stride || !memcmp(a->stride, b->stride, ndim * sizeof(*a->stride)));
}

/* Leave out pieces without elements, and keep one piece of each set of copies: the first that can
 * be cut, if there is one. Copies that are stored in another manner are not read. */
static void keep_distinct(struct job_kind *k, struct dcp_piece *pieces, size_t emitted,
			  uint32_t *order)
{
	size_t n = 0, kept = 0;

	for (uint32_t i = 0; i < emitted; i++) {
		k->pattern_of[i] = JOB_NONE;
		if (pieces[i].run_n)
			order[n++] = i;
	}
	qsort_r(order, n, sizeof(*order), compare_pieces, k);
	for (size_t i = 0, next; i < n; i = next) {
		uint32_t keep = order[i];

		for (next = i + 1;
		     next < n && is_copy(&pieces[order[i]], &pieces[order[next]], k->t.ndim);
		     next++)
			if (dcp_job_is_opaque(&pieces[keep]) &&
			    !dcp_job_is_opaque(&pieces[order[next]]))
				keep = order[next];
		k->copies |= next - i > 1;
		for (size_t j = i; j < next; j++)
			if (same_manner(&pieces[keep], &pieces[order[j]], k->t.ndim))
				k->pattern_of[order[j]] = keep;
	}
	/* the kept pieces stay in the order in which they were added */
	for (uint32_t i = 0; i < emitted; i++)
		order[i] = k->pattern_of[i] == i ? (uint32_t)kept++ : JOB_NONE;
	for (uint32_t i = 0; i < emitted; i++)
		if (k->pattern_of[i] != JOB_NONE)
			k->pattern_of[i] = order[k->pattern_of[i]];
	for (uint32_t i = 0; i < emitted; i++)
		if (order[i] != JOB_NONE)
			pieces[order[i]] = pieces[i];
	k->t.npieces = kept;
}

/* Make the patterns of @t from its numbers, which are kept already. */
static int take_pieces(struct dcp_job *job, struct job_kind *k, const struct dcp_tensor *t,
		       const uint64_t *at)
{
	size_t emitted = job->opts.from ? 0 : t->npieces, ndim = t->ndim;
	uint32_t swaps = 0;
	struct dcp_piece *pieces = dcp_arena_calloc(&job->arena, emitted, sizeof(*pieces));
	uint32_t *order = dcp_arena_calloc(&job->arena, emitted, sizeof(*order));

	k->pattern_of = dcp_arena_calloc(&job->arena, emitted, sizeof(*k->pattern_of));
	if (!pieces || !order || !k->pattern_of)
		return -ENOMEM;
	for (size_t i = 0; i < emitted; i++) {
		pieces[i] = t->pieces[i];
		pieces[i].lo = at + PIECE_WORDS;
		pieces[i].len = at + PIECE_WORDS + ndim;
		at += PIECE_WORDS + 2 * ndim;
		if (pieces[i].stride) {
			pieces[i].stride = at;
			at += ndim;
		}
		pieces[i].off = 0;
		pieces[i].enc =
			is_opaque(job, t, &t->pieces[i]) ? DCP_ENC_TORCH : DCP_ENC_PLAIN;
	}
	k->t.pieces = pieces;
	keep_distinct(k, pieces, emitted, order);
	for (uint32_t i = 0; i < k->t.npieces; i++) {
		pieces[i].file = i;
		k->opaque |= dcp_job_is_opaque(&pieces[i]);
	}
	for (uint32_t i = 0; i < k->t.npieces; i++) {
		bool opaque = dcp_job_is_opaque(&pieces[i]),
		     zeros = dcp_job_is_zeros(&pieces[i]);

		k->mixed |= k->opaque && !opaque;
		swaps |= !zeros && pieces[i].swap ? 1 : zeros ? 0 : 2;
	}
	k->mixed |= swaps == 3 && (!k->opaque || k->mixed);
	return 0;
}

static int check_pieces(const struct dcp_job *job, const struct job_kind *k,
			struct dcp_err *err)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(job->opts.memory);
	struct dcp_tiling tl;
	int rc = dcp_tiling_init(&tl, &k->t, &arena, err);

	if (rc == -ENOMEM)
		return dcp_job_no_memory(job, err);
	return rc < 0 ? dcp_err_where(err, rc, "%.160s", k->t.key) : 0;
}

/* Number the patterns of the kind among all patterns. */
static int number_patterns(struct dcp_job *job, struct job_kind *k, uint32_t number)
{
	struct job_vec *v = &job->owner_of_pattern;

	if (v->n + k->t.npieces >= JOB_NONE)
		return -E2BIG;
	if (dcp_job_room(job, v, k->t.npieces, sizeof(uint32_t)) < 0)
		return -ENOMEM;
	k->first = (uint32_t)v->n;
	for (size_t i = 0; i < k->t.npieces; i++)
		*JOB_AT(*v, uint32_t, v->n++) = number;
	return 0;
}

static int new_kind(struct dcp_job *job, const struct dcp_tensor *t, uint64_t hash,
		    const struct dcp_layout_rule *to, const struct dcp_layout_rule *from,
		    struct dcp_err *err)
{
	struct job_kind k = { .nsign = job->sign.n, .hash = hash, .to = *to, .from = *from };
	size_t head = 3 + DCP_LEN(to->stage) + (job->opts.from ? DCP_LEN(from->stage) : 0);
	uint64_t *numbers = dcp_arena_alloc(&job->arena, k.nsign * sizeof(*numbers));
	char *key = dcp_arena_strdup(&job->arena, t->key);
	uint64_t volume;
	int rc = 0;

	if (!numbers || !key || dcp_job_room(job, &job->kind, 1, sizeof(k)) < 0)
		return dcp_job_no_memory(job, err);
	memcpy(numbers, job->sign.p, k.nsign * sizeof(*numbers));
	k.sign = numbers;
	k.casts = is_cast(job, t);
	k.to.key = k.from.key = key;
	k.t = (struct dcp_tensor){
		.key = key, .itemsize = t->itemsize, .ndim = t->ndim, .shape = numbers + head
	};
	if (!dcp_shape_volume(k.t.shape, k.t.ndim, &volume) ||
	    dcp_ckd_mul(&volume, volume, DCP_MAX(k.t.itemsize, 1u)))
		return dcp_fail(err, -EBADMSG, "%.160s: its size overflows", key);
	if (!job->opts.from)
		rc = take_pieces(job, &k, t, numbers + head + k.t.ndim);
	if (rc < 0)
		return dcp_job_no_memory(job, err);
	if (!job->opts.from)
		rc = check_pieces(job, &k, err);
	if (rc == 0)
		rc = number_patterns(job, &k, (uint32_t)job->kind.n);
	if (rc < 0)
		return rc == -ENOMEM && err && !err->code ? dcp_job_no_memory(job, err) : rc;
	*JOB_AT(job->kind, struct job_kind, job->kind.n++) = k;
	return 0;
}

/* Find the kind of @t, or make it. */
static int dcp_job_kind(struct dcp_job *job, const struct dcp_tensor *t, uint32_t *out,
			struct dcp_err *err)
{
	struct dcp_layout_rule to, from = { .key = t->key };
	uint32_t *slot;
	uint64_t hash;
	int rc;

	dcp_layout_rule(job->opts.to, t->key, &to);
	dcp_layout_rule_settle(job->opts.to, &to);
	if (job->opts.from) {
		dcp_layout_rule(job->opts.from, t->key, &from);
		dcp_layout_rule_settle(job->opts.from, &from);
	}
	rc = sign_tensor(job, t, &to, &from);
	if (rc == 0)
		rc = grow_slots(job);
	if (rc == -E2BIG)
		return dcp_fail(err, rc, "%.160s: %zu pieces", t->key, t->npieces);
	if (rc < 0)
		return dcp_job_no_memory(job, err);
	hash = dcp_hash64(job->sign.p, job->sign.n * sizeof(uint64_t));
	slot = slot_of(job, job->sign.p, job->sign.n, hash);
	if (!*slot) {
		rc = new_kind(job, t, hash, &to, &from, err);
		if (rc < 0)
			return rc;
		*slot = (uint32_t)job->kind.n;
	}
	*out = *slot - 1;
	return 0;
}

/* Adding tensors: each piece of a tensor becomes an item. */

/* Bytes that hold a piece, from @p->off on; false: a number that does not fit. */
static bool stored_bytes(const struct dcp_tensor *t, const struct dcp_piece *p, uint64_t *out)
{
	uint64_t last = 0;

	*out = dcp_job_is_zeros(p) ? 0 : p->nbytes;
	if (dcp_job_is_opaque(p) || dcp_job_is_zeros(p))
		return true;
	for (uint32_t d = 0; p->stride && d < t->ndim; d++) {
		uint64_t reach;

		if (dcp_ckd_mul(&reach, p->len[d] - 1, p->stride[d]) ||
		    dcp_ckd_add(&last, last, reach))
			return false;
	}
	if (!p->stride)
		last = p->run_n - 1;
	return !dcp_ckd_add(out, last, 1) && !dcp_ckd_mul(out, *out, t->itemsize);
}

static int add_piece(struct dcp_job *job, const struct dcp_tensor *t, const struct job_kind *k,
		     size_t i, uint32_t first, uint64_t *emitted, struct dcp_err *err)
{
	const struct dcp_piece *p = &t->pieces[i];
	struct job_item *item;
	uint64_t n, off = p->off;

	if (k->pattern_of[i] == JOB_NONE)
		return 0;
	if (dcp_job_is_zeros(p) && p->file < job->opts.nfiles)
		off = dcp_job_file_size(job, p->file); /* after every item that has bytes */
	if (p->file >= job->opts.nfiles || !stored_bytes(t, p, &n) ||
	    !dcp_range_ok(off, n, dcp_job_file_size(job, p->file)))
		return dcp_fail_at(err, -EBADMSG, p->off,
				   "%.160s: a piece ends after the end of its file, %.160s",
				   t->key,
				   p->file < job->opts.nfiles ? job->opts.files[p->file].name
							      : "which is missing");
	item = JOB_AT(job->item, struct job_item, first + k->pattern_of[i]);
	*emitted = (*emitted ^ (p->off + ((uint64_t)p->file << 40))) * 0x9e3779b97f4a7c15;
	*emitted ^= *emitted >> 29;
	if (k->copies) {
		if (dcp_job_room(job, &job->copy, 1, sizeof(struct job_copy)) < 0)
			return dcp_job_no_memory(job, err);
		*JOB_AT(job->copy, struct job_copy, job->copy.n++) =
			(struct job_copy){ off, n, p->file, first + k->pattern_of[i] };
	}
	n = k->opaque && !k->mixed ? 0 : n;
	*item = (struct job_item){ off, n, p->file, k->first + k->pattern_of[i] };
	return 0;
}

int dcp_job_add(struct dcp_job *job, const struct dcp_tensor *t, struct dcp_err *err)
{
	struct dcp_err mine = { 0 };
	const struct job_kind *k;
	uint64_t emitted = 0;
	uint32_t kind = 0;
	size_t first = job->item.n, copies = job->copy.n;
	int rc;

	err = err ? err : &mine;
	err->code = 0;
	rc = dcp_job_kind(job, t, &kind, err);
	if (rc < 0)
		return rc;
	k = JOB_AT(job->kind, struct job_kind, kind);
	if (first + k->t.npieces >= JOB_NONE)
		return dcp_fail(err, -E2BIG, "more than 2^32 pieces");
	if (dcp_job_room(job, &job->item, k->t.npieces, sizeof(struct job_item)) < 0 ||
	    dcp_job_room(job, &job->tensor, 1, sizeof(struct job_tensor)) < 0)
		return dcp_job_no_memory(job, err);
	for (size_t i = 0; rc == 0 && k->t.npieces && i < t->npieces; i++)
		rc = add_piece(job, t, k, i, (uint32_t)first, &emitted, err);
	if (rc < 0) {
		job->copy.n = copies;
		return rc;
	}
	job->item.n = first + k->t.npieces;
	*JOB_AT(job->tensor, struct job_tensor, job->tensor.n++) =
		(struct job_tensor){ kind, (uint32_t)first };
	JOB_AT(job->kind, struct job_kind, kind)->ntensors++;
	emitted = dcp_hash64_more(emitted, &k->hash, sizeof(k->hash));
	job->emitted += dcp_hash64_more(emitted, t->key, strlen(t->key));
	return 0;
}
