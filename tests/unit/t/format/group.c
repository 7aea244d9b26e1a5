/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/format/group.h"

#include "tests/unit/t.h"

struct chosen {
	const struct dcp_format *format;
	const char *group;
};

static bool is_chosen(void *ctx, const struct dcp_dirent *e)
{
	const struct chosen *c = ctx;
	char group[DCP_GROUP_MAX];

	return !e->is_dir && c->format->group(e->name, group) && !strcmp(group, c->group);
}

static const char *only_group(const struct dcp_dir *dir, const struct dcp_format *format,
			      char *group)
{
	char other[DCP_GROUP_MAX];

	*group = '\0';
	for (size_t i = 0; i < dir->n; i++) {
		if (dir->entries[i].is_dir || !format->group(dir->entries[i].name, other))
			continue;
		if (*group && strcmp(group, other) != 0)
			fail_msg("%s: groups %s and %s", dir->path, group, other);
		strcpy(group, other);
	}
	return group;
}

void t_group_load(struct t_group *g, const char *root, const struct dcp_format *format,
		  const char *group, size_t fail_at)
{
	struct chosen c = { format, group };
	char only[DCP_GROUP_MAX], why[64];
	struct dcp_dir all;
	struct dcp_load in = { .dir = &g->dir, .formats = dcp_formats };

	*g = (struct t_group){ 0 };
	assert_int_equal(dcp_dir_open(root, &all, NULL), 0);
	if (!group)
		c.group = only_group(&all, format, only);
	assert_int_equal(dcp_dir_only(&all, is_chosen, &c, &g->dir), 0);
	dcp_dir_close(&all);
	assert_int_not_equal(format->probe(&g->dir, why, sizeof(why)), DCP_MATCH_NO);
	t_sink_init(&g->s, &g->dir);
	g->s.fail_at = fail_at;
	in.sink = &g->s.sink;
	g->rc = format->load(&in, &g->err);
}

void t_group_finish(struct t_group *g)
{
	t_sink_finish(&g->s);
	dcp_dir_close(&g->dir);
}
