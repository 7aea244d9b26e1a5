/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/cache/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/hash.h"
#include "core/base/system.h"
#include "core/model/name.h"
#include "core/store/index/index.h"
#include "core/store/version/version.h"

enum { NAME_HEAD = 180, WAIT_MS = 30000, POLL_MS = 20 };

static uint64_t version_hash(const char *name, const char *real, const struct dcp_file_id *dir)
{
	uint64_t id[3] = { dir->dev, dir->ino, DCP_INDEX_SCHEMA };
	uint64_t hash = dcp_hash64_more(dcp_hash64(real, strlen(real)), name, strlen(name));

	hash = dcp_hash64_more(hash, id, sizeof(id));
	return dcp_hash64_more(hash, DCP_RELEASE, strlen(DCP_RELEASE));
}

int dcp_cache_path(const struct dcp_store_opts *opts, const char *name, const char *real,
		   const struct dcp_file_id *id, char **out)
{
	char shown[DCP_NAME_MAX + 1];
	int n = 0;

	*out = NULL;
	dcp_name_from_key(name, false, shown);
	if (opts->index_file)
		n = asprintf(out, "%s", opts->index_file);
	else if (opts->cache_dir)
		n = asprintf(out, "%s/%.*s-%016llx.dcpx", opts->cache_dir, NAME_HEAD, shown,
			     (unsigned long long)version_hash(name, real, id));
	if (n < 0)
		*out = NULL;
	return n < 0 ? -ENOMEM : 0;
}

static const char *base_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

bool dcp_cache_is_own(const char *index_path, const char *name)
{
	const char *base = index_path ? base_of(index_path) : NULL;
	size_t n = base ? strlen(base) : 0;

	if (n == 0 || strncmp(name, base, n) != 0)
		return false;
	return name[n] == '\0' || strcmp(name + n, ".lock") == 0 ||
	       strncmp(name + n, ".tmp-", 5) == 0;
}

bool dcp_cache_trusts(const char *path, int fd)
{
	dcp_auto_free char *copy = strdup(path);
	struct stat file, dir;

	if (!copy || fstat(fd, &file) < 0)
		return false;
	if (file.st_uid == geteuid() || file.st_uid == 0)
		return true;
	return stat(dirname(copy), &dir) == 0 && dir.st_uid == file.st_uid;
}

bool dcp_cache_is_foreign(const char *path)
{
	enum { HEADER = 72 };
	dcp_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	uint8_t h[HEADER] = { 0 };
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
		return false;
	return pread(fd, h, HEADER, 0) < 0 || memcmp(h, "SQLite format 3", 16) != 0 ||
	       dcp_load_be32(h + 68) != DCP_SQL_APPLICATION;
}

void dcp_cache_sweep(const char *path)
{
	dcp_auto_free char *copy = strdup(path);
	DIR *dir = copy ? opendir(dirname(copy)) : NULL;
	const char *base = base_of(path);
	size_t n = strlen(base);
	struct dirent *e;

	while (dir && (e = readdir(dir)) != NULL)
		if (strncmp(e->d_name, base, n) == 0 && strncmp(e->d_name + n, ".tmp-", 5) == 0)
			unlinkat(dirfd(dir), e->d_name, 0);
	if (dir)
		closedir(dir);
}

static char *lock_path(const char *path)
{
	char *out;

	return asprintf(&out, "%s.lock", path) < 0 ? NULL : out;
}

/* Is @fd still the file at @path? The lock file is removed when the index is built. */
static bool still_there(int fd, const char *path)
{
	struct stat ours, theirs;

	return fstat(fd, &ours) == 0 && stat(path, &theirs) == 0 &&
	       ours.st_ino == theirs.st_ino && ours.st_dev == theirs.st_dev;
}

/* 1: locked; 0: another process holds the lock, or the file was removed meanwhile. */
static int try_lock(const char *path, int *out)
{
	dcp_auto_fd int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

	if (fd < 0)
		return -errno;
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return errno == EWOULDBLOCK || errno == EINTR ? 0 : -errno;
	if (!still_there(fd, path))
		return 0;
	*out = dcp_take_fd(&fd);
	return 1;
}

int dcp_cache_lock(const struct dcp_store_opts *opts, const char *path, bool *waited)
{
	int64_t until = dcp_now_ms() + (opts->lock_wait_ms ? opts->lock_wait_ms : WAIT_MS);
	dcp_auto_free char *lock = lock_path(path);
	int fd = -1;

	*waited = false;
	if (!lock)
		return -ENOMEM;
	for (;;) {
		int code = try_lock(lock, &fd);

		if (code != 0)
			return code < 0 ? code : fd;
		if (dcp_stopped(opts))
			return -ECANCELED;
		if (dcp_now_ms() >= until)
			return -EBUSY;
		*waited = true;
		nanosleep(&(struct timespec){ .tv_nsec = POLL_MS * 1000000 }, NULL);
	}
}

void dcp_cache_unlock(const char *path, int fd)
{
	dcp_auto_free char *lock = lock_path(path);

	if (fd < 0)
		return;
	/* while the lock is held, so that waiting processes notice the removal */
	if (lock)
		unlink(lock);
	close(fd);
}
