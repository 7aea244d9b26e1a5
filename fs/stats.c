/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/fs.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/remote/disk.h"
#include "core/remote/http.h"
#include "fs/file/file.h"

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
	[DCPFS_STAT_FILES_FOUND] = "files_found",
	[DCPFS_STAT_KEY_SCANS] = "key_scans",
	[DCPFS_STAT_RESCANS] = "rescans",
	[DCPFS_STAT_LOOKS] = "looks",
	[DCPFS_STAT_LOOK_CALLS] = "look_calls",
	[DCPFS_STAT_WATCHES] = "watches",
};

static void put_count(struct dcp_buf *out, const char *name, const uint64_t *count)
{
	dcp_buf_printf(out, "%s %llu\n", name,
		       (unsigned long long)__atomic_load_n(count, __ATOMIC_RELAXED));
}

/* ---- times ---- */

static const struct {
	uint64_t ns;
	const char *seconds;
} steps[DCPFS_TIME_STEPS] = {
	/* clang-format off */
	{ 10000, "1e-05" }, { 25000, "2.5e-05" }, { 50000, "5e-05" },
	{ 100000, "0.0001" }, { 250000, "0.00025" }, { 500000, "0.0005" },
	{ 1000000, "0.001" }, { 2500000, "0.0025" }, { 5000000, "0.005" },
	{ 10000000, "0.01" }, { 25000000, "0.025" }, { 50000000, "0.05" },
	{ 100000000, "0.1" }, { 250000000, "0.25" }, { 500000000, "0.5" },
	{ 1000000000, "1.0" }, { 2500000000, "2.5" }, { 5000000000, "5.0" },
	{ 10000000000, "10.0" },
	/* clang-format on */
};

static int64_t read_clock(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

struct dcpfs_timer dcpfs_timer_start(struct dcpfs_stats *s, enum dcpfs_stat which)
{
	dcpfs_count(s, which, 1);
	return (struct dcpfs_timer){ s, which, read_clock() };
}

void dcpfs_timer_end(struct dcpfs_timer *t)
{
	struct dcpfs_times *times = &t->stats->times[t->which];
	uint64_t ns = (uint64_t)(read_clock() - t->from);
	size_t i = 0;

	while (i < DCPFS_TIME_STEPS && ns > steps[i].ns)
		i++;
	__atomic_fetch_add(&times->within[i], 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&times->ns, ns, __ATOMIC_RELAXED);
}

/* ---- errors ---- */

/* The first takes the place of every errno that is not listed. */
#define ERRNO(name)                                                                            \
	{                                                                                      \
		name, #name                                                                    \
	}
static const struct {
	int value;
	const char *name;
} errnos[DCPFS_ERRNO_COUNT] = {
	/* clang-format off */
	ERRNO(EIO), ERRNO(ENOENT), ERRNO(ENOTDIR), ERRNO(EISDIR), ERRNO(ESTALE), ERRNO(ENOMEM), ERRNO(EINVAL),
	ERRNO(ERANGE), ERRNO(ENODATA), ERRNO(EACCES), ERRNO(EROFS), ERRNO(EINTR), ERRNO(ENOSYS), ERRNO(ENAMETOOLONG),
	/* clang-format on */
};

int dcpfs_answer(struct dcpfs_stats *s, int rc)
{
	size_t i = DCPFS_ERRNO_COUNT - 1;

	while (i && errnos[i].value != -rc)
		i--;
	__atomic_fetch_add(&s->answers[i], 1, __ATOMIC_RELAXED);
	return errnos[i].value;
}

/* ---- OpenMetrics ---- */

static void put_head(struct dcp_buf *out, const char *name, const char *type, const char *unit,
		     const char *help)
{
	dcp_metric_head(out, "dcpfs", name, type, unit, help);
}

static unsigned long long value_of(const uint64_t *count)
{
	return __atomic_load_n(count, __ATOMIC_RELAXED);
}

static void put_counter(struct dcp_buf *out, const char *name, const char *unit,
			const char *help, const uint64_t *count)
{
	put_head(out, name, "counter", unit, help);
	dcp_buf_printf(out, "dcpfs_%s_total %llu\n", name, value_of(count));
}

static void put_gauge(struct dcp_buf *out, const char *name, const char *unit, const char *help,
		      uint64_t value)
{
	dcp_metric_gauge(out, "dcpfs", name, unit, help, value);
}

static void put_times(struct dcp_buf *out, const char *op, const struct dcpfs_times *times)
{
	const char *const name = "dcpfs_request_duration_seconds";
	unsigned long long sum = value_of(&times->ns), n = 0;

	for (size_t i = 0; i <= DCPFS_TIME_STEPS; i++) {
		n += value_of(&times->within[i]);
		dcp_buf_printf(out, "%s_bucket{op=\"%s\",le=\"%s\"} %llu\n", name, op,
			       i < DCPFS_TIME_STEPS ? steps[i].seconds : "+Inf", n);
	}
	dcp_buf_printf(out, "%s_count{op=\"%s\"} %llu\n", name, op, n);
	dcp_buf_printf(out, "%s_sum{op=\"%s\"} %llu.%09llu\n", name, op, sum / 1000000000,
		       sum % 1000000000);
}

void dcpfs_stats_metrics(const struct dcpfs_stats *s, const struct dcpfs_gauges *g,
			 struct dcp_buf *out)
{
	const struct dcp_http_counts http = dcp_http_counted();
	const struct dcp_disk_counts disk = dcp_disk_counted();

	put_head(out, "build_info", "gauge", NULL,
		 "The program that serves the mount, and the source.");
	dcp_buf_str(out, "dcpfs_build_info{");
	dcp_metric_label(out, "version", g->release);
	dcp_buf_str(out, ",");
	dcp_metric_label(out, "source", g->source);
	dcp_buf_str(out, "} 1\n");
	put_gauge(out, "start_time_seconds", "seconds", "When the mount began, since 1970.",
		  g->started);
	put_gauge(out, "versions", NULL, "Versions that are shown.", g->versions);
	put_gauge(out, "versions_open", NULL, "Versions whose index is open.",
		  g->versions_open);
	put_gauge(out, "versions_refused", NULL, "Versions that cannot be opened.",
		  g->versions_refused);
	put_gauge(out, "versions_incomplete", NULL, "Versions that are not shown.",
		  g->versions_incomplete);
	put_gauge(out, "broken_keys", NULL,
		  "Keys that cannot be read, of the versions whose index is open.",
		  g->broken_keys);
	put_gauge(out, "failures", NULL,
		  "Versions and keys whose last read failed, as errors.json has them.",
		  g->failures);
	put_gauge(out, "open_files", NULL, "Files of versions that programs have open.",
		  g->open_files);
	put_gauge(out, "open_descriptors", NULL,
		  "Descriptors of the process that serves the mount.", g->descriptors);
	put_gauge(out, "resident_memory_bytes", "bytes",
		  "Memory of the process that serves the mount, mapped files included.",
		  g->memory);
	put_gauge(out, "watches", NULL, "Watches of inotify.",
		  value_of(&s->count[DCPFS_STAT_WATCHES]));
	put_gauge(out, "file_cache_files", NULL, "Files that the cache of files has.",
		  g->cached_files);
	put_gauge(out, "file_cache_limit_files", NULL, "Files that it has at most.",
		  DCPFS_CACHE_FILES);
	put_gauge(out, "block_cache_bytes", "bytes",
		  "Bytes of servers that the disk has, for this mount and others.", disk.used);
	put_gauge(out, "block_cache_limit_bytes", "bytes",
		  "The most of them; 0: none are kept.", disk.most);
	put_head(out, "request_duration_seconds", "histogram", "seconds",
		 "Time to serve a request of the kernel.");
	for (int i = 0; i < DCPFS_TIMED_COUNT; i++)
		put_times(out, names[i], &s->times[i]);
	put_head(out, "request_errors", "counter", NULL,
		 "Requests that ended with an error; ENOENT is also the answer about names "
		 "that are not there.");
	for (size_t i = 0; i < DCPFS_ERRNO_COUNT; i++)
		dcp_buf_printf(out, "dcpfs_request_errors_total{error=\"%s\"} %llu\n",
			       errnos[i].name, value_of(&s->answers[i]));
	put_counter(out, "read_bytes", "bytes", "Bytes that programs read.",
		    &s->count[DCPFS_STAT_READ_BYTES]);
	put_counter(out, "read_failures", NULL, "Reads of stored bytes that failed.",
		    &s->count[DCPFS_STAT_ERRORS]);
	put_counter(out, "file_cache_misses", NULL,
		    "Files that were resolved because the cache of files did not have them.",
		    &s->count[DCPFS_STAT_FILES_OPENED]);
	put_counter(out, "file_cache_hits", NULL, "Files that the cache of files had.",
		    &s->count[DCPFS_STAT_FILES_FOUND]);
	put_counter(out, "block_cache_hit_bytes", "bytes",
		    "Bytes of servers that were read from the disk.", &disk.hit);
	put_counter(out, "block_cache_written_bytes", "bytes",
		    "Bytes of servers that were written to the disk.", &disk.written);
	put_counter(out, "block_cache_refused_bytes", "bytes",
		    "Bytes of servers that could not be kept.", &disk.refused);
	put_counter(out, "source_looks", NULL, "Whole looks at the source.",
		    &s->count[DCPFS_STAT_RESCANS]);
	put_counter(out, "source_mapped_bytes", "bytes", "Bytes delivered out of mappings.",
		    &s->io.mapped);
	put_counter(out, "source_read_bytes", "bytes", "Bytes delivered by read calls.",
		    &s->io.read);
	put_counter(
		out, "source_fetched_bytes", "bytes",
		"Bytes of files that were not in memory and were requested, in whole pages.",
		&s->io.fetched);
	put_counter(out, "source_calls", NULL, "System calls that read the source.",
		    &s->io.calls);
	put_counter(out, "source_requests", NULL,
		    "Requests to servers, tries that failed included.", &http.requests);
	put_counter(out, "source_retries", NULL, "Of these, those made once more.",
		    &http.retries);
	put_counter(out, "source_wire_bytes", "bytes", "Bytes of answers of servers.",
		    &http.bytes);
	dcp_buf_str(out, "# EOF\n");
}

void dcpfs_stats_text(const struct dcpfs_stats *s, struct dcp_buf *out)
{
	const struct dcp_http_counts http = dcp_http_counted();

	for (int i = 0; i < DCPFS_STAT_COUNT; i++)
		put_count(out, names[i], &s->count[i]);
	put_count(out, "io_mapped", &s->io.mapped);
	put_count(out, "io_read", &s->io.read);
	put_count(out, "io_span", &s->io.span);
	put_count(out, "io_direct", &s->io.direct);
	put_count(out, "io_fetched", &s->io.fetched);
	put_count(out, "io_runs", &s->io.runs);
	put_count(out, "io_ring", &s->io.ring);
	put_count(out, "io_fixed", &s->io.fixed);
	put_count(out, "io_calls", &s->io.calls);
	put_count(out, "http_requests", &http.requests);
	put_count(out, "http_retries", &http.retries);
	put_count(out, "http_bytes", &http.bytes);
}
