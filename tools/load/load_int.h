/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_int: what the files of the library share.
 *
 *	source   which version is meant, opened the same on all ranks
 *	keys     its keys; reading one region alone
 *	plan     wants, and what is wrong with them
 *	need     where the bytes of the wants are stored
 *	chunk    the stretches of files that a group of ranks needs, and who reads each
 *	window   memory that the ranks of a node share
 *	place    from a stretch to the destinations
 *	execute  the threads that read and place
 */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/model/geometry/cut.h"
#include "core/model/geometry/strided.h"
#include "core/store/index/index.h"
#include "core/store/io/fetch.h"
#include "core/store/version/version.h"
#include "tools/load/comm/comm.h"
#include "tools/load/dcpload.h"

struct dcp_layout;
struct dcp_layouts;

#define LOAD_STAGING ((uint64_t)64 << 20)
#define LOAD_TIMEOUT_MS 60000

struct dcpload {
	const struct dcpload_comm *comm; /* borrowed; load_alone */
	struct dcpload_config config;    /* without zeros; its texts are @arena's */
	struct dcp_arena arena;
	char *source;         /* that is scanned */
	const char *wanted;   /* version, as told by the caller or the path */
	const char *layout;   /* of a rank's directory; NULL: none */
	uint32_t layout_rank; /* of it */
	char *mount;          /* root of the mount that the path lies in, or NULL */
	const char *through;  /* why bytes come through the mount; NULL: they do not */
	char *cache;
	struct dcp_scan scan;
	struct dcp_store_opts store;
	struct dcp_io_counts counts;
	struct dcp_version *v;
	struct dcp_layouts *layouts; /* made when first asked for */
	struct dcp_arena answer;     /* text of the last answer */
	uint32_t *node;              /* of each rank */
	uint32_t nnodes;
	uint32_t *local;       /* ranks of this node, in order */
	uint32_t nlocal, self; /* how many; which of them is this rank */
	uint64_t open_ns;
};

/* ---- source.c ---- */

int load_layout(struct dcpload *ck, const char *name, const struct dcp_layout **out,
		struct dcp_err *err);

/* ---- keys.c ---- */

void load_tensor_of(const struct dcp_row *row, struct dcpload_tensor *out);
/* The row of a key: -ENOENT with the nearest in @err. */
int load_find(struct dcpload *ck, const char *key, struct dcp_arena *arena, struct dcp_row *row,
	      struct dcp_err *err);
/* Is the key of @row one of those? 1, 0, or a negative errno. */
int load_selects(struct dcpload *ck, const struct dcpload_select *select,
		 const struct dcp_row *row);

/* ---- place.c ---- */

/* Where an array of stored elements goes. */
struct load_target {
	char *base;        /* byte 0 of the destination */
	uint32_t from, to; /* bytes of an element, 16 at most: stored, in the destination */
	uint32_t swap;     /* bytes that are reversed together; 0: none */
	bool plain;        /* row-major, stored elements: bytes are copied */
	enum dcp_dtype dtype, shown; /* stored, in the destination */
	uint32_t ndim;
	uint64_t inner;        /* elements that lie together in the destination */
	const uint64_t *shape; /* of the array */
	const int64_t *stride; /* of the destination, in its elements */
};

/* What @s says of @src, which holds byte s->off of the file and on. */
void load_place(const struct load_target *t, const struct dcp_strided *s, const uint8_t *src);
/* @n bytes at @at of the row-major array of stored elements. Whole elements. */
void load_place_run(const struct load_target *t, uint64_t at, const uint8_t *src, uint64_t n);

/* Element @e of the array in the destination. */
char *load_address(const struct load_target *t, uint64_t e);

/* ---- plan.c ---- */

/* One want. */
struct load_want {
	const char *key;
	int64_t id; /* row; 0: there is none */
	struct dcp_cut cut;
	const char *dtype_name, *to_name; /* of the target's dtypes */
	uint32_t ndim, global_ndim;       /* of the part, of the tensor */
	const uint64_t *shape, *global_shape;
	struct load_target target;
	uint32_t itemsize;       /* of the destination */
	uint64_t stored, nbytes; /* bytes of the part as stored and in the destination */
	bool owned;              /* the library allocates */
	bool padded;             /* zeros belong to it that are stored nowhere */
	bool through_view;       /* its bytes are decoded: they are read by a view */
	bool swap;
	_Atomic uint64_t left; /* stored bytes that are not in place */
	_Atomic uint32_t complete;
	void *user;
	size_t first, n; /* its needs, until they are sorted */
};

/* Stored bytes of a want: runs of a file. */
struct load_need {
	struct dcp_strided s; /* s.piece is of no use */
	uint32_t file, want;
};

struct load_listed {
	uint32_t list;
	const char *key, *why;
};

struct load_chunks;
struct load_range;
struct load_rounds;
struct load_window;

struct dcpload_plan {
	struct dcpload *ck;
	uint32_t flags;
	bool finished;
	struct dcp_arena arena;
	struct load_want *want;
	size_t nwant, cap_want;
	struct load_need *need; /* by want; when finished in order of file and offset */
	size_t nneed, cap_need;
	struct load_listed *list;
	size_t nlist, cap_list;
	struct dcpload_hooks hooks;
	void *memory; /* of the destinations the library allocates */
	uint64_t memory_bytes;
	struct load_chunks *chunks; /* NULL: every want is read on its own */
	struct load_window *window; /* through which they go */
	struct load_range *mine;    /* what this rank needs of files, in order */
	size_t nmine;
	struct load_rounds *rounds;  /* of messages; NULL: there are none */
	_Atomic uint64_t arrived;    /* bytes, in this execution */
	struct dcpload_event *event; /* kept; NULL: nobody asked */
	uint32_t cap_event;
	_Atomic uint64_t nevent; /* that there were */
	int64_t began;           /* the execution */
	struct dcpload_report report;
	char io_why[160], exchange_why[160];
};

/* ---- keyset.c ---- */

/* Collective: keys of all ranks against each other and against what is stored. */
int load_check_keys(struct dcpload_plan *plan, struct dcpload_error *err);
/* Add to one of the lists of what is wrong with keys. -ENOMEM. */
int load_list(struct dcpload_plan *plan, uint32_t list, const char *key, const char *fmt, ...)
	DCP_PRINTF(4, 5);

/* ---- need.c ---- */

/* Find where the bytes of all wants are. */
int load_locate(struct dcpload_plan *plan, struct dcpload_error *err);

/* ---- trace.c ---- */

void load_trace_begin(struct dcpload_plan *plan);
/* What began at @start has ended. Any thread. */
void load_trace(struct dcpload_plan *plan, uint32_t kind, int64_t start, uint64_t bytes);

/* ---- execute.c ---- */

int load_decide(struct dcpload_plan *plan, struct dcpload_error *err); /* collective */
