/* SPDX-License-Identifier: Apache-2.0 */
/* dcpfs report: a self-contained page about a version. */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/format/format.h"
#include "tools/cmd.h"
#include "tools/export/export.h"
#include "tools/out.h"
#include "tools/pick.h"
#include "tools/svg.h"
#include "tools/trust/trust.h"

struct report_opts {
	const char *output, *against;
	bool stats;
	uint64_t jobs, rate;
	struct opt_texts keys;
	struct pick_opts pick;
};

static const struct opt opts[] = {
	{ 'o', "output", "FILE", "the page; default: standard output", OPT_TEXT, OPT_FILE,
	  offsetof(struct report_opts, output) },
	{ 0, "stats", NULL, "read tensors whose statistics are not kept yet", OPT_FLAG,
	  .off = offsetof(struct report_opts, stats) },
	{ 0, "against", "V", "also how it differs from this version of SOURCE", OPT_TEXT,
	  OPT_VERSION, offsetof(struct report_opts, against) },
	WALK_OPT_KEYS(struct report_opts),
	WALK_OPT_JOBS(struct report_opts),
	{ 0, "rate", "N", "read at most N bytes a second: 200MB", OPT_SIZE,
	  .off = offsetof(struct report_opts, rate) },
	PICK_OPTS_READ(struct report_opts),
	OPT_END
};

static const struct opt_operand operands[] = { PICK_OPERANDS, { 0 } };

/* What a page begins with. */
#define HEAD HTML_HEAD("dcpfs report")

struct file {
	uint64_t tensors, nbytes;
};

struct reporting {
	const struct report_opts *o;
	struct pick p, old;
	struct walk_keys keys, old_keys;
	struct file *files;
	size_t nfiles;
	struct comparing c;
	struct dcp_buf strip;
	struct out data, page;
};

/* ---- what the page is about ---- */

static void put_index(struct reporting *w)
{
	const struct dcp_index_counts *c = dcp_index_counts(dcp_version_index(w->p.ck.v));
	struct out *o = &w->data;

	dcp_jsonw_put_str(&o->json, "version", w->p.ck.name);
	dcp_jsonw_put_str(&o->json, "format", w->p.ck.found->format->name);
	dcp_jsonw_put_object(&o->json, "index");
	dcp_jsonw_put_u64(&o->json, "tensors", c->tensors);
	dcp_jsonw_put_u64(&o->json, "objects", c->objects);
	dcp_jsonw_put_u64(&o->json, "broken", c->broken);
	dcp_jsonw_put_u64(&o->json, "elements", c->elements);
	dcp_jsonw_put_u64(&o->json, "nbytes", c->bytes);
	dcp_jsonw_end(&o->json);
}

static int put_part(void *ctx, uint32_t file, uint64_t nbytes)
{
	struct reporting *w = ctx;

	w->files[file].tensors++;
	w->files[file].nbytes += nbytes;
	dcp_jsonw_array(&w->data.json);
	dcp_jsonw_u64(&w->data.json, file);
	dcp_jsonw_u64(&w->data.json, nbytes);
	dcp_jsonw_end(&w->data.json);
	return 0;
}

static int put_tensors(struct reporting *w)
{
	const struct walk_key *k = WALK_KEYS(&w->keys);
	struct dcp_jsonw *j = &w->data.json;
	size_t *tie = walk_ties(&w->keys);
	int rc = tie ? 0 : -ENOMEM;

	dcp_jsonw_put_array(j, "tensors");
	for (size_t i = 0; i < WALK_NKEYS(&w->keys) && rc == 0; i++) {
		dcp_jsonw_object(j);
		dcp_jsonw_put_str(j, "key", k[i].key);
		dcp_jsonw_put_str(j, "dtype", k[i].dtype_name);
		dcp_jsonw_put_u64s(j, "shape", k[i].shape, k[i].ndim);
		dcp_jsonw_put_u64(j, "elements", k[i].elements);
		dcp_jsonw_put_u64(j, "nbytes", k[i].nbytes);
		if (tie[i])
			dcp_jsonw_put_str(j, "alias_of", k[tie[i] - 1].key);
		if (k[i].error)
			dcp_jsonw_put_str(j, "error", k[i].error);
		dcp_jsonw_put_array(j, "parts");
		rc = walk_files(&w->p, &k[i], put_part, w);
		dcp_jsonw_end(j);
		dcp_jsonw_end(j);
	}
	dcp_jsonw_end(j);
	free(tie);
	return rc;
}

static void put_files(struct reporting *w)
{
	static const struct out_field fields[] = {
		{ "name" }, { "tensors" }, { "nbytes" }, { NULL }
	};
	size_t n;
	const struct dcp_file_id *files = dcp_index_files(dcp_version_index(w->p.ck.v), &n);

	out_list(&w->data, "files", fields);
	for (size_t i = 0; i < w->nfiles; i++) {
		out_row(&w->data);
		out_put_str(&w->data, "name", files[i].name);
		out_put_u64(&w->data, "tensors", w->files[i].tensors);
		out_put_u64(&w->data, "nbytes", w->files[i].nbytes);
		out_row_end(&w->data);
	}
	out_list_end(&w->data, false);
}

/* Put the known statistics; with --stats, those of all tensors. */
static enum cmd_exit put_stats(struct reporting *w)
{
	struct measuring m = { .p = &w->p,
			       .keys = &w->keys,
			       .known = !w->o->stats,
			       .jobs = (unsigned)w->o->jobs,
			       .rate = w->o->rate };
	int rc = measure_run(&m);

	out_list(&w->data, "stats", measure_fields);
	for (size_t i = 0; rc == 0 && i < WALK_NKEYS(&w->keys); i++) {
		const struct walk_key *k = &WALK_KEYS(&w->keys)[i];
		struct measure_row r = { .name = k->key, .key = k, .m = m.m[i], .tensors = 1 };

		if (r.m.head.done)
			measure_put_row(&w->data, &r);
	}
	out_list_end(&w->data, false);
	measure_finish(&m);
	return rc < 0 ? cmd_fail(CMD_ENV, "report: %s", strerror(-rc)) : m.code;
}

/* Tensors that are not equal to those of the other version. */
static enum cmd_exit put_against(struct reporting *w)
{
	enum cmd_exit code =
		walk_pick(&w->old, w->p.ck.source, w->o->against, &w->o->pick, "report");
	dcp_auto_buf struct dcp_buf title = DCP_BUF_INIT;
	int rc;

	if (code == CMD_OK)
		code = walk_keys(&w->old, &w->o->keys, &w->old_keys);
	if (code != CMD_OK)
		return code;
	w->c = (struct comparing){ .p = { &w->old, &w->p },
				   .keys = { &w->old_keys, &w->keys },
				   .jobs = (unsigned)w->o->jobs,
				   .rate = w->o->rate };
	rc = compare_run(&w->c);
	dcp_jsonw_put_object(&w->data.json, "against");
	dcp_jsonw_put_str(&w->data.json, "version", w->old.ck.name);
	out_list(&w->data, "rows", compare_fields);
	for (size_t i = 0; i < w->c.n; i++)
		if (w->c.pairs[i].state != CMP_EQUAL)
			compare_put_row(&w->data, &w->c.pairs[i], "tensor", false);
	out_list_end(&w->data, false);
	dcp_jsonw_end(&w->data.json);
	dcp_buf_printf(&title, "from %s to %s", w->old.ck.name, w->p.ck.name);
	dcp_buf_add(&title, "", 1);
	if (rc == 0)
		rc = dcp_buf_error(&title);
	if (rc == 0)
		rc = compare_strip(&w->c, title.p, &w->strip);
	return rc < 0 ? cmd_fail(CMD_ENV, "report: %s", strerror(-rc)) : w->c.code;
}

/* A part that cannot be read is reported, and left out of the page. */
static enum cmd_exit gather_parts(struct reporting *w)
{
	enum cmd_exit code, worst;
	int rc;

	dcp_index_files(dcp_version_index(w->p.ck.v), &w->nfiles);
	w->files = calloc(w->nfiles + 1, sizeof(*w->files));
	if (!w->files)
		return cmd_fail(CMD_ENV, "report: %s", strerror(ENOMEM));
	dcp_jsonw_object(&w->data.json);
	put_index(w);
	rc = put_tensors(w);
	if (rc < 0)
		return pick_unreadable(&w->p, rc);
	put_files(w);
	worst = put_stats(w);
	code = w->o->against ? put_against(w) : CMD_OK;
	dcp_jsonw_end(&w->data.json);
	return DCP_MAX(worst, code);
}

/* ---- the page ---- */

static void put_page(struct reporting *w)
{
	struct dcp_buf *b = &w->page.buf;

	html_begin(b, HEAD, w->p.ck.name);
	dcp_buf_str(b, "<dl id='facts'></dl>\n<h2>Parameters</h2>\n"
		       "<nav id='path' aria-label='parts of keys'></nav>\n"
		       "<div id='map' aria-label='treemap of parameters'></div>\n"
		       "<h2>Tensors</h2>\n");
	html_table(b, "tensors", "words of a key, dtype, [shape], note");
	dcp_buf_str(b, "<h2>Files</h2>\n<div id='files'></div>\n");
	if (w->strip.n) {
		dcp_buf_str(b, "<h2>Changes</h2>\n<div id='strip'>");
		dcp_buf_add(b, w->strip.p, w->strip.n);
		dcp_buf_str(b, "</div>\n");
	}
	html_end(b, &w->data.buf, PAGE_REPORT);
}

static enum cmd_exit run_report(const void *opts_in, const struct opt_args *args)
{
	struct reporting w = { .o = opts_in };
	enum cmd_exit code = walk_open(&w.p, args, &w.o->pick, "report"), made = CMD_OK;

	if (code == CMD_OK)
		code = pick_check_drawing("report", w.o->output);
	out_init(&w.data, OUT_JSON);
	out_init(&w.page, OUT_HTML);
	w.data.json.pretty = false;
	if (code == CMD_OK)
		code = export_check_file("report", w.o->output, HEAD, w.p.ck.source);
	if (code == CMD_OK)
		code = walk_keys(&w.p, &w.o->keys, &w.keys);
	if (code == CMD_OK) {
		made = gather_parts(&w);
		if (dcp_jsonw_error(&w.data.json) < 0)
			code = cmd_fail(CMD_ENV, "report: %s", strerror(ENOMEM));
	}
	if (code == CMD_OK && w.o->against && !w.c.p[0])
		code = made; /* the version could not be opened: there is nothing to show */
	else if (code == CMD_OK && made != CMD_ENV && made != CMD_USAGE) {
		put_page(&w);
		code = export_put_file(&w.page, "report", w.o->output, HEAD, &w.p,
				       w.o->against ? &w.old : NULL);
	}
	free(w.files);
	free(w.c.pairs);
	dcp_buf_finish(&w.strip);
	walk_keys_finish(&w.keys);
	walk_keys_finish(&w.old_keys);
	out_finish(&w.data);
	out_finish(&w.page);
	pick_finish(&w.p);
	if (w.o->against)
		pick_finish(&w.old);
	return code == CMD_OK ? made : code;
}

const struct cmd cmd_report = {
	.name = "report",
	.what = "one HTML page: treemap, table, files, changes",
	.about = "Write a page about a version that needs nothing from elsewhere: a treemap of "
		 "parameters, a table of tensors with search and sorting, what lies in each "
		 "file, and statistics that dcpfs stats has kept.",
	.operands = operands,
	.opts = opts,
	.size = sizeof(struct report_opts),
	.run = run_report,
	.examples = { "dcpfs report /data/run1 -o run1.html",
		      "dcpfs report /data/run1 2000 --against 1000 --stats -o run1.html" },
};
