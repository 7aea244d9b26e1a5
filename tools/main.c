/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program dcpfs: find the verb, read its options, run it.
 *
 * "dcpfs SOURCE MNT -o ..." without a verb mounts: that is also how mount(8) calls it for
 * the type fuse.dcpfs. A directory that is called like a verb is written ./ls.
 */
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "tools/cmd.h"
#include "tools/load/error.h"
#include "tools/out.h"
#include "tools/pick.h"

static enum cmd_exit show_page(const struct cmd *cmd)
{
	struct out o;

	out_init(&o, OUT_TEXT);
	if (cmd)
		help_verb(&o.buf, o.width, cmd);
	else
		help_program(&o.buf, o.width, cmd_table);
	return out_flush(&o);
}

static enum cmd_exit run_verb(const struct cmd *cmd, int argc, char **argv)
{
	dcp_auto_free void *opts = calloc(1, cmd->size);
	struct opt_args args;
	struct dcp_err err = { 0 };

	if (!opts)
		return cmd_fail(CMD_ENV, "out of memory");
	if (opt_parse(cmd->opts, cmd->operands, argc, argv, opts, &args, &err) < 0)
		return cmd_fail(CMD_USAGE, "%s: %s (see: dcpfs %s --help)", cmd->name, err.msg,
				cmd->name);
	if (args.help)
		return show_page(cmd);
	progress_as_json(args.json_progress);
	if (args.quiet)
		cmd_be_quiet(cmd->reports);
	for (size_t i = 0; i < OPT_MAX_OPERANDS && cmd->operands[i].name; i++)
		if (cmd->operands[i].what == OPT_SOURCE && args.operand[i] &&
		    pick_path(args.operand[i]) != CMD_OK)
			return CMD_USAGE;
	return cmd->run(opts, &args);
}

/* A word that is not a verb is a typing error, or a SOURCE, which with @wait need not exist yet.
 * CMD_OK: mount it. */
static enum cmd_exit fail_unknown_verb(const char *word, bool alone, bool wait)
{
	const char *nearest = NULL;
	bool absent = !strchr(word, '/') && access(word, F_OK) < 0;

	if (word[0] == '-')
		return CMD_OK;
	if (absent || (alone && !strchr(word, '/')))
		nearest = cmd_nearest(word);
	if (nearest)
		return cmd_fail(CMD_USAGE,
				"no verb \"%s\"; nearest is \"%s\" (see: dcpfs help)", word,
				nearest);
	if (alone)
		return cmd_fail(
			CMD_USAGE,
			"\"%s\" is not a verb; to mount it, say where: dcpfs SOURCE MNT "
			"(see: dcpfs help)",
			word);
	if (absent && !wait)
		return cmd_fail(CMD_ENV,
				"\"%s\" is neither a verb (see: dcpfs help) nor a file or "
				"directory here; --wait mounts it empty until it is there",
				word);
	return CMD_OK;
}

/* A daemon or a cat started with stdin, stdout or stderr closed must not get a file of the
 * checkpoint as its descriptor 1 or 2. */
static void fill_descriptors(void)
{
	int fd;

	do {
		fd = open("/dev/null", O_RDWR);
	} while (fd >= 0 && fd <= 2);
	if (fd > 2)
		close(fd);
}

/* The verb that a link to the program is named after: "dcpload" is load. */
static const struct cmd *cmd_called(const char *program)
{
	const char *slash = program ? strrchr(program, '/') : NULL;
	const char *name = slash ? slash + 1 : program;
	const struct cmd *cmd = name ? cmd_by_name(name) : NULL;

	return cmd && strcmp(cmd->name, name) != 0 ? cmd : NULL;
}

int main(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : NULL;
	const struct cmd *cmd = cmd_called(argv[0]);
	enum cmd_exit code;
	bool wait = false;

	fill_descriptors();
	load_servers();
	setlocale(LC_CTYPE, "");
	signal(SIGPIPE, SIG_IGN); /* write() returns EPIPE instead, which out.c ignores */
	signal(SIGXFSZ, SIG_IGN); /* and EFBIG at the limit of ulimit -f */
	if (cmd)
		return (int)run_verb(cmd, argc - 1, argv + 1);
	if (!word) {
		cmd_fail(CMD_USAGE,
			 "nothing to do: dcpfs SOURCE MNT mounts, dcpfs help explains");
		return CMD_USAGE;
	}
	if (strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0)
		return (int)show_page(NULL);
	if (strcmp(word, "-V") == 0 || strcmp(word, "--version") == 0)
		return (int)run_verb(&cmd_version, argc - 2, argv + 2);
	if (strcmp(word, "__complete") == 0)
		return (int)complete_words(argc - 2, argv + 2);
	cmd = cmd_by_name(word);
	if (cmd)
		return (int)run_verb(cmd, argc - 2, argv + 2);
	for (int i = 2; i < argc; i++)
		wait |= strcmp(argv[i], "--wait") == 0;
	code = fail_unknown_verb(word, argc == 2, wait);
	if (code != CMD_OK)
		return (int)code;
	return (int)run_verb(&cmd_mount, argc - 1, argv + 1);
}

/* A verb is one file and one row here; the order is that of the help page. */
const struct cmd *const cmd_table[] = {
	&cmd_mount, &cmd_umount, &cmd_status, &cmd_index,  &cmd_ls,      &cmd_tree, &cmd_browse,
	&cmd_show,  &cmd_cat,    &cmd_stats,  &cmd_diff,   &cmd_verify,  &cmd_find, &cmd_du,
	&cmd_scan,  &cmd_bisect, &cmd_report, &cmd_plan,   &cmd_load,    &cmd_warm, &cmd_export,
	&cmd_save,  &cmd_rules,  &cmd_cache,  &cmd_doctor, &cmd_version, &cmd_help, NULL,
};

const struct cmd *cmd_by_name(const char *name)
{
	for (size_t i = 0; cmd_table[i]; i++)
		if (strcmp(cmd_table[i]->name, name) == 0 ||
		    (cmd_table[i]->also && strcmp(cmd_table[i]->also, name) == 0))
			return cmd_table[i];
	return NULL;
}

const char *cmd_nearest(const char *word)
{
	const char *nearest = NULL;
	struct dcp_near near = dcp_near_to(word);

	near.best = DCP_MIN(near.best, (size_t)3);
	for (size_t i = 0; cmd_table[i]; i++)
		if (dcp_near_take(&near, cmd_table[i]->name))
			nearest = cmd_table[i]->name;
	return nearest;
}
