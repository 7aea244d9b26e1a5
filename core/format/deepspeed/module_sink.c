/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module_sink: a sink in front of another, for module.<name>.
 */
#include <string.h>

#include "core/format/deepspeed/emit.h"

bool dcp_ds_is_fp32(const struct dcp_ds *ds, uint8_t kind, const char *name)
{
	if (!ds->zero || dcp_intern_has(&ds->trained, name) ||
	    dcp_intern_has(&ds->frozen, name) || dcp_intern_has(&ds->emitted, name))
		return false;
	return kind == DCP_DS_MODEL || dcp_intern_has(&ds->buffers, name);
}

/* "module.<name>" and its path; a state dict is flat whatever its names look like. */
static int front_tensor(void *ctx, const struct dcp_tensor *emitted)
{
	struct dcp_ds_front *f = ctx;
	struct dcp_ds *ds = f->ds;
	const char *name = emitted->key + strlen("module.");
	const char *path[2] = { "module", name };
	struct dcp_tensor t = *emitted;
	bool trained = dcp_intern_has(&ds->trained, name),
	     frozen = dcp_intern_has(&ds->frozen, name);
	uint64_t volume;
	int rc;

	if (strncmp(emitted->key, "module.", strlen("module.")) != 0)
		return dcp_emit_tensor(ds->in->sink, emitted);
	if (f->file->sharded && (trained || frozen) &&
	    dcp_shape_volume(t.shape, t.ndim, &volume) && volume == 0)
		return 0;
	t.path = path;
	t.npath = 2;
	rc = dcp_emit_tensor(ds->in->sink, &t);
	if (rc < 0 || !dcp_ds_is_fp32(ds, f->file->kind, name))
		return rc;
	path[0] = "fp32";
	t.alias_of = t.npieces ? emitted->key : NULL;
	t.key = NULL;
	return dcp_emit_tensor(ds->in->sink, &t);
}

struct dcp_sink dcp_ds_front_sink(struct dcp_ds_front *f)
{
	return (struct dcp_sink){ .tensor = front_tensor, .ctx = f, .next = f->ds->in->sink };
}

/* The state dict in a file: all of it, or what it calls "module". */
const struct dcp_pv *dcp_ds_state_dict(const struct dcp_ds_name *name,
				       const struct dcp_ds_input *in, struct dcp_pv *room)
{
	*room = dcp_torch_root(in->t);
	return name->kind == DCP_DS_MODEL ? dcp_pv_get(*room, "module") : room;
}
