/* SPDX-License-Identifier: Apache-2.0 */
/* dcpfs export: a version, whatever wrote it, as a checkpoint of another format. */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "core/base/base.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "fs/session.h"
#include "tools/export/export.h"

#define AT(field) .off = offsetof(struct export_opts, field)

#define MAX_SHARD 5000000000u

static const struct opt opts[] = {
	{ 0, "as", "FORMAT", "safetensors, torch-dcp, torch-save, npz, ...: see the manual",
	  OPT_TEXT, OPT_FORMAT, AT(as), .alike = OPT_SAME },
	{ 0, "layout", "L", "cut for the ranks of L; default: one rank has all", OPT_TEXT,
	  OPT_LAYOUT, AT(layout), .alike = OPT_SAME },
	{ 0, "keys", "KEY", "only this key, all below it, or a glob; may be repeated",
	  OPT_TEXTS, AT(keys), .alike = OPT_SAME },
	{ 0, "skip", "KEY", "not this key, nor what is below it; may be repeated", OPT_TEXTS,
	  AT(skip), .alike = OPT_SAME },
	{ 0, "dtype", "TYPE", "convert to F32, BF16, F16, F8_E4M3, F8_E5M2", OPT_CHOICE,
	  AT(dtype), .choices = export_dtypes, .alike = OPT_SAME },
	{ 0, "max-shard-size", "N", "bytes of a file; default 5GB, 0: all in one", OPT_SIZE,
	  AT(max_shard), .def = MAX_SHARD, .alike = OPT_SAME },
	{ 0, "protocol", "N", "of the pickle in paddle or torch-dcp: 2, 3 or 4, the default",
	  OPT_CHOICE, AT(protocol), .choices = export_protocols, .def = EXPORT_NO_PROTOCOL,
	  .alike = OPT_SAME },
	{ 0, "jobs", "N", "threads; default: one per CPU, at most 8", OPT_UINT, AT(jobs),
	  .max = SAVE_MAX_JOBS },
	{ 0, "direct", NULL, "write past the page cache (O_DIRECT)", OPT_FLAG, AT(direct) },
	{ 0, "comm", "HOW", "how ranks that share the work communicate: auto, alone, mpi, env",
	  OPT_CHOICE, AT(comm), .choices = export_comms },
	EXPORT_OPTS_JOB(AT(timeout), AT(insecure)),
	{ 0, "verify", NULL, "read back and compare before it gets its name", OPT_FLAG,
	  AT(verify), .alike = OPT_SAME },
	{ 0, "partial", NULL,
	  "go on without what cannot be read or is missing; default: refuse", OPT_FLAG,
	  AT(partial), .alike = OPT_SAME },
	{ 0, "force", NULL, "replace an existing checkpoint", OPT_FLAG, AT(force),
	  .alike = OPT_SAME },
	{ 0, "dry-run", NULL, "write nothing, and say what would be written", OPT_FLAG, AT(dry),
	  .alike = OPT_SAME },
	{ 0, "resume", NULL, "continue an export that was stopped", OPT_FLAG, AT(resume),
	  .alike = OPT_SAME },
	{ PICK_VERSION_ROW, .hidden = true },
	{ PICK_INDEX_ROW(struct export_opts), .hidden = true },
	{ PICK_CACHE_ROW(struct export_opts), .hidden = true },
	{ PICK_NO_CACHE_ROW(struct export_opts) },
	PICK_OPTS_HF(struct export_opts),
	PICK_OPT_FORM(struct export_opts, "json", OUT_JSON, "print what was done as JSON"),
	OPT_END
};

enum { OPERAND_SOURCE, OPERAND_VERSION, OPERAND_OUT };
static const struct opt_operand operands[] = { PICK_OPERANDS,
					       { "OUT", false, OPT_DIR },
					       { 0 } };

/* All ranks end with the same code; the leading rank says why. */
static enum cmd_exit fail_export(const struct exporting *x, int rc)
{
	static const int usage[] = { -EEXIST, -ENOTEMPTY, -EISDIR, -ENOTDIR, -EINVAL };
	enum cmd_exit code = cmd_exit_of(rc);
	char written[OUT_SIZE], all[OUT_SIZE];
	struct save_counts c = { 0 };

	if (x->save)
		save_count(x->save, &c);
	for (size_t i = 0; i < DCP_LEN(usage); i++)
		code = rc == usage[i] ? CMD_USAGE : code;
	if (!export_speaks(x->comm, &x->told))
		return code;
	cmd_fail(code, "export: %s", x->err.msg);
	if (rc == -EEXIST && !x->opts->force)
		cmd_hint("--force replaces it");
	if (c.data > x->kept && rc != -EEXIST) /* else all was there before */
		cmd_hint("%s of %s were written, and are removed again",
			 out_size(written, c.written), out_size(all, c.data));
	return code;
}

/* ---- which format ---- */

static enum cmd_exit choose_format(struct exporting *x)
{
	/* The Hugging Face directory that --hf means is one of safetensors. */
	const char *as = x->opts->as ? x->opts->as : x->opts->pick.hf.on ? "safetensors" : NULL;
	const char *near = NULL;
	struct dcp_near nearness = dcp_near_to(as ? as : "");
	dcp_auto_buf struct dcp_buf names = DCP_BUF_INIT;

	x->format = as ? dcp_write_format(as) : NULL;
	x->is_file = x->format && dcp_write_is_file_of(x->format, x->out);
	if (x->format)
		return CMD_OK;
	for (size_t i = 0; dcp_write_formats[i]; i++) {
		const char *name = dcp_write_formats[i]->name;

		dcp_buf_printf(&names, "%s%s", i ? ", " : "", name);
		if (as && dcp_near_take(&nearness, name))
			near = name;
	}
	return as ? cmd_fail(CMD_USAGE, "export: --as %s: %s%s%sformats are %s", as,
			     near ? "nearest is " : "", near ? near : "", near ? "; " : "",
			     names.p)
		  : cmd_fail(CMD_USAGE, "export: --as FORMAT is needed: %s", names.p);
}

/* A directory may not be named like a file of another format. */
static enum cmd_exit check_name(const struct exporting *x)
{
	const char *own = x->format->extensions ? x->format->extensions[0] : NULL;
	const struct dcp_write_format *like = dcp_write_format_of(x->out);

	if (!like || x->is_file)
		return CMD_OK;
	return cmd_fail(
		CMD_USAGE,
		"export: %s is called like a file of %s; %s writes a directory%s%s (%s/ "
		"makes one of that name)",
		x->out, like->name, x->format->name, own ? ", or a file called " : "",
		own ? own : "", x->out);
}

/* Refuse options that do not fit the format. */
static enum cmd_exit check_options(const struct exporting *x)
{
	const struct export_opts *o = x->opts;
	const struct {
		const char *name;
		bool given;
		unsigned by; /* a format that takes one of these */
	} uses[] = {
		{ "layout", o->layout, DCP_WRITE_BOXES | DCP_WRITE_ARRAYS },
		{ "max-shard-size", o->max_shard != MAX_SHARD, DCP_WRITE_SHARDS },
		{ "protocol", o->protocol >= 0, DCP_WRITE_PROTOCOL },
	};
	dcp_auto_buf struct dcp_buf names = DCP_BUF_INIT;

	for (size_t i = 0; i < DCP_LEN(uses); i++) {
		if (!uses[i].given || x->format->takes & uses[i].by)
			continue;
		for (size_t k = 0; dcp_write_formats[k]; k++)
			if (dcp_write_formats[k]->takes & uses[i].by)
				dcp_buf_printf(&names, "%s%s", names.n ? ", " : "",
					       dcp_write_formats[k]->name);
		return cmd_fail(CMD_USAGE, "export: --%s is not for %s; it is for %s",
				uses[i].name, x->format->name, names.p ? names.p : "none");
	}
	if (o->max_shard != MAX_SHARD && (x->is_file || o->layout))
		return cmd_fail(CMD_USAGE, "export: --max-shard-size is not for %s",
				o->layout ? "--layout, which has a file for each rank"
					  : "one file; give a directory");
	if (o->verify && (x->format->takes & DCP_WRITE_RENAMES ||
			  (x->is_file && x->format == dcp_write_format("paddle-binary"))))
		return cmd_fail(
			CMD_USAGE,
			"export: cannot --verify: %s does not keep the keys, so what is "
			"read back cannot be compared",
			x->format->name);
	return CMD_OK;
}

/* ---- all of it ---- */

static int write_data(struct exporting *x)
{
	const struct save_source source = export_source(x->reader);

	return save_data(x->save, &source, &x->err);
}

static int complete_save(struct exporting *x)
{
	int rc = save_seal(x->save, &x->err);

	if (rc == 0 && x->opts->verify)
		rc = export_verify(x);
	cmd_on_stop(NULL, NULL, NULL, false);
	return rc < 0 ? rc : save_publish(x->save, &x->err);
}

static int begin_save(struct exporting *x)
{
	int rc = save_create(&x->how, &x->save, &x->err);

	return rc == 0 ? save_plan(x->save, x->format, &x->set, &x->form, &x->err) : rc;
}

/* Say that OUT is complete already: compared by --verify, or else by lengths. */
static int find_complete(struct exporting *x)
{
	struct save_counts c;
	int rc = x->opts->verify ? export_verify(x) : 0;

	save_count(x->save, &c);
	x->kept = c.data;
	if (rc == 0)
		cmd_warn("export: %s%s", x->err.msg,
			 x->opts->verify ? ""
					 : " by the lengths of its files; --verify compares "
					   "what is in them");
	return rc;
}

static void say_removed(const char *out)
{
	cmd_fail(
		CMD_OK,
		"export: --resume: what was left of %s is of other options, another version or "
		"changed files; it is removed, and all is written again",
		out);
}

static int save_all(struct exporting *x)
{
	const char *slash = strrchr(x->out, '/');
	bool leads = export_leads(x);
	uint64_t identity = 0;
	int rc = export_identity(x, &identity);
	x->how = (struct save_opts){ .out = x->out,
				     .file = x->is_file,
				     .force = x->opts->force,
				     .dry = x->opts->dry,
				     .resume = x->opts->resume,
				     .removed = say_removed,
				     .jobs = (unsigned)x->opts->jobs,
				     .identity = identity,
				     .direct = x->opts->direct,
				     .stop = x->how.stop,
				     .rank = x->comm->rank,
				     .ranks = x->comm->ranks,
				     .progress = leads ? &x->progress.report : NULL };
	x->form = (struct dcp_write_opts){ .name = !x->how.file ? NULL
						   : slash      ? slash + 1
								: x->out,
					   .stem = dcp_hf_stem(x->pick.ck.v),
					   .max_shard = x->opts->max_shard,
					   .protocol = export_protocol(x->opts) };

	if (rc == 0)
		rc = export_withheld_beside(x->pick.ck.v, x->pick.ck.source, x->out,
					    &x->how.withheld);
	if (rc == 0)
		rc = export_reader(x, &x->reader);
	rc = dcp_err_say(&x->err, rc);
	x->set.high = export_high;
	x->set.said = export_said;
	x->set.ctx = x->reader;
	/* The leading rank goes first, as it may clear the directory. */
	rc = export_agree(x, rc);
	if (rc == 0)
		rc = export_step(x, leads ? begin_save : NULL);
	if (rc == -EALREADY)
		return export_step(x, leads ? find_complete : NULL);
	if (rc == 0)
		rc = export_step(x, leads ? NULL : begin_save);
	if (rc == 0)
		rc = export_agree(x, export_same_plan(x));
	if (rc == 0 && !x->opts->dry)
		rc = export_step(x, write_data);
	if (rc == 0 && !x->opts->dry)
		rc = export_agree(x, export_share_sums(x));
	if (rc == 0 && !x->opts->dry)
		rc = export_step(x, leads ? complete_save : NULL);
	progress_finish(&x->progress);
	return rc;
}

/* With --hf, --dtype is --hf-dtype, too, since config.json names the dtype. */
static void choose_hf_dtype(const struct export_opts *o, struct hf_opts *hf)
{
	for (int i = 1; !hf->dtype && hf_dtypes[i]; i++)
		if (strcasecmp(hf_dtypes[i], export_dtypes[o->dtype]) == 0) {
			hf->dtype = i;
			hf->implied = true;
		}
}

static enum cmd_exit open_source(struct exporting *x)
{
	struct pick_opts pick = x->opts->pick;
	enum cmd_exit code = choose_format(x);

	if (hf_is_wanted(&pick.hf))
		choose_hf_dtype(x->opts, &pick.hf);

	if (code == CMD_OK)
		code = check_name(x);
	if (code == CMD_OK)
		code = check_options(x);
	if (code == CMD_OK)
		code = pick_open(&x->pick, x->args, &pick);
	if (code == CMD_OK)
		code = export_check_place(x->out, x->pick.ck.source);
	if (code == CMD_OK)
		code = export_check_keys(x);
	pick.hf.partial = x->opts->partial || x->opts->keys.n || x->opts->skip.n;
	if (code == CMD_OK && x->pick.ck.base)
		code = hf_check(x->pick.ck.v, &pick.hf, "export", !export_leads(x));
	return code == CMD_OK ? export_layout(x) : code;
}

static enum cmd_exit write_version(struct exporting *x)
{
	enum cmd_exit code = export_join(x, opts, x->opts);
	char part[SAVE_PATH];
	int rc;

	if (code != CMD_OK)
		return code;
	if (export_is_remote(x->out))
		x->how.stop = cmd_on_stop_undo("export");
	else if (export_leads(x) && save_part(x->out, part) == 0)
		cmd_on_stop("export", part,
			    "--resume goes on with it, another export to that name removes it",
			    true);
	code = export_step_code(x, open_source);
	if (code != CMD_OK)
		return code;
	rc = export_step(x, export_choose);
	if (rc == 0)
		rc = save_all(x);
	if (rc < 0)
		return fail_export(x, rc);
	return export_leads(x) ? export_report(x) : CMD_OK;
}

static enum cmd_exit run_export(const void *opts_in, const struct opt_args *args)
{
	struct exporting x = { .opts = opts_in,
			       .args = args,
			       .doing = "exporting",
			       .out = args->operand[OPERAND_OUT],
			       .start_ns = dcp_now_ns(CLOCK_MONOTONIC) };
	enum cmd_exit code;

	dcpfs_fault_install(); /* so that files may be mapped */
	dcp_arena_init(&x.arena, (size_t)4 << 30);
	progress_init(&x.progress, true);
	code = write_version(&x);
	export_finish(&x);
	cmd_stop();
	return code;
}

const struct cmd cmd_export = {
	.name = "export",
	.what = "write a version as a checkpoint of another format",
	.about = "Write a version, whatever saved it, into OUT in another framework's format: "
		 "a directory, or a file where its name ends like one (model.safetensors). OUT "
		 "is complete when it gets its name, or it is not there.",
	.operands = operands,
	.opts = opts,
	.reports = true,
	.size = sizeof(struct export_opts),
	.run = run_export,
	.examples = { "dcpfs export /data/run1 /data/run1-hf --as safetensors --hf",
		      "dcpfs export /data/run1 500 weights.safetensors --as safetensors --keys "
		      "model" },
};
