/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meta: what does a DCP .metadata say, kept small?
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
#include "core/base/intern.h"
#include "core/model/tensor.h"
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
 * meta_int: one pair of each section of a .metadata, put into a struct dcp_tmeta.
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
