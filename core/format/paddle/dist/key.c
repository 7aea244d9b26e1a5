/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One key: its entries (which pieces there should be), the arrays its records led to, and what
 * comes of them. A piece that cannot be had is not missed when others cover its elements: two cuts
 * of one tensor can stand in metadata.
 */
#include <string.h>

#include "core/base/base.h"
#include "core/format/format.h"
#include "core/format/paddle/dist/key.h"

/* Components of the key's path, in @d->arena; NULL: no memory. */
static const char *const *path_of(struct dcp_pdist *d, const char *key, uint32_t number,
				  size_t *n)
{
	const struct dcp_pmeta_key *k = dcp_pmeta_key(&d->meta, number);
	const char *text = k->npath ? d->meta.paths.p + k->path : NULL;
	const char **path = dcp_arena_calloc(&d->arena, k->npath + 1, sizeof(*path));

	if (!path)
		return NULL;
	*n = DCP_MAX(k->npath, 1);
	path[0] = key;
	for (uint32_t i = 0; i < k->npath; i++) {
		path[i] = text;
		text += strlen(text) + 1;
	}
	return path;
}

int dcp_pdist_emit_key(struct dcp_pdist *d, uint32_t key)
{
	const struct dcp_pmeta_key *k = dcp_pmeta_key(&d->meta, key);
	struct dcp_pjoin j = { .key = k, .t = { .dtype_name = "" } };
	int rc = 0;

	if (!k->named)
		return 0; /* only the other sections know it: Paddle does not load it either */
	dcp_arena_reset(&d->arena);
	dcp_join_begin(&d->join);
	j.t.key = dcp_intern_text(&d->meta.names, key);
	j.t.shape = j.shape;
	if (k->error != DCP_PMETA_NONE)
		dcp_pjoin_fail(&j, "%.100s: %s", d->meta_name,
			       dcp_intern_text(&d->meta.errors, k->error));
	if (!dcp_pjoin_broken(&j))
		dcp_pjoin_head(d, &j, k);
	if (!dcp_pjoin_broken(&j))
		rc = dcp_pjoin_collect(d, &j, k);
	if (rc == 0 && !dcp_pjoin_broken(&j))
		rc = dcp_pjoin_settle(d, &j);
	if (rc < 0)
		return rc;
	j.t.path = path_of(d, j.t.key, key, &j.t.npath);
	if (!j.t.path)
		return -ENOMEM;
	if (dcp_pjoin_broken(&j))
		j.t.error = j.why.msg;
	return dcp_emit_tensor(d->in->sink, &j.t);
}
