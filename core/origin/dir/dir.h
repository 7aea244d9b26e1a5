/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir: one checkpoint directory: its names, and a safe way to open them.
 *
 * Names found inside a checkpoint are not paths to be trusted. Everything is opened below the
 * directory's descriptor with openat2(RESOLVE_BENEATH) (or, on kernels without it, one O_NOFOLLOW
 * component at a time): absolute names, ".." and links that lead out are refused with -EXDEV,
 * whatever the metadata says. Links that stay inside, and links of Hugging Face's download cache
 * (open.c), are followed.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/intern.h"
#include "core/model/rights.h"
#include "core/model/tensor.h"
#include "core/origin/origin.h"

struct dcp_err;
struct dcp_seen;

struct dcp_archive;

struct dcp_dir {
	struct dcp_site at;
	const char *path; /* for messages, and for seen */
	/* the directory has only this entry, the regular file @path */
	bool is_file;
	struct dcp_dirent *entries; /* sorted by name, bytewise; "." and ".." left out */
	size_t n;
	struct dcp_arena arena;
};

/*
 * List @path. A regular file is shown as a directory of this file alone, with the path of the file
 * and the descriptor of its real directory. -ENOENT, -ENOTDIR (neither), -EACCES, -ENOMEM, -E2BIG
 * (over a million names). @seen, if not NULL, records what is examined, and must outlive the
 * directory and those below it.
 */
int dcp_dir_open_seen(const char *path, struct dcp_seen *seen, struct dcp_dir *out,
		      struct dcp_err *err);
/* The same, without a record. */
int dcp_dir_open(const char *path, struct dcp_dir *out, struct dcp_err *err);
/* The same for the directory @name below @parent. */
int dcp_dir_open_at(const struct dcp_dir *parent, const char *name, struct dcp_dir *out,
		    struct dcp_err *err);
/* The entries of @d for which @keep is true, as a directory of their own. -ENOMEM, -EMFILE. */
int dcp_dir_only(const struct dcp_dir *d, bool (*keep)(void *ctx, const struct dcp_dirent *e),
		 void *ctx, struct dcp_dir *out);
void dcp_dir_close(struct dcp_dir *d);
#define dcp_auto_dir __attribute__((cleanup(dcp_dir_close)))

/* Record in d->at.seen that the result depends on the identity of the file @name. */
void dcp_dir_note(const struct dcp_dir *d, const char *name);

/* The entry of exactly that name, or NULL. */
const struct dcp_dirent *dcp_dir_find(const struct dcp_dir *d, const char *name);

/* Does @d have a file of that name? A directory of that name? */
static inline bool dcp_dir_has_file(const struct dcp_dir *d, const char *name)
{
	const struct dcp_dirent *e = dcp_dir_find(d, name);

	return e && !e->is_dir;
}

static inline bool dcp_dir_has_dir(const struct dcp_dir *d, const char *name)
{
	const struct dcp_dirent *e = dcp_dir_find(d, name);

	return e && e->is_dir;
}

/* A file of a checkpoint, opened to be parsed. @name is passed to the sink; the file may lie in a
 * directory below @d ("sharded/x"). */
struct dcp_input {
	struct dcp_source src; /* the whole file */
	struct dcp_blob blob;
};
int dcp_dir_input(const struct dcp_dir *d, const char *name, struct dcp_input *out,
		  struct dcp_err *err);
void dcp_input_close(struct dcp_input *in);
#define dcp_auto_input __attribute__((cleanup(dcp_input_close)))

/*
 * Files inside other files, shown as a directory: the members of tar archives, or the decoded
 * content of a compressed file. An archive is first filled, then opened; its directories borrow it.
 */
int dcp_archive_create(struct dcp_archive **out);
/* The members of the tar archive @in, which is taken, also on failure. If two archives
 * have the same member, the archive that was added first wins. As dcp_tar_list(). */
int dcp_archive_add_tar(struct dcp_archive *a, struct dcp_input *in, struct dcp_err *err);
/* Add all of @in (taken, also on failure) as one file. -ENOMEM. */
int dcp_archive_add_file(struct dcp_archive *a, struct dcp_input *in, const char *name,
			 struct dcp_err *err);
/* The top directory, called @path in messages. -ENOMEM, -E2BIG. */
int dcp_dir_of_archive(struct dcp_archive *a, const char *path, struct dcp_dir *out,
		       struct dcp_err *err);
/* Find the place of the file @name in a directory of an archive: the number of the input (from 0,
 * in the order of adding), and the offset of the first byte in it. -ENOENT; names as for
 * dcp_dir_input(). */
int dcp_archive_find(const struct dcp_dir *d, const char *name, uint32_t *input, uint64_t *off,
		     struct dcp_err *err);
void dcp_archive_close(struct dcp_archive *a);

/* Identity of a file as the index records it. */
void dcp_file_id_from_stat(const struct stat *st, struct dcp_file_id *id);
/* A time of a struct dcp_file_id as a struct timespec, correct also before 1970. */
struct timespec dcp_file_time(int64_t ns);
bool dcp_file_id_same(const struct dcp_file_id *a, const struct dcp_file_id *b);
/* Has the file @now the same content as @want? Changes of names and rights do not count. 0,
 * -ESTALE, or -EIO: the file became shorter. */
int dcp_file_id_content(const struct dcp_file_id *now, const struct dcp_file_id *want);
/* The longest clock tick of file systems in use. Two changes within one tick look like one. */
#define DCP_TICK_NS 2000000000ll
/* Was the file changed so shortly before @ns (by the clock of its file system) that a second change
 * would not be visible? */
bool dcp_file_id_racy(const struct dcp_file_id *id, int64_t ns);

/*
 * seen: what a scan of directories depended on: the directories that were listed, the files that
 * were read or stat'ed, and the identity (inode, size, times) of each just before.
 *
 * While all of these are unchanged, another scan would have the same result. The check costs one
 * statx for each, instead of a listing and a stat of every entry. It misses only changes
 * in place of the size or kind of files that were listed but not examined.
 */

#define DCP_SEEN_MAX 100000

struct dcp_seen {
	struct dcp_intern paths;
	struct dcp_buf looks; /* struct dcp_look, by the numbers of paths */
	int64_t newest_ns;    /* the latest change of any of them */
	bool failed;          /* incomplete: no memory, or more than DCP_SEEN_MAX */
	int shortage;         /* -EMFILE, -ENFILE or -ENOMEM: something could not be opened */
};

struct dcp_look {
	struct dcp_file_id id; /* without a name; inode 0: the file did not exist */
	bool listed;           /* a listed directory, or the source, which may be a file */
};

void dcp_seen_finish(struct dcp_seen *s);

/* Note the current identity of @name in the directory @dirfd, whose path is @above (NULL: @name is
 * a path). If @name was noted before, the first note stays. @s may be NULL. */
void dcp_seen_note(struct dcp_seen *s, int dirfd, const char *above, const char *name,
		   bool listed);

/* Report that opening a file or directory returned @code. If descriptors or memory were short, the
 * scan may have missed it, so s->shortage is set. @s may be NULL. Returns @code. */
int dcp_seen_opening(struct dcp_seen *s, int code);

size_t dcp_seen_count(const struct dcp_seen *s);
const char *dcp_seen_path(const struct dcp_seen *s, size_t i);
const struct dcp_look *dcp_seen_at(const struct dcp_seen *s, size_t i);

/* Is everything unchanged? Network file systems are forced to ask their server. The number of
 * system calls is added to @calls. */
bool dcp_seen_same(const struct dcp_seen *s, uint64_t *calls);

/*
 * pages: which parts of a file of the file system the kernel has in memory.
 *
 * For callers that have the descriptor or the mapping of a blob, which only the file system offers.
 * Any thread.
 */

/* Is byte @off of the file in the page cache? */
bool dcp_is_cached(int fd, uint64_t off);
/* Is the page of a mapping that contains @at in memory? True also if that cannot be determined. */
bool dcp_is_resident(const uint8_t *at);
/* Make the kernel begin to read @n bytes at @off, without waiting. */
void dcp_bring_near(int fd, uint64_t off, uint64_t n);
/* From now on, reads through @fd cause no read-ahead. */
void dcp_stop_ahead(int fd);
/* Drop the file from the page cache, also what is in the mapping @map of @size bytes (NULL: none).
 * Pages that others map stay. */
void dcp_forget_pages(int fd, const uint8_t *map, uint64_t size);
/* A new descriptor of the same file, whose reads pass the page cache by (O_DIRECT); or a negative
 * errno. */
int dcp_open_direct(int fd);
/* Copy between two files inside the kernel. 1: done; 0: not possible, or only in part: the caller
 * then reads all the bytes, and so meets any error. */
int dcp_copy_range(int from, uint64_t off, int fd, uint64_t to, uint64_t n);

/*
 * rights: who may use a file or directory of the file system, by its owner, mode and access control
 * list.
 *
 * Only the file system has these, so a file of another source is for the user of this process
 * alone. Any thread.
 */

/* Rights of the user of this process alone. */
struct dcp_rights dcp_rights_alone(void);

/* The owner, the group, and the bits 0444 of the mode, as shown. -ENOENT, ... */
int dcp_rights_shown(const char *path, struct dcp_rights *out);

/*
 * The rights of users who have all permissions @need on @path, links followed. If they cannot be
 * found out, or the file system decides by more than mode and list (FUSE, SMB, unknown ones; NFSv4
 * with entries for single users), only the user of this process has rights. @dev: the last device
 * found to decide by them alone, 0 at first; NULL: count the mode and list as they are shown.
 */
struct dcp_rights dcp_rights_of_path(const char *path, uint32_t need, uint64_t *dev);

/*
 * notify: what the kernel reports of changes in the file system (inotify).
 *
 * No other kind of source reports changes, nor does the kernel report those that another machine
 * makes. The caller watches again and again what its last look depended on, and looks by itself
 * now and then while @blind is set. For one thread.
 */

struct dcp_notify {
	int fd;     /* readable after a change; -1: the kernel reports nothing */
	bool blind; /* not all changes are reported */
	bool added; /* there are watches that were not there before dcp_notify_begin() */
	/* for the implementation */
	struct dcp_buf list;
	unsigned round;
	uint64_t local;
};

enum dcp_notify_of {
	DCP_NOTIFY_ALL,    /* of a file, or of a directory and its entries */
	DCP_NOTIFY_NAME,   /* of the name of a directory */
	DCP_NOTIFY_RIGHTS, /* of the name and the rights of a directory */
};

void dcp_notify_open(struct dcp_notify *n);
void dcp_notify_finish(struct dcp_notify *n);

/* Begin to name what is to be watched; the end drops every watch that was not named again, and
 * returns how many there are. */
void dcp_notify_begin(struct dcp_notify *n);
size_t dcp_notify_end(struct dcp_notify *n);

/* Watch @path, links followed. 0 or a negative errno; -ENOSPC: there are too many watches. */
int dcp_notify_add(struct dcp_notify *n, const char *path, enum dcp_notify_of what);

/* What lies at @path is depended on. False, and @n is blind: other machines may change it. @dev:
 * the device; 0: not known. */
bool dcp_notify_need(struct dcp_notify *n, const char *path, uint64_t dev);

/* Take the pending reports; true if any is of a change that matters. */
bool dcp_notify_take(const struct dcp_notify *n);
