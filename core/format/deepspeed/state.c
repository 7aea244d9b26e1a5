/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp32.<name>, exp_avg.<name>, ...: the optimizer's states of each parameter, joined from the
 * slices of all ranks. If tensor-parallel ranks cannot be joined, each rank's state is emitted by
 * itself: mp_rank_01.fp32.<name>.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/format/deepspeed/deepspeed_int.h"

/* state_emit: emits the states of one name: pieces, errors, states that a group has in common. */

/* Emit @x as the current state of @name. @rank: put in front of the key, or NULL. */
static int emit_tensor(struct dcp_deepspeed_emitter *t, const char *rank, const char *name,
		       const struct dcp_tensor *x)
{
	const char *role = dcp_intern_text(&t->ds->states, t->state);

	return dcp_deepspeed_emit_tensor(t->ds, rank, role, name, x);
}

static int dcp_deepspeed_emit_error(struct dcp_deepspeed_emitter *t, const char *rank,
				    const char *name, uint32_t ndim, const uint64_t *shape,
				    uint8_t dtype, const char *why)
{
	struct dcp_tensor x = {
		.dtype = (enum dcp_dtype)dtype,
		.ndim = ndim,
		.shape = shape ? shape : dcp_origin,
		.error = why,
	};

	return emit_tensor(t, rank, name, &x);
}

static int dcp_deepspeed_emit_pieces(struct dcp_deepspeed_emitter *t, const char *rank,
				     const char *name, uint32_t ndim, const uint64_t *shape,
				     uint8_t dtype)
{
	struct dcp_tensor x = {
		.dtype = (enum dcp_dtype)dtype,
		.ndim = ndim,
		.shape = shape,
		.pieces = DCP_ITEMS(t->pieces, struct dcp_piece),
		.npieces = DCP_NITEMS(t->pieces, struct dcp_piece),
	};

	return emit_tensor(t, rank, name, &x);
}

static struct dcp_deepspeed_common *common_of(struct dcp_deepspeed_emitter *t,
					      const struct dcp_deepspeed_part *part,
					      const struct dcp_deepspeed_param *p)
{
	struct dcp_deepspeed_common *c = DCP_ITEMS(part->common, struct dcp_deepspeed_common);
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

/* Emit the state that all elements of a parameter share; does nothing if there is none. */
static int dcp_deepspeed_emit_common(struct dcp_deepspeed_emitter *t, const char *rank,
				     const struct dcp_deepspeed_part *part,
				     const struct dcp_deepspeed_param *p)
{
	struct dcp_deepspeed_common *c = common_of(t, part, p);
	static const uint64_t one[DCP_MAX_NDIM] = { 1 };
	struct dcp_piece piece = { .lo = dcp_origin, .len = one, .run_n = 1 };
	struct dcp_tensor x = { .shape = one, .pieces = &piece, .npieces = 1 };
	const char *role = dcp_intern_text(&t->ds->states, t->state);

	if (!c)
		return 0;
	if (c->json)
		return dcp_deepspeed_emit_object(t->ds, rank, role, p->name, c->type, c->json);
	x.dtype = (enum dcp_dtype)c->place.dtype;
	x.ndim = c->ndim == 0 ? 0 : 1;
	x.alias_of = c->first;
	piece.off = c->place.off;
	piece.nbytes = dcp_dtype_info(x.dtype)->size;
	piece.file = c->place.file;
	piece.swap = c->place.swap && piece.nbytes > 1;
	if (!c->first) {
		c->first = dcp_deepspeed_text(t->ds, "%s%s%s.%s", rank ? rank : "",
					      rank ? "." : "", role, p->name);
		if (!c->first)
			return -ENOMEM;
	}
	return emit_tensor(t, rank, p->name, &x);
}

/* The first run that ends after element @first. */
static size_t find_run(const struct dcp_deepspeed_run *run, size_t n, uint64_t first)
{
	size_t i;

	DCP_BISECT(i, 0, n, run[i].first + run[i].n <= first);
	return i;
}

int dcp_deepspeed_add_pieces(struct dcp_deepspeed_emitter *t,
			     const struct dcp_deepspeed_box *box, uint8_t dtype)
{
	const struct dcp_deepspeed_run *run = DCP_ITEMS(t->runs, struct dcp_deepspeed_run);
	size_t n = t->runs.n / sizeof(*run);
	uint32_t size = dcp_dtype_info((enum dcp_dtype)dtype)->size;
	uint64_t end = box->first + box->n;

	for (size_t i = find_run(run, n, box->first); i < n && run[i].first < end; i++) {
		uint64_t lo = DCP_MAX(run[i].first, box->first);
		uint64_t hi = DCP_MIN(run[i].first + run[i].n, end);
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
	return dcp_buf_error(&t->pieces);
}

/* States of a parameter that several ranks hold: tensor-parallel ranks, or shares of experts. */

static int dcp_deepspeed_room_for_shared(struct dcp_deepspeed_emitter *t,
					 struct dcp_deepspeed_shared *s, size_t n)
{
	s->part = dcp_arena_calloc(&t->scratch, n, sizeof(*s->part));
	s->param = dcp_arena_calloc(&t->scratch, n, sizeof(*s->param));
	s->local = dcp_arena_calloc(&t->scratch, n, sizeof(*s->local));
	s->n = n;
	return s->part && s->param && s->local ? 0 : -ENOMEM;
}

/* ---- joined ---- */

static uint32_t first_holder(const struct dcp_deepspeed_shared *s)
{
	uint32_t k = 0;

	while (k + 1 < s->n && !s->part[k])
		k++;
	return k;
}

/* Find the runs of rank @k, whose dtype must be @dtype. */
static int take_runs(struct dcp_deepspeed_emitter *t, const struct dcp_deepspeed_shared *s,
		     uint32_t k, uint8_t dtype, struct dcp_err *why)
{
	uint8_t mine;
	int rc;

	dcp_buf_reset(&t->runs);
	if (!s->part[k])
		return dcp_fail(why, -EBADMSG, "a rank does not have it");
	rc = dcp_deepspeed_runs(t->ds, s->part[k], s->param[k], t->state, &t->runs, &mine, why);
	if (rc == 0)
		return dcp_fail(why, -EBADMSG,
				"no optimizer file of mp_rank_%02" PRIu32 " has it",
				s->part[k]->mp);
	if (rc == 1 && t->runs.n && mine != dtype)
		return dcp_fail(why, -EBADMSG, "its ranks hold different dtypes");
	return rc;
}

/* Add the pieces of all boxes, which are in the order of ranks; copies have boxes of one rank
 * only. */
static int add_boxes(struct dcp_deepspeed_emitter *t, const struct dcp_deepspeed_shared *s,
		     const struct dcp_deepspeed_whole *w, uint8_t dtype, struct dcp_err *why)
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
		if (rc == 1 && dcp_deepspeed_add_pieces(t, &w->box[i], dtype) < 0)
			rc = -ENOMEM;
	}
	return rc;
}

static int dcp_deepspeed_emit_joined(struct dcp_deepspeed_emitter *t, const char *rank,
				     const struct dcp_deepspeed_shared *s,
				     struct dcp_deepspeed_whole *w)
{
	uint32_t first = first_holder(s);
	const char *name = s->param[first]->name;
	uint8_t dtype = DCP_DTYPE_F32;
	struct dcp_err why = { 0 };
	int rc;

	dcp_buf_reset(&t->runs);
	rc = dcp_deepspeed_runs(t->ds, s->part[first], s->param[first], t->state, &t->runs,
				&dtype, &why);
	if (rc == 0)
		return dcp_deepspeed_emit_common(t, rank, s->part[first], s->param[first]);
	if (rc == 1)
		rc = add_boxes(t, s, w, dtype, &why);
	if (rc == -ENOMEM)
		return -ENOMEM;
	if (rc < 0)
		return dcp_deepspeed_emit_error(t, rank, name, w->ndim, w->shape, dtype,
						why.msg);
	return dcp_deepspeed_emit_pieces(t, rank, name, w->ndim, w->shape, dtype);
}

/* ---- experts ---- */

/* Add the block of experts [from, from + n) of a share, which are [at, at + n) of all experts. */
static void add_block(struct dcp_deepspeed_shard *shard, uint64_t *dims,
		      const struct dcp_deepspeed_param *p, uint64_t from, uint64_t at,
		      uint64_t n)
{
	struct dcp_deepspeed_block *b =
		(struct dcp_deepspeed_block *)(uintptr_t)&shard->block[shard->n++];

	dims[0] = from;
	dims[p->ndim] = at;
	memcpy(dims + 2 * (size_t)p->ndim, p->shape, p->ndim * sizeof(*dims));
	dims[2 * (size_t)p->ndim] = n;
	*b = (struct dcp_deepspeed_block){ dims, dims + p->ndim, dims + 2 * (size_t)p->ndim };
}

/* Add the blocks of the experts that share @s holds and no earlier share did. @seen: for each
 * expert, whether a share holds it. */
static int map_share(struct dcp_deepspeed_emitter *t, const struct dcp_deepspeed_param *p,
		     uint32_t s, bool *seen, struct dcp_deepspeed_shard *shard)
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

/* Emit a parameter of AutoEP, joined from all shares of its part. */
static int dcp_deepspeed_emit_shares(struct dcp_deepspeed_emitter *t, const char *rank,
				     const struct dcp_deepspeed_part *part,
				     const struct dcp_deepspeed_param *p)
{
	uint32_t n = p->experts->shares;
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_deepspeed_shard *shard;
	struct dcp_deepspeed_map map = { .ndim = p->ndim, .shape = shape, .n = n };
	const struct dcp_deepspeed_rule rule = { .cut = DCP_DEEPSPEED_CUT_MAP, .map = &map };
	struct dcp_deepspeed_whole whole;
	struct dcp_deepspeed_shared s;
	const char *why;
	bool *seen;
	int rc;

	dcp_arena_reset(&t->scratch);
	memcpy(shape, p->shape, p->ndim * sizeof(*shape));
	shape[0] = p->experts->total;
	shard = dcp_arena_calloc(&t->scratch, n, sizeof(*shard));
	seen = dcp_arena_calloc(&t->scratch, p->experts->total, sizeof(*seen));
	rc = dcp_deepspeed_room_for_shared(t, &s, n);
	if (rc < 0 || !shard || !seen)
		return -ENOMEM;
	map.shard = shard;
	for (uint32_t k = 0; rc == 0 && k < n; k++) {
		s.part[k] = part;
		s.param[k] = p + (size_t)k * p->next;
		s.local[k] = (struct dcp_deepspeed_local){ p->ndim, s.param[k]->shape };
		rc = map_share(t, p, k, seen, &shard[k]);
	}
	if (rc < 0)
		return rc;
	why = dcp_deepspeed_join(&rule, s.local, n, &t->scratch, &whole);
	if (why)
		return dcp_deepspeed_emit_error(t, rank, p->name, p->ndim, shape, DCP_DTYPE_F32,
						why);
	return dcp_deepspeed_emit_joined(t, rank, &s, &whole);
}

/* ---- one part by itself ---- */

static int emit_alone(struct dcp_deepspeed_emitter *t, const char *rank,
		      const struct dcp_deepspeed_part *part,
		      const struct dcp_deepspeed_param *p)
{
	struct dcp_deepspeed_box whole = { .n = p->numel, .lo = dcp_origin, .len = p->shape };
	struct dcp_err why = { 0 };
	uint8_t dtype = DCP_DTYPE_F32;
	int rc;

	if (p->experts)
		return dcp_deepspeed_emit_shares(t, rank, part, p);
	dcp_buf_reset(&t->runs);
	dcp_buf_reset(&t->pieces);
	rc = dcp_deepspeed_runs(t->ds, part, p, t->state, &t->runs, &dtype, &why);
	if (rc == 0)
		return dcp_deepspeed_emit_common(t, rank, part, p);
	if (rc == 1)
		rc = dcp_deepspeed_add_pieces(t, &whole, dtype);
	if (rc == -ENOMEM)
		return -ENOMEM;
	if (rc < 0)
		return dcp_deepspeed_emit_error(t, rank, p->name, p->ndim, p->shape, dtype,
						why.msg);
	return dcp_deepspeed_emit_pieces(t, rank, p->name, p->ndim, p->shape, dtype);
}

/* ---- all parameters of one name ---- */

/* A parameter of one part; the parameters of one name are linked. */
struct holder {
	uint32_t part, param;
	uint32_t next; /* 0: none; else number + 1 */
};

/* The names in several parts, and the holders of each name. */
struct names {
	struct dcp_deepspeed_emitter *t;
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
		const struct dcp_deepspeed_part *part = &n->t->ds->part[h->part];
		char rank[24];

		snprintf(rank, sizeof(rank), "mp_rank_%02" PRIu32, part->mp);
		rc = emit_alone(n->t, rank, part, &part->param[h->param]);
	}
	return rc;
}

/* Collect the parameters of one name in one stage, by rank. The first stage that has the name
 * counts; others repeat it (tied weights). */
static int gather_holders(const struct names *n, const struct holder *h,
			  struct dcp_deepspeed_shared *s)
{
	struct dcp_deepspeed *ds = n->t->ds;
	uint32_t tp = ds->tp, stage = ds->part[h->part].mp / tp;
	int rc = dcp_deepspeed_room_for_shared(n->t, s, tp);

	for (s->n = 0; rc == 0 && h; h = holder_at(n, h->next)) {
		const struct dcp_deepspeed_part *part = &ds->part[h->part];
		const struct dcp_deepspeed_param *p = &part->param[h->param];
		uint32_t k = part->mp % tp;

		if (part->mp / tp != stage || s->part[k])
			continue;
		s->part[k] = part;
		s->param[k] = p;
		s->local[k] = (struct dcp_deepspeed_local){ p->ndim,
							    p->shape ? p->shape : dcp_origin };
		s->n++;
	}
	return rc;
}

/* Why rank @mp does not hold a parameter: its file is missing or damaged; NULL: the file does not
 * have the name. */
static const char *say_absent(struct dcp_deepspeed *ds, uint32_t mp)
{
	const struct dcp_deepspeed_part *found = dcp_deepspeed_part_of(ds, mp);
	char name[DCP_DEEPSPEED_NAME_MAX];

	if (found && found->named)
		return NULL;
	for (size_t i = 0; i < ds->nparts; i++)
		if (ds->part[i].nmodels) {
			dcp_deepspeed_name_of_rank(ds->part[i].model, 0, mp, name);
			return dcp_deepspeed_text(
				ds,
				"%s is missing or damaged: tensor-parallel rank "
				"%" PRIu32 " of %" PRIu32 " holds a part of it",
				name, mp % ds->tp, ds->tp);
		}
	return NULL;
}

/* Fill in the ranks without the parameter. A rank does not list an unevenly cut tensor of which, by
 * the map, it has no element. Returns why another rank lacks the parameter, or NULL. */
static const char *fill_up(struct dcp_deepspeed *ds, struct dcp_deepspeed_shared *s,
			   uint32_t stage, const struct dcp_deepspeed_rule *rule)
{
	const struct dcp_deepspeed_map *map =
		rule->cut == DCP_DEEPSPEED_CUT_MAP ? rule->map : NULL;
	uint64_t volume;

	for (uint32_t k = 0; k < ds->tp; k++) {
		const char *why = s->part[k] ? NULL : say_absent(ds, stage * ds->tp + k);

		if (why)
			return why;
		if (s->part[k] || !map || k >= map->n ||
		    !dcp_shape_volume(map->shard[k].shape, map->ndim, &volume) || volume)
			continue;
		s->local[k] = (struct dcp_deepspeed_local){ map->ndim, map->shard[k].shape };
		s->n++;
	}
	return NULL;
}

static int emit_name(const struct names *n, const struct holder *h)
{
	struct dcp_deepspeed *ds = n->t->ds;
	const struct dcp_deepspeed_part *part = &ds->part[h->part];
	const struct dcp_deepspeed_param *p = &part->param[h->param];
	struct dcp_deepspeed_whole whole;
	struct dcp_deepspeed_rule rule;
	struct dcp_deepspeed_shared s;
	const char *lost, *why;
	int rc;

	if (ds->tp == 1 || p->whole)
		return emit_alone(n->t, NULL, part, p);
	dcp_arena_reset(&n->t->scratch);
	rc = gather_holders(n, h, &s);
	if (rc < 0)
		return rc;
	why = dcp_deepspeed_rule(ds, p->name, &rule);
	lost = fill_up(ds, &s, part->mp / ds->tp, &rule);
	if (lost)
		return dcp_deepspeed_emit_error(n->t, NULL, p->name, p->ndim, p->shape,
						DCP_DTYPE_F32, lost);
	if (s.n < ds->tp)
		why = "not all tensor-parallel ranks have it";
	s.n = ds->tp;
	if (!why && rule.cut == DCP_DEEPSPEED_CUT_AVERAGED)
		rc = dcp_deepspeed_all_same(n->t, &s);
	if (rc < 0)
		return rc;
	if (rc == 1)
		rule.cut = DCP_DEEPSPEED_CUT_REPLICATED;
	if (!why)
		why = dcp_deepspeed_join(&rule, s.local, s.n, &n->t->scratch, &whole);
	if (!why && whole.sum)
		why = whole.mean ? "it is the mean of what the ranks hold, which differ: no "
				   "file has it"
				 : "it is the sum of what the ranks hold: no file has it";
	if (!why)
		return dcp_deepspeed_emit_joined(n->t, NULL, &s, &whole);
	rc = dcp_deepspeed_note_unjoined(ds, p->name, why, &rule);
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
	const struct dcp_deepspeed *ds = n->t->ds;
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
	const struct dcp_deepspeed_part *part = n->t->ds->part;
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

int dcp_deepspeed_emit_states(struct dcp_deepspeed *ds)
{
	struct dcp_deepspeed_emitter t = { .ds = ds };
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
