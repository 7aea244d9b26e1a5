/* SPDX-License-Identifier: Apache-2.0 */
/* Each tensor becomes the number of its kind. */
#include "core/model/job/job_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/base/hash.h"
#include "core/base/sort.h"

enum { FIRST_SLOTS = 256, PIECE_WORDS = 3, HEAD_WORDS = 3 };

/* ---- what makes a kind ---- */

static void put(uint64_t **at, const uint64_t *v, size_t n)
{
	if (n)
		memcpy(*at, v, n * sizeof(*v));
	*at += n;
}

/* Can only a view read it, as its elements are not in the file as they are wanted? */
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

/*
 * The tensor as numbers: rules, shape, size of an element; of each piece how it is stored, its
 * run and its box. Equal numbers, equal kind.
 */
static int sign(struct dcp_job *job, const struct dcp_tensor *t,
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
	put(&at, to->stage, DCP_LEN(to->stage));
	if (job->opts.from)
		put(&at, from->stage, DCP_LEN(from->stage));
	put(&at, t->shape, t->ndim);
	for (size_t i = 0; i < npieces; i++) {
		const struct dcp_piece *p = &t->pieces[i];

		*at++ = (uint64_t)is_opaque(job, t, p) | (uint64_t)p->filter << 8 |
			(uint64_t)(p->stride != NULL) << 16 | (uint64_t)p->swap << 17;
		*at++ = p->run_lo;
		*at++ = p->run_n;
		put(&at, p->lo, t->ndim);
		put(&at, p->len, t->ndim);
		if (p->stride)
			put(&at, p->stride, t->ndim);
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
static int more_slots(struct dcp_job *job)
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

/* The same elements? */
static bool is_copy(const struct dcp_piece *a, const struct dcp_piece *b, uint32_t ndim)
{
	size_t n = ndim * sizeof(uint64_t);

	return a->run_lo == b->run_lo && a->run_n == b->run_n &&
	       (!n || (!memcmp(a->lo, b->lo, n) && !memcmp(a->len, b->len, n)));
}

/* Where in the order of what they hold? */
static int compare_pieces(const void *x, const void *y, void *ctx)
{
	const struct job_kind *k = ctx;
	uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;

	return dcp_piece_compare(&k->t.pieces[a], &k->t.pieces[b], k->t.ndim) ?: DCP_CMP(a, b);
}

/* Stored in the same manner, so that one may be read for the other? */
static bool same_manner(const struct dcp_piece *a, const struct dcp_piece *b, uint32_t ndim)
{
	return a->enc == b->enc && a->filter == b->filter && a->item_lo == b->item_lo &&
	       a->item_n == b->item_n && !a->stride == !b->stride &&
	       (!a->stride || !memcmp(a->stride, b->stride, ndim * sizeof(*a->stride)));
}

/*
 * Leave out pieces without elements and all but one of each set of copies: the first that can
 * be cut, if there is one. Items that are stored in another manner are not read.
 */
static void distinct_pieces(struct job_kind *k, struct dcp_piece *pieces, size_t emitted,
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
	/* those kept stay in the order they were added in */
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

/* The patterns of @t, from its numbers, which are kept already. */
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
	distinct_pieces(k, pieces, emitted, order);
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

/* Its patterns get numbers among all. */
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

/* kind.c: the kind of @t, made if it is new */
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
	rc = sign(job, t, &to, &from);
	if (rc == 0)
		rc = more_slots(job);
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

/* Taking in tensors: one item for each of a tensor's pieces. */

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
