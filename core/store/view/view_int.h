/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_int: what the files of the view share. Only view*.c and their test include it.
 */
#pragma once
#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/model/geometry/cut.h"
#include "core/model/geometry/tiling.h"
#include "core/store/io/files.h"
#include "core/store/view/view.h"

struct dcp_source;

/* Where the bytes of one piece are read from. */
struct dcp_backing {
	const uint8_t *decoded; /* the item in memory; NULL: bytes of file number @number */
	uint32_t number; /* in the file table; DCP_VIEW_NO_FILE: decoded, or not needed */
	bool needed;
	bool scattered; /* what the cut takes of the piece does not lie together; if it does: */
	uint64_t first, end; /* elements of the stored run; once located, offsets of the file */
	uint64_t until;      /* what of the file the cut takes ends there, or before */
	/* Of the file: what the kernel's own read-ahead brings while this is read, the cut
	 * takes, once [free_end, end) was asked for. */
	uint64_t free, free_end;
};

struct dcp_decoded {
	void *p;
	size_t n;
	uint32_t file; /* of what was decoded, and where it begins there */
	uint64_t off;
};

/* What the last read leaves to the next; hints, each atomic by itself. */
struct dcp_ahead {
	uint64_t end;     /* where it ended in the body: there the next begins, if they go on */
	uint64_t fetched; /* up to here pages were asked for, or found to be there */
};

struct dcp_view {
	struct dcp_files *files;
	struct dcp_torch_frames *frames;
	struct dcp_arena arena;
	struct dcp_tensor emitted;   /* pieces as stored: what index.json shows */
	struct dcp_tensor t;         /* pieces as read: located, offsets into their backing, if
					the cut touches them */
	struct dcp_backing *backing; /* one a piece */
	struct dcp_decoded *decoded; /* decompressed items, to be unmapped */
	size_t ndecoded;
	struct dcp_tiling tiling;
	struct dcp_cut cut; /* what of the tensor the body shows */
	bool whole;         /* all of it */
	bool uncut;         /* all of it was asked for, by a reader that reads it */
	struct dcp_buf header;
	struct dcp_ahead *ahead;
	uint64_t body;  /* bytes after the header */
	uint32_t unit;  /* bytes of one element in the body */
	bool widen;     /* the body holds converted elements */
	uint32_t shown; /* bytes of an element once it is cast */
	bool flips;     /* signs are flipped on the way: DCP_FILTER_NEG, _CONJ */
	bool convert; /* elements must pass through a buffer: widened, byte-swapped, negated */
};

/* Fill t, tiling and backing of a view whose emitted tensor and cut are set: find the bytes of
 * every piece that the cut touches. */
int dcp_view_locate(struct dcp_view *view, struct dcp_err *err);

/* ---- locate.c ---- */
