/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights of AutoEP: a file for each expert of a layer has its own of every weight, with the
 * number of the expert at the end of their names. Emitted is the one tensor of all experts that
 * the model has:
 *
 *	layer_0_expert_3_mp_rank_00_model_states.pt: {"mlp.experts.w1.3": [5, 6], ...}
 *	module.mlp.experts.w1: [experts, 5, 6]
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/cleanup.h"
#include "core/format/deepspeed/emit.h"
#include "core/format/gather/copies.h"

struct stack {
	struct dcp_ds *ds;
	const struct dcp_ds_experts *layer;
	struct dcp_copies weights; /* by number of the expert */
};

bool dcp_ds_is_stacked(const struct dcp_ds *ds, const struct dcp_ds_name *file)
{
	for (size_t i = 0; file->kind == DCP_DS_EXPERT && i < ds->nexperts; i++)
		if (ds->experts[i].layer == file->layer && file->expert < ds->experts[i].total)
			return true;
	return false;
}

/* Is @key "<prefix>.w1.3" for expert 3? Then the length of "<prefix>.w1", else 0. */
static size_t weight_in(const struct stack *s, const char *key, uint32_t expert)
{
	size_t prefix = strlen(s->layer->prefix), all = strlen(key);
	char end[16];
	size_t tail = (size_t)snprintf(end, sizeof(end), ".%" PRIu32, expert);

	if (strncmp(key, s->layer->prefix, prefix) != 0 || key[prefix] != '.' ||
	    all <= prefix + 1 + tail || strcmp(key + all - tail, end) != 0)
		return 0;
	return all - tail;
}

/* Keep the tensor @v, called @name, as a row of the tensor of all experts. */
static int take_tensor(struct stack *s, const struct dcp_ds_name *file,
		       const struct dcp_ds_input *in, struct dcp_pv v, const char *name)
{
	static const uint64_t none[DCP_MAX_NDIM];
	uint64_t shape[DCP_MAX_NDIM], lo[DCP_MAX_NDIM] = { file->expert }, len[DCP_MAX_NDIM];
	struct dcp_piece p = { .lo = lo, .len = len };
	struct dcp_tensor t = { .key = name, .dtype_name = "", .shape = none, .pieces = &p };
	struct dcp_torch_tensor tt;
	struct dcp_ds_place place;
	struct dcp_err why = { 0 };
	int rc = dcp_torch_tensor(in->t, v, &tt, &why);

	t.error = rc == 0 ? "it is not a tensor" : why.msg;
	if (rc == 1) {
		dcp_ds_place_tensor(in, &tt, &place);
		t.error = place.there && tt.ndim < DCP_MAX_NDIM
				  ? NULL
				  : "it is stored in an order that cannot be joined";
	}
	if (!t.error) {
		shape[0] = s->layer->total;
		memcpy(shape + 1, tt.shape, tt.ndim * sizeof(*shape));
		memcpy(len, shape, sizeof(len));
		len[0] = 1;
		t.dtype = tt.dtype;
		t.dtype_name = tt.dtype_name;
		t.itemsize = tt.itemsize;
		t.ndim = tt.ndim + 1;
		t.shape = shape;
		t.npieces = place.n > 0;
		p.run_n = place.n;
		p.off = place.off;
		p.nbytes = place.n * tt.itemsize;
		p.file = place.file;
		p.swap = place.swap && tt.itemsize > 1;
	}
	if (rc != -ENOMEM)
		rc = dcp_copies_add(&s->weights, &t, file->expert, file->name);
	return rc < 0 ? -ENOMEM : 0;
}

static int take_file(struct stack *s, const struct dcp_ds_name *file)
{
	struct dcp_err why = { 0 };
	struct dcp_ds_input in;
	const struct dcp_pv *kv;
	const char *path[2] = { file->name };
	size_t n = 0, len;
	int rc = dcp_ds_open(s->ds, file->name, &in, &why);

	if (rc != 0)
		return rc < 0 ? rc : dcp_ds_emit_broken(s->ds, file->name, why.msg);
	kv = dcp_pv_pairs(dcp_torch_root(in.t), &n);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		dcp_auto_free char *name = NULL;

		path[1] = dcp_pv_str(kv[2 * i]);
		len = path[1] ? weight_in(s, path[1], file->expert) : 0;
		name = len ? strndup(path[1], len) : NULL;
		if (name)
			rc = take_tensor(s, file, &in, kv[2 * i + 1], name);
		else if (len)
			rc = -ENOMEM;
		else if (path[1])
			rc = dcp_ds_emit_entry(s->ds, file, &in, kv[2 * i + 1], path, 2);
	}
	dcp_ds_close(&in);
	return rc;
}

static int on_whole(void *ctx, const struct dcp_tensor *t)
{
	return dcp_ds_emit_one(ctx, NULL, "module", t->key, t);
}

static int emit_weight(struct stack *s, uint32_t number)
{
	const struct dcp_sink sink = { .tensor = on_whole, .ctx = s->ds };
	uint32_t lost = 0; /* the first expert of which there is none */
	char missing[160];

	for (const struct dcp_copy *c = dcp_copies_at(&s->weights, number)->first; c;
	     c = c->next)
		lost += c->who == lost;
	snprintf(missing, sizeof(missing),
		 "layer_%" PRIu32 "_expert_%" PRIu32
		 "_mp_rank_*_model_states.pt is missing or damaged: expert %" PRIu32
		 " of %" PRIu32 " is there",
		 s->layer->layer, lost, lost, s->layer->total);
	return dcp_copies_emit(&s->weights, number, &sink, missing);
}

static int emit_layer(struct dcp_ds *ds, const struct dcp_ds_experts *layer)
{
	struct stack s = { .ds = ds, .layer = layer };
	const struct dcp_ds_name *f;
	uint32_t last = UINT32_MAX;
	size_t n;
	int rc = 0;

	dcp_copies_init(&s.weights);
	f = dcp_ds_files(ds, DCP_DS_EXPERT, &n);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		if (f[i].layer != layer->layer || f[i].expert >= layer->total ||
		    f[i].expert == last)
			continue; /* of copies the first */
		last = f[i].expert;
		rc = take_file(&s, &f[i]);
	}
	for (uint32_t k = 0; rc == 0 && k < s.weights.names.n; k++)
		rc = emit_weight(&s, k);
	dcp_copies_finish(&s.weights);
	return rc;
}

int dcp_ds_emit_stacks(struct dcp_ds *ds)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < ds->nexperts; i++)
		rc = emit_layer(ds, &ds->experts[i]);
	return rc;
}
