/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the parts that all files have of each tensor, emits the whole tensors, and reports missing
 * parts. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/torch/torch.h"
#include "core/format/torch_checkpointing/items_int.h"
#include "core/model/tensor.h"

/* The part of a tensor that one rank should hold, by metadata.pkl. */
struct part {
	const struct dcp_torch_placement_box *box;
	size_t n;
	uint64_t local[DCP_MAX_NDIM]; /* the shape of its local tensor, by placements */
};

/* ---- which boxes ---- */

static int read_cut(const struct dcp_items_group *g, uint32_t rank, struct dcp_arena *arena,
		    struct part *p, struct dcp_err *err)
{
	const struct dcp_items_rank *r = dcp_items_list_find(g->mesh, rank);
	struct dcp_torch_placement place[DCP_TORCH_PLACEMENT_MAX];
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
	rc = dcp_torch_placement_cut(place, g->nplace, g->ndim, g->shape, arena, &cut, err);
	if (rc < 0)
		return rc;
	dcp_cut_shape(&cut, p->local);
	rc = dcp_torch_placement_boxes(&cut, DCP_ITEMS_MAX_BOXES, arena, &p->box, &p->n);
	return rc == -E2BIG ? dcp_fail(err, rc, "its rank holds more than %u boxes of it",
				       DCP_ITEMS_MAX_BOXES)
			    : rc;
}

static int find_part(const struct dcp_items_group *g, uint32_t rank, struct dcp_arena *arena,
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

static int check_dtype(const struct dcp_items_group *g, const struct dcp_tensor *t,
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

/* The boxes of default_tensor_v1 may lie anywhere in the local tensor, but must fit into it. */
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

static int check_local(const struct dcp_items_group *g, const struct dcp_tensor *t,
		       const struct part *p, struct dcp_err *err)
{
	uint64_t a, b;
	int rc = check_dtype(g, t, err);

	if (rc < 0 || !g->mesh)
		return rc < 0 ? rc : check_inside(t, p, g->ndim, err);
	/* A local tensor without elements may have any shape. */
	if (dcp_shape_volume(t->shape, t->ndim, &a) && a == 0 &&
	    dcp_shape_volume(p->local, g->ndim, &b) && b == 0)
		return 0;
	return check_shape(t, p->local, g->ndim, err);
}

/* ---- pieces ---- */

static bool is_empty(const struct dcp_torch_placement_box *b, uint32_t ndim)
{
	for (uint32_t k = 0; k < ndim; k++)
		if (b->len[k] == 0)
			return true;
	return false;
}

int dcp_items_place(const struct dcp_items_group *g, uint32_t rank,
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
		rc = dcp_torch_placement_piece(&p.box[i], local->ndim, local->shape,
					       local->pieces->stride, local->itemsize, arena,
					       &to[out->npieces++]);
	}
	if (rc == -ENOMEM)
		return -ENOMEM;
	return rc < 0 ? dcp_fail(err, rc, "its place in the file does not fit in 64 bits") : 0;
}

static int fail_wrong_part(const struct dcp_piece *have, const struct dcp_piece *want,
			   uint32_t ndim, struct dcp_err *err)
{
	char found[180] = "nothing", expected[180];

	if (have)
		dcp_shard_region(found, sizeof(found), have, ndim);
	return dcp_fail(err, -EBADMSG,
			"found a DTensor that holds [%s], expected [%s] by metadata.pkl", found,
			dcp_shard_region(expected, sizeof(expected), want, ndim));
}

int dcp_items_compare(const struct dcp_items_group *g, uint32_t rank,
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
			return fail_wrong_part(have, &want, g->ndim, err);
		n++;
	}
	if (rc == 0 && n != part->npieces)
		rc = dcp_fail(err, -EBADMSG,
			      "found a DTensor in %zu part%s, expected %zu by metadata.pkl",
			      part->npieces, dcp_s(part->npieces), n);
	return rc;
}

/* sink: keeps the tensors of all ranks' files until all files are read. */

struct dcp_items_file *dcp_items_file(const struct dcp_items *r, size_t i)
{
	return DCP_ITEMS(r->files, struct dcp_items_file) + i;
}

/* The key and path of @t without the rank. */
static void drop_rank(const struct dcp_items *r, struct dcp_tensor *t)
{
	for (size_t i = 0; i < r->front.nrank && i < t->npath; i++) {
		t->key += strlen(t->path[i]) + (t->npath > 1);
		t->path++;
		t->npath--;
	}
}

/* Note that key number @k is unreadable, because the current rank's part of it is wrong. The
 * first fault of a key is kept. */
static int note_fault(struct dcp_items *r, uint32_t k, const struct dcp_err *why)
{
	const struct dcp_items_file *f = dcp_items_file(r, r->at);
	static const char *const none = NULL;
	const char **fault;
	char text[sizeof(why->msg) + 300];

	while (r->faults.n / sizeof(none) < r->copies.names.n && !dcp_buf_error(&r->faults))
		dcp_buf_add(&r->faults, &none, sizeof(none));
	if (dcp_buf_error(&r->faults))
		return -ENOMEM;
	fault = DCP_ITEMS(r->faults, const char *) + k;
	if (*fault)
		return 0;
	snprintf(text, sizeof(text), "rank %u, %.250s: %s", f->rank, f->name, why->msg);
	*fault = dcp_arena_strdup(&r->arena, text);
	return *fault ? 0 : -ENOMEM;
}

static int keep_tensor(struct dcp_items *r, const struct dcp_tensor *t,
		       const struct dcp_err *fault)
{
	int rc = dcp_copies_add(&r->copies, t, (uint32_t)r->at, dcp_items_file(r, r->at)->name);

	if (rc < 0 || !fault)
		return rc;
	return note_fault(r, dcp_intern_find(&r->copies.names, t->key, strlen(t->key)), fault);
}

/* The entry of @key and its group with the current rank, or NULL if metadata.pkl has none. */
static const struct dcp_items_entry *look_up(const struct dcp_items *r, const char *key,
					     const struct dcp_items_group **g)
{
	const struct dcp_items_file *f = dcp_items_file(r, r->at);
	const struct dcp_items_entry *e = f->ranked ? dcp_items_find(&r->meta, key) : NULL;

	*g = e ? dcp_items_group_of(e, f->rank) : NULL;
	return *g ? e : NULL;
}

int dcp_items_on_part(void *ctx, const struct dcp_tensor *emitted)
{
	struct dcp_items *r = ctx;
	const struct dcp_items_group *g;
	struct dcp_tensor t = *emitted;
	struct dcp_err why = { 0 };
	int rc = 0;

	drop_rank(r, &t);
	if (look_up(r, t.key, &g) && !t.error) {
		dcp_arena_reset(&r->scratch);
		rc = dcp_items_compare(g, dcp_items_file(r, r->at)->rank, &t, &r->scratch,
				       &why);
	}
	if (rc == -ENOMEM)
		return rc;
	return keep_tensor(r, &t, rc < 0 ? &why : NULL);
}

/* Emit a tensor without a place. If it is an alias of a tensor with a place, which is emitted only
 * later, the alias becomes a tensor of its own. */
static int emit_own(struct dcp_items *r, const struct dcp_tensor *emitted)
{
	size_t rank = r->front.nrank ? strlen(r->front.rank) + 1 : 0;
	const struct dcp_items_group *g;
	struct dcp_tensor t = *emitted;

	if (t.alias_of && look_up(r, t.alias_of + rank, &g))
		t.alias_of = NULL;
	return dcp_emit_tensor(r->in->sink, &t);
}

int dcp_items_on_tensor(void *ctx, const struct dcp_tensor *emitted)
{
	struct dcp_items *r = ctx;
	const struct dcp_items_group *g;
	const struct dcp_items_entry *e;
	struct dcp_tensor t = *emitted, placed;
	struct dcp_err why = { 0 };
	int rc;

	drop_rank(r, &t);
	e = look_up(r, t.key, &g);
	if (!e)
		return emit_own(r, emitted);
	t.path = e->path;
	t.npath = e->npath;
	if (t.error)
		return keep_tensor(r, &t, NULL);
	dcp_arena_reset(&r->scratch);
	rc = dcp_items_place(g, dcp_items_file(r, r->at)->rank, &t, &r->scratch, &placed, &why);
	if (rc == 0)
		return keep_tensor(r, &placed, NULL);
	if (rc == -ENOMEM)
		return rc;
	t.error = why.msg;
	return keep_tensor(r, &t, &why);
}

struct joined {
	struct dcp_items *r;
	const char *fault;
};

static int on_joined(void *ctx, const struct dcp_tensor *emitted)
{
	const struct joined *j = ctx;
	struct dcp_tensor t = *emitted;
	int rc = 0;

	if (j->fault)
		t.error = j->fault;
	if (!t.error && t.npieces) /* tied tensors have all their pieces in common */
		rc = dcp_places_find(&j->r->places, &t);
	return rc < 0 ? rc : dcp_emit_tensor(j->r->in->sink, &t);
}

/* The file that holds @item of rank @rank, or NULL. */
static const struct dcp_items_file *file_of(const struct dcp_items *r, const char *item,
					    uint32_t rank)
{
	size_t i;

	DCP_BISECT(i, 0, r->nfiles,
		   dcp_items_file(r, i)->ranked && dcp_items_file(r, i)->rank < rank);
	for (; i < r->nfiles; i++) {
		const struct dcp_items_file *f = dcp_items_file(r, i);

		if (!f->ranked || f->rank != rank)
			return NULL;
		if (!f->item || strcmp(f->item, item) == 0)
			return f;
	}
	return NULL;
}

static const char *say_lacking(const struct dcp_items *r, const char *item, uint32_t rank,
			       struct dcp_err *why)
{
	const struct dcp_items_file *f = file_of(r, item, rank);

	dcp_fail(why, -EBADMSG,
		 f && f->broken
			 ? "%s, the file of rank %u, cannot be read"
			 : "%s of rank %u has no such tensor, though metadata.pkl says so",
		 f ? f->name : "the file", rank);
	return why->msg;
}

/* The reason when elements of @e are missing: the first rank that should hold a part and does
 * not. Copies are in the order of their ranks. */
static const char *say_missing(const struct dcp_items *r, const struct dcp_items_entry *e,
			       const struct dcp_copies_key *k, struct dcp_err *why)
{
	for (const struct dcp_items_group *g = e->first; g; g = g->next) {
		const struct dcp_copy *c = k ? k->first : NULL;

		for (size_t i = 0; g->ranks && i < g->ranks->n; i++) {
			uint32_t rank = g->ranks->by_rank[i].rank;

			while (c && dcp_items_file(r, c->who)->rank < rank)
				c = c->next;
			if (!c || dcp_items_file(r, c->who)->rank != rank)
				return say_lacking(r, e->path[0], rank, why);
		}
	}
	return r->copies.nbroken ? r->copies.broken.msg : NULL;
}

static int emit_joined(struct dcp_items *r, uint32_t number)
{
	const struct dcp_copies_key *k = dcp_copies_at(&r->copies, number);
	const struct dcp_items_entry *e = dcp_items_find(&r->meta, k->first->t.key);
	const char *missing = r->copies.nbroken ? r->copies.broken.msg : NULL;
	struct dcp_err why = { 0 };
	struct joined j = { .r = r };
	struct dcp_sink sink = { .tensor = on_joined, .ctx = &j };

	if (number < r->faults.n / sizeof(j.fault))
		j.fault = DCP_ITEMS(r->faults, const char *)[number];
	if (e && e->error)
		j.fault = e->error;
	if (e)
		missing = say_missing(r, e, k, &why);
	return dcp_copies_emit(&r->copies, number, &sink, missing);
}

/* Emit @e with an error if no file holds a part of it. */
static int emit_lost(struct dcp_items *r, const struct dcp_items_entry *e)
{
	const struct dcp_items_group *g = e->first;
	struct dcp_err why = { 0 };
	struct dcp_tensor t = {
		.key = e->key,
		.path = e->path,
		.npath = e->npath,
		.dtype_name = "",
		.error = e->error,
	};

	if (dcp_intern_has(&r->copies.names, e->key) || dcp_intern_has(&r->parts.keys, e->key))
		return 0;
	if (!t.error && g && g->error)
		t.error = g->error;
	if (!t.error)
		t.error = say_missing(r, e, NULL, &why);
	if (!t.error)
		t.error = "metadata.pkl lists it, and no file holds it";
	return dcp_emit_tensor(r->in->sink, &t);
}

int dcp_items_join(struct dcp_items *r)
{
	int rc = 0;

	for (uint32_t k = 0; k < r->copies.names.n && rc == 0; k++)
		rc = emit_joined(r, k);
	for (size_t i = 0; i < dcp_items_nentries(&r->meta) && rc == 0; i++)
		rc = emit_lost(r, dcp_items_entry(&r->meta, i));
	return rc;
}
