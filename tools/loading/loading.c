/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/loading/loading.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/system.h"
#include "tools/export/export.h"
#include "tools/load/comm/comm.h"
#include "tools/load/load.h"
#include "tools/out.h"

const char *const loading_ios[] = { "auto", "buffered", "direct", "mount", "gds", NULL };
const char *const loading_exchanges[] = { "auto", "never", "node", "all", NULL };

enum cmd_exit loading_fail(const struct loading *l, enum cmd_exit code)
{
	if (l->comm && !export_speaks(l->comm, &l->err))
		return code;
	if (l->err.rank >= 0 && l->comm && l->comm->ranks > 1 && !load_names_rank(&l->err))
		return cmd_fail(code, "rank %d: %s", l->err.rank, l->err.text);
	return cmd_fail(code, "%s", l->err.text);
}

enum cmd_exit loading_matches_nothing(struct loading *l)
{
	const struct opt_texts *keys = &l->opts->keys;

	load_fail(&l->err, -ENOENT, "--keys %s%s: matches no tensor of %s that is loaded",
		  keys->v[0], keys->n > 1 ? ", ..." : "", dcpload_version(l->ck));
	return loading_fail(l, CMD_NO);
}

int loading_timeout(const struct loading *l)
{
	return export_timeout(l->opts->timeout);
}

int loading_agree(struct loading *l, int rc)
{
	rc = load_agree(l->comm, rc, &l->err, loading_timeout(l));
	return load_while(&l->err, rc, l->doing);
}

struct work {
	struct loading *l;
	int (*fn)(struct loading *l, struct dcpload_error *err);
	struct dcpload_error err;
};

static int run_work(void *ctx)
{
	struct work *w = ctx;

	return w->fn(w->l, &w->err);
}

int loading_step(struct loading *l, int (*fn)(struct loading *l, struct dcpload_error *err))
{
	struct work w = { .l = l, .fn = fn, .err = { .rank = -1 } };
	int done, rc = load_step_run(l->comm, run_work, NULL, &w, &done, loading_timeout(l),
				     &l->err);

	if (rc < 0)
		return load_while(&l->err, rc, l->doing);
	if (done < 0)
		l->err = w.err;
	return loading_agree(l, done);
}

/*
 * dcpfs load --metrics: how a load went, in a file for Prometheus' node exporter, which must never
 * see half of it.
 */

#define FIRST "# TYPE dcpload_success gauge\n"

/* An existing file is replaced only if it is empty, or has metrics of a load. */
static int check_replaced(const char *path, struct dcpload_error *err)
{
	dcp_auto_fd int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	char head[sizeof(FIRST)] = "";
	struct stat st;

	if (fd < 0 && errno == ENOENT)
		return 0;
	if (fd < 0 || fstat(fd, &st) < 0)
		return load_fail(err, -errno, "load: --metrics %s: %s", path, strerror(errno));
	if (S_ISREG(st.st_mode) &&
	    (st.st_size == 0 ||
	     (pread(fd, head, sizeof(head) - 1, 0) > 0 && strcmp(head, FIRST) == 0)))
		return 0;
	return load_fail(err, -EEXIST,
			 "load: --metrics %s exists and has no metrics of dcpload: it is not "
			 "replaced",
			 path);
}

enum cmd_exit loading_check_metrics(struct loading *l)
{
	int rc = l->opts->metrics && l->comm->rank == 0
			 ? check_replaced(l->opts->metrics, &l->err)
			 : 0;

	return loading_agree(l, rc) < 0 ? loading_fail(l, CMD_USAGE) : CMD_OK;
}

static void put_metric(struct dcp_buf *b, const char *name, const char *unit, const char *help,
		       uint64_t value)
{
	dcp_metric_gauge(b, "dcpload", name, unit, help, value);
}

static void put_all(const struct loading *l, enum cmd_exit code, uint64_t ns, struct dcp_buf *b)
{
	const struct loading_totals *t = &l->total;

	put_metric(b, "success", NULL, "1: the load succeeded.", code == CMD_OK);
	put_metric(b, "exit_code", NULL, "Of dcpload.", code);
	dcp_metric_seconds(b, "dcpload", "end_time_seconds", "When it ended, since 1970.",
			   (uint64_t)dcp_now_ns(CLOCK_REALTIME));
	dcp_metric_seconds(b, "dcpload", "duration_seconds", "From its beginning to its end.",
			   ns);
	dcp_metric_head(b, "dcpload", "info", "gauge", NULL, "What was loaded, and by what.");
	dcp_buf_str(b, "dcpload_info{");
	dcp_metric_label(b, "dcpfs", DCP_RELEASE);
	dcp_buf_str(b, ",");
	dcp_metric_label(b, "version", l->ck ? dcpload_version(l->ck) : "");
	dcp_buf_str(b, ",");
	dcp_metric_label(b, "layout", l->layout ? l->layout : "");
	dcp_buf_str(b, "} 1\n");
	put_metric(b, "ranks", NULL, "Ranks of the job.", l->comm ? l->comm->ranks : 0);
	if (!l->reported)
		return;
	put_metric(b, "parts", NULL, "Parts of tensors that ranks hold.", t->parts);
	put_metric(b, "needed_bytes", "bytes", "Bytes of all parts.", t->needed);
	put_metric(b, "read_bytes", "bytes", "Bytes that were read for them.", t->read);
	put_metric(b, "exchanged_bytes", "bytes", "Bytes that ranks sent each other.",
		   t->exchanged);
	put_metric(b, "dumped_bytes", "bytes", "Bytes that were written by --dump.", t->dumped);
	put_metric(b, "staging_bytes", "bytes",
		   "Memory beyond the tensors, the most of a rank.", t->staging);
	put_metric(b, "source_requests", NULL,
		   "Requests to servers, tries that failed included.", t->http.requests);
	put_metric(b, "source_retries", NULL, "Of these, those made once more.",
		   t->http.retries);
	put_metric(b, "source_wire_bytes", "bytes", "Bytes of answers of servers.",
		   t->http.bytes);
	dcp_metric_seconds(b, "dcpload", "open_seconds",
			   "Until it was open, the most of a rank.", t->open_ns);
	dcp_metric_seconds(b, "dcpload", "plan_seconds", "To plan, the most of a rank.",
			   t->plan_ns);
	dcp_metric_seconds(b, "dcpload", "load_seconds", "To load, the most of a rank.",
			   t->execute_ns);
}

/*
 * All of the file or none of it: what is written has another name first, which collectors pass
 * over.
 */
static int replace_file(const char *path, const struct dcp_buf *b)
{
	dcp_auto_free char *part = NULL;
	dcp_auto_fd int fd = -1;
	int rc;

	if (asprintf(&part, "%s.%d.tmp", path, (int)getpid()) < 0) {
		part = NULL;
		return -ENOMEM;
	}
	fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
	if (fd < 0)
		return -errno;
	rc = out_write(fd, b->p, b->n);
	if (rc == 0 && rename(part, path) < 0)
		rc = -errno;
	if (rc < 0)
		unlink(part);
	return rc;
}

enum cmd_exit loading_metrics(const struct loading *l, enum cmd_exit code, int64_t began)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcpload_error err;
	struct load_launch job;
	int rc;

	if (!l->opts->metrics)
		return code;
	/* The rank 0 of a job whose ranks did not meet is known to the launcher. */
	if (l->comm ? l->comm->rank : load_job_find(&job, NULL) == 0 && job.rank)
		return code;
	rc = check_replaced(l->opts->metrics, &err);
	if (rc < 0)
		return code != CMD_OK ? code : cmd_fail(CMD_USAGE, "%s", err.text);
	put_all(l, code, (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - began), &b);
	rc = dcp_buf_error(&b);
	if (rc == 0)
		rc = replace_file(l->opts->metrics, &b);
	if (rc == 0)
		return code;
	cmd_fail(CMD_ENV, "load: --metrics %s: %s", l->opts->metrics, strerror(-rc));
	return code == CMD_OK ? CMD_ENV : code;
}
