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
	[DCPFS_STAT_KEY_SCANS] = "key_scans",
	[DCPFS_STAT_RESCANS] = "rescans",
	[DCPFS_STAT_LOOKS] = "looks",
	[DCPFS_STAT_LOOK_CALLS] = "look_calls",
	[DCPFS_STAT_WATCHES] = "watches",
};

static void put(struct dcp_buf *out, const char *name, const uint64_t *count)
{
	dcp_buf_printf(out, "%s %llu\n", name,
		       (unsigned long long)__atomic_load_n(count, __ATOMIC_RELAXED));
}

void dcpfs_stats_text(const struct dcpfs_stats *s, struct dcp_buf *out)
{
	for (int i = 0; i < DCPFS_STAT_COUNT; i++)
		put(out, names[i], &s->count[i]);
	put(out, "io_mapped", &s->io.mapped);
	put(out, "io_read", &s->io.read);
	put(out, "io_span", &s->io.span);
	put(out, "io_direct", &s->io.direct);
	put(out, "io_fetched", &s->io.fetched);
	put(out, "io_runs", &s->io.runs);
	put(out, "io_ring", &s->io.ring);
	put(out, "io_fixed", &s->io.fixed);
	put(out, "io_calls", &s->io.calls);
}
