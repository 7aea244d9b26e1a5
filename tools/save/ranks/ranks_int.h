/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks_int: declarations that the files of libdcpsave share.
 *
 *	library   the handle; long work, during which the ranks stay in touch; completion
 *	given     the regions and objects of this rank, in host memory or on a GPU
 *	agreed    merges regions and objects of all ranks into a set; decides which rank writes them
 *	shares    writes this rank's share of the data; gathers data on the ranks that write it
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/write/write.h"
#include "tools/load/comm/comm.h"
#include "tools/load/dcpload.h"
#include "tools/save/dcpsave.h"
#include "tools/save/save.h"

/* region: reads a strided array in memory as row-major bytes. */

struct save_region {
	const char *base; /* first element */
	uint32_t itemsize, ndim;
	const uint64_t *len;   /* elements */
	const int64_t *stride; /* in elements; NULL: row-major */
};

uint64_t save_region_bytes(const struct save_region *r);

/* Copy row-major bytes [off, off + n) of the region. */
void save_region_take(const struct save_region *r, uint64_t off, void *to, uint64_t n);

/* A region of this rank. */
struct save_given {
	const char *key;
	const char *const *path;
	size_t npath;
	enum dcp_dtype dtype;
	const uint64_t *shape, *lo;
	struct save_region region; /* of the caller's memory, or of the copy */
	bool own;                  /* this rank writes it */
	/* the device whose memory the region is in; NULL: host memory */
	struct save_device *device;
	char *copy; /* DCPSAVE_ASYNC; NULL: none */
	/* Reads the bytes if they are not in memory; otherwise NULL. */
	int (*read)(void *ctx, uint32_t thread, uint64_t off, void *to, uint64_t n,
		    struct dcpload_error *err);
	void *ctx;
};

/* An object of this rank. */
struct save_given_object {
	const char *key, *type, *json, *classes;
	const char *const *path;
	size_t npath;
};

/* A region that is written into the middle of a tensor. */
struct save_placed {
	size_t tensor, given;
};

struct dcpsave;
struct save_device;
typedef int (*save_step_fn)(struct dcpsave *s, struct dcp_err *err);

enum save_state { SAVE_GIVING, SAVE_PLANNED, SAVE_WRITING, SAVE_WRITTEN, SAVE_FAILED };

struct dcpsave {
	const struct dcpload_comm *comm; /* borrowed from the caller, or load_alone */
	struct dcpsave_config config;    /* defaults filled in */
	const struct dcp_write_format *format;
	/* @file: name of the checkpoint if it is one file, not a directory */
	const char *path, *file;
	enum save_state state;
	struct dcp_arena arena;
	struct dcp_buf given, objects;
	struct save_device *device; /* NULL: none */
	/* agreed, the same on all ranks */
	struct dcp_write_set set;
	struct dcp_buf tensors, set_objects; /* of @set */
	struct dcp_buf left;                 /* struct save_left */
	/* this rank's share */
	size_t *first;         /* by tensor: number of its first part in from[] */
	size_t *from;          /* by part: number in given; SIZE_MAX: another rank has it */
	struct dcp_buf placed; /* struct save_placed */
	bool *is_placed;       /* by tensor: its regions are written into one whole tensor */
	bool any_placed;
	bool early; /* save_shares() writes only data without a copy */
	/* by rank: the rank writes a file with all tensors; NULL: nothing is gathered */
	const bool *gathers;
	uint32_t *sender; /* by tensor, when gathering: the rank that has it */
	struct save *save;
	struct load_step step; /* the work of a thread of this rank */
	save_step_fn step_fn;
	struct dcp_err step_err;
	bool stop; /* atomic: another rank has failed */
	struct dcpsave_report report;
};

struct save_left {
	const char *key, *why;
};

/* ---- given.c ---- */

static inline struct save_given *save_given(const struct dcpsave *s)
{
	return DCP_ITEMS(s->given, struct save_given);
}

static inline size_t save_ngiven(const struct dcpsave *s)
{
	return DCP_NITEMS(s->given, struct save_given);
}

/* Copy row-major bytes [off, off + n) of a given region. */
int save_given_take(const struct save_given *g, unsigned thread, uint64_t off, void *to,
		    uint64_t n, struct dcp_err *err);

/* Text with its length before it. */
void save_put_text(struct dcp_buf *b, const char *text);

/* Serialize all that this rank gave, except data and JSON, for save_agree_set(). */
int save_given_message(const struct dcpsave *s, struct dcp_buf *out);

/* Open the device @which. *@out stays NULL if @which is the host. */
int save_device_open(const char *which, struct save_device **out, struct dcpload_error *err);
void save_device_close(struct save_device *v);

/* ---- agreed.c, collective ---- */

/* Fill the set and this rank's share. */
int save_agree_set(struct dcpsave *s, struct dcpload_error *err);

/* ---- library.c: steps, collective ---- */

static inline bool save_step_is_stopped(const struct dcpsave *s)
{
	return __atomic_load_n(&s->stop, __ATOMIC_RELAXED);
}

/* Does this rank make files? */
static inline bool save_makes_files(const struct dcpsave *s)
{
	return s->gathers ? s->gathers[s->comm->rank] : s->comm->rank == 0;
}

/* ---- shares.c ---- */

/* The runs of each tensor, and the file that was written last. */
struct save_putting {
	const struct dcpsave *s;
	size_t *first,
		/* lists of runs: first[tensor] and next[run] are the number of a run + 1; 0:
		 * none */
		*next;
	int fd;
	uint32_t file;
};

/* A step: write this rank's share; with s->early only data that has no copy, otherwise the rest. */
int save_shares(struct dcpsave *s, struct dcp_err *err);
/* Copy the data that this rank writes, as much as fits into config.staging. */
int save_copy_shares(struct dcpsave *s, struct dcp_err *err);
/* If several ranks may have written the file, a step: read back the data that needs a checksum. */
int save_check_placed(struct dcpsave *s, struct dcp_err *err);

/* Send all data, in rounds, to the ranks that write it, and write it into their files. */
int save_gather(struct dcpsave *s, struct dcpload_error *err);

/* ---- library.c, collective ---- */
