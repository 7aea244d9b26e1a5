/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save: executes a plan of core/write. The checkpoint appears complete, or not at all.
 *
 *	save_create()    checks that OUT is free; makes the journal and a directory beside OUT
 *	save_plan()      runs the plan: makes the files, writes the bytes that the format generates
 *	save_data()      threads read parts from a source, write them, and sync the files
 *	save_seal()      fills in checksums, gives the completing file its name, syncs
 *	save_publish()   renames the directory to OUT
 *	save_destroy()   removes a checkpoint that was not published
 *
 * If the file system cannot exchange two names, an OUT that is replaced has the name
 * .NAME.dcpfs-old for a moment.
 *
 * The directory is OUT/../.NAME.dcpfs-part. The journal, .NAME.dcpfs-journal beside it, lists the
 * pieces that are done and their hashes. Both names begin with a dot, and the directory has no
 * completing file before the end, so if the process is killed, no reader mistakes the leftovers for
 * a checkpoint. The next save_create() of the same OUT removes them, or with resume continues:
 * pieces whose bytes still match their hash are kept.
 *
 * Memory: SAVE_PIECE and a page for each thread, and some 50 bytes for each part of a tensor in the
 * plan.
 *
 * Several processes can share a save; each gives its rank. Rank 0 creates and plans, then the other
 * ranks do; all ranks call save_data(); rank 0 gets the sums of the others by save_put_sums() and
 * save_take_sums(), seals and publishes. To resume, each rank checks the pieces that it has to
 * write; the number of ranks may differ from the first try. With by_owner the other ranks may plan
 * at the same time as rank 0.
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

#define SAVE_PIECE ((size_t)4 << 20) /* bytes read and written at a time */
#define SAVE_MAX_JOBS 12             /* so that all buffers together stay below 64 MiB */

struct save_opts {
	const char *out; /* path of the checkpoint to be */
	bool file;       /* @out is one file, not a directory */
	/* replace an existing checkpoint, if it is unchanged since dcpfs wrote it */
	bool force;
	/* replace an existing file whatever it is; the new file is in no list of written files */
	bool overwrite;
	/* only save_create() and save_plan() are called; they check and make nothing */
	bool dry;
	bool resume; /* continue an interrupted save of the same data */
	/* Called before leftovers of a different save are deleted, when resuming; may be NULL. */
	void (*removed)(const char *out);
	unsigned jobs; /* threads; 0: as many as processors, at most 8 */
	/* permission bits that no file gets, in addition to the umask */
	uint32_t withheld;
	/* of the data that is read; a save with another identity is not resumed */
	uint64_t identity;
	uint32_t rank, ranks; /* of the processes that share the save; ranks 0: alone */
	/* each process writes the parts of its own rank, and nothing is resumed; otherwise all
	 * write equal shares */
	bool by_owner;
	bool direct; /* O_DIRECT, where the file system has it */
	/* Nonzero: end with -ECANCELED. Only a save into a bucket, which has to be undone, checks
	 * it. May be NULL. */
	const volatile int *stop;
	const struct dcp_progress *progress; /* called by the thread that calls save_data() */
};

/* The source of the data. Called by several threads at a time, each with its own @job. */
struct save_source {
	/* Read bytes [off, off + n) of a part, or if @tensor >= ntensors of the set, of an extra,
	 * into @buf. */
	int (*read)(void *ctx, unsigned job, size_t tensor, size_t part, uint64_t off,
		    void *buf, size_t n, struct dcp_err *err);
	/* Can this part be read now? The other parts must come by another save_data(). NULL: all
	 * parts can. */
	bool (*has)(void *ctx, size_t tensor, size_t part);
	/*
	 * Have the kernel copy bytes [off, off + n) of a part to offset @to of the file @fd.
	 * Returns 1, or 0 if the part has to be read instead. NULL: parts are always read. Not
	 * called for runs that need a CRC-32, and not with opts.direct.
	 */
	int (*copy)(void *ctx, unsigned job, size_t tensor, size_t part, uint64_t off,
		    uint64_t n, int fd, uint64_t to, struct dcp_err *err);
	void *ctx;
};

/*
 * Returns 0; -EEXIST (OUT exists, and @opts->force is not set or OUT was changed since dcpfs wrote
 * it), -EISDIR (OUT is a directory, but a file is to be written), -ENOTDIR (the opposite), -EBUSY
 * (another process is writing OUT), or an error of the file system. Strings and objects that @opts
 * points to must outlive the save.
 */
int save_create(const struct save_opts *opts, struct save **out, struct dcp_err *err);

/* Set @path to the directory beside @out that a save writes into; -ENAMETOOLONG, -EINVAL,
 * -ENOMEM. */
#define SAVE_PATH (PATH_MAX + NAME_MAX + 2)
int save_part(const char *out, char path[SAVE_PATH]);

/* @set must stay until the save is destroyed. -EALREADY: when resuming, OUT already exists with all
 * files of the plan, each of the right length; save_sealed() is its path. */
int save_plan(struct save *s, const struct dcp_write_format *f, const struct dcp_write_set *set,
	      const struct dcp_write_opts *opts, struct dcp_err *err);

int save_data(struct save *s, const struct save_source *source, struct dcp_err *err);
int save_seal(struct save *s, struct dcp_err *err);
int save_publish(struct save *s, struct dcp_err *err);
/* Accepts NULL. */
void save_destroy(struct save *s);

/* The path of the sealed checkpoint before it is published: a directory or a file. */
const char *save_sealed(const struct save *s);

/* Set @tensor and @part to those of run number @i of the plan, and return the name of its file.
 * NULL: there is no such run. */
const char *save_run_at(const struct save *s, size_t i, size_t *tensor, size_t *part);

/* The name of file number @i of the plan, and its size in bytes. NULL: there is no such file. */
const char *save_file_at(const struct save *s, size_t i, uint64_t *bytes);

/* Append the sums of the pieces that this process wrote, for the process that seals. -ENOMEM. */
int save_put_sums(const struct save *s, struct dcp_buf *out);
/* Take the sums that another process has put. -EPROTO: they name a piece that does not exist. */
int save_take_sums(struct save *s, const void *p, uint64_t n);

struct save_counts {
	uint64_t plan;         /* hash of the plan: equal in all processes that share a save */
	uint64_t files, bytes; /* of the plan */
	/* bytes of tensors and extras: in the plan; written by this process */
	uint64_t data, written;
	uint64_t kept;   /* bytes of @data that save_data() found done when resuming */
	uint64_t copied; /* bytes of @written that the kernel copied from file to file */
	uint64_t direct; /* bytes of @written that were written by O_DIRECT */
};
void save_count(const struct save *s, struct save_counts *out);

/* Write all @n bytes at @off of a file. 0 or a negative errno. */
int save_pwrite(int fd, const void *p, uint64_t n, uint64_t off);
