/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error: what went wrong, in the caller's struct dcpload_error; and, below, the directories of a
 * user: caches, layouts, secrets.
 *
 * As with core/base/err, the first function that knows what is wrong describes it, and its callers
 * pass the code on. @err may be NULL in all of these; they return @code.
 */
#pragma once
#include <stdbool.h>

#include "tools/load/dcpload.h"

struct dcp_err;

/* "key: found X" on one line of printable text; the failure is the caller's own (rank -1). */
int load_fail(struct dcpload_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* The same with the text of core's @from, or of errno when that is NULL or empty. @code >= 0: does
 * nothing. */
int load_fail_err(struct dcpload_error *err, int code, const struct dcp_err *from);

/* Describe by its errno a failure that has no text yet. @code >= 0: does nothing. */
int load_say(struct dcpload_error *err, int code);

/* Is @code that of another rank, which died or does not answer? */
bool load_is_lost(int code);
/* Add to the text of such a failure what ranks were @doing. */
int load_while(struct dcpload_error *err, int code, const char *doing);

/* Does its text begin with the rank that failed? */
bool load_names_rank(const struct dcpload_error *err);

/*
 * cache: the directory of indexes.
 *
 * $DCPFS_CACHE, else $XDG_CACHE_HOME/dcpfs, else ~/.cache/dcpfs, else none. ~ is $HOME, or where
 * that cannot be written (mount(8) has it name root's for a mount by fstab), what the password
 * database says.
 */

/*
 * The directory's path, to be freed; NULL: nowhere, indexes stay in memory. Relative paths
 * in XDG_CACHE_HOME are ignored, as its specification asks. DCPFS_CACHE set but empty means
 * nowhere. Nothing is created.
 */
char *load_cache_dir(void);

/*
 * Where the user keeps layouts (*.dcpl) and the secret of jobs: $XDG_CONFIG_HOME/dcpfs or
 * ~/.config/dcpfs, where ~ is as above, and a $HOME of this user's is taken also when it cannot be
 * written. The caller frees it; NULL: nowhere. It need not exist.
 */
char *load_config_dir(void);

/* Make @dir and its parents (0700). 0 or a negative errno. */
int load_cache_make(const char *dir);

/*
 * servers: how this process speaks to the servers that its sources are on.
 */

/*
 * Have core know the environment, and where the user's profiles and tokens lie. Any number of
 * times, any thread.
 */
void load_servers(void);
