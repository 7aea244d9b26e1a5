/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.<name>: the weights as the model had them, from model files and from the files of
 * pipeline layers (3.<name>) and experts.
 *
 * In stage 3 a model file has empty placeholders for parameters that are cut; frozen parameters are
 * joined from the fragments of all ranks. Weights that the optimizer does not have (frozen weights,
 * buffers) are also emitted as fp32.<name>, in their own dtype, as by DeepSpeed's zero_to_fp32.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/format/deepspeed/deepspeed_int.h"
#include "core/format/gather/join.h"
#include "core/format/torch/torch.h"

/*
 * Weights of AutoEP: each expert of a layer has a file with its part of every weight, and the names
 * in the file end in the number of the expert. From these parts the one tensor of all experts is
 * made, as the model has it:
 *
 *	layer_0_expert_3_mp_rank_00_model_states.pt: {"mlp.experts.w1.3": [5, 6], ...}
 *	module.mlp.experts.w1: [experts, 5, 6]
 */

struct stack {
	struct dcp_deepspeed *ds;
	const struct dcp_deepspeed_experts *layer;
	struct dcp_copies weights; /* by number of the expert */
};

static bool dcp_deepspeed_is_stacked(const struct dcp_deepspeed *ds,
				     const struct dcp_deepspeed_name *file)
{
	for (size_t i = 0; file->kind == DCP_DEEPSPEED_EXPERT && i < ds->nexperts; i++)
		if (ds->experts[i].layer == file->layer && file->expert < ds->experts[i].total)
			return true;
	return false;
}

/* The length of "<prefix>.w1" if @key is "<prefix>.w1.3" and @expert is 3; else 0. */
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
static int take_tensor(struct stack *s, const struct dcp_deepspeed_name *file,
		       const struct dcp_deepspeed_input *in, struct dcp_pv v, const char *name)
{
	static const uint64_t none[DCP_MAX_NDIM];
	uint64_t shape[DCP_MAX_NDIM], lo[DCP_MAX_NDIM] = { file->expert }, len[DCP_MAX_NDIM];
	struct dcp_piece p = { .lo = lo, .len = len };
	struct dcp_tensor t = { .key = name, .dtype_name = "", .shape = none, .pieces = &p };
	struct dcp_torch_tensor tt;
	struct dcp_deepspeed_place place;
	struct dcp_err why = { 0 };
	int rc = dcp_torch_tensor(in->t, v, &tt, &why);

	t.error = rc == 0 ? "it is not a tensor" : why.msg;
	if (rc == 1) {
		dcp_deepspeed_place_tensor(in, &tt, &place);
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

static int take_file(struct stack *s, const struct dcp_deepspeed_name *file)
{
	struct dcp_err why = { 0 };
	struct dcp_deepspeed_input in;
	const struct dcp_pv *kv;
	const char *path[2] = { file->name };
	size_t n = 0, len;
	int rc = dcp_deepspeed_open(s->ds, file->name, &in, &why);

	if (rc != 0)
		return rc < 0 ? rc : dcp_deepspeed_emit_broken(s->ds, file->name, why.msg);
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
			rc = dcp_deepspeed_emit_entry(s->ds, file, &in, kv[2 * i + 1], path, 2);
	}
	dcp_deepspeed_close(&in);
	return rc;
}

static int on_whole(void *ctx, const struct dcp_tensor *t)
{
	return dcp_deepspeed_emit_one(ctx, NULL, "module", t->key, t);
}

static int emit_weight(struct stack *s, uint32_t number)
{
	const struct dcp_sink sink = { .tensor = on_whole, .ctx = s->ds };
	uint32_t lost = 0; /* the first expert without a part */
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

static int emit_layer(struct dcp_deepspeed *ds, const struct dcp_deepspeed_experts *layer)
{
	struct stack s = { .ds = ds, .layer = layer };
	const struct dcp_deepspeed_name *f;
	uint32_t last = UINT32_MAX;
	size_t n;
	int rc = 0;

	dcp_copies_init(&s.weights);
	f = dcp_deepspeed_files(ds, DCP_DEEPSPEED_EXPERT, &n);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		if (f[i].layer != layer->layer || f[i].expert >= layer->total ||
		    f[i].expert == last)
			continue; /* the first copy counts */
		last = f[i].expert;
		rc = take_file(&s, &f[i]);
	}
	for (uint32_t k = 0; rc == 0 && k < s.weights.names.n; k++)
		rc = emit_weight(&s, k);
	dcp_copies_finish(&s.weights);
	return rc;
}

/* Emit the weights of AutoEP from the files of their experts. */
static int dcp_deepspeed_emit_stacks(struct dcp_deepspeed *ds)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < ds->nexperts; i++)
		rc = emit_layer(ds, &ds->experts[i]);
	return rc;
}

/* Emit one file of weights unchanged. */
static int emit_file(struct dcp_deepspeed *ds, const struct dcp_deepspeed_name *name)
{
	struct dcp_deepspeed_front front = { .ds = ds, .file = name };
	struct dcp_sink sink = dcp_deepspeed_front_sink(&front);
	char layer[16];
	const char *prefix[] = { "module", layer };
	struct dcp_torch_state s = { .sink = &sink, .prefix = prefix, .nprefix = 1 };
	struct dcp_err why = { 0 };
	struct dcp_deepspeed_input in;
	struct dcp_pv room;
	int rc = dcp_deepspeed_open(ds, name->name, &in, &why);

	if (rc < 0)
		return rc;
	if (rc == 1) /* a model file was reported when it was read */
		return name->kind == DCP_DEEPSPEED_MODEL
			       ? 0
			       : dcp_deepspeed_emit_broken(ds, name->name, why.msg);
	s.t = in.t;
	s.file = in.file;
	s.root = dcp_deepspeed_state_dict(name, &in, &room);
	if (name->kind == DCP_DEEPSPEED_LAYER) {
		snprintf(layer, sizeof(layer), "%" PRIu32, name->layer);
		s.nprefix = 2;
	}
	if (s.root && s.root->type != DCP_PV_NONE)
		rc = dcp_torch_state_emit(&s);
	dcp_deepspeed_close(&in);
	return rc;
}

/* Does each file of an expert hold the whole expert? The optimizer's groups tell. Without them the
 * answer is yes if no rank is missing and no expert has two files. */
static bool experts_are_whole(const struct dcp_deepspeed *ds)
{
	size_t n;
	const struct dcp_deepspeed_name *f = dcp_deepspeed_files(ds, DCP_DEEPSPEED_EXPERT, &n);

	if (ds->expert_lanes || ds->tp < 2 || ds->nexperts)
		return ds->expert_lanes > 1 || ds->nexperts;
	for (size_t i = 0; i + 1 < n; i++)
		if (f[i].layer == f[i + 1].layer && f[i].expert == f[i + 1].expert)
			return false;
	for (uint32_t mp = 0; mp < ds->tp; mp++)
		if (!dcp_deepspeed_part_of(ds, mp))
			return false;
	return true;
}

static int emit_unit(struct dcp_deepspeed *ds, const struct dcp_deepspeed_name *file, size_t n)
{
	int rc = 0;

	if (ds->tp > 1 && file->kind == DCP_DEEPSPEED_EXPERT && experts_are_whole(ds))
		return emit_file(ds, file); /* the first copy counts */
	if (ds->tp > 1)
		return dcp_deepspeed_emit_unit(ds, file, n);
	for (size_t k = 0; rc == 0 && k < n; k++)
		rc = emit_file(ds, &file[k]);
	return rc;
}

/* ---- frozen parameters of stage 3 ---- */

static int emit_frozen(struct dcp_deepspeed *ds, const struct dcp_deepspeed_part *part,
		       const struct dcp_deepspeed_frozen *f)
{
	struct dcp_deepspeed_box whole = { .n = f->numel, .lo = dcp_origin, .len = f->shape };
	struct dcp_deepspeed_emitter e = { .ds = ds };
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;
	struct dcp_err why = { 0 };
	struct dcp_tensor t = { .ndim = f->ndim, .shape = f->shape };
	uint8_t dtype = DCP_DTYPE_F32;
	char rank[24];
	bool alone = ds->nparts == 1;
	int rc = dcp_deepspeed_frozen_runs(ds, part, f, &e.runs, &dtype, &why);

	if (rc < 0 && rc != -ENOMEM)
		t.error = why.msg;
	else if (rc >= 0)
		rc = dcp_deepspeed_add_pieces(&e, &whole, dtype);
	t.dtype = (enum dcp_dtype)dtype;
	t.pieces = DCP_ITEMS(e.pieces, struct dcp_piece);
	t.npieces = DCP_NITEMS(e.pieces, struct dcp_piece);
	snprintf(rank, sizeof(rank), "mp_rank_%02" PRIu32, part->mp);
	if (dcp_buf_printf(&key, "module.%s", f->name) < 0)
		rc = -ENOMEM;
	if (rc != -ENOMEM)
		rc = dcp_deepspeed_emit_tensor(ds, alone ? NULL : rank, "module", f->name, &t);
	if (rc == 0 && ds->zero && !dcp_intern_has(&ds->emitted, f->name)) {
		t.alias_of = t.error || !alone ? NULL : key.p;
		rc = dcp_deepspeed_emit_tensor(ds, alone ? NULL : rank, "fp32", f->name, &t);
	}
	dcp_buf_finish(&e.runs);
	dcp_buf_finish(&e.pieces);
	return rc;
}

/* ---- stage 0 ---- */

/* Emit the optimizer in a model file unchanged; if there are several parts, below the name of the
 * rank. */
static int emit_optimizer(struct dcp_deepspeed *ds, const struct dcp_deepspeed_part *part)
{
	char rank[24];
	const char *prefix[] = { rank, "optimizer" };
	bool alone = ds->nparts == 1;
	struct dcp_torch_state s = { .sink = ds->in->sink,
				     .prefix = alone ? prefix + 1 : prefix,
				     .nprefix = alone ? 1 : 2 };
	struct dcp_err why = { 0 };
	struct dcp_deepspeed_input in;
	int rc = dcp_deepspeed_open(ds, part->model->name, &in, &why);

	if (rc != 0)
		return rc < 0 ? rc : 0; /* the file was reported when it was read */
	snprintf(rank, sizeof(rank), "mp_rank_%02" PRIu32, part->mp);
	s.t = in.t;
	s.file = in.file;
	s.root = dcp_pv_get(dcp_torch_root(in.t), "optimizer");
	if (s.root)
		rc = dcp_torch_state_emit(&s);
	dcp_deepspeed_close(&in);
	return rc;
}

/* ---- all of them ---- */

static bool same_unit(const struct dcp_deepspeed *ds, const struct dcp_deepspeed_name *a,
		      const struct dcp_deepspeed_name *b)
{
	return a->layer == b->layer && a->expert == b->expert &&
	       (a->kind != DCP_DEEPSPEED_MODEL || a->mp / ds->tp == b->mp / ds->tp);
}

/* Emit the models. In stage 3 the first readable file of a part stands for all its files. */
static int emit_models(struct dcp_deepspeed *ds)
{
	struct dcp_deepspeed_name *one = dcp_arena_calloc(&ds->arena, ds->nparts, sizeof(*one));
	size_t n = 0, m;
	int rc = 0;

	if (!one)
		return -ENOMEM;
	for (size_t i = 0; i < ds->nparts; i++)
		if (ds->part[i].nmodels)
			one[n++] = ds->part[i].named ? *ds->part[i].named : *ds->part[i].model;
	for (size_t i = 0; rc == 0 && i < n; i += m) {
		for (m = 1; i + m < n && same_unit(ds, &one[i], &one[i + m]);)
			m++;
		rc = emit_unit(ds, &one[i], m);
	}
	return rc;
}

int dcp_deepspeed_emit_modules(struct dcp_deepspeed *ds)
{
	static const enum dcp_deepspeed_kind kinds[] = { DCP_DEEPSPEED_LAYER,
							 DCP_DEEPSPEED_EXPERT };
	int rc = emit_models(ds);

	for (size_t k = 0; rc == 0 && k < DCP_LEN(kinds); k++) {
		size_t n, m;
		const struct dcp_deepspeed_name *f = dcp_deepspeed_files(ds, kinds[k], &n);

		for (size_t i = 0; rc == 0 && i < n; i += m) {
			for (m = 1; i + m < n && same_unit(ds, &f[i], &f[i + m]);)
				m++;
			if (!dcp_deepspeed_is_stacked(ds, &f[i]))
				rc = emit_unit(ds, &f[i], m);
		}
	}
	if (rc == 0)
		rc = dcp_deepspeed_emit_stacks(ds);
	for (size_t i = 0; rc == 0 && i < ds->nparts; i++)
		if (ds->part[i].whole)
			rc = emit_optimizer(ds, &ds->part[i]);
	for (size_t i = 0; rc == 0 && i < ds->nparts; i++)
		for (size_t k = 0; rc == 0 && k < ds->part[i].nfrozen; k++)
			rc = emit_frozen(ds, &ds->part[i], &ds->part[i].frozen[k]);
	return rc;
}
