/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor: a key, a shape, and the pieces that hold its bytes. Shapes count elements.
 *
 * A piece is a box of the global tensor (half-open: lo, lo + len per dimension) that is stored in
 * one file. These members say how:
 *
 *   enc     DCP_ENC_PLAIN   element bytes at file offset off, nbytes of them
 *           DCP_ENC_TORCH   [off, off + nbytes) is a torch.save stream of one tensor;
 *                           the place of the bytes is found at first use (located)
 *           DCP_ENC_TORCH_FLAT  the same, but the tensor may have any shape: its elements in
 *                           row-major order are the run
 *   filter  DCP_FILTER_NONE; or [off, off + nbytes) is encoded as a whole, and enc describes
 *           the decoded bytes:
 *           DCP_FILTER_ZSTD    compressed
 *           DCP_FILTER_DEFLATE raw deflate; the elements are the end of the decoded bytes (an
 *                              .npy in a ZIP archive has its header before them)
 *           DCP_FILTER_LATIN1  UTF-8 of the bytes taken as Latin-1 text (pickle protocol 2);
 *                              the decoded bytes are the run_n elements
 *           DCP_FILTER_SUM     numbers; ranks hold their terms, at off and at each place in more
 *           or the elements are not yet the values, as torch conjugates and negates lazily:
 *           DCP_FILTER_NEG     flip the sign of every number
 *           DCP_FILTER_CONJ    flip the sign of every imaginary part
 *           or there are no bytes (off and nbytes are 0, file is any):
 *           DCP_FILTER_ZERO    every element is 0
 *   stride  elements between neighbours along each dimension; NULL: row-major over len
 *   item_n  not 0: the piece is a part of a decoded item of item_n elements. Its first element
 *           is number item_lo of them, and stride (not NULL) counts in their row-major order
 *
 * A piece may hold only a run of the row-major flattening of its box (DeepSpeed ZeRO,
 * Megatron flattened ranges, Paddle flat shards): run_lo and run_n, in elements. A whole
 * box has run_lo 0 and run_n its volume. Runs are stored row-major (stride NULL).
 *
 * These structs own no memory: arrays live in the arena or blob that made them.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/dtype.h"

struct dcp_buf;

#define DCP_MAX_NDIM 64 /* torch's own limit */

enum dcp_enc { DCP_ENC_PLAIN, DCP_ENC_TORCH, DCP_ENC_TORCH_FLAT };
enum dcp_filter {
	DCP_FILTER_NONE,
	DCP_FILTER_ZSTD,
	DCP_FILTER_LATIN1,
	DCP_FILTER_NEG,
	DCP_FILTER_CONJ,
	DCP_FILTER_DEFLATE,
	DCP_FILTER_ZERO,
	DCP_FILTER_SUM,
};

/* A further term of a sum: as many bytes as the piece has, at another place. */
struct dcp_term {
	uint64_t off;
	uint32_t file; /* index into the version's file table */
};

struct dcp_piece {
	const uint64_t *lo;       /* ndim */
	const uint64_t *len;      /* ndim */
	const uint64_t *stride;   /* ndim, in elements; NULL: row-major over len */
	uint64_t run_lo, run_n;   /* elements of the flattened box that the piece has */
	uint64_t off, nbytes;     /* in the file; see enc and filter */
	uint64_t item_lo, item_n; /* 0, except for parts of a decoded item */
	uint32_t file;            /* index into the version's file table */
	uint8_t enc;              /* enum dcp_enc */
	uint8_t filter;           /* enum dcp_filter */
	bool swap;                /* element bytes are big-endian */
	/*
	 * For DCP_FILTER_SUM: the other terms, which are added to the elements of the piece one
	 * after the other, with rounding to the dtype each time; if @mean, the sum is then divided
	 * by the number of terms.
	 */
	bool mean;
	uint32_t nmore;
	const struct dcp_term *more;
};

struct dcp_tensor {
	const char *key;         /* UTF-8, NUL-terminated, may hold any other character */
	const char *const *path; /* components of the key as the framework nests them */
	size_t npath;
	enum dcp_dtype dtype;
	/* the name in the table; for DCP_DTYPE_OTHER, the framework's; with @cast, the name of the
	 * type that users see */
	const char *dtype_name;
	uint32_t itemsize; /* bytes per element */
	/* The type that users see: every element is converted to it when it is read. OTHER: users
	 * see @dtype. Pieces, and everything that counts stored bytes, are not affected. */
	enum dcp_dtype cast;
	uint32_t ndim;
	const uint64_t *shape;
	const struct dcp_piece *pieces;
	size_t npieces;
	/* Copies of pieces in other files: each has the box and the run of one of the pieces, and
	 * is read if that piece cannot be. */
	const struct dcp_piece *copies;
	size_t ncopies;
	const char *alias_of; /* key of an earlier tensor with the same bytes; NULL: none */
	const char *error;    /* why it cannot be read, one line; NULL: it can */
	/* the error concerns the files of some pieces only; the rest can be read */
	bool partly;
	bool entry; /* torch.distributed.checkpoint's metadata has a tensor of this key */
};

/* Consecutive bytes: a file, or a part of a file. */
struct dcp_stretch {
	uint32_t file;        /* index into the version's file table */
	uint8_t filter;       /* DCP_FILTER_NONE or DCP_FILTER_ZSTD */
	uint64_t off, nbytes; /* in the file */
	uint64_t n;           /* bytes after the filter is undone */
};

/* Describe the bytes as a tensor of U8; @dims (room for two numbers) and @p hold its shape and its
 * piece. */
void dcp_stretch_tensor(const struct dcp_stretch *s, uint64_t *dims, struct dcp_piece *p,
			struct dcp_tensor *out);

/* Non-tensor state, already decoded to JSON. */
struct dcp_object {
	const char *key;
	const char *const *path;
	size_t npath;
	const char *type; /* Python's name of the class: "int", "list", "trainer.Info" */
	const char *json; /* one JSON value; NULL when error says why it could not be decoded */
	size_t json_len;
	/*
	 * Classes of values inside that JSON does not show: "1:tuple 4 7:numpy.int64". Values are
	 * numbered in the order in which they begin, and the whole JSON is value 0; keys are not
	 * counted. A number without a class has the class before it. NULL: none.
	 */
	const char *classes;
	const char *error;
	/* The serialized bytes, if they hold nothing but this object; NULL: the object is a part of
	 * a larger stream. */
	const struct dcp_stretch *stored;
	bool entry; /* torch.distributed.checkpoint's metadata has an object of this key */
};

/*
 * A file that pieces refer to, by name relative to the directory of the version, and the identity
 * of its content. On a file system dev and ino are device and inode. On a source whose files have
 * tags, they are 128 bits of the hash of the tag (ino is not 0), and the times are those that the
 * source gives, or 0. ino 0: the file could not be opened.
 */
struct dcp_file_id {
	const char *name;
	uint64_t size, dev, ino;
	int64_t mtime_ns, ctime_ns;
	/* Not 0: offsets of pieces count bytes of the decompressed file, which has this size. */
	uint64_t unpacked;
	bool shown; /* the file is a sidecar: its bytes are shown unchanged */
};

/*
 * An adapter emits its findings to a sink, one at a time, so that no adapter needs the whole
 * checkpoint in memory. Every pointer is borrowed for the call only. The adapter must pass a
 * negative return on at once, because it ends the build.
 */
struct dcp_sink {
	/* Name a file before pieces use it; returns its number (the same for the same name). */
	int (*file)(void *ctx, const char *name, uint32_t *number);
	int (*tensor)(void *ctx, const struct dcp_tensor *t);
	int (*object)(void *ctx, const struct dcp_object *o);
	/*
	 * An object in the form that the metadata of torch.distributed.checkpoint has, if dcpfs
	 * shows it under other keys (a list item by item) or as a tensor. Its key may equal the key
	 * of another row.
	 */
	int (*item)(void *ctx, const struct dcp_object *o);
	/* A fact about the version: "framework" -> "torch 2.15". */
	int (*meta)(void *ctx, const char *name, const char *value);
	/* The same as file() for a file that is compressed as a whole: offsets of its pieces count
	 * decompressed bytes. */
	int (*unpacked)(void *ctx, const char *name, uint32_t *number);
	/* A file of the version that is shown unchanged: config.json, a tokenizer. */
	int (*sidecar)(void *ctx, const char *name);
	/*
	 * A name and a value that the stored file @file holds beside its tensors, as in
	 * __metadata__ of safetensors. The pairs of a file come together, after one call with NULL
	 * for both; a file may have no pairs.
	 */
	int (*said)(void *ctx, const char *file, const char *name, const char *value);
	/* Called before anything is emitted; a negative return ends the build. */
	int (*check)(void *ctx);
	void *ctx;
	/* gets findings for which this sink has no function; NULL: they are dropped */
	const struct dcp_sink *next;
};

/* Append the components, joined with '.', to @out. */
void dcp_path_join(struct dcp_buf *out, const char *const *path, size_t n);

/*
 * Emit to @s, or to the next sink of its chain that has the function. A key of NULL means the
 * joined path. A tensor with an error loses its pieces, unless the error concerns only some of
 * them. 0, -ENOMEM or the result of the sink.
 */
int dcp_emit_file(const struct dcp_sink *s, const char *name, uint32_t *number);
int dcp_emit_unpacked(const struct dcp_sink *s, const char *name, uint32_t *number);
int dcp_emit_tensor(const struct dcp_sink *s, const struct dcp_tensor *t);
int dcp_emit_object(const struct dcp_sink *s, const struct dcp_object *o);
int dcp_emit_item(const struct dcp_sink *s, const struct dcp_object *o);
int dcp_emit_meta(const struct dcp_sink *s, const char *name, const char *value);
int dcp_emit_sidecar(const struct dcp_sink *s, const char *name);
int dcp_emit_said(const struct dcp_sink *s, const char *file, const char *name,
		  const char *value);

/* "zstd", "deflate", "latin1", "negate", "conjugate", "zeros", "sum"; "" for none. */
const char *dcp_filter_name(uint8_t filter);

/* Do the stored bytes of a piece differ from its elements? */
bool dcp_filter_encodes(uint8_t filter);

/* Compare two lists of @n numbers: less than, equal to, or more than zero. */
int dcp_dims_compare(const uint64_t *a, const uint64_t *b, uint32_t n);
/* Compare boxes, then runs: less than, equal to, or more than zero. */
int dcp_piece_compare(const struct dcp_piece *a, const struct dcp_piece *b, uint32_t ndim);

/* "[4, 3]", "[]" for a scalar; ends in "..." if @buf is too short. Returns @buf. */
const char *dcp_dims_text(char *buf, size_t size, const uint64_t *dims, uint32_t ndim);
/* The same for the coordinates of element @i, in row-major order, of an array of this shape. */
const char *dcp_place_text(char *buf, size_t size, const uint64_t *shape, uint32_t ndim,
			   uint64_t i);

/* The same for a box: "[0:4, 2:8]". Any box fits in DCP_BOX_TEXT bytes. */
#define DCP_BOX_TEXT (DCP_MAX_NDIM * 48)
const char *dcp_box_text(char *buf, size_t size, const uint64_t *lo, const uint64_t *len,
			 uint32_t ndim);

/* A box of a tensor: half-open, lo to lo + len. */
struct dcp_box {
	uint64_t lo[DCP_MAX_NDIM], len[DCP_MAX_NDIM];
};

/* Do the two boxes have an element in common? Ends beyond 64 bits count as UINT64_MAX. */
bool dcp_box_meets(const struct dcp_box *box, uint32_t ndim, const uint64_t *lo,
		   const uint64_t *len);

/* Elements in a shape; returns false when the product does not fit in 64 bits. */
bool dcp_shape_volume(const uint64_t *shape, uint32_t ndim, uint64_t *out);

/* Size of an array in bytes; false if it is too large, where lengths of 0 count as 1. */
bool dcp_shape_nbytes(const uint64_t *shape, uint32_t ndim, uint32_t itemsize, uint64_t *out);

/* Are the strides (in elements) those of a dense row-major array? Only dimensions of more than one
 * element count. */
bool dcp_row_major(const uint64_t *shape, const uint64_t *stride, uint32_t ndim);

/* The number of elements from the first to the last of a strided array that is not empty; false if
 * it does not fit in 64 bits. */
bool dcp_stride_span(const uint64_t *shape, const uint64_t *stride, uint32_t ndim,
		     uint64_t *out);

/* The dtype that users see, and how many bytes an element has in it. */
static inline enum dcp_dtype dcp_tensor_shown(const struct dcp_tensor *t)
{
	return t->cast ? t->cast : t->dtype;
}

static inline uint32_t dcp_tensor_shown_size(const struct dcp_tensor *t)
{
	return t->cast ? dcp_dtype_info(t->cast)->size : t->itemsize;
}

/* The coordinates of the first element of any tensor: zeros. */
extern const uint64_t dcp_origin[DCP_MAX_NDIM];

/* Make @p the only piece of @t, whose shape is known: the box and the run of @p are filled in. A
 * tensor without elements gets no piece. False: the elements are too many to count. */
bool dcp_tensor_one_piece(struct dcp_tensor *t, struct dcp_piece *p);

/* Size in bytes of the whole tensor as stored; false on overflow. */
bool dcp_tensor_nbytes(const struct dcp_tensor *t, uint64_t *out);
/* The same as users see it; false if it is more than INT64_MAX. */
bool dcp_tensor_shown_nbytes(const struct dcp_tensor *t, uint64_t *out);

/*
 * pack: the pieces of a tensor as one blob, as the index keeps them.
 *
 *   u8      1 or 2, the version of this form
 *   varint  number of pieces; then for each
 *           (2: first for each DCP_PACK_BLOCK of them
 *     varint  lo[ndim], len[ndim]    the box that holds their boxes, except empty ones
 *     varint  bytes                  their size in the blob
 *           )
 *     u8      bits 0-1 enc, 2-3 filter, 4 swap, 5 strides follow, 6 a run follows,
 *             7 the third bit of filter
 *     u8      enc                    if bits 0-1 say 3: a part of an item
 *     varint  item_lo, item_n        then
 *     varint  file, off, nbytes
 *     varint  lo[ndim], len[ndim]
 *     varint  stride[ndim]           if bit 5
 *     varint  run_lo, run_n          if bit 6; else the run is the whole box
 *
 * Many pieces are packed in blocks, so that a reader that wants a few decodes only a few. Varints
 * are unsigned LEB128. The cache may have been changed, so a blob is checked like any foreign
 * bytes, and its pieces must still pass dcp_tiling_init().
 */

struct dcp_arena;
struct dcp_err;

void dcp_pack_pieces(struct dcp_buf *out, const struct dcp_tensor *t);

/* More pieces than this are packed in blocks of this many pieces. */
#define DCP_PACK_BLOCK 32

/*
 * Unpack the pieces of a tensor of @ndim dimensions that intersect @only, or all pieces (NULL), in
 * their order, into @arena. Pieces that are left out are not checked. -EBADMSG or -ENOMEM; nothing
 * beyond the blob is read.
 */
int dcp_unpack_part(const void *blob, size_t n, uint32_t ndim, const struct dcp_box *only,
		    struct dcp_arena *arena, struct dcp_piece **pieces, size_t *npieces,
		    struct dcp_err *err);
