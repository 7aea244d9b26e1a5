/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine hands over pairs as they are about to enter a dict. A section's dict is known by
 * the name that lies under it on the stack and by its depth: the first dict under such a name
 * is the section, deeper ones belong to values. What the hook did not see (a dict that came
 * finished, an OrderedDict) is found in the root object afterwards.
 */
#include <errno.h>
#include <string.h>

#include "core/base/err.h"
#include "core/format/torch_field.h"
#include "core/format/torch_meta_int.h"
#include "core/parse/pickle.h"
#include "core/parse/source.h"

enum { SECTIONS = 4 };

static const char *const sections[SECTIONS] = { "state_dict_metadata", "storage_data",
						"planner_data", "mcore_data" };

static int add_pairs(struct dcp_tmeta *m, int section, const struct dcp_pv *kv, size_t npairs,
		     struct dcp_err *err)
{
	int (*const add[SECTIONS])(
		struct dcp_tmeta *, struct dcp_pv, struct dcp_pv,
		struct dcp_err *) = { dcp_tmeta_add_entry, dcp_tmeta_add_record,
				      dcp_tmeta_add_path, dcp_tmeta_add_shape };

	for (size_t i = 0; i < npairs; i++) {
		int rc = add[section](m, kv[2 * i], kv[2 * i + 1], err);

		if (rc < 0)
			return rc;
	}
	return 0;
}

static int on_pairs(void *ctx, struct dcp_pv where, size_t depth, const struct dcp_pv *kv,
		    size_t npairs, struct dcp_err *err)
{
	struct dcp_tmeta *m = ctx;
	int rc;

	/* Megatron keeps the save plans of all ranks: as long as everything else, and of no
	 * use. */
	if (dcp_tfield_class(where) == DCP_TFIELD_PLAN)
		return 1;
	if (where.type != DCP_PV_STR)
		return 0;
	for (int i = 0; i < SECTIONS; i++) {
		if (!dcp_pv_is_str(where, sections[i]))
			continue;
		if (!m->depth[i])
			m->depth[i] = depth;
		if (m->depth[i] != depth)
			return 0;
		rc = add_pairs(m, i, kv, npairs, err);
		return rc < 0 ? rc : 1;
	}
	return 0;
}

static void keep_fact(char *out, size_t n, const struct dcp_pv *v)
{
	const char *text = v ? dcp_pv_str(*v) : NULL;

	if (text && strlen(text) < n)
		memcpy(out, text, strlen(text) + 1);
}

/* Check the root's class, and take the pairs that did not come through the hook. */
static int read_root(struct dcp_tmeta *m, struct dcp_pv root, struct dcp_err *err)
{
	const struct dcp_pv *meta;
	char type[128];

	if (dcp_tfield_class(root) != DCP_TFIELD_METADATA)
		return dcp_fail(err, -EBADMSG, 0,
				"the pickle holds %s, expected "
				"torch.distributed.checkpoint.metadata.Metadata",
				dcp_tfield_type(root, type, sizeof(type)));
	for (int i = 0; i < SECTIONS; i++) {
		const struct dcp_pv *v = dcp_pv_get(root, sections[i]), *kv;
		size_t npairs;
		int rc;

		if (i >= 2 && (!v || v->type == DCP_PV_NONE))
			continue; /* no planner_data: keys are not nested; and not Megatron */
		if (i == 1 && !v)
			return dcp_fail(err, -ENOTSUP, DCP_ERR_NO_OFFSET,
					"Metadata without storage_data: torch 1.12 wrote it, "
					"whose format no later torch reads; load it there and "
					"save it again with torch 1.13 or later");
		if (!v || (v->type != DCP_PV_DICT && !dcp_pv_is_mapping(*v)))
			return dcp_fail(err, -EBADMSG, DCP_ERR_NO_OFFSET,
					"%s is %s, expected a dict", sections[i],
					v ? dcp_tfield_type(*v, type, sizeof(type))
					  : "missing");
		kv = dcp_pv_pairs(*v, &npairs);
		rc = add_pairs(m, i, kv, npairs, err);
		if (rc < 0)
			return rc;
	}
	meta = dcp_pv_get(root, "storage_meta");
	keep_fact(m->version, sizeof(m->version), dcp_pv_get(root, "version"));
	if (meta && dcp_tfield_class(*meta) == DCP_TFIELD_STORAGE_META)
		keep_fact(m->save_id, sizeof(m->save_id), dcp_pv_get(*meta, "save_id"));
	return 0;
}

int dcp_tmeta_read(struct dcp_tmeta *m, const struct dcp_source *src, struct dcp_err *err)
{
	const struct dcp_pickle_hook hook = { on_pairs, m };
	const struct dcp_pickle_opts opts = { .hook = &hook };
	struct dcp_pickle *pickle;
	uint64_t end;
	int rc;

	memset(m->depth, 0, sizeof(m->depth));
	m->guess = 0;
	dcp_tmeta_begin(m, src->size);
	rc = dcp_pickle_read(src, &opts, &pickle, NULL, err);
	if (rc < 0)
		return rc;
	rc = read_root(m, dcp_pickle_root(pickle), err);
	dcp_pickle_free(pickle);
	if (rc < 0)
		return rc;
	end = m->records.n;
	dcp_buf_add(&m->ends, &end, sizeof(end));
	if (dcp_buf_error(&m->ends))
		return dcp_fail(err, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory for metadata");
	m->nread++;
	return 0;
}
