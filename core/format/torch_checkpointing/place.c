/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/torch_checkpointing/items_int.h"

#include <errno.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/torch/shard/shard.h"
#include "core/model/tensor.h"

/* What one rank should hold. */
struct part {
	const struct dcp_tplace_box *box;
	size_t n;
	uint64_t local[DCP_MAX_NDIM]; /* the shape of its local tensor, by placements */
};

/* ---- which boxes ---- */

static int read_cut(const struct dcp_titems_group *g, uint32_t rank, struct dcp_arena *arena,
		    struct part *p, struct dcp_err *err)
{
	const struct dcp_titems_rank *r = dcp_titems_list_find(g->mesh, rank);
	struct dcp_tplace place[DCP_TPLACE_MAX];
	struct dcp_cut cut;
	uint64_t at;
	int rc;

	if (!r)
		return dcp_fail(err, -EBADMSG,
				"metadata.pkl says that rank %u holds it, but not where in the "
				"mesh that rank is",
				rank);
	at = r->at;
	for (uint32_t i = g->nplace; i-- > 0; at /= g->place[i].n) {
		place[i] = g->place[i];
		place[i].at = at % place[i].n;
	}
	rc = dcp_tplace_cut(place, g->nplace, g->ndim, g->shape, arena, &cut, err);
	if (rc < 0)
		return rc;
	dcp_cut_shape(&cut, p->local);
	rc = dcp_tplace_boxes(&cut, DCP_TITEMS_MAX_BOXES, arena, &p->box, &p->n);
	return rc == -E2BIG ? dcp_fail(err, rc, "its rank holds more than %u boxes of it",
				       DCP_TITEMS_MAX_BOXES)
			    : rc;
}

static int find_part(const struct dcp_titems_group *g, uint32_t rank, struct dcp_arena *arena,
		     struct part *p, struct dcp_err *err)
{
	if (g->error)
		return dcp_fail(err, -EBADMSG, "metadata.pkl: %s", g->error);
	if (g->mesh)
		return read_cut(g, rank, arena, p, err);
	p->box = g->box;
	p->n = g->nbox;
	return 0;
}

/* ---- found and expected ---- */

static int check_dtype(const struct dcp_titems_group *g, const struct dcp_tensor *t,
		       struct dcp_err *err)
{
	enum dcp_dtype dtype = dcp_dtype_from_torch(g->dtype, strlen(g->dtype));
	const char *name = dtype == DCP_DTYPE_OTHER ? g->dtype : dcp_dtype_info(dtype)->name;

	if (t->dtype == dtype && strcmp(t->dtype_name, name) == 0)
		return 0;
	return dcp_fail(err, -EBADMSG, "found elements of %s, expected %s by metadata.pkl",
			t->dtype_name, name);
}

static bool same_shape(const uint64_t *a, uint32_t na, const uint64_t *b, uint32_t nb)
{
	return na == nb && memcmp(a, b, na * sizeof(*a)) == 0;
}

static int check_shape(const struct dcp_tensor *t, const uint64_t *want, uint32_t ndim,
		       struct dcp_err *err)
{
	char found[200], expected[200];

	if (same_shape(t->shape, t->ndim, want, ndim))
		return 0;
	return dcp_fail(err, -EBADMSG, "found a tensor of %s, expected %s by metadata.pkl",
			dcp_dims_text(found, sizeof(found), t->shape, t->ndim),
			dcp_dims_text(expected, sizeof(expected), want, ndim));
}

/* Boxes that ranks describe themselves lie somewhere in the local tensor. */
static int check_inside(const struct dcp_tensor *t, const struct part *p, uint32_t ndim,
			struct dcp_err *err)
{
	char found[200];

	for (size_t i = 0; i < p->n; i++)
		for (uint32_t k = 0; k < ndim; k++)
			if (t->ndim != ndim ||
			    !dcp_range_ok(p->box[i].at[k], p->box[i].len[k], t->shape[k]))
				return dcp_fail(
					err, -EBADMSG,
					"found a tensor of %s, expected one that holds shard "
					"%zu of metadata.pkl",
					dcp_dims_text(found, sizeof(found), t->shape, t->ndim),
					i);
	return 0;
}

static int check_local(const struct dcp_titems_group *g, const struct dcp_tensor *t,
		       const struct part *p, struct dcp_err *err)
{
	uint64_t a, b;
	int rc = check_dtype(g, t, err);

	if (rc < 0 || !g->mesh)
		return rc < 0 ? rc : check_inside(t, p, g->ndim, err);
	/* What holds nothing may have any shape. */
	if (dcp_shape_volume(t->shape, t->ndim, &a) && a == 0 &&
	    dcp_shape_volume(p->local, g->ndim, &b) && b == 0)
		return 0;
	return check_shape(t, p->local, g->ndim, err);
}

/* ---- pieces ---- */

static bool is_empty(const struct dcp_tplace_box *b, uint32_t ndim)
{
	for (uint32_t k = 0; k < ndim; k++)
		if (b->len[k] == 0)
			return true;
	return false;
}

int dcp_titems_place(const struct dcp_titems_group *g, uint32_t rank,
		     const struct dcp_tensor *local, struct dcp_arena *arena,
		     struct dcp_tensor *out, struct dcp_err *err)
{
	struct part p = { 0 };
	struct dcp_piece *to;
	int rc = find_part(g, rank, arena, &p, err);

	if (rc == 0)
		rc = check_local(g, local, &p, err);
	if (rc < 0)
		return rc;
	to = dcp_arena_calloc(arena, p.n + 1, sizeof(*to));
	if (!to)
		return -ENOMEM;
	*out = *local;
	out->alias_of = NULL;
	out->ndim = g->ndim;
	out->shape = g->shape;
	out->pieces = to;
	out->npieces = 0;
	for (size_t i = 0; i < p.n && rc == 0; i++) {
		if (is_empty(&p.box[i], g->ndim))
			continue;
		to[out->npieces] = *local->pieces;
		rc = dcp_tplace_piece(&p.box[i], local->ndim, local->shape,
				      local->pieces->stride, local->itemsize, arena,
				      &to[out->npieces++]);
	}
	if (rc == -ENOMEM)
		return -ENOMEM;
	return rc < 0 ? dcp_fail(err, rc, "its place in the file does not fit in 64 bits") : 0;
}

static int wrong_part(const struct dcp_piece *have, const struct dcp_piece *want, uint32_t ndim,
		      struct dcp_err *err)
{
	char found[180] = "nothing", expected[180];

	if (have)
		dcp_tshard_region(found, sizeof(found), have, ndim);
	return dcp_fail(err, -EBADMSG,
			"found a DTensor that holds [%s], expected [%s] by metadata.pkl", found,
			dcp_tshard_region(expected, sizeof(expected), want, ndim));
}

int dcp_titems_compare(const struct dcp_titems_group *g, uint32_t rank,
		       const struct dcp_tensor *part, struct dcp_arena *arena,
		       struct dcp_err *err)
{
	struct part p = { 0 };
	size_t n = 0;
	int rc = find_part(g, rank, arena, &p, err);

	if (rc == 0)
		rc = check_dtype(g, part, err);
	if (rc == 0)
		rc = check_shape(part, g->shape, g->ndim, err);
	for (size_t i = 0; i < p.n && rc == 0; i++) {
		const struct dcp_piece want = { .lo = p.box[i].lo, .len = p.box[i].len };
		const struct dcp_piece *have = n < part->npieces ? &part->pieces[n] : NULL;

		if (is_empty(&p.box[i], g->ndim))
			continue;
		if (!have || !same_shape(have->lo, g->ndim, want.lo, g->ndim) ||
		    !same_shape(have->len, g->ndim, want.len, g->ndim))
			return wrong_part(have, &want, g->ndim, err);
		n++;
	}
	if (rc == 0 && n != part->npieces)
		rc = dcp_fail(err, -EBADMSG,
			      "found a DTensor in %zu part%s, expected %zu by metadata.pkl",
			      part->npieces, dcp_s(part->npieces), n);
	return rc;
}
