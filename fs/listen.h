/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listen: the metrics of a mount on a socket, for programs that collect them by HTTP.
 *
 * One thread serves a few clients at a time. Each has a few seconds in all for its request and its
 * answer, and bounded memory; further ones wait in the kernel's queue, which is bounded too. So no
 * client, slow or hostile, delays the mount or makes it grow.
 */
#pragma once

struct dcp_buf;
struct dcp_err;
struct dcpfs_listen;

/* Appends the metrics, from a thread of the listener. */
typedef void (*dcpfs_listen_fn)(void *ctx, struct dcp_buf *out);

/*
 * Listen at @where: "unix:/PATH", a socket that its owner alone may use, or "127.0.0.1:PORT" or
 * "[::1]:PORT", which every user of this machine may; PORT 0 is one that is free. A socket at PATH
 * that nobody listens on any more is replaced. *at is where it listens, malloc'ed. -EINVAL: @where
 * is none of these; -EADDRINUSE and the like. @err says why.
 */
int dcpfs_listen_open(const char *where, struct dcpfs_listen **out, char **at,
		      struct dcp_err *err);
/* Only what dcpfs_listen_open() checks before it opens anything: 0 or -EINVAL. */
int dcpfs_listen_check(const char *where, struct dcp_err *err);

/* Begin to answer. 0 or a negative errno. */
int dcpfs_listen_start(struct dcpfs_listen *l, dcpfs_listen_fn make, void *ctx);
/* End the thread, if there is one, and close everything. Accepts NULL. */
void dcpfs_listen_close(struct dcpfs_listen *l);
