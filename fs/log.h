/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log: the last lines that a mount logged, for .dcpfs/log. Every line also goes to the program,
 * which writes it to the terminal, to a file or to syslog. Safe from any thread.
 */
#pragma once
#include "core/base/err.h"

struct dcp_buf;
struct dcpfs_log;

#define DCPFS_LOG_LINES 256 /* kept */

/* @next (may be NULL) also gets every line, and must outlive the log. NULL: out of memory. */
struct dcpfs_log *dcpfs_log_create(const struct dcp_log *next);
void dcpfs_log_destroy(struct dcpfs_log *l);

/* What to hand to dcp_log(); lives as long as @l. */
const struct dcp_log *dcpfs_log_sink(const struct dcpfs_log *l);

/* Append the lines, oldest first: "2026-11-28T15:24:40Z TEXT". */
void dcpfs_log_text(struct dcpfs_log *l, struct dcp_buf *b);
