/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Emitting parts: each through a relay that puts the part's name in front of its keys, always.
 * Only the model keeps its names as they are, where it is the only one of its version: what a
 * key is called must not depend on what other parts hold.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/base/err.h"
#include "core/format/format.h"
#include "core/format/hf/extras.h"
#include "core/format/hf/name.h"
#include "core/format/nest/relay.h"
#include "core/format/parts/parts.h"
#include "core/model/tensor.h"

struct emitter {
	const struct dcp_load *in;
	const struct dcp_parts *parts;
	size_t nmodels, nbroken;
	const struct dcp_part *part; /* at hand */
	bool holds_model;            /* a plain part did: tensors that are no states */
	struct dcp_buf text;
};

static const char *prefix_of(const struct emitter *w)
{
	enum dcp_part_role role = w->part->role;
	bool bare = role == DCP_PART_PLAIN || (role != DCP_PART_STATE && w->nmodels == 1);

	return bare ? NULL : w->part->name;
}

static int emit_broken(const struct emitter *w, const char *why)
{
	dcp_log(w->in->log, DCP_LOG_WARN, "%s%s", w->part->below, why);
	return dcp_emit_broken(w->in->sink, w->part->name, why);
}

/* Is it of a model, and not of an optimizer or the like? */
static bool is_weight(const struct dcp_tensor *t)
{
	const char *first = t->npath ? t->path[0] : t->key;

	return t->ndim > 0 && dcp_parts_role(first) == DCP_PART_MODEL &&
	       strcmp(first, "state") != 0 && strcmp(first, "param_groups") != 0;
}

static int on_tensor(void *ctx, const struct dcp_tensor *t)
{
	struct emitter *w = ctx;

	w->holds_model |= w->part->role == DCP_PART_PLAIN && is_weight(t);
	return dcp_emit_tensor(w->in->sink, t);
}

/* The same model once more: which files are left out is said. */
static int leave_out(const struct emitter *w)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < w->part->dir.n; i++)
		if (!dcp_hf_is_sidecar(w->part->dir.entries[i].name))
			rc = dcp_emit_meta(w->in->sink, "left_out",
					   w->part->dir.entries[i].name);
	return rc;
}

static int emit_part(struct emitter *w, struct dcp_err *err)
{
	const struct dcp_sink sink = { .tensor = on_tensor, .ctx = w, .next = w->in->sink };
	dcp_auto_relay struct dcp_relay r = { .to = &sink,
					      .below = w->part->below,
					      .prefix = prefix_of(w) };
	struct dcp_load in = dcp_relay_load(&r, w->in, &w->part->dir);
	struct dcp_err why = { 0 };
	bool broken;
	int rc;

	if (w->part->role == DCP_PART_SPARE && w->holds_model)
		return leave_out(w);
	in.depth++;
	in.uncommitted = false;
	in.is_part = r.prefix != NULL;
	rc = w->part->format->load(&in, &why);
	broken = rc < 0 && rc != -ENOMEM && r.rc == 0;
	if (broken && ++w->nbroken < dcp_parts_n(w->parts))
		return emit_broken(w, why.msg);
	if (rc < 0 && err)
		*err = why;
	return rc;
}

/* "model: torch-dcp, optimizer: torch-save" */
static int emit_facts(struct emitter *w)
{
	dcp_buf_reset(&w->text);
	for (size_t i = 0; i < dcp_parts_n(w->parts); i++) {
		const struct dcp_part *part = dcp_parts_at(w->parts, i);

		dcp_buf_printf(&w->text, "%s%s: %s", i ? ", " : "", part->name,
			       part->format->name);
	}
	if (dcp_buf_error(&w->text))
		return -ENOMEM;
	return dcp_emit_meta(w->in->sink, "parts", w->text.p);
}

/* ---- what is not a part ---- */

static bool is_below(const struct dcp_parts *parts, const char *below)
{
	for (size_t i = 0; i < dcp_parts_n(parts); i++) {
		const struct dcp_part *p = dcp_parts_at(parts, i);

		if (strcmp(p->below, below) == 0 && (*below || dcp_parts_is_hf(p->format)))
			return true;
	}
	return false;
}

static int emit_sidecars(const struct dcp_load *in, const struct dcp_dir *dir,
			 const char *below)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < dir->n; i++) {
		const struct dcp_dirent *e = &dir->entries[i];
		char name[2 * NAME_MAX + 2];
		bool unused;

		if (e->is_dir || *e->name == '.' || !dcp_hf_is_sidecar(e->name) ||
		    (!*below && dcp_parts_is_file(e, &unused)))
			continue;
		snprintf(name, sizeof(name), "%s%s", below, e->name);
		rc = dcp_emit_sidecar(in->sink, name);
	}
	return rc;
}

/* Beside models in directories: model_index.json, tokenizer/, scheduler/. */
static int emit_rest(const struct dcp_load *in, const struct dcp_parts *parts)
{
	enum dcp_parts_home home = dcp_parts_home(in->dir);
	int rc = 0;

	if (home != DCP_HOME_NONE && !is_below(parts, ""))
		rc = emit_sidecars(in, in->dir, "");
	for (size_t i = 0; home == DCP_HOME_PIPELINE && rc == 0 && i < in->dir->n; i++) {
		const struct dcp_dirent *e = &in->dir->entries[i];
		char below[NAME_MAX + 2];
		dcp_auto_dir struct dcp_dir sub = { 0 };

		snprintf(below, sizeof(below), "%s/", e->name);
		if (!e->is_dir || *e->name == '.' || is_below(parts, below) || e->is_link ||
		    dcp_dir_open_at(in->dir, e->name, &sub, NULL) < 0)
			continue;
		rc = emit_sidecars(in, &sub, below);
	}
	return rc;
}

int dcp_parts_emit(const struct dcp_load *in, const struct dcp_parts *p, struct dcp_err *err)
{
	struct emitter w = { .in = in, .parts = p };
	int rc = 0;

	for (size_t i = 0; i < dcp_parts_n(p); i++)
		w.nmodels += dcp_parts_at(p, i)->role == DCP_PART_MODEL ||
			     dcp_parts_at(p, i)->role == DCP_PART_SPARE;
	for (size_t i = 0; rc == 0 && i < dcp_parts_n(p); i++) {
		w.part = dcp_parts_at(p, i);
		rc = emit_part(&w, err);
	}
	if (rc == 0)
		rc = emit_facts(&w);
	if (rc == 0 && in->depth == 0)
		rc = emit_rest(in, p);
	dcp_buf_finish(&w.text);
	return rc;
}
