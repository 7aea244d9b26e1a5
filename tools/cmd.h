/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd: a verb of the program, and its exit codes.
 *
 * A verb is one file verbs/<verb>.c with one constant struct cmd, and one row of the table in
 * main.c. Parsing and --help happen before run() is called.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "core/base/base.h"
#include "core/checkpoint/mounts.h"
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
	const char *about; /* a longer description, wrapped by help; NULL: @what */
	const struct opt_operand *operands;
	const struct opt *opts;
	bool reports; /* its text only reports success or failure: --quiet drops it */
	size_t size;  /* of the struct the options are parsed into, zeroed before; at least 1 */
	enum cmd_exit (*run)(const void *opts, const struct opt_args *args);
	const char *examples[CMD_MAX_EXAMPLES];
};

/* The commit that the program was built from, with a + if files differed from it; "": not known. */
extern const char cmd_commit[];

/* The table in main.c; NULL at the end. */
extern const struct cmd *const cmd_table[];

/* The verb of that name, or of the program of that name; NULL: none. */
const struct cmd *cmd_by_name(const char *name);
/* The verb that @word may have been meant to be; NULL: none is near. */
const char *cmd_nearest(const char *word);

/* From now on warnings, hints and progress are not printed; with @report, a verb's report
 * neither. */
void cmd_be_quiet(bool report);
bool cmd_is_quiet(void);
bool cmd_hides_report(void);

/* "dcpfs: ..." on stderr, one line; fail returns @code. Hints follow with cmd_hint(), indented. In
 * the journal each line begins with its level: "<3>", "<4>", "<6>". */
enum cmd_exit cmd_fail(enum cmd_exit code, const char *fmt, ...) DCP_PRINTF(2, 3);
void cmd_warn(const char *fmt, ...) DCP_PRINTF(1, 2);
void cmd_hint(const char *fmt, ...) DCP_PRINTF(1, 2);
/* From now on messages go to @log, without "dcpfs: "; NULL: to stderr again. */
void cmd_say_to(const struct dcp_log *log);

/*
 * For verbs whose next run continues from @part: SIGINT and SIGTERM print that @part is left, and
 * @then, before they end the program. If @part does not exist, they print with @leads that nothing
 * is left. NULL: they print no line any more.
 */
void cmd_on_stop(const char *verb, const char *part, const char *then, bool leads);

/* The same for verbs that clean up first. The result points to the number of the first signal (0:
 * none), by which cmd_stop() then ends the program. A second signal ends it at once. */
const volatile int *cmd_on_stop_undo(const char *verb);
void cmd_stop(void);

/* The exit code for the return code of a function of core. */
enum cmd_exit cmd_exit_of(int rc);

/* load_cache_dir(), created with its parents. On a failure it prints why and returns NULL. */
char *cmd_open_cache(void);

/* Warnings of core, as "dcpfs: ..." lines. */
extern const struct dcp_log cmd_log;

extern const struct cmd cmd_bisect, cmd_browse, cmd_cache, cmd_cat, cmd_diff, cmd_doctor,
	cmd_du, cmd_export, cmd_find, cmd_help, cmd_index, cmd_load, cmd_ls, cmd_mount,
	cmd_plan, cmd_report, cmd_rules, cmd_save, cmd_scan, cmd_show, cmd_stats, cmd_status,
	cmd_tree, cmd_umount, cmd_verify, cmd_version, cmd_warm;

/* resolve: make a path of the command line absolute without touching the file. */

/* @path made absolute without touching its last component: a dead mount cannot be looked at, and
 * must be found by name. To be freed; NULL with errno set. */
char *cmd_resolve(const char *path);

/* Find the mount of dcpfs at @given, which may be dead; @given may be a link. *path is the mount
 * point, to be freed, and *m the kernel's entry. Prints why if there is no mount. */
enum cmd_exit cmd_find_mount(const char *given, char **path, struct dcp_mount *m);

/* Is @path @dir or below it? Both absolute and resolved. */
bool cmd_is_within(const char *path, const char *dir);

/* notify: tell the service manager (systemd) about a mount in the foreground. */

/* Tell the manager that the mount at @mnt answers: a datagram to the socket that NOTIFY_SOCKET
 * names. Without that variable nothing happens. */
void notify_ready(const char *mnt);

/* Is standard error a stream of the journal, where a line may begin with its level: "<4>"? */
bool notify_is_journal(void);

/* help: the tables of verbs and options, for people and for shells. */

struct dcp_buf;
struct dcp_jsonw;

/* Lines of pages have at most @width columns, but always room for 40; 0: 80. */

/* The page of the whole program; @table ends with NULL. */
void help_program(struct dcp_buf *b, unsigned width, const struct cmd *const *table);

/* The page of one verb: usage, what it does, options, examples last. */
void help_verb(struct dcp_buf *b, unsigned width, const struct cmd *cmd);

/* All tables as JSON; the tests of the man page read it. */
void help_json(struct dcp_jsonw *w, const struct cmd *const *table);

/*
 * Completion: the scripts for bash, zsh and fish (completion/). They run "dcpfs __complete
 * WORDS..." with the words after "dcpfs" up to the cursor. It prints a line for each candidate for
 * the last word, with a tab and a short description where there is one. For bash a candidate is
 * shorter: readline also splits words at = and :, and replaces only the part after them.
 */
extern const char *const complete_script[];
enum cmd_exit complete_words(int argc, char **argv);
