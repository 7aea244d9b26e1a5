/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights of AutoEP: a file for each expert of a layer has its own of every weight, with the
 * number of the expert at the end of their names. Told is the one tensor of all experts that
 *the model has:
 *
 *	layer_0_expert_3_mp_rank_00_model_states.pt: {"mlp.experts.w1.3": [5, 6], ...}
 *	module.mlp.experts.w1: [experts, 5, 6]
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/format/deepspeed/emit.h"

enum { MAX_WEIGHTS = 16 };

/* One weight of a layer while the files are read. */
struct weight {
	const char *name;
	enum dcp_dtype dtype;
	uint32_t ndim; /* with that of the experts */
	uint64_t *shape;
	struct dcp_ds_place *expert; /* of each */
	const char *why;             /* not NULL: why it is broken */
};

struct stack {
	struct dcp_ds *ds;
	const struct dcp_ds_experts *layer;
	struct weight weight[MAX_WEIGHTS];
	size_t n;
};

bool dcp_ds_is_stacked(const struct dcp_ds *ds, const struct dcp_ds_name *file)
{
	for (size_t i = 0; file->kind == DCP_DS_EXPERT && i < ds->nexperts; i++)
		if (ds->experts[i].layer == file->layer && file->expert < ds->experts[i].total)
			return true;
	return false;
}

/* "w1" of "<prefix>.w1.3" for expert 3: its place and length in @key; false: another name. */
static bool part_of_key(const struct stack *s, const char *key, uint32_t expert,
			const char **part, size_t *n)
{
	size_t prefix = strlen(s->layer->prefix), all = strlen(key);
	char end[16];
	size_t tail = (size_t)snprintf(end, sizeof(end), ".%" PRIu32, expert);

	if (strncmp(key, s->layer->prefix, prefix) != 0 || key[prefix] != '.' ||
	    all <= prefix + 1 + tail || strcmp(key + all - tail, end) != 0)
		return false;
	*part = key + prefix + 1;
	*n = all - tail - prefix - 1;
	return true;
}

/* The weight of that name, a new one if there is none; NULL: out of memory, or too many. */
static struct weight *weight_of(struct stack *s, const char *part, size_t n)
{
	struct weight *w;

	for (size_t i = 0; i < s->n; i++)
		if (strncmp(s->weight[i].name, part, n) == 0 && !s->weight[i].name[n])
			return &s->weight[i];
	if (s->n == MAX_WEIGHTS)
		return NULL;
	w = &s->weight[s->n++];
	*w = (struct weight){ .name = dcp_arena_strndup(&s->ds->arena, part, n),
			      .expert = dcp_arena_calloc(&s->ds->arena, s->layer->total,
							 sizeof(*w->expert)) };
	return w->name && w->expert ? w : NULL;
}

static int take_shape(struct stack *s, struct weight *w, const struct dcp_torch_tensor *tt)
{
	if (w->shape)
		return w->ndim != tt->ndim + 1 || w->dtype != tt->dtype ||
				       memcmp(w->shape + 1, tt->shape,
					      tt->ndim * sizeof(*tt->shape)) != 0
			       ? -EINVAL
			       : 0;
	w->shape = dcp_arena_calloc(&s->ds->arena, (size_t)tt->ndim + 1, sizeof(*w->shape));
	if (!w->shape)
		return -ENOMEM;
	w->dtype = tt->dtype;
	w->ndim = tt->ndim + 1;
	w->shape[0] = s->layer->total;
	memcpy(w->shape + 1, tt->shape, tt->ndim * sizeof(*tt->shape));
	return 0;
}

static int take_tensor(struct stack *s, const struct dcp_ds_name *file,
		       const struct dcp_ds_input *in, struct dcp_pv v, const char *part,
		       size_t n)
{
	struct weight *w = weight_of(s, part, n);
	struct dcp_torch_tensor tt;
	struct dcp_err why = { 0 };
	int rc;

	if (!w)
		return s->n == MAX_WEIGHTS ? 0 : dcp_ds_no_memory(s->ds);
	rc = dcp_torch_tensor(in->t, v, &tt, &why);
	if (rc == 1 && tt.ndim < DCP_MAX_NDIM) {
		rc = take_shape(s, w, &tt);
		if (rc == 0)
			dcp_ds_place_tensor(in, &tt, &w->expert[file->expert]);
	}
	if (rc == -ENOMEM)
		return dcp_ds_no_memory(s->ds);
	if ((rc < 0 || !w->expert[file->expert].there) && !w->why)
		w->why = dcp_ds_text(s->ds,
				     "%s has another tensor of it than the others, or none",
				     file->name);
	return 0;
}

static int take_file(struct stack *s, const struct dcp_ds_name *file)
{
	struct dcp_err why = { 0 };
	struct dcp_ds_input in;
	const struct dcp_pv *kv;
	const char *path[2] = { file->name }, *part;
	size_t n = 0, len;
	int rc = dcp_ds_open(s->ds, file->name, &in, &why);

	if (rc != 0)
		return rc < 0 ? rc : dcp_ds_emit_broken(s->ds, file->name, why.msg);
	kv = dcp_pv_pairs(dcp_torch_root(in.t), &n);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		path[1] = dcp_pv_str(kv[2 * i]);
		if (path[1] && part_of_key(s, path[1], file->expert, &part, &len))
			rc = take_tensor(s, file, &in, kv[2 * i + 1], part, len);
		else if (path[1])
			rc = dcp_ds_emit_entry(s->ds, file, &in, kv[2 * i + 1], path, 2);
	}
	dcp_ds_close(&in);
	return rc;
}

/* The experts of a layer in their order, so many elements each. */
static int add_pieces(struct stack *s, const struct weight *w, struct dcp_buf *pieces)
{
	const struct dcp_dtype_info *info = dcp_dtype_info(w->dtype);
	uint64_t volume, *dims;

	if (!dcp_shape_volume(w->shape + 1, w->ndim - 1, &volume))
		return -EINVAL;
	for (uint32_t i = 0; volume && i < s->layer->total; i++) {
		const struct dcp_ds_place *p = &w->expert[i];
		struct dcp_piece piece = { .run_n = volume,
					   .off = p->off,
					   .nbytes = volume * info->size,
					   .file = p->file,
					   .enc = DCP_ENC_PLAIN,
					   .swap = p->swap && info->size > 1 };

		dims = dcp_arena_calloc(&s->ds->arena, 2 * (size_t)w->ndim, sizeof(*dims));
		if (!dims)
			return -ENOMEM;
		dims[0] = i;
		memcpy(dims + w->ndim, w->shape, w->ndim * sizeof(*dims));
		dims[w->ndim] = 1;
		piece.lo = dims;
		piece.len = dims + w->ndim;
		dcp_buf_add(pieces, &piece, sizeof(piece));
	}
	return dcp_buf_error(pieces) ? -ENOMEM : 0;
}

static int emit_weight(struct stack *s, struct weight *w)
{
	static const uint64_t none[1];
	dcp_auto_buf struct dcp_buf pieces = DCP_BUF_INIT;
	const char *name = dcp_ds_text(s->ds, "%s.%s", s->layer->prefix, w->name);
	struct dcp_tensor t = { .dtype = w->dtype, .ndim = w->ndim, .shape = w->shape };
	int rc = 0;

	if (!w->shape)
		t = (struct dcp_tensor){ .dtype = DCP_DTYPE_F32, .shape = none };
	for (uint32_t i = 0; !w->why && i < s->layer->total; i++)
		if (!w->expert[i].there)
			w->why =
				dcp_ds_text(s->ds,
					    "layer_%" PRIu32 "_expert_%" PRIu32
					    "_mp_rank_*_model_states.pt is missing or damaged: "
					    "expert %" PRIu32 " of %" PRIu32 " is there",
					    s->layer->layer, i, i, s->layer->total);
	if (!w->why)
		rc = add_pieces(s, w, &pieces);
	if (!name || rc == -ENOMEM)
		return dcp_ds_no_memory(s->ds);
	t.error = rc < 0 ? "its shape is invalid" : w->why;
	t.pieces = DCP_ITEMS(pieces, struct dcp_piece);
	t.npieces = t.error ? 0 : DCP_NITEMS(pieces, struct dcp_piece);
	return dcp_ds_emit_one(s->ds, NULL, "module", name, &t);
}

static int emit_layer(struct dcp_ds *ds, const struct dcp_ds_experts *layer)
{
	struct stack s = { .ds = ds, .layer = layer };
	const struct dcp_ds_name *f;
	uint32_t last = UINT32_MAX;
	size_t n;
	int rc = 0;

	f = dcp_ds_files(ds, DCP_DS_EXPERT, &n);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		if (f[i].layer != layer->layer || f[i].expert >= layer->total ||
		    f[i].expert == last)
			continue; /* of copies the first */
		last = f[i].expert;
		rc = take_file(&s, &f[i]);
	}
	for (size_t i = 0; rc == 0 && i < s.n; i++)
		rc = emit_weight(&s, &s.weight[i]);
	return rc;
}

int dcp_ds_emit_stacks(struct dcp_ds *ds)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < ds->nexperts; i++)
		rc = emit_layer(ds, &ds->experts[i]);
	return rc;
}
