/* SPDX-License-Identifier: Apache-2.0 */
/*
 * errors: failures of versions and keys, for .dcpfs/errors.json. One entry for each (version,
 * key), with a count; bounded. An entry is removed when its version leaves the list, or when
 * the key is read successfully. Safe from any thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"

struct dcp_jsonw;
struct dcp_log;
struct dcpfs_errors;

#define DCPFS_ERRORS_MAX 10000  /* limit of entries; further failures are only counted */
#define DCPFS_ERRORS_LOGGED 100 /* with more entries than this, keys are not logged */

/* @log gets the message of each key when it fails for the first time. */
struct dcpfs_errors *dcpfs_errors_create(const struct dcp_log *log);
void dcpfs_errors_destroy(struct dcpfs_errors *e);

/* The place in a file where reading failed. */
struct dcpfs_fault {
	uint64_t ino, off;
};
#define DCPFS_NO_OFFSET UINT64_MAX /* no place: the file could not be opened */

/* Count a failure. @key NULL: the version as a whole failed; @version "": the source failed. @at
 * may be NULL. The latest message and place are kept. */
void dcpfs_errors_add(struct dcpfs_errors *e, const char *version, const char *key,
		      const struct dcpfs_fault *at, const char *message);

/* Number of entries. Takes no lock. */
size_t dcpfs_errors_count(const struct dcpfs_errors *e);

/* Did @key fail? If so, @at (may be NULL) is set to the place. */
bool dcpfs_errors_find(struct dcpfs_errors *e, const char *version, const char *key,
		       struct dcpfs_fault *at);
/* Remove the entry of @key, which was read successfully; NULL: all entries of @version, which left
 * the list. */
void dcpfs_errors_forget(struct dcpfs_errors *e, const char *version, const char *key);

/* Append {"version", "key", "error", "count"} objects to an open array. */
void dcpfs_errors_write(struct dcpfs_errors *e, struct dcp_jsonw *w);

/* log: the last lines that a mount logged, for .dcpfs/log. Every line also goes to the program,
 * which writes it to the terminal, to a file or to syslog. Safe from any thread. */

struct dcp_buf;
struct dcpfs_log;

#define DCPFS_LOG_LINES 256 /* kept */

/* @next (may be NULL) also gets every line, and must outlive the log. NULL: out of memory. */
struct dcpfs_log *dcpfs_log_create(const struct dcp_log *next);
void dcpfs_log_destroy(struct dcpfs_log *l);

/* The argument for dcp_log(); lives as long as @l. */
const struct dcp_log *dcpfs_log_sink(const struct dcpfs_log *l);

/* Append the lines, oldest first: "2026-11-28T15:24:40Z TEXT". */
void dcpfs_log_text(struct dcpfs_log *l, struct dcp_buf *b);
