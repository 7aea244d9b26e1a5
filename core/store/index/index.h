/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index: one version of one checkpoint as an immutable SQLite file.
 *
 *   meta    name TEXT, value TEXT
 *           dcpfs_index (schema number), format, version, commit_ns, framework, ...; tensors,
 *           objects, broken, bytes and elements are what dcp_index_counts() says; metadata: a
 *           JSON object, first the format, then all else that safetensors files have in
 *           __metadata__, without values about a single file (DCP_*, dcpfs.*); metadata_lost:
 *           [{name, why}], values that differ between files: when files are joined, the file
 *           that was read first wins; metadata_files: which file has which values, if they
 *           differ
 *   file    id INTEGER PRIMARY KEY, name TEXT, size, dev, ino, mtime_ns, ctime_ns, unpacked,
 *           shown
 *           the files that pieces refer to (their number is id - 1), and the files that the
 *           adapter read; unpacked: if pieces refer to the decoded content of a compressed
 *           file, its size in bytes, else 0; shown is 1 for sidecars (config.json)
 *   tensor  id INTEGER PRIMARY KEY, key TEXT, name TEXT (file stem; NULL: the key), nbytes,
 *           dtype TEXT, itemsize, shape TEXT (JSON array), alias_of (id or NULL), naliases
 *           (number of rows whose alias_of is this row), partly (1: the error concerns the
 *           files of some pieces only), entry (1: torch.distributed.checkpoint's metadata has
 *           a tensor of this key), error TEXT or NULL, path TEXT (JSON array of strings, or of
 *           the lengths of the parts of the key between dots), pieces BLOB
 *           (core/model/tensor.h), stored TEXT (the stored dtype of a tensor that is cast to
 *           dtype, else NULL)
 *   object  id INTEGER PRIMARY KEY, key TEXT, name TEXT or NULL, type TEXT, nbytes (of the JSON
 *           and a newline), error TEXT or NULL, path TEXT, json TEXT or NULL, classes TEXT or
 *           NULL (core/model/tensor.h); file (id), off, stored (bytes there), filter (0, or 1:
 *           zstd), raw (decoded bytes): all NULL unless it is stored as separate bytes;
 *           entry (1: torch.distributed.checkpoint's metadata has an object of this key)
 *   item    id INTEGER PRIMARY KEY, key TEXT, type, nbytes, error, path, json, classes: objects
 *           of that metadata that the version shows as other rows, in their original form; the
 *           paths of those rows begin with the path of the item
 *
 * ids count from 1 in the order in which the adapter emits tensors and objects; inode numbers are
 * made from them. Stems are unique over tensors and objects together. Users may query the file: the
 * names above are stable for a given dcpfs_index number.
 *
 * Written once (a temporary file beside the target, one transaction, fsync, rename), then only
 * opened read-only and immutable. When no file can be written the whole database is kept in memory.
 * The private header index_int.h is the only file that includes sqlite3.h.
 *
 * An open index holds the file itself, not its path, so its content stays the same if another
 * process replaces the file by a newer index.
 *
 * A finished file ends in the hashes of its pages, which are compared as pages are read. If a page
 * changed, the read fails with -EBADMSG (damaged), and the index is rebuilt when it is opened next.
 *
 * The file is untrusted: it may be stale, cut, or edited. Opening checks the schema; rows are
 * checked when used.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/base.h"
#include "core/model/tensor.h"

struct dcp_arena;
struct dcp_cut;
struct dcp_err;
struct dcp_site;
struct dcp_index;
struct dcp_index_writer;

#define DCP_INDEX_SCHEMA 23
/* SQLite's application_id of an index: "dcpx". */
#define DCP_SQL_APPLICATION 0x64637078

/* ---- writing ---- */

/* Begin an index that will be at @path (its directory must exist), or in memory when @path is NULL.
 * -ENOSPC, -EACCES, -EROFS, -ENOMEM, -EIO. */
int dcp_index_create(const char *path, struct dcp_index_writer **out, struct dcp_err *err);

/*
 * The sink that an adapter emits to. Each tensor is checked here: its size fits in 63 bits, its
 * pieces tile its shape (core/model/geometry/tiling.h), every piece lies inside its file and is
 * long enough for its elements. If a check fails, the reason becomes the error of the row, and the
 * tensor is kept. A row whose key was emitted before gets a hashed stem and an error that names the
 * clash. A tensor and an object may have the same key; the later one's stem is hashed. An alias
 * refers to the first tensor with its bytes; an alias without pieces takes those of that tensor. A
 * tensor whose dtype or shape differs from that of alias_of, or whose alias_of was not emitted
 * before, is not an alias. Files are looked up below @at with dcp_site_open(); a file that is
 * missing or leads outside is recorded with size 0, and the tensors that need it get the reason as
 * their error.
 */
struct dcp_sink dcp_index_sink(struct dcp_index_writer *w, const struct dcp_site *at);

/* Begin with the file table of another index, with the same numbers; nothing is opened. */
int dcp_index_emit_files(struct dcp_index_writer *w, const struct dcp_file_id *ids, size_t n);

struct dcp_unpack;
/* Was a file of that name emitted, either as a data file or as a sidecar? */
bool dcp_index_was_emitted(const struct dcp_index_writer *w, const char *name);

/* Set the decoder for compressed files that are emitted; without it such files cannot be
 * indexed. */
void dcp_index_unpack_with(struct dcp_index_writer *w, struct dcp_unpack *u);

/* The error that broke the sink (disk full, out of memory), copied to @err, or 0. It tells a
 * failure of the index from a failure of the adapter, because the adapter passes on both. */
int dcp_index_writer_error(const struct dcp_index_writer *w, struct dcp_err *err);

/* Publish: create indexes, fsync, rename. Frees the writer, also on failure. With a memory index,
 * or with @open not NULL, the finished index is handed back open. */
int dcp_index_commit(struct dcp_index_writer *w, struct dcp_index **open, struct dcp_err *err);
/* Give up: remove the temporary file. Accepts NULL. */
void dcp_index_abandon(struct dcp_index_writer *w);

/* ---- reading: any thread; connections come from a pool inside ---- */

/* -ENOENT, -EBADMSG (damaged), -ESTALE (another schema number), -ENOMEM, -EIO. */
int dcp_index_open(const char *path, struct dcp_index **out, struct dcp_err *err);
void dcp_index_close(struct dcp_index *ix);

/* Value of a meta row, or NULL; valid until close. */
const char *dcp_index_meta(const struct dcp_index *ix, const char *name);
/* The same as a number; 0: no such row. */
uint64_t dcp_index_meta_number(const struct dcp_index *ix, const char *name);

/* The file table, by number as pieces refer to it; valid until close. */
const struct dcp_file_id *dcp_index_files(const struct dcp_index *ix, size_t *n);

struct dcp_index_counts {
	uint64_t tensors, objects, broken; /* broken: rows of either kind with an error */
	uint64_t bytes, elements;          /* of all tensors that are not aliases */
};
const struct dcp_index_counts *dcp_index_counts(const struct dcp_index *ix);

/* Items can only be scanned, without @names. They have no names, and their ids are separate. */
enum dcp_row_kind { DCP_ROW_TENSOR, DCP_ROW_OBJECT, DCP_ROW_ITEM };

/* The columns that a listing or a stat needs. Text is valid until the next step of the scan. */
struct dcp_row {
	int64_t id;
	const char *key, *name;
	uint64_t nbytes; /* tensor bytes (raw), or length of the JSON text plus its newline */
	enum dcp_dtype dtype; /* tensors */
	uint32_t ndim;        /* tensors */
	uint64_t shape[DCP_MAX_NDIM];
	int64_t alias_of;  /* id of the tensor with the same bytes, 0: none */
	uint32_t naliases; /* number of rows whose alias_of is this row */
	bool broken;
	bool partly; /* broken, but parts whose pieces exist can be read */
	bool entry;  /* as in struct dcp_tensor and struct dcp_object */
};

/* One row by id, by stem or by key into @row, its text copied into @arena. -ENOENT. */
int dcp_index_by_id(struct dcp_index *ix, enum dcp_row_kind kind, int64_t id,
		    struct dcp_arena *arena, struct dcp_row *row);
int dcp_index_by_name(struct dcp_index *ix, enum dcp_row_kind kind, const char *name,
		      struct dcp_arena *arena, struct dcp_row *row);
int dcp_index_by_key(struct dcp_index *ix, enum dcp_row_kind kind, const char *key,
		     struct dcp_arena *arena, struct dcp_row *row);

/* Read everything about one row into @arena. Blobs are validated as core/model/tensor.h says. */
int dcp_index_tensor(struct dcp_index *ix, int64_t id, struct dcp_arena *arena,
		     struct dcp_tensor *out, struct dcp_err *err);
/* The same, but without the pieces that do not overlap @cut (if the cut fits the tensor; NULL: all
 * pieces). */
int dcp_index_tensor_part(struct dcp_index *ix, int64_t id, const struct dcp_cut *cut,
			  struct dcp_arena *arena, struct dcp_tensor *out, struct dcp_err *err);
int dcp_index_object(struct dcp_index *ix, int64_t id, struct dcp_arena *arena,
		     struct dcp_object *out, struct dcp_err *err);
int dcp_index_item(struct dcp_index *ix, int64_t id, struct dcp_arena *arena,
		   struct dcp_object *out, struct dcp_err *err);

/*
 * Rows in id order, starting after id @after. One scan, one thread; it holds a connection, so
 * finish it soon. next() gives 1 and a row, 0 at the end, or a negative errno. With @names only
 * id, name and what a listing needs of tensors (dtype, alias_of, key) are set: half the cost.
 */
struct dcp_index_scan;
int dcp_index_scan(struct dcp_index *ix, enum dcp_row_kind kind, int64_t after, bool names,
		   struct dcp_index_scan **out);
int dcp_index_scan_next(struct dcp_index_scan *s, struct dcp_row *row);
void dcp_index_scan_end(struct dcp_index_scan *s);
DCP_AUTO_PTR(struct dcp_index_scan, dcp_index_scan_end)
#define dcp_auto_scan __attribute__((cleanup(dcp_index_scan_end_ptr)))

/* Descriptor of the index file, for fstat(); -1: the index is in memory. */
int dcp_index_fd(const struct dcp_index *ix);

/* Was a page read whose hash is wrong? Then the file must be rebuilt. */
bool dcp_index_is_damaged(const struct dcp_index *ix);

/* "3.40.1": the SQLite in use. */
const char *dcp_index_sqlite_version(void);

/*
 * pool: idle connections to indexes, kept for reuse.
 *
 * A connection costs some hundred microseconds to open and up to half a megabyte of pages. So idle
 * connections are kept, the last used with their pages, the others without. Otherwise a caller that
 * queries many indexes in turn would open each index again each time. By default an index has its
 * own pool; a caller that opens many indexes gives them one pool, with one limit for all.
 *
 * Safe from any thread.
 */

struct dcp_index_pool;

/* At most @max idle connections. -ENOMEM. */
int dcp_index_pool_create(unsigned max, struct dcp_index_pool **out);
/* Call it when every index that shares the pool is closed. Accepts NULL. */
void dcp_index_pool_destroy(struct dcp_index_pool *pool);

/* From now on @ix keeps its connections in @pool. No other thread may use @ix yet. */
void dcp_index_share(struct dcp_index *ix, struct dcp_index_pool *pool);

/*
 * said: the metadata of stored files (__metadata__ of safetensors), for a new file that gets some
 * of their tensors.
 *
 * The new file gets the metadata of the files that its tensors come from. If those files differ in
 * a value, the first of them in the version wins. A mapped version is always in torch's format,
 * whatever the files say.
 */

struct dcp_said;

/* @ix must outlive it. -ENOMEM, or -EBADMSG: the index is damaged. */
int dcp_said_create(struct dcp_index *ix, struct dcp_said **out);
void dcp_said_free(struct dcp_said *s);

/* Add the tensor of row @id to the new file. -ENOENT and the like: the row cannot be read. */
int dcp_said_add(struct dcp_said *s, int64_t id);

/*
 * Get the metadata of the new file: a JSON object for dcp_safetensors_begin_meta(), or NULL for
 * none, valid until the next call. Tensors that are added afterwards belong to another file.
 * -ENOMEM.
 */
int dcp_said_take(struct dcp_said *s, const char **object);
