/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load: what every file of the family needs while a checkpoint is loaded: memory, opened files,
 * places.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/format/deepspeed/emit.h"

const char *dcp_ds_text(struct dcp_ds *ds, const char *fmt, ...)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	char text[512];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (n < 0)
		return NULL;
	if ((size_t)n < sizeof(text))
		return dcp_arena_strdup(&ds->arena, text);
	/* A name may be long. */
	if (!dcp_buf_grow(&b, (size_t)n + 1))
		return NULL;
	va_start(ap, fmt);
	vsnprintf(b.p, (size_t)n + 1, fmt, ap);
	va_end(ap);
	return dcp_arena_strdup(&ds->arena, b.p);
}

/* Files are named again when ranks are compared. */
static int note_name(struct dcp_ds *ds, uint32_t number, const char *name)
{
	static const char *const none;
	const char *kept;

	if (ds->tp < 2)
		return 0;
	while (ds->names.n / sizeof(name) <= number && !dcp_buf_error(&ds->names))
		dcp_buf_add(&ds->names, &none, sizeof(none));
	kept = dcp_arena_strdup(&ds->arena, name);
	if (!kept || dcp_buf_error(&ds->names))
		return -ENOMEM;
	memcpy(ds->names.p + number * sizeof(kept), &kept, sizeof(kept));
	return 0;
}

int dcp_ds_open(struct dcp_ds *ds, const char *name, struct dcp_ds_input *out,
		struct dcp_err *why)
{
	int rc = dcp_emit_file(ds->in->sink, name, &out->file);

	out->t = NULL;
	if (rc < 0 || note_name(ds, out->file, name) < 0)
		return rc < 0 ? rc : -ENOMEM;
	rc = dcp_dir_input(ds->in->dir, name, &out->in, why);
	if (rc == 0) {
		rc = dcp_torch_open(&out->in.src, 0, &out->t, why);
		if (rc == 0) {
			ds->opened = true;
			return 0;
		}
		dcp_input_close(&out->in);
		out->t = NULL;
		dcp_err_where(why, rc, "%s", name);
	}
	if (rc == -ENOMEM)
		return -ENOMEM;
	if (!ds->damage.code)
		ds->damage = *why;
	return 1;
}

void dcp_ds_close(struct dcp_ds_input *in)
{
	if (!in->t)
		return;
	dcp_torch_close(in->t);
	dcp_input_close(&in->in);
	in->t = NULL;
}

void dcp_ds_place_tensor(const struct dcp_ds_input *in, const struct dcp_torch_tensor *tt,
			 struct dcp_ds_place *out)
{
	uint64_t volume = 1;

	for (uint32_t d = 0; d < tt->ndim; d++)
		volume *= tt->shape[d];
	*out = (struct dcp_ds_place){
		.off = tt->off,
		.n = volume,
		.file = in->file,
		.dtype = (uint8_t)tt->dtype,
		.swap = tt->swap,
		.there = tt->row_major && tt->dtype != DCP_DTYPE_OTHER &&
			 tt->filter == DCP_FILTER_NONE,
	};
}

int dcp_ds_take_place(const struct dcp_ds_input *in, struct dcp_pv v, struct dcp_ds_place *out)
{
	struct dcp_torch_tensor tt;
	int rc = dcp_torch_tensor(in->t, v, &tt, NULL);

	if (rc == 1)
		dcp_ds_place_tensor(in, &tt, out);
	return rc == -ENOMEM ? rc : 0;
}

int dcp_ds_emit_broken(struct dcp_ds *ds, const char *file, const char *why)
{
	return why ? dcp_emit_broken(ds->in->sink, file, why) : -ENOMEM;
}
