/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch: the contents of a torch.save stream, and the places of the bytes of its tensors.
 *
 * All containers are read: the zip archive (torch >= 1.6; data.pkl, data/<key>, byteorder), the
 * five consecutive pickles of older torch (or of _use_new_zipfile_serialization=False), and the
 * tar of torch 0.1. The stream may be a whole file or an item inside a .distcp file (the caller
 * passes a window of the file).
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

/* A dense tensor as stored: element (i0, i1, ..) lies at off + itemsize * sum(ik * stride[k]). */
struct dcp_torch_tensor {
	enum dcp_dtype dtype;
	char dtype_name[32]; /* dcpfs's name, or torch's for DCP_DTYPE_OTHER */
	uint32_t itemsize;
	uint32_t ndim;
	uint64_t shape[DCP_MAX_NDIM];
	uint64_t stride[DCP_MAX_NDIM]; /* elements */
	uint64_t off;                  /* of element (0, ...), from the start of the stream */
	uint64_t storage_off;   /* start of the tensor's storage: equal for tied tensors */
	bool swap;              /* big-endian elements */
	enum dcp_filter filter; /* DCP_FILTER_NONE, _NEG or _CONJ */
	bool row_major;         /* strides are those of a dense row-major array */
};

/*
 * Open a stream and parse its object. @src must outlive the result.
 * @memory limits the bytes of memory that the parsed object may take (0: 192 MiB).
 * Returns 0, -EBADMSG, -ENOTSUP (TorchScript, "PYTORCH1" files, compressed members, other kinds
 * of files: @err has the kind), -E2BIG, -ENOMEM, or the error of the source.
 */
int dcp_torch_open(const struct dcp_source *src, size_t memory, struct dcp_torch **out,
		   struct dcp_err *err);
/* Open the file @name of @dir; messages name the file. Returns as above, or the error of opening
 * the file. */
int dcp_torch_open_file(const struct dcp_dir *dir, const char *name, struct dcp_torch **out,
			struct dcp_err *err);
void dcp_torch_close(struct dcp_torch *t);
DCP_AUTO_PTR(struct dcp_torch, dcp_torch_close)
#define dcp_auto_torch __attribute__((cleanup(dcp_torch_close_ptr)))

/* The number of bytes that were parsed for the object, or a few more. */
uint64_t dcp_torch_pickle_size(const struct dcp_torch *t);

/* The number of bytes of the stream and of anything that follows it. */
uint64_t dcp_torch_size(const struct dcp_torch *t);

/* The object; valid until dcp_torch_close(). */
struct dcp_pv dcp_torch_root(const struct dcp_torch *t);

/*
 * Is @v a tensor? A Parameter and a subclass that wraps a tensor count as the tensor inside them,
 * also if the subclass keeps settings beside that tensor, provided that the tensor has the dtype
 * and shape that the subclass shows. Returns 1 and fills @out for a dense tensor, or for the
 * integers of a quantized tensor; every bound is checked against the storage record. Returns 0 if
 * @v is not a tensor. Negative, with the reason in @err: the description of the tensor is damaged
 * (-EBADMSG), or it is of a kind without dense strided bytes (-ENOTSUP: sparse, meta, nested,
 * subclasses).
 */
int dcp_torch_tensor(const struct dcp_torch *t, struct dcp_pv v, struct dcp_torch_tensor *out,
		     struct dcp_err *err);

/* Hash the bytes of @tt, which dcp_torch_tensor() filled. Returns 0, -ENOTSUP (not row-major, or
 * longer than 16 MiB), or the error of reading. */
int dcp_torch_tensor_hash(const struct dcp_torch *t, const struct dcp_torch_tensor *tt,
			  uint64_t *hash);

/* The number of bytes of an element of the dtype that torch calls @name, also if dcpfs has only
 * DCP_DTYPE_OTHER for it; 0: torch has no such dtype. */
uint32_t dcp_torch_itemsize(const char *name);

/* Copy a torch.Size, a tuple or a list of at most DCP_MAX_NDIM non-negative numbers into @to, which
 * has room for DCP_MAX_NDIM; false: @v is something else. */
bool dcp_torch_dims(struct dcp_pv v, uint64_t *to, uint32_t *ndim);

/* Is @v a single tensor, intact or damaged? False for a tensor that consists of several. Examines
 * only @v, no values inside it. */
bool dcp_torch_is_tensor(struct dcp_pv v);

/*
 * The parts of a tensor that is not a single run of numbers: a sparse, quantized, nested or meta
 * tensor, or an instance of a class that wraps several tensors (the parts are its attributes).
 * Some parts are tensors, others are facts about the tensor.
 */
struct dcp_torch_part {
	const char *name; /* as torch calls it: "indices", "scale" */
	struct dcp_pv value;
	bool self; /* value is the whole tensor; dcp_torch_tensor() extracts this part */
};
struct dcp_torch_parts {
	const char *kind; /* "torch.Tensor (torch.sparse_coo)" */
	bool wraps;       /* a subclass that presents itself as a tensor of @shape */
	uint32_t ndim;
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_torch_part part[32];
	size_t n;
};

/* Take @v apart. False: it is no such tensor, or it is damaged. Examines only @v. */
bool dcp_torch_parts(struct dcp_pv v, struct dcp_torch_parts *out);

/*
 * Convert @tt to a tensor of one piece of the file; the stream begins at byte @base of the file.
 * Fills in the type and shape of @t, and @p except for the number of the file. Returns NULL, or
 * the reason why the tensor cannot be such a piece.
 */
const char *dcp_torch_one_piece(const struct dcp_torch_tensor *tt, uint64_t base,
				struct dcp_tensor *t, struct dcp_piece *p);

/* Read [off, off + n) of a BYTES or BYTEARRAY of this stream, also if it was too long to be copied
 * into memory. Returns 0, -EINVAL (not bytes, or fewer bytes), or the error of the source. */
int dcp_torch_read(const struct dcp_torch *t, struct dcp_pv v, uint64_t off, void *buf,
		   size_t n);

/*
 * frame: finds the tensor of a torch.save item without parsing an item whose head is already
 * known.
 *
 * torch.save puts everything that describes a single tensor before the tensor's bytes: the local
 * header of data.pkl, data.pkl, byteorder, and the local header of the storage. This is the head
 * of the item. Items of tensors with the same dtype and shape have the same head, except for the
 * checksum of the storage. So the head of every parsed item is kept: another item with the same
 * head and the same size has a tensor of the same dtype and shape at the same place. So a read of
 * some 600 bytes and a comparison replace reads of the item's end, the zip directory and the
 * pickle.
 *
 * The zip directory at the end of such an item is not read, so damage in it goes unnoticed;
 * neither the tensor's bytes nor their description lie there.
 */

struct dcp_torch_frames;

/* Create an empty list of heads. Safe from any thread. NULL: no memory. */
struct dcp_torch_frames *dcp_torch_frames_create(void);
void dcp_torch_frames_destroy(struct dcp_torch_frames *f);

/* Read the tensor of the stream @item. Returns 1, 0 (the object is not a tensor), or an error of
 * dcp_torch_open() or dcp_torch_tensor(). @f may be NULL. */
int dcp_torch_item(struct dcp_torch_frames *f, const struct dcp_source *item,
		   struct dcp_torch_tensor *out, struct dcp_err *err);
/* The same, but reads only the head of @item. False: no item with this head was parsed before. */
bool dcp_torch_known(struct dcp_torch_frames *f, const struct dcp_source *item,
		     struct dcp_torch_tensor *out);
/* The numbers of items that were recognised by their head, and of those that were parsed. */
uint64_t dcp_torch_frames_hits(struct dcp_torch_frames *f);
uint64_t dcp_torch_frames_parsed(struct dcp_torch_frames *f);
