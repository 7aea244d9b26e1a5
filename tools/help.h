/* SPDX-License-Identifier: Apache-2.0 */
/*
 * help: the tables of verbs and options, for people and for shells.
 */
#pragma once

#include "tools/cmd.h"

struct dcp_buf;
struct dcp_jsonw;

/* Pages fit @width columns, if these are 40 at least; 0: 80. */

/* The page of the whole program; @table ends with NULL. */
void help_program(struct dcp_buf *b, unsigned width, const struct cmd *const *table);

/* The page of one verb: usage, what it does, options, examples last. */
void help_verb(struct dcp_buf *b, unsigned width, const struct cmd *cmd);

/* Everything in the tables, for programs: what the tests of the man page read. */
void help_json(struct dcp_jsonw *w, const struct cmd *const *table);

/*
 * Completion: the scripts for bash, zsh and fish (completion/), and what they ask with
 * "dcpfs __complete WORDS...", the words after "dcpfs" up to the cursor: a line for everything that
 * may stand there instead of the last one, with a tab and a few words about it where there is
 * something to say. That of bash gives less: readline also parts words at = and :, and replaces
 * only what is after them.
 */
extern const char *const complete_script[];
enum cmd_exit complete_words(int argc, char **argv);
