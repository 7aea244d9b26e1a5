/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors: reads and writes the header of a safetensors file.
 *
 *   0          u64 LE   N, length of the header (at most 100,000,000)
 *   8          N bytes  JSON object, starts with '{', may end in spaces:
 *                       name -> {"dtype", "shape", "data_offsets": [begin, end)},
 *                       "__metadata__" -> {string: string}
 *   8 + N      bytes    the data: offsets count from here; row-major, little-endian
 *
 * The reader checks that the entries, sorted by offset, cover the data from 0 to the end of the
 * file without hole or overlap, that end - begin is the size that dtype and shape give, and that
 * no name occurs twice.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/base/jsonw.h"
#include "core/model/dtype.h"

struct dcp_arena;
struct dcp_buf;
struct dcp_err;
struct dcp_jsonw;
struct dcp_source;

#define DCP_SAFETENSORS_MAX_HEADER 100000000u /* the format's own limit */
#define DCP_SAFETENSORS_MAX_ENTRY 65536u      /* text of one entry; 64 dimensions need 1,500 */

struct dcp_safetensors_entry {
	const char *name;
	const char *dtype_name; /* as written in the file */
	enum dcp_dtype dtype;
	uint32_t ndim;
	uint32_t itemsize; /* always nbytes / volume of the shape */
	const uint64_t
		*shape; /* as dcpfs counts: last dimension of F4 halved, of F6 quartered */
	uint64_t off, nbytes; /* from the start of the file */
};

struct dcp_safetensors {
	struct dcp_safetensors_entry *entries; /* by offset */
	size_t n;
	const char **meta; /* __metadata__: key, value, key, value, ... */
	size_t nmeta;      /* pairs */
};

/*
 * Parse the header of @src into @arena. Returns 0, -EBADMSG, -ENOTSUP (another kind of file, named
 * in @err), -E2BIG (the header or an entry is too long, or more than DCP_MAX_NDIM dimensions),
 * -ENOMEM (also if the header is longer than the rest of the arena) or the error of the source.
 * Returns -ENODATA if the header is valid but the file ends before its last tensor does; @out is
 * then set, for callers that can use a part of the file.
 *
 * A dtype that dcpfs does not know is kept by name (DCP_DTYPE_OTHER) with the itemsize that the
 * offsets give; if the offsets give no whole number of bytes, the tensor becomes one dimension of
 * single bytes. An F4 or F6 tensor whose last dimension cannot be counted in elements (see
 * core/model/dtype.h) becomes one dimension.
 */
int dcp_safetensors_read(const struct dcp_source *src, struct dcp_arena *arena,
			 struct dcp_safetensors *out, struct dcp_err *err);

/* Value of a __metadata__ key, or NULL. */
const char *dcp_safetensors_meta(const struct dcp_safetensors *st, const char *key);

/* Can a tensor of the file have this name? Readers refuse a file with the name "__metadata__" or
 * with a name that is not valid Unicode. */
bool dcp_safetensors_can_name(const char *name);

/* Begin a header at the end of @out: the length, still 0, and an object, to which the functions
 * below add members in any order. */
void dcp_safetensors_begin(struct dcp_jsonw *w, struct dcp_buf *out);
/*
 * End the header that begins at @start of w->out: pad it with spaces so that data starts at a
 * multiple of @align from there (a power of two, at least 8), and set its length. Returns 0, -E2BIG
 * (longer than readers accept) or -ENOMEM.
 */
int dcp_safetensors_end(struct dcp_jsonw *w, size_t start, uint32_t align);
/* The same for a header of any length, whose first @before bytes the caller has already removed
 * from w->out. Of these, the caller replaces the first 8 by @length. */
int dcp_safetensors_end_after(struct dcp_jsonw *w, uint64_t before, uint32_t align,
			      uint8_t length[8]);

/* Write the header's member for one tensor, whose bytes are [begin, end) of the data. The caller
 * knows that the format has a name for @dtype; @shape is as dcpfs counts. */
void dcp_safetensors_put(struct dcp_jsonw *w, const char *name, enum dcp_dtype dtype,
			 uint32_t ndim, const uint64_t *shape, uint64_t begin, uint64_t end);

/*
 * Begin the value of __metadata__ with the format @format (NULL: that of @own, else "pt") and the
 * members of @own, the fact "metadata" of an index (NULL: none). The caller may add members, and
 * ends the object.
 */
void dcp_safetensors_begin_meta(struct dcp_jsonw *w, const char *format, const char *own);

/* Tensors that a file leaves out, which its metadata names. Zeroed at first. */
struct dcp_safetensors_left {
	struct dcp_buf names;
	uint64_t n;
};

/* @instead is named if JSON cannot represent @key. */
void dcp_safetensors_leave_out(struct dcp_safetensors_left *l, const char *key,
			       const char *instead);
/* Write the member "dcpfs.left_out", if there are any, and free the names. -ENOMEM. */
int dcp_safetensors_put_left(struct dcp_safetensors_left *l, struct dcp_jsonw *w);

/* The shapes of tensors of which a rank's file holds only parts. */
struct dcp_safetensors_shapes {
	struct dcp_buf text;
	struct dcp_jsonw w; /* the caller adds a member for each, dcp_jsonw_put_u64s() */
};

void dcp_safetensors_begin_shapes(struct dcp_safetensors_shapes *s);
/* Write the members "dcpfs.rank", "dcpfs.ranks" and "dcpfs.global_shapes", and free @s. -ENOMEM. */
int dcp_safetensors_put_shapes(struct dcp_safetensors_shapes *s, struct dcp_jsonw *w,
			       uint64_t rank, uint64_t ranks);

/*
 * Append the header of a file with one tensor; for @own see dcp_safetensors_begin_meta(), for
 * @align dcp_safetensors_end(). @shape is as dcpfs counts. Returns 0, -ENOTSUP if the format has
 * no name for @dtype or does not allow the name @name, or -ENOMEM.
 */
int dcp_safetensors_header(struct dcp_buf *out, const char *name, enum dcp_dtype dtype,
			   uint32_t ndim, const uint64_t *shape, uint64_t nbytes,
			   uint32_t align, const char *own);

/* A tensor that is to be written into one of the files of a model. */
struct dcp_safetensors_item {
	const char *key;
	uint64_t number; /* chosen by the caller; orders items with the same key */
	uint64_t nbytes;
	uint32_t itemsize;
};

/*
 * Distribute the items over files in the natural order of their keys. A file has at most @size
 * bytes of tensors unless it has a single larger tensor; @size 0: one file. Within a file, tensors
 * with larger elements come first if tensors would not be aligned otherwise. Returns the number
 * of files, at least one; file i has the items first[i] to first[i + 1], without the latter.
 * @first has room for @n + 2.
 */
size_t dcp_safetensors_arrange(struct dcp_safetensors_item *item, size_t n, uint64_t size,
			       size_t *first);

/* Begin and end the index of the files, whose tensors have @total bytes. Between the two calls, the
 * caller writes each key with the name of its file. */
void dcp_safetensors_begin_index(struct dcp_jsonw *w, struct dcp_buf *out, uint64_t total);
int dcp_safetensors_end_index(struct dcp_jsonw *w);

#define DCP_SAFETENSORS_NAME 96
/* The name of file @i of @files; @i equal to @files: the name of the index. */
void dcp_safetensors_file_name(char name[DCP_SAFETENSORS_NAME], const char *stem, size_t i,
			       size_t files);
