/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_int: what the files of a save share.
 */
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

/* The name of the completing file until all else is on the disk. */
#define SAVE_LAST ".dcpfs-last"
#define SAVE_PAGE 4096 /* what O_DIRECT wants places and memory to be multiples of */
#define SAVE_MARK 5    /* bytes of "dcpfs", with which a journal begins */

struct save_file {
	const char *name;
	uint64_t size;
	bool last;
};

/* What is known of a piece that was written. */
struct save_sum {
	uint64_t hash;
	uint32_t crc32; /* where the plan asked for that of its run */
	uint32_t done;  /* 2: the kernel has copied it, and there is no hash */
};

/* Data that stands at [off, off + n) of a file. */
struct save_run {
	uint64_t off, n, at; /* @at: bytes of all runs before */
	uint64_t from, raw;  /* it is [from, from + raw) of the part */
	size_t tensor, part;
	size_t piece; /* its first */
	uint32_t file;
	uint32_t rank; /* whose the part is */
	bool crc32;    /* it was asked for */
	bool text;
};

/* Where the CRC-32 of a run goes. */
struct save_patch {
	uint64_t off;
	size_t run;
	uint32_t file, before; /* @before: the CRC-32 that it goes on from */
};

struct save;

/* What a thread writes with: a directory's open files. */
struct save_pen {
	int fd, direct; /* @direct: the same file by O_DIRECT; -1: not so */
	uint32_t file;  /* that fd is */
};
#define SAVE_PEN                                                                               \
	{                                                                                      \
		.fd = -1, .direct = -1                                                         \
	}

/*
 * Where a save goes: a directory beside OUT that gets its name (save.c), or a bucket, where what
 * was uploaded is not seen before the end (bucket.c). All return 0 or a negative errno.
 */
struct save_place {
	int (*create)(struct save *s, struct dcp_err *err);
	/*
	 * While the plan runs: the last of the files begins; what the format itself has at @off of
	 * it; it has its size.
	 */
	int (*begin_file)(struct save *s);
	int (*own)(struct save *s, uint64_t off, const void *p, size_t n);
	int (*end_file)(struct save *s);
	/* All is known. -EALREADY as save_plan(). */
	int (*planned)(struct save *s, struct dcp_err *err);
	/* Data of a file. Any thread, with a pen of its own. */
	int (*write)(struct save *s, struct save_pen *pen, uint32_t file, uint64_t off,
		     const void *p, uint64_t n);
	/* A piece of that run was written, and its sum noted. NULL: nothing is to be done. */
	int (*wrote)(struct save *s, const struct save_run *run);
	/* What this process wrote is safe. */
	int (*sync)(struct save *s, struct dcp_err *err);
	int (*seal)(struct save *s, struct dcp_err *err);
	int (*publish)(struct save *s, struct dcp_err *err);
	/* Append what the process that seals has to know; take it. */
	void (*put)(const struct save *s, struct dcp_buf *out);
	int (*take)(struct save *s, struct dcp_cur *in);
	void (*destroy)(struct save *s);
};
extern const struct save_place save_directory, save_bucket;

struct save {
	const struct save_place *place;
	struct save_uploads *uploads; /* of a bucket */
	struct dcp_err why;           /* a request to it failed */
	/* Of each file, the process that writes it; NULL: any may. */
	uint32_t *owner;
	struct save_opts opts;
	const struct dcp_write_set *set;
	struct dcp_arena arena;
	char parent[PATH_MAX], name[NAME_MAX + 1]; /* OUT is parent/name */
	char part[NAME_MAX + 1], journal[NAME_MAX + 1], old[NAME_MAX + 1];
	char sealed[PATH_MAX + NAME_MAX + 2];
	int parent_fd, dir, journal_fd;
	int planning_fd; /* of the file that the plan is at; -1: none */
	bool made, published;
	bool fresh;    /* this save has made the journal */
	bool aside;    /* what had the name is called @old */
	bool compares; /* to be resumed, but OUT is there: only noted, to be compared with it */
	/* of the plan */
	struct dcp_buf files, runs, patches;
	uint64_t hash, bytes, data;
	size_t npieces;
	/* the journal */
	void *map;
	size_t mapped;
	struct save_sum *sums; /* of all pieces, as far as this process knows */
	struct save_sum
		*noted; /* the same in the journal, by all processes; NULL: it has none */
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

/* The only process, or the process that makes and names files. */
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

/* The same for what was made before, by a save that had other options. A negative errno. */
int save_narrow(const struct save *s, int fd);

/*
 * Keep why a request to a bucket failed, for save_fail(), if none did before. Any thread. Returns
 * @rc.
 */
int save_keep_why(struct save *s, int rc, const struct dcp_err *why);
/* "OUT: writing FILE: No space left on device". @code: as dcp_fail(). */
int save_fail(const struct save *s, int code, const char *file, struct dcp_err *err);

/*
 * Below the directory that all goes into others may write, too, where the umask lets them: no link
 * in it is followed. Open the directory that *name, which moves on to its last component, lies in;
 * @make it where it is not there.
 */
int save_open_parent(const struct save *s, const char **name, bool make);
/* Open a file there, to be read and written; O_CREAT makes its directories, too. */
int save_open_at(const struct save *s, const struct save_file *f, int flags);
/* Open file number @file to be read and written. Negative: -errno. */
int save_open(const struct save *s, uint32_t file);
/* The same to be written past the page cache. */
void save_close_pen(struct save_pen *pen);
int save_pick_file(const struct save *s, struct save_pen *pen, uint32_t file);
int save_write_file(struct save *s, struct save_pen *pen, uint32_t file, uint64_t at,
		    const void *from, uint64_t n);
int save_sync_files(struct save *s, struct dcp_err *err);
/* -EIO: the file is shorter. */
int save_pread(int fd, void *p, uint64_t n, uint64_t off);

/* ---- the journal ---- */

/* Make or open it, and lock it. -EBUSY: another process has it. */
int save_journal_open(struct save *s, struct dcp_err *err);
/*
 * The plan is known: room for its pieces, those of an earlier save of the same kept when that is to
 * be resumed. -ESTALE: the earlier one is of another plan. Rank 0 first.
 */
int save_journal_begin(struct save *s, struct dcp_err *err);
/* Is there a plan in it? Else what stands beside it is nothing to go on with. */
bool save_journal_has_plan(const struct save *s);
void save_journal_close(struct save *s);

/* ---- files and directories ---- */

/* A directory that is not a link; NULL: errno. */
DIR *save_open_dir(int parent, const char *name);
/* The name of its next entry but "." and ".."; NULL: there is none. */
const char *save_next_name(DIR *dir);
/* Remove all that is in the directory, and it. 0 when there is none. */
int save_remove_tree(int parent, const char *name);
/* Remove all that was written. */
int save_clear(struct save *s, struct dcp_err *err);
/* The CRC-32 that goes to a place of a file. */
uint32_t save_crc32_of(const struct save *s, const struct save_patch *patch);
/*
 * Add what is in the files to the list of the directory @dir that holds them, or, of one file, it.
 */
int save_note_written(const struct save *s, int dir);
/* -EEXIST: what has the name is to be replaced, and is not as dcpfs wrote it. */
int save_check_replaced(const struct save *s, struct dcp_err *err);

/*
 * uploads: the files of a save into a bucket, each an upload of parts, or one request where all of
 * it is the format's own. What bucket.c decides, uploads.c does.
 */

struct dcp_put;
struct dcp_remote;

#define SAVE_BATCH 64 /* requests handed over at a time */

struct save_uploads {
	struct dcp_remote *bucket;
	char *key; /* of OUT; a directory's without its slash */
	/* of the plan */
	struct dcp_buf own,
		bytes; /* what the format itself makes: struct own, and their bytes */
	struct save_upload *uploads;    /* by file */
	struct save_upload_part *parts; /* of all files */
	size_t nparts;
	uint32_t *left;       /* pieces of a run with a checksum that are not written; by run */
	size_t *first, *next; /* patches of a run; by run, by patch: + 1, 0: none */
	struct dcp_buf old;   /* what is replaced: char * of keys */
	bool handed;          /* another process completes or aborts the uploads */
	pthread_mutex_t lock; /* of parts */
};

/* All return 0 or a negative errno, and have kept why for save_fail(). */

/* dcp_bucket_put() of them. */
int save_put_all(struct save *s, struct dcp_put *puts, size_t n);
/* Delete these objects. */
int save_delete_all(struct save *s, char *const *keys, size_t n);
/* What the format itself has at @off of the last file of the plan. */
int save_upload_own(struct save *s, uint64_t off, const void *p, size_t n);
/* Each file has its owner: begin the uploads of this process. */
int save_begin_uploads(struct save *s);
/* As the functions of struct save_place. */
int save_upload_bytes(struct save *s, struct save_pen *pen, uint32_t file, uint64_t off,
		      const void *from, uint64_t n);
int save_upload_wrote(struct save *s, const struct save_run *run);
int save_upload_sync(struct save *s, struct dcp_err *err);
void save_put_uploads(const struct save *s, struct dcp_buf *out);
int save_take_uploads(struct save *s, struct dcp_cur *in);
/* The files that complete the checkpoint (@last), or the others, become objects. */
int save_complete_files(struct save *s, bool last);
/* Abort what was begun, and remove what this save completed. */
void save_undo_uploads(struct save *s);
void save_free_uploads(struct save *s);
