/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opener: opens versions: one at once for whoever asks, the others in the background, newest
 * first.
 *
 * Taking an index from the cache is a matter of milliseconds, and whoever asks does it.
 * Building one can take minutes: two threads do that, one of them only for those who ask, so
 * a request waits only for the version it asked for and those requested before it. The
 * threads that ask only wait, and can be released at any time.
 */
#pragma once
#include <stdbool.h>

struct dcp_err;
struct dcp_progress;
struct dcpfs;
struct dcpfs_opener;
struct dcpfs_version;

struct dcpfs_opener *dcpfs_opener_create(void);
/* Call it when the threads have ended. Accepts NULL. */
void dcpfs_opener_destroy(struct dcpfs_opener *o);

/* Begin to open what the list has. @progress: of the first build, or NULL. 0 or -errno. */
int dcpfs_opener_start(struct dcpfs *fs, const struct dcp_progress *progress);
/* The list changed. */
void dcpfs_opener_wake(struct dcpfs *fs);
/* Release all waiters, cancel builds, and join the threads. False: one is still at work after @ms
 * (parsing cannot be cancelled) and detached; everything it uses must stay until the process ends. */
bool dcpfs_opener_stop(struct dcpfs *fs, unsigned ms);

/*
 * Give the first version @ms to be opened. 0 when one is, when there are none, or when it takes
 * longer; when all are refused by then, the code and message of the newest.
 */
int dcpfs_opener_first(struct dcpfs *fs, unsigned ms, struct dcp_err *err);

/*
 * The index of @ver, opened now if it was not before (which may take as long as building one).
 * Returns 0, or the code of the refusal with its message in @err; the same every time.
 */
int dcpfs_version_open(struct dcpfs *fs, struct dcpfs_version *ver, struct dcp_err *err);
