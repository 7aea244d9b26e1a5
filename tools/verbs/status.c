/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcpfs status: the present state and rates of a mount.
 *
 * It reads files in .dcpfs/ of the mount: status.json, config.json, and metrics twice. A child
 * process reads each file: if the serving process is stopped, a read that has begun cannot be ended
 * by a signal.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "core/parse/json.h"
#include "tools/cmd.h"
#include "tools/out.h"
#include "tools/pick.h"

enum {
	PATIENCE_MS = 10000, /* until a mount counts as not answering */
	TEXT_MAX = 64 << 20, /* bytes of one of its files */
	KEPT_MS =
		2100, /* a mount with --no-open shows a text for this long (fs/file/cache.c) */
};

struct status_opts {
	int form;
	uint64_t interval;
};

#define AT(field) .off = offsetof(struct status_opts, field)

static const struct opt opts[] = {
	{ 0, "interval", "MS",
	  "milliseconds over which rates are measured; default 1000; 0: none", OPT_UINT,
	  AT(interval), .max = 3600000, .def = 1000 },
	PICK_OPT_JSON(struct status_opts),
	OPT_END
};

static const struct opt_operand operands[] = { { "MNT", false, OPT_MOUNT }, { 0 } };

/* What the mount said. */
struct told {
	const char *mnt;
	struct dcp_buf status, config, before, after;
	double seconds; /* between the two metrics */
};

/* Copy the file at @path to the descriptor @to. 0 or an errno. */
static int copy_file(const char *path, int to)
{
	dcp_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	char part[16384];
	ssize_t n;

	if (fd < 0)
		return errno;
	while ((n = read(fd, part, sizeof(part))) > 0)
		if (out_write(to, part, (size_t)n) < 0)
			return EPIPE;
	return n < 0 ? errno : 0;
}

/* Read @from to its end. -ETIMEDOUT. */
static int collect_text(int from, struct dcp_buf *out)
{
	int64_t until = dcp_now_ms() + PATIENCE_MS, left;
	struct pollfd p = { .fd = from, .events = POLLIN };
	char part[16384];
	ssize_t n = 1;

	while (n > 0 && (left = until - dcp_now_ms()) > 0) {
		if (poll(&p, 1, (int)left) <= 0)
			continue;
		n = read(from, part, sizeof(part));
		if (n > 0)
			dcp_buf_add(out, part, (size_t)n);
		if (n < 0 && errno == EINTR)
			n = 1;
		if (out->n > TEXT_MAX)
			return -EFBIG;
	}
	dcp_buf_add(out, "", 1); /* it ends with a NUL */
	out->n -= out->n > 0;
	return n > 0 ? -ETIMEDOUT : n < 0 ? -errno : dcp_buf_error(out);
}

/* Read the file .dcpfs/@name of the mount, by a child that holds no descriptor of this process. 0,
 * -ETIMEDOUT, or a negative errno. */
static int read_file(const struct told *t, const char *name, struct dcp_buf *out)
{
	dcp_auto_free char *path = NULL;
	int pipes[2], status = 0, rc;
	pid_t child;

	if (asprintf(&path, "%s/.dcpfs/%s", t->mnt, name) < 0) {
		path = NULL;
		return -ENOMEM;
	}
	if (pipe2(pipes, O_CLOEXEC) < 0)
		return -errno;
	child = fork();
	if (child == 0) {
		int null = open("/dev/null", O_RDWR | O_CLOEXEC);

		for (int fd = 0; fd <= 2 && null >= 0; fd++)
			dup2(null, fd);
		close(pipes[0]);
		_exit(copy_file(path, pipes[1]));
	}
	rc = child < 0 ? -errno : 0;
	close(pipes[1]);
	if (rc == 0)
		rc = collect_text(pipes[0], out);
	close(pipes[0]);
	if (child > 0 && rc == -ETIMEDOUT)
		kill(child, SIGKILL);
	else if (child > 0 && waitpid(child, &status, 0) == child && status)
		rc = WIFEXITED(status) ? -WEXITSTATUS(status) : -EIO;
	return rc;
}

static enum cmd_exit say_why(int rc, const char *given, const char *name)
{
	if (rc == -ETIMEDOUT)
		return cmd_fail(CMD_ENV,
				"%s does not answer: the process that serves it is stopped, or "
				"waits for its source",
				given);
	if (rc == -ENOTCONN || rc == -ECONNABORTED)
		return cmd_fail(
			CMD_ENV,
			"%s holds a dead mount: the process that served it has ended (see "
			"its log, syslog by default); remove it with: dcpfs umount %s",
			given, given);
	if (rc == -EACCES)
		return cmd_fail(CMD_ENV,
				"%s was mounted by another user, who alone may look into it",
				given);
	return cmd_fail(CMD_ENV, "%s/.dcpfs/%s: %s", given, name, strerror(-rc));
}

static enum cmd_exit ask_mount(struct told *t, const char *given, uint64_t ms)
{
	const char *name = "status.json";
	int rc = read_file(t, name, &t->status);
	int64_t from;

	if (rc == 0)
		rc = read_file(t, name = "config.json", &t->config);
	from = dcp_now_ms();
	if (rc == 0)
		rc = read_file(t, name = "metrics", &t->before);
	if (rc == 0 && ms) {
		if (strstr(t->config.p, "\"no_open\": true"))
			ms = DCP_MAX(ms, (uint64_t)KEPT_MS);
		nanosleep(
			&(struct timespec){ (time_t)(ms / 1000), (long)(ms % 1000) * 1000000 },
			NULL);
		t->seconds = (double)(dcp_now_ms() - from) / 1000;
		rc = read_file(t, name, &t->after);
	}
	return rc < 0 ? say_why(rc, given, name) : CMD_OK;
}

/* ---- processes that use it ---- */

static bool leads_into(const char *link, const char *mnt)
{
	char to[4096];
	ssize_t n = readlink(link, to, sizeof(to) - 1);

	if (n < 0)
		return false;
	to[n] = '\0';
	return cmd_is_within(to, mnt);
}

/* Does the process /proc/@pid have a file of the mount open or mapped, or stand in a directory of
 * it? */
static bool uses_mount(const char *pid, const char *mnt, dev_t dev)
{
	char path[300], line[8192];
	const struct dirent *e;
	bool found;
	FILE *maps;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%s/cwd", pid);
	found = leads_into(path, mnt);
	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	dir = found ? NULL : opendir(path);
	while (dir && !found && (e = readdir(dir))) {
		snprintf(path, sizeof(path), "/proc/%.16s/fd/%.200s", pid, e->d_name);
		found = leads_into(path, mnt);
	}
	if (dir)
		closedir(dir);
	snprintf(path, sizeof(path), "/proc/%s/maps", pid);
	maps = found ? NULL : fopen(path, "re");
	while (maps && !found && fgets(line, sizeof(line), maps)) {
		unsigned high, low;

		found = sscanf(line, "%*s %*s %*s %x:%x", &high, &low) == 2 &&
			makedev(high, low) == dev;
	}
	if (maps)
		fclose(maps);
	return found;
}

/* Processes that use it, as far as this user may see that. */
static uint64_t count_clients(const char *mnt, dev_t dev)
{
	DIR *dir = opendir("/proc");
	const struct dirent *e;
	uint64_t n = 0;

	while (dir && (e = readdir(dir)))
		n += isdigit((unsigned char)e->d_name[0]) && strlen(e->d_name) < 16 &&
		     uses_mount(e->d_name, mnt, dev);
	if (dir)
		closedir(dir);
	return n;
}

/* ---- metrics ---- */

/* The value of the sample that is spelled @name, labels included; 0: there is none. */
static uint64_t metric_value(const struct dcp_buf *metrics, const char *name)
{
	size_t n = strlen(name);
	uint64_t v = 0;

	for (const char *p = metrics->p; p && *p; p += *p == '\n') {
		const char *number = p + n + 1;

		if (strncmp(p, name, n) == 0 && p[n] == ' ' &&
		    dcp_take_number(&number, NULL, DCP_ANY_DIGITS, &v))
			return v;
		p += strcspn(p, "\n");
	}
	return 0;
}

#define COUNT(op) "dcpfs_request_duration_seconds_count{op=\"" op "\"}"

static const struct total {
	const char *name, *shown, *metric;
	bool bytes, remote;
} totals[] = {
	{ "lookup", "lookups", COUNT("lookup"), false, false },
	{ "getattr", "attributes", COUNT("getattr"), false, false },
	{ "readdir", "listings", COUNT("readdir"), false, false },
	{ "open", "opens", COUNT("open"), false, false },
	{ "read", "reads", COUNT("read"), false, false },
	{ "read_bytes", "bytes read", "dcpfs_read_bytes_total", true, false },
	{ "read_failures", "failed reads", "dcpfs_read_failures_total", false, false },
	{ "origin_requests", "requests to servers", "dcpfs_source_requests_total", false,
	  true },
	{ "origin_retries", "of these, retries", "dcpfs_source_retries_total", false, true },
	{ "origin_bytes", "bytes of servers", "dcpfs_source_wire_bytes_total", true, true },
};

static const struct gauge {
	const char *group, *name, *metric;
} gauges[] = {
	/* In the order of print_text(). */
	{ "versions", "shown", "dcpfs_versions" },
	{ "versions", "open", "dcpfs_versions_open" },
	{ "versions", "refused", "dcpfs_versions_refused" },
	{ "versions", "incomplete", "dcpfs_versions_incomplete" },
	{ "errors", "broken_keys", "dcpfs_broken_keys" },
	{ "errors", "failures", "dcpfs_failures" },
	{ "process", "memory_bytes", "dcpfs_resident_memory_bytes" },
	{ "process", "descriptors", "dcpfs_open_descriptors" },
	{ "process", "open_files", "dcpfs_open_files" },
	{ "file_cache", "files", "dcpfs_file_cache_files" },
	{ "file_cache", "limit", "dcpfs_file_cache_limit_files" },
	{ "file_cache", "hits", "dcpfs_file_cache_hits_total" },
	{ "file_cache", "misses", "dcpfs_file_cache_misses_total" },
	{ "block_cache", "bytes", "dcpfs_block_cache_bytes" },
	{ "block_cache", "limit", "dcpfs_block_cache_limit_bytes" },
	{ "block_cache", "hit_bytes", "dcpfs_block_cache_hit_bytes_total" },
};

enum {
	SHOWN,
	OPEN,
	REFUSED,
	INCOMPLETE,
	BROKEN,
	FAILURES,
	MEMORY,
	DESCRIPTORS,
	FILES_OPEN,
	FILES,
	FILES_LIMIT,
	FILE_HITS,
	FILE_MISSES,
	BLOCKS,
	BLOCKS_LIMIT,
	BLOCK_HITS,
};

/* All that is printed. */
struct status {
	const struct told *t;
	const char *source, *release, *mounted, *latest, *cache;
	uint64_t pid, clients;
	uint64_t now[DCP_LEN(gauges)];
	uint64_t sum[DCP_LEN(totals)];
	double rate[DCP_LEN(totals)];
	bool rates, remote;
};

static void take_status(struct status *s, const struct told *t, const struct dcp_json *status,
			const struct dcp_json *config)
{
	const struct dcp_buf *last = t->after.n ? &t->after : &t->before;

	s->t = t;
	s->source = dcp_json_str(dcp_json_get(status, "source"));
	s->release = dcp_json_str(dcp_json_get(status, "dcpfs"));
	s->mounted = dcp_json_str(dcp_json_get(status, "mounted"));
	s->latest = dcp_json_str(dcp_json_get(status, "latest"));
	s->cache = dcp_json_str(dcp_json_get(config, "cache"));
	dcp_json_u64(dcp_json_get(status, "pid"), &s->pid);
	s->rates = t->after.n && t->seconds > 0;
	for (size_t i = 0; i < DCP_LEN(gauges); i++)
		s->now[i] = metric_value(last, gauges[i].metric);
	for (size_t i = 0; i < DCP_LEN(totals); i++) {
		uint64_t since = metric_value(&t->before, totals[i].metric);

		s->sum[i] = metric_value(last, totals[i].metric);
		if (strcmp(totals[i].name, "read_bytes") == 0)
			since += t->before.n; /* bytes that this program has read */
		if (s->rates)
			s->rate[i] = s->sum[i] < since
					     ? 0 /* another mount by now */
					     : (double)(s->sum[i] - since) / t->seconds;
		s->remote |= totals[i].remote && s->sum[i] > 0;
	}
}

static void print_json(const struct status *s, struct out *o)
{
	struct dcp_jsonw *w = &o->json;
	const char *group = "";

	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "mountpoint", s->t->mnt);
	dcp_jsonw_put_str_or_null(w, "source", s->source);
	dcp_jsonw_put_str_or_null(w, "dcpfs", s->release);
	dcp_jsonw_put_u64(w, "pid", s->pid);
	dcp_jsonw_put_str_or_null(w, "mounted", s->mounted);
	dcp_jsonw_put_str_or_null(w, "latest", s->latest);
	dcp_jsonw_put_str_or_null(w, "cache", s->cache);
	dcp_jsonw_put_u64(w, "clients", s->clients);
	for (size_t i = 0; i < DCP_LEN(gauges); i++) {
		if (strcmp(group, gauges[i].group) != 0) {
			if (*group)
				dcp_jsonw_end(w);
			group = gauges[i].group;
			dcp_jsonw_put_object(w, group);
		}
		dcp_jsonw_put_u64(w, gauges[i].name, s->now[i]);
	}
	dcp_jsonw_end(w);
	dcp_jsonw_put_object(w, "totals");
	for (size_t i = 0; i < DCP_LEN(totals); i++)
		dcp_jsonw_put_u64(w, totals[i].name, s->sum[i]);
	dcp_jsonw_end(w);
	if (s->rates) {
		out_put_f64(o, "interval_s", s->t->seconds);
		dcp_jsonw_put_object(w, "rates");
		for (size_t i = 0; i < DCP_LEN(totals); i++)
			out_put_f64(o, totals[i].name, s->rate[i]);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
}

static void print_rates(const struct status *s, struct out *o)
{
	static const struct out_col cols[] = { { "" },
					       { "SO FAR", .right = true },
					       { "A SECOND", .right = true } };
	struct out_table table;
	char text[OUT_SIZE], count[32];

	out_table_init(&table, cols, DCP_LEN(cols));
	for (size_t i = 0; i < DCP_LEN(totals); i++) {
		const struct total *t = &totals[i];

		if (t->remote && !s->remote)
			continue;
		out_table_cell(&table, t->shown);
		out_table_cell(&table, t->bytes ? out_size(text, s->sum[i])
						: out_count(count, s->sum[i]));
		if (!s->rates)
			out_table_cell(&table, "");
		else if (t->bytes)
			out_table_cell(&table, out_size(text, (uint64_t)s->rate[i]));
		else
			out_table_printf(&table, "%.1f", s->rate[i]);
	}
	out_table_print(&table, o, 0);
	out_table_finish(&table);
}

static void print_text(const struct status *s, struct out *o)
{
	static const struct out_col cols[] = { { NULL }, { NULL, .flex = true } };
	const uint64_t *n = s->now;
	struct out_table table;
	char size[OUT_SIZE], most[OUT_SIZE], hit[OUT_SIZE], a[32], b[32];

	out_table_init(&table, cols, DCP_LEN(cols));
	out_table_cell(&table, "source");
	out_table_cell(&table, s->source ? s->source : "");
	out_table_cell(&table, "process");
	out_table_printf(&table, "%llu, dcpfs %s, since %s", (unsigned long long)s->pid,
			 s->release ? s->release : "?", s->mounted ? s->mounted : "?");
	out_table_cell(&table, "memory");
	out_table_printf(&table, "%s, %s descriptors", out_size(size, n[MEMORY]),
			 out_count(a, n[DESCRIPTORS]));
	out_table_cell(&table, "versions");
	out_table_printf(&table, "%s shown, %s open, %llu refused, %llu incomplete",
			 out_count(a, n[SHOWN]), out_count(b, n[OPEN]),
			 (unsigned long long)n[REFUSED], (unsigned long long)n[INCOMPLETE]);
	out_table_cell(&table, "latest");
	out_table_cell(&table, s->latest ? s->latest : "none");
	out_table_cell(&table, "errors");
	if (n[BROKEN] || n[FAILURES])
		out_table_printf(&table, "%s broken key%s, %s failure%s: .dcpfs/errors.json",
				 out_count(a, n[BROKEN]), dcp_s(n[BROKEN]),
				 out_count(b, n[FAILURES]), dcp_s(n[FAILURES]));
	else
		out_table_cell(&table, "none");
	out_table_cell(&table, "used by");
	out_table_printf(&table, "%s process%s, %s open file%s", out_count(a, s->clients),
			 s->clients == 1 ? "" : "es", out_count(b, n[FILES_OPEN]),
			 dcp_s(n[FILES_OPEN]));
	out_table_cell(&table, "files kept");
	out_table_printf(&table, "%llu of at most %llu; of %s opened, %s were kept",
			 (unsigned long long)n[FILES], (unsigned long long)n[FILES_LIMIT],
			 out_count(a, n[FILE_HITS] + n[FILE_MISSES]),
			 out_count(b, n[FILE_HITS]));
	out_table_cell(&table, "cache");
	if (!s->cache)
		out_table_cell(&table, "none: indexes are in memory");
	else if (s->remote)
		out_table_printf(&table, "%s of servers, at most %s, %s were read from it; %s",
				 out_size(size, n[BLOCKS]), out_size(most, n[BLOCKS_LIMIT]),
				 out_size(hit, n[BLOCK_HITS]), s->cache);
	else
		out_table_cell(&table, s->cache);
	out_table_print(&table, o, 0);
	out_table_finish(&table);
	dcp_buf_str(&o->buf, "\n");
	print_rates(s, o);
}

static enum cmd_exit show_status(const struct status_opts *so, const struct told *t,
				 const struct dcp_mount *m)
{
	dcp_auto_json struct dcp_json *status = NULL, *config = NULL;
	struct status s = { 0 };
	struct dcp_err err = { 0 };
	enum cmd_exit code;
	struct out o;

	if (dcp_json_parse(t->status.p, t->status.n, &status, &err) < 0 ||
	    dcp_json_parse(t->config.p, t->config.n, &config, &err) < 0)
		return cmd_fail(CMD_ENV, "%s/.dcpfs: %s; is it of an older dcpfs?", t->mnt,
				err.msg);
	take_status(&s, t, status, config);
	s.clients = count_clients(t->mnt, m->dev);
	out_init(&o, (enum out_form)so->form);
	if (so->form == OUT_JSON)
		print_json(&s, &o);
	else
		print_text(&s, &o);
	code = out_flush(&o);
	out_finish(&o);
	return code;
}

static enum cmd_exit run_status(const void *opts_in, const struct opt_args *args)
{
	const struct status_opts *so = opts_in;
	dcp_auto_free char *mnt = NULL;
	struct dcp_mount m;
	enum cmd_exit code = cmd_find_mount(args->operand[0], &mnt, &m);
	struct told t = { .mnt = mnt };

	if (code == CMD_OK)
		code = ask_mount(&t, args->operand[0], so->interval);
	if (code == CMD_OK)
		code = show_status(so, &t, &m);
	dcp_buf_finish(&t.status);
	dcp_buf_finish(&t.config);
	dcp_buf_finish(&t.before);
	dcp_buf_finish(&t.after);
	return code;
}

const struct cmd cmd_status = {
	.name = "status",
	.what = "print the state of a mount: versions, errors, cache, users, rates",
	.about = "Print what the mount at MNT shows, what went wrong, who uses it, how much it "
		 "has "
		 "read so far, and how fast it does so now. Processes of other users are "
		 "counted "
		 "for root alone.",
	.operands = operands,
	.opts = opts,
	.size = sizeof(struct status_opts),
	.run = run_status,
	.examples = { "dcpfs status /mnt/run1",
		      "dcpfs status /mnt/run1 --interval 10000 --json" },
};
