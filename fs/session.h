/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session: from options to a mount that answers, and back.
 */
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
