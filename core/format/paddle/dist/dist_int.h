/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dist_int: the contents of a {uid}.metadata of paddle.distributed.save_state_dict, kept small, and
 * what the files that emit a Paddle distributed checkpoint share; only they include it.
 *
 *	state_dict_metadata  key -> [LocalTensorMetadata, ...]   which pieces a tensor has
 *	storage_metadata     LocalTensorIndex -> file name       which file holds which of them
 *	flat_mapping         key -> path (None, or missing in the oldest)
 *
 * Three generations, distinguished by the fields of LocalTensorMetadata: A (2.6) has global_offset
 * and local_shape only; B (3.0) adds dtype; C (3.2 and later) global_shape, then is_flattened and
 * flattened_range. A run [start, stop) of the row-major flattening of the box is what a flattened
 * piece holds.
 *
 * Several files can be read one after the other into the same struct. Numbers instead of
 * pointers: everything lies in a few growing arrays.
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
#include "core/model/tensor.h"
#include "core/parse/pickle/pickle.h"
#include "core/parse/safetensors/safetensors.h"

struct dcp_err;
struct dcp_source;

#define DCP_PMETA_NONE UINT32_MAX
#define DCP_PMETA_NO_DIMS UINT64_MAX

/* A box of a key, or a run of its flattening. */
struct dcp_pmeta_box {
	uint64_t lo;  /* number of the first of ndim offsets in dims */
	uint64_t len; /* the same of its lengths; DCP_PMETA_NO_DIMS: not said */
	uint64_t run_lo, run_hi;
	uint32_t ndim;
	bool flat; /* run_lo and run_hi count */
};

struct dcp_pmeta_entry {
	struct dcp_pmeta_box box;
	uint64_t shape; /* the tensor's, in dims; DCP_PMETA_NO_DIMS: not said */
	uint32_t dtype; /* in dtypes; DCP_PMETA_NONE: not said */
	uint32_t next;  /* entry of the same key */
};

struct dcp_pmeta_record {
	struct dcp_pmeta_box box;
	uint64_t replica; /* 0: the first, or the only one */
	uint32_t key, file;
	uint32_t next;         /* record of the same key */
	uint32_t next_in_file; /* record of the same file */
};

struct dcp_pmeta_key {
	uint32_t entry, record; /* heads of chains; DCP_PMETA_NONE: none */
	uint32_t last_entry;
	uint32_t error; /* in errors; DCP_PMETA_NONE: none. It makes the key unreadable. */
	uint32_t npath; /* 0: the key itself is its only component */
	uint64_t path;  /* first byte in paths: npath strings */
	bool named;     /* in state_dict_metadata */
};

struct dcp_pmeta {
	struct dcp_intern names, dtypes, files, errors;
	struct dcp_buf keys;    /* struct dcp_pmeta_key, one a name */
	struct dcp_buf entries; /* struct dcp_pmeta_entry */
	struct dcp_buf records; /* struct dcp_pmeta_record */
	struct dcp_buf heads;   /* uint32_t, one a file: its first record */
	struct dcp_buf dims;    /* uint64_t */
	struct dcp_buf paths;   /* NUL-terminated components */
	char generation;        /* 'A', 'B' or 'C': the newest that was seen; 0: no entry yet */
	char model_type[64], version[64], commit[64]; /* provenance, "" when it is not said */
	/* while reading */
	struct dcp_buf scratch;
	uint64_t limit; /* bytes that all of this may take */
	uint32_t guess;
};

/* Add the content of @src to @m, which starts zeroed. Returns 0, -EBADMSG, -E2BIG (more than
 * a file of that size can hold without repetition), -ENOMEM, or what the pickle gave. */
int dcp_pmeta_read(struct dcp_pmeta *m, const struct dcp_source *src, struct dcp_err *err);
void dcp_pmeta_finish(struct dcp_pmeta *m);

static inline struct dcp_pmeta_key *dcp_pmeta_key(const struct dcp_pmeta *m, uint32_t i)
{
	return DCP_ITEMS(m->keys, struct dcp_pmeta_key) + i;
}

static inline struct dcp_pmeta_entry *dcp_pmeta_entry(const struct dcp_pmeta *m, uint32_t i)
{
	return DCP_ITEMS(m->entries, struct dcp_pmeta_entry) + i;
}

static inline struct dcp_pmeta_record *dcp_pmeta_record(const struct dcp_pmeta *m, uint32_t i)
{
	return DCP_ITEMS(m->records, struct dcp_pmeta_record) + i;
}

static inline const uint64_t *dcp_pmeta_dims(const struct dcp_pmeta *m, uint64_t at)
{
	return DCP_ITEMS(m->dims, uint64_t) + at;
}

static inline uint32_t dcp_pmeta_head(const struct dcp_pmeta *m, uint32_t file)
{
	return DCP_ITEMS(m->heads, uint32_t)[file];
}

static inline uint32_t dcp_pmeta_nrecords(const struct dcp_pmeta *m)
{
	return (uint32_t)(DCP_NITEMS(m->records, struct dcp_pmeta_record));
}

static inline uint32_t dcp_pmeta_nentries(const struct dcp_pmeta *m)
{
	return (uint32_t)(DCP_NITEMS(m->entries, struct dcp_pmeta_entry));
}

/* Is @v an object of Paddle's class @name, under either module? */
bool dcp_pmeta_is(struct dcp_pv v, const char *name);

/* -E2BIG when it takes more memory than a file of its size can mean to say; -ENOMEM. */
int dcp_pmeta_check_size(const struct dcp_pmeta *m, struct dcp_err *err);

/* Text without NUL: one inside is written as C0 80, as everywhere in dcpfs. */
void dcp_pmeta_put_text(struct dcp_buf *b, const struct dcp_pnode *s);

int dcp_pmeta_key_number(struct dcp_pmeta *m, struct dcp_pv v, uint32_t *number,
			 struct dcp_err *err);

/* Make the key unreadable; the first thing found wrong with it stays. Returns what
 * dcp_pmeta_check_size() does. */
int dcp_pmeta_spoil(struct dcp_pmeta *m, uint32_t key, const struct dcp_err *why,
		    struct dcp_err *err);

/* For struct dcp_section; @meta is the struct dcp_pmeta. */
int dcp_pmeta_add_state(void *meta, struct dcp_pv key, struct dcp_pv value,
			struct dcp_err *err);
int dcp_pmeta_add_record(void *meta, struct dcp_pv index, struct dcp_pv file,
			 struct dcp_err *err);
int dcp_pmeta_add_path(void *meta, struct dcp_pv key, struct dcp_pv value, struct dcp_err *err);

/* A tuple or list of numbers into dims. Returns 0, 1 when one of them is negative, or -EBADMSG
 * described in @why. */
int dcp_pmeta_take_dims(struct dcp_pmeta *m, const struct dcp_pv *v, const char *what,
			uint64_t *at, uint32_t *ndim, struct dcp_err *why);

/* @v's global_offset, local_shape (unless @bare) and run. 1: a piece of negative size. */
int dcp_pmeta_take_box(struct dcp_pmeta *m, struct dcp_pv v, bool bare,
		       struct dcp_pmeta_box *box, struct dcp_err *why);

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
