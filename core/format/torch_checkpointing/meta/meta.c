/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/torch_checkpointing/meta/meta.h"
#include "core/base/sort.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/err.h"

int dcp_titems_work(struct dcp_titems_meta *m, uint64_t n, struct dcp_err *err)
{
	m->work += n;
	m->exhausted = m->work > m->work_limit;
	if (!m->exhausted)
		return 0;
	return dcp_fail(err, -E2BIG,
			"its lists of ranks and its paths add up to more than %" PRIu64
			" values",
			m->work_limit);
}

void dcp_titems_meta_finish(struct dcp_titems_meta *m)
{
	dcp_arena_finish(&m->arena);
	dcp_intern_finish(&m->names);
	dcp_intern_finish(&m->keys);
	dcp_intern_finish(&m->lists);
	dcp_buf_finish(&m->items);
	dcp_buf_finish(&m->entries);
	dcp_buf_finish(&m->shared);
	dcp_buf_finish(&m->pending);
	dcp_buf_finish(&m->scratch);
}

struct dcp_titems_entry *dcp_titems_entries(const struct dcp_titems_meta *m)
{
	return DCP_ITEMS(m->entries, struct dcp_titems_entry);
}

struct dcp_titems_item *dcp_titems_items(const struct dcp_titems_meta *m)
{
	return DCP_ITEMS(m->items, struct dcp_titems_item);
}

size_t dcp_titems_nentries(const struct dcp_titems_meta *m)
{
	return DCP_NITEMS(m->entries, struct dcp_titems_entry);
}

const struct dcp_titems_entry *dcp_titems_entry(const struct dcp_titems_meta *m, size_t i)
{
	return &dcp_titems_entries(m)[i];
}

const struct dcp_titems_entry *dcp_titems_find(const struct dcp_titems_meta *m, const char *key)
{
	uint32_t i = dcp_intern_find(&m->keys, key, strlen(key));

	return i == DCP_INTERN_NONE ? NULL : &dcp_titems_entries(m)[i];
}

const struct dcp_titems_rank *dcp_titems_list_find(const struct dcp_titems_list *l,
						   uint32_t rank)
{
	return DCP_FIND(&rank, l->by_rank, l->n, dcp_by_u32);
}

const struct dcp_titems_group *dcp_titems_group_of(const struct dcp_titems_entry *e,
						   uint32_t rank)
{
	for (const struct dcp_titems_group *g = e->first; g; g = g->next)
		if (g->ranks && dcp_titems_list_find(g->ranks, rank))
			return g;
	return NULL;
}

int dcp_titems_get_item(struct dcp_titems_meta *m, const char *name, uint32_t *number)
{
	struct dcp_titems_item fresh = { 0 };
	int rc = dcp_intern_str(&m->names, name, number);

	if (rc != 1)
		return rc;
	fresh.name = dcp_arena_strdup(&m->arena, name);
	dcp_buf_add(&m->items, &fresh, sizeof(fresh));
	return fresh.name ? dcp_buf_error(&m->items) : -ENOMEM;
}
