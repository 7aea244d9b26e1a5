/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meta_read: a whole .metadata, section by section.
 */

#include <errno.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/format/paddle/dist/meta/meta_int.h"
#include "core/origin/source.h"
#include "core/parse/pickle/pickle.h"
#include "core/parse/pyjson/pyjson.h"

enum { MEMORY_BASE = 64 << 20, MEMORY_FACTOR = 16 }; /* bytes, and bytes a byte of file */

static const struct dcp_section sections[] = {
	{ "state_dict_metadata", false, dcp_pmeta_add_state },
	{ "storage_metadata", false, dcp_pmeta_add_record },
	{ "flat_mapping", true, dcp_pmeta_add_path },
};

static int look_at_root(void *ctx, struct dcp_pv root, struct dcp_err *err)
{
	struct dcp_pmeta *m = ctx;

	if (!dcp_pmeta_is(root, "Metadata"))
		return dcp_fail_at(
			err, -EBADMSG, 0,
			"the pickle holds %s, expected Metadata of paddle.distributed",
			dcp_pyjson_type(root));
	dcp_sections_fact(m->model_type, sizeof(m->model_type), dcp_pv_at(root, "model_type"));
	dcp_sections_fact(m->version, sizeof(m->version),
			  dcp_pv_at(root, "checkpoint_version"));
	dcp_sections_fact(m->commit, sizeof(m->commit), dcp_pv_at(root, "paddle_commit_id"));
	return 0;
}

int dcp_pmeta_read(struct dcp_pmeta *m, const struct dcp_source *src, struct dcp_err *err)
{
	const struct dcp_sections all = { sections, DCP_LEN(sections), NULL, look_at_root, m };
	const uint64_t zero = 0;

	dcp_buf_add(&m->dims, &zero, sizeof(zero)); /* scalars have no numbers, but a place */
	m->guess = 0;
	m->limit += MEMORY_BASE + MEMORY_FACTOR * src->size;
	return dcp_sections_read(&all, src, err);
}
