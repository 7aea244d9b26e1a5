/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/save/save_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/origin/origin.h"

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif
#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif

enum { PLAN_MEMORY = 1 << 30 }; /* names of files */

/* ---- names ---- */

/* ".NAME.dcpfs-part"; if that is too long, with the hash of NAME. */
static void name_beside(const struct save *s, const char *ending, char out[NAME_MAX + 1])
{
	if (snprintf(out, NAME_MAX + 1, ".%s%s", s->name, ending) > NAME_MAX)
		snprintf(out, NAME_MAX + 1, ".%016llx%s",
			 (unsigned long long)dcp_hash64(s->name, strlen(s->name)), ending);
}

/* Make the missing parents of @path, and sync them. Only a failure at the last one is returned. */
static int make_parents(char *path, mode_t mode)
{
	char above[PATH_MAX + 4];
	bool made;
	int rc;

	for (char *p = path + 1;; p++) {
		char c = *p;

		if (c && c != '/')
			continue;
		*p = '\0';
		made = mkdir(path, mode) == 0;
		rc = made || errno == EEXIST ? 0 : -errno;
		if (made) {
			dcp_auto_fd int fd = -1;

			snprintf(above, sizeof(above), "%s/..", path);
			fd = open(above, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
			rc = fd < 0 || fsync(fd) < 0 ? -errno : 0;
		}
		*p = c;
		if (!c)
			return rc;
	}
}

static int choose_names(struct save *s, struct dcp_err *err)
{
	const char *out = s->opts.out;
	size_t n = strlen(out);
	const char *slash;

	while (n > 1 && out[n - 1] == '/')
		n--;
	slash = memrchr(out, '/', n);
	if (n >= sizeof(s->parent) || n - (slash ? (size_t)(slash - out) + 1 : 0) > NAME_MAX)
		return dcp_fail(err, -ENAMETOOLONG, "%s: %s", out, strerror(ENAMETOOLONG));
	if (!slash)
		strcpy(s->parent, ".");
	else
		snprintf(s->parent, sizeof(s->parent), "%.*s", DCP_MAX((int)(slash - out), 1),
			 out);
	snprintf(s->name, sizeof(s->name), "%.*s",
		 (int)(n - (slash ? (size_t)(slash - out) + 1 : 0)), slash ? slash + 1 : out);
	if (!s->name[0] || strcmp(s->name, ".") == 0 || strcmp(s->name, "..") == 0)
		return dcp_fail(err, -EINVAL,
				"%s: expected the path of the checkpoint to write", out);
	name_beside(s, ".dcpfs-part", s->part);
	name_beside(s, ".dcpfs-journal", s->journal);
	name_beside(s, ".dcpfs-old", s->old);
	return 0;
}

int save_part(const char *out, char path[SAVE_PATH])
{
	dcp_auto_free struct save *s = calloc(1, sizeof(*s));
	struct dcp_err err;
	int rc;

	if (!s)
		return -ENOMEM;
	s->opts.out = out;
	rc = choose_names(s, &err);
	if (rc == 0)
		snprintf(path, SAVE_PATH, "%s/%s", s->parent, s->part);
	return rc;
}

static int open_parent(struct save *s, struct dcp_err *err)
{
	int rc;

	s->parent_fd = open(s->parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->parent_fd < 0 && errno == ENOENT && s->opts.dry)
		return 0; /* a dry run makes nothing */
	if (s->parent_fd < 0 && errno == ENOENT) {
		rc = make_parents(s->parent, save_mode(s, 0777));
		errno = -rc;
		if (rc == 0)
			s->parent_fd = open(s->parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	}
	return s->parent_fd < 0 ? dcp_fail(err, -errno, "%s: %s", s->parent, strerror(errno))
				: 0;
}

/* ---- may OUT be written? ---- */

/* Has the directory entries? 1 or 0. */
static int has_entries(int parent, const char *name)
{
	DIR *dir = save_open_dir(parent, name);
	bool any;

	if (!dir)
		return -errno;
	any = save_next_name(dir) != NULL;
	closedir(dir);
	return any;
}

static int check_free(struct save *s, struct dcp_err *err)
{
	struct stat st;
	int n;

	if (fstatat(s->parent_fd, s->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : save_fail(s, -errno, s->name, err);
	if (S_ISDIR(st.st_mode) == s->opts.file ||
	    (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode)))
		return dcp_fail(err, S_ISDIR(st.st_mode) ? -EISDIR : -ENOTDIR,
				"%s/%s exists and is %s", s->parent, s->name,
				S_ISDIR(st.st_mode) ? "a directory" : "not a directory");
	n = S_ISDIR(st.st_mode) ? has_entries(s->parent_fd, s->name) : 1;
	s->compares = n != 0 && s->opts.resume && !s->opts.force;
	if (n == 0 || s->compares || s->opts.overwrite)
		return 0;
	if (n < 0)
		return save_fail(s, n, s->name, err);
	return s->opts.force
		       ? save_check_replaced(s, err)
		       : dcp_fail(err, -EEXIST, "%s/%s exists already", s->parent, s->name);
}

/* Called if OUT exists. -EALREADY: it has the files of the plan with the planned sizes; otherwise
 * -EEXIST. */
static int save_compare(struct save *s, struct dcp_err *err)
{
	char path[PATH_MAX + NAME_MAX + 2];
	struct stat st;

	for (size_t i = 0; i < save_nfiles(s); i++) {
		const struct save_file *f = &save_files(s)[i];

		snprintf(path, sizeof(path), "%s%s%s", s->name, s->opts.file ? "" : "/",
			 s->opts.file ? "" : f->name);
		if (fstatat(s->parent_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
		    !S_ISREG(st.st_mode) || (uint64_t)st.st_size != f->size)
			return dcp_fail(
				err, -EEXIST,
				"%s/%s exists already, and differs from what is to be written",
				s->parent, s->name);
	}
	snprintf(s->sealed, sizeof(s->sealed), "%s/%s", s->parent, s->name);
	return dcp_fail(err, -EALREADY, "nothing to resume: %s/%s is complete", s->parent,
			s->name);
}

/* Finish the publication that a killed save had begun. If the old directory was renamed away, it
 * gets its name back; if the new directory has the name already, only the journal is left to
 * remove. */
static void recover_killed(const struct save *s)
{
	struct stat st, part;
	dcp_auto_fd int fd = openat(s->parent_fd, s->journal, O_RDWR | O_NOFOLLOW | O_CLOEXEC);

	/* Not while the other process lives. NFS can lock only a file that is open for writing. */
	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
		return;
	if (faccessat(s->parent_fd, s->name, F_OK, AT_SYMLINK_NOFOLLOW) < 0) {
		if (errno == ENOENT)
			renameat(s->parent_fd, s->old, s->parent_fd, s->name);
	} else if (fstat(fd, &st) == 0 && st.st_uid == geteuid() &&
		   fstatat(s->parent_fd, s->part, &part, AT_SYMLINK_NOFOLLOW) < 0 &&
		   errno == ENOENT && save_remove_tree(s->parent_fd, s->old) == 0) {
		unlinkat(s->parent_fd, s->journal, 0);
	}
}

static int fail_not_ours(const struct save *s, struct dcp_err *err)
{
	return dcp_fail(err, -ENOTEMPTY, "%s/%s is there and was not left by dcpfs; remove it",
			s->parent, s->part);
}

/* Sync the journal before anything is created beside it. */
static int mark_journal(const struct save *s)
{
	int rc = save_pwrite(s->journal_fd, "dcpfs", SAVE_MARK, 0);

	return rc == 0 && (fsync(s->journal_fd) < 0 || fsync(s->parent_fd) < 0) ? -errno : rc;
}

static bool has_part(const struct save *s)
{
	int n = has_entries(s->parent_fd, s->part);

	return n != 0 && n != -ENOENT;
}

/* A directory beside a journal was made by dcpfs, even if a power cut emptied the journal. */
static int make_part(struct save *s, struct dcp_err *err)
{
	struct stat st;
	int rc;

	if (faccessat(s->parent_fd, s->journal, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && has_part(s))
		return fail_not_ours(s, err);
	rc = save_journal_open(s, err);
	if (rc < 0)
		return rc;
	if (fstat(s->journal_fd, &st) < 0 || st.st_uid != geteuid())
		return fail_not_ours(s, err);
	s->made = true;
	rc = save_narrow(s, s->journal_fd);
	if (rc == 0 && st.st_size < SAVE_MARK)
		rc = mark_journal(s);
	if (!s->fresh && rc == 0 && !s->opts.resume)
		rc = save_remove_tree(s->parent_fd, s->part);
	/* The directory that was renamed away may be the only copy, so it is removed only when the
	 * name is taken again. */
	if (!s->fresh && rc == 0 &&
	    faccessat(s->parent_fd, s->name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		rc = save_remove_tree(s->parent_fd, s->old);
	else if (!s->fresh && rc == 0 &&
		 renameat(s->parent_fd, s->old, s->parent_fd, s->name) == 0)
		rc = s->opts.force ? 0 : -EEXIST;
	if (rc == 0 && mkdirat(s->parent_fd, s->part, save_mode(s, 0777)) < 0 &&
	    errno != EEXIST)
		rc = -errno;
	/* In a directory that others may write to, another user could have created it. */
	if (rc == 0 && (fstatat(s->parent_fd, s->part, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
			st.st_uid != geteuid() || (s->fresh && has_part(s)))) {
		s->made = false;
		if (s->fresh)
			unlinkat(s->parent_fd, s->journal, 0);
		return fail_not_ours(s, err);
	}
	return rc < 0 ? save_fail(s, rc, s->part, err) : 0;
}

static int open_part(struct save *s, struct dcp_err *err)
{
	int rc;

	s->dir = openat(s->parent_fd, s->part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	rc = s->dir < 0 ? -errno : save_leads(s) ? save_narrow(s, s->dir) : 0;
	return rc < 0 ? save_fail(s, rc, s->part, err) : 0;
}

int save_clear(struct save *s, struct dcp_err *err)
{
	int rc = save_remove_tree(s->parent_fd, s->part);

	close(s->dir);
	s->dir = -1;
	if (rc == 0 && mkdirat(s->parent_fd, s->part, save_mode(s, 0777)) < 0)
		rc = -errno;
	return rc < 0 ? save_fail(s, rc, s->part, err) : open_part(s, err);
}

static int create_files(struct save *s, struct dcp_err *err)
{
	int rc = choose_names(s, err);

	if (rc == 0)
		rc = open_parent(s, err);
	if (rc == 0 && save_makes(s))
		recover_killed(s);
	if (rc == 0 && save_leads(s) && s->parent_fd >= 0)
		rc = check_free(s, err);
	if (s->opts.dry)
		return rc;
	if (rc == 0 && save_makes(s))
		rc = make_part(s, err);
	return rc == 0 && !s->compares ? open_part(s, err) : rc;
}

int save_create(const struct save_opts *opts, struct save **out, struct dcp_err *err)
{
	struct save *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return dcp_err_say(err, -ENOMEM);
	s->opts = *opts;
	s->place =
		dcp_origin_of(opts->out) == &dcp_origin_local ? &save_directory : &save_bucket;
	s->parent_fd = s->dir = s->journal_fd = s->planning_fd = -1;
	dcp_arena_init(&s->arena, PLAN_MEMORY);
	rc = opts->dry && s->place == &save_bucket
		     ? dcp_fail(err, -EINVAL, "%s: --dry-run is for a path", opts->out)
		     : s->place->create(s, err);
	if (rc < 0) {
		save_destroy(s);
		return rc;
	}
	*out = s;
	return 0;
}

static void destroy_files(struct save *s)
{
	if (s->made && !s->published) {
		save_remove_tree(s->parent_fd, s->part);
		if (!s->aside) /* otherwise the next save brings the old directory back */
			unlinkat(s->parent_fd, s->journal, 0);
	}
	if (s->dir >= 0)
		close(s->dir);
	if (s->parent_fd >= 0)
		close(s->parent_fd);
}

void save_destroy(struct save *s)
{
	if (!s)
		return;
	s->place->destroy(s);
	save_journal_close(s);
	dcp_buf_finish(&s->files);
	dcp_buf_finish(&s->runs);
	dcp_buf_finish(&s->patches);
	dcp_arena_finish(&s->arena);
	free(s);
}

/* ---- the end ---- */

static int put_checksums(const struct save *s, struct dcp_err *err)
{
	const struct save_patch *patch = DCP_ITEMS(s->patches, struct save_patch);
	size_t n = DCP_NITEMS(s->patches, struct save_patch);
	dcp_auto_fd int fd = -1;

	for (size_t i = 0; i < n; i++) {
		uint8_t crc[4];
		int rc = 0;

		if (i == 0 || patch[i].file != patch[i - 1].file) {
			dcp_close_fd(&fd);
			fd = save_open(s, patch[i].file);
		}
		dcp_store_le32(crc, save_crc32_of(s, &patch[i]));
		rc = fd < 0 ? fd : save_pwrite(fd, crc, sizeof(crc), patch[i].off);
		if (rc == 0 && (i + 1 == n || patch[i + 1].file != patch[i].file) &&
		    fdatasync(fd) < 0)
			rc = -errno;
		if (rc < 0)
			return save_fail(s, rc, save_files(s)[patch[i].file].name, err);
	}
	return 0;
}

/* Sync the directories, so that the names of files are on the disk. */
static int sync_directories(const struct save *s)
{
	char path[PATH_MAX], before[PATH_MAX] = "";

	for (size_t i = 0; i < save_nfiles(s); i++) {
		const char *name = save_files(s)[i].name;

		for (const char *slash = name; (slash = strchr(slash, '/')); slash++) {
			dcp_auto_fd int fd = -1;
			const char *at = path;

			snprintf(path, sizeof(path), "%.*s", (int)(slash - name) + 1, name);
			if (strcmp(path, before) == 0)
				continue;
			strcpy(before, path);
			fd = save_open_parent(s, &at, false);
			if (fd < 0)
				return fd;
			if (fsync(fd) < 0)
				return -errno;
		}
	}
	return fsync(s->dir) < 0 ? -errno : 0;
}

/* Give the completing file its name. */
static int name_last(const struct save *s, const struct save_file *f)
{
	const char *name = f->name;
	dcp_auto_fd int dir = save_open_parent(s, &name, true);

	if (dir < 0)
		return dir;
	return renameat(s->dir, SAVE_LAST, dir, name) < 0 ? -errno : 0;
}

static int seal_files(struct save *s, struct dcp_err *err)
{
	int rc = put_checksums(s, err);

	if (rc < 0)
		return rc;
	if (!s->opts.file)
		rc = save_note_written(s, s->dir);
	if (rc == 0)
		rc = sync_directories(s);
	for (size_t i = 0; rc == 0 && i < save_nfiles(s); i++) {
		const struct save_file *f = &save_files(s)[i];

		if (f->last)
			rc = name_last(s, f);
		if (rc == 0 && f->last)
			rc = sync_directories(s);
	}
	if (rc < 0)
		return save_fail(s, rc, s->part, err);
	snprintf(s->sealed, sizeof(s->sealed), "%s/%s%s%s", s->parent, s->part,
		 s->opts.file ? "/" : "", s->opts.file ? save_files(s)[0].name : "");
	return 0;
}

int save_seal(struct save *s, struct dcp_err *err)
{
	for (size_t i = 0; i < s->npieces; i++)
		if (!s->sums[i].done)
			return dcp_fail(err, -ENODATA,
					"%s/%s: piece %zu of %zu was not written", s->parent,
					s->name, i, s->npieces);
	return s->place->seal(s, err);
}

const char *save_sealed(const struct save *s)
{
	return s->sealed;
}

/* Does the error mean that the file system does not support the operation? */
static bool is_unknown(int error)
{
	return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
}

/* Give a file a free name. Without hard links this relies on an earlier check of the name. */
static int take_free_name(const struct save *s, const char *file)
{
	if (renameat2(s->dir, file, s->parent_fd, s->name, RENAME_NOREPLACE) == 0)
		return 0;
	if (!is_unknown(errno))
		return -errno;
	if (linkat(s->dir, file, s->parent_fd, s->name, 0) == 0)
		return 0;
	if (errno == EEXIST || faccessat(s->parent_fd, s->name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		return -EEXIST;
	return renameat(s->dir, file, s->parent_fd, s->name) < 0 ? -errno : 0;
}

/* For file systems that cannot exchange two directories: the old directory is renamed away, and
 * back if the new directory cannot take its name. If the process is killed in between, both exist,
 * complete, under names with a dot; the next save to that name gives the old directory its name
 * back (recover_killed()). */
static int take_name_in_turn(struct save *s)
{
	int rc;

	if (renameat(s->parent_fd, s->name, s->parent_fd, s->old) < 0)
		return -errno;
	s->aside = true;
	if (renameat(s->parent_fd, s->part, s->parent_fd, s->name) == 0)
		return 0;
	rc = -errno;
	s->aside = renameat(s->parent_fd, s->old, s->parent_fd, s->name) < 0;
	return rc;
}

/* Give the new directory the name, and remove the directory that had it. */
static int take_name(struct save *s)
{
	const char *file = s->opts.file ? save_files(s)[0].name : NULL;

	if (file && !s->opts.force && !s->opts.overwrite)
		return take_free_name(s, file);
	if (file)
		return renameat(s->dir, file, s->parent_fd, s->name) < 0 ? -errno : 0;
	/* rename() replaces an empty directory. */
	if (renameat(s->parent_fd, s->part, s->parent_fd, s->name) == 0)
		return 0;
	if (errno != ENOTEMPTY && errno != EEXIST)
		return -errno;
	if (!s->opts.force)
		return -EEXIST;
	if (renameat2(s->parent_fd, s->part, s->parent_fd, s->name, RENAME_EXCHANGE) == 0)
		return 0;
	return is_unknown(errno) ? take_name_in_turn(s) : -errno;
}

static int publish_files(struct save *s, struct dcp_err *err)
{
	/* another program may have written into it meanwhile */
	int rc = save_check_replaced(s, err);

	if (rc < 0)
		return rc;
	rc = take_name(s);
	/* If the line cannot be written, the file is just not replaced later: the list of the
	 * directory may belong to another user. */
	if (rc == 0 && s->opts.file && !s->opts.overwrite)
		save_note_written(s, s->parent_fd);
	if (rc == 0 && fsync(s->parent_fd) < 0)
		rc = -errno;
	if (rc < 0)
		return save_fail(s, rc, s->name, err);
	s->published = true;
	rc = save_remove_tree(s->parent_fd, s->part);
	if (rc == 0 && s->aside)
		rc = save_remove_tree(s->parent_fd, s->old);
	if (rc == 0 && unlinkat(s->parent_fd, s->journal, 0) < 0)
		rc = -errno;
	return rc < 0 ? save_fail(s, rc, s->part, err) : 0;
}

int save_publish(struct save *s, struct dcp_err *err)
{
	return s->place->publish(s, err);
}

/* ---- the row ---- */

/* A file that exists already is of the save that is resumed. */
static int begin_file(struct save *s)
{
	const struct save_file *f = &save_files(s)[save_nfiles(s) - 1];

	if (!save_makes(s))
		return 0;
	s->planning_fd = save_open_at(s, f, O_CREAT | (s->opts.resume ? 0 : O_EXCL));
	return DCP_MIN(s->planning_fd, 0);
}

static int write_own(struct save *s, uint64_t off, const void *p, size_t n)
{
	return save_makes(s) ? save_pwrite(s->planning_fd, p, n, off) : 0;
}

/* Set the size of the file, and reserve its space. */
static int end_file(struct save *s)
{
	off_t n = (off_t)save_files(s)[save_nfiles(s) - 1].size;
	int rc = 0;

	if (s->planning_fd < 0)
		return 0;
	if (ftruncate(s->planning_fd, n) < 0 || (n && fallocate(s->planning_fd, 0, 0, n) < 0 &&
						 errno != EOPNOTSUPP && errno != ENOSYS))
		rc = -errno;
	dcp_close_fd(&s->planning_fd);
	return rc;
}

static int plan_files(struct save *s, struct dcp_err *err)
{
	char at[SAVE_PATH], *slash;
	struct statvfs fs;
	int rc;

	if (s->compares || !s->opts.dry)
		return s->compares ? save_compare(s, err) : save_journal_begin(s, err);
	/* Missing directories would be created in the nearest existing directory. */
	snprintf(at, sizeof(at), "%s", s->parent);
	while ((rc = statvfs(at, &fs)) < 0 && errno == ENOENT && (slash = strrchr(at, '/')))
		slash[slash == at] = '\0';
	if (rc < 0 && errno == ENOENT)
		rc = statvfs(".", &fs);
	return rc == 0 && fs.f_frsize && fs.f_bavail < s->bytes / fs.f_frsize
		       ? save_fail(s, -ENOSPC, s->name, err)
		       : 0;
}

static void put_nothing(const struct save *s, struct dcp_buf *out)
{
}

static int take_nothing(struct save *s, struct dcp_cur *in)
{
	return dcp_cur_left(in) ? -EPROTO : 0;
}

const struct save_place save_directory = {
	.create = create_files,
	.begin_file = begin_file,
	.own = write_own,
	.end_file = end_file,
	.planned = plan_files,
	.write = save_write_file,
	.sync = save_sync_files,
	.seal = seal_files,
	.publish = publish_files,
	.put = put_nothing,
	.take = take_nothing,
	.destroy = destroy_files,
};

/* ---- what others ask ---- */

const char *save_run_at(const struct save *s, size_t i, size_t *tensor, size_t *part)
{
	const struct save_run *run = &save_runs(s)[i];

	if (i >= save_nruns(s))
		return NULL;
	*tensor = run->tensor;
	*part = run->part;
	return save_files(s)[run->file].name;
}

const char *save_file_at(const struct save *s, size_t i, uint64_t *bytes)
{
	if (i >= save_nfiles(s))
		return NULL;
	*bytes = save_files(s)[i].size;
	return save_files(s)[i].name;
}

/* A piece that was written. */
struct notice {
	uint64_t number;
	struct save_sum sum;
};

int save_put_sums(const struct save *s, struct dcp_buf *out)
{
	uint64_t n = 0;

	for (size_t i = 0; i < s->npieces; i++)
		n += s->sums[i].done != 0;
	dcp_buf_varint(out, n);
	for (size_t i = 0; i < s->npieces; i++) {
		struct notice t = { i, s->sums[i] };

		if (t.sum.done)
			dcp_buf_add(out, &t, sizeof(t));
	}
	s->place->put(s, out);
	return dcp_buf_error(out);
}

int save_take_sums(struct save *s, const void *p, uint64_t n)
{
	struct dcp_cur in = dcp_cur(p, n);
	uint64_t notices = dcp_cur_varint(&in);
	struct notice t;

	for (; notices; notices--) {
		const uint8_t *at = dcp_cur_take(&in, sizeof(t));

		if (!at)
			return -EPROTO;
		memcpy(&t, at, sizeof(t));
		if (t.number >= s->npieces)
			return -EPROTO;
		s->sums[t.number] = t.sum;
	}
	return s->place->take(s, &in);
}

void save_count(const struct save *s, struct save_counts *out)
{
	*out = (struct save_counts){ .files = save_nfiles(s),
				     .bytes = s->bytes,
				     .data = s->data,
				     .plan = s->hash,
				     .written = s->written,
				     .kept = s->kept,
				     .copied = s->copied,
				     .direct = s->direct };
}
