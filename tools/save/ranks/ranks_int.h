/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks_int: what the files of libdcpsave share.
 *
 *	library   the handle; work that takes long, while the ranks stay in touch; the end
 *	given     what this rank gives, in host memory or on a GPU
 *	agreed    what all ranks gave, as a set; which of them writes what
 *	shares    this rank's share of the data; all data to the ranks that write it
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

/*
 * region: an array in memory, with strides, as the bytes it has when it is row-major.
 */

struct save_region {
	const char *base; /* its first element */
	uint32_t itemsize, ndim;
	const uint64_t *len;   /* elements */
	const int64_t *stride; /* in elements; NULL: row-major */
};

uint64_t save_region_bytes(const struct save_region *r);

/* Bytes [off, off + n) of it. */
void save_region_take(const struct save_region *r, uint64_t off, void *to, uint64_t n);

/* A region of this rank. */
struct save_given {
	const char *key;
	const char *const *path;
	size_t npath;
	enum dcp_dtype dtype;
	const uint64_t *shape, *lo;
	struct save_region region;  /* of the caller's memory, or of the copy */
	bool own;                   /* this rank writes it */
	struct save_device *device; /* in whose memory the region is; NULL: the host's */
	char *copy;                 /* DCPSAVE_ASYNC; NULL: none */
	/* Where its bytes come from when they are not in memory, or NULL. */
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
	const struct dcpload_comm *comm; /* borrowed, or load_alone */
	struct dcpsave_config config;    /* defaults filled in */
	const struct dcp_write_format *format;
	const char *path, *file; /* @file: its name when it is one file, not a directory */
	enum save_state state;
	struct dcp_arena arena;
	struct dcp_buf given, objects;
	struct save_device *device; /* NULL: none */
	/* agreed, the same on all ranks */
	struct dcp_write_set set;
	struct dcp_buf tensors, set_objects; /* its */
	struct dcp_buf left;                 /* struct save_left */
	/* this rank's share */
	size_t *first;         /* by tensor: number of its first part in from[] */
	size_t *from;          /* by part: number in given; SIZE_MAX: another rank has it */
	struct dcp_buf placed; /* struct save_placed */
	bool *is_placed;       /* by tensor: several regions, and the format wants it whole */
	bool any_placed;
	bool early;          /* save_shares(): what has no copy */
	const bool *gathers; /* by rank: it writes a file of all; NULL: nothing is gathered */
	uint32_t *sender;    /* by tensor, when gathering: the rank that has it */
	struct save *save;
	struct load_step step; /* what a thread of this rank does */
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

/* Bytes [off, off + n) of what was given, as it is row-major. */
int save_given_take(const struct save_given *g, unsigned thread, uint64_t off, void *to,
		    uint64_t n, struct dcp_err *err);

/* Text with its length before it. */
void save_put_text(struct dcp_buf *b, const char *text);

/* All that this rank gave but for data and JSON, for save_agree_set(). */
int save_given_message(const struct dcpsave *s, struct dcp_buf *out);

/* *@out stays NULL when @which is the host. */
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

/* Which runs each tensor has, and the file that was written to last. */
struct save_putting {
	const struct dcpsave *s;
	size_t *first,
		*next; /* by tensor: its first run; by run: another of that tensor. + 1, 0: none */
	int fd;
	uint32_t file;
};

/* A step: write this rank's share, with s->early only what has no copy, otherwise the rest. */
int save_shares(struct dcpsave *s, struct dcp_err *err);
/* Copy what this rank writes, as much as fits. */
int save_copy_shares(struct dcpsave *s, struct dcp_err *err);
/* May the file be written by several ranks? Then a step: read back what needs a checksum. */
int save_check_placed(struct dcpsave *s, struct dcp_err *err);

/* In rounds, all data to the ranks that write it, and into their files. */
int save_gather(struct dcpsave *s, struct dcpload_error *err);

/* ---- library.c, collective ---- */
