/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp32.<name>, exp_avg.<name>, ...: what the optimizer holds of each parameter, put together
 * from the slices of all ranks. Where tensor-parallel ranks cannot be joined, each is told by
 * itself: mp_rank_01.fp32.<name>.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/format/deepspeed_int.h"

static const uint64_t origin[DCP_MAX_NDIM];

/* A parameter of one part; those of one name are linked. */
struct holder {
	uint32_t part, param;
	uint32_t next; /* 0: none; else number + 1 */
};

struct telling {
	struct dcp_ds *ds;
	uint32_t state;
	struct dcp_arena scratch; /* of one name */
	struct dcp_buf runs, pieces;
	struct dcp_intern names;
	struct dcp_buf head, holders; /* uint32_t, struct holder */
	size_t hint; /* the common entry that was found last: the next is near */
};

/* Runs of one rank, as far as they fall into @box. */
static int add_pieces(struct telling *t, const struct dcp_ds_box *box, uint8_t dtype)
{
	const struct dcp_ds_run *run = (const struct dcp_ds_run *)(const void *)t->runs.p;
	size_t n = t->runs.n / sizeof(*run);
	uint32_t size = dcp_dtype_info((enum dcp_dtype)dtype)->size;

	for (size_t i = 0; i < n; i++) {
		uint64_t lo = DCP_MAX(run[i].first, box->first);
		uint64_t hi = DCP_MIN(run[i].first + run[i].n, box->first + box->n);
		struct dcp_piece p = {
			.lo = box->lo,
			.len = box->len,
			.run_lo = lo - box->first,
			.run_n = hi - lo,
			.off = run[i].off + (lo - run[i].first) * size,
			.nbytes = (hi - lo) * size,
			.file = run[i].file,
			.enc = DCP_ENC_PLAIN,
			.swap = run[i].swap && size > 1,
		};

		if (lo < hi)
			dcp_buf_add(&t->pieces, &p, sizeof(p));
	}
	return dcp_buf_error(&t->pieces) ? -ENOMEM : 0;
}

/* @rank: NULL, or what is put in front. */
static int tell(struct telling *t, const char *rank, const char *name,
		const struct dcp_tensor *x)
{
	const char *role = dcp_intern_text(&t->ds->states, t->state);

	return dcp_ds_tell_tensor(t->ds, rank, role, name, x);
}

static int tell_error(struct telling *t, const char *rank, const char *name,
		      const struct dcp_ds_param *p, uint8_t dtype, const char *why)
{
	struct dcp_tensor x = {
		.dtype = (enum dcp_dtype)dtype,
		.ndim = p->ndim,
		.shape = p->shape ? p->shape : origin,
		.error = why,
	};

	return tell(t, rank, name, &x);
}

static int tell_pieces(struct telling *t, const char *rank, const char *name, uint32_t ndim,
		       const uint64_t *shape, uint8_t dtype)
{
	struct dcp_tensor x = {
		.dtype = (enum dcp_dtype)dtype,
		.ndim = ndim,
		.shape = shape,
		.pieces = (const struct dcp_piece *)(const void *)t->pieces.p,
		.npieces = t->pieces.n / sizeof(struct dcp_piece),
	};

	return tell(t, rank, name, &x);
}

/* ---- what a group has in common ---- */

static struct dcp_ds_common *common_of(struct telling *t, const struct dcp_ds_part *part,
				       const struct dcp_ds_param *p)
{
	struct dcp_ds_common *c = (struct dcp_ds_common *)(void *)part->common.p;
	size_t n = part->common.n / sizeof(*c);

	for (size_t i = 0; i < n; i++) {
		size_t at = (t->hint + i) % n;

		if (c[at].state == t->state && c[at].flat == part->group[p->group].flat) {
			t->hint = at;
			return &c[at];
		}
	}
	return NULL;
}

static int tell_common(struct telling *t, const char *rank, const struct dcp_ds_part *part,
		       const struct dcp_ds_param *p)
{
	struct dcp_ds_common *c = common_of(t, part, p);
	static const uint64_t one[DCP_MAX_NDIM] = { 1 };
	struct dcp_piece piece = { .lo = origin, .len = one, .run_n = 1 };
	struct dcp_tensor x = { .shape = one, .pieces = &piece, .npieces = 1 };
	const char *role = dcp_intern_text(&t->ds->states, t->state);

	if (!c)
		return 0;
	if (c->json)
		return dcp_ds_tell_object(t->ds, rank, role, p->name, c->type, c->json);
	x.dtype = (enum dcp_dtype)c->place.dtype;
	x.ndim = c->ndim == 0 ? 0 : 1;
	x.alias_of = c->first;
	piece.off = c->place.off;
	piece.nbytes = dcp_dtype_info(x.dtype)->size;
	piece.file = c->place.file;
	piece.swap = c->place.swap && piece.nbytes > 1;
	if (!c->first) {
		c->first = rank ? dcp_ds_text(t->ds, "%s.%s.%s", rank, role, p->name)
				: dcp_ds_text(t->ds, "%s.%s", role, p->name);
		if (!c->first)
			return dcp_ds_no_memory(t->ds);
	}
	return tell(t, rank, p->name, &x);
}

/* ---- one part by itself ---- */

static int tell_alone(struct telling *t, const char *rank, const struct dcp_ds_part *part,
		      const struct dcp_ds_param *p)
{
	struct dcp_ds_box whole = { .n = p->numel, .lo = origin, .len = p->shape };
	struct dcp_err why = { 0 };
	uint8_t dtype = DCP_DTYPE_F32;
	int rc;

	dcp_buf_reset(&t->runs);
	dcp_buf_reset(&t->pieces);
	rc = dcp_ds_runs(t->ds, part, p, t->state, &t->runs, &dtype, &why);
	if (rc == 0)
		return tell_common(t, rank, part, p);
	if (rc == 1)
		rc = add_pieces(t, &whole, dtype);
	if (rc == -ENOMEM)
		return dcp_ds_no_memory(t->ds);
	if (rc < 0)
		return tell_error(t, rank, p->name, p, dtype, why.msg);
	return tell_pieces(t, rank, p->name, p->ndim, p->shape, dtype);
}

static int tell_each(struct telling *t, const struct holder *h)
{
	const struct holder *all = (const struct holder *)(const void *)t->holders.p;
	int rc = 0;

	for (; rc == 0 && h; h = h->next ? &all[h->next - 1] : NULL) {
		const struct dcp_ds_part *part = &t->ds->part[h->part];
		char rank[24];

		snprintf(rank, sizeof(rank), "mp_rank_%02" PRIu32, part->mp);
		rc = tell_alone(t, rank, part, &part->param[h->param]);
	}
	return rc;
}

/* ---- tensor-parallel ranks ---- */

/* The holders of one name in one stage, by rank. */
struct shared {
	const struct dcp_ds_part **part;
	const struct dcp_ds_param **param;
	struct dcp_ds_local *local;
	size_t n;
	uint32_t stage;
};

/* The stage comes first that has the name: others repeat it (tied weights). */
static int gather(struct telling *t, const struct holder *h, struct shared *s)
{
	const struct holder *all = (const struct holder *)(const void *)t->holders.p;
	uint32_t tp = t->ds->tp;

	s->part = dcp_arena_calloc(&t->scratch, tp, sizeof(*s->part));
	s->param = dcp_arena_calloc(&t->scratch, tp, sizeof(*s->param));
	s->local = dcp_arena_calloc(&t->scratch, tp, sizeof(*s->local));
	if (!s->part || !s->param || !s->local)
		return dcp_ds_no_memory(t->ds);
	s->stage = t->ds->part[h->part].mp / tp;
	for (; h; h = h->next ? &all[h->next - 1] : NULL) {
		const struct dcp_ds_part *part = &t->ds->part[h->part];

		if (part->mp / tp == s->stage && !s->part[part->mp % tp]) {
			s->part[part->mp % tp] = part;
			s->param[part->mp % tp] = &part->param[h->param];
			s->n++;
		}
	}
	return 0;
}

/* Why a rank does not hold it: its file is missing, damaged, or (NULL) has no such name. */
static const char *absent(struct telling *t, const struct shared *s)
{
	const struct dcp_ds *ds = t->ds;

	for (uint32_t k = 0; k < ds->tp; k++) {
		uint32_t mp = s->stage * ds->tp + k;
		const struct dcp_ds_part *found = NULL;
		char name[DCP_DS_NAME_MAX];

		if (s->part[k])
			continue;
		for (size_t i = 0; !found && i < ds->nparts; i++)
			if (ds->part[i].mp == mp)
				found = &ds->part[i];
		if (found && found->named)
			return NULL;
		for (size_t i = 0; i < ds->nparts; i++)
			if (ds->part[i].nmodels) {
				dcp_ds_name_of_rank(ds->part[i].model, 0, mp, name);
				return dcp_ds_text(t->ds,
						   "%s is missing or damaged: tensor-parallel "
						   "rank %" PRIu32 " of %" PRIu32
						   " holds a part of it",
						   name, k, ds->tp);
			}
	}
	return NULL;
}

/* Does anything of the whole come from rank @k? Of copies only the first does. */
static bool is_needed(const struct dcp_ds_whole *w, uint32_t k)
{
	for (size_t i = 0; i < w->nbox; i++)
		if (w->box[i].local == k && w->box[i].n)
			return true;
	return k == 0;
}

static int tell_joined(struct telling *t, const struct shared *s, struct dcp_ds_whole *w)
{
	const char *name = s->param[0]->name;
	struct dcp_err why = { 0 };
	uint8_t dtype = DCP_DTYPE_F32, other;
	int rc = 1;

	dcp_buf_reset(&t->pieces);
	for (uint32_t k = 0; rc == 1 && k < t->ds->tp; k++) {
		if (!is_needed(w, k))
			continue;
		dcp_buf_reset(&t->runs);
		rc = dcp_ds_runs(t->ds, s->part[k], s->param[k], t->state, &t->runs, &other,
				 &why);
		if (k == 0 && rc == 0)
			return tell_common(t, NULL, s->part[0], s->param[0]);
		if (rc == 0)
			rc = dcp_fail(&why, -EBADMSG, DCP_ERR_NO_OFFSET,
				      "no optimizer file of mp_rank_%02" PRIu32 " has it",
				      s->part[k]->mp);
		if (rc == 1 && k > 0 && other != dtype)
			rc = dcp_fail(&why, -EBADMSG, DCP_ERR_NO_OFFSET,
				      "its tensor-parallel ranks hold different dtypes");
		dtype = k == 0 ? other : dtype;
		for (size_t i = 0; rc == 1 && i < w->nbox; i++)
			if (w->box[i].local == k && add_pieces(t, &w->box[i], dtype) < 0)
				rc = -ENOMEM;
	}
	if (rc == -ENOMEM)
		return dcp_ds_no_memory(t->ds);
	if (rc < 0) {
		struct dcp_ds_param p = { .ndim = w->ndim, .shape = w->shape };

		return tell_error(t, NULL, name, &p, dtype, why.msg);
	}
	return tell_pieces(t, NULL, name, w->ndim, w->shape, dtype);
}

static int tell_name(struct telling *t, const struct holder *h)
{
	struct dcp_ds_whole whole;
	struct dcp_ds_rule rule;
	struct shared s = { 0 };
	const char *why;
	int rc;

	dcp_arena_reset(&t->scratch);
	rc = gather(t, h, &s);
	if (rc < 0)
		return rc;
	if (t->ds->tp == 1)
		return tell_alone(t, NULL, s.part[0], s.param[0]);
	if (s.n < t->ds->tp) {
		const struct dcp_ds_part *part = &t->ds->part[h->part];

		why = absent(t, &s);
		if (why)
			return tell_error(t, NULL, part->param[h->param].name,
					  &part->param[h->param], DCP_DTYPE_F32, why);
		return tell_each(t, h);
	}
	for (uint32_t k = 0; k < t->ds->tp; k++)
		s.local[k] =
			(struct dcp_ds_local){ s.param[k]->ndim,
					       s.param[k]->shape ? s.param[k]->shape : origin };
	why = dcp_ds_rule(t->ds, s.param[0]->name, &rule);
	if (!why)
		why = dcp_ds_join(&rule, s.local, t->ds->tp, &t->scratch, &whole);
	if (!why)
		return tell_joined(t, &s, &whole);
	rc = dcp_ds_note_unjoined(t->ds, s.param[0]->name, why);
	return rc < 0 ? rc : tell_each(t, h);
}

/* ---- all of them ---- */

static int add_holder(struct telling *t, uint32_t part, uint32_t param)
{
	const char *name = t->ds->part[part].param[param].name;
	struct holder h = { .part = part, .param = param };
	uint32_t number, at = (uint32_t)(t->holders.n / sizeof(h)) + 1, *last;
	int rc = dcp_intern_add(&t->names, name, strlen(name), DCP_INTERN_NONE, &number);

	dcp_buf_add(&t->holders, &h, sizeof(h));
	if (rc == 1) {
		uint32_t ends[2] = { at, at }; /* the first holder and the last */

		dcp_buf_add(&t->head, ends, sizeof(ends));
	}
	if (rc < 0 || dcp_buf_error(&t->holders) || dcp_buf_error(&t->head))
		return dcp_ds_no_memory(t->ds);
	if (rc == 0) {
		last = (uint32_t *)(void *)t->head.p + 2 * (size_t)number + 1;
		((struct holder *)(void *)t->holders.p)[*last - 1].next = at;
		*last = at;
	}
	return 0;
}

static int tell_names(struct telling *t)
{
	const struct holder *all = (const struct holder *)(const void *)t->holders.p;
	const uint32_t *head = (const uint32_t *)(const void *)t->head.p;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < t->names.n; i++)
		rc = tell_name(t, &all[head[2 * (size_t)i] - 1]);
	return rc;
}

static int tell_state(struct telling *t)
{
	const struct dcp_ds_part *part = t->ds->part;
	int rc = 0;

	if (t->ds->nparts > 1 || t->ds->tp > 1)
		return tell_names(t);
	for (size_t i = 0; rc == 0 && i < part->nparams; i++)
		rc = tell_alone(t, NULL, part, &part->param[i]);
	return rc;
}

int dcp_ds_tell_states(struct dcp_ds *ds)
{
	struct telling t = { .ds = ds };
	int rc = 0;

	dcp_arena_init(&t.scratch, 256u << 20);
	for (uint32_t i = 0; (ds->nparts > 1 || ds->tp > 1) && i < ds->nparts; i++)
		for (uint32_t k = 0; rc == 0 && ds->part[i].ngroups && k < ds->part[i].nparams;
		     k++)
			rc = add_holder(&t, i, k);
	for (t.state = 0; rc == 0 && t.state < ds->states.n; t.state++)
		rc = ds->zero ? tell_state(&t) : 0;
	dcp_arena_finish(&t.scratch);
	dcp_buf_finish(&t.runs);
	dcp_buf_finish(&t.pieces);
	dcp_buf_finish(&t.head);
	dcp_buf_finish(&t.holders);
	dcp_intern_finish(&t.names);
	return rc;
}
