/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor: a key, a shape, and the pieces its bytes lie in. Shapes count elements.
 *
 * A piece is a box of the global tensor (half-open: lo, lo + len per dimension) that
 * lies in one file. Three things say how:
 *
 *   enc     DCP_ENC_PLAIN   element bytes at file offset off, nbytes of them
 *           DCP_ENC_TORCH   [off, off + nbytes) is a torch.save stream of one tensor;
 *                           where the bytes lie in it is found at first use (located)
 *           DCP_ENC_TORCH_FLAT  the same of a tensor of any shape: its elements in row-major
 *                           order are the run
 *   filter  DCP_FILTER_NONE; or [off, off + nbytes) is encoded as a whole, enc describes
 *           what comes out:
 *           DCP_FILTER_ZSTD    compressed
 *           DCP_FILTER_DEFLATE raw deflate; the elements are the end of what comes out (an
 *                              .npy in a ZIP archive has its header before them)
 *           DCP_FILTER_LATIN1  UTF-8 of the bytes taken as Latin-1 text (pickle protocol 2);
 *                              exactly the run_n elements come out
 *           DCP_FILTER_SUM     numbers; ranks hold terms of them, here and at each place of more
 *           or the elements are not yet the values, as torch conjugates and negates lazily:
 *           DCP_FILTER_NEG     flip the sign of every number
 *           DCP_FILTER_CONJ    flip the sign of every imaginary part
 *           or there are no bytes (off and nbytes are 0, file is any):
 *           DCP_FILTER_ZERO    every element is 0
 *   stride  elements between neighbours along each dimension; NULL: row-major over len
 *   item_n  not 0: what enc or filter decodes to has item_n elements, and the piece is a part
 *           of them: its first is number item_lo, and stride, which is then not NULL, counts in
 *           their row-major order
 *
 * A piece may hold only a run of the row-major flattening of its box (DeepSpeed ZeRO,
 * Megatron flattened ranges, Paddle flat shards): run_lo and run_n, in elements. A whole
 * box has run_lo 0 and run_n its volume. Runs are stored row-major (stride NULL).
 *
 * Nothing here owns memory: arrays live in whatever arena or blob made them.
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

/* As many bytes as a piece has, elsewhere. */
struct dcp_term {
	uint64_t off;
	uint32_t file; /* index into the version's file table */
};

struct dcp_piece {
	const uint64_t *lo;       /* ndim */
	const uint64_t *len;      /* ndim */
	const uint64_t *stride;   /* ndim, in elements; NULL: row-major over len */
	uint64_t run_lo, run_n;   /* elements of the box's flattening that are here */
	uint64_t off, nbytes;     /* in the file; see enc and filter */
	uint64_t item_lo, item_n; /* 0 but for parts of what is decoded */
	uint32_t file;            /* index into the version's file table */
	uint8_t enc;              /* enum dcp_enc */
	uint8_t filter;           /* enum dcp_filter */
	bool swap;                /* element bytes are big-endian */
	/* Of DCP_FILTER_SUM: the other terms, added to the elements here one after the other, and
	 * rounded to the dtype each time; then, if mean, divided by how many there are. */
	bool mean;
	uint32_t nmore;
	const struct dcp_term *more;
};

struct dcp_tensor {
	const char *key;         /* UTF-8, NUL-terminated, may hold any other character */
	const char *const *path; /* components of the key as the framework nests them */
	size_t npath;
	enum dcp_dtype dtype;
	/* the table's name, or the framework's for DCP_DTYPE_OTHER; with cast that one's */
	const char *dtype_name;
	uint32_t itemsize; /* bytes per element */
	/* What users see: every element is converted to this type when it is read. OTHER: they
	 * see dtype. It does not affect pieces, nor anything that counts stored bytes. */
	enum dcp_dtype cast;
	uint32_t ndim;
	const uint64_t *shape;
	const struct dcp_piece *pieces;
	size_t npieces;
	/* Where else elements are stored: each has the box and the run of one of the pieces and
	 * lies in another file. It is read when the piece cannot be. */
	const struct dcp_piece *copies;
	size_t ncopies;
	const char *alias_of; /* key of an earlier tensor with the same bytes; NULL: none */
	const char *error;    /* why it cannot be read, one line; NULL: it can */
	bool partly; /* the error concerns some pieces' files only; the rest can be read */
	bool entry;  /* torch.distributed.checkpoint's metadata has a tensor of this key */
};

/* Bytes that lie together: a file, or a part of one. */
struct dcp_stretch {
	uint32_t file;        /* index into the version's file table */
	uint8_t filter;       /* DCP_FILTER_NONE or DCP_FILTER_ZSTD */
	uint64_t off, nbytes; /* in the file */
	uint64_t n;           /* bytes that come out of the filter */
};

/* Those bytes as a tensor of U8, in @dims (room for two) and @p. */
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
	/* Classes of values inside that their JSON does not show: "1:tuple 4 7:numpy.int64".
	 * Values count from 0, all of it, in the order in which they begin; keys do not count.
	 * A number alone has the class of the one before. NULL: none. */
	const char *classes;
	const char *error;
	/* The bytes that it was saved as, if they hold nothing else; NULL: it is a part of
	 * other bytes. */
	const struct dcp_stretch *stored;
	bool entry; /* torch.distributed.checkpoint's metadata has an object of this key */
};

/*
 * A file the pieces refer to, by name relative to the version's directory, and which content it
 * had. Of the file system dev and ino are device and inode; of a source whose files have tags,
 * they are 128 bits of the hash of its tag (ino not
 * 0) and the times are those that it gives, or 0. ino 0: it could not be opened.
 */
struct dcp_file_id {
	const char *name;
	uint64_t size, dev, ino;
	int64_t mtime_ns, ctime_ns;
	/* Not 0: pieces lie in what the file decodes to; this is its size in bytes. */
	uint64_t unpacked;
	bool shown; /* it is a sidecar: its bytes are shown unchanged */
};

/*
 * What an adapter emits to, one finding at a time, so that no adapter needs the whole
 * checkpoint in memory. Every pointer handed over is borrowed for the call.
 * A negative return must be passed on at once: the build is over.
 */
struct dcp_sink {
	/* Name a file before pieces use it; returns its number (the same for the same name). */
	int (*file)(void *ctx, const char *name, uint32_t *number);
	int (*tensor)(void *ctx, const struct dcp_tensor *t);
	int (*object)(void *ctx, const struct dcp_object *o);
	/* An object of torch.distributed.checkpoint's metadata as that has it, where it is
	 * shown under other keys (a list opened item by item) or as a tensor: its key may be
	 * that of another row. */
	int (*item)(void *ctx, const struct dcp_object *o);
	/* A fact about the version: "framework" -> "torch 2.15". */
	int (*meta)(void *ctx, const char *name, const char *value);
	/* The same as file() for what comes out when the whole file is decompressed: offsets
	 * of its pieces count decompressed bytes. */
	int (*unpacked)(void *ctx, const char *name, uint32_t *number);
	/* A file of the version that is shown as it is: config.json, a tokenizer. */
	int (*sidecar)(void *ctx, const char *name);
	/* A pair of texts that the stored file @file says beside its tensors, as in
	 * __metadata__ of safetensors. Those of one file come together, and before them one
	 * call with NULL for both: that file may say nothing. */
	int (*said)(void *ctx, const char *file, const char *name, const char *value);
	/* Asked before anything is emitted; what it returns, when negative, ends the build. */
	int (*check)(void *ctx);
	void *ctx;
	const struct dcp_sink *next; /* gets what no function here takes; NULL: it is dropped */
};

/* Components joined with '.', after what is in @out. */
void dcp_path_join(struct dcp_buf *out, const char *const *path, size_t n);

/* Emit to @s, or to the next sink of its chain that has the function. The key may be NULL: then
 * it is the path, joined. What has an error loses its pieces, unless that concerns some of them
 * only. 0, -ENOMEM or what the sink gave. */
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

/* Are the bytes of a piece something other than its elements? */
bool dcp_filter_encodes(uint8_t filter);

/* Less than, equal to, or more than zero: which of two lists of @n numbers comes first? */
int dcp_dims_compare(const uint64_t *a, const uint64_t *b, uint32_t n);
/* Boxes in order, then runs: less than, equal to, or more than zero. */
int dcp_piece_compare(const struct dcp_piece *a, const struct dcp_piece *b, uint32_t ndim);

/* "[4, 3]", "[]" for a scalar; cut with "..." where @buf is short. Returns @buf. */
const char *dcp_dims_text(char *buf, size_t size, const uint64_t *dims, uint32_t ndim);
/* The same of the place of element @i in row-major order of what has this shape. */
const char *dcp_place_text(char *buf, size_t size, const uint64_t *shape, uint32_t ndim,
			   uint64_t i);

/* The same of a box: "[0:4, 2:8]". Any has room in DCP_BOX_TEXT bytes. */
#define DCP_BOX_TEXT (DCP_MAX_NDIM * 48)
const char *dcp_box_text(char *buf, size_t size, const uint64_t *lo, const uint64_t *len,
			 uint32_t ndim);

/* A box of a tensor: half-open, lo to lo + len. */
struct dcp_box {
	uint64_t lo[DCP_MAX_NDIM], len[DCP_MAX_NDIM];
};

/* Do they have an element in common? Ends beyond 64 bits count as UINT64_MAX. */
bool dcp_box_meets(const struct dcp_box *box, uint32_t ndim, const uint64_t *lo,
		   const uint64_t *len);

/* Elements in a shape; returns false when the product does not fit in 64 bits. */
bool dcp_shape_volume(const uint64_t *shape, uint32_t ndim, uint64_t *out);

/* Bytes of an array; false when they are too many for any, lengths of 0 taken as 1. */
bool dcp_shape_nbytes(const uint64_t *shape, uint32_t ndim, uint32_t itemsize, uint64_t *out);

/* Are strides in elements those of a dense row-major array, where they count? */
bool dcp_row_major(const uint64_t *shape, const uint64_t *stride, uint32_t ndim);

/* Elements from the first to the last of an array that has any; false when they do not fit in 64
 * bits. */
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

/* Where the first element of any tensor is. */
extern const uint64_t dcp_origin[DCP_MAX_NDIM];

/*
 * @t, whose shape is known, is the one piece @p: the box and the run of it are filled in. Without
 * elements it has no piece. False: they are too many to count.
 */
bool dcp_tensor_one_piece(struct dcp_tensor *t, struct dcp_piece *p);

/* Bytes of the whole tensor as it is stored; false on overflow. */
bool dcp_tensor_nbytes(const struct dcp_tensor *t, uint64_t *out);
/* The same as users see it; false when that is more than INT64_MAX. */
bool dcp_tensor_shown_nbytes(const struct dcp_tensor *t, uint64_t *out);

/*
 * pack: the pieces of a tensor as one blob, as the index keeps them.
 *
 *   u8      1 or 2, the version of this form
 *   varint  number of pieces; then for each
 *           (2: first for each DCP_PACK_BLOCK of them
 *     varint  lo[ndim], len[ndim]    the box that holds theirs, but for those without elements
 *     varint  bytes                  they take up here
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
 * are unsigned LEB128. A blob comes from a cache that may have been changed: it is checked
 * like any foreign bytes, and its pieces must still pass dcp_tiling_init().
 */

struct dcp_arena;
struct dcp_buf;
struct dcp_err;

void dcp_pack_pieces(struct dcp_buf *out, const struct dcp_tensor *t);

/* More pieces than this are packed in blocks of so many. */
#define DCP_PACK_BLOCK 32

/* The pieces of a tensor of @ndim dimensions that meet @only, or all (NULL), in their order, in
 * @arena. What is left out is not checked. -EBADMSG or -ENOMEM; nothing beyond the blob is read. */
int dcp_unpack_part(const void *blob, size_t n, uint32_t ndim, const struct dcp_box *only,
		    struct dcp_arena *arena, struct dcp_piece **pieces, size_t *npieces,
		    struct dcp_err *err);
