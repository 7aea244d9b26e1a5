/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view: one tensor, or a cut of it, in one of the forms below, ready to be read at any
 * offset.
 *
 *   raw           the exact stored values, row-major, little-endian, no header
 *   npy           a .npy header and the numbers, bf16 and fp8 widened to float32
 *   safetensors   a safetensors file of one tensor, true dtype, with the __metadata__ of its stored files
 *
 * Opening resolves everything (the row, where the bytes lie inside torch.save items, the
 * tiling, the header); reading is then arithmetic, an identity check and a copy. A view is
 * immutable and may be read by any number of threads.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "core/base/base.h"
#include "core/model/geometry/cut.h"
#include "core/model/tensor.h"

struct dcp_err;
struct dcp_reply;
struct dcp_strided;
struct dcp_version;
struct dcp_view;

enum dcp_as { DCP_AS_RAW, DCP_AS_NPY, DCP_AS_SAFETENSORS };
#define DCP_AS_COUNT (DCP_AS_SAFETENSORS + 1)

/* "raw", "npy", "safetensors": the names of directories and of --as. */
const char *dcp_as_name(enum dcp_as as);
/* ".bin", ".npy", ".safetensors" */
const char *dcp_as_extension(enum dcp_as as);

/* Can this form show the dtype and hold the key? Raw always can. Npy and safetensors cannot show
 * every dtype, and safetensors cannot hold every key. */
bool dcp_view_can_show(const char *key, enum dcp_dtype dtype, enum dcp_as as);

/*
 * The size of the whole file of a row of @ix in bytes, without opening anything: what stat reports.
 * -ENOTSUP when this form cannot show the dtype (npy: an unknown type; safetensors: a type without
 * a name in the format).
 */
struct dcp_index;
struct dcp_row;
int dcp_view_size_of(struct dcp_index *ix, const struct dcp_row *row, enum dcp_as as,
		     uint64_t *size);

/*
 * Open tensor row @id of @v: the part that @cut holds (copied), as an array of its own; NULL:
 * all. Only the pieces that the cut touches are located, opened and checked, so a damaged shard
 * fails only views that need it. Returns 0; -EINVAL (not a cut of this tensor), -EIO, -EBADMSG,
 * -ESTALE, -ENOTSUP, -EXDEV, ... with the reason in @err (key, file and offset are in it). @v
 * must outlive the view.
 */
int dcp_view_open(struct dcp_version *v, int64_t id, enum dcp_as as, const struct dcp_cut *cut,
		  struct dcp_view **out, struct dcp_err *err);
/* Open the whole file number @number of @v, unchanged: a sidecar. -EBADMSG (no such file), and as
 * above. */
int dcp_view_open_file(struct dcp_version *v, uint32_t number, struct dcp_view **out,
		       struct dcp_err *err);
/* Open the decompressed bytes that object row @id of @v was saved as. -ENOTSUP: the object has no
 * separate bytes; else as above. */
int dcp_view_open_object(struct dcp_version *v, int64_t id, struct dcp_view **out,
			 struct dcp_err *err);
/* Open the whole file @number of directory @root beside @v (struct dcp_derived). */
int dcp_view_open_beside(struct dcp_version *v, uint32_t root, uint32_t number,
			 struct dcp_view **out, struct dcp_err *err);
void dcp_view_close(struct dcp_view *view);
DCP_AUTO_PTR(struct dcp_view, dcp_view_close)
#define dcp_auto_view __attribute__((cleanup(dcp_view_close_ptr)))

/* The file table that the view reads from. */
struct dcp_files *dcp_view_files(const struct dcp_view *view);

uint64_t dcp_view_size(const struct dcp_view *view);
/* The whole tensor as index.json describes it; the pieces that the view reads are located
 * (DCP_ENC_PLAIN). For a cut, pieces that do not meet it may be left out. */
const struct dcp_tensor *dcp_view_tensor(const struct dcp_view *view);
/* The bytes before the elements; @n 0: none. They live as long as the view. */
const void *dcp_view_header(const struct dcp_view *view, size_t *n);

/*
 * Where the bytes after the header are stored: strided descriptors (core/model/geometry/strided.h)
 * of file number @file. Destinations count from the end of the header; bytes that no descriptor
 * covers are zero. @file DCP_VIEW_NO_FILE: a decompressed copy that only this process has. If
 * s->piece->swap is set, the stored elements are big-endian. A negative return of @fn ends the walk
 * and is returned; -ENOTSUP: the view casts or widens its elements or flips their signs.
 */
#define DCP_VIEW_NO_FILE UINT32_MAX
typedef int (*dcp_view_strided_fn)(void *ctx, const struct dcp_strided *s, uint32_t file);
int dcp_view_strided(const struct dcp_view *view, dcp_view_strided_fn fn, void *ctx);

/* The stored bytes from which the copy of a descriptor with DCP_VIEW_NO_FILE was decoded: @n bytes
 * at @off of file number @file, and the codec. -errno: the file cannot be read. */
struct dcp_stored {
	uint32_t file;
	uint64_t off, n;
	const char *codec; /* "zstd", "latin1", "gzip", ... */
};
int dcp_view_stored(const struct dcp_view *view, const struct dcp_strided *s,
		    struct dcp_stored *out, struct dcp_err *err);

/* Do the files that the view reads still exist, unchanged since they were indexed? 0, -ESTALE or
 * -EIO. */
int dcp_view_check(const struct dcp_view *view);

/* Keep the files that the view reads open, even if they are removed: as dcp_files_keep(). */
struct dcp_kept;
void dcp_view_keep(const struct dcp_view *view, struct dcp_kept *kept);

/* Read all @n bytes at @off (inside the file) into @buf, or return a negative errno: -EIO, -ESTALE,
 * -ENOMEM. */
int dcp_view_read(const struct dcp_view *view, uint64_t off, void *buf, size_t n);

/*
 * Append bytes [off, off + n) of the file to a reply. 1: some are pointed
 * at, so the view must stay open until the reply is finished; 0: all are copied; negative as
 * dcp_view_read(), and the reply is unchanged. The identity of every file was checked just before.
 * Touching the bytes pointed at may fault if a file is truncated meanwhile, so the caller should
 * pass them to the kernel, which answers EFAULT instead of SIGBUS.
 */
int dcp_view_answer(const struct dcp_view *view, uint64_t off, size_t n, struct dcp_reply *r);

/*
 * Let the kernel copy bytes [off, off + n) to offset @to of the file @fd, so that this process does
 * not read them. 1: done. 0: not possible, because the bytes are not long unchanged runs of files,
 * or the kernel or a file system refuses; some may have been copied. Negative as dcp_view_read().
 */
int dcp_view_copy(const struct dcp_view *view, uint64_t off, uint64_t n, int fd, uint64_t to);

/*
 * reply: the answer to one request, which may go through several views: entries in the order of the
 * bytes. Bytes that lie in mapped files in few long runs are pointed at; all others are copied into
 * one buffer, which is taken when the first byte is copied. One thread.
 */

struct dcp_files;

#define DCP_REPLY_ENTRIES 512
#define DCP_REPLY_FILES 64 /* files that a reply, or a request to a view, holds at once */

struct dcp_reply {
	size_t size;                           /* of the whole request in bytes */
	void *(*take)(void *ctx, size_t size); /* returns the buffer; NULL: out of memory */
	void *ctx;
	bool copy; /* copy all bytes, point at none */

	char *buf;   /* result of take(); a copied byte has the same offset as in the request */
	size_t done; /* bytes so far */
	uint32_t n, nheld;
	struct iovec entry[DCP_REPLY_ENTRIES];
	struct {
		struct dcp_files *files;
		uint32_t number;
	} held[DCP_REPLY_FILES]; /* open and mapped until the reply is finished */
};

/* An empty reply. The arrays are not cleared. */
void dcp_reply_begin(struct dcp_reply *r, size_t size, void *(*take)(void *ctx, size_t size),
		     void *ctx);

/* How many entries may point at bytes; the last one is left to copies. */
uint32_t dcp_reply_room(const struct dcp_reply *r);

/* Append @n bytes that stay valid until the reply is finished. -ENOMEM: the bytes had to be copied,
 * and memory ran out. */
int dcp_reply_point(struct dcp_reply *r, const void *p, size_t n);

/* Where the caller copies the next bytes of the reply before it appends them with
 * dcp_reply_copied(). NULL: out of memory. */
void *dcp_reply_buffer(struct dcp_reply *r);
void dcp_reply_copied(struct dcp_reply *r, size_t n);

/* Release the files. The owner of take() frees the buffer. */
void dcp_reply_finish(struct dcp_reply *r);
