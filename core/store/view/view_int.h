/* SPDX-License-Identifier: Apache-2.0 */
/* view_int: declarations that the files of the view share. Only these files and their tests include
 * it. */
#pragma once
#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/model/geometry/cut.h"
#include "core/model/geometry/tiling.h"
#include "core/store/io/files.h"
#include "core/store/view/view.h"

/* Where the bytes of one piece are read from. */
struct dcp_backing {
	const uint8_t
		*decoded; /* the decoded item in memory; NULL: bytes of file number @number */
	uint32_t number;  /* in the file table; DCP_VIEW_NO_FILE: decoded, or not needed */
	bool needed;
	bool scattered; /* the cut's part of the piece is not contiguous; if it is contiguous: */
	uint64_t first,
		end;    /* elements of the stored run; after locating, offsets in the file */
	uint64_t until; /* upper limit, in the file, of the bytes that the cut needs */
	/* Range of the file that may be left to the kernel's read-ahead: if [free_end, end) was
	 * requested, read-ahead brings only bytes that the cut needs. */
	uint64_t free, free_end;
};

struct dcp_decoded {
	void *p;
	size_t n;
	uint32_t file; /* file and offset of the stored bytes that were decoded */
	uint64_t off;
};

/* Hints that a read leaves for the next one; each is atomic by itself. */
struct dcp_ahead {
	uint64_t end; /* end of the last read in the body: a sequential reader begins there */
	uint64_t fetched; /* up to here pages were requested or found in memory */
};

struct dcp_view {
	struct dcp_files *files;
	struct dcp_torch_frames *frames;
	struct dcp_arena arena;
	struct dcp_tensor emitted;   /* pieces as stored: what index.json shows */
	struct dcp_tensor t;         /* pieces as read; those that the cut touches are located,
					with offsets into their backing */
	struct dcp_backing *backing; /* one for each piece */
	struct dcp_decoded *decoded; /* decompressed items, unmapped by the view */
	size_t ndecoded;
	struct dcp_tiling tiling;
	struct dcp_cut cut; /* the part of the tensor that the body shows */
	bool whole;         /* all of it */
	bool uncut;         /* opened without a cut, by a caller that will read it */
	struct dcp_buf header;
	struct dcp_ahead *ahead;
	uint64_t body;  /* bytes after the header */
	uint32_t unit;  /* bytes of one element in the body */
	bool widen;     /* the body holds converted elements */
	uint32_t shown; /* bytes of an element after casting */
	bool flips;     /* signs are flipped on reading: DCP_FILTER_NEG, _CONJ */
	bool convert; /* elements must pass through a buffer: widened, byte-swapped, negated */
};

/* Fill t, tiling and backing of a view whose emitted tensor and cut are set: find the bytes of
 * every piece that the cut touches. */
int dcp_view_locate(struct dcp_view *view, struct dcp_err *err);

/* ---- locate.c ---- */
