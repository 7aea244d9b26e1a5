/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "core/model/layout/rule.h"

void dcp_layout_free(struct dcp_layout *l)
{
	if (!l)
		return;
	free(l->rule);
	free(l->glob);
	free(l->place);
	dcp_arena_finish(&l->arena);
	free(l);
}

const char *dcp_layout_name(const struct dcp_layout *l)
{
	return l->name;
}

const struct dcp_mesh *dcp_layout_mesh(const struct dcp_layout *l)
{
	return &l->mesh;
}

uint32_t dcp_layout_ranks(const struct dcp_layout *l)
{
	return l->nranks;
}

void dcp_layout_coords(const struct dcp_layout *l, uint32_t rank, uint32_t *at)
{
	for (uint32_t d = l->mesh.ndim; d-- > 0; rank /= l->mesh.size[d])
		at[d] = rank % l->mesh.size[d];
}

uint64_t dcp_layout_hash(const struct dcp_layout *l)
{
	return l->hash;
}
