/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/comm/meet.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "tools/load/cache.h"

#define NAME "secret"
#define TRIES                                                                                  \
	20 /* to read what another node has just made: its name may appear here a little later */
#define AGAIN_MS 100

/* -ENOENT: there is none. */
static int read_secret(int dir, const char *path, char out[LOAD_SECRET_BYTES + 1],
		       struct dcpload_error *err)
{
	dcp_auto_fd int fd = openat(dir, NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return load_fail(err, -errno, "%s/" NAME ": %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077))
		return load_fail(err, -EPERM,
				 "%s/" NAME
				 " is not a file that this user alone can read (mode "
				 "0600)",
				 path);
	if (read(fd, out, LOAD_SECRET_BYTES) != LOAD_SECRET_BYTES)
		return load_fail(err, -EBADMSG, "%s/" NAME " has less than %d bytes: remove it",
				 path, LOAD_SECRET_BYTES);
	out[LOAD_SECRET_BYTES] = 0;
	return 0;
}

static int write_secret(int fd)
{
	uint8_t random[LOAD_SECRET_BYTES / 2];
	char text[LOAD_SECRET_BYTES + 1];
	int rc = load_random(random, sizeof(random));

	for (size_t i = 0; i < sizeof(random); i++)
		snprintf(text + 2 * i, 3, "%02x", random[i]);
	if (rc == 0 && fchmod(fd, 0600) < 0)
		rc = -errno;
	if (rc == 0 && write(fd, text, LOAD_SECRET_BYTES) != LOAD_SECRET_BYTES)
		rc = -ENOSPC;
	return rc < 0 || fsync(fd) == 0 ? rc : -errno;
}

/* The file gets its name when it is complete; that of another process may be there by then. */
static int make_secret(int dir, const char *path, struct dcpload_error *err)
{
	uint64_t number = 0;
	char temp[32];
	int rc = load_random(&number, sizeof(number)), fd;

	snprintf(temp, sizeof(temp), NAME ".%016llx", (unsigned long long)number);
	fd = rc < 0 ? -1
		    : openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
			     0600);
	if (rc == 0)
		rc = fd < 0 ? -errno : write_secret(fd);
	if (rc == 0 && linkat(dir, temp, dir, NAME, 0) < 0 && errno != EEXIST)
		rc = -errno;
	if (fd >= 0) {
		close(fd);
		unlinkat(dir, temp, 0);
	}
	return rc < 0 ? load_fail(err, rc, "%s/" NAME ": %s", path, strerror(-rc)) : 0;
}

int load_secret_of_user(const char *dir, char out[LOAD_SECRET_BYTES + 1],
			struct dcpload_error *err)
{
	dcp_auto_fd int fd = -1;
	struct stat st;
	int rc = load_cache_make(dir);

	if (rc == 0) {
		fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		rc = fd < 0 || fstat(fd, &st) < 0 ? -errno : 0;
	}
	if (rc < 0)
		return load_fail(err, rc, "%s: %s", dir, strerror(-rc));
	if (st.st_uid != geteuid() || (st.st_mode & 022))
		return load_fail(err, -EPERM,
				 "%s is not a directory that this user alone can "
				 "write to",
				 dir);
	rc = read_secret(fd, dir, out, err);
	if (rc != -ENOENT)
		return rc;
	rc = make_secret(fd, dir, err);
	for (int i = 0; rc == 0 && i < TRIES; i++) {
		int got = read_secret(fd, dir, out, err);

		if ((got != -ENOENT && got != -ESTALE) || i == TRIES - 1)
			return got;
		poll(NULL, 0, AGAIN_MS);
	}
	return rc;
}
