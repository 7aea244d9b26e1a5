/* SPDX-License-Identifier: Apache-2.0 */
/*
 * help: the tables of verbs and options, told to people and to shells.
 */
#pragma once

struct cmd;
struct dcp_buf;
struct dcp_jsonw;

/* The page of the whole program; @table ends with NULL. */
void help_program(struct dcp_buf *b, const struct cmd *const *table);

/* The page of one verb: usage, what it does, options, examples last. */
void help_verb(struct dcp_buf *b, const struct cmd *cmd);

/* "dcpfs ls [OPTIONS] SOURCE [VERSION]" */
void help_usage(struct dcp_buf *b, const struct cmd *cmd);

/* Everything in the tables, for programs: what the tests of the man page read. */
void help_json(struct dcp_jsonw *w, const struct cmd *const *table);

/*
 * Completion scripts. Names of versions and keys come from running "dcpfs ls --names" when
 * they are asked for; they are foreign text and never evaluated by the shell.
 */
void complete_bash(struct dcp_buf *b, const struct cmd *const *table);
void complete_zsh(struct dcp_buf *b, const struct cmd *const *table);
void complete_fish(struct dcp_buf *b, const struct cmd *const *table);
