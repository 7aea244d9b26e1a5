/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch: notice that the source changed: a thread woken by inotify, and now and then by the
 * clock for file systems where inotify is blind. It refreshes the list of versions.
 */
#pragma once

struct dcpfs;
struct dcpfs_watch;

/* 0 or -errno. */
int dcpfs_watch_start(struct dcpfs *fs, struct dcpfs_watch **out);
/* Ends and joins the thread; accepts NULL. */
void dcpfs_watch_stop(struct dcpfs_watch *w);
