/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdio.h>
#include <time.h>

#include "core/base/err.h"
#include "core/base/system.h"
#include "tools/cmd.h"
#include "tools/out.h"
#include "tools/pick.h"

struct index_opts {
	bool path, rebuild;
	int form;
	struct pick_opts pick;
};

static const struct opt opts[] = { { 0, "path", NULL, "print only where each index is",
				     OPT_FLAG, .off = offsetof(struct index_opts, path) },
				   { 0, "rebuild", NULL, "build again, even what is current",
				     OPT_FLAG, .off = offsetof(struct index_opts, rebuild) },
				   PICK_OPT_VERSION,
				   PICK_OPTS(struct index_opts),
				   PICK_OPTS_ROWS(struct index_opts),
				   OPT_END };

static const struct opt_operand operands[] = { PICK_OPERANDS, { 0 } };

static double now_seconds(void)
{
	return (double)dcp_now_ns(CLOCK_MONOTONIC) / 1e9;
}

static void put_row(struct out *o, const struct dcp_version *v, double seconds)
{
	const struct dcp_index_counts *c = dcp_index_counts(dcp_version_index(v));

	out_row(o);
	out_put_str(o, "version", dcp_version_name(v));
	out_put_str(o, "path", dcp_version_index_path(v));
	out_put_bool(o, "built", dcp_version_was_built(v));
	out_put_str(o, "INDEX",
		    !dcp_version_was_built(v)   ? "current"
		    : dcp_version_index_path(v) ? "built"
						: "in memory");
	out_put_u64(o, "tensors", c->tensors);
	out_put_u64(o, "objects", c->objects);
	out_put_u64(o, "broken", c->broken);
	out_put_u64(o, "elements", c->elements);
	out_put_u64(o, "nbytes", c->bytes);
	out_put_seconds(o, "seconds", seconds);
	out_row_end(o);
}

struct work {
	struct pick p;
	const struct index_opts *opts;
	struct out o;
	size_t refused;
	char first[600]; /* why the first version was refused */
};

/* Index one version. A refusal is reported at the end and does not stop the others. */
static enum cmd_exit index_one(struct work *w, const struct dcp_found *f)
{
	dcp_auto_version struct dcp_version *v = NULL;
	struct dcp_err err = { 0 };
	double start = now_seconds();
	enum cmd_exit code = CMD_OK;
	int rc = dcp_version_open(w->p.ck.source, f, &w->p.ck.store, &v, &err);

	progress_finish(&w->p.progress);
	if (rc < 0) {
		if (w->refused++ == 0)
			snprintf(w->first, sizeof(w->first), "%s", err.msg);
		return cmd_exit_of(rc);
	}
	if (w->opts->form == OUT_TEXT && w->opts->path) {
		const char *path = dcp_version_index_path(v);

		if (path)
			dcp_buf_printf(&w->o.buf, "%s\n", path);
		else
			code = cmd_fail(CMD_NO, "%s: no index file; it is kept in memory",
					f->name);
	} else {
		put_row(&w->o, v, now_seconds() - start);
	}
	return code;
}

static enum cmd_exit index_all(struct work *w, const char *version)
{
	enum cmd_exit worst = CMD_OK;
	size_t at = 0, end = w->p.ck.scan.n, done = 0;

	if (version) {
		enum cmd_exit code = pick_version(&w->p, version);

		if (code != CMD_OK)
			return code;
		at = (size_t)(w->p.ck.found - w->p.ck.scan.found);
		end = at + 1;
	}
	for (; at < end; at++) {
		const struct dcp_found *f = &w->p.ck.scan.found[at];
		enum cmd_exit code;

		if (!f->complete)
			continue;
		code = index_one(w, f);
		done += code == CMD_OK;
		worst = DCP_MAX(worst, code);
	}
	if (w->refused == 1)
		cmd_fail(worst, "%s", w->first);
	else if (w->refused)
		cmd_fail(worst, "%s (%zu versions are refused: dcpfs ls --versions %s)",
			 w->first, w->refused, w->p.ck.source);
	if (done == 0 && worst == CMD_OK)
		return pick_version(&w->p, NULL); /* prints why there is none */
	return worst;
}

static enum cmd_exit run_index(const void *opts_in, const struct opt_args *args)
{
	/* clang-format off */
	static const struct out_field fields[] = {
		{ "version", "VERSION", OUT_NAME }, { "path" }, { "built" }, { NULL, "INDEX" },
		{ "tensors", "TENSORS", OUT_COUNT }, { "objects", "OBJECTS", OUT_COUNT },
		{ "broken", "BROKEN", OUT_COUNT }, { "elements" },
		{ "nbytes", "SIZE", OUT_BYTES }, { "seconds", "TIME", OUT_SECONDS }, { NULL }
	};
	/* clang-format on */
	struct work w = { .opts = opts_in };
	enum cmd_exit code, written = CMD_OK;

	out_init(&w.o, w.opts->form);
	code = pick_source(&w.p, args->operand[PICK_SOURCE], &w.opts->pick, w.opts->rebuild);
	if (code == CMD_OK) {
		out_list(&w.o, NULL, fields);
		code = index_all(&w, args->operand[PICK_VERSION] ? args->operand[PICK_VERSION]
								 : w.p.ck.wanted);
		out_list_end(&w.o, false);
		written = out_flush(&w.o);
	}
	out_finish(&w.o);
	pick_finish(&w.p);
	return code == CMD_OK ? written : code;
}

const struct cmd cmd_index = {
	.name = "index",
	.what = "build or refresh indexes, or say where they are",
	.about = "Build the index of every complete version that has none or a stale one. "
		 "Mounting and reading do this by themselves; here it is done ahead.",
	.operands = operands,
	.opts = opts,
	.reports = true,
	.size = sizeof(struct index_opts),
	.run = run_index,
	.examples = { "dcpfs index /data/run1",
		      "sqlite3 \"$(dcpfs index --path /data/run1 latest)\" .schema",
		      "dcpfs index --index step-5.index /data/run1/step-5" },
};
