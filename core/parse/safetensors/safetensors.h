/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors: the header of a safetensors file, read and written.
 *
 *   0          u64 LE   N, length of the header (at most 100,000,000)
 *   8          N bytes  JSON object, starts with '{', may end in spaces:
 *                       name -> {"dtype", "shape", "data_offsets": [begin, end)},
 *                       "__metadata__" -> {string: string}
 *   8 + N      bytes    offsets count from here; row-major, little-endian
 *
 * Checked: entries sorted by offset are contiguous from 0 to the end of the file without
 * hole or overlap, end - begin is what dtype and shape say, no duplicate names.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
	uint32_t itemsize; /* the shape's volume times this is nbytes, always */
	const uint64_t
		*shape; /* in dcpfs's counting: F4's last dimension halved, F6's quartered */
	uint64_t off, nbytes; /* from the start of the file */
};

struct dcp_safetensors {
	struct dcp_safetensors_entry *entries; /* by offset */
	size_t n;
	const char **meta; /* __metadata__: key, value, key, value, ... */
	size_t nmeta;      /* pairs */
};

/*
 * Parse the header of @src into @arena. Returns 0, -EBADMSG, -ENOTSUP (another kind of file,
 * which is named), -E2BIG (header or an entry too long, more than DCP_MAX_NDIM dimensions),
 * -ENOMEM (also: the header is longer than what the arena has left) or what the source gave;
 * -ENODATA when the header is valid but the file ends before its last tensor does: then @out is
 * set, for callers that can use a part.
 *
 * A dtype the table does not know is kept by name (DCP_DTYPE_OTHER, itemsize from the
 * offsets); where those give no whole number of bytes it is one dimension of single bytes. F4
 * and F6 whose last dimension cannot be counted in elements (see dtype.h) become one dimension.
 */
int dcp_safetensors_read(const struct dcp_source *src, struct dcp_arena *arena,
			 struct dcp_safetensors *out, struct dcp_err *err);

/* Value of a __metadata__ key, or NULL. */
const char *dcp_safetensors_meta(const struct dcp_safetensors *st, const char *key);

/* Can a tensor of the file have that name? Not "__metadata__", nor text that is not Unicode:
 * readers refuse a file with such a name. */
bool dcp_safetensors_can_name(const char *name);

/* Begin a header at the end of @out: its length, still 0, and an object for
 * the members below, in any order. */
void dcp_safetensors_begin(struct dcp_jsonw *w, struct dcp_buf *out);
/*
 * End the header that begins at @start of w->out: pad it with spaces so that data starts at a
 * multiple of @align from there (a power of two, at least 8), and set its length. Returns 0,
 * -E2BIG (more than readers take) or -ENOMEM.
 */
int dcp_safetensors_end(struct dcp_jsonw *w, size_t start, uint32_t align);
/* The same of a header of any length whose first @before bytes were taken out of w->out: the first
 * 8 of them are to be @length. */
int dcp_safetensors_end_after(struct dcp_jsonw *w, uint64_t before, uint32_t align,
			      uint8_t length[8]);

/* Write the header's member for one tensor, whose bytes are [begin, end) of the data. The
 * format has a name for @dtype; @shape is in dcpfs's counting. */
void dcp_safetensors_put(struct dcp_jsonw *w, const char *name, enum dcp_dtype dtype,
			 uint32_t ndim, const uint64_t *shape, uint64_t begin, uint64_t end);

/*
 * Begin the value of __metadata__: what @own has, the fact "metadata" of an index (NULL:
 * nothing), under the format @format (NULL: that of @own, else "pt"). The caller may add
 * members, and ends it.
 */
void dcp_safetensors_begin_meta(struct dcp_jsonw *w, const char *format, const char *own);

/*
 * Append the header of a file with one tensor, @own as above in its metadata, @align as above.
 * @shape is in dcpfs's counting. Returns 0, -ENOTSUP when the format has no name for @dtype
 * or @name cannot be one, or -ENOMEM.
 */
int dcp_safetensors_header(struct dcp_buf *out, const char *name, enum dcp_dtype dtype,
			   uint32_t ndim, const uint64_t *shape, uint64_t nbytes,
			   uint32_t align, const char *own);

/* A tensor on its way into the files of a model. */
struct dcp_safetensors_item {
	const char *key;
	uint64_t number; /* the caller's; of two with the same key the lower comes first */
	uint64_t nbytes;
	uint32_t itemsize;
};

/*
 * Put them into files of at most @size bytes of tensors, unless one alone is longer (0: one
 * file), in natural order of their keys; within a file those with larger elements come first
 * where they would not be aligned otherwise. Returns how many files there are, at least one;
 * the i-th has items first[i] to first[i + 1]. @first has room for @n + 2.
 */
size_t dcp_safetensors_arrange(struct dcp_safetensors_item *item, size_t n, uint64_t size,
			       size_t *first);

/* The index that lists them, whose tensors have so many bytes: between these the caller puts the
 * name of a file for each key. */
void dcp_safetensors_begin_index(struct dcp_jsonw *w, struct dcp_buf *out, uint64_t total);
int dcp_safetensors_end_index(struct dcp_jsonw *w);

#define DCP_SAFETENSORS_NAME 96
/* The name of file @i of so many; of number @files: of the index that lists them. */
void dcp_safetensors_file_name(char name[DCP_SAFETENSORS_NAME], const char *stem, size_t i,
			       size_t files);
