/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three shells, one idea: the verb is the first word that is no option, the tables say which
 * words may follow it. Verbs and options hold only letters, digits and dashes; help texts are
 * quoted for the shell that shows them.
 */
#include <string.h>

#include "core/base/buf.h"
#include "tools/cmd.h"
#include "tools/help.h"

/* @s inside single quotes; zsh's specs also want [ ] and : escaped. */
static void quoted(struct dcp_buf *b, const char *s, const char *escape)
{
	for (; *s; s++) {
		if (*s == '\'')
			dcp_buf_str(b, "'\\''");
		else if (strchr(escape, *s))
			dcp_buf_printf(b, "\\%c", *s);
		else
			dcp_buf_add(b, s, 1);
	}
}

/* Items of an -o list that a person may want to type: "ro allow_other uid= ..." */
static void list_words(struct dcp_buf *b, const struct opt *sub)
{
	const char *sep = "";

	for (; sub->name; sub++) {
		if (sub->kind == OPT_REFUSE || strchr(sub->name, '*'))
			continue;
		dcp_buf_printf(b, "%s%s%s", sep, sub->name, sub->arg ? "=" : "");
		sep = " ";
	}
}

static void choice_words(struct dcp_buf *b, const struct opt *o)
{
	for (size_t i = 0; o->choices[i]; i++)
		dcp_buf_printf(b, "%s%s", i ? " " : "", o->choices[i]);
}

static void verb_words(struct dcp_buf *b, const struct cmd *const *table)
{
	for (size_t i = 0; table[i]; i++)
		dcp_buf_printf(b, "%s%s", i ? " " : "", table[i]->name);
}

/* ---- bash ---- */

static void bash_value(struct dcp_buf *b, const struct opt *o)
{
	dcp_buf_str(b, "\t\t");
	if (o->letter)
		dcp_buf_printf(b, "-%c|", o->letter);
	dcp_buf_printf(b, "--%s) ", o->name);
	if (o->kind == OPT_CHOICE) {
		dcp_buf_str(b, "_dcpfs_words '");
		choice_words(b, o);
		dcp_buf_str(b, "'");
	} else if (o->kind == OPT_LIST) {
		dcp_buf_str(b, "_dcpfs_words '");
		list_words(b, o->sub);
		dcp_buf_str(b, "'");
	} else if (o->what == OPT_FILE || o->what == OPT_DIR) {
		dcp_buf_printf(b,
			       "compopt -o filenames; mapfile -t COMPREPLY < "
			       "<(compgen -%c -- \"$cur\")",
			       o->what == OPT_FILE ? 'f' : 'd');
	} else if (o->what == OPT_VERSION) {
		dcp_buf_str(b, "_dcpfs_names --versions");
	} else {
		dcp_buf_str(b, ":");
	}
	dcp_buf_str(b, "; return ;;\n");
}

static void bash_operand(struct dcp_buf *b, size_t at, const struct opt_operand *o)
{
	dcp_buf_printf(b, "\t\t%zu) ", at);
	switch (o->what) {
	case OPT_VERSION:
		dcp_buf_str(b, "_dcpfs_names --versions");
		break;
	case OPT_KEY:
		dcp_buf_str(b, "_dcpfs_names");
		break;
	case OPT_VERB:
		dcp_buf_str(b, "_dcpfs_words \"$verbs\"");
		break;
	case OPT_SOURCE:
	case OPT_DIR:
		dcp_buf_str(b, "compopt -o filenames; mapfile -t COMPREPLY < "
			       "<(compgen -d -- \"$cur\")");
		break;
	case OPT_FILE:
	case OPT_ANY:
		dcp_buf_str(b, "compopt -o filenames; mapfile -t COMPREPLY < "
			       "<(compgen -f -- \"$cur\")");
		break;
	}
	dcp_buf_str(b, " ;;\n");
}

static void bash_verb(struct dcp_buf *b, const struct cmd *cmd)
{
	size_t n = 0;
	bool values = false;

	dcp_buf_printf(b, "\t%s)\n", cmd->name);
	for (const struct opt *o = cmd->opts; o->name; o++)
		values |= o->arg != NULL;
	if (values) {
		dcp_buf_str(b, "\t\tcase $prev in\n");
		for (const struct opt *o = cmd->opts; o->name; o++)
			if (o->arg)
				bash_value(b, o);
		dcp_buf_str(b, "\t\tesac\n");
	}
	dcp_buf_str(b, "\t\tif [[ $cur == -* ]]; then _dcpfs_words '--help");
	for (const struct opt *o = cmd->opts; o->name; o++)
		dcp_buf_printf(b, " --%s", o->name);
	dcp_buf_str(b, "'; return; fi\n");
	if (cmd->operands->name) {
		dcp_buf_str(b, "\t\tcase $count in\n");
		for (const struct opt_operand *o = cmd->operands; o->name; o++)
			bash_operand(b, n++, o);
		dcp_buf_str(b, "\t\tesac\n");
	}
	dcp_buf_str(b, "\t\t;;\n");
}

/* What takes a value, so that the value is not counted as an operand. */
static void bash_takes_value(struct dcp_buf *b, const struct cmd *const *table)
{
	dcp_buf_str(b, "\t\t-o");
	for (; *table; table++)
		for (const struct opt *o = (*table)->opts; o->name; o++)
			if (o->arg)
				dcp_buf_printf(b, "|--%s", o->name);
	dcp_buf_str(b, ") ((i++)) ;;\n");
}

void complete_bash(struct dcp_buf *b, const struct cmd *const *table)
{
	dcp_buf_str(b,
		    "# bash completion for dcpfs; made by \"dcpfs help --completion bash\"\n"
		    "_dcpfs_words()\n"
		    "{\n"
		    "\tmapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$cur\")\n"
		    "}\n\n"
		    "# Names come from a checkpoint: matched and quoted, never expanded.\n"
		    "_dcpfs_names()\n"
		    "{\n"
		    "\tlocal name\n"
		    "\t[[ -n $source ]] || return\n"
		    "\twhile IFS= read -r name; do\n"
		    "\t\t[[ $name == \"$cur\"* ]] && COMPREPLY+=(\"$(printf %q \"$name\")\")\n"
		    "\tdone < <(dcpfs ls --names \"$@\" -- \"$source\" 2>/dev/null)\n"
		    "}\n\n"
		    "_dcpfs()\n"
		    "{\n"
		    "\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
		    "\tlocal verb= source= count=0 i\n"
		    "\tlocal verbs='");
	verb_words(b, table);
	dcp_buf_str(b, "'\n"
		       "\tCOMPREPLY=()\n"
		       "\tfor ((i = 1; i < COMP_CWORD; i++)); do\n"
		       "\t\tcase ${COMP_WORDS[i]} in\n");
	bash_takes_value(b, table);
	dcp_buf_str(b, "\t\t-*) ;;\n"
		       "\t\t*)\n"
		       "\t\t\tif [[ -z $verb ]]; then verb=${COMP_WORDS[i]}\n"
		       "\t\t\telse ((count++ == 0)) && source=${COMP_WORDS[i]}; fi ;;\n"
		       "\t\tesac\n"
		       "\tdone\n"
		       "\tcase $verb in\n"
		       "\t'')\n"
		       "\t\t_dcpfs_words \"$verbs --help --version\"\n"
		       "\t\tlocal dirs; mapfile -t dirs < <(compgen -d -- \"$cur\")\n"
		       "\t\tCOMPREPLY+=(\"${dirs[@]}\") ;;\n");
	for (size_t i = 0; table[i]; i++)
		bash_verb(b, table[i]);
	dcp_buf_str(b, "\t*)\n"
		       "\t\tcompopt -o filenames\n"
		       "\t\tmapfile -t COMPREPLY < <(compgen -d -- \"$cur\") ;;\n"
		       "\tesac\n"
		       "}\n"
		       "complete -F _dcpfs dcpfs\n");
}

/* ---- zsh ---- */

static void zsh_value(struct dcp_buf *b, const struct opt *o)
{
	dcp_buf_printf(b, ":%s:", o->arg);
	if (o->kind == OPT_CHOICE) {
		dcp_buf_str(b, "(");
		choice_words(b, o);
		dcp_buf_str(b, ")");
	} else if (o->kind == OPT_LIST) {
		dcp_buf_str(b, "_values -s , option ");
		for (const struct opt *s = o->sub; s->name; s++)
			if (s->kind != OPT_REFUSE && !strchr(s->name, '*'))
				dcp_buf_printf(b, "%s%s ", s->name, s->arg ? "\\:value" : "");
	} else if (o->what == OPT_FILE) {
		dcp_buf_str(b, "_files");
	} else if (o->what == OPT_DIR) {
		dcp_buf_str(b, "_files -/");
	} else if (o->what == OPT_VERSION) {
		dcp_buf_str(b, "_dcpfs_versions");
	} else {
		dcp_buf_str(b, " ");
	}
}

static void zsh_option(struct dcp_buf *b, const struct opt *o)
{
	if (o->letter) {
		dcp_buf_printf(b, "\t\t\t'*-%c%s[", o->letter, o->arg ? "+" : "");
		quoted(b, o->help, "[]:\\");
		dcp_buf_str(b, "]");
		if (o->arg)
			zsh_value(b, o);
		dcp_buf_str(b, "' \\\n");
	}
	dcp_buf_printf(b, "\t\t\t'*--%s%s[", o->name, o->arg ? "=" : "");
	quoted(b, o->help, "[]:\\");
	dcp_buf_str(b, "]");
	if (o->arg)
		zsh_value(b, o);
	dcp_buf_str(b, "' \\\n");
}

static void zsh_operand(struct dcp_buf *b, size_t at, const struct opt_operand *o)
{
	static const char *const action[] = {
		[OPT_ANY] = "_files",        [OPT_FILE] = "_files",
		[OPT_DIR] = "_files -/",     [OPT_SOURCE] = "_files -/",
		[OPT_KEY] = "_dcpfs_keys",   [OPT_VERSION] = "_dcpfs_versions",
		[OPT_VERB] = "_dcpfs_verbs",
	};

	dcp_buf_printf(b, "\t\t\t'%zu:%s%s:%s' \\\n", at, o->optional ? ":" : "", o->name,
		       action[o->what]);
}

void complete_zsh(struct dcp_buf *b, const struct cmd *const *table)
{
	dcp_buf_str(b, "#compdef dcpfs\n"
		       "# zsh completion for dcpfs; made by \"dcpfs help --completion zsh\"\n\n"
		       "_dcpfs_versions()\n"
		       "{\n"
		       "\tlocal -a names\n"
		       "\tnames=(${(f)\"$(dcpfs ls --names --versions -- ${(Q)line[1]} "
		       "2>/dev/null)\"})\n"
		       "\tcompadd -a names\n"
		       "}\n\n"
		       "_dcpfs_keys()\n"
		       "{\n"
		       "\tlocal -a names\n"
		       "\tnames=(${(f)\"$(dcpfs ls --names -- ${(Q)line[1]} 2>/dev/null)\"})\n"
		       "\tcompadd -a names\n"
		       "}\n\n"
		       "_dcpfs_verbs()\n"
		       "{\n"
		       "\tlocal -a verbs\n"
		       "\tverbs=(\n");
	for (size_t i = 0; table[i]; i++) {
		dcp_buf_printf(b, "\t\t'%s:", table[i]->name);
		quoted(b, table[i]->what, ":\\");
		dcp_buf_str(b, "'\n");
	}
	dcp_buf_str(b, "\t)\n"
		       "\t_describe -t verbs verb verbs\n"
		       "}\n\n"
		       "_dcpfs()\n"
		       "{\n"
		       "\tlocal curcontext=$curcontext state\n"
		       "\tlocal -a line\n"
		       "\tif ((CURRENT == 2)); then\n"
		       "\t\t_dcpfs_verbs\n"
		       "\t\t_files -/\n"
		       "\t\treturn\n"
		       "\tfi\n"
		       "\tlocal verb=$words[2]\n"
		       "\tshift words\n"
		       "\t((CURRENT--))\n"
		       "\tcase $verb in\n");
	for (size_t i = 0; table[i]; i++) {
		size_t at = 1;

		dcp_buf_printf(b, "\t%s)\n\t\t_arguments -s -S \\\n", table[i]->name);
		for (const struct opt *o = table[i]->opts; o->name; o++)
			zsh_option(b, o);
		for (const struct opt_operand *o = table[i]->operands; o->name; o++)
			zsh_operand(b, at++, o);
		dcp_buf_str(b, "\t\t\t'(- *)'{-h,--help}'[show help]' ;;\n");
	}
	dcp_buf_str(b, "\t*) _files -/ ;;\n"
		       "\tesac\n"
		       "}\n\n"
		       "if [[ $funcstack[1] == _dcpfs ]]; then\n"
		       "\t_dcpfs \"$@\"\n"
		       "else\n"
		       "\tcompdef _dcpfs dcpfs\n"
		       "fi\n");
}

/* ---- fish ---- */

static void fish_option(struct dcp_buf *b, const struct cmd *cmd, const struct opt *o)
{
	dcp_buf_printf(b, "complete -c dcpfs -n '__fish_seen_subcommand_from %s'", cmd->name);
	if (o->letter)
		dcp_buf_printf(b, " -s %c", o->letter);
	dcp_buf_printf(b, " -l %s", o->name);
	if (o->arg && (o->what == OPT_FILE || o->what == OPT_DIR)) {
		dcp_buf_str(b, " -r -F");
	} else if (o->arg) {
		dcp_buf_str(b, " -x");
		if (o->kind == OPT_CHOICE || o->kind == OPT_LIST) {
			dcp_buf_str(b, " -a '");
			if (o->kind == OPT_CHOICE)
				choice_words(b, o);
			else
				list_words(b, o->sub);
			dcp_buf_str(b, "'");
		} else if (o->what == OPT_VERSION) {
			dcp_buf_str(b, " -a '(__dcpfs_names --versions)'");
		}
	}
	dcp_buf_str(b, " -d \"");
	for (const char *s = o->help; *s; s++)
		dcp_buf_printf(b, strchr("\"$\\", *s) ? "\\%c" : "%c", *s);
	dcp_buf_str(b, "\"\n");
}

void complete_fish(struct dcp_buf *b, const struct cmd *const *table)
{
	dcp_buf_str(b, "# fish completion for dcpfs; made by \"dcpfs help --completion fish\"\n"
		       "function __dcpfs_names\n"
		       "    set -l words (commandline -opc | string match -v -- '-*')\n"
		       "    test (count $words) -ge 3; and "
		       "dcpfs ls --names $argv -- $words[3] 2>/dev/null\n"
		       "end\n"
		       "complete -c dcpfs -n __fish_use_subcommand -l help -d 'show help'\n"
		       "complete -c dcpfs -n __fish_use_subcommand -l version "
		       "-d 'show versions'\n");
	for (size_t i = 0; table[i]; i++) {
		const struct cmd *cmd = table[i];

		dcp_buf_printf(b, "complete -c dcpfs -n __fish_use_subcommand -a %s -d '",
			       cmd->name);
		quoted(b, cmd->what, "");
		dcp_buf_str(b, "'\n");
		for (const struct opt *o = cmd->opts; o->name; o++)
			fish_option(b, cmd, o);
		for (const struct opt_operand *o = cmd->operands; o->name; o++) {
			if (o->what == OPT_KEY || o->what == OPT_VERSION)
				dcp_buf_printf(
					b,
					"complete -c dcpfs -n '__fish_seen_subcommand_from"
					" %s' -a '(__dcpfs_names%s)'\n",
					cmd->name, o->what == OPT_VERSION ? " --versions" : "");
			if (o->what == OPT_VERB) {
				dcp_buf_printf(
					b,
					"complete -c dcpfs -n '__fish_seen_subcommand_from"
					" %s' -f -a '",
					cmd->name);
				verb_words(b, table);
				dcp_buf_str(b, "'\n");
			}
		}
	}
}
