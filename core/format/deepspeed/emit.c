/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/deepspeed/emit.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/sort.h"
#include "core/base/text.h"
#include "core/format/deepspeed/deepspeed_int.h"

/*
 * Several names of one parameter (tied weights), and which names are emitted where.
 */

/* ---- reading ---- */

static int add_alias(struct dcp_ds *ds, const char *name, const char *real)
{
	struct dcp_ds_alias a = { dcp_arena_strdup(&ds->arena, name),
				  dcp_arena_strdup(&ds->arena, real) };

	if (!a.name || !a.real)
		return -ENOMEM;
	return dcp_buf_add(&ds->alias, &a, sizeof(a));
}

/* What may be tied to: trained, or frozen in stage 3, where the model file has neither. */
static int name_params(const struct dcp_ds_part *part, struct dcp_intern *names)
{
	int rc = 0;

	for (size_t i = 0; rc >= 0 && i < part->nparams; i++)
		rc = dcp_intern_str(names, part->param[i].name, NULL);
	for (size_t i = 0; rc >= 0 && i < part->nfrozen; i++)
		rc = dcp_intern_str(names, part->frozen[i].name, NULL);
	return rc;
}

/* What a tensor of the model shows, as bytes that are equal for equal views of one storage. */
static bool spell_view(struct dcp_buf *b, const struct dcp_torch *t, struct dcp_pv v)
{
	struct dcp_torch_tensor tt;

	if (dcp_torch_tensor(t, v, &tt, NULL) != 1)
		return false;
	dcp_buf_reset(b);
	dcp_buf_varint(b, tt.storage_off);
	dcp_buf_varint(b, tt.off);
	for (uint32_t d = 0; d < tt.ndim; d++)
		dcp_buf_varint(b, tt.shape[d]);
	return !dcp_buf_error(b);
}

/*
 * Before 0.8 shared_params was not there: what shows the storage of a parameter under another
 * name is tied to it.
 */
static int infer_aliases(struct dcp_ds *ds, struct dcp_ds_part *part,
			 const struct dcp_ds_input *in, struct dcp_pv module)
{
	struct dcp_intern names = { 0 }, views = { 0 };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT, owner = DCP_BUF_INIT;
	size_t n = 0;
	const struct dcp_pv *kv = dcp_pv_pairs(module, &n);
	uint32_t number;
	int rc = name_params(part, &names);

	for (int real = 1; rc >= 0 && real >= 0; real--)
		for (size_t i = 0; rc >= 0 && i < n; i++) {
			const char *name = dcp_pv_str(kv[2 * i]), *of;

			if (!name || dcp_intern_has(&names, name) != real ||
			    !spell_view(&b, in->t, kv[2 * i + 1]))
				continue;
			if (real) {
				rc = dcp_intern_add(&views, b.p, b.n, DCP_INTERN_NONE, &number);
				if (rc == 1)
					dcp_buf_add(&owner, &name, sizeof(name));
				continue;
			}
			number = dcp_intern_find(&views, b.p, b.n);
			if (number == DCP_INTERN_NONE)
				continue;
			memcpy(&of, owner.p + number * sizeof(of), sizeof(of));
			rc = add_alias(ds, name, of);
		}
	dcp_intern_finish(&names);
	dcp_intern_finish(&views);
	return rc < 0 || dcp_buf_error(&owner) ? -ENOMEM : 0;
}

int dcp_ds_read_aliases(struct dcp_ds *ds, struct dcp_ds_part *part,
			const struct dcp_ds_input *in)
{
	struct dcp_pv root = dcp_torch_root(in->t);
	const struct dcp_pv shared = dcp_pv_at(root, "shared_params");
	const struct dcp_pv *module = dcp_pv_get(root, "module"), *kv;
	size_t n;
	int rc = 0;

	/* Only the first rank fills it; in others it is empty. */
	if (shared.type == DCP_PV_NONE || part->named->dp != 0)
		return module && part->nparams ? infer_aliases(ds, part, in, *module) : 0;
	kv = dcp_pv_pairs(shared, &n);
	for (size_t i = 0; rc == 0 && i < n; i++)
		if (dcp_pv_str(kv[2 * i]) && dcp_pv_str(kv[2 * i + 1]))
			rc = add_alias(ds, dcp_pv_str(kv[2 * i]), dcp_pv_str(kv[2 * i + 1]));
	return rc;
}

/* ---- looking up ---- */

static int by_real(const void *x, const void *y)
{
	const struct dcp_ds_alias *a = x, *b = y;

	return strcmp(a->real, b->real) ?: strcmp(a->name, b->name);
}

/* Sorted, each once: every stage may name a tied weight. */
static int sort_aliases(struct dcp_ds *ds)
{
	struct dcp_ds_alias *a = DCP_ITEMS(ds->alias, struct dcp_ds_alias);
	size_t n = ds->alias.n / sizeof(*a), kept = 0;
	int rc = 0;

	DCP_SORT(a, n, by_real);
	for (size_t i = 0; rc >= 0 && i < n; i++) {
		uint32_t at = (uint32_t)kept;

		if (strcmp(a[i].name, a[i].real) == 0 ||
		    dcp_intern_has(&ds->emitted, a[i].name) ||
		    (kept && by_real(&a[kept - 1], &a[i]) == 0))
			continue;
		a[kept++] = a[i];
		rc = dcp_intern_str(&ds->reals, a[i].real, NULL);
		if (rc == 1)
			dcp_buf_add(&ds->real_at, &at, sizeof(at));
	}
	ds->alias.n = kept * sizeof(*a);
	return rc < 0 || dcp_buf_error(&ds->real_at) ? -ENOMEM : 0;
}

int dcp_ds_name_all(struct dcp_ds *ds)
{
	const struct dcp_ds_alias *a;
	int rc = sort_aliases(ds);

	for (size_t i = 0; rc >= 0 && i < ds->nparts; i++) {
		const struct dcp_ds_part *p = &ds->part[i];

		ds->zero |= p->ngroups > 0;
		for (size_t k = 0; rc >= 0 && (p->ngroups || ds->universal) && k < p->nparams;
		     k++)
			rc = dcp_intern_str(&ds->trained, p->param[k].name, NULL);
		for (size_t k = 0; rc >= 0 && k < p->nfrozen; k++)
			rc = dcp_intern_str(&ds->frozen, p->frozen[k].name, NULL);
	}
	a = DCP_ITEMS(ds->alias, struct dcp_ds_alias);
	for (size_t i = 0; rc >= 0 && i < ds->alias.n / sizeof(*a); i++) {
		if (dcp_intern_has(&ds->trained, a[i].real))
			rc = dcp_intern_str(&ds->trained, a[i].name, NULL);
		else if (dcp_intern_has(&ds->frozen, a[i].real))
			rc = dcp_intern_str(&ds->frozen, a[i].name, NULL);
	}
	return rc < 0 ? -ENOMEM : 0;
}

/* The aliases of @name. */
static const struct dcp_ds_alias *dcp_ds_aliases(const struct dcp_ds *ds, const char *name,
						 size_t *n)
{
	const struct dcp_ds_alias *all = DCP_ITEMS(ds->alias, struct dcp_ds_alias);
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

int dcp_ds_emit_one(struct dcp_ds *ds, const char *rank, const char *role, const char *name,
		    const struct dcp_tensor *emitted)
{
	const char *path[3] = { rank, role, name };
	struct dcp_tensor t = *emitted;

	if (!t.dtype_name) {
		t.dtype_name = dcp_dtype_info(t.dtype)->name;
		t.itemsize = dcp_dtype_info(t.dtype)->size;
	}
	t.key = NULL;
	t.path = rank ? path : path + 1;
	t.npath = rank ? 3 : 2;
	return dcp_emit_tensor(ds->in->sink, &t);
}

int dcp_ds_emit_tensor(struct dcp_ds *ds, const char *rank, const char *role, const char *name,
		       const struct dcp_tensor *emitted)
{
	dcp_auto_buf struct dcp_buf first = DCP_BUF_INIT;
	const char *path[3] = { rank, role, name };
	struct dcp_tensor t = *emitted;
	const struct dcp_ds_alias *alias;
	size_t n;
	int rc = dcp_ds_emit_one(ds, rank, role, name, &t);

	alias = dcp_ds_aliases(ds, name, &n);
	if (n && !t.alias_of && !t.error) {
		dcp_path_join(&first, rank ? path : path + 1, rank ? 3 : 2);
		t.alias_of = first.p;
	}
	if (dcp_buf_error(&first))
		return -ENOMEM;
	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = dcp_ds_emit_one(ds, rank, role, alias[i].name, &t);
	return rc;
}

int dcp_ds_emit_object(struct dcp_ds *ds, const char *rank, const char *role, const char *name,
		       const char *type, const char *json)
{
	const char *path[3] = { rank, role, name };
	struct dcp_object o = { .path = rank ? path : path + 1,
				.npath = rank ? 3 : 2,
				.type = type,
				.json = json,
				.json_len = strlen(json) };
	const struct dcp_ds_alias *alias;
	size_t n;
	int rc = 0;

	alias = dcp_ds_aliases(ds, name, &n);
	for (size_t i = 0; rc == 0 && i <= n; i++) {
		path[2] = i == 0 ? name : alias[i - 1].name;
		rc = dcp_emit_object(ds->in->sink, &o);
	}
	return rc;
}

int dcp_ds_note_unjoined(struct dcp_ds *ds, const char *name, const char *why,
			 const struct dcp_ds_rule *rule)
{
	ds->nunjoined++;
	if (ds->unjoined)
		return 0;
	ds->unjoined =
		dcp_ds_text(ds, "the first is %.200s: %s%s%.200s%s", name, why,
			    rule->pattern ? " (pattern \"" : "",
			    rule->pattern ? rule->pattern : "", rule->pattern ? "\")" : "");
	return ds->unjoined ? 0 : -ENOMEM;
}

int dcp_ds_emit_facts(struct dcp_ds *ds)
{
	const struct dcp_sink *sink = ds->in->sink;
	int rc = dcp_emit_fact(sink, 0, "framework", "deepspeed%s%s", ds->version[0] ? " " : "",
			       ds->version);

	if (ds->nparts && ds->part->first)
		rc = dcp_emit_fact(sink, rc, "data_parallel_ranks", "%" PRIu32,
				   ds->part->world);
	if (ds->nparts > 1)
		rc = dcp_emit_fact(sink, rc, "model_parallel_ranks",
				   "%" PRIu32 " tensor-parallel, %zu pipeline stage%s", ds->tp,
				   ds->nparts / ds->tp, dcp_s(ds->nparts / ds->tp));
	if (!ds->unjoined)
		return rc;
	return dcp_emit_fact(sink, rc, "unjoined",
			     "%zu tensor%s, given for each tensor-parallel rank, as "
			     "mp_rank_<nn>.*; %s",
			     ds->nunjoined, dcp_s(ds->nunjoined), ds->unjoined);
}
