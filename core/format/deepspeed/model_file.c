/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model files. Each file records the order of the parameters in the flat tensors of its part
 * (param_shapes), and which parameters were frozen. The first file also records which weights are
 * tied (shared_params).
 *
 * In stage 3 every rank wrote a model file, and all must agree. If two files differ in a
 * parameter, this parameter and all after it cannot be placed.
 */
#include "core/format/deepspeed/deepspeed_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/format/torch/torch.h"
#include "core/parse/pyjson/pyjson.h"

/*
 * Emits the entries of model and optimizer files that are not emitted elsewhere. Each entry is an
 * object whose key begins with the name of the file; its path does not.
 *
 *	mp_rank_00_model_states.pt.lr_scheduler    path lr_scheduler
 *
 * Most entries are the same in the files of all ranks. So all entries of the first file of a kind
 * are emitted, and of other files only the entries that differ. param_slice_mappings is left out:
 * it repeats param_shapes in another form, and is wrong if gradients were dealt round robin.
 */

/* A sink in front of the real one, which removes the first component of paths. */
static int drop_tensor(void *ctx, const struct dcp_tensor *t)
{
	const struct dcp_sink *to = ctx;
	struct dcp_tensor mine = *t;

	if (mine.npath > 1) {
		mine.path++;
		mine.npath--;
	}
	return dcp_emit_tensor(to, &mine);
}

static int drop_object(void *ctx, const struct dcp_object *o)
{
	const struct dcp_sink *to = ctx;
	struct dcp_object mine = *o;

	if (mine.npath > 1) {
		mine.path++;
		mine.npath--;
	}
	return dcp_emit_object(to, &mine);
}

static struct dcp_sink make_drop_sink(const struct dcp_deepspeed *ds)
{
	return (struct dcp_sink){ .tensor = drop_tensor,
				  .object = drop_object,
				  .ctx = (void *)(uintptr_t)ds->in->sink };
}

int dcp_deepspeed_emit_value(struct dcp_deepspeed *ds, const struct dcp_deepspeed_input *in,
			     struct dcp_pv v, const char *const *path, size_t n)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;
	struct dcp_sink sink = make_drop_sink(ds);
	struct dcp_torch_state s = { .t = in->t,
				     .root = &v,
				     .sink = &sink,
				     .prefix = path,
				     .nprefix = n,
				     .file = in->file };

	dcp_path_join(&key, path, n);
	if (dcp_buf_error(&key))
		return -ENOMEM;
	return dcp_torch_state_emit_whole(&s, key.p);
}

int dcp_deepspeed_emit_raw(struct dcp_deepspeed *ds, const char *file, bool tensors_only)
{
	struct dcp_sink sink = make_drop_sink(ds);
	struct dcp_err why = { 0 };
	struct dcp_deepspeed_input in;
	struct dcp_torch_state s = { .sink = &sink, .prefix = &file, .nprefix = 1 };
	int rc = dcp_deepspeed_open(ds, file, &in, &why);

	if (rc != 0)
		return rc < 0 ? rc : dcp_deepspeed_emit_broken(ds, file, why.msg);
	s.t = in.t;
	s.file = in.file;
	if (tensors_only)
		sink.object = NULL;
	rc = dcp_torch_state_emit(&s);
	dcp_deepspeed_close(&in);
	return rc;
}

/* ---- one entry ---- */

/* 1: the first file of the same kind has an equal value; 0: it has another value or none, or this
 * is the first file. */
static int has_equal_value(struct dcp_deepspeed *ds, uint8_t kind,
			   const struct dcp_deepspeed_input *in, struct dcp_pv v,
			   const char *const *path, size_t n)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	uint32_t number;
	uint64_t hash, first;
	int rc = dcp_pyjson_write(&b, in->t, v, path + 1, n - 1);

	if (rc == -ENOMEM)
		return -ENOMEM;
	hash = dcp_hash64(b.n ? b.p : "", b.n);
	dcp_buf_reset(&b);
	dcp_buf_printf(&b, "%u", kind);
	for (size_t i = 1; i < n; i++)
		dcp_buf_printf(&b, "/%s", path[i]);
	rc = dcp_buf_error(&b) ? -ENOMEM
			       : dcp_intern_add(&ds->seen, b.p, b.n, DCP_INTERN_NONE, &number);
	if (rc == 1)
		dcp_buf_add(&ds->seen_hash, &hash, sizeof(hash));
	if (rc < 0 || dcp_buf_error(&ds->seen_hash))
		return -ENOMEM;
	if (rc == 1)
		return 0;
	memcpy(&first, ds->seen_hash.p + number * sizeof(first), sizeof(first));
	return first == hash;
}

int dcp_deepspeed_emit_entry(struct dcp_deepspeed *ds, const struct dcp_deepspeed_name *name,
			     const struct dcp_deepspeed_input *in, struct dcp_pv v,
			     const char *const *path, size_t n)
{
	int rc = has_equal_value(ds, name->kind, in, v, path, n);

	return rc == 0 ? dcp_deepspeed_emit_value(ds, in, v, path, n) : rc < 0 ? rc : 0;
}

static bool is_one_of(struct dcp_pv key, const char *const *names)
{
	for (; *names; names++)
		if (dcp_pv_is_str(key, *names))
			return true;
	return false;
}

/* Emit the entries of @dict except those named in @not; path[n] is room for their names. */
static int emit_entries(struct dcp_deepspeed *ds, const struct dcp_deepspeed_name *name,
			const struct dcp_deepspeed_input *in, struct dcp_pv dict,
			const char **path, size_t n, const char *const * not )
{
	size_t npairs = 0;
	const struct dcp_pv *kv = dcp_pv_pairs(dict, &npairs);
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < npairs; i++) {
		path[n] = dcp_pv_str(kv[2 * i]);
		if (path[n] && !is_one_of(kv[2 * i], not ))
			rc = dcp_deepspeed_emit_entry(ds, name, in, kv[2 * i + 1], path, n + 1);
	}
	return rc;
}

/* ---- files ---- */

static int emit_optimizer(struct dcp_deepspeed *ds, const struct dcp_deepspeed_name *name,
			  const struct dcp_deepspeed_input *in, struct dcp_pv root)
{
	static const char *const outer[] = { "optimizer_state_dict", NULL };
	static const char *const inner[] = { "single_partition_of_fp32_groups",
					     "fp32_flat_groups",
					     "base_optimizer_state",
					     "optimizer_state_dict",
					     "param_slice_mappings",
					     NULL };
	static const char *const bases[] = { "base_optimizer_state", "optimizer_state_dict" };
	static const char *const state[] = { "state", NULL };
	const struct dcp_pv dict = dcp_pv_at(root, outer[0]);
	const char *path[4] = { name->name };
	int rc = emit_entries(ds, name, in, root, path, 1, outer);

	path[1] = outer[0];
	if (rc == 0)
		rc = emit_entries(ds, name, in, dict, path, 2, inner);
	for (size_t i = 0; rc == 0 && i < DCP_LEN(bases); i++) {
		path[2] = bases[i];
		rc = emit_entries(ds, name, in, dcp_pv_at(dict, bases[i]), path, 3, state);
	}
	return rc;
}

int dcp_deepspeed_emit_rest(struct dcp_deepspeed *ds, const struct dcp_deepspeed_name *name,
			    const struct dcp_deepspeed_input *in)
{
	static const char *const model[] = { "module", "optimizer", NULL };
	struct dcp_pv root = dcp_torch_root(in->t);
	const char *path[2] = { name->name };

	return name->kind == DCP_DEEPSPEED_OPTIM
		       ? emit_optimizer(ds, name, in, root)
		       : emit_entries(ds, name, in, root, path, 1, model);
}

/* ---- parameters ---- */

/* The mappings in param_shapes: a list of mappings, or before 0.5 a single mapping. */
static const struct dcp_pv *list_mappings(const struct dcp_pv *shapes, size_t *n)
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

static int take_shape(struct dcp_deepspeed *ds, struct dcp_pv v, struct dcp_deepspeed_param *p)
{
	uint64_t dims[DCP_MAX_NDIM];

	if (!dcp_torch_dims(v, dims, &p->ndim) || !dcp_shape_volume(dims, p->ndim, &p->numel) ||
	    p->numel > INT64_MAX / 16) {
		p->ndim = 0;
		p->why = dcp_deepspeed_text(ds, "its shape in param_shapes is invalid");
		return p->why ? 0 : -ENOMEM;
	}
	p->shape = dcp_arena_dup(&ds->arena, dims, p->ndim, sizeof(*dims));
	return p->shape ? 0 : -ENOMEM;
}

static int take_param(struct dcp_deepspeed *ds, const struct dcp_pv *kv,
		      struct dcp_deepspeed_param *p)
{
	const char *name = dcp_pv_str(kv[0]);

	p->name = dcp_arena_strdup(&ds->arena, name ? name : "");
	return p->name ? take_shape(ds, kv[1], p) : -ENOMEM;
}

static int take_params(struct dcp_deepspeed *ds, struct dcp_deepspeed_part *part,
		       const struct dcp_pv *list, size_t n)
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

/* Is @kv the name and shape of @p? For AutoEP's weights the number of experts may differ. */
static bool same_param(const struct dcp_deepspeed *ds, const struct dcp_deepspeed_param *p,
		       const struct dcp_pv *kv)
{
	uint64_t dims[DCP_MAX_NDIM];
	uint32_t ndim, from;

	if (!dcp_pv_is_str(kv[0], p->name) || !dcp_torch_dims(kv[1], dims, &ndim) ||
	    ndim != p->ndim)
		return false;
	from = ndim > 0 && dcp_deepspeed_experts_of(ds, p->name) != NULL;
	return memcmp(dims + from, p->shape + from, (ndim - from) * sizeof(*dims)) == 0;
}

/* The number of parameters, from the first on, in which @list agrees with the part. */
static size_t count_equal_params(const struct dcp_deepspeed *ds,
				 const struct dcp_deepspeed_part *part,
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

static int compare_params(struct dcp_deepspeed *ds, struct dcp_deepspeed_part *part,
			  const struct dcp_deepspeed_name *name, const struct dcp_pv *list,
			  size_t n)
{
	size_t same = count_equal_params(ds, part, list, n);
	const char *why;

	if (same == part->nparams)
		return 0;
	why = dcp_deepspeed_text(
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

static int read_shapes(struct dcp_deepspeed *ds, struct dcp_deepspeed_part *part,
		       const struct dcp_deepspeed_name *name, struct dcp_pv root)
{
	const struct dcp_pv shapes = dcp_pv_at(root, "param_shapes");
	size_t n;
	const struct dcp_pv *list = list_mappings(&shapes, &n);

	if (!list)
		return 0;
	if (part->named)
		return compare_params(ds, part, name, list, n);
	part->named = name;
	return take_params(ds, part, list, n);
}

/* ---- frozen parameters of stage 3 ---- */

static int read_frozen_shapes(struct dcp_deepspeed *ds, struct dcp_deepspeed_part *part,
			      struct dcp_pv root)
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
		struct dcp_deepspeed_frozen *f = &part->frozen[part->nfrozen];
		struct dcp_deepspeed_param p = { 0 };

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

static int read_fragments(struct dcp_deepspeed_part *part, size_t at,
			  const struct dcp_deepspeed_input *in)
{
	size_t n;
	const struct dcp_pv *kv =
		dcp_pv_pairs(dcp_pv_at(dcp_torch_root(in->t), "frozen_param_fragments"), &n);

	/* Both mappings were filled in the same order. */
	for (size_t i = 0; i < part->nfrozen; i++) {
		struct dcp_deepspeed_frozen *f = &part->frozen[i];

		if (i < n && dcp_pv_is_str(kv[2 * i], f->name) &&
		    dcp_deepspeed_take_place(in, kv[2 * i + 1], &f->fragment[at]) < 0)
			return -ENOMEM;
	}
	return 0;
}

/* ---- the job ---- */

/* Read the number of model-parallel ranks of one kind; no job has more than 4096. */
static void take_degree(struct dcp_pv dims, const char *what, uint32_t *out)
{
	uint64_t n;

	if (dcp_pv_u64(dcp_pv_at(dims, what), &n) && n > 0 && n <= 4096)
		*out = (uint32_t)n;
}

static void read_job(struct dcp_deepspeed *ds, struct dcp_pv root)
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

static int read_buffers(struct dcp_deepspeed *ds, struct dcp_pv root)
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

static int read_one(struct dcp_deepspeed *ds, struct dcp_deepspeed_part *part, size_t at,
		    const struct dcp_deepspeed_input *in)
{
	const struct dcp_deepspeed_name *name = &part->model[at];
	struct dcp_pv root = dcp_torch_root(in->t);
	bool first = !part->named;
	int rc = dcp_deepspeed_take_experts(ds, root);

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
		rc = dcp_deepspeed_read_aliases(ds, part, in);
	if (rc == 0 && name->sharded)
		rc = read_fragments(part, at, in);
	if (rc == 0)
		rc = dcp_deepspeed_take_rules(ds, root);
	return rc == 0 ? dcp_deepspeed_emit_rest(ds, name, in) : rc;
}

int dcp_deepspeed_read_models(struct dcp_deepspeed *ds, struct dcp_deepspeed_part *part)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < part->nmodels; i++) {
		struct dcp_err why = { 0 };
		struct dcp_deepspeed_input in;

		rc = dcp_deepspeed_open(ds, part->model[i].name, &in, &why);
		if (rc < 0)
			break;
		if (rc == 1) {
			rc = dcp_deepspeed_emit_broken(ds, part->model[i].name, why.msg);
			continue;
		}
		rc = read_one(ds, part, i, &in);
		dcp_deepspeed_close(&in);
	}
	return rc;
}
