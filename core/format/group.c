/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "core/format/format.h"
#include "core/parse/dir/dir.h"

struct chosen {
	const struct dcp_format *format;
	const char *group;
};

static bool in_group(void *ctx, const struct dcp_dirent *e)
{
	const struct chosen *c = ctx;
	char group[DCP_GROUP_MAX];

	return !e->is_dir && c->format->group(e->name, group) && strcmp(group, c->group) == 0;
}

int dcp_format_group(const struct dcp_format *format, const struct dcp_dir *dir,
		     const char *group, struct dcp_dir *out)
{
	struct chosen c = { format, group };

	return dcp_dir_only(dir, in_group, &c, out);
}
