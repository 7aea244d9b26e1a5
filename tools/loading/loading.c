/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/loading/loading.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/jsonw.h"
#include "core/base/system.h"
#include "core/parse/safetensors/safetensors.h"
#include "tools/export/export.h"
#include "tools/load/comm/comm.h"
#include "tools/load/error.h"
#include "tools/load/load.h"
#include "tools/out.h"
#include "tools/save/save.h"

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

/* dcpfs load --metrics: the result of a load as a file for Prometheus' node exporter, which must
 * never see half a file. */

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

/* Replace the file at once: it is written under a temporary name that collectors ignore. */
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
	/* If the ranks did not meet, the launcher's variables tell which is rank 0. */
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

#define DUMP_MARK "\"dcpfs.rank\":"

enum { ALIGN = 64, BAND = 16 << 20 };

static int fail_dump(const struct dump *d, int rc, struct dcpload_error *err)
{
	return load_fail(err, rc, "%s/%s: %s", d->path, d->name, strerror(-rc));
}

/* ---- header ---- */

/* The name of a part; for a file of regions its line, since a rank may have several regions of a
 * tensor. */
static const char *name_of(const struct dcpload_part *part)
{
	return part->user ? part->user : part->key;
}

/* An unreadable tensor (--partial) has no memory. */
static bool can_show(const struct dcpload_part *part)
{
	enum dcp_dtype dtype = dcp_dtype_from_name(part->dtype);

	return (part->data || part->nbytes == 0) && dtype != DCP_DTYPE_OTHER &&
	       dcp_dtype_info(dtype)->safetensors && dcp_safetensors_can_name(name_of(part));
}

static bool is_whole(const struct dcpload_part *p)
{
	return p->ndim == p->global_ndim &&
	       !memcmp(p->shape, p->global_shape, p->ndim * sizeof(*p->shape));
}

/* Values of metadata are strings. */
static int put_metadata(struct dump *d, struct dcp_jsonw *w, const struct dump_of *of,
			const struct dcpload_plan *plan)
{
	struct dcp_safetensors_left left = { 0 };
	struct dcp_safetensors_shapes shapes;
	struct dcpload_part part;
	int rc, left_rc;

	dcp_jsonw_key(w, "__metadata__");
	dcp_safetensors_begin_meta(w, NULL, of->metadata);
	dcp_jsonw_put_str(w, "dcpfs.version", of->version);
	dcp_jsonw_put_str(w, "dcpfs.layout", of->layout);
	dcp_safetensors_begin_shapes(&shapes);
	for (uint64_t i = 0; dcpload_part(plan, i, &part) == 0; i++) {
		if (!can_show(&part))
			dcp_safetensors_leave_out(&left, name_of(&part), "?");
		else if (!is_whole(&part))
			dcp_jsonw_put_u64s(&shapes.w, name_of(&part), part.global_shape,
					   part.global_ndim);
	}
	d->left_out = left.n;
	rc = dcp_safetensors_put_shapes(&shapes, w, of->rank, of->ranks);
	left_rc = dcp_safetensors_put_left(&left, w);
	dcp_jsonw_end(w);
	return rc < 0 ? rc : left_rc;
}

static int make_header(struct dump *d, const struct dump_of *of,
		       const struct dcpload_plan *plan)
{
	struct dcpload_part part;
	struct dcp_jsonw w;
	uint64_t end = 0;
	int rc;

	dcp_safetensors_begin(&w, &d->header);
	rc = put_metadata(d, &w, of, plan);
	for (uint64_t i = 0; rc == 0 && dcpload_part(plan, i, &part) == 0; i++) {
		if (!can_show(&part))
			continue;
		dcp_safetensors_put(&w, name_of(&part), dcp_dtype_from_name(part.dtype),
				    part.ndim, part.shape, end, end + part.nbytes);
		end += part.nbytes;
	}
	if (rc == 0)
		rc = dcp_safetensors_end(&w, 0, ALIGN);
	d->bytes = d->header.n + end;
	return rc;
}

/* ---- the file ---- */

static int open_dir(struct dump *d, const char *path, uint32_t withheld,
		    struct dcpload_error *err)
{
	if (snprintf(d->path, sizeof(d->path), "%s", path) >= (int)sizeof(d->path))
		return load_fail(err, -ENAMETOOLONG, "%s: %s", path, strerror(ENAMETOOLONG));
	if (mkdir(path, 0777 & ~withheld) < 0 && errno != EEXIST)
		return load_fail(err, -errno, "%s: %s", path, strerror(errno));
	d->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return d->dir < 0 ? load_fail(err, -errno, "%s: %s", path, strerror(errno)) : 0;
}

static int fail_exists(const struct dump *d, struct dcpload_error *err)
{
	return load_fail(err, -EEXIST, "%s/%s exists; --force replaces it", d->path, d->name);
}

/* A path to the open file, which has no name. */
static bool name_handle(const struct dump *d, char out[32])
{
	snprintf(out, 32, "/proc/self/fd/%d", d->file);
	return access(out, F_OK) == 0;
}

/* Open a file without a name, so that nothing is left if this process dies; not every file system
 * can do that. */
static bool open_nameless(struct dump *d, mode_t mode)
{
	char path[32];

	d->file = openat(d->dir, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
	if (d->file >= 0 && name_handle(d, path))
		return true;
	if (d->file >= 0)
		close(d->file);
	d->file = -1;
	return false;
}

static void choose_temp(struct dump *d)
{
	uint32_t number = 0;

	if (getrandom(&number, sizeof(number), GRND_NONBLOCK) < 0)
		number = (uint32_t)getpid();
	snprintf(d->temp, sizeof(d->temp), ".%s.%08x", d->name, number);
}

/* Open the file without a name, or under a temporary name, with its final length. */
static int open_file(struct dump *d, mode_t mode, struct dcpload_error *err)
{
	if (!open_nameless(d, mode)) {
		choose_temp(d);
		d->file = openat(d->dir, d->temp,
				 O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
	}
	if (d->file < 0) {
		int rc = -errno;

		d->temp[0] = '\0';
		return fail_dump(d, rc, err);
	}
	if (fallocate(d->file, 0, 0, (off_t)d->bytes) < 0 && errno != EOPNOTSUPP)
		return fail_dump(d, -errno, err);
	return 0;
}

/* Is the file missing, empty, or a dump by its header? */
static bool is_dump(const struct dump *d)
{
	dcp_auto_fd int fd =
		openat(d->dir, d->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	dcp_auto_free char *header = NULL;
	uint8_t length[8];
	struct stat st;
	uint64_t n;

	if (fd < 0 || fstat(fd, &st) < 0)
		return fd < 0 && errno == ENOENT;
	if (!S_ISREG(st.st_mode) || st.st_size == 0)
		return S_ISREG(st.st_mode);
	if (pread(fd, length, sizeof(length), 0) != sizeof(length))
		return false;
	n = dcp_load_le64(length);
	if (n > DCP_SAFETENSORS_MAX_HEADER || n > (uint64_t)st.st_size)
		return false;
	header = malloc(n + 1);
	return header && pread(fd, header, n, sizeof(length)) == (ssize_t)n &&
	       memmem(header, n, DUMP_MARK, strlen(DUMP_MARK));
}

int dump_begin(struct dump *d, const struct dump_of *of, const struct dcpload_plan *plan,
	       struct dcpload_error *err)
{
	int rc = open_dir(d, of->dir, of->withheld, err);

	if (rc < 0)
		return rc;
	d->force = of->force;
	snprintf(d->name, sizeof(d->name), "rank-%05u-of-%05u.safetensors", of->rank,
		 of->ranks);
	if (!d->force && faccessat(d->dir, d->name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		return fail_exists(d, err);
	if (d->force && !is_dump(d))
		return load_fail(
			err, -EEXIST,
			"%s/%s was not written by --dump, and would be lost; remove it "
			"first",
			d->path, d->name);
	rc = make_header(d, of, plan);
	if (rc < 0)
		return fail_dump(d, rc, err);
	return open_file(d, 0666 & ~of->withheld, err);
}

/* Write part @i of a device, through a buffer. */
static int write_fetched(struct dump *d, struct dcpload_plan *plan, uint64_t i, uint64_t n,
			 uint64_t at, struct dcpload_error *err)
{
	dcp_auto_free void *band = malloc(BAND);
	int rc = band ? 0 : -ENOMEM;

	for (uint64_t done = 0, now; done < n && rc == 0; done += now) {
		now = DCP_MIN(n - done, (uint64_t)BAND);
		rc = dcpload_part_read(plan, i, done, band, now, err);
		if (rc == 0)
			rc = save_pwrite(d->file, band, now, at + done);
	}
	return rc;
}

int dump_write(struct dump *d, struct dcpload_plan *plan, struct dcpload_error *err)
{
	struct dcpload_part part;
	uint64_t at = d->header.n;
	int rc = save_pwrite(d->file, d->header.p, d->header.n, 0);

	for (uint64_t i = 0; rc == 0 && dcpload_part(plan, i, &part) == 0; i++) {
		if (!can_show(&part))
			continue;
		rc = dcpload_part_memory(plan, i, NULL) == DCPLOAD_MEMORY_HOST
			     ? save_pwrite(d->file, part.data, part.nbytes, at)
			     : write_fetched(d, plan, i, part.nbytes, at, err);
		at += part.nbytes;
	}
	if (rc == 0 && fsync(d->file) < 0)
		rc = -errno;
	return rc < 0 && !err->code ? fail_dump(d, rc, err) : rc;
}

/* Link the file without a name as @name. */
static int name_it(const struct dump *d, const char *name)
{
	char path[32];

	name_handle(d, path);
	return linkat(AT_FDCWD, path, d->dir, name, AT_SYMLINK_FOLLOW);
}

static int rename_it(const struct dump *d)
{
	int rc = renameat2(d->dir, d->temp, d->dir, d->name, d->force ? 0 : RENAME_NOREPLACE);

	if (rc < 0 && errno == EINVAL && !d->force) /* not every file system has the flag */
		rc = renameat(d->dir, d->temp, d->dir, d->name);
	return rc;
}

int dump_publish(struct dump *d, struct dcpload_error *err)
{
	bool nameless = !d->temp[0];
	int rc = 0;

	if (nameless && d->force) { /* a link cannot replace a file */
		choose_temp(d);
		rc = name_it(d, d->temp);
	}
	if (rc == 0)
		rc = nameless && !d->force ? name_it(d, d->name) : rename_it(d);
	if (rc < 0)
		return errno == EEXIST ? fail_exists(d, err) : fail_dump(d, -errno, err);
	d->temp[0] = '\0';
	/* Some file systems cannot sync a directory; the file is there all the same. */
	if (fsync(d->dir) < 0 && errno != EINVAL)
		return fail_dump(d, -errno, err);
	return 0;
}

void dump_end(struct dump *d)
{
	if (d->temp[0])
		unlinkat(d->dir, d->temp, 0);
	if (d->file >= 0)
		close(d->file);
	if (d->dir >= 0)
		close(d->dir);
	dcp_buf_finish(&d->header);
}
