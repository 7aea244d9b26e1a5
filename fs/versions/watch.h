/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch: a thread that notices changes of the source and refreshes the list of versions. It is
 * woken by inotify and by a timer: seldom, or every few seconds where inotify does not see
 * every change.
 */
#pragma once

struct dcpfs;
struct dcpfs_watch;

/* 0 or -errno. */
int dcpfs_watch_start(struct dcpfs *fs, struct dcpfs_watch **out);
/* End and join the thread. Accepts NULL. */
void dcpfs_watch_stop(struct dcpfs_watch *w);
