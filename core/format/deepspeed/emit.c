/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "core/base/text.h"
#include "core/format/deepspeed/emit.h"

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
