/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strided: a whole cut, or a part of it, as strided descriptors, for callers that move bytes in
 * any order: reads of a view, the loader, clients that read backing files without the mount.
 *
 * A descriptor is @run bytes, repeated over up to DCP_STRIDED_DIMS counted dimensions with strides
 * in the file and in the destination (the cut's array, row-major). The bytes of a run lie together
 * on both sides; in the destination the runs of all descriptors do not overlap, and fill all but
 * the zeros of the padding. Within a descriptor, the loop over its dimensions may visit either side
 * in any order.
 *
 * A descriptor that continues one of the last few is merged with it, across pieces of a file too.
 * Descriptors come in destination order of their first byte. But the descriptors of one box follow
 * each other if it is stored as runs, or needs more counted dimensions than one descriptor has.
 */
#pragma once
#include <stdint.h>

#include "core/model/geometry/cut.h"
#include "core/model/tensor.h"

struct dcp_tiling;

#define DCP_STRIDED_DIMS 4

/* Runs whose beginnings are at most this many bytes apart are read as one, holes included
 * (core/store/io/queue.h). */
#define DCP_STRIDED_NEAR (8u << 10)

struct dcp_strided {
	/* the first piece that it came from: gives file and swap */
	const struct dcp_piece *piece;
	uint64_t off;                           /* in the file, of the first run */
	uint64_t dst;                           /* in the destination, of the first run */
	uint64_t run;                           /* bytes */
	uint32_t ndim;                          /* counted dimensions in use, outermost first */
	uint64_t count[DCP_STRIDED_DIMS];       /* at least 2 each */
	uint64_t file_stride[DCP_STRIDED_DIMS]; /* bytes */
	uint64_t dst_stride[DCP_STRIDED_DIMS];  /* bytes */
};

/* Pass every descriptor of @cut to @fn, whose negative return ends it and is returned. Works box by
 * box, never element by element: O(pieces, cells and spans met + descriptors). */
typedef int (*dcp_strided_fn)(void *ctx, const struct dcp_strided *s);
int dcp_strided_emit(const struct dcp_tiling *tl, const struct dcp_cut *cut, dcp_strided_fn fn,
		     void *ctx);

/* The same for elements [@first, @first + @n) of the array only; byte 0 of the destination is the
 * first byte of element @first. Padding is left out. */
int dcp_strided_part(const struct dcp_tiling *tl, const struct dcp_cut *cut, uint64_t first,
		     uint64_t n, dcp_strided_fn fn, void *ctx);

/* Bytes of the array that are also consecutive in a file; @dst counts from the first requested
 * byte. */
struct dcp_run {
	const struct dcp_piece *piece;
	uint64_t off, dst, n;
};

/*
 * Pass bytes [@off, @off + @n) of the array, which may begin and end inside an element, to @fn, run
 * by run in any order. Returns 1; 0 if some of the bytes are padding or @fn returned -ECANCELED; or
 * another negative result of @fn.
 */
typedef int (*dcp_run_fn)(void *ctx, const struct dcp_run *run);
int dcp_strided_runs(const struct dcp_tiling *tl, const struct dcp_cut *cut, uint64_t off,
		     uint64_t n, dcp_run_fn fn, void *ctx);

/* Bytes of all runs of @s. */
uint64_t dcp_strided_bytes(const struct dcp_strided *s);

/* Bytes of the file from the first run of @s to the end of the last run. */
uint64_t dcp_strided_extent(const struct dcp_strided *s);

/*
 * Pass the part of @s in bytes [@lo, @hi) of the file to @fn, as new descriptors. The lengths of
 * runs are multiples of @unit bytes; a unit belongs to the part that contains its first byte. So
 * over consecutive parts of a whole file every unit comes once. @fn as above.
 */
int dcp_strided_clip(const struct dcp_strided *s, uint64_t lo, uint64_t hi, uint64_t unit,
		     dcp_strided_fn fn, void *ctx);

/* The dimension of @s with the largest stride in the file. @s has at least one dimension. */
uint32_t dcp_strided_widest(const struct dcp_strided *s);
/* @s without dimension @k: only the first index of that dimension. */
struct dcp_strided dcp_strided_without(const struct dcp_strided *s, uint32_t k);
