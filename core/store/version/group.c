/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "core/origin/dir/dir.h"
#include "core/store/version/version_int.h"

/* The families that say MANY to @dir, as bits by their place in the table. */
static uint64_t families_of_files(const struct dcp_dir *dir)
{
	uint64_t many = 0;

	for (size_t i = 0; dcp_formats[i] && i < 64; i++)
		if (dcp_formats[i]->group &&
		    dcp_formats[i]->probe(dir, (char[1]){ 0 }, 0) == DCP_MATCH_MANY)
			many |= 1ull << i;
	return many;
}

/* The first of them that claims a file of this name. */
static const struct dcp_format *owner_of(uint64_t many, const char *name,
					 char group[DCP_GROUP_MAX])
{
	for (size_t i = 0; dcp_formats[i] && i < 64; i++)
		if (many >> i & 1 && dcp_formats[i]->group(name, group))
			return dcp_formats[i];
	return NULL;
}

static int note_group(struct dcp_groups *g, const struct dcp_format *format, const char *name)
{
	struct dcp_group one = { .format = format };
	int code =
		dcp_intern_add(&g->names, name, strlen(name) + 1, DCP_INTERN_NONE, &one.name);

	if (code == 1) {
		dcp_buf_add(&g->list, &one, sizeof(one));
		g->at = DCP_ITEMS(g->list, struct dcp_group);
		g->n++;
	}
	return code < 0 || dcp_buf_error(&g->list) ? -ENOMEM : 0;
}

int dcp_groups_list(const struct dcp_dir *dir, struct dcp_groups *g)
{
	uint64_t many = families_of_files(dir);
	char group[DCP_GROUP_MAX];
	int code = 0;

	for (int links = 0; links < 2 && g->n == 0; links++)
		for (size_t i = 0; code == 0 && i < dir->n; i++) {
			const struct dcp_dirent *e = &dir->entries[i];
			const struct dcp_format *f =
				e->is_dir ? NULL : owner_of(many, e->name, group);

			if (f && dcp_is_link(dir->fd, e->name) == links &&
			    !dcp_is_text_link(dir, e))
				code = note_group(g, f, group);
		}
	return code;
}

void dcp_groups_finish(struct dcp_groups *g)
{
	dcp_intern_finish(&g->names);
	dcp_buf_finish(&g->list);
}
