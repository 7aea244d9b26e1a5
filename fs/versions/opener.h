/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opener: opens versions: a requested version at once, the others in the background, newest
 * first. A cached index opens in milliseconds, so the requesting thread opens it. Building an
 * index can take minutes. Two builder threads do that, one of them only for requests, so a
 * request waits only for its own version and for versions requested before. A requesting thread
 * only waits, and can be released at any time.
 */
#pragma once
#include <stdbool.h>

struct dcp_err;
struct dcp_progress;
struct dcpfs;
struct dcpfs_opener;
struct dcpfs_version;

struct dcpfs_opener *dcpfs_opener_create(void);
/* Call after dcpfs_opener_stop(). Accepts NULL. */
void dcpfs_opener_destroy(struct dcpfs_opener *o);

/*
 * Begin to open the listed versions. @progress reports the first build; may be NULL. 0 or
 * -errno.
 */
int dcpfs_opener_start(struct dcpfs *fs, const struct dcp_progress *progress);
/* The list changed. */
void dcpfs_opener_wake(struct dcpfs *fs);
/*
 * Release all waiters, cancel builds, and join the threads. False: a thread is still at work
 * after @ms (parsing cannot be cancelled) and was detached; everything it uses must stay until
 * the process ends.
 */
bool dcpfs_opener_stop(struct dcpfs *fs, unsigned ms);

/*
 * Wait up to @ms until a version is opened. Returns the code and message of the newest version
 * if all are refused by then, else 0.
 */
int dcpfs_opener_first(struct dcpfs *fs, unsigned ms, struct dcp_err *err);

/*
 * Open the index of @ver if it is not open yet, which may take as long as building it. Returns
 * 0, or the code of the refusal with its message in @err; the same every time.
 */
int dcpfs_version_open(struct dcpfs *fs, struct dcpfs_version *ver, struct dcp_err *err);
