/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Universal checkpoints, which DeepSpeed makes from other checkpoints: one file for each parameter
 * and state.
 *
 *	zero/<name>/fp32.pt exp_avg.pt exp_avg_sq.pt step.pt
 *	zero/optimizer_state.pt       the rest of the optimizer of rank 0
 *	*_model_states.pt             model files of the original checkpoint
 *
 * A state is {"param": tensor, ...}, or the flat tensor alone: then its shape is only in the model
 * files. Frozen weights and buffers may be missing among the parameters; then they come from the
 * model files.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/format/deepspeed/deepspeed_int.h"
#include "core/format/formats.h"
#include "core/parse/pyjson/pyjson.h"

struct universal {
	struct dcp_deepspeed ds;
	struct dcp_dir zero;
	struct dcp_intern shaped; /* names of parameters whose shape is known */
	struct dcp_buf shapes;    /* const struct dcp_deepspeed_param *, by number in shaped */
	struct dcp_buf file;
};

/* "fp32.pt" -> "fp32" into @out; false for other names. */
static bool state_of(const struct dcp_dirent *e, char out[64])
{
	size_t n = strlen(e->name);

	if (e->is_dir || n < 4 || n - 3 >= 64 || strcmp(e->name + n - 3, ".pt") != 0)
		return false;
	memcpy(out, e->name, n - 3);
	out[n - 3] = '\0';
	return true;
}

static int note_shape(struct universal *u, const struct dcp_deepspeed_param *p)
{
	int rc = dcp_intern_str(&u->shaped, p->name, NULL);

	if (rc == 1)
		dcp_buf_add(&u->shapes, &p, sizeof(p));
	return rc < 0 || dcp_buf_error(&u->shapes) ? -ENOMEM : 0;
}

static const struct dcp_deepspeed_param *shape_of(const struct universal *u, const char *name)
{
	const struct dcp_deepspeed_param *p;
	uint32_t number = dcp_intern_find(&u->shaped, name, strlen(name));

	if (number == DCP_INTERN_NONE)
		return NULL;
	memcpy(&p, u->shapes.p + number * sizeof(p), sizeof(p));
	return p;
}

/* ---- one state of one parameter ---- */

static int emit_tensor(struct universal *u, const char *state, const char *name,
		       const struct dcp_deepspeed_input *in, const struct dcp_torch_tensor *tt)
{
	const struct dcp_deepspeed_param *p = shape_of(u, name);
	struct dcp_piece piece = { .file = in->file };
	struct dcp_tensor t = { 0 };

	t.error = dcp_torch_one_piece(tt, 0, &t, &piece);
	if (tt->row_major && tt->ndim == 1 && p && !p->why && p->numel == piece.run_n) {
		piece.len = p->shape;
		t.ndim = p->ndim;
		t.shape = p->shape;
	}
	return dcp_deepspeed_emit_tensor(&u->ds, NULL, state, name, &t);
}

static int emit_broken(struct universal *u, const char *state, const char *name,
		       const char *why)
{
	struct dcp_tensor t = { .dtype = DCP_DTYPE_F32, .shape = dcp_origin, .error = why };

	return dcp_deepspeed_emit_tensor(&u->ds, NULL, state, name, &t);
}

static int emit_value(struct universal *u, const char *state, const char *name,
		      const struct dcp_deepspeed_input *in, struct dcp_pv v)
{
	dcp_auto_buf struct dcp_buf json = DCP_BUF_INIT;
	int rc = dcp_pyjson_write(&json, in->t, v, NULL, 0);

	if (rc == -ENOMEM)
		return -ENOMEM;
	if (rc < 0)
		return emit_broken(u, state, name, "too long to be shown as JSON");
	return dcp_deepspeed_emit_object(&u->ds, NULL, state, name, dcp_pyjson_type(v), json.p);
}

static int emit_state(struct universal *u, const char *state, const char *name)
{
	struct dcp_torch_tensor tt;
	struct dcp_err why = { 0 };
	struct dcp_deepspeed_input in;
	const struct dcp_pv *param;
	struct dcp_pv v;
	int rc;

	dcp_buf_reset(&u->file);
	if (dcp_buf_printf(&u->file, "zero/%s/%s.pt", name, state) < 0)
		return -ENOMEM;
	rc = dcp_deepspeed_open(&u->ds, u->file.p, &in, &why);
	if (rc != 0)
		return rc < 0 ? rc : emit_broken(u, state, name, why.msg);
	v = dcp_torch_root(in.t);
	param = dcp_pv_is_mapping(v) ? dcp_pv_get(v, "param") : NULL;
	v = param ? *param : v;
	rc = dcp_torch_tensor(in.t, v, &tt, &why);
	if (rc == 1)
		rc = emit_tensor(u, state, name, &in, &tt);
	else if (rc == 0)
		rc = emit_value(u, state, name, &in, v);
	else if (rc == -ENOMEM)
		rc = -ENOMEM;
	else
		rc = emit_broken(u, state, name, why.msg);
	dcp_deepspeed_close(&in);
	return rc;
}

/* ---- parameters ---- */

static int emit_param(struct universal *u, const char *name)
{
	dcp_auto_dir struct dcp_dir dir = { 0 };
	struct dcp_err why = { 0 };
	char state[64];
	int rc = dcp_dir_open_at(&u->zero, name, &dir, &why);

	if (rc == -ENOMEM)
		return -ENOMEM;
	if (rc < 0)
		return emit_broken(u, "fp32", name, why.msg);
	for (size_t i = 0; rc == 0 && i < dir.n; i++)
		if (state_of(&dir.entries[i], state))
			rc = emit_state(u, state, name);
	return rc;
}

static int emit_leftover(struct universal *u)
{
	static const char file[] = "zero/optimizer_state.pt";
	const char *path[2] = { "optimizer_state.pt" };
	struct dcp_err why = { 0 };
	struct dcp_deepspeed_input in;
	const struct dcp_pv *kv;
	size_t n = 0;
	int rc;

	if (!dcp_dir_find(&u->zero, "optimizer_state.pt"))
		return 0;
	rc = dcp_deepspeed_open(&u->ds, file, &in, &why);
	if (rc != 0)
		return rc < 0 ? rc : dcp_deepspeed_emit_broken(&u->ds, path[0], why.msg);
	kv = dcp_pv_pairs(dcp_torch_root(in.t), &n);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		path[1] = dcp_pv_str(kv[2 * i]);
		if (path[1])
			rc = dcp_deepspeed_emit_value(&u->ds, &in, kv[2 * i + 1], path, 2);
	}
	dcp_deepspeed_close(&in);
	return rc;
}

static int emit_zero(struct universal *u)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < u->zero.n; i++)
		if (u->zero.entries[i].is_dir)
			rc = emit_param(u, u->zero.entries[i].name);
	return rc == 0 ? emit_leftover(u) : rc;
}

/* Note the parameters in zero/, so that their fp32 is not emitted from model files again. */
static int note_emitted(struct universal *u)
{
	int rc = 0;

	for (size_t i = 0; rc >= 0 && i < u->zero.n; i++)
		if (u->zero.entries[i].is_dir)
			rc = dcp_intern_str(&u->ds.emitted, u->zero.entries[i].name, NULL);
	return rc < 0 ? -ENOMEM : 0;
}

/* Note the shapes of whole parameters, if there is only one tensor-parallel rank: several ranks
 * have only the shapes of their parts. */
static int note_shapes(struct universal *u)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && u->ds.tp == 1 && i < u->ds.nparts; i++)
		for (size_t k = 0; rc == 0 && k < u->ds.part[i].nparams; k++)
			rc = note_shape(u, &u->ds.part[i].param[k]);
	return rc;
}

static int load_zero(struct universal *u)
{
	struct dcp_deepspeed *ds = &u->ds;
	int rc = note_emitted(u);

	if (rc == 0)
		rc = dcp_deepspeed_read_parts(ds);
	if (rc == 0)
		rc = note_shapes(u);
	ds->zero = true;
	if (rc == 0 && ds->nparts)
		rc = dcp_deepspeed_emit_modules(ds);
	if (rc == 0)
		rc = emit_zero(u);
	if (rc == 0 && !ds->opened)
		rc = ds->damage.code ? dcp_fail_at(ds->err, ds->damage.code, ds->damage.off,
						   "%s", ds->damage.msg)
				     : dcp_fail(ds->err, -EBADMSG, "zero/ has no parameters");
	return rc == 0 ? dcp_deepspeed_emit_facts(ds) : rc;
}

static int load_universal(const struct dcp_load *in, struct dcp_err *err)
{
	struct universal u = { 0 };
	int rc = dcp_deepspeed_begin(&u.ds, in, err);

	u.ds.universal = true;
	if (rc == 0)
		rc = dcp_dir_open_at(in->dir, "zero", &u.zero, err);
	if (rc == 0)
		rc = load_zero(&u);
	dcp_dir_close(&u.zero);
	dcp_intern_finish(&u.shaped);
	dcp_buf_finish(&u.shapes);
	dcp_buf_finish(&u.file);
	dcp_deepspeed_end(&u.ds);
	return rc;
}

/* ---- probing ---- */

static bool has_model_file(const struct dcp_dir *dir)
{
	struct dcp_deepspeed_name name;

	for (size_t i = 0; i < dir->n; i++)
		if (!dir->entries[i].is_dir &&
		    dcp_deepspeed_name_parse(dir->entries[i].name, &name) &&
		    (name.kind == DCP_DEEPSPEED_MODEL || name.kind == DCP_DEEPSPEED_LAYER))
			return true;
	return false;
}

/* Other programs make a directory "zero", too. So it must have the leftovers of an optimizer, or be
 * beside model files. */
static enum dcp_match probe_universal(const struct dcp_dir *dir, char *why, size_t n)
{
	dcp_auto_dir struct dcp_dir below = { 0 };
	bool ours;

	if (!dcp_dir_has_dir(dir, "zero"))
		return DCP_MATCH_NO;
	ours = has_model_file(dir);
	if (!ours && dcp_dir_open_at(dir, "zero", &below, NULL) == 0)
		ours = dcp_dir_find(&below, "optimizer_state.pt") != NULL;
	if (!ours)
		return DCP_MATCH_NO;
	if (!dcp_dir_has_dir(dir, "tmp"))
		return DCP_MATCH_YES;
	snprintf(why, n, "tmp is there: the conversion was interrupted or is still running");
	return DCP_MATCH_INCOMPLETE;
}

const struct dcp_format dcp_format_deepspeed_universal = {
	.name = "deepspeed-universal",
	.what = "DeepSpeed universal",
	.probe = probe_universal,
	.committed = dcp_deepspeed_committed,
	.load = load_universal,
};
