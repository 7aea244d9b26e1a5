/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/torch_checkpointing/place.h"

#include <errno.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/ckd.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/torch/shard/shard.h"
#include "core/model/tensor.h"

/* What one rank should hold. */
struct part {
	const struct dcp_titems_box *box;
	size_t n;
	uint64_t local[DCP_MAX_NDIM]; /* the shape of its local tensor, by placements */
};

/* ---- which boxes ---- */

/* Each span of each dimension with each of the others. */
static int boxes_of_cut(const struct dcp_cut *cut, struct dcp_arena *arena, struct part *p,
			struct dcp_err *err)
{
	struct dcp_titems_box *box;
	uint32_t ndim = cut->ndim;
	uint64_t n = 1;

	for (uint32_t k = 0; k < ndim; k++)
		if (dcp_ckd_mul(&n, n, cut->axis[k].n) || n > DCP_TITEMS_MAX_BOXES)
			return dcp_fail(err, -E2BIG, "its rank holds more than %u boxes of it",
					DCP_TITEMS_MAX_BOXES);
	box = dcp_arena_calloc(arena, n + 1, sizeof(*box));
	if (!box)
		return -ENOMEM;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t *dims = dcp_arena_calloc(arena, 3 * (size_t)ndim + 1, sizeof(*dims));
		uint64_t rest = i;

		if (!dims)
			return -ENOMEM;
		for (uint32_t k = ndim; k-- > 0; rest /= cut->axis[k].n) {
			const struct dcp_span *s = &cut->axis[k].span[rest % cut->axis[k].n];

			dims[k] = s->lo;
			dims[ndim + k] = s->at;
			dims[2 * ndim + k] = s->n;
		}
		box[i] = (struct dcp_titems_box){ dims, dims + ndim, dims + 2 * ndim };
	}
	p->box = box;
	p->n = n;
	return 0;
}

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
	return boxes_of_cut(&cut, arena, p, err);
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

/* The elements of @b, which lies in the stored piece @from of shape @shape. */
static int make_piece(const struct dcp_tensor *t, const struct dcp_titems_box *b,
		      struct dcp_arena *arena, struct dcp_piece *p)
{
	const struct dcp_piece *from = t->pieces;
	uint64_t *stride = dcp_arena_calloc(arena, t->ndim + 1u, sizeof(*stride));
	uint64_t dense = 1, first = 0, last = 0, step;
	bool bad = false;

	if (!stride)
		return -ENOMEM;
	for (uint32_t k = t->ndim; k-- > 0;) {
		stride[k] = from->stride ? from->stride[k] : dense;
		bad |= dcp_ckd_mul(&dense, dense, t->shape[k]);
		bad |= dcp_ckd_mul(&step, b->at[k], stride[k]) ||
		       dcp_ckd_add(&first, first, step);
		bad |= dcp_ckd_mul(&step, b->len[k] - 1, stride[k]) ||
		       dcp_ckd_add(&last, last, step);
	}
	*p = *from;
	p->lo = b->lo;
	p->len = b->len;
	if (from->stride || memcmp(b->len, t->shape, t->ndim * sizeof(*b->len)) != 0)
		p->stride = stride;
	bad |= !dcp_shape_volume(b->len, t->ndim, &p->run_n) ||
	       dcp_ckd_mul(&first, first, t->itemsize) || dcp_ckd_add(&p->off, p->off, first) ||
	       dcp_ckd_add(&last, last, 1) || dcp_ckd_mul(&p->nbytes, last, t->itemsize);
	return bad ? -EBADMSG : 0;
}

static bool is_empty(const struct dcp_titems_box *b, uint32_t ndim)
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
	for (size_t i = 0; i < p.n && rc == 0; i++)
		if (!is_empty(&p.box[i], g->ndim))
			rc = make_piece(local, &p.box[i], arena, &to[out->npieces++]);
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
