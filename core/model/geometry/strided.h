/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strided: a whole cut, or a part of it, as strided descriptors, for callers that move bytes in
 * any order: reads of a view, the loader, clients that read backing files without the mount.
 *
 * A descriptor is @run bytes, repeated over up to DCP_STRIDED_DIMS counted dimensions with
 * strides in the file and in the destination (the cut's array, row-major). The bytes of a run
 * lie together on both sides; no two runs of all descriptors overlap in the destination, and
 * together they are all of it, zeros of the padding aside. Within a descriptor, the loop over
 * its dimensions may visit either side in any order.
 *
 * A descriptor that continues one of the last few is merged with it, across pieces of a file
 * too. Descriptors come in destination order of their first byte, except that those
 * of a box stored as runs follow each other, as do those of a box that needs more counted
 * dimensions than fit: such a box becomes several descriptors.
 */
#pragma once
#include <stdint.h>

#include "core/model/geometry/cut.h"
#include "core/model/tensor.h"

struct dcp_tiling;

#define DCP_STRIDED_DIMS 4

/* Bytes between the beginnings of runs up to which they are read as one, holes included
 * (core/store/io/fetch.h). */
#define DCP_STRIDED_NEAR (8u << 10)

struct dcp_strided {
	const struct dcp_piece *piece;          /* the first it came from: file, swap */
	uint64_t off;                           /* in the file, of the first run */
	uint64_t dst;                           /* in the destination, of the first run */
	uint64_t run;                           /* bytes */
	uint32_t ndim;                          /* counted dimensions in use, outermost first */
	uint64_t count[DCP_STRIDED_DIMS];       /* at least 2 each */
	uint64_t file_stride[DCP_STRIDED_DIMS]; /* bytes */
	uint64_t dst_stride[DCP_STRIDED_DIMS];  /* bytes */
};

/*
 * Pass every descriptor of @cut to @fn, whose negative return ends it and is returned. Works
 * box by box, never element by element: O(pieces, cells and spans met + descriptors).
 */
typedef int (*dcp_strided_fn)(void *ctx, const struct dcp_strided *s);
int dcp_strided_emit(const struct dcp_tiling *tl, const struct dcp_cut *cut, dcp_strided_fn fn,
		     void *ctx);

/* Elements [@first, @first + @n) of the array alone; byte 0 of the destination is that of
 * @first. Padding is left out. */
int dcp_strided_part(const struct dcp_tiling *tl, const struct dcp_cut *cut, uint64_t first,
		     uint64_t n, dcp_strided_fn fn, void *ctx);

/* Bytes of the array that lie together in a file too; @dst counts from the first that is asked
 * for. */
struct dcp_run {
	const struct dcp_piece *piece;
	uint64_t off, dst, n;
};

/*
 * Pass bytes [@off, @off + @n) of the array, which may begin and end inside an element, to @fn,
 * run by run in any order. 1; 0: some of them are padding, or @fn returned -ECANCELED; or what
 * else that is negative @fn returned.
 */
typedef int (*dcp_run_fn)(void *ctx, const struct dcp_run *run);
int dcp_strided_runs(const struct dcp_tiling *tl, const struct dcp_cut *cut, uint64_t off,
		     uint64_t n, dcp_run_fn fn, void *ctx);

/* Bytes of all its runs. */
uint64_t dcp_strided_bytes(const struct dcp_strided *s);

/* Bytes of the file from its first to the end of its last. */
uint64_t dcp_strided_extent(const struct dcp_strided *s);

/*
 * The part of @s that lies in bytes [@lo, @hi) of the file, as descriptors of its own. Runs are
 * taken in units of @unit bytes, of which they are multiples: a unit belongs to the part in
 * which its first byte lies. Over consecutive parts of a whole file every unit comes once. @fn
 * as above.
 */
int dcp_strided_clip(const struct dcp_strided *s, uint64_t lo, uint64_t hi, uint64_t unit,
		     dcp_strided_fn fn, void *ctx);

/* The dimension whose neighbours lie furthest apart in the file. @s has at least one. */
uint32_t dcp_strided_widest(const struct dcp_strided *s);
/* @s with one dimension less: its first index of dimension @k. */
struct dcp_strided dcp_strided_without(const struct dcp_strided *s, uint32_t k);
