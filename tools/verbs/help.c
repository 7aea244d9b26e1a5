/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "tools/cmd.h"
#include "tools/out.h"

struct help_opts {
	bool json;
	int shell;
};

/* In the order of complete_script. */
static const char *const shells[] = { "bash", "zsh", "fish", NULL };
enum { SHELL_NONE = DCP_LEN(shells) - 1 };

static const struct opt opts[] = { { 0, "completion", "SHELL",
				     "print the completion script for bash, zsh or fish",
				     OPT_CHOICE, .off = offsetof(struct help_opts, shell),
				     .choices = shells, .def = SHELL_NONE },
				   { 0, "json", NULL, "print every verb and option as JSON",
				     OPT_FLAG, .off = offsetof(struct help_opts, json) },
				   OPT_END };

static const struct opt_operand operands[] = { { "VERB", true, OPT_VERB }, { 0 } };

static enum cmd_exit run_help(const void *p, const struct opt_args *args)
{
	const struct help_opts *h = p;
	const struct cmd *cmd = NULL;
	struct out o;

	if (args->operand[0]) {
		cmd = cmd_by_name(args->operand[0]);
		if (!cmd) {
			const char *near = cmd_nearest(args->operand[0]);

			return cmd_fail(CMD_USAGE, "help: no verb \"%s\"%s%s (see: dcpfs help)",
					args->operand[0], near ? "; nearest is " : "",
					near ? near : "");
		}
	}
	out_init(&o, OUT_TEXT);
	if (h->json)
		help_json(&o.json, cmd_table);
	else if (h->shell != SHELL_NONE)
		dcp_buf_str(&o.buf, complete_script[h->shell]);
	else if (cmd)
		help_verb(&o.buf, o.width, cmd);
	else
		help_program(&o.buf, o.width, cmd_table);
	return out_flush(&o);
}

const struct cmd cmd_help = {
	.name = "help",
	.what = "explain a verb",
	.about = "Explain a verb, or list them all. The whole manual: man dcpfs",
	.operands = operands,
	.opts = opts,
	.size = sizeof(struct help_opts),
	.run = run_help,
	.examples = { "dcpfs help ls", "source <(dcpfs help --completion bash)" },
};
