/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .NAME.dcpfs-journal: a head, then struct save_sum of each piece, mapped by all processes that
 * share the save, so that what a killed one has noted is there. Rank 0 has it locked as long as it
 * lives.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/err.h"
#include "tools/save/save_int.h"

static const char magic[8] = "dcpfsSV1";

struct head {
	char magic[8];
	uint64_t plan, npieces; /* hash of the plan */
};

int save_journal_open(struct save *s, struct dcp_err *err)
{
	struct stat st, named;

	for (;;) {
		int fd = openat(s->parent_fd, s->journal,
				O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
				save_mode(s, 0666));

		s->fresh = fd >= 0;
		if (fd < 0 && errno == EEXIST)
			fd = openat(s->parent_fd, s->journal, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0 && errno == ENOENT)
			continue; /* removed meanwhile */
		if (fd < 0)
			return dcp_fail(err, -errno, "%s: no file can be made there: %s",
					s->parent, strerror(errno));
		if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
			close(fd);
			return dcp_fail(err, -EBUSY,
					"%s/%s is being written by another process", s->parent,
					s->name);
		}
		/* Another process may have finished and removed it before it was locked. */
		if (fstat(fd, &st) == 0 &&
		    fstatat(s->parent_fd, s->journal, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
		    st.st_ino == named.st_ino) {
			s->journal_fd = fd;
			return 0;
		}
		close(fd);
	}
}

bool save_journal_has_plan(const struct save *s)
{
	char found[sizeof(magic)];

	return pread(s->journal_fd, found, sizeof(found), 0) == sizeof(found) &&
	       memcmp(found, magic, sizeof(magic)) == 0;
}

/* Is it the journal of this plan? */
static bool is_same(const struct save *s, size_t size)
{
	struct head head;
	struct stat st;

	return fstat(s->journal_fd, &st) == 0 && (uint64_t)st.st_size == size &&
	       pread(s->journal_fd, &head, sizeof(head), 0) == sizeof(head) &&
	       memcmp(head.magic, magic, sizeof(magic)) == 0 && head.plan == s->hash &&
	       head.npieces == s->npieces;
}

static int map_journal(struct save *s, size_t size)
{
	void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, s->journal_fd, 0);

	if (map == MAP_FAILED)
		return -errno;
	s->map = map;
	s->mapped = size;
	s->noted = (struct save_sum *)(void *)((char *)map + sizeof(struct head));
	return 0;
}

/* As rank 0 has begun it. Without it all is written, and nothing noted. */
static int join(struct save *s, size_t size)
{
	s->journal_fd = openat(s->parent_fd, s->journal, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (s->journal_fd >= 0 && is_same(s, size))
		s->resumed = map_journal(s, size) == 0 && s->opts.resume;
	return 0;
}

static int begin(struct save *s, size_t size)
{
	struct head head = { .plan = s->hash, .npieces = s->npieces };
	int rc;

	s->resumed = s->opts.resume && is_same(s, size);
	if (s->opts.resume && !s->resumed)
		return -ESTALE;
	if (!s->resumed && ftruncate(s->journal_fd, SAVE_MARK) < 0)
		return -errno;
	rc = -posix_fallocate(s->journal_fd, 0, (off_t)size);
	if (rc == 0)
		rc = map_journal(s, size);
	if (rc == 0) {
		memcpy(head.magic, magic, sizeof(magic));
		memcpy(s->map, &head, sizeof(head));
	}
	return rc;
}

int save_journal_begin(struct save *s, struct dcp_err *err)
{
	size_t size = sizeof(struct head) + s->npieces * sizeof(struct save_sum);
	int rc = 0;

	/* Who writes what is in memory has nothing to go on with. */
	if (!s->opts.by_owner)
		rc = save_leads(s) ? begin(s, size) : join(s, size);
	if (rc == -ESTALE)
		return rc;
	if (rc < 0)
		return save_fail(s, rc, s->journal, err);
	s->sums = calloc(s->npieces + 1, sizeof(*s->sums));
	return s->sums ? 0 : dcp_err_say(err, -ENOMEM);
}

void save_journal_close(struct save *s)
{
	if (s->map)
		munmap(s->map, s->mapped);
	free(s->sums);
	if (s->journal_fd >= 0)
		close(s->journal_fd); /* unlocks it */
	s->map = NULL;
	s->sums = s->noted = NULL;
	s->journal_fd = -1;
}
