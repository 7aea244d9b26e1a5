/* SPDX-License-Identifier: Apache-2.0 */
/* save_int: declarations that the files of tools/save share. */
#pragma once
#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "tools/save/save.h"

/* The name of the completing file until all other files are on the disk. */
#define SAVE_LAST ".dcpfs-last"
#define SAVE_PAGE 4096 /* O_DIRECT needs offsets and addresses that are multiples of this */
#define SAVE_MARK 5    /* bytes of "dcpfs", with which a journal begins */

struct save_file {
	const char *name;
	uint64_t size;
	bool last;
};

/* The sums of a piece that was written. */
struct save_sum {
	uint64_t hash;
	uint32_t crc32; /* set if the plan asked for the CRC-32 of the run */
	/* 0: not done; 2: the kernel has copied the piece, so there is no hash */
	uint32_t done;
};

/* Data of a part at bytes [off, off + n) of a file. */
struct save_run {
	uint64_t off, n, at; /* @at: bytes of all earlier runs */
	uint64_t from, raw;  /* the run is bytes [from, from + raw) of the part */
	size_t tensor, part;
	size_t piece; /* number of its first piece */
	uint32_t file;
	uint32_t rank; /* the rank that the part belongs to */
	bool crc32;    /* the plan asked for the CRC-32 */
	bool text;
};

/* Where the CRC-32 of a run is written. */
struct save_patch {
	uint64_t off;
	size_t run;
	uint32_t file, before; /* @before: the CRC-32 of the bytes before the run */
};

struct save;

/* The open files that a thread writes with. */
struct save_pen {
	int fd, direct; /* @direct: the same file opened with O_DIRECT; -1: not opened */
	uint32_t file;  /* number of the file that @fd is */
};
#define SAVE_PEN                                                                               \
	{                                                                                      \
		.fd = -1, .direct = -1                                                         \
	}

/*
 * The place that a save writes to: a directory beside OUT that is renamed at the end (save.c), or a
 * bucket, whose uploads are invisible before the end (bucket.c). All functions return 0 or a
 * negative errno.
 */
struct save_place {
	int (*create)(struct save *s, struct dcp_err *err);
	/*
	 * Called while the plan runs. begin_file(): the last file of @files begins; own(): bytes
	 * that the format generates, at @off of this file; end_file(): the size of the file is
	 * known.
	 */
	int (*begin_file)(struct save *s);
	int (*own)(struct save *s, uint64_t off, const void *p, size_t n);
	int (*end_file)(struct save *s);
	/* The plan is complete. -EALREADY as save_plan(). */
	int (*planned)(struct save *s, struct dcp_err *err);
	/* Write data of a file. Any thread, with a pen of its own. */
	int (*write)(struct save *s, struct save_pen *pen, uint32_t file, uint64_t off,
		     const void *p, uint64_t n);
	/* A piece of @run was written and its sum recorded. NULL: nothing to do. */
	int (*wrote)(struct save *s, const struct save_run *run);
	/* Make the data of this process durable. */
	int (*sync)(struct save *s, struct dcp_err *err);
	int (*seal)(struct save *s, struct dcp_err *err);
	int (*publish)(struct save *s, struct dcp_err *err);
	/* put() appends data for the process that seals; take() reads it there. */
	void (*put)(const struct save *s, struct dcp_buf *out);
	int (*take)(struct save *s, struct dcp_cur *in);
	void (*destroy)(struct save *s);
};
extern const struct save_place save_directory, save_bucket;

struct save {
	const struct save_place *place;
	struct save_uploads *uploads; /* for a bucket */
	struct dcp_err why;           /* why a request to the bucket failed */
	/* By file: the process that writes it; NULL: any process may. */
	uint32_t *owner;
	struct save_opts opts;
	const struct dcp_write_set *set;
	struct dcp_arena arena;
	char parent[PATH_MAX], name[NAME_MAX + 1]; /* OUT is parent/name */
	char part[NAME_MAX + 1], journal[NAME_MAX + 1], old[NAME_MAX + 1];
	char sealed[PATH_MAX + NAME_MAX + 2];
	int parent_fd, dir, journal_fd;
	int planning_fd; /* descriptor of the file that is being planned; -1: none */
	bool made, published;
	bool fresh; /* this save has made the journal */
	bool aside; /* the former OUT is renamed to @old */
	/* when resuming, OUT already exists: files are recorded only, to be compared with OUT */
	bool compares;
	/* of the plan */
	struct dcp_buf files, runs, patches;
	uint64_t hash, bytes, data;
	size_t npieces;
	/* the journal */
	void *map;
	size_t mapped;
	struct save_sum *sums; /* of all pieces that this process knows of */
	/* the sums in the journal, by all processes; NULL: the journal has none */
	struct save_sum *noted;
	bool resumed;
	uint64_t written, kept, copied, direct;
};

static inline struct save_file *save_files(const struct save *s)
{
	return DCP_ITEMS(s->files, struct save_file);
}

static inline size_t save_nfiles(const struct save *s)
{
	return DCP_NITEMS(s->files, struct save_file);
}

static inline struct save_run *save_runs(const struct save *s)
{
	return DCP_ITEMS(s->runs, struct save_run);
}

static inline size_t save_nruns(const struct save *s)
{
	return DCP_NITEMS(s->runs, struct save_run);
}

/* Is this the process that makes and names files, or the only one? */
static inline bool save_leads(const struct save *s)
{
	return s->opts.rank == 0;
}

/* Does this process make files? */
static inline bool save_makes(const struct save *s)
{
	return save_leads(s) && !s->compares && !s->opts.dry;
}

/* The mode to make a file or directory with. */
static inline mode_t save_mode(const struct save *s, mode_t mode)
{
	return mode & ~(mode_t)s->opts.withheld;
}

/* Set the mode of a file or directory that an earlier save made with other options. 0 or a negative
 * errno. */
int save_narrow(const struct save *s, int fd);

/* Record for save_fail() why a request to a bucket failed, unless an earlier failure is recorded.
 * Any thread. Returns @rc. */
int save_keep_why(struct save *s, int rc, const struct dcp_err *why);
/* "OUT: writing FILE: No space left on device". @code: as dcp_fail(). */
int save_fail(const struct save *s, int code, const char *file, struct dcp_err *err);

/*
 * Open the directory that contains *name, and move *name on to its last component. @make: create
 * the directory if it does not exist. No link is followed, because other users may write into the
 * directory of the save if the umask permits it.
 */
int save_open_parent(const struct save *s, const char **name, bool make);
/* Open a file of the save for reading and writing; O_CREAT also makes its directories. */
int save_open_at(const struct save *s, const struct save_file *f, int flags);
/* Open file number @file for reading and writing. A descriptor, or a negative errno. */
int save_open(const struct save *s, uint32_t file);
/* Writing with a pen, also by O_DIRECT. */
void save_close_pen(struct save_pen *pen);
int save_pick_file(const struct save *s, struct save_pen *pen, uint32_t file);
int save_write_file(struct save *s, struct save_pen *pen, uint32_t file, uint64_t at,
		    const void *from, uint64_t n);
int save_sync_files(struct save *s, struct dcp_err *err);
/* Read all @n bytes at @off. -EIO: the file is shorter. */
int save_pread(int fd, void *p, uint64_t n, uint64_t off);

/* ---- the journal ---- */

/* Make or open the journal, and lock it. -EBUSY: another process has locked it. */
int save_journal_open(struct save *s, struct dcp_err *err);
/* Called when the plan is known: makes room for the sums of its pieces, and when resuming keeps the
 * sums of the earlier save. -ESTALE: the journal is of another plan. Rank 0 calls it first. */
int save_journal_begin(struct save *s, struct dcp_err *err);
/* Has the journal a plan? Without a plan the directory beside it cannot be resumed. */
bool save_journal_has_plan(const struct save *s);
void save_journal_close(struct save *s);

/* ---- files and directories ---- */

/* Open a directory that is not a link. NULL: errno is set. */
DIR *save_open_dir(int parent, const char *name);
/* The name of its next entry other than "." and ".."; NULL: there is none. */
const char *save_next_name(DIR *dir);
/* Remove the directory and everything in it. 0 also if it does not exist. */
int save_remove_tree(int parent, const char *name);
/* Replace the directory of the save by an empty one. */
int save_clear(struct save *s, struct dcp_err *err);
/* The CRC-32 that @patch writes into a file. */
uint32_t save_crc32_of(const struct save *s, const struct save_patch *patch);
/* Add the written files to the list of the directory @dir that holds them; for a checkpoint of one
 * file, add this file. */
int save_note_written(const struct save *s, int dir);
/* -EEXIST: the existing OUT, which is to be replaced, was changed since dcpfs wrote it. */
int save_check_replaced(const struct save *s, struct dcp_err *err);

/* uploads: the files of a save into a bucket. Each file is a multipart upload, or a single request
 * if the format generates all of its bytes. bucket.c decides, uploads.c executes. */

struct dcp_put;
struct dcp_remote;

#define SAVE_BATCH 64 /* requests in one batch */

struct save_uploads {
	struct dcp_remote *bucket;
	char *key; /* key of OUT; for a directory, without the final slash */
	/* of the plan */
	/* bytes that the format generates: struct own, and the bytes */
	struct dcp_buf own, bytes;
	struct save_upload *uploads;    /* by file */
	struct save_upload_part *parts; /* of all files */
	size_t nparts;
	/* by run with a checksum: number of pieces that are not written yet */
	uint32_t *left;
	/* the patches of a run as a list: @first is by run, @next by patch; number + 1, 0: none */
	size_t *first, *next;
	struct dcp_buf old;   /* keys (char *) of the objects that are replaced */
	bool handed;          /* another process completes or aborts the uploads */
	pthread_mutex_t lock; /* of parts */
};

/* All functions below return 0 or a negative errno, and have recorded the reason for
 * save_fail(). */

/* Make @n requests by dcp_bucket_put(). */
int save_put_all(struct save *s, struct dcp_put *puts, size_t n);
int save_delete_all(struct save *s, char *const *keys, size_t n);
/* Add bytes that the format generates, at @off of the last file of the plan. */
int save_upload_own(struct save *s, uint64_t off, const void *p, size_t n);
/* Begin the uploads of the files that this process owns. */
int save_begin_uploads(struct save *s);
/* The functions below implement those of struct save_place. */
int save_upload_bytes(struct save *s, struct save_pen *pen, uint32_t file, uint64_t off,
		      const void *from, uint64_t n);
int save_upload_wrote(struct save *s, const struct save_run *run);
int save_upload_sync(struct save *s, struct dcp_err *err);
void save_put_uploads(const struct save *s, struct dcp_buf *out);
int save_take_uploads(struct save *s, struct dcp_cur *in);
/* Turn the uploads into objects: those of the files that complete the checkpoint (@last), or those
 * of all other files. */
int save_complete_files(struct save *s, bool last);
/* Abort the uploads that were begun, and delete the objects that this save completed. */
void save_undo_uploads(struct save *s);
void save_free_uploads(struct save *s);
