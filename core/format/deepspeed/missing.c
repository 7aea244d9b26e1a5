/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "core/format/deepspeed/emit.h"

enum { MAX_LOST = 100 }; /* files that are missing, told by name */

/* The first model-parallel rank from @mp on that no file is of; false: all have one. */
static bool lacks_part(const struct dcp_ds *ds, uint32_t *mp)
{
	for (; *mp < ds->tp * ds->pp; ++*mp)
		if (!dcp_ds_part_of(ds, *mp))
			return true;
	return false;
}

bool dcp_ds_lacks(const struct dcp_ds *ds, char missing[DCP_DS_NAME_MAX])
{
	uint32_t mp = 0;

	if (lacks_part(ds, &mp) && ds->part->nmodels) {
		dcp_ds_name_of_rank(ds->part->model, 0, mp, missing);
		return true;
	}
	for (size_t i = 0; i < ds->nparts; i++) {
		const struct dcp_ds_part *p = &ds->part[i];

		for (uint32_t r = 0; p->first && r < p->world; r++)
			if (!dcp_ds_rank_of(p, r)) {
				dcp_ds_name_of_rank(p->first, r, p->mp, missing);
				return true;
			}
	}
	return false;
}

int dcp_ds_tell_lost(struct dcp_ds *ds)
{
	char name[DCP_DS_NAME_MAX];
	int rc = 0;

	for (uint32_t mp = 0, n = 0;
	     rc == 0 && n < MAX_LOST && ds->part->nmodels && lacks_part(ds, &mp); mp++, n++) {
		dcp_ds_name_of_rank(ds->part->model, 0, mp, name);
		rc = dcp_ds_tell_broken(
			ds, name,
			dcp_ds_text(
				ds,
				"%s is missing: nothing that only model-parallel rank %" PRIu32
				" of %" PRIu32 " holds can be shown",
				name, mp, ds->tp * ds->pp));
	}
	return rc;
}
