/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/store/layouts/layouts_int.h"

enum { MAX_NAMES = 4096 }; /* a walker that tries names must not fill the memory */

struct dcp_named_layout *dcp_layouts_by_name(const struct dcp_layouts *t, const char *name)
{
	struct dcp_named_layout *l = t->first;

	while (l && strcmp(l->name, name) != 0)
		l = l->next;
	return l;
}

struct dcp_named_layout *dcp_layouts_get(const struct dcp_layouts *t, uint64_t id)
{
	struct dcp_named_layout *l = t->first;

	while (l && l->id != id)
		l = l->next;
	return l;
}

int dcp_layouts_add(struct dcp_layouts *t, const char *name, struct dcp_layout *l,
		    const char *file, struct dcp_named_layout **out)
{
	struct dcp_named_layout *e = t->n < MAX_NAMES ? calloc(1, sizeof(*e)) : NULL;
	char *copy = e ? strdup(name) : NULL, *path = copy && file ? strdup(file) : NULL;

	if (!copy || (file && !path)) {
		free(copy);
		free(e);
		dcp_layout_free(l);
		return t->n < MAX_NAMES ? -ENOMEM : -E2BIG;
	}
	*e = (struct dcp_named_layout){
		.id = (uint32_t)dcp_hash64(name, strlen(name)) & INT32_MAX,
		.name = copy,
		.file = path,
		.l = l,
		.next = t->first,
	};
	while (dcp_layouts_get(t, e->id))
		e->id = (e->id + 1) & INT32_MAX;
	t->first = e;
	t->n++;
	if (out)
		*out = e;
	return 0;
}
