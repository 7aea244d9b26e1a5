/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch: what is in a torch.save stream, and where do its tensors' bytes lie?
 *
 * All containers: the zip archive (torch >= 1.6; data.pkl, data/<key>, byteorder), the five
 * pickles in a row of older torch (or _use_new_zipfile_serialization=False), the tar of torch
 * 0.1. The stream may be a whole file or one item inside a .distcp (pass a window).
 *
 * Sources: torch/serialization.py, torch/_utils.py, caffe2/serialize/inline_container.cc.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/base.h"
#include "core/model/tensor.h"
#include "core/parse/pickle/pickle.h"

struct dcp_dir;
struct dcp_err;
struct dcp_source;
struct dcp_torch;

/* A dense tensor as stored: element (i0, i1, ..) lies at off + itemsize * sum(ik * stride[k]).
 */
struct dcp_torch_tensor {
	enum dcp_dtype dtype;
	char dtype_name[32]; /* table name, or torch's own for DCP_DTYPE_OTHER */
	uint32_t itemsize;
	uint32_t ndim;
	uint64_t shape[DCP_MAX_NDIM];
	uint64_t stride[DCP_MAX_NDIM]; /* elements */
	uint64_t off;                  /* of element (0, ...), from the start of the stream */
	uint64_t storage_off;   /* of the storage it is a view of: equal for tied tensors */
	bool swap;              /* big-endian elements */
	enum dcp_filter filter; /* DCP_FILTER_NONE, _NEG or _CONJ */
	bool row_major;         /* strides are those of a dense row-major array */
};

/*
 * Open a stream and parse its object. @src must outlive the result.
 * @memory limits what the parsed object may take (0: 192 MiB).
 * Returns 0, -EBADMSG, -ENOTSUP (TorchScript, "PYTORCH1" files, compressed members,
 * other kinds of files: named in @err), -E2BIG, -ENOMEM, or what the source gave.
 */
int dcp_torch_open(const struct dcp_source *src, size_t memory, struct dcp_torch **out,
		   struct dcp_err *err);
/* The file @name of @dir, whose name is in the message. As above, or what opening it gave. */
int dcp_torch_open_file(const struct dcp_dir *dir, const char *name, struct dcp_torch **out,
			struct dcp_err *err);
void dcp_torch_close(struct dcp_torch *t);
DCP_AUTO_PTR(struct dcp_torch, dcp_torch_close)
#define dcp_auto_torch __attribute__((cleanup(dcp_torch_close_ptr)))

/* Bytes that were parsed for the object, or a few more. */
uint64_t dcp_torch_pickle_size(const struct dcp_torch *t);

/* Bytes of the stream, and of what may follow it. */
uint64_t dcp_torch_size(const struct dcp_torch *t);

/* Valid until close. */
struct dcp_pv dcp_torch_root(const struct dcp_torch *t);

/*
 * Is @v a tensor? Parameter and subclass wrappers are looked through, also those that keep a
 * tensor of the dtype and shape that they show beside settings. Returns 1 and fills @out: a
 * dense tensor, every bound checked against its storage record; of a quantized one its
 * integers. Returns 0: not a tensor. Negative: a tensor whose description is damaged (-EBADMSG)
 * or of a kind without dense strided bytes (-ENOTSUP: sparse, meta, nested, subclasses),
 * described in @err.
 */
int dcp_torch_tensor(const struct dcp_torch *t, struct dcp_pv v, struct dcp_torch_tensor *out,
		     struct dcp_err *err);

/* A hash of the bytes of @tt, as dcp_torch_tensor() gave it. -ENOTSUP: it is not row-major, or
 * longer than 16 MiB; or what reading gave. */
int dcp_torch_tensor_hash(const struct dcp_torch *t, const struct dcp_torch_tensor *tt,
			  uint64_t *hash);

/* Bytes of one element of the dtype that torch calls @name, also of those that are
 * DCP_DTYPE_OTHER to us; 0: no such dtype. */
uint32_t dcp_torch_itemsize(const char *name);

/* torch.Size, a tuple or a list of at most DCP_MAX_NDIM numbers that are not negative, into @to
 * (room for as many). */
bool dcp_torch_dims(struct dcp_pv v, uint64_t *to, uint32_t *ndim);

/* Is it a single tensor, sound or damaged? False for a tensor that consists of several. Looks
 * at @v alone. */
bool dcp_torch_is_tensor(struct dcp_pv v);

/*
 * A tensor that is not a single run of numbers, taken apart: sparse, quantized, nested, meta, of a
 * class that wraps several (its attributes).
 * Some parts are tensors, others facts about it.
 */
struct dcp_torch_part {
	const char *name; /* as torch calls it: "indices", "scale" */
	struct dcp_pv value;
	bool self; /* the value is the tensor itself: dcp_torch_tensor() gives this part of it
		    */
};
struct dcp_torch_parts {
	const char *kind; /* "torch.Tensor (torch.sparse_coo)" */
	bool wraps;       /* a class of its own, which shows itself as a tensor of @shape */
	uint32_t ndim;
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_torch_part part[32];
	size_t n;
};

/* False: no such tensor, or a damaged one. Looks at @v alone. */
bool dcp_torch_parts(struct dcp_pv v, struct dcp_torch_parts *out);

/*
 * @tt as a tensor of one piece of the file in which the stream begins at byte @base: type,
 * shape and the piece are filled in, but for the number of the file. NULL, or why it has no
 * piece.
 */
const char *dcp_torch_one_piece(const struct dcp_torch_tensor *tt, uint64_t base,
				struct dcp_tensor *t, struct dcp_piece *p);

/*
 * [off, off + n) of a BYTES or BYTEARRAY of this stream, also of one too long to have been
 * copied. Returns 0, -EINVAL (not bytes, or not so many), or what the source gave.
 */
int dcp_torch_read(const struct dcp_torch *t, struct dcp_pv v, uint64_t off, void *buf,
		   size_t n);

/*
 * frame: the tensor of a torch.save item, without parsing items that are framed alike.
 *
 * torch.save puts everything that describes a single tensor before the tensor's bytes: the local
 * header of data.pkl, data.pkl, byteorder, and the local header of the storage. Items of tensors
 * with the same dtype and shape have the same bytes there, except for the checksum of the storage.
 * So the head of an item that was parsed is kept, and an item with the same head and the same
 * size holds the same tensor at the same place: a read of some 600 bytes and a comparison replace
 * a read of the item's end, the zip directory and the pickle.
 *
 * The directory at the end of such an item is not read. Damage there goes unnoticed; the tensor's
 * bytes and everything that describes them do not lie there.
 */

struct dcp_torch_frames;

/* The heads that were seen, none yet. Safe from any thread. NULL: no memory. */
struct dcp_torch_frames *dcp_torch_frames_create(void);
void dcp_torch_frames_destroy(struct dcp_torch_frames *f);

/*
 * The tensor that the stream @item is. Returns 1, 0 (the object is not a tensor), or what
 * dcp_torch_open() and dcp_torch_tensor() return. @f may be NULL.
 */
int dcp_torch_item(struct dcp_torch_frames *f, const struct dcp_source *item,
		   struct dcp_torch_tensor *out, struct dcp_err *err);
/* The same, if an item like it was parsed before: only its head is read. False: it was not. */
bool dcp_torch_known(struct dcp_torch_frames *f, const struct dcp_source *item,
		     struct dcp_torch_tensor *out);
/* How many items were recognised by their head. */
uint64_t dcp_torch_frames_hits(struct dcp_torch_frames *f);
