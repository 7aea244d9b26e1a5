/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch: notice that the source changed: a thread woken by inotify, and by the clock: seldom,
 * or every few seconds where inotify does not see everything. It refreshes the list of
 * versions.
 */
#pragma once

struct dcpfs;
struct dcpfs_watch;

/* 0 or -errno. */
int dcpfs_watch_start(struct dcpfs *fs, struct dcpfs_watch **out);
/* Ends and joins the thread; accepts NULL. */
void dcpfs_watch_stop(struct dcpfs_watch *w);
