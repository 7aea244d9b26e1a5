/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/help.h"

#include <string.h>

#include "core/base/buf.h"
#include "core/base/jsonw.h"
#include "tools/cmd.h"
#include "tools/out.h"

#define HELP_WIDTH 80
#define HELP_INDENT 24 /* where the explanations start */

/* "dcpfs ls [OPTIONS] SOURCE [VERSION]" */
static void put_usage(struct dcp_buf *b, const struct cmd *cmd)
{
	dcp_buf_printf(b, "dcpfs %s", cmd->name);
	if (cmd->opts->name)
		dcp_buf_str(b, " [OPTIONS]");
	for (const struct opt_operand *o = cmd->operands; o->name; o++)
		dcp_buf_printf(b, o->optional ? " [%s]" : " %s", o->name);
}

/* "  left    text", the text wrapped and kept after HELP_INDENT. */
static void entry(struct dcp_buf *b, const char *left, const char *text)
{
	size_t col = strlen(left);

	dcp_buf_str(b, left);
	if (col + 1 > HELP_INDENT) {
		dcp_buf_str(b, "\n");
		col = 0;
	}
	dcp_buf_printf(b, "%*s", (int)(HELP_INDENT - col), "");
	out_wrap(b, HELP_INDENT, HELP_INDENT, HELP_WIDTH, text);
	dcp_buf_str(b, "\n");
}

static void option(struct dcp_buf *b, const struct opt *o)
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
	entry(b, left.p ? left.p : "", o->help);
}

void help_verb(struct dcp_buf *b, const struct cmd *cmd)
{
	dcp_buf_str(b, "usage: ");
	put_usage(b, cmd);
	dcp_buf_str(b, "\n\n");
	out_wrap(b, 0, 0, HELP_WIDTH, cmd->about ? cmd->about : cmd->what);
	dcp_buf_str(b, "\n\n");
	for (const struct opt *o = cmd->opts; o->name; o++)
		if (!o->hidden)
			option(b, o);
	entry(b, "  -h, --help", "show this page");
	for (size_t i = 0; i < CMD_MAX_EXAMPLES && cmd->examples[i]; i++)
		dcp_buf_printf(b, "%s  %s\n", i ? "" : "\nexamples:\n", cmd->examples[i]);
}

void help_program(struct dcp_buf *b, const struct cmd *const *table)
{
	dcp_buf_str(
		b,
		"usage: dcpfs SOURCE MNT [-o OPTIONS]    mount checkpoints as tensor files\n"
		"       dcpfs VERB [OPTIONS] ...         \"dcpfs help VERB\" explains one\n\n");
	for (; *table; table++)
		dcp_buf_printf(b, "  %-9s %s\n", (*table)->name, (*table)->what);
	dcp_buf_str(b, "\nSOURCE is a checkpoint directory, or a directory of checkpoints.\n"
		       "examples:\n"
		       "  dcpfs /data/run1 /mnt/run1      then look into /mnt/run1/latest/npy\n"
		       "  dcpfs ls /data/run1 latest      what is in the newest checkpoint\n");
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
