/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model files. Each says in which order the flat tensors of its part hold the parameters
 * (param_shapes), what was frozen, and in the first one what is tied to what (shared_params).
 *
 * In stage 3 every rank wrote one: they must agree. From the first parameter on of which two
 * files say different things nothing can be placed.
 */
#include <stdio.h>
#include <string.h>

#include "core/format/deepspeed/emit.h"

/* ---- parameters ---- */

/* The mappings of a param_shapes: a list of them, or before 0.5 one. */
static const struct dcp_pv *listed(const struct dcp_pv *shapes, size_t *n)
{
	if (dcp_pv_is_mapping(*shapes)) {
		*n = 1;
		return shapes;
	}
	*n = 0;
	return shapes->type == DCP_PV_LIST || shapes->type == DCP_PV_TUPLE
		       ? dcp_pv_items(*shapes, n)
		       : NULL;
}

static int take_shape(struct dcp_ds *ds, struct dcp_pv v, struct dcp_ds_param *p)
{
	uint64_t dims[DCP_MAX_NDIM];

	if (!dcp_torch_dims(v, dims, &p->ndim) || !dcp_shape_volume(dims, p->ndim, &p->numel) ||
	    p->numel > INT64_MAX / 16) {
		p->ndim = 0;
		p->why = dcp_ds_text(ds, "its shape in param_shapes is invalid");
		return p->why ? 0 : -ENOMEM;
	}
	p->shape = dcp_arena_dup(&ds->arena, dims, p->ndim, sizeof(*dims));
	return p->shape ? 0 : -ENOMEM;
}

static int take_param(struct dcp_ds *ds, const struct dcp_pv *kv, struct dcp_ds_param *p)
{
	const char *name = dcp_pv_str(kv[0]);

	p->name = dcp_arena_strdup(&ds->arena, name ? name : "");
	return p->name ? take_shape(ds, kv[1], p) : -ENOMEM;
}

static int take_params(struct dcp_ds *ds, struct dcp_ds_part *part, const struct dcp_pv *list,
		       size_t n)
{
	size_t total = 0, npairs;
	int rc = 0;

	for (size_t g = 0; g < n; g++) {
		dcp_pv_pairs(list[g], &npairs);
		total += npairs;
	}
	part->param = dcp_arena_calloc(&ds->arena, total, sizeof(*part->param));
	part->group_n = dcp_arena_calloc(&ds->arena, n, sizeof(*part->group_n));
	if (!part->param || !part->group_n)
		return -ENOMEM;
	part->nlisted = (uint32_t)n;
	for (size_t g = 0; g < n; g++) {
		const struct dcp_pv *kv = dcp_pv_pairs(list[g], &npairs);

		part->group_n[g] = (uint32_t)npairs;
		for (size_t i = 0; rc == 0 && i < npairs; i++)
			rc = take_param(ds, kv + 2 * i, &part->param[part->nparams++]);
	}
	return rc;
}

/* Of AutoEP's, ranks may hold different numbers of experts. */
static bool same_param(const struct dcp_ds *ds, const struct dcp_ds_param *p,
		       const struct dcp_pv *kv)
{
	uint64_t dims[DCP_MAX_NDIM];
	uint32_t ndim, from;

	if (!dcp_pv_is_str(kv[0], p->name) || !dcp_torch_dims(kv[1], dims, &ndim) ||
	    ndim != p->ndim)
		return false;
	from = ndim > 0 && dcp_ds_experts_of(ds, p->name) != NULL;
	return memcmp(dims + from, p->shape + from, (ndim - from) * sizeof(*dims)) == 0;
}

/* How many parameters from the first on are the same ones. */
static size_t agreement(const struct dcp_ds *ds, const struct dcp_ds_part *part,
			const struct dcp_pv *list, size_t n)
{
	size_t at = 0, npairs;

	for (size_t g = 0; g < n; g++) {
		const struct dcp_pv *kv = dcp_pv_pairs(list[g], &npairs);

		for (size_t i = 0; i < npairs; i++, at++)
			if (at == part->nparams ||
			    !same_param(ds, &part->param[at], kv + 2 * i))
				return at;
		if (g >= part->nlisted || npairs != part->group_n[g])
			return at;
	}
	return at;
}

static int compare(struct dcp_ds *ds, struct dcp_ds_part *part, const struct dcp_ds_name *name,
		   const struct dcp_pv *list, size_t n)
{
	size_t same = agreement(ds, part, list, n);
	const char *why;

	if (same == part->nparams)
		return 0;
	why = dcp_ds_text(
		ds,
		"%s and %s disagree on param_shapes from \"%.100s\" on: are they of one "
		"save?",
		part->named->name, name->name, part->param[same].name);
	if (!why)
		return -ENOMEM;
	for (size_t i = same; i < part->nparams; i++)
		if (!part->param[i].why)
			part->param[i].why = why;
	return 0;
}

static int read_shapes(struct dcp_ds *ds, struct dcp_ds_part *part,
		       const struct dcp_ds_name *name, struct dcp_pv root)
{
	const struct dcp_pv shapes = dcp_pv_at(root, "param_shapes");
	size_t n;
	const struct dcp_pv *list = listed(&shapes, &n);

	if (!list)
		return 0;
	if (part->named)
		return compare(ds, part, name, list, n);
	part->named = name;
	return take_params(ds, part, list, n);
}

/* ---- frozen parameters of stage 3 ---- */

static int read_frozen_shapes(struct dcp_ds *ds, struct dcp_ds_part *part, struct dcp_pv root)
{
	const struct dcp_pv *shapes = dcp_pv_get(root, "frozen_param_shapes"), *kv;
	size_t n = 0;
	int rc = 0;

	if (!shapes || part->frozen)
		return 0;
	kv = dcp_pv_pairs(*shapes, &n);
	part->frozen = dcp_arena_calloc(&ds->arena, n, sizeof(*part->frozen));
	if (!part->frozen)
		return -ENOMEM;
	for (size_t i = 0; rc == 0 && i < n; i++) {
		struct dcp_ds_frozen *f = &part->frozen[part->nfrozen];
		struct dcp_ds_param p = { 0 };

		rc = take_param(ds, kv + 2 * i, &p);
		if (rc < 0 || p.why)
			continue;
		f->name = p.name;
		f->shape = p.shape;
		f->ndim = p.ndim;
		f->numel = p.numel;
		f->fragment = dcp_arena_calloc(&ds->arena, part->nmodels, sizeof(*f->fragment));
		if (!f->fragment)
			return -ENOMEM;
		part->nfrozen++;
	}
	return rc;
}

static int read_fragments(struct dcp_ds_part *part, size_t at, const struct dcp_ds_input *in)
{
	size_t n;
	const struct dcp_pv *kv =
		dcp_pv_pairs(dcp_pv_at(dcp_torch_root(in->t), "frozen_param_fragments"), &n);

	/* Both mappings were filled in the same order. */
	for (size_t i = 0; i < part->nfrozen; i++) {
		struct dcp_ds_frozen *f = &part->frozen[i];

		if (i < n && dcp_pv_is_str(kv[2 * i], f->name) &&
		    dcp_ds_take_place(in, kv[2 * i + 1], &f->fragment[at]) < 0)
			return -ENOMEM;
	}
	return 0;
}

/* ---- the job ---- */

/* Model-parallel ranks of one kind; no job has thousands. */
static void take_degree(struct dcp_pv dims, const char *what, uint32_t *out)
{
	uint64_t n;

	if (dcp_pv_u64(dcp_pv_at(dims, what), &n) && n > 0 && n <= 4096)
		*out = (uint32_t)n;
}

static void read_job(struct dcp_ds *ds, struct dcp_pv root)
{
	const struct dcp_pv dims = dcp_pv_at(root, "checkpoint_parallel_dimensions");
	const char *version = dcp_pv_str(dcp_pv_at(root, "ds_version"));
	const struct dcp_pv before =
		dcp_pv_at(dcp_pv_at(root, "ds_config"), "use_data_before_expert_parallelism");

	take_degree(dims, "tp_degree", &ds->tp);
	take_degree(dims, "pp_degree", &ds->pp);
	if (before.type == DCP_PV_BOOL)
		ds->before_expert = before.b;
	if (version && !ds->version[0])
		snprintf(ds->version, sizeof(ds->version), "%s", version);
}

static int read_buffers(struct dcp_ds *ds, struct dcp_pv root)
{
	size_t n;
	const struct dcp_pv *item = dcp_pv_items(dcp_pv_at(root, "buffer_names"), &n);
	int rc = 0;

	for (size_t i = 0; rc >= 0 && i < n; i++) {
		const char *name = dcp_pv_str(item[i]);

		if (name)
			rc = dcp_intern_str(&ds->buffers, name, NULL);
	}
	return rc < 0 ? -ENOMEM : 0;
}

static int read_one(struct dcp_ds *ds, struct dcp_ds_part *part, size_t at,
		    const struct dcp_ds_input *in)
{
	const struct dcp_ds_name *name = &part->model[at];
	struct dcp_pv root = dcp_torch_root(in->t);
	bool first = !part->named;
	int rc = dcp_ds_take_experts(ds, root);

	if (rc == 0)
		rc = read_shapes(ds, part, name, root);
	if (rc == 0 && first) {
		read_job(ds, root);
		part->whole |= dcp_pv_at(root, "optimizer").type != DCP_PV_NONE;
	}
	if (rc == 0 && first)
		rc = read_buffers(ds, root);
	if (rc == 0 && name->sharded)
		rc = read_frozen_shapes(ds, part, root);
	if (rc == 0 && first && part->named)
		rc = dcp_ds_read_aliases(ds, part, in);
	if (rc == 0 && name->sharded)
		rc = read_fragments(part, at, in);
	if (rc == 0)
		rc = dcp_ds_take_rules(ds, root);
	return rc == 0 ? dcp_ds_emit_rest(ds, name, in) : rc;
}

int dcp_ds_read_models(struct dcp_ds *ds, struct dcp_ds_part *part)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < part->nmodels; i++) {
		struct dcp_err why = { 0 };
		struct dcp_ds_input in;

		rc = dcp_ds_open(ds, part->model[i].name, &in, &why);
		if (rc < 0)
			break;
		if (rc == 1) {
			rc = dcp_ds_emit_broken(ds, part->model[i].name, why.msg);
			continue;
		}
		rc = read_one(ds, part, i, &in);
		dcp_ds_close(&in);
	}
	return rc;
}
