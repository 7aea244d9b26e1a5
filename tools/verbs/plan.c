/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "tools/cmd.h"
#include "tools/export/export.h"
#include "tools/load/memory/memory.h"
#include "tools/out.h"
#include "tools/pick.h"
#include "tools/plan/plan.h"

#define AT(field) .off = offsetof(struct plan_opts, field)

static const char *const ios[] = { "buffered", "direct", NULL };
static const char *const exchanges[] = { "all", "node", "never", NULL };

static const struct opt opts[] = {
	{ 0, "layout", "L", "what each rank is to hold: FILE, fsdp8, tp4:llama", OPT_TEXT,
	  OPT_LAYOUT, AT(layout) },
	{ 0, "from-layout", "M", "what each rank holds already: nothing is read", OPT_TEXT,
	  OPT_LAYOUT, AT(from) },
	{ 0, "rank", "R", "only what rank R reads, sends and receives", OPT_TEXT, AT(rank) },
	{ 0, "key", "KEY", "draw this tensor; otherwise the largest", OPT_TEXT, OPT_KEY,
	  AT(key) },
	{ 0, "simulate", "LIST", "estimate times: nodes=64,gpus=8,disk=25GB/s,net=50GB/s",
	  OPT_TEXT, AT(simulate) },
	{ 0, "keys", "KEY", "only this key, all below it, or a glob; may be repeated",
	  OPT_TEXTS, AT(keys) },
	{ 0, "skip", "KEY", "not this key, nor what is below it; may be repeated", OPT_TEXTS,
	  AT(skip) },
	{ 0, "ignore-keys", "GLOB", "leave out paths that match; may be repeated", OPT_TEXTS,
	  AT(ignore) },
	{ 0, "weights-only", NULL, "only the model: no optimizer, scheduler, random state",
	  OPT_FLAG, AT(weights_only) },
	{ 0, "dtype", "TYPE",
	  "convert floating-point tensors: F32, BF16, F16, F8_E4M3, F8_E5M2", OPT_CHOICE,
	  AT(dtype), .choices = export_dtypes },
	{ 0, "exchange", "WHO", "which ranks read for others: all (the default), node, never",
	  OPT_CHOICE, AT(exchange), .choices = exchanges },
	{ 0, "node", "N", "ranks of each node; default 1, or --simulate's gpus", OPT_UINT,
	  AT(node), .max = DCP_LAYOUT_MAX_RANKS },
	{ 0, "io", "HOW", "never: buffered (the default), or direct: past the page cache",
	  OPT_CHOICE, AT(io), .choices = ios },
	{ 0, "device", "WHERE", "node, never: into the memory of host, cuda:0, cuda", OPT_TEXT,
	  AT(device) },
	{ 0, "staging", "N", "memory of each rank beyond the tensors; default 64MiB", OPT_SIZE,
	  AT(staging) },
	{ .name = "svg",
	  .kind = OPT_FORM,
	  AT(form),
	  .def = OUT_SVG,
	  .ext = ".svg",
	  .file = offsetof(struct plan_opts, file),
	  .help = "draw a tensor: stored pieces and ranks" },
	{ .name = "html",
	  .kind = OPT_FORM,
	  AT(form),
	  .def = OUT_HTML,
	  .ext = ".html",
	  .file = offsetof(struct plan_opts, file),
	  .help = "one page with tables and drawings" },
	PICK_OPTS_READ(struct plan_opts),
	PICK_OPTS_ROWS(struct plan_opts),
	OPT_END
};

static const struct opt_operand operands[] = { PICK_OPERANDS, { 0 } };

static enum cmd_exit check_rank(const struct plan *p, uint64_t *rank)
{
	if (!opt_number(p->opts->rank, 10, rank))
		return cmd_fail(CMD_USAGE, "--rank takes a number, found \"%s\"",
				p->opts->rank);
	if (*rank >= p->ranks)
		return cmd_fail(CMD_USAGE, "there is no rank %s of %s, only 0 to %u",
				p->opts->rank, dcp_layout_name(p->to), p->ranks - 1);
	return CMD_OK;
}

static enum cmd_exit draw_plan(struct plan *p, struct out *o)
{
	int64_t id;
	enum cmd_exit code = plan_tensor(p, &id);

	return code == CMD_OK ? plan_map(p, id, &o->buf) : code;
}

static enum cmd_exit show_plan(struct plan *p, struct out *o)
{
	uint64_t rank = 0;
	enum cmd_exit code = CMD_OK;

	if (p->opts->form == OUT_SVG || p->opts->form == OUT_HTML) {
		code = p->opts->form == OUT_SVG ? draw_plan(p, o) : plan_html(p, o);
		return code != CMD_OK ? code
				      : export_put_file(o, "plan", p->opts->file,
							p->opts->form == OUT_HTML ? PLAN_HTML
										  : SVG_HEAD,
							&p->pick, NULL);
	}
	if (p->opts->form == OUT_TSV)
		return plan_tsv(p, o);
	if (!p->opts->rank && p->opts->form == OUT_JSON)
		return plan_json(p, o);
	if (!p->opts->rank) {
		plan_write(p, o);
		return out_flush(o);
	}
	code = check_rank(p, &rank);
	if (code != CMD_OK)
		return code;
	return p->opts->form == OUT_JSON ? plan_rank_json(p, (uint32_t)rank, o)
					 : plan_rank_text(p, (uint32_t)rank, o);
}

/* Refuse options that are missing or have no effect. */
static enum cmd_exit check_opts(const struct plan_opts *po)
{
	const struct {
		bool bad;
		const char *says;
	} rules[] = {
		{ !po->layout, "--layout is missing: a file, a name like fsdp8, or "
			       "mesh:dp2,tp4:FILE" },
		{ (po->form == OUT_HTML || po->form == OUT_SVG) && !po->file &&
			  isatty(STDOUT_FILENO),
		  "standard output is a terminal, which does not show a page or drawing: "
		  "--html FILE.html, --svg FILE.svg, or > FILE" },
		{ po->rank && po->form != OUT_TEXT && po->form != OUT_JSON,
		  "--rank is for text and --json" },
		{ po->key && po->form != OUT_SVG && po->form != OUT_HTML,
		  "--key names the tensor to be drawn; add --svg or --html" },
		{ po->simulate && po->rank, "--simulate is about all ranks; leave --rank out" },
		{ po->simulate && (po->form == OUT_SVG || po->form == OUT_TSV),
		  "--simulate is neither in the drawing of a tensor nor in a table of "
		  "ranks; take --html or --json" },
		{ po->from &&
			  (po->exchange || po->io || po->staging || po->device || po->dtype),
		  "--exchange, --io, --staging, --device and --dtype are about reading, and "
		  "with --from-layout nothing is read; leave one of them out" },
		{ po->exchange && po->simulate,
		  "--simulate compares all ways to read; leave --exchange out" },
		{ po->exchange == DCP_JOB_NODE && !po->node,
		  "--exchange node needs --node N, how many ranks are on each node" },
		{ po->io == PLAN_DIRECT && po->exchange != DCP_JOB_NEVER,
		  "--io direct is for --exchange never: with all and node whole blocks are "
		  "read in any case" },
		{ po->device && po->exchange == DCP_JOB_ALL && strcmp(po->device, "host") != 0,
		  "--device is for --exchange node and never: what devices send each other is "
		  "known only where they are" },
		{ po->device && strcmp(po->device, "auto") == 0,
		  "--device auto goes by what the machine of a rank has; name it: host, "
		  "cuda:0, cuda" },
		{ po->device && !load_device_is_name(po->device),
		  "--device takes host, cuda, or cuda:0" },
	};

	for (size_t i = 0; i < DCP_LEN(rules); i++)
		if (rules[i].bad)
			return cmd_fail(CMD_USAGE, "plan: %s", rules[i].says);
	return CMD_OK;
}

static enum cmd_exit run_plan(const void *opts_in, const struct opt_args *args)
{
	const struct plan_opts *po = opts_in;
	struct plan p = { .opts = po };
	enum cmd_exit code;
	struct out o;

	code = check_opts(po);
	if (code != CMD_OK)
		return code;
	out_init(&o, po->form);
	code = plan_load(&p, args);
	if (code == CMD_OK)
		code = show_plan(&p, &o);
	out_finish(&o);
	plan_finish(&p);
	return code;
}

const struct cmd cmd_plan = {
	.name = "plan",
	.what = "show who would read and send what in a parallel job",
	.about = "Plan how the ranks of a job get their parts of a checkpoint: what "
		 "dcpfs load would read, send and receive.",
	.operands = operands,
	.opts = opts,
	.size = sizeof(struct plan_opts),
	.run = run_plan,
	.examples = { "dcpfs plan /data/run1 --layout fsdp64",
		      "dcpfs plan /data/run1 --layout mesh:dp2,tp4:llama.dcpl --html "
		      "plan.html" },
};
