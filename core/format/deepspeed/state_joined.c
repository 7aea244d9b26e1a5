/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States of a parameter that several ranks hold: tensor-parallel ranks, or shares of experts.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/format/deepspeed/emit.h"

int dcp_ds_room_for_shared(struct dcp_ds_emitter *t, struct dcp_ds_shared *s, size_t n)
{
	s->part = dcp_arena_calloc(&t->scratch, n, sizeof(*s->part));
	s->param = dcp_arena_calloc(&t->scratch, n, sizeof(*s->param));
	s->local = dcp_arena_calloc(&t->scratch, n, sizeof(*s->local));
	s->n = n;
	return s->part && s->param && s->local ? 0 : -ENOMEM;
}

/* ---- joined ---- */

static uint32_t first_holder(const struct dcp_ds_shared *s)
{
	uint32_t k = 0;

	while (k + 1 < s->n && !s->part[k])
		k++;
	return k;
}

/* Runs of rank @k, whose dtype must be @dtype. */
static int take_runs(struct dcp_ds_emitter *t, const struct dcp_ds_shared *s, uint32_t k,
		     uint8_t dtype, struct dcp_err *why)
{
	uint8_t mine;
	int rc;

	dcp_buf_reset(&t->runs);
	if (!s->part[k])
		return dcp_fail(why, -EBADMSG, "a rank does not have it");
	rc = dcp_ds_runs(t->ds, s->part[k], s->param[k], t->state, &t->runs, &mine, why);
	if (rc == 0)
		return dcp_fail(why, -EBADMSG,
				"no optimizer file of mp_rank_%02" PRIu32 " has it",
				s->part[k]->mp);
	if (rc == 1 && t->runs.n && mine != dtype)
		return dcp_fail(why, -EBADMSG, "its ranks hold different dtypes");
	return rc;
}

/* Boxes are in the order of ranks. Of copies only those of one rank are there. */
static int add_boxes(struct dcp_ds_emitter *t, const struct dcp_ds_shared *s,
		     const struct dcp_ds_whole *w, uint8_t dtype, struct dcp_err *why)
{
	uint32_t at = UINT32_MAX;
	int rc = 1;

	dcp_buf_reset(&t->pieces);
	for (size_t i = 0; rc == 1 && i < w->nbox; i++) {
		if (w->box[i].n == 0)
			continue;
		if (w->box[i].local != at)
			rc = take_runs(t, s, w->box[i].local, dtype, why);
		at = w->box[i].local;
		if (rc == 1 && dcp_ds_add_pieces(t, &w->box[i], dtype) < 0)
			rc = -ENOMEM;
	}
	return rc;
}

int dcp_ds_emit_joined(struct dcp_ds_emitter *t, const char *rank,
		       const struct dcp_ds_shared *s, struct dcp_ds_whole *w)
{
	uint32_t first = first_holder(s);
	const char *name = s->param[first]->name;
	uint8_t dtype = DCP_DTYPE_F32;
	struct dcp_err why = { 0 };
	int rc;

	dcp_buf_reset(&t->runs);
	rc = dcp_ds_runs(t->ds, s->part[first], s->param[first], t->state, &t->runs, &dtype,
			 &why);
	if (rc == 0)
		return dcp_ds_emit_common(t, rank, s->part[first], s->param[first]);
	if (rc == 1)
		rc = add_boxes(t, s, w, dtype, &why);
	if (rc == -ENOMEM)
		return -ENOMEM;
	if (rc < 0)
		return dcp_ds_emit_error(t, rank, name, w->ndim, w->shape, dtype, why.msg);
	return dcp_ds_emit_pieces(t, rank, name, w->ndim, w->shape, dtype);
}

/* ---- experts ---- */

/* Experts [from, from + n) of a share, which are [at, at + n) of all. */
static void add_block(struct dcp_ds_shard *shard, uint64_t *dims, const struct dcp_ds_param *p,
		      uint64_t from, uint64_t at, uint64_t n)
{
	struct dcp_ds_block *b = (struct dcp_ds_block *)(uintptr_t)&shard->block[shard->n++];

	dims[0] = from;
	dims[p->ndim] = at;
	memcpy(dims + 2 * (size_t)p->ndim, p->shape, p->ndim * sizeof(*dims));
	dims[2 * (size_t)p->ndim] = n;
	*b = (struct dcp_ds_block){ dims, dims + p->ndim, dims + 2 * (size_t)p->ndim };
}

/* What share @s holds and no earlier one did: @seen, of each expert. */
static int map_share(struct dcp_ds_emitter *t, const struct dcp_ds_param *p, uint32_t s,
		     bool *seen, struct dcp_ds_shard *shard)
{
	const uint32_t *has = p->experts->has[s];
	uint32_t n = p->experts->nhas[s], end;
	uint64_t *dims =
		dcp_arena_calloc(&t->scratch, 3 * (size_t)p->ndim * n + 1, sizeof(*dims));

	shard->shape = p[(size_t)s * p->next].shape;
	shard->block = dcp_arena_calloc(&t->scratch, n + 1, sizeof(*shard->block));
	if (!dims || !shard->block)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i = end) {
		end = i + 1;
		if (seen[has[i]])
			continue;
		seen[has[i]] = true;
		for (; end < n && has[end] == has[end - 1] + 1 && !seen[has[end]]; end++)
			seen[has[end]] = true;
		add_block(shard, dims, p, i, has[i], end - i);
		dims += 3 * (size_t)p->ndim;
	}
	return 0;
}

int dcp_ds_emit_shares(struct dcp_ds_emitter *t, const char *rank,
		       const struct dcp_ds_part *part, const struct dcp_ds_param *p)
{
	uint32_t n = p->experts->shares;
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_ds_shard *shard;
	struct dcp_ds_map map = { .ndim = p->ndim, .shape = shape, .n = n };
	const struct dcp_ds_rule rule = { .cut = DCP_DS_CUT_MAP, .map = &map };
	struct dcp_ds_whole whole;
	struct dcp_ds_shared s;
	const char *why;
	bool *seen;
	int rc;

	dcp_arena_reset(&t->scratch);
	memcpy(shape, p->shape, p->ndim * sizeof(*shape));
	shape[0] = p->experts->total;
	shard = dcp_arena_calloc(&t->scratch, n, sizeof(*shard));
	seen = dcp_arena_calloc(&t->scratch, p->experts->total, sizeof(*seen));
	rc = dcp_ds_room_for_shared(t, &s, n);
	if (rc < 0 || !shard || !seen)
		return -ENOMEM;
	map.shard = shard;
	for (uint32_t k = 0; rc == 0 && k < n; k++) {
		s.part[k] = part;
		s.param[k] = p + (size_t)k * p->next;
		s.local[k] = (struct dcp_ds_local){ p->ndim, s.param[k]->shape };
		rc = map_share(t, p, k, seen, &shard[k]);
	}
	if (rc < 0)
		return rc;
	why = dcp_ds_join(&rule, s.local, n, &t->scratch, &whole);
	if (why)
		return dcp_ds_emit_error(t, rank, p->name, p->ndim, shape, DCP_DTYPE_F32, why);
	return dcp_ds_emit_joined(t, rank, &s, &whole);
}
