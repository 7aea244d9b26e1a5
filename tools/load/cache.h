/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache: the directory of indexes.
 *
 * $DCPFS_CACHE, else $XDG_CACHE_HOME/dcpfs, else ~/.cache/dcpfs, else none. ~ is $HOME, or where
 * that cannot be written (mount(8) has it name root's for a mount by fstab), what the password
 * database says.
 */
#pragma once

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
