/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd: one verb of the program, and the ways in which it may end.
 *
 * A verb is one file verbs/<verb>.c with one constant struct cmd, and one row of the table in
 * verbs/verbs.c. Parsing and --help happen before run() is called.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "core/base/base.h"
#include "tools/opt.h"

struct dcp_log;

enum cmd_exit {
	CMD_OK,    /* 0 */
	CMD_NO,    /* 1: the answer is no: no such key, this machine cannot mount */
	CMD_USAGE, /* 2: the command line is wrong */
	CMD_ENV,   /* 3: the environment: cannot open, cannot mount, no permission, disk full */
	CMD_BAD,   /* 4: damaged or refused input */
};

#define CMD_MAX_EXAMPLES 3

struct cmd {
	const char *name;
	const char *also;  /* a program that is this verb, "dcpload"; or NULL */
	const char *what;  /* one line for the list of verbs */
	const char *about; /* what it does, which help wraps; NULL: what says it all */
	const struct opt_operand *operands;
	const struct opt *opts;
	bool reports; /* its text says how it went: with --quiet, the exit code alone does */
	size_t size;  /* of the struct the options are parsed into, zeroed before; at least 1 */
	enum cmd_exit (*run)(const void *opts, const struct opt_args *args);
	const char *examples[CMD_MAX_EXAMPLES];
};

/* The commit that the program was built from, with a + if files differed from it; "": not known. */
extern const char cmd_commit[];

/* The table in verbs/verbs.c; NULL at the end. */
extern const struct cmd *const cmd_table[];

/* The verb called so, or that the program called so is; NULL: none. */
const struct cmd *cmd_by_name(const char *name);
/* The verb that @word may have been meant to be; NULL: none is near. */
const char *cmd_nearest(const char *word);

/*
 * From now on warnings, hints and progress are not printed, and with @report not what a verb says
 * of how it went.
 */
void cmd_be_quiet(bool report);
bool cmd_is_quiet(void);
bool cmd_hides_report(void);

/* "dcpfs: ..." on stderr, one line; fail returns @code. Hints follow with cmd_hint(), indented. */
enum cmd_exit cmd_fail(enum cmd_exit code, const char *fmt, ...) DCP_PRINTF(2, 3);
void cmd_warn(const char *fmt, ...) DCP_PRINTF(1, 2);
void cmd_hint(const char *fmt, ...) DCP_PRINTF(1, 2);

/*
 * SIGINT and SIGTERM still end the program, but print a line first: that @part is left, and
 * @then; or, if @part does not exist and @leads is set, that nothing is left. A verb that calls
 * this keeps what was written so that the next run finds it. NULL: no line from now on.
 */
void cmd_on_stop(const char *verb, const char *part, const char *then, bool leads);

/*
 * The same for what has to be undone first: the number of the first such signal is stored in what
 * is returned, and cmd_stop() ends the program by it, if there was one. A second one ends it at
 * once.
 */
const volatile int *cmd_on_stop_undo(const char *verb);
void cmd_stop(void);

/* The exit code that fits what a function of core returned. */
enum cmd_exit cmd_exit_of(int rc);

/* load_cache_dir(), created with its parents. On a failure it prints why and returns NULL. */
char *cmd_open_cache(void);

/* Warnings of core, as "dcpfs: ..." lines. */
extern const struct dcp_log cmd_log;

extern const struct cmd cmd_bisect, cmd_browse, cmd_cache, cmd_cat, cmd_diff, cmd_doctor,
	cmd_du, cmd_export, cmd_find, cmd_help, cmd_index, cmd_load, cmd_ls, cmd_mount,
	cmd_plan, cmd_report, cmd_rules, cmd_save, cmd_scan, cmd_show, cmd_stats, cmd_status,
	cmd_tree, cmd_umount, cmd_verify, cmd_version, cmd_warm;
