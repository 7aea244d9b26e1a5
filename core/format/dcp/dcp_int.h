/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp_int: the contents of a DCP .metadata, kept small, and what the files that emit a DCP
 * checkpoint share; only they include it.
 *
 * The pickle is one Metadata object with three huge dicts. They are taken batch by batch while
 * the machine reads, in whatever order they come, and kept as packed numbers: about 26 bytes
 * for a chunk and 100 for a key. Join by key comes afterwards.
 *
 *   state_dict_metadata  key -> TensorStorageMetadata | BytesStorageMetadata   an entry
 *   storage_data         MetadataIndex(key, offsets) -> _StorageInfo           a record
 *   planner_data         key -> path of components                             a path
 *   mcore_data           key -> its true shape, of Megatron's flattened tensors a shape
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
 * Several files may be read one after another (rank-local metadata): entries and records
 * remember which one they came from. One thread at a time.
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
#include "core/origin/source.h"
#include "core/parse/pickle/pickle.h"

struct dcp_err;
struct dcp_source;

enum dcp_tmeta_kind { DCP_TMETA_UNKNOWN, DCP_TMETA_TENSOR, DCP_TMETA_BYTES };

struct dcp_tmeta_key {
	uint32_t entry; /* in entries; 0: only storage_data or planner_data name it */
	uint32_t path;  /* in paths; 0: the path is the key */
	uint32_t shape; /* in paths; 0: it is what state_dict_metadata says */
	uint32_t first; /* of its records in by_key; they end where the next key's start */
};

struct dcp_tmeta {
	struct dcp_intern names, files, dtypes, errors;
	struct dcp_tmeta_key *keys; /* by number in names, and two more for the sort */
	uint32_t cap;
	struct dcp_buf entries, records, paths; /* first byte unused, so that 0 is nowhere */
	uint32_t *by_key;                       /* where each record starts, by key, stable */
	uint64_t nrecords, norphans;            /* orphans: records of keys without entry */
	struct dcp_intern containers; /* lines as struct dcp_walk has them; 64 KiB or so */
	struct dcp_buf ends;          /* uint64_t per file read: records.n when it was done */
	uint32_t nread;
	char save_id[64], version[32]; /* "": not said */

	/* while a file is read */
	uint32_t guess; /* the key that probably comes next */
	uint32_t last_file;
	uint64_t budget; /* what its parts may add up to, see meta.c */
	struct dcp_buf scratch;
};

int dcp_tmeta_init(struct dcp_tmeta *m);
void dcp_tmeta_finish(struct dcp_tmeta *m);

/*
 * Read one .metadata. Returns 0, -EBADMSG (cut, damaged, not a Metadata), -ENOTSUP (torch
 * 1.12, refused opcodes), -E2BIG, -ENOMEM, or what the source gave, always with @err set. What
 * is wrong with one key becomes that key's error and is not a failure.
 */
int dcp_tmeta_read(struct dcp_tmeta *m, const struct dcp_source *src, struct dcp_err *err);

/* Sort the records by key; after the last read. */
int dcp_tmeta_join(struct dcp_tmeta *m, struct dcp_err *err);

/* The header of an entry; @c is left at what its kind adds. 0 ends a chain. */
struct dcp_tmeta_entry {
	enum dcp_tmeta_kind kind;
	uint32_t rank_file, before;
	struct dcp_cur c;
};
struct dcp_tmeta_entry dcp_tmeta_entry(const struct dcp_tmeta *m, uint32_t at);

struct dcp_tmeta_record {
	uint32_t rank_file;
	uint32_t ndim; /* DCP_TMETA_NO_OFFSETS for a byte item */
	uint32_t filter, file;
	uint64_t off, nbytes;
};
#define DCP_TMETA_NO_OFFSETS UINT32_MAX

/* Record number @i of by_key; its offsets go to @dims. */
struct dcp_tmeta_record dcp_tmeta_record(const struct dcp_tmeta *m, uint32_t i,
					 uint64_t dims[DCP_MAX_NDIM]);

/* The shape in mcore_data of key @number, if it has one. */
bool dcp_tmeta_shape(const struct dcp_tmeta *m, uint32_t number, uint64_t dims[DCP_MAX_NDIM],
		     uint32_t *ndim);

/* The text of a record's error. */
const char *dcp_tmeta_error(const struct dcp_tmeta *m, uint32_t filter);

/*
 * Components of key @number as pointers into @text, which is overwritten. Returns their
 * number, or 0 when memory is out. The pointers are at *@out until the next call.
 */
size_t dcp_tmeta_path(const struct dcp_tmeta *m, uint32_t number, struct dcp_buf *text,
		      struct dcp_buf *ptrs, const char *const **out);

/*
 * One pair of each section of a .metadata, put into a struct dcp_tmeta.
 *
 * What is wrong with the pair's key is kept as its error; a negative return ends the reading.
 */

/* A file of @size bytes begins. */
void dcp_tmeta_begin(struct dcp_tmeta *m, uint64_t size);

/* For struct dcp_section; @meta is the struct dcp_tmeta. */
int dcp_tmeta_add_entry(void *meta, struct dcp_pv key, struct dcp_pv v, struct dcp_err *err);
int dcp_tmeta_add_record(void *meta, struct dcp_pv index, struct dcp_pv v, struct dcp_err *err);
int dcp_tmeta_add_path(void *meta, struct dcp_pv key, struct dcp_pv v, struct dcp_err *err);
int dcp_tmeta_add_shape(void *meta, struct dcp_pv key, struct dcp_pv v, struct dcp_err *err);

/*
 * dcp: what the two forms of a torch.distributed.checkpoint directory share.
 *
 * One .metadata for all ranks, or one __<rank>.metadata for each: either way the tensors and
 * byte items of a joined struct dcp_tmeta are emitted to a sink. Tensor items are named by place
 * and length and not opened; byte items are read.
 */

#define DCP_TDCP_MAX_OBJECT (256u << 20) /* a byte item; train states are kilobytes */
#define DCP_TDCP_MAX_DECODED (64u << 20) /* of a compressed item, which is kept in memory */

struct dcp_tdcp {
	const struct dcp_load *in;
	struct dcp_tmeta meta;
	const char *missing; /* of rank-local metadata: why elements may be missing; or NULL */
	const char *const *rank; /* what to call the writer of each file read; or NULL */
};

/* Join, then emit every key and the facts. */
int dcp_tdcp_emit(struct dcp_tdcp *d, struct dcp_err *err);

/*
 * Is @name that of a data file, "<anything>__<i>_<n>.distcp"? @rank receives i. And of a
 * rank's metadata, "__<rank>.metadata"?
 */
bool dcp_tdcp_is_data_name(const char *name, uint64_t *rank);
bool dcp_tdcp_is_rank_name(const char *name, const char *suffix, uint64_t *rank);

/*
 * item: the data files of a DCP directory, opened to look at single items.
 *
 * A few descriptors are kept open: items of one file tend to come together.
 */

struct dcp_err;

#define DCP_TITEM_SLOTS 16

struct dcp_titem_files {
	const struct dcp_dir *dir;
	struct {
		uint64_t number; /* 1 + number of the file; 0: free */
		struct dcp_input input;
	} slot[DCP_TITEM_SLOTS];
	struct dcp_buf claimed; /* uint64_t per file: bytes of all items looked at */
};

void dcp_titem_files_init(struct dcp_titem_files *f, const struct dcp_dir *dir);

/* The bytes of an item, decoded if it is compressed. Valid until the next item or finish. */
struct dcp_titem {
	struct dcp_source file, window, src; /* src is what to read */
	struct dcp_buf decoded;
};

/*
 * Look at [@off, @off + @nbytes) of file @number, called @name. A compressed item may decode to
 * @limit bytes. The item must be finished also after a failure. -E2BIG: the items of this file
 * are together many times longer than it, so they overlap.
 */
int dcp_titem_open(struct dcp_titem_files *f, uint32_t number, const char *name, uint64_t off,
		   uint64_t nbytes, enum dcp_filter filter, uint64_t limit,
		   struct dcp_titem *out, struct dcp_err *err);
void dcp_titem_finish(struct dcp_titem *item);

/* A record of the key at hand: which offsets it is for, and its number in by_key. */
struct dcp_tdcp_place {
	const uint64_t *lo;
	uint32_t rank_file, i;
};

struct dcp_tdcp_emitter {
	struct dcp_tdcp *d;
	const struct dcp_tmeta *m;
	const struct dcp_sink *sink;
	struct dcp_titem_files files;
	bool lists;             /* open lists in byte items: the state is Composer's */
	struct dcp_buf emitted; /* uint32_t per data file: 1 + its number at the sink, or 0 */
	uint64_t plain[512];    /* kinds of items that were found to be tensors; by hash */
	unsigned misses;        /* items that were to be looked at and could not */
	struct dcp_buf path_text, path_ptrs;
	struct dcp_buf containers; /* of byte items */
	/* of the key at hand, kept for the next one */
	struct dcp_join
		join; /* its chunks that hold elements, as pieces in the file that lists them */
	struct dcp_buf dims, places, blocks;
};

/* What is being found out about one tensor; arrays live in the emitter until the next key. */
struct dcp_tdcp_join {
	struct dcp_tensor t; /* dtype, itemsize (0: not known), ndim, shape, pieces */
	uint64_t shape[DCP_MAX_NDIM];
	char dtype_name[64];
	struct dcp_err why; /* not empty: the key is broken */
	struct dcp_tdcp_place *place;
	size_t nplaces;
};

static inline bool dcp_tdcp_is_broken(const struct dcp_tdcp_join *j)
{
	return j->why.msg[0] != '\0';
}

/* object.c */
/* The sink's number of data file @file. */
int dcp_tdcp_file_number(struct dcp_tdcp_emitter *w, uint32_t file, uint32_t *number);
void dcp_tdcp_emitter_finish(struct dcp_tdcp_emitter *w);

int dcp_tdcp_join(struct dcp_tdcp_emitter *w, uint32_t key, struct dcp_tdcp_join *j);

/* A byte item's key as Megatron-Core makes it of a part of an object. */
struct dcp_tdcp_shard {
	size_t nkey;       /* of the object's own key */
	const char *shape; /* its text, to the end */
	uint32_t ndim;
	uint64_t at[8], of[8];
	bool cut; /* the shape lacks its last number */
};

/* Emit the parts of objects that no key is for. */
int dcp_tdcp_emit_lost_shards(struct dcp_tdcp_emitter *w);

int dcp_tdcp_emit_tensor(struct dcp_tdcp_emitter *w, uint32_t key);
int dcp_tdcp_emit_bytes(struct dcp_tdcp_emitter *w, uint32_t key);
/* What is in the item @r, a tensor without elements of its own, as its parts. */
int dcp_tdcp_emit_parts(struct dcp_tdcp_emitter *w, const char *key, const char *const *path,
			size_t npath, const struct dcp_tmeta_record *r);
