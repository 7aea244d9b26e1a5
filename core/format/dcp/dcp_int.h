/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp_int: a compact form of a DCP .metadata, and declarations for the files that emit a DCP
 * checkpoint; only they include it.
 *
 * The pickle is one Metadata object with three huge dicts. The unpickler hands over their pairs in
 * batches, in any order; they are stored as packed numbers: about 26 bytes for a chunk and 100 for
 * a key. They are joined by key afterwards.
 *
 *   state_dict_metadata  key -> TensorStorageMetadata | BytesStorageMetadata   an entry
 *   storage_data         MetadataIndex(key, offsets) -> _StorageInfo           a record
 *   planner_data         key -> path of components                             a path
 *   mcore_data           key -> true shape of a tensor that Megatron flattened   a shape
 *
 *   entry   varint  kind, rank file number, 1 + place of the same key's entry before it
 *           tensor: varint dtype, number of its name, ndim, shape[ndim], length of an error
 *           and its text, number of chunks, then for each offsets[ndim] and sizes[ndim]
 *   record  varint  key, 1 + ndim (0: of a byte item), offsets[ndim], filter, file, off,
 *           nbytes; filter 2 and up: the entry is unusable, and error filter - 2 says why
 *   path    varint  1 + components, then the length of each: joined with '.' they are the key;
 *           or 0, components, then for each its length and text
 *   shape   varint  ndim, shape[ndim]; kept with the paths
 *
 * Several files may be read one after another (rank-local metadata): each entry and record has
 * the number of its file. One thread at a time.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/format/format.h"
#include "core/format/gather/join.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/origin/origin.h"
#include "core/parse/pickle/pickle.h"

struct dcp_err;
struct dcp_source;

enum dcp_dcp_meta_kind { DCP_DCP_META_UNKNOWN, DCP_DCP_META_TENSOR, DCP_DCP_META_BYTES };

struct dcp_dcp_meta_key {
	uint32_t entry; /* in entries; 0: only storage_data or planner_data have the key */
	uint32_t path;  /* in paths; 0: the path is the key */
	uint32_t shape; /* in paths; 0: state_dict_metadata has the true shape */
	uint32_t first; /* its first record in by_key; its last precedes the next key's first */
};

struct dcp_dcp_meta {
	struct dcp_intern names, files, dtypes, errors;
	struct dcp_dcp_meta_key *keys; /* by number in names, and two more for the sort */
	uint32_t cap;
	struct dcp_buf entries, records, paths; /* byte 0 is unused: place 0 means none */
	uint32_t *by_key;                       /* where each record starts, by key, stable */
	uint64_t nrecords, norphans;            /* orphans: records of keys without entry */
	struct dcp_intern containers; /* lines as struct dcp_walk has them; 64 KiB or so */
	struct dcp_buf ends;          /* uint64_t per file read: records.n at its end */
	uint32_t nread;
	char save_id[64], version[32]; /* "": not in the file */

	/* while a file is read */
	uint32_t guess; /* the key that probably comes next */
	uint32_t last_file;
	uint64_t budget; /* limit for the sum of its parts, see meta.c */
	struct dcp_buf scratch;
};

int dcp_dcp_meta_init(struct dcp_dcp_meta *m);
void dcp_dcp_meta_finish(struct dcp_dcp_meta *m);

/*
 * Read one .metadata. Returns 0, -EBADMSG (truncated, damaged, not a Metadata), -ENOTSUP (torch
 * 1.12, refused opcodes), -E2BIG, -ENOMEM, or the error of the source, always with @err set. A
 * fault of a single key becomes the error of this key and is not a failure.
 */
int dcp_dcp_meta_read(struct dcp_dcp_meta *m, const struct dcp_source *src,
		      struct dcp_err *err);

/* Sort the records by key. Called after the last file is read. */
int dcp_dcp_meta_join(struct dcp_dcp_meta *m, struct dcp_err *err);

/* The header of an entry; @c points after it, to the fields of its kind. @before: the key's entry
 * before it, or 0. */
struct dcp_dcp_meta_entry {
	enum dcp_dcp_meta_kind kind;
	uint32_t rank_file, before;
	struct dcp_cur c;
};
struct dcp_dcp_meta_entry dcp_dcp_meta_entry(const struct dcp_dcp_meta *m, uint32_t at);

struct dcp_dcp_meta_record {
	uint32_t rank_file;
	uint32_t ndim; /* DCP_DCP_META_NO_OFFSETS for a byte item */
	uint32_t filter, file;
	uint64_t off, nbytes;
};
#define DCP_DCP_META_NO_OFFSETS UINT32_MAX

/* Record number @i of by_key; its offsets go to @dims. */
struct dcp_dcp_meta_record dcp_dcp_meta_record(const struct dcp_dcp_meta *m, uint32_t i,
					       uint64_t dims[DCP_MAX_NDIM]);

/* Get the shape of key @number in mcore_data; false: there is none. */
bool dcp_dcp_meta_shape(const struct dcp_dcp_meta *m, uint32_t number,
			uint64_t dims[DCP_MAX_NDIM], uint32_t *ndim);

/* The text of a record's error. */
const char *dcp_dcp_meta_error(const struct dcp_dcp_meta *m, uint32_t filter);

/* Get the components of key @number as pointers into @text, which is overwritten. Returns the
 * number of components, or 0 without memory. The pointers are at *@out until the next call. */
size_t dcp_dcp_meta_path(const struct dcp_dcp_meta *m, uint32_t number, struct dcp_buf *text,
			 struct dcp_buf *ptrs, const char *const **out);

/*
 * Functions that add one pair of a section of a .metadata to a struct dcp_dcp_meta.
 *
 * A fault of the pair becomes the error of its key; a negative result ends the reading.
 */

/* Begin a file of @size bytes. */
void dcp_dcp_meta_begin(struct dcp_dcp_meta *m, uint64_t size);

/* For struct dcp_section; @meta is the struct dcp_dcp_meta. */
int dcp_dcp_meta_add_entry(void *meta, struct dcp_pv key, struct dcp_pv v, struct dcp_err *err);
int dcp_dcp_meta_add_record(void *meta, struct dcp_pv index, struct dcp_pv v,
			    struct dcp_err *err);
int dcp_dcp_meta_add_path(void *meta, struct dcp_pv key, struct dcp_pv v, struct dcp_err *err);
int dcp_dcp_meta_add_shape(void *meta, struct dcp_pv key, struct dcp_pv v, struct dcp_err *err);

/*
 * dcp: emits a torch.distributed.checkpoint directory of either form: with one .metadata for all
 * ranks, or one __<rank>.metadata for each.
 *
 * In both forms the tensors and byte items of a joined struct dcp_dcp_meta are emitted to a sink.
 * Tensor items are emitted by their place and length, without opening them; byte items are read.
 */

#define DCP_DCP_MAX_OBJECT (256u << 20) /* a byte item; train states are kilobytes */
#define DCP_DCP_MAX_DECODED (64u << 20) /* a decoded item, which is kept in memory */

struct dcp_dcp {
	const struct dcp_load *in;
	struct dcp_dcp_meta meta;
	const char *missing;     /* rank-local metadata: why elements may be missing; or NULL */
	const char *const *rank; /* name of the rank that wrote each file, or NULL */
};

/* Join, then emit every key and the facts. */
int dcp_dcp_emit(struct dcp_dcp *d, struct dcp_err *err);

/* dcp_dcp_is_data_name(): is @name the name of a data file, "<anything>__<i>_<n>.distcp"? @rank
 * receives i. dcp_dcp_is_rank_name(): is it "__<rank>" and @suffix, as in "__<rank>.metadata"? */
bool dcp_dcp_is_data_name(const char *name, uint64_t *rank);
bool dcp_dcp_is_rank_name(const char *name, const char *suffix, uint64_t *rank);

/*
 * item: reads single items of the data files of a DCP directory.
 *
 * A few descriptors are kept open, because items of one file usually follow each other.
 */

#define DCP_DCP_ITEM_SLOTS 16

struct dcp_dcp_item_files {
	const struct dcp_dir *dir;
	struct {
		uint64_t number; /* 1 + number of the file; 0: free */
		struct dcp_input input;
	} slot[DCP_DCP_ITEM_SLOTS];
	struct dcp_buf claimed; /* uint64_t per file: total bytes of its opened items */
};

void dcp_dcp_item_files_init(struct dcp_dcp_item_files *f, const struct dcp_dir *dir);

/* The bytes of an item, decoded if it is compressed. Valid until the next item or finish. */
struct dcp_dcp_item {
	struct dcp_source file, window, src; /* src is what to read */
	struct dcp_buf decoded;
};

/*
 * Open the item [@off, @off + @nbytes) of file @number with the name @name. A compressed item may
 * decode to at most @limit bytes. The caller finishes the item also after a failure. -E2BIG: the
 * items of this file are together many times longer than the file, so they overlap.
 */
int dcp_dcp_item_open(struct dcp_dcp_item_files *f, uint32_t number, const char *name,
		      uint64_t off, uint64_t nbytes, enum dcp_filter filter, uint64_t limit,
		      struct dcp_dcp_item *out, struct dcp_err *err);
void dcp_dcp_item_finish(struct dcp_dcp_item *item);

/* A record of the current key: its offsets, and its number in by_key. */
struct dcp_dcp_place {
	const uint64_t *lo;
	uint32_t rank_file, i;
};

struct dcp_dcp_emitter {
	struct dcp_dcp *d;
	const struct dcp_dcp_meta *m;
	const struct dcp_sink *sink;
	struct dcp_dcp_item_files files;
	bool lists;             /* open lists in byte items: the state is Composer's */
	struct dcp_buf emitted; /* uint32_t per data file: 1 + its number at the sink, or 0 */
	uint64_t plain[512];    /* kinds of items that proved to be tensors; by hash */
	unsigned misses;        /* items that could not be examined */
	struct dcp_buf path_text, path_ptrs;
	struct dcp_buf containers; /* of byte items */
	/* for the current key; the memory is kept for the next key */
	/* chunks with elements, as pieces in the file that lists them */
	struct dcp_join join;
	struct dcp_buf dims, places, blocks;
};

/* A tensor whose records are being joined; arrays live in the emitter until the next key. */
struct dcp_dcp_join {
	struct dcp_tensor t; /* dtype, itemsize (0: not known), ndim, shape, pieces */
	uint64_t shape[DCP_MAX_NDIM];
	char dtype_name[64];
	struct dcp_err why; /* not empty: the key is broken */
	struct dcp_dcp_place *place;
	size_t nplaces;
};

static inline bool dcp_dcp_is_broken(const struct dcp_dcp_join *j)
{
	return j->why.msg[0] != '\0';
}

/* object.c, tensor.c */
/* The sink's number of data file @file. */
int dcp_dcp_file_number(struct dcp_dcp_emitter *w, uint32_t file, uint32_t *number);
void dcp_dcp_emitter_finish(struct dcp_dcp_emitter *w);

int dcp_dcp_join(struct dcp_dcp_emitter *w, uint32_t key, struct dcp_dcp_join *j);

/* The key that Megatron-Core makes for a byte item that is a part of an object. */
struct dcp_dcp_shard {
	size_t nkey;       /* length of the object's own key */
	const char *shape; /* text of the shape, to the end of the key */
	uint32_t ndim;
	uint64_t at[8], of[8];
	bool cut; /* the shape lacks its last number */
};

/* Emit the parts of objects that have no key of their own. */
int dcp_dcp_emit_lost_shards(struct dcp_dcp_emitter *w);

int dcp_dcp_emit_tensor(struct dcp_dcp_emitter *w, uint32_t key);
int dcp_dcp_emit_bytes(struct dcp_dcp_emitter *w, uint32_t key);
/* Emit the parts of the item @r, a tensor that has no elements of its own. */
int dcp_dcp_emit_parts(struct dcp_dcp_emitter *w, const char *key, const char *const *path,
		       size_t npath, const struct dcp_dcp_meta_record *r);
