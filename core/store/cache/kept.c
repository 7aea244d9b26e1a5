/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/cache/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/hash.h"
#include "core/base/trim.h"
#include "core/store/version/version.h"

#define MAGIC 0x315450454b504344ull
#define MOST ((size_t)1 << 30)
#define MOST_OF_ALL (512ull << 20)

struct head {
	uint64_t magic, release, generation, n, hash;
};

/* Path of a kept file. NULL for an index that the user named, since it may lie in the checkpoint;
 * an index in the cache has a hash in its name. */
static char *path_of(const struct dcp_version *v, const char *name)
{
	enum { HASH = 16 };
	const char *index = dcp_version_index_path(v);
	size_t n = index ? strlen(index) : 0, ext = strlen(DCP_CACHE_INDEX_EXT);
	char *path = NULL;

	if (n <= ext + HASH || strcmp(index + n - ext, DCP_CACHE_INDEX_EXT) != 0 ||
	    index[n - ext - HASH - 1] != '-' ||
	    strspn(index + n - ext - HASH, "0123456789abcdef") != HASH)
		return NULL;
	if (asprintf(&path, "%.*s-%s%s", (int)(n - ext), index, name, DCP_CACHE_KEPT_EXT) < 0)
		return NULL;
	return path;
}

static struct head head_of(const struct dcp_version *v, const char *name, const void *p,
			   size_t n)
{
	return (struct head){ .magic = MAGIC,
			      .release = dcp_hash64_more(
				      dcp_hash64(DCP_RELEASE, strlen(DCP_RELEASE)), name,
				      strlen(name)),
			      .generation = dcp_version_generation(v),
			      .n = n,
			      .hash = dcp_hash64(p, n) };
}

int dcp_kept_read(const struct dcp_version *v, const char *name, struct dcp_buf *out)
{
	dcp_auto_free char *path = path_of(v, name);
	dcp_auto_fd int fd =
		path ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
	struct head head, want;
	struct stat st;
	void *p;
	size_t n;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
	    !dcp_cache_trusts(path, fd) || st.st_size < (off_t)sizeof(head) ||
	    (uint64_t)st.st_size > MOST ||
	    pread(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head))
		return -ENOENT;
	n = (size_t)st.st_size - sizeof(head);
	p = dcp_buf_grow(out, n);
	if (!p)
		return -ENOMEM;
	if (pread(fd, p, n, sizeof(head)) != (ssize_t)n)
		return -ENOENT;
	want = head_of(v, name, p, n);
	if (memcmp(&head, &want, sizeof(head)) != 0)
		return -ENOENT;
	dcp_cache_use(fd);
	return 0;
}

void dcp_kept_write(const struct dcp_version *v, const char *name, const void *p, size_t n)
{
	dcp_auto_free char *path = path_of(v, name), *part = NULL, *dir = NULL;
	struct head head = head_of(v, name, p, n);
	struct dcp_trim room = { .ext = DCP_CACHE_KEPT_EXT,
				 .keep = path,
				 .most = MOST_OF_ALL,
				 .days = DCP_CACHE_DAYS };
	dcp_auto_fd int fd = -1;
	struct dcp_trimmed trimmed;
	bool good;

	if (!path || n > MOST - sizeof(head) ||
	    asprintf(&part, "%s.tmp-%d", path, (int)getpid()) < 0)
		return;
	unlink(part);
	fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	good = fd >= 0 && write(fd, &head, sizeof(head)) == (ssize_t)sizeof(head) &&
	       write(fd, p, n) == (ssize_t)n;
	if (!good || rename(part, path) < 0)
		unlink(part);
	dir = strndup(path, (size_t)(strrchr(path, '/') ? strrchr(path, '/') - path : 0));
	if (dir && *dir)
		dcp_cache_trim(dir, &room, &trimmed);
}

int dcp_kept_records(const struct dcp_version *v, const char *name, size_t size,
		     struct dcp_buf *out)
{
	int rc = dcp_kept_read(v, name, out);

	if (rc < 0 || out->n % size)
		dcp_buf_reset(out);
	return rc == -ENOMEM ? rc : 0;
}

const void *dcp_kept_at(const struct dcp_buf *all, size_t size, int64_t id, const char *key)
{
	uint64_t at = (uint64_t)id - 1; /* ids count from 1 */
	const struct dcp_kept_head *head;

	if (id <= 0 || at >= all->n / size)
		return NULL;
	head = (const void *)(all->p + at * size);
	return head->done && head->id == id && head->key == dcp_hash64(key, strlen(key)) ? head
											 : NULL;
}

int dcp_kept_put(struct dcp_buf *all, size_t size, int64_t id, const char *key,
		 const void *record)
{
	struct dcp_kept_head *head = dcp_buf_at(all, (size_t)id - 1, size);

	if (!head)
		return -ENOMEM;
	memcpy(head, record, size);
	*head = (struct dcp_kept_head){ id, dcp_hash64(key, strlen(key)), 1 };
	return 0;
}

/*
 * Open the index and lock it while the kept file is written; closing the descriptor releases the
 * lock. If locking fails, or a stopped process holds the lock, the file is written without it, and
 * the last of several writers wins.
 */
static int lock_index(const struct dcp_version *v)
{
	struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int fd = open(dcp_version_index_path(v), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

	for (int i = 0; fd >= 0 && i < 100 && fcntl(fd, F_OFD_SETLK, &whole) < 0; i++) {
		if (errno != EAGAIN && errno != EACCES && errno != EINTR)
			break;
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
	return fd;
}

int dcp_kept_share(const struct dcp_version *v, const char *name, size_t size,
		   struct dcp_buf *all)
{
	dcp_auto_buf struct dcp_buf kept = DCP_BUF_INIT;
	dcp_auto_free char *path = path_of(v, name); /* NULL: nothing can be kept */
	int lock = path ? lock_index(v) : -1;
	int rc = dcp_kept_records(v, name, size, &kept);

	for (size_t i = 0; i < kept.n / size && rc == 0; i++) {
		const struct dcp_kept_head *from = (const void *)(kept.p + i * size);
		struct dcp_kept_head *to = from->done ? dcp_buf_at(all, i, size) : NULL;

		if (from->done && !to)
			rc = -ENOMEM;
		else if (to && !to->done)
			memcpy(to, from, size);
	}
	if (rc == 0)
		dcp_kept_write(v, name, all->p, all->n);
	dcp_close_fd(&lock);
	return rc;
}
