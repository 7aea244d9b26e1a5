/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "core/base/text.h"
#include "tools/cmd.h"

/* A verb is one file and one row here; the order is that of the help page. */
const struct cmd *const cmd_table[] = {
	&cmd_mount, &cmd_umount, &cmd_status, &cmd_index,  &cmd_ls,      &cmd_tree, &cmd_browse,
	&cmd_show,  &cmd_cat,    &cmd_stats,  &cmd_diff,   &cmd_verify,  &cmd_find, &cmd_du,
	&cmd_scan,  &cmd_bisect, &cmd_report, &cmd_plan,   &cmd_load,    &cmd_warm, &cmd_export,
	&cmd_save,  &cmd_rules,  &cmd_cache,  &cmd_doctor, &cmd_version, &cmd_help, NULL,
};

const struct cmd *cmd_by_name(const char *name)
{
	for (size_t i = 0; cmd_table[i]; i++)
		if (strcmp(cmd_table[i]->name, name) == 0 ||
		    (cmd_table[i]->also && strcmp(cmd_table[i]->also, name) == 0))
			return cmd_table[i];
	return NULL;
}

const char *cmd_nearest(const char *word)
{
	const char *nearest = NULL;
	struct dcp_near near = dcp_near_to(word);

	near.best = DCP_MIN(near.best, (size_t)3);
	for (size_t i = 0; cmd_table[i]; i++)
		if (dcp_near_take(&near, cmd_table[i]->name))
			nearest = cmd_table[i]->name;
	return nearest;
}
