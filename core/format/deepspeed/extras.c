/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands in model and optimizer files beside tensors that are emitted elsewhere: one object
 * for each entry, its key led by the name of the file, its path not.
 *
 *	mp_rank_00_model_states.pt.lr_scheduler    path lr_scheduler
 *
 * Every rank wrote much the same. Of all files of a kind the first one's entries are emitted, and
 * of the others only those that differ from it. param_slice_mappings is left out: it repeats in
 * other words, wrongly where gradients were dealt round robin, what param_shapes says.
 */
#include <errno.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/format/deepspeed/emit.h"
#include "core/format/torch/state.h"
#include "core/parse/pyjson/pyjson.h"

/* A sink in front of the real one: without the first component of a path. */
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

static struct dcp_sink dropping(const struct dcp_ds *ds)
{
	return (struct dcp_sink){ .tensor = drop_tensor,
				  .object = drop_object,
				  .ctx = (void *)(uintptr_t)ds->in->sink };
}

int dcp_ds_emit_value(struct dcp_ds *ds, const struct dcp_ds_input *in, struct dcp_pv v,
		      const char *const *path, size_t n)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;
	struct dcp_sink sink = dropping(ds);
	struct dcp_tstate s = { .t = in->t,
				.root = &v,
				.sink = &sink,
				.prefix = path,
				.nprefix = n,
				.file = in->file };

	dcp_path_join(&key, path, n);
	if (dcp_buf_error(&key))
		return -ENOMEM;
	return dcp_tstate_emit_whole(&s, key.p);
}

int dcp_ds_emit_raw(struct dcp_ds *ds, const char *file, bool tensors_only)
{
	struct dcp_sink sink = dropping(ds);
	struct dcp_err why = { 0 };
	struct dcp_ds_input in;
	struct dcp_tstate s = { .sink = &sink, .prefix = &file, .nprefix = 1 };
	int rc = dcp_ds_open(ds, file, &in, &why);

	if (rc != 0)
		return rc < 0 ? rc : dcp_ds_emit_broken(ds, file, why.msg);
	s.t = in.t;
	s.file = in.file;
	if (tensors_only)
		sink.object = NULL;
	rc = dcp_tstate_emit(&s);
	dcp_ds_close(&in);
	return rc;
}

/* ---- one entry ---- */

/* 1: the first file of its kind said the same; 0: it did not, or this is the first. */
static int seen(struct dcp_ds *ds, uint8_t kind, const struct dcp_ds_input *in, struct dcp_pv v,
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

int dcp_ds_emit_entry(struct dcp_ds *ds, const struct dcp_ds_name *name,
		      const struct dcp_ds_input *in, struct dcp_pv v, const char *const *path,
		      size_t n)
{
	int rc = seen(ds, name->kind, in, v, path, n);

	return rc == 0 ? dcp_ds_emit_value(ds, in, v, path, n) : rc < 0 ? rc : 0;
}

static bool is_one_of(struct dcp_pv key, const char *const *names)
{
	for (; *names; names++)
		if (dcp_pv_is_str(key, *names))
			return true;
	return false;
}

/* Entries of @dict but for @not; path[n] is the room for their names. */
static int emit_entries(struct dcp_ds *ds, const struct dcp_ds_name *name,
			const struct dcp_ds_input *in, struct dcp_pv dict, const char **path,
			size_t n, const char *const * not )
{
	size_t npairs = 0;
	const struct dcp_pv *kv = dcp_pv_pairs(dict, &npairs);
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < npairs; i++) {
		path[n] = dcp_pv_str(kv[2 * i]);
		if (path[n] && !is_one_of(kv[2 * i], not ))
			rc = dcp_ds_emit_entry(ds, name, in, kv[2 * i + 1], path, n + 1);
	}
	return rc;
}

/* ---- files ---- */

static int emit_optimizer(struct dcp_ds *ds, const struct dcp_ds_name *name,
			  const struct dcp_ds_input *in, struct dcp_pv root)
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

int dcp_ds_emit_rest(struct dcp_ds *ds, const struct dcp_ds_name *name,
		     const struct dcp_ds_input *in)
{
	static const char *const model[] = { "module", "optimizer", NULL };
	struct dcp_pv root = dcp_torch_root(in->t);
	const char *path[2] = { name->name };

	return name->kind == DCP_DS_OPTIM ? emit_optimizer(ds, name, in, root)
					  : emit_entries(ds, name, in, root, path, 1, model);
}
