/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joins the ranks' parts of a tensor: for every rank, boxes of the whole tensor. The elements of a
 * box are consecutive elements of the rank's tensor in row-major order.
 *
 *	rows         the ranks' rows, one rank after the other
 *	columns      the ranks' columns, beside each other
 *	replicated   the tensor of rank 0
 *	halves       all first halves, then all second halves (dimension 0)
 *	subs         all first parts, then all second parts, ... along one dimension
 *	map          blocks as recorded
 *	averaged     the mean of all ranks, element by element
 *	summed       the sum of all ranks
 *
 * Rows that are padding are cut off.
 */
#include "core/format/deepspeed/deepspeed_int.h"

#include <errno.h>
#include <string.h>

#include "core/base/bytes.h"

enum { MAX_BOXES = 1 << 18 }; /* stretches that a tensor may fall into */

static struct dcp_deepspeed_box *new_box(struct dcp_deepspeed_whole *w)
{
	struct dcp_deepspeed_box *more;

	if (w->nbox < w->room)
		return &w->box[w->nbox++];
	w->room = w->room ? 2 * w->room : 16;
	more = dcp_arena_calloc(w->arena, w->room, sizeof(*more));
	if (!more)
		return NULL;
	if (w->nbox)
		memcpy(more, w->box, w->nbox * sizeof(*more));
	w->box = more;
	return &w->box[w->nbox++];
}

/* Add one stretch of block @b as a box: in dimensions before @outer it has only the element @at. */
static int add_box(struct dcp_deepspeed_whole *w, uint32_t local, const uint64_t *shape,
		   const struct dcp_deepspeed_block *b, uint32_t outer, const uint64_t *at)
{
	uint64_t *lo = dcp_arena_calloc(w->arena, 3 * (size_t)w->ndim + 1, sizeof(*lo));
	struct dcp_deepspeed_box *box = lo ? new_box(w) : NULL;
	uint64_t *len, *from, first = 0;

	if (!box)
		return -ENOMEM;
	len = lo + w->ndim;
	from = len + w->ndim;
	for (uint32_t d = 0; d < w->ndim; d++) {
		uint64_t in = d < outer ? at[d] : 0;

		lo[d] = b->at[d] + in;
		from[d] = b->from[d] + in;
		len[d] = d < outer ? 1 : b->len[d];
		first = first * shape[d] + from[d];
	}
	*box = (struct dcp_deepspeed_box){
		.local = local, .first = first, .lo = lo, .len = len, .from = from
	};
	return dcp_shape_volume(len, w->ndim, &box->n) ? 0 : -EINVAL;
}

/* Add a block of a rank's tensor of @shape, stretch by stretch. -E2BIG: too many stretches. */
static int dcp_deepspeed_add_block(struct dcp_deepspeed_whole *w, uint32_t local,
				   const uint64_t *shape, const struct dcp_deepspeed_block *b)
{
	uint64_t at[DCP_MAX_NDIM] = { 0 };
	uint32_t outer = w->ndim, d;
	int rc;

	for (d = 0; d < w->ndim; d++)
		if (b->len[d] == 0)
			return 0;
	while (outer > 0 && b->len[outer - 1] == shape[outer - 1])
		outer--;
	/* a stretch may be cut in one dimension: the last that is not whole */
	outer -= outer > 0;
	do {
		if (w->nbox >= MAX_BOXES)
			return -E2BIG;
		rc = add_box(w, local, shape, b, outer, at);
		for (d = outer; d-- > 0 && ++at[d] == b->len[d];)
			at[d] = 0;
	} while (rc == 0 && d < outer);
	return rc;
}

/* Add elements [from, from + n) along @dim of a rank's tensor of @shape; in the whole they begin at
 * @at. */
static int dcp_deepspeed_add_stretch(struct dcp_deepspeed_whole *w, uint32_t local,
				     const uint64_t *shape, uint32_t dim, uint64_t from,
				     uint64_t at, uint64_t n)
{
	uint64_t start[DCP_MAX_NDIM] = { 0 }, end[DCP_MAX_NDIM] = { 0 }, len[DCP_MAX_NDIM];
	struct dcp_deepspeed_block b = { .from = start, .at = end, .len = len };

	memcpy(len, shape, w->ndim * sizeof(*shape));
	start[dim] = from;
	end[dim] = at;
	len[dim] = n;
	return dcp_deepspeed_add_block(w, local, shape, &b);
}

enum { MAX_SUBS = 4096 }; /* parts that a tensor may be made of */

/* ---- along one dimension ---- */

/* Do all ranks have the shape of the first rank, except in @dim? */
static bool are_alike(const struct dcp_deepspeed_local *local, size_t n, uint32_t dim)
{
	for (size_t i = 1; i < n; i++) {
		if (local[i].ndim != local[0].ndim)
			return false;
		for (uint32_t d = 0; d < local[0].ndim; d++)
			if (d != dim && local[i].shape[d] != local[0].shape[d])
				return false;
	}
	return local[0].ndim > dim || dim == DCP_MAX_NDIM;
}

static int take_one(const struct dcp_deepspeed_local *local, struct dcp_deepspeed_whole *w)
{
	struct dcp_deepspeed_block all = { .from = dcp_origin,
					   .at = dcp_origin,
					   .len = local->shape };

	w->ndim = local->ndim;
	memcpy(w->shape, local->shape, w->ndim * sizeof(*w->shape));
	return dcp_deepspeed_add_block(w, 0, local->shape, &all);
}

/*
 * Each rank's tensor consists of @nsub stretches of @width[sub][rank] along @dim. The whole has the
 * first stretch of all ranks, then the second of all ranks, ... @shape is that of a rank, except in
 * @dim.
 */
static int cut_subs(const uint64_t *const *width, uint32_t nsub, size_t n, uint32_t dim,
		    const uint64_t *shape, uint32_t ndim, struct dcp_deepspeed_whole *w)
{
	uint64_t mine[DCP_MAX_NDIM], *at = dcp_arena_calloc(w->arena, nsub, sizeof(*at));
	uint64_t all = 0;
	int rc = 0;

	if (!at)
		return -ENOMEM;
	for (uint32_t s = 0; s < nsub; s++) {
		at[s] = all;
		for (size_t i = 0; i < n; i++)
			if (dcp_ckd_add(&all, all, width[s][i]))
				return -EINVAL;
	}
	w->ndim = ndim;
	memcpy(w->shape, shape, ndim * sizeof(*shape));
	memcpy(mine, shape, ndim * sizeof(*shape));
	w->shape[dim] = all;
	for (size_t i = 0; rc == 0 && i < n; i++) {
		uint64_t from = 0;

		mine[dim] = 0;
		for (uint32_t s = 0; s < nsub; s++)
			mine[dim] += width[s][i];
		for (uint32_t s = 0; rc == 0 && s < nsub; s++) {
			rc = dcp_deepspeed_add_stretch(w, (uint32_t)i, mine, dim, from, at[s],
						       width[s][i]);
			from += width[s][i];
			at[s] += width[s][i];
		}
	}
	return rc;
}

static int cut_along(const struct dcp_deepspeed_local *local, size_t n, uint32_t dim,
		     struct dcp_deepspeed_whole *w)
{
	uint64_t *width = dcp_arena_calloc(w->arena, n, sizeof(*width));

	if (!width)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		width[i] = local[i].shape[dim];
	return cut_subs((const uint64_t *const *)&width, 1, n, dim, local->shape, local->ndim,
			w);
}

static int cut_halves(const struct dcp_deepspeed_local *local, size_t n,
		      struct dcp_deepspeed_whole *w)
{
	uint64_t *half[2];

	for (int h = 0; h < 2; h++) {
		half[h] = dcp_arena_calloc(w->arena, n, sizeof(**half));
		if (!half[h])
			return -ENOMEM;
		/* torch.chunk gives an odd row to the first half */
		for (size_t i = 0; i < n; i++)
			half[h][i] = h ? local[i].shape[0] / 2 : (local[i].shape[0] + 1) / 2;
	}
	return cut_subs((const uint64_t *const *)half, 2, n, 0, local->shape, local->ndim, w);
}

/* ---- subs ---- */

/* Before version 0.4 the ranks' shares were not recorded, because each part was cut evenly. */
static const char *even_shards(const struct dcp_deepspeed_sub *sub,
			       const struct dcp_deepspeed_local *local, size_t n, uint32_t nsub,
			       uint64_t **width, struct dcp_arena *arena)
{
	uint64_t all = 0;

	if (sub->unequal)
		return "no sub_param_shard_widths say how its ranks share its parts";
	for (size_t i = 0; !sub->width && i < n; i++) {
		if (sub->dim >= local[i].ndim ||
		    dcp_ckd_add(&all, all, local[i].shape[sub->dim]))
			return "its shape does not fit its recorded parts";
	}
	if (all % nsub)
		return "it is not a multiple of its parts";
	for (uint32_t s = 0; s < nsub; s++) {
		uint64_t size = sub->width ? sub->width[s] : all / nsub;

		if (size % n)
			return "its parts cannot be shared evenly, and no widths are recorded";
		width[s] = dcp_arena_calloc(arena, n, sizeof(**width));
		if (!width[s])
			return "out of memory";
		for (size_t i = 0; i < n; i++)
			width[s][i] = size / n;
	}
	return NULL;
}

/* The extent of each rank's tensor in @dim, from the widths of its parts, and their sum @all. */
static bool sum_widths(uint64_t *const *width, uint32_t nsub, size_t n, uint64_t *out,
		       uint64_t *all)
{
	*all = 0;
	for (size_t i = 0; i < n; i++) {
		out[i] = 0;
		for (uint32_t s = 0; s < nsub; s++)
			if (dcp_ckd_add(&out[i], out[i], width[s][i]))
				return false;
		if (dcp_ckd_add(all, *all, out[i]))
			return false;
	}
	return true;
}

/* The recorded shape of the whole; an open dimension follows from the number of elements. */
static bool recorded_shape(const struct dcp_deepspeed_sub *sub, uint64_t extent, uint64_t numel,
			   uint64_t *shape)
{
	uint32_t open = DCP_MAX_NDIM;
	uint64_t known = 1;

	for (uint32_t d = 0; d < sub->ndim; d++) {
		shape[d] = d == sub->dim ? extent : sub->shape[d];
		if (shape[d] == DCP_DEEPSPEED_OPEN && open != DCP_MAX_NDIM)
			return false;
		if (shape[d] == DCP_DEEPSPEED_OPEN)
			open = d;
		else if (dcp_ckd_mul(&known, known, shape[d]))
			return false;
	}
	if (open != DCP_MAX_NDIM && (known == 0 || numel % known))
		return false;
	if (open != DCP_MAX_NDIM)
		shape[open] = numel / known;
	return open != DCP_MAX_NDIM || known == numel;
}

/* The shape of the whole. If the ranks' tensors have the widths of the parts in the dimension of
 * the parts, it is their shape except for this dimension. Otherwise it is the recorded shape. */
static bool shape_of(const struct dcp_deepspeed_sub *sub,
		     const struct dcp_deepspeed_local *local, size_t n, const uint64_t *extent,
		     uint64_t all, uint64_t *shape, uint32_t *ndim)
{
	uint64_t numel = 0, one, row = 1;
	bool own = are_alike(local, n, sub->dim);

	for (size_t i = 0; own && i < n; i++)
		own = local[i].shape[sub->dim] == extent[i];
	if (own) {
		*ndim = local->ndim;
		memcpy(shape, local->shape, *ndim * sizeof(*shape));
		return true;
	}
	for (size_t i = 0; i < n; i++)
		if (!dcp_shape_volume(local[i].shape, local[i].ndim, &one) ||
		    dcp_ckd_add(&numel, numel, one))
			return false;
	*ndim = sub->ndim;
	if (!recorded_shape(sub, all, numel, shape))
		return false;
	for (uint32_t d = 0; d < sub->ndim; d++)
		row *= d == sub->dim ? 1 : shape[d];
	for (size_t i = 0; i < n; i++)
		if (!dcp_shape_volume(local[i].shape, local[i].ndim, &one) ||
		    one != extent[i] * row)
			return false;
	return true;
}

static const char *join_subs(const struct dcp_deepspeed_sub *sub,
			     const struct dcp_deepspeed_local *local, size_t n,
			     struct dcp_deepspeed_whole *w, int *rc)
{
	uint64_t nsub = sub->width ? sub->nwidths : sub->shape[sub->dim];
	uint64_t shape[DCP_MAX_NDIM], **width = sub->shard, *extent, all;
	const char *why = NULL;
	uint32_t ndim;

	if (nsub == 0 || nsub >= MAX_SUBS)
		return "its recorded parts are invalid";
	extent = dcp_arena_calloc(w->arena, n, sizeof(*extent));
	if (!width)
		width = dcp_arena_calloc(w->arena, nsub, sizeof(*width));
	if (!width || !extent)
		return "out of memory";
	if (!sub->shard)
		why = even_shards(sub, local, n, (uint32_t)nsub, width, w->arena);
	else if (sub->nshards != n)
		why = "its recorded widths are of another number of ranks";
	if (why)
		return why;
	if (!sum_widths(width, (uint32_t)nsub, n, extent, &all))
		return "its recorded widths are invalid";
	if (!shape_of(sub, local, n, extent, all, shape, &ndim))
		return "a rank's shape does not fit the recorded widths";
	*rc = cut_subs((const uint64_t *const *)width, (uint32_t)nsub, n, sub->dim, shape, ndim,
		       w);
	return NULL;
}

/* ---- blocks as recorded ---- */

static const char *join_map(const struct dcp_deepspeed_map *map,
			    const struct dcp_deepspeed_local *local, size_t n,
			    struct dcp_deepspeed_whole *w, int *rc)
{
	uint64_t has, should;

	if (map->n != n)
		return "its affine_map is of another number of ranks";
	w->ndim = map->ndim;
	memcpy(w->shape, map->shape, w->ndim * sizeof(*w->shape));
	for (size_t i = 0; *rc == 0 && i < n; i++) {
		const struct dcp_deepspeed_shard *s = &map->shard[i];

		if (!dcp_shape_volume(local[i].shape, local[i].ndim, &has) ||
		    !dcp_shape_volume(s->shape, map->ndim, &should) || has != should)
			return "a rank's shape is not the one in its affine_map";
		for (size_t k = 0; *rc == 0 && k < s->n; k++)
			*rc = dcp_deepspeed_add_block(w, (uint32_t)i, s->shape, &s->block[k]);
	}
	return NULL;
}

/* ---- padding ---- */

static void cut_rows(struct dcp_deepspeed_whole *w, uint64_t rows)
{
	if (w->ndim == 0 || w->shape[0] <= rows)
		return;
	w->shape[0] = rows;
	for (size_t i = 0; i < w->nbox; i++) {
		struct dcp_deepspeed_box *b = &w->box[i];
		uint64_t *len = (uint64_t *)(uintptr_t)b->len;
		uint64_t keep = b->lo[0] >= rows ? 0 : DCP_MIN(len[0], rows - b->lo[0]);

		if (keep != len[0]) {
			b->n = b->n / len[0] * keep;
			len[0] = keep;
		}
	}
}

const char *dcp_deepspeed_join(const struct dcp_deepspeed_rule *rule,
			       const struct dcp_deepspeed_local *local, size_t n,
			       struct dcp_arena *arena, struct dcp_deepspeed_whole *w)
{
	uint32_t dim = rule->cut == DCP_DEEPSPEED_CUT_COLUMNS ? 1 : 0;
	const char *why = NULL;
	int rc = 0;

	*w = (struct dcp_deepspeed_whole){ .arena = arena };
	switch (rule->cut) {
	case DCP_DEEPSPEED_CUT_REPLICATED:
		if (!are_alike(local, n, DCP_MAX_NDIM))
			return "its copies have different shapes";
		rc = take_one(local, w);
		break;
	case DCP_DEEPSPEED_CUT_AVERAGED:
	case DCP_DEEPSPEED_CUT_SUMMED:
		if (!are_alike(local, n, DCP_MAX_NDIM))
			return "its terms have different shapes";
		w->sum = true;
		w->mean = rule->cut == DCP_DEEPSPEED_CUT_AVERAGED;
		rc = take_one(local, w);
		break;
	case DCP_DEEPSPEED_CUT_SUBS:
		why = join_subs(rule->sub, local, n, w, &rc);
		break;
	case DCP_DEEPSPEED_CUT_MAP:
		why = join_map(rule->map, local, n, w, &rc);
		break;
	case DCP_DEEPSPEED_CUT_HALVES:
	case DCP_DEEPSPEED_CUT_ROWS:
	case DCP_DEEPSPEED_CUT_COLUMNS:
		if (!are_alike(local, n, dim))
			return "its pieces do not fit together";
		rc = rule->cut == DCP_DEEPSPEED_CUT_HALVES ? cut_halves(local, n, w)
							   : cut_along(local, n, dim, w);
		break;
	}
	if (rc == -E2BIG)
		return "its pieces are too many";
	if (rc < 0)
		return rc == -ENOMEM ? "out of memory" : "its pieces have too many elements";
	if (!why && rule->height && (w->ndim == 0 || w->shape[0] != rule->height))
		why = "its ranks do not have together the rows that the known order is of";
	if (!why && rule->rows)
		cut_rows(w, rule->rows);
	return why;
}

/*
 * Compares the values of ranks. Parameters whose mean over all ranks counts
 * (parameter_to_average_patterns: norms, biases) are mostly equal on all ranks. Only parameters
 * that are small enough to be read while the index is made are compared.
 */

enum {
	CHUNK = 16 << 10,
	MAX_TENSOR = 16 << 20, /* bytes of a tensor */
	MAX_ALL = 512 << 20,   /* of all tensors together */
};

bool dcp_deepspeed_may_compare(struct dcp_deepspeed *ds, uint64_t bytes, size_t ranks)
{
	uint64_t all = bytes * ranks;

	if (bytes > MAX_TENSOR || all > MAX_ALL - ds->compared)
		return false;
	ds->compared += all;
	return true;
}

/* The elements of one rank, read in order. */
struct stream {
	const struct dcp_deepspeed *ds;
	const struct dcp_deepspeed_run *run;
	size_t n;
	uint64_t at; /* bytes of the first remaining run that were read */
	struct dcp_input in;
	bool open;
};

static void close_stream(struct stream *s)
{
	if (s->open)
		dcp_input_close(&s->in);
	s->open = false;
}

/* The number of bytes that can be read at once, at most @most; 0: no more bytes, or no file. */
static size_t count_ready(struct stream *s, uint32_t size, size_t most)
{
	const char *name;

	while (s->n && s->at == s->run->n * size) {
		close_stream(s);
		s->run++;
		s->n--;
		s->at = 0;
	}
	if (!s->n || s->run->file >= s->ds->names.n / sizeof(name))
		return 0;
	if (!s->open) {
		memcpy(&name, s->ds->names.p + s->run->file * sizeof(name), sizeof(name));
		if (!name || dcp_dir_input(s->ds->in->dir, name, &s->in, NULL) < 0)
			return 0;
		s->open = true;
	}
	return (size_t)DCP_MIN(s->run->n * size - s->at, most);
}

static bool take_bytes(struct stream *s, char *to, size_t n)
{
	if (dcp_source_read(&s->in.src, s->run->off + s->at, to, n) < 0)
		return false;
	s->at += n;
	return true;
}

/* Do two ranks hold the same @bytes bytes? Their runs may have different lengths. */
static bool same_streams(struct stream *a, struct stream *b, uint32_t size, uint64_t bytes)
{
	char left[CHUNK], right[CHUNK];

	while (bytes) {
		size_t n = count_ready(a, size, (size_t)DCP_MIN(bytes, CHUNK));

		n = n ? count_ready(b, size, n) : 0;
		if (n == 0 || a->run->swap != b->run->swap || !take_bytes(a, left, n) ||
		    !take_bytes(b, right, n) || memcmp(left, right, n) != 0)
			return false;
		bytes -= n;
	}
	return true;
}

static int runs_of(struct dcp_deepspeed_emitter *t, const struct dcp_deepspeed_shared *s,
		   size_t k, struct dcp_buf *runs, struct stream *out, uint8_t *dtype)
{
	struct dcp_err why;
	int rc;

	dcp_buf_reset(runs);
	rc = dcp_deepspeed_runs(t->ds, s->part[k], s->param[k], t->state, runs, dtype, &why);
	*out = (struct stream){ .ds = t->ds,
				.run = (const struct dcp_deepspeed_run *)(const void *)runs->p,
				.n = runs->n / sizeof(struct dcp_deepspeed_run) };
	return rc;
}

static int same_as_first(struct dcp_deepspeed_emitter *t, const struct dcp_deepspeed_shared *s,
			 size_t k)
{
	dcp_auto_buf struct dcp_buf left = DCP_BUF_INIT, right = DCP_BUF_INIT;
	struct stream a, b;
	uint8_t da = 0, db = 0;
	uint32_t size;
	bool same;
	int rc = runs_of(t, s, 0, &left, &a, &da);

	if (rc == 0)
		return 1; /* a state common to all elements is taken from the first rank anyway */
	if (rc == 1)
		rc = runs_of(t, s, k, &right, &b, &db);
	if (rc != 1 || da != db || s->param[0]->numel != s->param[k]->numel)
		return rc == -ENOMEM ? rc : 0;
	size = dcp_dtype_info((enum dcp_dtype)da)->size;
	same = same_streams(&a, &b, size, s->param[0]->numel * size);
	close_stream(&a);
	close_stream(&b);
	return same;
}

int dcp_deepspeed_all_same(struct dcp_deepspeed_emitter *t,
			   const struct dcp_deepspeed_shared *s)
{
	int rc = 1;

	if (!dcp_deepspeed_may_compare(t->ds, s->param[0]->numel * 8, s->n))
		return 0;
	for (size_t k = 1; rc == 1 && k < s->n; k++)
		rc = same_as_first(t, s, k);
	return rc;
}
