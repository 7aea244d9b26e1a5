/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "core/base/ckd.h"
#include "core/base/err.h"
#include "core/base/sort.h"
#include "core/format/paddle/plain/auto/auto_int.h"

/* The key at hand. */
struct joined {
	struct dcp_pdjoin *j;
	const struct dcp_copy *like; /* a part that can be read: all others must be like it */
	struct dcp_tensor t;
	uint64_t shape[DCP_MAX_NDIM];
	uint64_t nparts;              /* counting each set of copies once */
	const struct dcp_copy **part; /* by number */
	struct dcp_err why;
};

/* What all ranks' attributes say of the key; -ENOENT: nothing. */
static int agree(struct joined *x, const struct dcp_pdentry *e, struct dcp_pdcut *cut)
{
	const struct dcp_pdrank *ranks = x->j->ranks;
	struct dcp_pdcut other;

	if (!e->said)
		return dcp_fail(&x->why, -ENOENT,
				"several ranks hold it and no .pdattr says how it was cut");
	for (const struct dcp_pdsaid *s = e->said; s; s = s->next) {
		int rc = dcp_pdcut_read(s == e->said ? cut : &other, s->v, x->t.ndim, &x->why);

		if (rc < 0)
			return dcp_err_where(&x->why, rc, "attributes of rank %" PRIu64,
					     ranks[s->rank].number);
		if (s != e->said && !dcp_pdcut_same(cut, &other))
			return dcp_fail(&x->why, -EBADMSG,
					"attributes of ranks %" PRIu64 " and %" PRIu64
					" disagree about how it was cut",
					ranks[e->said->rank].number, ranks[s->rank].number);
	}
	return 0;
}

/* ---- who holds which part ---- */

static int same_form(struct joined *x, const struct dcp_copy *h)
{
	if (dcp_copies_alike(&x->like->t, &h->t))
		return 0;
	return dcp_fail(&x->why, -EBADMSG,
			"%.120s and %.120s have parts of different shape or dtype, expected "
			"equal ones",
			x->like->file, h->file);
}

static struct dcp_pdrank *rank_of(const struct dcp_pdjoin *j, uint64_t number)
{
	size_t i;

	DCP_BISECT(i, 0, j->nranks, j->ranks[i].number < number);
	return i < j->nranks && j->ranks[i].number == number ? &j->ranks[i] : NULL;
}

/* Why rank @number's part, of which there is no copy, cannot be had. */
static int lacking(struct joined *x, uint64_t number)
{
	const struct dcp_pdrank *r = rank_of(x->j, number);

	if (!r)
		return dcp_fail(&x->why, -ENODATA,
				"its part of rank %" PRIu64
				" is missing: that rank's .pdparams is not here",
				number);
	if (r->held || r->why)
		return dcp_fail(&x->why, -ENODATA, "its part of rank %" PRIu64 ": %s", number,
				r->held ? r->held->t.error : r->why);
	return dcp_fail(&x->why, -ENODATA,
			"its part of rank %" PRIu64 " is missing: %.200s does not hold it",
			number, r->part->file);
}

/* Find a holder for each part, of copies the lowest rank. */
static int place_parts(struct joined *x, const struct dcp_pdcut *c)
{
	const struct dcp_pdrank *ranks = x->j->ranks;
	uint64_t number = 0;

	for (uint64_t place = 0; place < c->nplaces; place++) {
		const struct dcp_copy **part = &x->part[dcp_pdcut_part(c, x->t.ndim, place)];
		const struct dcp_pdrank *r;

		if (!dcp_pv_u64(c->group[place], &number))
			return dcp_fail(&x->why, -EBADMSG,
					"process_group holds something else than ranks");
		r = rank_of(x->j, number);
		if (!r || !r->held || r->held->t.error)
			continue;
		if (same_form(x, r->held) < 0)
			return -EBADMSG;
		if (!*part || number < ranks[(*part)->who].number)
			*part = r->held;
	}
	for (uint64_t place = 0; place < c->nplaces; place++)
		if (!x->part[dcp_pdcut_part(c, x->t.ndim, place)]) {
			dcp_pv_u64(c->group[place], &number);
			return lacking(x, number);
		}
	return 0;
}

/* ---- the whole ---- */

/* Where part @number begins in the whole. */
static void find_first(const struct joined *x, const struct dcp_pdcut *c, uint64_t number,
		       uint64_t first[DCP_MAX_NDIM])
{
	for (uint32_t d = x->t.ndim; d-- > 0;) {
		first[d] = c->by[d] < 0 ? 0 : number % c->mesh[c->by[d]] * x->like->t.shape[d];
		number /= c->by[d] < 0 ? 1 : c->mesh[c->by[d]];
	}
}

/* Shape of the whole, and of how many parts it is: at most the places of the mesh. */
static int measure(struct joined *x, const struct dcp_pdcut *c)
{
	x->nparts = 1;
	for (uint32_t d = 0; d < x->t.ndim; d++) {
		uint64_t n = c->by[d] < 0 ? 1 : c->mesh[c->by[d]];

		x->nparts *= n;
		if (dcp_ckd_mul(&x->shape[d], x->t.shape[d], n))
			return dcp_fail(&x->why, -EBADMSG,
					"its parts together have a size over 64 bits");
	}
	x->t.shape = x->shape;
	x->part = calloc((size_t)x->nparts, sizeof(struct dcp_copy *));
	return x->part ? 0 : -ENOMEM;
}

static int assemble(struct joined *x, const struct dcp_pdcut *c)
{
	struct dcp_copies *all = &x->j->copies;
	uint64_t first[DCP_MAX_NDIM];
	int rc = measure(x, c);

	if (rc == 0)
		rc = place_parts(x, c);
	dcp_join_begin(&all->join);
	for (uint64_t i = 0; rc == 0 && i < x->nparts; i++) {
		find_first(x, c, i, first);
		rc = dcp_join_add_part(&all->join, &x->part[i]->t, first, &all->arena);
	}
	return rc < 0 ? rc : dcp_join_end(&all->join, &x->t, NULL, NULL, &x->why);
}

static int emit(struct joined *x, const struct dcp_copies_key *k, const struct dcp_pdentry *e)
{
	struct dcp_pdcut cut;
	int rc;

	x->like = k->first;
	for (const struct dcp_copy *h = k->first; h; h = h->next) {
		x->j->ranks[h->who].held = h;
		if (x->like->t.error)
			x->like = h;
	}
	x->t = x->like->t;
	x->t.alias_of = NULL; /* tied parameters share their bytes in one file only */
	if (x->t.error)       /* no rank's can be read */
		return dcp_emit_tensor(x->j->in->sink, &x->t);
	rc = agree(x, e, &cut);
	if (rc == 0)
		rc = assemble(x, &cut);
	else if (rc == -ENOENT && !k->first->next)
		rc = 0; /* one rank's own */
	if (rc == -ENOMEM)
		return -ENOMEM;
	if (rc < 0)
		x->t.error = x->why.msg;
	return dcp_emit_tensor(x->j->in->sink, &x->t);
}

static int emit_key(struct dcp_pdjoin *j, const struct dcp_copies_key *k,
		    const struct dcp_pdentry *e)
{
	struct joined x = { .j = j };
	int rc = emit(&x, k, e);

	for (const struct dcp_copy *h = k->first; h; h = h->next)
		j->ranks[h->who].held = NULL;
	free(x.part);
	return rc;
}

/* A key that only attributes have: its rank's tensors could not be read. */
static int emit_absent(struct dcp_pdjoin *j, const char *key, const struct dcp_pdentry *e)
{
	const struct dcp_pdrank *r = &j->ranks[e->said->rank];
	struct dcp_tensor t = {
		.key = key,
		.path = &key,
		.npath = 1,
		.dtype_name = "",
		.error = r->why ? r->why : "a .pdattr names it, no .pdparams here holds it",
	};

	return dcp_emit_tensor(j->in->sink, &t);
}

int dcp_pdjoin_emit(struct dcp_pdjoin *j)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < j->copies.names.n; i++) {
		const struct dcp_copies_key *k = dcp_copies_at(&j->copies, i);
		const struct dcp_pdentry *e = dcp_buf_at(&j->entries, i, sizeof(*e));

		if (!e)
			return -ENOMEM;
		rc = k->first ? emit_key(j, k, e)
			      : emit_absent(j, dcp_intern_text(&j->copies.names, i), e);
	}
	return rc;
}
