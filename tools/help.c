/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/help.h"

#include <stdio.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/jsonw.h"
#include "tools/cmd.h"
#include "tools/out.h"

enum {
	WIDE = 100, /* columns beyond which lines are hard to read */
	NARROW = 40,
	PLAIN = 80, /* where no terminal says */
};

/* What a page is written into: its lines have at most width columns. */
struct page {
	struct dcp_buf *b;
	size_t width, indent; /* indent: where explanations begin */
};

static struct page make_page(struct dcp_buf *b, unsigned width)
{
	size_t fits =
		!width ? PLAIN : DCP_MAX(DCP_MIN(width, (unsigned)WIDE), (unsigned)NARROW);

	return (struct page){ b, fits, fits < 60 ? 8 : 24 };
}

/* "dcpfs ls [OPTIONS] SOURCE [VERSION]" */
static void put_usage(struct dcp_buf *b, const struct cmd *cmd)
{
	dcp_buf_printf(b, "dcpfs %s", cmd->name);
	if (cmd->opts->name)
		dcp_buf_str(b, " [OPTIONS]");
	for (const struct opt_operand *o = cmd->operands; o->name; o++)
		dcp_buf_printf(b, o->optional ? " [%s]" : " %s", o->name);
}

/* "  left    text", the text wrapped and kept after the column @indent. */
static void entry(const struct page *p, const char *left, size_t indent, const char *text)
{
	size_t col = strlen(left);

	dcp_buf_str(p->b, left);
	if (col + 1 > indent) {
		dcp_buf_str(p->b, "\n");
		col = 0;
	}
	dcp_buf_printf(p->b, "%*s", (int)(indent - col), "");
	out_wrap(p->b, indent, indent, p->width, text);
	dcp_buf_str(p->b, "\n");
}

static void option(const struct page *p, const struct opt *o)
{
	dcp_auto_buf struct dcp_buf left = DCP_BUF_INIT;

	if (o->letter)
		dcp_buf_printf(&left, "  -%c, --%s", o->letter, o->name);
	else
		dcp_buf_printf(&left, "      --%s", o->name);
	if (o->arg)
		dcp_buf_printf(&left, " %s", o->arg);
	if (o->ext)
		dcp_buf_printf(&left, " [X%s]", o->ext);
	entry(p, left.p ? left.p : "", p->indent, o->help);
}

/* Lines that a shell takes as they stand, also where they are broken. */
static void example(const struct page *p, const char *text)
{
	dcp_auto_buf struct dcp_buf lines = DCP_BUF_INIT;
	bool fits = strlen(text) + 2 <= p->width;

	out_wrap(&lines, 2, 4, fits ? 0 : p->width - 2, text);
	dcp_buf_add(&lines, "", 1);
	if (dcp_buf_error(&lines))
		return;
	dcp_buf_str(p->b, "  ");
	for (const char *s = lines.p; *s; s++)
		dcp_buf_str(p->b, *s == '\n' ? " \\\n" : (char[]){ *s, '\0' });
	dcp_buf_str(p->b, "\n");
}

void help_verb(struct dcp_buf *b, unsigned width, const struct cmd *cmd)
{
	dcp_auto_buf struct dcp_buf usage = DCP_BUF_INIT;
	const struct page p = make_page(b, width);

	put_usage(&usage, cmd);
	dcp_buf_str(b, "usage: ");
	out_wrap(b, 7, 7, p.width, usage.p ? usage.p : "");
	dcp_buf_str(b, "\n\n");
	out_wrap(b, 0, 0, p.width, cmd->about ? cmd->about : cmd->what);
	dcp_buf_str(b, "\n\n");
	for (const struct opt *o = cmd->opts; o->name; o++)
		if (!o->hidden)
			option(&p, o);
	entry(&p, "  -h, --help", p.indent, "show this page");
	for (size_t i = 0; i < CMD_MAX_EXAMPLES && cmd->examples[i]; i++) {
		dcp_buf_str(b, i ? "" : "\nexamples:\n");
		example(&p, cmd->examples[i]);
	}
}

void help_program(struct dcp_buf *b, unsigned width, const struct cmd *const *table)
{
	const struct page p = make_page(b, width);

	entry(&p, "usage: dcpfs SOURCE MNT [-o OPTIONS]", p.width < PLAIN ? 8 : 41,
	      "mount checkpoints as tensor files");
	entry(&p, "       dcpfs VERB [OPTIONS] ...", p.width < PLAIN ? 8 : 41,
	      "\"dcpfs help VERB\" explains one");
	dcp_buf_str(b, "\n");
	for (; *table; table++) {
		char left[32];

		snprintf(left, sizeof(left), "  %-9s", (*table)->name);
		entry(&p, left, 12, (*table)->what);
	}
	dcp_buf_str(b, "\n");
	out_wrap(b, 0, 0, p.width,
		 "All take -h (--help), -q (--quiet: only errors, and what was asked for) and "
		 "--json-progress.");
	dcp_buf_str(b, "\n");
	out_wrap(b, 0, 0, p.width,
		 "SOURCE is a checkpoint directory, or a directory of checkpoints.");
	dcp_buf_str(b, "\nexamples:\n");
	entry(&p, "  dcpfs /data/run1 /mnt/run1", p.width < PLAIN ? 6 : 34,
	      "then look into /mnt/run1/latest/npy");
	entry(&p, "  dcpfs ls /data/run1 latest", p.width < PLAIN ? 6 : 34,
	      "what is in the newest checkpoint");
}

static void json_opt(struct dcp_jsonw *w, const struct opt *o)
{
	char letter[2] = { o->letter, '\0' };

	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "name", o->name);
	dcp_jsonw_put_str_or_null(w, "letter", o->letter ? letter : NULL);
	dcp_jsonw_put_str_or_null(w, "arg", o->arg);
	dcp_jsonw_put_str(w, "help", o->help);
	if (o->ext)
		dcp_jsonw_put_str(w, "file", o->ext);
	if (o->kind == OPT_REFUSE) {
		dcp_jsonw_put_bool(w, "refused", true);
	}
	if (o->choices) {
		dcp_jsonw_put_array(w, "choices");
		for (size_t i = 0; o->choices[i]; i++)
			dcp_jsonw_str(w, o->choices[i]);
		dcp_jsonw_end(w);
	}
}

static void json_opts(struct dcp_jsonw *w, const struct opt *opts)
{
	dcp_jsonw_array(w);
	for (const struct opt *o = opts; o->name; o++) {
		json_opt(w, o);
		if (o->sub) {
			dcp_jsonw_put_array(w, "list");
			for (const struct opt *s = o->sub; s->name; s++) {
				json_opt(w, s);
				dcp_jsonw_end(w);
			}
			dcp_jsonw_end(w);
		}
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
}

static void json_cmd(struct dcp_jsonw *w, const struct cmd *cmd)
{
	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "name", cmd->name);
	dcp_jsonw_put_str(w, "what", cmd->what);
	dcp_jsonw_put_array(w, "operands");
	for (const struct opt_operand *o = cmd->operands; o->name; o++) {
		dcp_jsonw_object(w);
		dcp_jsonw_put_str(w, "name", o->name);
		dcp_jsonw_put_bool(w, "optional", o->optional);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
	dcp_jsonw_key(w, "options");
	json_opts(w, cmd->opts);
	dcp_jsonw_put_array(w, "examples");
	for (size_t i = 0; i < CMD_MAX_EXAMPLES && cmd->examples[i]; i++)
		dcp_jsonw_str(w, cmd->examples[i]);
	dcp_jsonw_end(w);
	dcp_jsonw_end(w);
}

void help_json(struct dcp_jsonw *w, const struct cmd *const *table)
{
	dcp_jsonw_object(w);
	dcp_jsonw_put_array(w, "verbs");
	for (; *table; table++)
		json_cmd(w, *table);
	dcp_jsonw_end(w);
	dcp_jsonw_end(w);
}
