/* SPDX-License-Identifier: Apache-2.0 */
/*
 * field: what one value inside a DCP .metadata says.
 *
 * A class has one name here, whichever module torch kept it in over the years. Every function
 * accepts any value; errors say what was found and what was expected.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/dtype.h"
#include "core/model/geometry/cut.h"
#include "core/model/tensor.h"
#include "core/parse/pickle/pickle.h"

struct dcp_buf;
struct dcp_err;

enum dcp_tfield_class {
	DCP_TFIELD_OTHER,
	DCP_TFIELD_METADATA,
	DCP_TFIELD_INDEX,
	DCP_TFIELD_TENSOR,
	DCP_TFIELD_BYTES,
	DCP_TFIELD_CHUNK,
	DCP_TFIELD_PROPERTIES,
	DCP_TFIELD_INFO,
	DCP_TFIELD_STORAGE_META,
	DCP_TFIELD_SHARDED_1_12, /* a class that only torch 1.12 wrote */
	DCP_TFIELD_PLAN,         /* the parts of Megatron's all_local_plans */
};

/* Which of torch's classes is @v an object of? */
enum dcp_tfield_class dcp_tfield_class(struct dcp_pv v);

/* "module.Name" of an object, else Python's name of its type. Valid while @v is. */
const char *dcp_tfield_type(struct dcp_pv v, char *buf, size_t n);

/* torch.Size, tuple or list of non-negative numbers. @what names the field for messages. */
int dcp_tfield_dims(struct dcp_pv v, const char *what, uint64_t dims[DCP_MAX_NDIM],
		    uint32_t *ndim, struct dcp_err *err);

/* The dtype in a TensorProperties: name as torch has it ("bfloat16"), valid while @v is. */
int dcp_tfield_dtype(struct dcp_pv v, const char **name, struct dcp_err *err);

/* A _StorageInfo. */
struct dcp_tfield_info {
	const char *path; /* valid while the value is */
	size_t path_len;
	uint64_t off, nbytes;
	enum dcp_filter filter;
};
int dcp_tfield_info(struct dcp_pv v, struct dcp_tfield_info *out, struct dcp_err *err);

/* Append a str or an int in the form of Python's str(), a NUL as C0 80; false for anything
 * else. */
bool dcp_tfield_component(struct dcp_buf *out, struct dcp_pv v);

/*
 * placement: which part of a tensor does one rank hold, by the placements of a DTensor?
 *
 * Shard(dim) cuts what is left of a dimension as torch.chunk() does: pieces of ceil(length /
 * n), the last ones shorter or empty. Replicate cuts nothing. _StridedShard(dim, f) cuts into f
 * chunks first and takes a piece of each. Where f is the number of parts into which the later
 * mesh dimensions cut the same dimension, those are applied first (FSDP2 over tensor parallel):
 * that gives the same in the even case, and what torch does in the uneven one.
 */

struct dcp_err;
struct dcp_piece;

#define DCP_TPLACE_MAX 32 /* mesh dimensions; torch itself uses up to five */

enum dcp_tplace_kind { DCP_TPLACE_REPLICATE, DCP_TPLACE_SHARD, DCP_TPLACE_STRIDED };

/* One mesh dimension: @n ranks along it, this one is number @at. */
struct dcp_tplace {
	enum dcp_tplace_kind kind;
	uint32_t dim;
	uint64_t factor; /* of STRIDED */
	uint64_t n, at;
};

/*
 * Carry out @np placements in their order. @out lives in @arena. -EBADMSG (a dimension or
 * coordinate that is not there), -E2BIG (too many spans), -ENOMEM.
 */
int dcp_tplace_cut(const struct dcp_tplace *place, uint32_t np, uint32_t ndim,
		   const uint64_t *shape, struct dcp_arena *arena, struct dcp_cut *out,
		   struct dcp_err *err);

/* [lo, lo + len) of the whole tensor is at @at of the local one. */
struct dcp_tplace_box {
	const uint64_t *lo, *at, *len;
};

/* The boxes of which @cut consists, in @arena. -E2BIG (more than @max), -ENOMEM. */
int dcp_tplace_boxes(const struct dcp_cut *cut, uint64_t max, struct dcp_arena *arena,
		     const struct dcp_tplace_box **out, size_t *n);

/*
 * The elements of @box, which has some, as the piece @p: box, run and place. The local tensor of
 * @shape and @stride (NULL: row-major) begins at p->off. -EBADMSG (it does not fit in 64 bits),
 * -ENOMEM.
 */
int dcp_tplace_piece(const struct dcp_tplace_box *box, uint32_t ndim, const uint64_t *shape,
		     const uint64_t *stride, uint32_t itemsize, struct dcp_arena *arena,
		     struct dcp_piece *p);
