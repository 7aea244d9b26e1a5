/* SPDX-License-Identifier: Apache-2.0 */
/* session: from options to a mount that answers, and back. */
#pragma once

struct dcp_err;
struct dcpfs_opts;

/* Where a mount failed, for the program's exit code. */
enum dcpfs_stage {
	DCPFS_STAGE_SOURCE, /* the source is not a checkpoint, or every version was refused */
	DCPFS_STAGE_MOUNT,  /* /dev/fuse, fusermount3, the mountpoint */
	DCPFS_STAGE_SERVE,  /* after it answered */
};

/*
 * Open the source, mount it and serve requests. In the foreground, return after the unmount;
 * otherwise a child in its own session serves, and this returns 0 as soon as the mount answers.
 * SIGTERM and SIGINT unmount; so does SIGHUP in a process that has a terminal, while in others
 * the source is looked at again. Call before any thread exists, with descriptors 0 to 2
 * open. Returns 0 or a negative errno; @stage and @err say more.
 */
int dcpfs_session_run(const struct dcpfs_opts *opts, enum dcpfs_stage *stage,
		      struct dcp_err *err);

/* "3.14.0": the libfuse in use. */
const char *dcpfs_fuse_version(void);

/*
 * listen: the metrics of a mount on a socket, for programs that collect them by HTTP.
 *
 * One thread serves a few clients at a time. Each has a few seconds in all for its request and its
 * answer, and bounded memory; further clients wait in the kernel's queue, which is bounded too. So
 * no client, slow or hostile, delays the mount or makes it grow.
 */

struct dcp_buf;
struct dcpfs_listen;

/* Appends the metrics, from a thread of the listener. */
typedef void (*dcpfs_listen_fn)(void *ctx, struct dcp_buf *out);

/*
 * Listen at @where: "unix:/PATH", a socket that its owner alone may use, or "127.0.0.1:PORT" or
 * "[::1]:PORT", which every user of this machine may; PORT 0: any free port. A socket at PATH that
 * nobody listens on any more is replaced. *at is the address, malloc'ed. -EINVAL: @where is none of
 * these; -EADDRINUSE and the like. @err says why.
 */
int dcpfs_listen_open(const char *where, struct dcpfs_listen **out, char **at,
		      struct dcp_err *err);
/* Check @where as dcpfs_listen_open() does, but open nothing: 0 or -EINVAL. */
int dcpfs_listen_check(const char *where, struct dcp_err *err);

/* Begin to answer. 0 or a negative errno. */
int dcpfs_listen_start(struct dcpfs_listen *l, dcpfs_listen_fn make, void *ctx);
/* End the thread, if there is one, and close everything. Accepts NULL. */
void dcpfs_listen_close(struct dcpfs_listen *l);

/* fault: the process's SIGBUS handler, for programs that read shards through mappings. */

/* Install the handler and enable core/store/io/files.h. Call before threads start. 0 or -errno. */
int dcpfs_fault_install(void);
