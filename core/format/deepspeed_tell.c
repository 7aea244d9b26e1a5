/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/format/deepspeed_int.h"

int dcp_ds_no_memory(struct dcp_ds *ds)
{
	return dcp_fail(ds->err, -ENOMEM, DCP_ERR_NO_OFFSET,
			"out of memory reading a DeepSpeed checkpoint");
}

const char *dcp_ds_keep(struct dcp_ds *ds, const char *text)
{
	return dcp_arena_strndup(&ds->arena, text, strlen(text));
}

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
		return dcp_ds_keep(ds, text);
	/* A name may be long. */
	if (!dcp_buf_grow(&b, (size_t)n + 1))
		return NULL;
	va_start(ap, fmt);
	vsnprintf(b.p, (size_t)n + 1, fmt, ap);
	va_end(ap);
	return dcp_ds_keep(ds, b.p);
}

int dcp_ds_open(struct dcp_ds *ds, const char *name, struct dcp_ds_input *out,
		struct dcp_err *why)
{
	const struct dcp_sink *sink = ds->in->sink;
	int rc = sink->file(sink->ctx, name, &out->file);

	out->t = NULL;
	if (rc < 0)
		return rc;
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
		return dcp_ds_no_memory(ds);
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

const struct dcp_ds_name *dcp_ds_files(const struct dcp_ds *ds, enum dcp_ds_kind kind,
				       size_t *n)
{
	size_t first = 0;

	while (first < ds->nfiles && ds->file[first].kind != kind)
		first++;
	*n = 0;
	while (first + *n < ds->nfiles && ds->file[first + *n].kind == kind)
		++*n;
	return ds->file + first;
}

bool dcp_ds_knows(const struct dcp_intern *in, const char *name)
{
	return dcp_intern_find(in, name, strlen(name)) != DCP_INTERN_NONE;
}

/* ---- telling ---- */

static void spell(struct dcp_buf *b, const char *rank, const char *role, const char *name)
{
	dcp_buf_reset(b);
	dcp_buf_printf(b, "%s%s%s.", rank ? rank : "", rank ? "." : "", role);
	dcp_buf_str(b, name);
}

static int tell_as(struct dcp_ds *ds, const char *rank, const char *role, const char *name,
		   struct dcp_buf *key, struct dcp_tensor *t)
{
	const char *path[3] = { rank, role, name };

	if (!t->dtype_name) {
		t->dtype_name = dcp_dtype_info(t->dtype)->name;
		t->itemsize = dcp_dtype_info(t->dtype)->size;
	}

	spell(key, rank, role, name);
	if (dcp_buf_error(key))
		return dcp_ds_no_memory(ds);
	t->key = key->p;
	t->path = rank ? path : path + 1;
	t->npath = rank ? 3 : 2;
	return ds->in->sink->tensor(ds->in->sink->ctx, t);
}

/* The aliases of @name. */
static const struct dcp_ds_alias *aliases(const struct dcp_ds *ds, const char *name, size_t *n)
{
	const struct dcp_ds_alias *all = (const struct dcp_ds_alias *)(const void *)ds->alias.p;
	uint32_t number = dcp_intern_find(&ds->reals, name, strlen(name)), at, end;

	*n = 0;
	if (number == DCP_INTERN_NONE)
		return NULL;
	memcpy(&at, ds->real_at.p + number * sizeof(at), sizeof(at));
	end = (uint32_t)(ds->alias.n / sizeof(*all));
	if (number + 1 < ds->reals.n)
		memcpy(&end, ds->real_at.p + (number + 1) * sizeof(end), sizeof(end));
	*n = end - at;
	return all + at;
}

int dcp_ds_tell_one(struct dcp_ds *ds, const char *rank, const char *role, const char *name,
		    const struct dcp_tensor *told)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;
	struct dcp_tensor t = *told;

	return tell_as(ds, rank, role, name, &key, &t);
}

int dcp_ds_tell_tensor(struct dcp_ds *ds, const char *rank, const char *role, const char *name,
		       const struct dcp_tensor *told)
{
	dcp_auto_buf struct dcp_buf first = DCP_BUF_INIT, key = DCP_BUF_INIT;
	struct dcp_tensor t = *told;
	const struct dcp_ds_alias *alias;
	size_t n;
	int rc;

	rc = tell_as(ds, rank, role, name, &first, &t);
	alias = aliases(ds, name, &n);
	if (!t.alias_of && !t.error)
		t.alias_of = first.p;
	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = tell_as(ds, rank, role, alias[i].name, &key, &t);
	return rc;
}

int dcp_ds_tell_object(struct dcp_ds *ds, const char *rank, const char *role, const char *name,
		       const char *type, const char *json)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;
	const char *path[3] = { rank, role, name };
	struct dcp_object o = { .path = rank ? path : path + 1,
				.npath = rank ? 3 : 2,
				.type = type,
				.json = json,
				.json_len = strlen(json) };
	const struct dcp_ds_alias *alias;
	size_t n;
	int rc = 0;

	alias = aliases(ds, name, &n);
	for (size_t i = 0; rc == 0 && i <= n; i++) {
		path[2] = i == 0 ? name : alias[i - 1].name;
		spell(&key, rank, role, path[2]);
		o.key = key.p;
		rc = dcp_buf_error(&key) ? dcp_ds_no_memory(ds)
					 : ds->in->sink->object(ds->in->sink->ctx, &o);
	}
	return rc;
}

int dcp_ds_note_unjoined(struct dcp_ds *ds, const char *name, const char *why)
{
	if (ds->unjoined)
		return 0;
	ds->unjoined = dcp_ds_text(ds,
				   "not joined, so told of each tensor-parallel rank as "
				   "mp_rank_<nn>.*; the first is %.200s: %s",
				   name, why);
	return ds->unjoined ? 0 : dcp_ds_no_memory(ds);
}
