/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/stats.h"

#include "core/base/buf.h"

static const char *const names[DCPFS_STAT_COUNT] = {
	[DCPFS_STAT_LOOKUP] = "lookup",
	[DCPFS_STAT_GETATTR] = "getattr",
	[DCPFS_STAT_READDIR] = "readdir",
	[DCPFS_STAT_OPEN] = "open",
	[DCPFS_STAT_READ] = "read",
	[DCPFS_STAT_READ_BYTES] = "read_bytes",
	[DCPFS_STAT_REPLY_MAPPED] = "reply_mapped",
	[DCPFS_STAT_REPLY_COPIED] = "reply_copied",
	[DCPFS_STAT_REPLY_TEXT] = "reply_text",
	[DCPFS_STAT_ERRORS] = "errors",
	[DCPFS_STAT_FILES_OPENED] = "files_opened",
	[DCPFS_STAT_RESCANS] = "rescans",
};

void dcpfs_stats_text(const struct dcpfs_stats *s, struct dcp_buf *out)
{
	for (int i = 0; i < DCPFS_STAT_COUNT; i++)
		dcp_buf_printf(
			out, "%s %llu\n", names[i],
			(unsigned long long)__atomic_load_n(&s->count[i], __ATOMIC_RELAXED));
}
