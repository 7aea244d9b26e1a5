/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats: counters of what the mount does, shown in .dcpfs/stats and .dcpfs/metrics. Safe from any
 * thread.
 */
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
	DCPFS_STAT_FILES_FOUND, /* files that the cache of files had */
	DCPFS_STAT_KEY_SCANS,   /* versions whose keys were read for by-key/ */
	DCPFS_STAT_RESCANS,     /* whole looks at the source */
	DCPFS_STAT_LOOKS,       /* short looks, where inotify is not reliable */
	DCPFS_STAT_LOOK_CALLS,  /* stat calls of short looks */
	DCPFS_STAT_WATCHES,     /* inotify watches set now */
};
#define DCPFS_STAT_COUNT (DCPFS_STAT_WATCHES + 1)

/* Requests of the kinds that are timed: the first ones of enum dcpfs_stat. */
#define DCPFS_TIMED_COUNT (DCPFS_STAT_READ + 1)
#define DCPFS_TIME_STEPS 19 /* upper limits of times, from 10 us to 10 s */

struct dcpfs_times {
	uint64_t within[DCPFS_TIME_STEPS +
			1]; /* requests by the first limit that they kept; the last: none */
	uint64_t ns;        /* of all together */
};

/* The errors that programs are answered with; all others become EIO. */
#define DCPFS_ERRNO_COUNT 14

struct dcpfs_stats {
	uint64_t count[DCPFS_STAT_COUNT];
	struct dcpfs_times times[DCPFS_TIMED_COUNT];
	uint64_t answers[DCPFS_ERRNO_COUNT]; /* requests that ended with this error */
	struct dcp_io_counts io;             /* how the bytes of tensors were read; "io_..." */
};

static inline void dcpfs_count(struct dcpfs_stats *s, enum dcpfs_stat which, uint64_t n)
{
	__atomic_fetch_add(&s->count[which], n, __ATOMIC_RELAXED);
}

static inline void dcpfs_gauge(struct dcpfs_stats *s, enum dcpfs_stat which, uint64_t n)
{
	__atomic_store_n(&s->count[which], n, __ATOMIC_RELAXED);
}

/* A request that is being served. */
struct dcpfs_timer {
	struct dcpfs_stats *stats;
	enum dcpfs_stat which;
	int64_t from; /* CLOCK_MONOTONIC, ns */
};

struct dcpfs_timer dcpfs_timer_start(struct dcpfs_stats *s, enum dcpfs_stat which);
void dcpfs_timer_end(struct dcpfs_timer *t);

/* Count a request of one of the timed kinds, and take the time until the scope ends. */
#define DCPFS_TIMED(stats, which)                                                              \
	__attribute__((cleanup(dcpfs_timer_end), unused)) struct dcpfs_timer timer =           \
		dcpfs_timer_start(stats, which)

/* The errno that a program sees for the return code @rc < 0, which is counted. */
int dcpfs_answer(struct dcpfs_stats *s, int rc);

/* What a mount knows beside its counters, for its metrics. */
struct dcpfs_gauges {
	const char *source, *release;
	uint64_t versions, versions_open, versions_refused, versions_incomplete;
	uint64_t broken_keys; /* of versions whose index is open */
	uint64_t failures;    /* entries of errors.json about what failed while it was read */
	uint64_t open_files, cached_files, descriptors, started;
	uint64_t memory; /* resident bytes of the process */
};

/* OpenMetrics text. */
void dcpfs_stats_metrics(const struct dcpfs_stats *s, const struct dcpfs_gauges *g,
			 struct dcp_buf *out);

/* "name value" lines, one a counter. */
void dcpfs_stats_text(const struct dcpfs_stats *s, struct dcp_buf *out);
