/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/format/dcp/meta/meta.h"
#include "core/format/torch/torch.h"
#include "core/origin/source.h"
#include "core/parse/pickle/pickle.h"

static const struct dcp_section sections[] = {
	{ "state_dict_metadata", false, dcp_tmeta_add_entry },
	{ "storage_data", false, dcp_tmeta_add_record },
	{ "planner_data", true, dcp_tmeta_add_path }, /* without it keys are not nested */
	{ "mcore_data", true, dcp_tmeta_add_shape },  /* Megatron's */
};

/* Megatron keeps the save plans of all ranks: as long as everything else, and of no use. */
static bool is_plan(struct dcp_pv where)
{
	return dcp_tfield_class(where) == DCP_TFIELD_PLAN;
}

static int look_at_root(void *ctx, struct dcp_pv root, struct dcp_err *err)
{
	const struct dcp_pv meta = dcp_pv_at(root, "storage_meta");
	struct dcp_tmeta *m = ctx;
	char type[128];

	if (dcp_tfield_class(root) != DCP_TFIELD_METADATA)
		return dcp_fail_at(err, -EBADMSG, 0,
				   "the pickle holds %s, expected "
				   "torch.distributed.checkpoint.metadata.Metadata",
				   dcp_tfield_type(root, type, sizeof(type)));
	if (dcp_pv_get(root, "state_dict_metadata") && !dcp_pv_get(root, "storage_data"))
		return dcp_fail(err, -ENOTSUP,
				"Metadata without storage_data: torch 1.12 wrote it, whose "
				"format no later torch reads; load it there and save it again "
				"with torch 1.13 or later");
	dcp_sections_fact(m->version, sizeof(m->version), dcp_pv_at(root, "version"));
	if (dcp_tfield_class(meta) == DCP_TFIELD_STORAGE_META)
		dcp_sections_fact(m->save_id, sizeof(m->save_id), dcp_pv_at(meta, "save_id"));
	return 0;
}

int dcp_tmeta_read(struct dcp_tmeta *m, const struct dcp_source *src, struct dcp_err *err)
{
	const struct dcp_sections all = { sections, DCP_LEN(sections), is_plan, look_at_root,
					  m };
	uint64_t end;
	int rc;

	m->guess = 0;
	dcp_tmeta_begin(m, src->size);
	rc = dcp_sections_read(&all, src, err);
	if (rc < 0)
		return rc;
	end = m->records.n;
	if (dcp_buf_add(&m->ends, &end, sizeof(end)) < 0)
		return dcp_fail(err, -ENOMEM, "out of memory for metadata");
	m->nread++;
	return 0;
}
