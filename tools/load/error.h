/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error: describes failures in the caller's struct dcpload_error. Below: the directories of a user
 * (caches, layouts, secrets).
 *
 * As with core/base/err, the function that detects an error describes it, and its callers pass the
 * code on. @err may be NULL in all of these functions; they return @code.
 */
#pragma once
#include <stdbool.h>

#include "tools/load/dcpload.h"

struct dcp_err;

/* "key: found X" on one line of printable text; the failure is the caller's own (rank -1). */
int load_fail(struct dcpload_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* The same with the text of @from, an error of core, or with the text of the errno if @from is NULL
 * or empty. @code >= 0: does nothing. */
int load_fail_err(struct dcpload_error *err, int code, const struct dcp_err *from);

/* Describe by its errno a failure that has no text yet. @code >= 0: does nothing. */
int load_say(struct dcpload_error *err, int code);

/* Does @code mean that another rank died or does not answer? */
bool load_is_lost(int code);
/* Append to the text of such a failure what the ranks were @doing. */
int load_while(struct dcpload_error *err, int code, const char *doing);

/* Does the text of @err begin with the rank that failed? */
bool load_names_rank(const struct dcpload_error *err);

/*
 * cache: the directory of indexes.
 *
 * $DCPFS_CACHE, else $XDG_CACHE_HOME/dcpfs, else ~/.cache/dcpfs, else none. ~ is $HOME, or if $HOME
 * cannot be written, the home directory of the password database (for a mount by fstab, mount(8)
 * sets $HOME to that of root).
 */

/*
 * The path of the directory, which the caller frees; NULL: there is none, and indexes stay in
 * memory. Relative paths in XDG_CACHE_HOME are ignored, as its specification asks. DCPFS_CACHE set
 * but empty means no directory. Nothing is created.
 */
char *load_cache_dir(void);

/*
 * Where the user keeps layouts (*.dcpl) and the secret of jobs: $XDG_CONFIG_HOME/dcpfs or
 * ~/.config/dcpfs, where ~ is as above, but a $HOME that this user owns is used even if it cannot
 * be written. The caller frees the path; NULL: there is none. The directory need not exist.
 */
char *load_config_dir(void);

/* Make @dir and its parents (0700). 0 or a negative errno. */
int load_cache_make(const char *dir);

/* servers: configures requests to the servers of remote sources. */

/* Give core access to the environment and to the user's profiles and tokens. May be called any
 * number of times, by any thread. */
void load_servers(void);
