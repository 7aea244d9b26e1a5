/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dist_int: what the files that emit a Paddle distributed checkpoint share; only they
 * include it.
 */
#pragma once
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/format/gather/join.h"
#include "core/format/paddle/dist/meta/meta.h"
#include "core/model/tensor.h"
#include "core/parse/pickle/pickle.h"
#include "core/parse/safetensors/safetensors.h"

/*
 * file: which arrays does one data file of a Paddle checkpoint hold, and where?
 *
 *	a pickle     dict of key -> numpy array (paddle.save), any protocol from 2 on
 *	safetensors  the same dict; under the name .distcp too: content decides, not the name
 *
 * In the pickle two keys are not arrays. StructuredToParameterName@@ maps keys to parameter
 * names and is skipped. UnpackBigParamInfor@@ says which keys were cut, in protocols 2 and 3,
 * into slices of less than 2^30 bytes: those arrays are listed whole again, in several parts.
 */

struct dcp_err;
struct dcp_source;

/* Elements of an array, one after another in row-major order unless the array has strides. */
struct dcp_ppart {
	uint64_t off, nbytes; /* in the file */
	uint64_t n;           /* elements */
	uint8_t filter;       /* enum dcp_filter */
	bool swap;
};

struct dcp_parray {
	const char *error;    /* why it cannot be read; then nothing below but dtype counts */
	enum dcp_dtype dtype; /* as stored: U16 may mean BF16 */
	const char *dtype_name;
	uint32_t itemsize, ndim;
	const uint64_t *shape, *stride; /* stride NULL: row-major */
	const struct dcp_ppart *part;
	size_t nparts;
	bool slice; /* part of another array, which is listed too */
};

struct dcp_pfile {
	/* Called with each value that is not an array; may be NULL. 0 or a negative errno. */
	int (*other)(void *ctx, const char *key, struct dcp_pv v);
	void *ctx;
	struct dcp_intern names;
	struct dcp_buf arrays;         /* struct dcp_parray, one a name */
	struct dcp_safetensors header; /* of a file of that format */
	struct dcp_arena arena;
	struct dcp_buf cuts; /* while reading: what UnpackBigParamInfor@@ says */
};

/* Read @src into @f, which starts zeroed but for other and ctx. Returns 0, -EBADMSG, -E2BIG,
 * -ENOMEM, what @src or other gave. */
int dcp_pfile_read(struct dcp_pfile *f, const struct dcp_source *src, struct dcp_err *err);
void dcp_pfile_finish(struct dcp_pfile *f);

/* The array of that key, or NULL. */
const struct dcp_parray *dcp_pfile_find(const struct dcp_pfile *f, const char *key, size_t n);

struct dcp_dir;
struct dcp_load;

/* Which saves a directory holds, by its names alone. */
struct dcp_pdist_names {
	uint64_t newest; /* uid of the newest with metadata; without any: the newest */
	uint64_t nuids;  /* uids of any file; more than one are versions of their own... */
	uint64_t nmeta,
		ndata; /* ...unless all data files have one: then all metadata is about it */
	bool merged;
};

/* false: no file of a Paddle checkpoint. */
bool dcp_pdist_names(const struct dcp_dir *dir, struct dcp_pdist_names *out);

/* ---- one load ---- */

struct dcp_pdist {
	const struct dcp_load *in;
	const char *meta_name; /* for messages */
	struct dcp_pmeta meta;
	struct dcp_buf locs;      /* struct dcp_parray, one a record: the array it leads to */
	struct dcp_arena kept;    /* what these point at */
	struct dcp_buf numbers;   /* uint32_t, one a file: its number at the sink */
	struct dcp_intern strays; /* keys that only data files know */
	struct dcp_intern objects;
	uint64_t ranks, noverlaps;
	bool late;          /* a data file newer than its metadata was mentioned */
	char overlaps[256]; /* the key of the first */
	/* of the key at hand, kept for the next one */
	struct dcp_buf found, pieces; /* as listed, each behind its copy */
	struct dcp_join join;
	struct dcp_arena arena;
	struct dcp_err *err;
};

static inline struct dcp_parray *dcp_pdist_loc(const struct dcp_pdist *d, uint32_t record)
{
	return DCP_ITEMS(d->locs, struct dcp_parray) + record;
}

/* Emit one key of metadata to the sink. */
int dcp_pdist_emit_key(struct dcp_pdist *d, uint32_t key);

/* ---- key.c: one key, from its entries to the sink ---- */

struct dcp_pjoin {
	const struct dcp_pmeta_key *key;
	struct dcp_tensor t;
	uint64_t shape[DCP_MAX_NDIM];
	const uint64_t *len; /* of the box of the entry at hand, as far as it lies in shape */
	struct dcp_err why;  /* the key is broken */
	bool sized;          /* its dtype has been looked up */
};

#define dcp_pjoin_fail(j, ...) dcp_fail(&(j)->why, -EBADMSG, __VA_ARGS__)

static inline bool dcp_pjoin_broken(const struct dcp_pjoin *j)
{
	return j->why.msg[0] != '\0';
}
