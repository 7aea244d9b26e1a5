/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/groups.h"

#include <errno.h>
#include <string.h>

#include "core/origin/dir/dir.h"

/* The families whose checkpoints are files of @dir, as numbers in @all. */
static int families_of_files(dcp_families all, const struct dcp_dir *dir, struct dcp_buf *many)
{
	for (uint32_t i = 0; all[i]; i++) {
		enum dcp_match match =
			all[i]->group ? all[i]->probe(dir, (char[1]){ 0 }, 0) : DCP_MATCH_NO;

		if (match == DCP_MATCH_MANY || match == DCP_MATCH_YES)
			dcp_buf_add(many, &i, sizeof(i));
	}
	return dcp_buf_error(many) ? -ENOMEM : 0;
}

/* The first of them that claims a file of this name. */
static const struct dcp_format *owner_of(dcp_families all, const struct dcp_buf *many,
					 const char *name, char group[DCP_GROUP_MAX])
{
	const uint32_t *at = DCP_ITEMS(*many, uint32_t);

	for (size_t i = 0; i < DCP_NITEMS(*many, uint32_t); i++)
		if (all[at[i]]->group(name, group))
			return all[at[i]];
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

int dcp_groups_list(dcp_families all, const struct dcp_dir *dir,
		    bool (*is_text_link)(const struct dcp_dir *, const struct dcp_dirent *),
		    struct dcp_groups *g)
{
	dcp_auto_buf struct dcp_buf many = DCP_BUF_INIT;
	char group[DCP_GROUP_MAX];
	int code = families_of_files(all, dir, &many);

	for (int links = 0; links < 2 && g->n == 0; links++)
		for (size_t i = 0; code == 0 && i < dir->n; i++) {
			const struct dcp_dirent *e = &dir->entries[i];
			const struct dcp_format *f =
				e->is_dir ? NULL : owner_of(all, &many, e->name, group);

			if (f && e->is_link == links && !(is_text_link && is_text_link(dir, e)))
				code = note_group(g, f, group);
		}
	return code;
}

void dcp_groups_finish(struct dcp_groups *g)
{
	dcp_intern_finish(&g->names);
	dcp_buf_finish(&g->list);
}
