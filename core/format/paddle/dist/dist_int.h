/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dist_int: the contents of a {uid}.metadata of paddle.distributed.save_state_dict in a compact
 * form, and the declarations that the sources of this family share; only they include it.
 *
 *	state_dict_metadata  key -> [LocalTensorMetadata, ...]   which pieces a tensor has
 *	storage_metadata     LocalTensorIndex -> file name       which file holds which piece
 *	flat_mapping         key -> path (None, or missing in the oldest files)
 *
 * There are three generations, which differ in the fields of LocalTensorMetadata: A (2.6) has only
 * global_offset and local_shape; B (3.0) adds dtype; C (3.2 and later) adds global_shape, and later
 * is_flattened and flattened_range. A flattened piece holds only a run [start, stop) of its box's
 * elements in row-major order.
 *
 * Several files can be read one after the other into the same struct. To keep memory small,
 * everything lies in a few growing arrays, and structs refer to each other by number.
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

#define DCP_PADDLE_META_NONE UINT32_MAX
#define DCP_PADDLE_META_NO_DIMS UINT64_MAX

/* A box of a tensor, or a run of the box's elements in row-major order. */
struct dcp_paddle_meta_box {
	uint64_t lo; /* where the box's ndim offsets begin in dims */
	uint64_t
		len; /* where its lengths begin in dims; DCP_PADDLE_META_NO_DIMS: not recorded */
	uint64_t run_lo, run_hi;
	uint32_t ndim;
	bool flat; /* it is the run [run_lo, run_hi), else the whole box */
};

struct dcp_paddle_meta_entry {
	struct dcp_paddle_meta_box box;
	uint64_t shape; /* of the tensor, in dims; DCP_PADDLE_META_NO_DIMS: not recorded */
	uint32_t dtype; /* in dtypes; DCP_PADDLE_META_NONE: not recorded */
	uint32_t next;  /* next entry of the same key */
};

struct dcp_paddle_meta_record {
	struct dcp_paddle_meta_box box;
	uint64_t replica; /* number of the replica; 0: the first or only one */
	uint32_t key, file;
	uint32_t next;         /* next record of the same key */
	uint32_t next_in_file; /* next record of the same file */
};

struct dcp_paddle_meta_key {
	uint32_t entry, record; /* heads of chains; DCP_PADDLE_META_NONE: none */
	uint32_t last_entry;
	uint32_t error; /* in errors: why the key is unreadable; DCP_PADDLE_META_NONE: none */
	uint32_t npath; /* 0: the key itself is the only component of its path */
	uint64_t path;  /* first byte of npath strings in paths */
	bool named;     /* state_dict_metadata has the key */
};

struct dcp_paddle_meta {
	struct dcp_intern names, dtypes, files, errors;
	struct dcp_buf keys;    /* struct dcp_paddle_meta_key, by number in names */
	struct dcp_buf entries; /* struct dcp_paddle_meta_entry */
	struct dcp_buf records; /* struct dcp_paddle_meta_record */
	struct dcp_buf heads;   /* uint32_t: first record of each file, by number in files */
	struct dcp_buf dims;    /* uint64_t */
	struct dcp_buf paths;   /* NUL-terminated components */
	char generation;        /* 'A', 'B' or 'C': the newest that was seen; 0: no entry yet */
	char model_type[64], version[64], commit[64]; /* provenance; "": not recorded */
	/* while reading */
	struct dcp_buf scratch;
	uint64_t limit; /* bytes that all arrays together may take */
	uint32_t guess;
};

/* Add the contents of @src to @m, which is zeroed before the first call. Returns 0, -EBADMSG,
 * -E2BIG (more than a file of this size can hold without repetition), -ENOMEM, or the error of
 * reading the pickle. */
int dcp_paddle_meta_read(struct dcp_paddle_meta *m, const struct dcp_source *src,
			 struct dcp_err *err);
void dcp_paddle_meta_finish(struct dcp_paddle_meta *m);

static inline struct dcp_paddle_meta_key *dcp_paddle_meta_key(const struct dcp_paddle_meta *m,
							      uint32_t i)
{
	return DCP_ITEMS(m->keys, struct dcp_paddle_meta_key) + i;
}

static inline struct dcp_paddle_meta_entry *
dcp_paddle_meta_entry(const struct dcp_paddle_meta *m, uint32_t i)
{
	return DCP_ITEMS(m->entries, struct dcp_paddle_meta_entry) + i;
}

static inline struct dcp_paddle_meta_record *
dcp_paddle_meta_record(const struct dcp_paddle_meta *m, uint32_t i)
{
	return DCP_ITEMS(m->records, struct dcp_paddle_meta_record) + i;
}

static inline const uint64_t *dcp_paddle_meta_dims(const struct dcp_paddle_meta *m, uint64_t at)
{
	return DCP_ITEMS(m->dims, uint64_t) + at;
}

static inline uint32_t dcp_paddle_meta_head(const struct dcp_paddle_meta *m, uint32_t file)
{
	return DCP_ITEMS(m->heads, uint32_t)[file];
}

static inline uint32_t dcp_paddle_meta_nrecords(const struct dcp_paddle_meta *m)
{
	return (uint32_t)(DCP_NITEMS(m->records, struct dcp_paddle_meta_record));
}

static inline uint32_t dcp_paddle_meta_nentries(const struct dcp_paddle_meta *m)
{
	return (uint32_t)(DCP_NITEMS(m->entries, struct dcp_paddle_meta_entry));
}

/* Is @v an object of Paddle's class @name, under either module? */
bool dcp_paddle_meta_is(struct dcp_pv v, const char *name);

/* -E2BIG if @m takes more memory than an honest file of this size needs; -ENOMEM if an array could
 * not grow. */
int dcp_paddle_meta_check_size(const struct dcp_paddle_meta *m, struct dcp_err *err);

/* Append the text @s without NUL bytes: a NUL is written as C0 80, as everywhere in dcpfs. */
void dcp_paddle_meta_put_text(struct dcp_buf *b, const struct dcp_pnode *s);

/* The number of the key @v; a new key is added. */
int dcp_paddle_meta_key_number(struct dcp_paddle_meta *m, struct dcp_pv v, uint32_t *number,
			       struct dcp_err *err);

/* Make the key unreadable because of @why, unless it has an error already. Returns the result of
 * dcp_paddle_meta_check_size(). */
int dcp_paddle_meta_spoil(struct dcp_paddle_meta *m, uint32_t key, const struct dcp_err *why,
			  struct dcp_err *err);

/* The functions of the sections, for struct dcp_section; @meta is the struct dcp_paddle_meta. */
int dcp_paddle_meta_add_state(void *meta, struct dcp_pv key, struct dcp_pv value,
			      struct dcp_err *err);
int dcp_paddle_meta_add_record(void *meta, struct dcp_pv index, struct dcp_pv file,
			       struct dcp_err *err);
int dcp_paddle_meta_add_path(void *meta, struct dcp_pv key, struct dcp_pv value,
			     struct dcp_err *err);

/* Append a tuple or list of numbers to dims. Returns 0, 1 if a number is negative, or -EBADMSG
 * with a message in @why. */
int dcp_paddle_meta_take_dims(struct dcp_paddle_meta *m, const struct dcp_pv *v,
			      const char *what, uint64_t *at, uint32_t *ndim,
			      struct dcp_err *why);

/* Read the global_offset, local_shape (unless @bare) and run of @v into @box. Also returns 1 if the
 * piece has a negative size. */
int dcp_paddle_meta_take_box(struct dcp_paddle_meta *m, struct dcp_pv v, bool bare,
			     struct dcp_paddle_meta_box *box, struct dcp_err *why);

/*
 * file: the arrays that one data file of a Paddle checkpoint holds, and where they lie.
 *
 *	a pickle     dict of key -> numpy array (paddle.save), any protocol from 2 on
 *	safetensors  the same dict; the contents decide, since a .distcp file may be safetensors too
 *
 * In the pickle two keys are not arrays. StructuredToParameterName@@ maps keys to parameter
 * names and is skipped. UnpackBigParamInfor@@ lists the keys that were cut, in protocols 2 and 3,
 * into slices of less than 2^30 bytes. Such an array is listed as one array with several parts.
 */

/* Consecutive elements of an array, in row-major order unless the array has strides. */
struct dcp_paddle_part {
	uint64_t off, nbytes; /* in the file */
	uint64_t n;           /* elements */
	uint8_t filter;       /* enum dcp_filter */
	bool swap;
};

struct dcp_paddle_array {
	const char *error;    /* why it cannot be read; then only dtype is valid */
	enum dcp_dtype dtype; /* as stored: U16 may mean BF16 */
	const char *dtype_name;
	uint32_t itemsize, ndim;
	const uint64_t *shape, *stride; /* stride NULL: row-major */
	const struct dcp_paddle_part *part;
	size_t nparts;
	bool slice; /* it is a part of another array, which is listed too */
};

struct dcp_paddle_file {
	/* Called with each value that is not an array; may be NULL. 0 or a negative errno. */
	int (*other)(void *ctx, const char *key, struct dcp_pv v);
	void *ctx;
	struct dcp_intern names;
	struct dcp_buf arrays;         /* struct dcp_paddle_array, by number in names */
	struct dcp_safetensors header; /* if the file is safetensors */
	struct dcp_arena arena;
	struct dcp_buf cuts; /* while reading: the entries of UnpackBigParamInfor@@ */
};

/* Read @src into @f, which is zeroed except for other and ctx. Returns 0, -EBADMSG, -E2BIG,
 * -ENOMEM, or the error of @src or of other. */
int dcp_paddle_file_read(struct dcp_paddle_file *f, const struct dcp_source *src,
			 struct dcp_err *err);
void dcp_paddle_file_finish(struct dcp_paddle_file *f);

/* The array with the key @key of @n bytes, or NULL. */
const struct dcp_paddle_array *dcp_paddle_file_find(const struct dcp_paddle_file *f,
						    const char *key, size_t n);

struct dcp_dir;
struct dcp_load;

/* The saves in a directory, from the names of its files alone. Each uid is a version of its own.
 * But if all data files have the same uid, all metadata in the directory belongs to that save. */
struct dcp_paddle_dist_names {
	uint64_t newest; /* the newest uid with metadata, or the newest uid if none has any */
	/* number of uids of all files, of metadata, of data files; 2 and more: several */
	uint64_t nuids;
	uint64_t nmeta, ndata;
	bool merged;
};

/* Read the names in @dir; false: it has no file of a Paddle checkpoint. */
bool dcp_paddle_dist_names(const struct dcp_dir *dir, struct dcp_paddle_dist_names *out);

/* ---- one load ---- */

struct dcp_paddle_dist {
	const struct dcp_load *in;
	const char *meta_name; /* for messages */
	struct dcp_paddle_meta meta;
	struct dcp_buf locs; /* struct dcp_paddle_array: the array of each record, by record */
	struct dcp_arena kept;    /* memory of these arrays */
	struct dcp_buf numbers;   /* uint32_t: each file's number at the sink */
	struct dcp_intern strays; /* keys that are in data files but not in metadata */
	struct dcp_intern objects;
	uint64_t ranks, noverlaps;
	bool late;          /* a data file newer than its metadata was reported */
	char overlaps[256]; /* the first key whose pieces overlap */
	/* for the current key; the memory is used again for the next key */
	/* pieces are in the order of the metadata, each after its copy */
	struct dcp_buf found, pieces;
	struct dcp_join join;
	struct dcp_arena arena;
	struct dcp_err *err;
};

static inline struct dcp_paddle_array *dcp_paddle_dist_loc(const struct dcp_paddle_dist *d,
							   uint32_t record)
{
	return DCP_ITEMS(d->locs, struct dcp_paddle_array) + record;
}

/* Emit one key of metadata to the sink. */
int dcp_paddle_dist_emit_key(struct dcp_paddle_dist *d, uint32_t key);

/* ---- key.c: one key, from its entries to the sink ---- */

struct dcp_paddle_join {
	const struct dcp_paddle_meta_key *key;
	struct dcp_tensor t;
	uint64_t shape[DCP_MAX_NDIM];
	const uint64_t *len; /* lengths of the current entry's box, cut to the shape */
	struct dcp_err why;  /* why the key is broken; without a message it is not */
	bool sized;          /* the dtype is known */
};

#define dcp_paddle_join_fail(j, ...) dcp_fail(&(j)->why, -EBADMSG, __VA_ARGS__)

static inline bool dcp_paddle_join_broken(const struct dcp_paddle_join *j)
{
	return j->why.msg[0] != '\0';
}
