/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/checkpoint/mounts.h"
#include "tools/cmd.h"

#define DEADLINE_MS 10000
#define STEP_MS 20

struct umount_opts {
	bool lazy;
};

static const struct opt opts[] = { { 'z', "lazy",
				     .help = "detach it now, end it when it is no longer used",
				     .off = offsetof(struct umount_opts, lazy) },
				   OPT_END };

static const struct opt_operand operands[] = { { "MNT", false, OPT_MOUNT }, { 0 } };

/* Run @program with @option on @path and keep what it says: the first line goes into @said. 0 or
 * its exit code. */
static int run_helper(const char *program, const char *option, const char *path, char *said,
		      size_t size)
{
	char *const argv[] = { (char *)(uintptr_t)program, (char *)(uintptr_t)option,
			       (char *)(uintptr_t) "--", (char *)(uintptr_t)path, NULL };
	posix_spawn_file_actions_t actions;
	int pipes[2], status, rc;
	size_t n = 0;
	pid_t pid;

	if (pipe2(pipes, O_CLOEXEC) < 0)
		return -errno;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, pipes[1], STDERR_FILENO);
	rc = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(pipes[1]);
	while (rc == 0 && n + 1 < size) {
		ssize_t k = read(pipes[0], said + n, size - 1 - n);

		if (k <= 0)
			break;
		n += (size_t)k;
	}
	close(pipes[0]);
	said[n] = '\0';
	said[strcspn(said, "\n")] = '\0';
	if (rc)
		return -rc;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 127;
}

static enum cmd_exit fail_busy(const char *path)
{
	return cmd_fail(CMD_ENV,
			"%s is busy: a program works in it, has a file of it open, or "
			"something is mounted in it; fuser -vm and findmnt -R name it",
			path);
}

/* Does the message say "busy"? The directory may be named so, so look for more words. */
static bool says_busy(const char *said)
{
	return strstr(said, ": Device or resource busy") || strstr(said, ": target is busy");
}

static enum cmd_exit detach_mount(const char *path, bool lazy)
{
	char said[PATH_MAX + 512] = "", by_umount[sizeof(said)] = "";
	int rc;

	if (geteuid() == 0) {
		if (umount2(path, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) == 0)
			return CMD_OK;
		if (errno == EBUSY)
			return fail_busy(path);
		if (errno != EPERM)
			return cmd_fail(CMD_ENV, "%s: cannot unmount: %s", path,
					strerror(errno));
	}
	setenv("LC_ALL", "C", 1); /* umount speaks many languages */
	rc = run_helper("fusermount3", lazy ? "-uz" : "-u", path, said, sizeof(said));
	if (rc == 0)
		return CMD_OK;
	/* fusermount3 needs /etc/mtab and the user's name, which containers may lack; umount asks
	 * the kernel. */
	if (!says_busy(said) &&
	    run_helper("umount", lazy ? "-il" : "-i", path, by_umount, sizeof(by_umount)) == 0)
		return CMD_OK;
	if (says_busy(said) || says_busy(by_umount))
		return fail_busy(path);
	if (strstr(said, " not found in /etc/mtab") || strstr(by_umount, "must be superuser"))
		return cmd_fail(CMD_ENV,
				"%s was mounted by another user; only that user and root can "
				"end it",
				path);
	if (rc == -ENOENT)
		return cmd_fail(CMD_ENV,
				"fusermount3 is not installed; it is part of the package "
				"fuse3");
	if (rc < 0)
		return cmd_fail(CMD_ENV, "fusermount3: %s", strerror(-rc));
	return cmd_fail(CMD_ENV, "%s: cannot unmount: %s", path,
			*said ? said : "fusermount3 gave no reason");
}

static enum cmd_exit wait_until_gone(const char *path)
{
	const struct timespec step = { 0, STEP_MS * 1000000l };
	struct dcp_mount m;

	for (int waited = 0; waited < DEADLINE_MS; waited += STEP_MS) {
		if (dcp_mounts_find(path, &m) <= 0 || strcmp(m.fstype, DCPFS_FSTYPE) != 0)
			return CMD_OK;
		nanosleep(&step, NULL);
	}
	return cmd_fail(CMD_ENV, "%s is still mounted after %d seconds", path,
			DEADLINE_MS / 1000);
}

static enum cmd_exit run_umount(const void *opts_in, const struct opt_args *args)
{
	const struct umount_opts *u = opts_in;
	dcp_auto_free char *path = NULL;
	struct dcp_mount m;
	enum cmd_exit code = cmd_find_mount(args->operand[0], &path, &m);

	if (code != CMD_OK)
		return code;
	code = detach_mount(path, u->lazy);
	return code == CMD_OK ? wait_until_gone(path) : code;
}

const struct cmd cmd_umount = {
	.name = "umount",
	.what = "end a mount",
	.about = "End the mount at MNT and wait until it is gone.",
	.operands = operands,
	.opts = opts,
	.reports = true,
	.size = sizeof(struct umount_opts),
	.run = run_umount,
	.examples = { "dcpfs umount /mnt/run1" },
};
