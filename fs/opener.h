/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opener: opens versions: one at once for whoever asks, the others in the background, newest
 * first.
 *
 * Taking an index from the cache is a matter of milliseconds and done at once. Building one can
 * take minutes, so at most two are built at a time, those that somebody waits for before
 * those of the background. Whoever asks for a version that is being built waits for that one.
 */
#pragma once
#include <stdbool.h>

struct dcp_err;
struct dcpfs;
struct dcpfs_opener;
struct dcpfs_version;

struct dcpfs_opener *dcpfs_opener_create(void);
/* When the thread has ended. Accepts NULL. */
void dcpfs_opener_destroy(struct dcpfs_opener *o);

/* Begin to open what the list has. 0 or -errno. */
int dcpfs_opener_start(struct dcpfs *fs);
/* The list changed. */
void dcpfs_opener_wake(struct dcpfs *fs);
/* Call off what is being built, whoever waits for it, and join the thread. */
void dcpfs_opener_stop(struct dcpfs *fs);

/*
 * Give the first version @ms to be opened. 0 when one is, when there are none, or when it takes
 * longer; when all are refused by then, the code and message of the newest.
 */
int dcpfs_opener_first(struct dcpfs *fs, unsigned ms, struct dcp_err *err);

/*
 * The index of @ver, opened now if nobody did before (which may take as long as building one).
 * Returns 0, or the code of the refusal with its message in @err; the same every time.
 */
int dcpfs_version_open(struct dcpfs *fs, struct dcpfs_version *ver, struct dcp_err *err);
/* Why it could not be opened, or NULL; valid as long as @ver. */
const char *dcpfs_version_refusal(const struct dcpfs_version *ver);
