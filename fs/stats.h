/* SPDX-License-Identifier: Apache-2.0 */
/* stats: counters of what the mount does, shown in .dcpfs/stats. Safe from any thread. */
#pragma once
#include <stdint.h>

#include "core/store/io/fetch.h"

struct dcp_buf;

enum dcpfs_stat {
	DCPFS_STAT_LOOKUP,
	DCPFS_STAT_GETATTR,
	DCPFS_STAT_READDIR,
	DCPFS_STAT_OPEN,
	DCPFS_STAT_READ,
	DCPFS_STAT_READ_BYTES,
	DCPFS_STAT_REPLY_MAPPED, /* reads answered by pointers into mappings */
	DCPFS_STAT_REPLY_COPIED, /* reads gathered into a buffer first */
	DCPFS_STAT_REPLY_TEXT,   /* reads of generated files */
	DCPFS_STAT_ERRORS,
	DCPFS_STAT_FILES_OPENED, /* files resolved because the cache of files did not have them */
	DCPFS_STAT_KEY_SCANS,    /* versions whose keys were read for by-key/ */
	DCPFS_STAT_RESCANS,      /* whole looks at the source */
	DCPFS_STAT_LOOKS,        /* short looks, where inotify is not reliable */
	DCPFS_STAT_LOOK_CALLS,   /* stat calls of short looks */
	DCPFS_STAT_WATCHES,      /* inotify watches set now */
};
#define DCPFS_STAT_COUNT (DCPFS_STAT_WATCHES + 1)

struct dcpfs_stats {
	uint64_t count[DCPFS_STAT_COUNT];
	struct dcp_io_counts io; /* how the bytes of tensors were read; "io_..." */
};

static inline void dcpfs_count(struct dcpfs_stats *s, enum dcpfs_stat which, uint64_t n)
{
	__atomic_fetch_add(&s->count[which], n, __ATOMIC_RELAXED);
}

static inline void dcpfs_gauge(struct dcpfs_stats *s, enum dcpfs_stat which, uint64_t n)
{
	__atomic_store_n(&s->count[which], n, __ATOMIC_RELAXED);
}

/* "name value" lines, one a counter. */
void dcpfs_stats_text(const struct dcpfs_stats *s, struct dcp_buf *out);
