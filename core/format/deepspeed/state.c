/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp32.<name>, exp_avg.<name>, ...: what the optimizer holds of each parameter, put together
 * from the slices of all ranks. Where tensor-parallel ranks cannot be joined, each is emitted by
 * itself: mp_rank_01.fp32.<name>.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/format/deepspeed/emit.h"

/* ---- one part by itself ---- */

static int emit_alone(struct dcp_ds_emitter *t, const char *rank,
		      const struct dcp_ds_part *part, const struct dcp_ds_param *p)
{
	struct dcp_ds_box whole = { .n = p->numel, .lo = dcp_origin, .len = p->shape };
	struct dcp_err why = { 0 };
	uint8_t dtype = DCP_DTYPE_F32;
	int rc;

	if (p->experts)
		return dcp_ds_emit_shares(t, rank, part, p);
	dcp_buf_reset(&t->runs);
	dcp_buf_reset(&t->pieces);
	rc = dcp_ds_runs(t->ds, part, p, t->state, &t->runs, &dtype, &why);
	if (rc == 0)
		return dcp_ds_emit_common(t, rank, part, p);
	if (rc == 1)
		rc = dcp_ds_add_pieces(t, &whole, dtype);
	if (rc == -ENOMEM)
		return -ENOMEM;
	if (rc < 0)
		return dcp_ds_emit_error(t, rank, p->name, p->ndim, p->shape, dtype, why.msg);
	return dcp_ds_emit_pieces(t, rank, p->name, p->ndim, p->shape, dtype);
}

/* ---- those of one name ---- */

/* A parameter of one part; those of one name are linked. */
struct holder {
	uint32_t part, param;
	uint32_t next; /* 0: none; else number + 1 */
};

/* Of several parts: who holds what. */
struct names {
	struct dcp_ds_emitter *t;
	struct dcp_intern names;
	struct dcp_buf head, holders; /* uint32_t, struct holder */
};

static const struct holder *holder_at(const struct names *n, uint32_t at)
{
	return at ? DCP_ITEMS(n->holders, struct holder) + (at - 1) : NULL;
}

static int emit_each(const struct names *n, const struct holder *h)
{
	int rc = 0;

	for (; rc == 0 && h; h = holder_at(n, h->next)) {
		const struct dcp_ds_part *part = &n->t->ds->part[h->part];
		char rank[24];

		snprintf(rank, sizeof(rank), "mp_rank_%02" PRIu32, part->mp);
		rc = emit_alone(n->t, rank, part, &part->param[h->param]);
	}
	return rc;
}

/* Those of one stage, by rank. The stage comes first that has the name: others repeat it (tied
 * weights). */
static int gather(const struct names *n, const struct holder *h, struct dcp_ds_shared *s)
{
	struct dcp_ds *ds = n->t->ds;
	uint32_t tp = ds->tp, stage = ds->part[h->part].mp / tp;
	int rc = dcp_ds_room_for_shared(n->t, s, tp);

	for (s->n = 0; rc == 0 && h; h = holder_at(n, h->next)) {
		const struct dcp_ds_part *part = &ds->part[h->part];
		const struct dcp_ds_param *p = &part->param[h->param];
		uint32_t k = part->mp % tp;

		if (part->mp / tp != stage || s->part[k])
			continue;
		s->part[k] = part;
		s->param[k] = p;
		s->local[k] =
			(struct dcp_ds_local){ p->ndim, p->shape ? p->shape : dcp_origin };
		s->n++;
	}
	return rc;
}

/* Why rank @k of the stage does not hold it: its file is missing, damaged, or (NULL) has no
 * such name. */
static const char *absent(struct dcp_ds *ds, uint32_t mp)
{
	const struct dcp_ds_part *found = dcp_ds_part_of(ds, mp);
	char name[DCP_DS_NAME_MAX];

	if (found && found->named)
		return NULL;
	for (size_t i = 0; i < ds->nparts; i++)
		if (ds->part[i].nmodels) {
			dcp_ds_name_of_rank(ds->part[i].model, 0, mp, name);
			return dcp_ds_text(ds,
					   "%s is missing or damaged: tensor-parallel rank "
					   "%" PRIu32 " of %" PRIu32 " holds a part of it",
					   name, mp % ds->tp, ds->tp);
		}
	return NULL;
}

/*
 * A rank that has no element of a tensor cut unevenly does not list it: by its map it has none.
 * What is missing otherwise: why, or NULL.
 */
static const char *fill_up(struct dcp_ds *ds, struct dcp_ds_shared *s, uint32_t stage,
			   const struct dcp_ds_rule *rule)
{
	const struct dcp_ds_map *map = rule->cut == DCP_DS_CUT_MAP ? rule->map : NULL;
	uint64_t volume;

	for (uint32_t k = 0; k < ds->tp; k++) {
		const char *why = s->part[k] ? NULL : absent(ds, stage * ds->tp + k);

		if (why)
			return why;
		if (s->part[k] || !map || k >= map->n ||
		    !dcp_shape_volume(map->shard[k].shape, map->ndim, &volume) || volume)
			continue;
		s->local[k] = (struct dcp_ds_local){ map->ndim, map->shard[k].shape };
		s->n++;
	}
	return NULL;
}

static int emit_name(const struct names *n, const struct holder *h)
{
	struct dcp_ds *ds = n->t->ds;
	const struct dcp_ds_part *part = &ds->part[h->part];
	const struct dcp_ds_param *p = &part->param[h->param];
	struct dcp_ds_whole whole;
	struct dcp_ds_rule rule;
	struct dcp_ds_shared s;
	const char *lost, *why;
	int rc;

	if (ds->tp == 1 || p->whole)
		return emit_alone(n->t, NULL, part, p);
	dcp_arena_reset(&n->t->scratch);
	rc = gather(n, h, &s);
	if (rc < 0)
		return rc;
	why = dcp_ds_rule(ds, p->name, &rule);
	lost = fill_up(ds, &s, part->mp / ds->tp, &rule);
	if (lost)
		return dcp_ds_emit_error(n->t, NULL, p->name, p->ndim, p->shape, DCP_DTYPE_F32,
					 lost);
	if (s.n < ds->tp)
		why = "not all tensor-parallel ranks have it";
	s.n = ds->tp;
	if (!why && rule.cut == DCP_DS_CUT_AVERAGED)
		rc = dcp_ds_all_same(n->t, &s);
	if (rc < 0)
		return rc;
	if (rc == 1)
		rule.cut = DCP_DS_CUT_REPLICATED;
	if (!why)
		why = dcp_ds_join(&rule, s.local, s.n, &n->t->scratch, &whole);
	if (!why && whole.sum)
		why = whole.mean ? "it is the mean of what the ranks hold, which differ: no "
				   "file has it"
				 : "it is the sum of what the ranks hold: no file has it";
	if (!why)
		return dcp_ds_emit_joined(n->t, NULL, &s, &whole);
	rc = dcp_ds_note_unjoined(ds, p->name, why, &rule);
	return rc < 0 ? rc : emit_each(n, h);
}

/* ---- all of them ---- */

static int add_holder(struct names *n, uint32_t part, uint32_t param)
{
	const char *name = n->t->ds->part[part].param[param].name;
	struct holder h = { .part = part, .param = param };
	uint32_t number, at = (uint32_t)(n->holders.n / sizeof(h)) + 1, *last;
	int rc = dcp_intern_str(&n->names, name, &number);

	dcp_buf_add(&n->holders, &h, sizeof(h));
	if (rc == 1) {
		uint32_t ends[2] = { at, at }; /* the first holder and the last */

		dcp_buf_add(&n->head, ends, sizeof(ends));
	}
	if (rc < 0 || dcp_buf_error(&n->holders) || dcp_buf_error(&n->head))
		return -ENOMEM;
	if (rc == 0) {
		last = DCP_ITEMS(n->head, uint32_t) + 2 * (size_t)number + 1;
		DCP_ITEMS(n->holders, struct holder)[*last - 1].next = at;
		*last = at;
	}
	return 0;
}

static int add_holders(struct names *n)
{
	const struct dcp_ds *ds = n->t->ds;
	int rc = 0;

	for (uint32_t i = 0; i < ds->nparts; i++)
		for (uint32_t k = 0; rc == 0 && ds->part[i].ngroups && k < ds->part[i].nparams;
		     k++)
			if (!ds->part[i].param[k].hidden)
				rc = add_holder(n, i, k);
	return rc;
}

static int emit_state(const struct names *n)
{
	const uint32_t *head = DCP_ITEMS(n->head, uint32_t);
	const struct dcp_ds_part *part = n->t->ds->part;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < n->names.n; i++)
		rc = emit_name(n, holder_at(n, head[2 * (size_t)i]));
	if (n->t->ds->nparts > 1 || n->t->ds->tp > 1)
		return rc;
	for (size_t i = 0; rc == 0 && i < part->nparams; i++)
		if (!part->param[i].hidden)
			rc = emit_alone(n->t, NULL, part, &part->param[i]);
	return rc;
}

int dcp_ds_emit_states(struct dcp_ds *ds)
{
	struct dcp_ds_emitter t = { .ds = ds };
	struct names n = { .t = &t };
	int rc = 0;

	dcp_arena_init(&t.scratch, 256u << 20);
	if (ds->nparts > 1 || ds->tp > 1)
		rc = add_holders(&n);
	for (; rc == 0 && ds->zero && t.state < ds->states.n; t.state++)
		rc = emit_state(&n);
	dcp_arena_finish(&t.scratch);
	dcp_buf_finish(&t.runs);
	dcp_buf_finish(&t.pieces);
	dcp_buf_finish(&n.head);
	dcp_buf_finish(&n.holders);
	dcp_intern_finish(&n.names);
	return rc;
}
