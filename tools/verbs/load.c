/* SPDX-License-Identifier: Apache-2.0 */
/* dcpfs load, also called dcpload: the collective loader as a program. Each rank loads its part and
 * keeps it until the end; rank 0 reports. */
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/hash.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "core/checkpoint/mounts.h"
#include "core/model/name.h"
#include "core/remote/disk.h"
#include "core/store/index/index.h"
#include "fs/session.h"
#include "tools/export/export.h"
#include "tools/load/load.h"
#include "tools/load/memory/memory.h"
#include "tools/loading/loading.h"
#include "tools/out.h"
#include "tools/pick.h"

#define AT(field) .off = offsetof(struct load_opts, field)

static const struct opt opts[] = {
	{ 0, "layout", "L",
	  "what each rank is to hold: fsdp8, tp4:llama, FILE, FILE.regions; default "
	  "fsdp<ranks>",
	  OPT_TEXT, OPT_REGIONS, AT(layout) },
	{ 0, "rank", "R", "alone: load what rank R of the layout holds", OPT_TEXT, AT(rank) },
	{ 0, "keys", "KEY", "only this key, all below it, or a glob; may be repeated",
	  OPT_TEXTS, AT(keys) },
	{ 0, "skip", "KEY", "not this key, nor what is below it; may be repeated", OPT_TEXTS,
	  AT(skip) },
	{ 0, "ignore-keys", "GLOB",
	  "leave out paths that match, as Composer's load_ignore_keys: state/optimizers*; may "
	  "be repeated",
	  OPT_TEXTS, AT(ignore) },
	{ 0, "weights-only", NULL, "only the model: no optimizer, scheduler, random state",
	  OPT_FLAG, AT(weights_only), .alike = OPT_SAME },
	{ 0, "dtype", "TYPE",
	  "convert floating-point tensors: F32, BF16, F16, F8_E4M3, F8_E5M2", OPT_CHOICE,
	  AT(dtype), .choices = export_dtypes },
	{ 0, "strict", NULL, "keys that are left out are an error", OPT_FLAG, AT(strict),
	  .alike = OPT_SAME },
	{ 0, "partial", NULL, "leave out what cannot be read, and list it", OPT_FLAG,
	  AT(partial), .alike = OPT_SAME },
	{ 0, "comm", "HOW", "how ranks communicate: auto, alone, mpi, env", OPT_CHOICE,
	  AT(comm), .choices = export_comms },
	{ 0, "io", "HOW", "auto, buffered, direct, mount, gds", OPT_CHOICE, AT(io),
	  .choices = loading_ios },
	{ 0, "exchange", "WHO", "which ranks read for others: auto, never, node, all",
	  OPT_CHOICE, AT(exchange), .choices = loading_exchanges, .alike = OPT_SAME },
	{ 0, "staging", "N", "limit of memory beyond the tensors, per rank; default 64MiB",
	  OPT_SIZE, AT(staging) },
	{ 0, "device", "WHERE",
	  "load into the memory of: host, cuda:0, cuda (a GPU for each rank), auto; "
	  "cuda,managed and cuda,pinned are the other kinds that CUDA has",
	  OPT_TEXT, AT(device) },
	{ 0, "threads", "N", "threads that read and copy, per rank", OPT_UINT, AT(threads),
	  .max = 64 },
	{ 0, "coordinator-rank", "R",
	  "the rank that finds the version and builds its index; default 0", OPT_UINT,
	  AT(coordinator), .max = UINT32_MAX, .alike = OPT_SAME },
	EXPORT_OPTS_JOB(AT(timeout), AT(insecure)),
	{ 0, "repeat", "N", "load N times; the report is of the last", OPT_UINT, AT(repeat),
	  .max = 1000000, .def = 1, .alike = OPT_SAME },
	{ 0, "cold", NULL, "drop the files from the page cache before each time", OPT_FLAG,
	  AT(cold), .alike = OPT_SAME },
	{ 0, "check", NULL, "read everything again another way, and compare", OPT_FLAG,
	  AT(check), .alike = OPT_SAME },
	{ 0, "verify", "FILE", "compare what is in memory with a record of dcpfs verify",
	  OPT_TEXT, OPT_FILE, AT(verify), .alike = OPT_GIVEN },
	{ 0, "dump", "DIR", "write each rank's part as DIR/rank-00003-of-00008.safetensors",
	  OPT_TEXT, OPT_DIR, AT(dump), .alike = OPT_GIVEN },
	{ 0, "force", NULL,
	  "--dump replaces existing files; load what claims to be a thousand times its files",
	  OPT_FLAG, AT(force) },
	{ 0, "trace", "FILE",
	  "write when each rank read, waited and placed: for Chrome, or FILE.svg drawn",
	  OPT_TEXT, OPT_FILE, AT(trace), .alike = OPT_GIVEN },
	{ 0, "metrics", "FILE",
	  "write how it went for Prometheus' node exporter, also when it fails", OPT_TEXT,
	  OPT_FILE, AT(metrics), .alike = OPT_GIVEN },
	{ 0, "no-cache", NULL, "keep nothing on a disk of what is read from servers", OPT_FLAG,
	  AT(no_cache), .hidden = true, .alike = OPT_SAME },
	PICK_OPT_VERSION,
	PICK_OPT_FORM(struct load_opts, "json", OUT_JSON, "print the report as JSON"),
	PICK_OPT_FORM(struct load_opts, "tsv", OUT_TSV,
		      "print what each rank did as tab-separated values, with their names"),
	OPT_END
};

static const struct opt_operand operands[] = { PICK_OPERANDS, { 0 } };

static enum cmd_exit fail_load(const struct loading *l)
{
	return loading_fail(l, cmd_exit_of(l->err.code));
}

static enum cmd_exit fail_open(const struct loading *l, const char *source)
{
	const char *device = l->opts->device;

	if (l->err.code == -ENOENT && access(source, F_OK) == 0)
		return loading_fail(l, CMD_NO); /* the version is missing */
	return l->err.code == -EINVAL && device && !load_device_is_name(device)
		       ? loading_fail(l, CMD_USAGE)
		       : fail_load(l);
}

/* After opening, a missing file is damage; a finding of --strict is not. */
static enum cmd_exit fail_read(const struct loading *l)
{
	const char *key;

	if (l->err.code == -EINVAL && l->opts->strict && l->plan &&
	    dcpload_plan_list(l->plan, DCPLOAD_UNEXPECTED, 0, &key, NULL) == 0)
		return loading_fail(l, CMD_NO);
	return loading_fail(l, l->err.code == -ENOENT ? CMD_BAD : cmd_exit_of(l->err.code));
}

/* Errors of the dump's directory are not errors of the source. */
static enum cmd_exit fail_dump(const struct loading *l)
{
	return loading_fail(l, l->err.code == -EEXIST ? CMD_USAGE : CMD_ENV);
}

/* ---- which checkpoint ---- */

static const char *first_set(const char *const names[])
{
	for (; *names; names++)
		if (getenv(*names))
			return getenv(*names);
	return NULL;
}

/* The value of the field @name, @n bytes, in a path; NULL: unknown. @ranks: the number of ranks as
 * text. */
static const char *value_of(const char *name, size_t n, const char *ranks)
{
	static const char *const run[] = { "DCPLOAD_RUN_NAME", "COMPOSER_RUN_NAME", "RUN_NAME",
					   NULL };
	static const char *const local[] = { "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
					     "SLURM_STEP_TASKS_PER_NODE", NULL };
	static const char *const zero[] = { "rank", "local_rank", "node_rank", NULL };

	for (size_t i = 0; zero[i]; i++)
		if (strlen(zero[i]) == n && strncmp(name, zero[i], n) == 0)
			return "0";
	if (n == 10 && strncmp(name, "world_size", n) == 0)
		return ranks;
	if (n == 16 && strncmp(name, "local_world_size", n) == 0)
		return first_set(local) ? first_set(local) : ranks;
	return n == 8 && strncmp(name, "run_name", n) == 0 ? first_set(run) : NULL;
}

/* Expand a name as Composer writes it, "{run_name}/ep1-ba6-rank{rank}.pt". A save of many ranks has
 * the name of rank 0's file, so rank, local_rank and node_rank are 0. Unknown fields stay. */
static char *expand_name(const char *source, uint32_t ranks)
{
	struct dcp_buf out = DCP_BUF_INIT;
	char number[16];

	snprintf(number, sizeof(number), "%u", ranks);
	for (const char *p = source; *p;) {
		size_t n = *p == '{' ? strcspn(p, "}") : 0;
		const char *value = n && p[n] ? value_of(p + 1, n - 1, number) : NULL;

		if (value && strncmp(p, "{local_", 7) == 0)
			dcp_buf_add(&out, value, strspn(value, "0123456789")); /* "2(x3),1" */
		else if (value)
			dcp_buf_str(&out, value);
		else
			dcp_buf_add(&out, p, 1);
		p += value ? n + 1 : 1;
	}
	return dcp_buf_take(&out);
}

/* Length of a field of Composer's time at @t, such as "{batch}"; names of saves have a number in
 * its place. 0: none. */
static size_t time_field(const char *t)
{
	static const char *const names[] = {
		"epoch",
		"epoch_in_iteration",
		"epoch_wct",
		"iteration",
		"iteration_wct",
		"batch",
		"batch_wct",
		"batch_in_epoch",
		"sample",
		"sample_in_epoch",
		"token",
		"token_in_epoch",
		"token_in_iteration",
		"total_wct",
		NULL,
	};
	size_t n = *t == '{' ? strcspn(t, "}") : 0;

	for (size_t i = 0; n && t[n] && names[i]; i++)
		if (strlen(names[i]) == n - 1 && strncmp(t + 1, names[i], n - 1) == 0)
			return n + 1;
	return 0;
}

static bool fits_template(const char *t, const char *name)
{
	size_t field = time_field(t);

	if (!field)
		return *t == *name && (!*t || fits_template(t + 1, name + 1));
	for (size_t n = strspn(name, "0123456789."); n; n--)
		if (fits_template(t + field, name + n))
			return true;
	return false;
}

/* If the last component of *path has fields of time, replace it by the newest save that matches.
 * -ENOMEM. */
static int find_newest(char **path)
{
	dcp_auto_free char *newest = NULL;
	char *last = strrchr(*path, '/'), *found;
	const struct dirent *e;
	DIR *d;

	last = last ? last + 1 : *path;
	if (!strchr(last, '{'))
		return 0;
	found = last == *path ? strdup(".") : strndup(*path, (size_t)(last - *path));
	d = found ? opendir(found) : NULL;
	free(found);
	while (d && (e = readdir(d)) != NULL) {
		if (!fits_template(last, e->d_name) ||
		    (newest && dcp_order_compare(e->d_name, 0, newest, 0) < 0))
			continue;
		free(newest);
		newest = strdup(e->d_name);
	}
	if (d)
		closedir(d);
	if (!newest)
		return 0;
	if (asprintf(&found, "%.*s%s", (int)(last - *path), *path, newest) < 0)
		return -ENOMEM;
	free(*path);
	*path = found;
	return 0;
}

/* Is it a link, or a text in place of one ("latest-rank0.pt", "latest-rank0.pt.symlink")? */
static bool leads_on(const char *path)
{
	const char *name = strrchr(path, '/') + 1, *end = strstr(name, ".symlink");
	char byte;

	return readlink(path, &byte, 1) > 0 || access(path, F_OK) < 0 ||
	       strncmp(name, "latest", 6) == 0 || (end && !end[8]);
}

/* Find the path to open: SOURCE itself if it exists. With {rank} in a file's name it is the
 * directory, where the files of a save are one version. -ENOMEM. */
static int locate_source(const char *source, uint32_t ranks, char **path, const char **version)
{
	const char *last = strrchr(source, '/');
	char *slash;

	if (access(source, F_OK) == 0) {
		*path = strdup(source);
		return *path ? 0 : -ENOMEM;
	}
	*path = expand_name(source, ranks);
	if (!*path || find_newest(path) < 0)
		return -ENOMEM;
	slash = strrchr(*path, '/');
	if (*version || !last || !strstr(last, "{rank}") || slash == *path || leads_on(*path))
		return 0;
	*slash = '\0';
	*version = slash + 1;
	return 0;
}

/* ---- which part ---- */

/* Fail on all ranks, which agree on the error; rank 0 prints it. */
static enum cmd_exit fail_usage(struct loading *l, const char *fmt, ...) DCP_PRINTF(2, 3);
static enum cmd_exit fail_usage(struct loading *l, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(l->err.text, sizeof(l->err.text), fmt, ap);
	va_end(ap);
	l->err.rank = -1;
	return loading_fail(l, CMD_USAGE);
}

/* Collective: the largest @own of all ranks, or a negative errno. */
static int gather_largest(struct loading *l, uint8_t own)
{
	struct load_blobs b;
	int most = load_gather_same(l->comm, &own, 1, &b, &l->err, loading_timeout(l));

	if (most < 0)
		return most;
	for (uint32_t r = 0; r < l->comm->ranks; r++)
		most = DCP_MAX(most, *(const uint8_t *)b.at[r]);
	load_blobs_free(&b);
	return most;
}

/* hf/ of a mount may have less than the model, or more: check it. */
static enum cmd_exit check_hf(const char *source, bool leads)
{
	dcp_auto_free char *real = realpath(source, NULL);
	const struct pick_opts hf = { .cache_limit = DCP_UNPACK_CACHE, .hf.on = true };
	enum cmd_exit code = CMD_OK;
	struct dcp_mount m;
	const char *rest;
	struct pick p;

	if (!leads || !real || !dcp_mounts_around(real, &m, &rest) ||
	    !dcp_ends_with(rest, strlen(rest), "/hf"))
		return CMD_OK;
	if (pick_source(&p, source, &hf, false) == CMD_OK && pick_version(&p, NULL) == CMD_OK &&
	    p.ck.base)
		code = hf_check(p.ck.v, &hf.hf, "load", false);
	pick_finish(&p);
	return code;
}

/* Collective: is the layout the same on all ranks? */
static enum cmd_exit check_layout(struct loading *l)
{
	uint64_t own = dcp_hash64(l->layout, strlen(l->layout));
	enum cmd_exit code = CMD_OK;
	struct load_blobs b;

	if (load_gather_same(l->comm, &own, sizeof(own), &b, &l->err, loading_timeout(l)) < 0)
		return fail_load(l);
	for (uint32_t r = 1; r < l->comm->ranks && code == CMD_OK; r++)
		if (memcmp(b.at[r], b.at[0], sizeof(own)) != 0)
			code = fail_usage(
				l, "load: rank %u was started with another layout than rank 0",
				r);
	load_blobs_free(&b);
	return code;
}

static enum cmd_exit choose_rank(struct loading *l)
{
	uint64_t rank;

	if (!l->opts->rank)
		return CMD_OK;
	if (l->comm->ranks > 1)
		return fail_usage(l, "load: --rank is for one process alone");
	if (l->layout == l->named)
		return fail_usage(
			l,
			"load: --rank R is one of the ranks of --layout L, which is missing");
	if (!opt_number(l->opts->rank, 10, &rank) || rank >= l->ranks)
		return fail_usage(l, "load: there is no rank %s of %s, only 0 to %u",
				  l->opts->rank, l->layout, l->ranks - 1);
	l->rank = (uint32_t)rank;
	return CMD_OK;
}

static enum cmd_exit choose_layout(struct loading *l)
{
	uint32_t n = l->comm->ranks, own = 0;
	enum cmd_exit code;
	bool alone;

	l->layout = l->opts->layout ? l->opts->layout : dcpload_source_layout(l->ck, &own);
	if (!l->layout) {
		snprintf(l->named, sizeof(l->named), "fsdp%u", n);
		l->layout = l->named;
	}
	code = check_layout(l);
	if (code != CMD_OK)
		return code;
	if (loading_agree(l, dcpload_layout_ranks(l->ck, l->layout, &l->ranks, &l->err)) < 0)
		return l->err.code == -EINVAL ? loading_fail(l, CMD_USAGE) : fail_load(l);
	/* The directory of a rank says which part it is. */
	alone = n == 1 && !l->opts->layout;
	l->rank = alone ? own : l->comm->rank;
	if (!l->opts->rank && n != l->ranks && !alone)
		return fail_usage(
			l,
			"load: %s has %u ranks, %u %s running: start %u (mpirun -np %u "
			"dcpload ...), or load one rank alone with --rank R",
			l->layout, l->ranks, n, n == 1 ? "is" : "are", l->ranks, l->ranks);
	return choose_rank(l);
}

static int show_progress(void *ctx, uint64_t done, uint64_t total)
{
	struct loading *l = ctx;

	l->progress.report.report(l->progress.report.ctx, done, total, "loading");
	return 0;
}

/* Collective: does any rank want a tensor, even a tensor that cannot be read? 1, 0, or a
 * negative errno. */
static int wants_any(struct loading *l)
{
	const char *key;
	struct dcpload_part part;
	bool any = dcpload_part(l->plan, 0, &part) == 0;

	for (uint32_t list = DCPLOAD_MISSING; list <= DCPLOAD_BROKEN; list++)
		any |= dcpload_plan_list(l->plan, list, 0, &key, NULL) == 0;
	return gather_largest(l, any);
}

static enum cmd_exit plan_load(struct loading *l)
{
	const struct load_opts *o = l->opts;
	const struct dcpload_select select = { .size = sizeof(select),
					       .nkeys = (uint32_t)o->keys.n,
					       .keys = o->keys.v,
					       .nskip = (uint32_t)o->skip.n,
					       .skip = o->skip.v,
					       .dtype = o->dtype ? export_dtypes[o->dtype]
								 : NULL,
					       .nignore = (uint32_t)o->ignore.n,
					       .ignore = o->ignore.v,
					       .ignored = l->ignored,
					       .weights_only = o->weights_only };
	const struct dcpload_hooks hooks = { .size = sizeof(hooks),
					     .ctx = l,
					     .progress = show_progress };
	uint32_t flags = (o->strict ? DCPLOAD_STRICT : 0) | (o->partial ? DCPLOAD_PARTIAL : 0) |
			 (o->force ? DCPLOAD_ANY_SIZE : 0);
	int rc = dcpload_plan_create(l->ck, flags, &l->plan, &l->err);

	if (rc == 0 && l->comm->rank == 0)
		dcpload_plan_hooks(l->plan, &hooks);
	if (rc == 0)
		rc = dcpload_want_layout(l->plan, l->layout, l->rank, &select, &l->err);
	if (rc == 0 && o->trace)
		rc = load_say(&l->err, dcpload_plan_trace(l->plan, LOADING_EVENTS));
	rc = loading_agree(l, rc);
	if (rc == 0 && o->strict && o->keys.n) {
		/* Otherwise every stored key would be reported as unwanted. */
		rc = wants_any(l);
		if (rc == 0)
			return loading_matches_nothing(l);
	}
	if (rc >= 0)
		rc = dcpload_plan_finish(l->plan, &l->err);
	/* The choice of readers depends on the page cache, so drop it first. */
	if (rc == 0 && o->cold)
		rc = dcpload_drop_caches(l->plan, &l->err);
	if (rc == 0 && o->cold)
		rc = dcpload_plan_rebase(l->plan, l->ck, &l->err);
	return rc < 0 ? fail_read(l) : CMD_OK;
}

static enum cmd_exit execute_plan(struct loading *l)
{
	int rc = 0;

	for (uint64_t i = 0; i < DCP_MAX(l->opts->repeat, (uint64_t)1) && rc == 0; i++) {
		if (l->opts->cold)
			rc = dcpload_drop_caches(l->plan, &l->err);
		if (rc == 0)
			rc = dcpload_execute(l->plan, &l->err);
	}
	progress_finish(&l->progress);
	if (rc == 0 && l->opts->check)
		rc = dcpload_check(l->plan, &l->err);
	if (rc == 0 && l->opts->verify)
		rc = dcpload_verify(l->plan, l->opts->verify, &l->err);
	return rc < 0 ? fail_read(l) : CMD_OK;
}

/* ---- into files ---- */

/* Metadata that stored files have beside the tensors of the parts; valid as long as @said. */
static int see_said(const struct loading *l, struct dcp_said *said, const char **object)
{
	struct dcp_index *ix = dcp_version_index(l->ck->of.v);
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)64 << 20);
	struct dcpload_part part;
	struct dcp_row row;
	int rc = 0;

	for (uint64_t i = 0; rc == 0 && dcpload_part(l->plan, i, &part) == 0; i++) {
		dcp_arena_reset(&arena);
		rc = dcp_index_by_key(ix, DCP_ROW_TENSOR, part.key, &arena, &row);
		if (rc == 0)
			rc = dcp_said_add(said, row.id);
	}
	return rc < 0 ? rc : dcp_said_take(said, object);
}

/* Check before data moves: is there enough room, and would a file be replaced? */
static enum cmd_exit begin_dump(struct loading *l)
{
	struct dump_of of = { .dir = l->opts->dump,
			      .version = dcpload_version(l->ck),
			      .layout = l->layout,
			      .rank = l->rank,
			      .ranks = l->ranks,
			      .force = l->opts->force };
	struct dcp_said *said = NULL;
	int rc;

	if (!of.dir)
		return CMD_OK;
	rc = export_withheld(l->ck->of.v, l->ck->of.source, of.dir, &of.withheld);
	if (rc == 0)
		rc = dcp_said_create(dcp_version_index(l->ck->of.v), &said);
	if (rc == 0)
		rc = see_said(l, said, &of.metadata);
	rc = load_say(&l->err, rc);
	if (rc == 0)
		rc = dump_begin(&l->dump, &of, l->plan, &l->err);
	dcp_said_free(said);
	return loading_agree(l, rc) < 0 ? fail_dump(l) : CMD_OK;
}

static int write_dump(struct loading *l, struct dcpload_error *err)
{
	return dump_write(&l->dump, l->plan, err);
}

static enum cmd_exit dump_parts(struct loading *l)
{
	int64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	int rc;

	if (!l->opts->dump)
		return CMD_OK;
	l->doing = "dumping";
	rc = loading_step(l, write_dump);
	if (rc == 0)
		rc = loading_agree(l, dump_publish(&l->dump, &l->err));
	l->dump_ns = (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - start);
	return rc < 0 ? fail_dump(l) : CMD_OK;
}

/* ---- all of it ---- */

static enum cmd_exit load_all(struct loading *l, const struct opt_args *args)
{
	const struct load_opts *o = l->opts;
	struct dcpload_config config = { .size = sizeof(config),
					 .io = (uint32_t)o->io,
					 .exchange = (uint32_t)o->exchange,
					 .threads = (uint32_t)o->threads,
					 .staging = o->staging,
					 .timeout_ms = (uint32_t)(o->timeout * 1000),
					 .version = args->operand[PICK_VERSION],
					 .device = o->device,
					 .coordinator = (uint32_t)o->coordinator };
	dcp_auto_free char *source = NULL;
	enum cmd_exit code;
	int rc;

	rc = export_open_comm(o->comm, o->timeout, o->insecure, &l->comm, &l->err);
	if (rc == 0)
		rc = export_compare_options(l->comm, opts, o, o->timeout, &l->err);
	if (rc < 0)
		return loading_fail(l, export_exit_of_comm(rc));
	progress_init(&l->progress, true);
	if (o->coordinator >= l->comm->ranks)
		return fail_usage(
			l, "load: there is no rank %u to be the coordinator, only 0 to %u",
			config.coordinator, l->comm->ranks - 1);
	rc = locate_source(args->operand[PICK_SOURCE], l->comm->ranks, &source,
			   &config.version);
	if (loading_agree(l, rc < 0 ? load_fail(&l->err, rc, "out of memory") : 0) < 0)
		return fail_load(l);
	code = loading_check_trace(l);
	if (code == CMD_OK)
		code = loading_check_metrics(l);
	if (code != CMD_OK)
		return code;
	if (l->opts->no_cache)
		dcp_disk_never();
	if (dcpload_open(l->comm, source, &config, &l->ck, &l->err) < 0)
		return fail_open(l, source);
	if (dcpload_passed_over(l->ck))
		cmd_warn("%s; taking %s", dcpload_passed_over(l->ck), dcpload_version(l->ck));
	if (!o->partial && !o->keys.n && !o->skip.n) {
		rc = gather_largest(l, (uint8_t)check_hf(source, l->comm->rank == 0));
		if (rc != CMD_OK)
			return rc < 0 ? fail_load(l) : (enum cmd_exit)rc;
	}
	code = choose_layout(l);
	if (code == CMD_OK)
		code = plan_load(l);
	if (code == CMD_OK)
		code = begin_dump(l);
	if (code == CMD_OK)
		code = execute_plan(l);
	if (code == CMD_OK)
		code = dump_parts(l);
	if (code == CMD_OK)
		code = loading_trace(l);
	return code == CMD_OK ? loading_report(l) : code;
}

static enum cmd_exit run_load(const void *opts_in, const struct opt_args *args)
{
	struct loading l = {
		.opts = opts_in, .dump = DUMP_INIT, .doing = "planning", .out = -1
	};
	const char *const written[] = { l.opts->dump, l.opts->trace, l.opts->metrics };
	int64_t began = dcp_now_ns(CLOCK_MONOTONIC);
	enum cmd_exit code;

	if (l.opts->strict && l.opts->partial)
		return cmd_fail(CMD_USAGE, "load: --strict and --partial exclude each other");
	for (size_t i = 0; i < DCP_LEN(written); i++) {
		code = written[i] && args->operand[PICK_SOURCE]
			       ? export_check_apart(written[i], args->operand[PICK_SOURCE])
			       : CMD_OK;
		if (code != CMD_OK)
			return code;
	}
	dcpfs_fault_install(); /* so that files may be mapped */
	if (l.opts->device)
		l.out = out_divert();
	code = loading_metrics(&l, load_all(&l, args), began);
	dump_end(&l.dump);
	dcpload_plan_free(l.plan);
	dcpload_close(l.ck);
	dcpload_comm_close(l.comm);
	out_restore(l.out);
	return code;
}

const struct cmd cmd_load = {
	.name = "load",
	.also = "dcpload",
	.what = "load a checkpoint into the memory of a parallel job",
	.about = "Load what each rank of a layout holds into memory, all ranks together, and "
		 "report how that went. Also called dcpload. Started by mpirun, torchrun or "
		 "srun, or alone.",
	.operands = operands,
	.opts = opts,
	.reports = true,
	.size = sizeof(struct load_opts),
	.run = run_load,
	.examples = { "mpirun -np 8 dcpload /data/run1 --layout fsdp8",
		      "dcpload /data/run1 --layout tp4:llama --rank 2 --check",
		      "torchrun --no-python --nproc-per-node 8 dcpload /data/run1" },
};
