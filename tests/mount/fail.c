/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into dcpfs mount: the serving process dies when it mounts (FAIL=killed), or whoever
 * started it cannot look at the mount (FAIL=blind). */
#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64 /* stat() is stat64(), as in dcpfs */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

struct fuse_session;
int fuse_session_mount(struct fuse_session *se, const char *at);

static pid_t first;

static __attribute__((constructor)) void keep_first(void)
{
	first = getpid();
}

static void *find_real(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

int fuse_session_mount(struct fuse_session *se, const char *at)
{
	int (*mount)(struct fuse_session *, const char *) =
		(int (*)(struct fuse_session *, const char *))find_real("fuse_session_mount");

	if (strcmp(getenv("FAIL"), "killed") == 0)
		raise(SIGKILL);
	return mount(se, at);
}

int stat(const char *path, struct stat *st)
{
	int (*look)(const char *, struct stat *) =
		(int (*)(const char *, struct stat *))find_real("stat64");
	struct statfs fs;
	int rc = look(path, st);

	if (rc < 0 || getpid() != first || statfs(path, &fs) < 0 || fs.f_type != 0x65735546)
		return rc; /* not a FUSE mount */
	errno = EIO;
	return strcmp(getenv("FAIL"), "blind") == 0 ? -1 : rc;
}
