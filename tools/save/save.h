/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save: a plan of core/write carried out: the files of one checkpoint, complete or not there at
 * all.
 *
 *	save_create()    is OUT free? the journal and a directory beside OUT, into which all goes
 *	save_plan()      runs the plan: makes the files, writes what the format makes itself
 *	save_data()      threads read parts from a source and write them; to the disk
 *	save_seal()      checksums into their places; the completing file gets its name; to the disk
 *	save_publish()   one rename gives it the name OUT
 *	save_destroy()   what was not published is removed
 *
 * Where a file system cannot exchange two names, an OUT that is replaced is called .NAME.dcpfs-old
 * for a moment.
 *
 * OUT/.. gets .NAME.dcpfs-part, a directory, and .NAME.dcpfs-journal, which says which pieces are
 * done and what their hashes are. Both begin with a dot and the first has no completing file before
 * the end, so whenever the process is killed, nothing there is taken for a checkpoint. The next
 * save_create() of that OUT removes them, or with resume goes on: pieces whose bytes still have
 * their hash stay.
 *
 * Memory: SAVE_PIECE and a page a thread, and what the plan needs: some 50 bytes for each part of a
 * tensor.
 *
 * Several processes share a save when each gives its rank: rank 0 creates and plans, then the
 * others do; all save_data(); rank 0 gets the others' sums by save_put_sums() and save_take_sums(),
 * seals and publishes. To resume, each looks at what is its own to write; there may be another
 * number of them than before. With by_owner the others may plan with rank 0.
 */
#pragma once
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/write/write.h"

struct dcp_buf;
struct dcp_err;
struct dcp_progress;
struct save;

#define SAVE_PIECE ((size_t)4 << 20) /* what is read and written at a time */
#define SAVE_MAX_JOBS 12             /* so all buffers have less than 64 MiB */

struct save_opts {
	const char *out; /* path of the checkpoint to be */
	bool file;       /* it is one file, not a directory */
	bool force;     /* a checkpoint that is there is replaced, if it is as dcpfs wrote it */
	bool overwrite; /* a file that is there is, whatever it is, and is in no list */
	bool dry;       /* only save_create() and save_plan(), which look and make nothing */
	bool resume;    /* go on where a save of the same was stopped */
	/*
	 * To be resumed, but what is there is of something else, and is removed now; may be NULL.
	 */
	void (*removed)(const char *out);
	unsigned jobs; /* threads; 0: as many as processors, at most 8 */
	uint32_t
		withheld; /* permission bits that nothing written gets, beside those of the umask */
	uint64_t identity;    /* of what is read: another number, and nothing is resumed */
	uint32_t rank, ranks; /* of the processes that share it; ranks 0: alone */
	/* each writes the parts of its own rank, and nothing is resumed; else equal shares */
	bool by_owner;
	bool direct; /* O_DIRECT, where the file system has it */
	/*
	 * Not 0: end with -ECANCELED; only the save of a bucket, which has to be undone, looks. May
	 * be NULL.
	 */
	const volatile int *stop;
	const struct dcp_progress *progress; /* called by the thread that calls save_data() */
};

/* Where data comes from. Called by several threads at a time, each with its own @job. */
struct save_source {
	/* [off, off + n) of a part, or (@tensor >= ntensors of the set) of an extra, into @buf. */
	int (*read)(void *ctx, unsigned job, size_t tensor, size_t part, uint64_t off,
		    void *buf, size_t n, struct dcp_err *err);
	/* Is it to be read now? What is not must come by another save_data(). NULL: all is. */
	bool (*has)(void *ctx, size_t tensor, size_t part);
	/*
	 * Have the kernel copy [off, off + n) of a part to @to of the file @fd: 1; 0: not so, read
	 * it. NULL: never. Not asked for what needs a CRC-32, and not with opts.direct.
	 */
	int (*copy)(void *ctx, unsigned job, size_t tensor, size_t part, uint64_t off,
		    uint64_t n, int fd, uint64_t to, struct dcp_err *err);
	void *ctx;
};

/*
 * Returns 0; -EEXIST (OUT is there, and @opts->force is not set or it is not as dcpfs wrote it),
 * -EISDIR or -ENOTDIR (OUT is there, and is a directory where a file is to be written, or a file
 * where a directory is), -EBUSY (another process is writing it), or what the file system said. What
 * @opts points to must stay.
 */
int save_create(const struct save_opts *opts, struct save **out, struct dcp_err *err);

/* The directory beside @out that all goes into, in @path; -ENAMETOOLONG, -EINVAL, -ENOMEM. */
#define SAVE_PATH (PATH_MAX + NAME_MAX + 2)
int save_part(const char *out, char path[SAVE_PATH]);

/*
 * @set must stay until the save is destroyed. -EALREADY: it was to be resumed, and OUT is there
 * with all its files, as long as they would be; save_sealed() is its path.
 */
int save_plan(struct save *s, const struct dcp_write_format *f, const struct dcp_write_set *set,
	      const struct dcp_write_opts *opts, struct dcp_err *err);

int save_data(struct save *s, const struct save_source *source, struct dcp_err *err);
int save_seal(struct save *s, struct dcp_err *err);
int save_publish(struct save *s, struct dcp_err *err);
/* Accepts NULL. */
void save_destroy(struct save *s);

/* The path of what was sealed, before it is published: a directory or a file. */
const char *save_sealed(const struct save *s);

/*
 * Run number @i of the plan is of what tensor and part, and the name of its file; NULL: there are
 * no more.
 */
const char *save_run_at(const struct save *s, size_t i, size_t *tensor, size_t *part);

/* The name of file number @i of the plan, and its bytes; NULL: there are no more. */
const char *save_file_at(const struct save *s, size_t i, uint64_t *bytes);

/* Append what is known of the pieces that this process wrote, for the one that seals. -ENOMEM. */
int save_put_sums(const struct save *s, struct dcp_buf *out);
/* Take what another process has put. -EPROTO: there is no such piece. */
int save_take_sums(struct save *s, const void *p, uint64_t n);

struct save_counts {
	uint64_t plan;          /* a hash of it: equal in processes that share a save */
	uint64_t files, bytes;  /* of the plan */
	uint64_t data, written; /* bytes of tensors and extras: in the plan; by this process */
	uint64_t kept;          /* of those, found done by save_data() when resuming */
	uint64_t copied;        /* of those, by the kernel from file to file */
	uint64_t direct;        /* of those, by O_DIRECT */
};
void save_count(const struct save *s, struct save_counts *out);

/* All of @n bytes at @off of a file. A negative errno. */
int save_pwrite(int fd, const void *p, uint64_t n, uint64_t off);
