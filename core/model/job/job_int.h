/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job_int: declarations that the files of job share.
 *
 * A tensor is of a kind: rule, shape, size of an element, and how it was cut into pieces. A pattern
 * is one piece of a kind; an item is the place where a tensor stores that piece. Items are in the
 * order of tensors, and the items of a tensor in the order of its kind's patterns.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/err.h"
#include "core/model/geometry/tiling.h"
#include "core/model/job/chunk.h"
#include "core/model/job/job.h"
#include "core/model/layout/layout.h"
#include "core/model/layout/spread/spread.h"

#define JOB_NONE UINT32_MAX

enum job_wanted { JOB_ALL, JOB_SOME, JOB_NOTHING };

struct job_run {
	uint64_t off, n;
};

/* The part of a pattern that is wanted, if not all of it: byte ranges, counted from the beginning
 * of the item. */
struct job_runs {
	struct job_run *v;
	size_t n;
};

struct job_kind {
	const uint64_t *sign; /* identifies the kind; contains shape and boxes */
	size_t nsign;
	uint64_t hash;
	struct dcp_layout_rule to, from;
	struct dcp_tensor t;  /* the pieces of @t are the patterns, each in a file of its own */
	uint32_t *pattern_of; /* emitted piece -> pattern, or JOB_NONE: it has no elements */
	bool copies;          /* some pattern was added more than once */
	bool casts;           /* elements of the kind are converted */
	bool opaque,
		/* @views: some patterns are read through views; @mixed: a rank may need both these
		 * and others */
		mixed;
	uint32_t first; /* number of its first pattern among all patterns */
	uint64_t ntensors;
	enum job_wanted wanted;
	struct job_runs *runs; /* by pattern, when wanted is JOB_SOME */
};

struct job_item {
	uint64_t off, n;
	uint32_t file, pattern;
};

/* Another place where item @item is stored. */
struct job_copy {
	uint64_t off, n;
	uint32_t file, item;
};

struct job_tensor {
	uint32_t kind, item;
};

struct job_extent {
	uint64_t off, n;
	uint32_t file;
};

struct job_vec {
	void *p;
	size_t n, cap;
};

struct dcp_job {
	struct dcp_job_opts opts;
	uint32_t ranks, groups;
	bool finished;
	size_t used;            /* bytes of opts.memory in use by vectors */
	struct dcp_arena arena; /* kinds */
	uint64_t emitted;       /* hash of all tensors, whatever their order */
	uint64_t digest;

	struct job_vec sign;             /* uint64_t: of the tensor that is being added */
	struct job_vec kind;             /* struct job_kind */
	struct job_vec slot;             /* uint32_t: kinds by hash; open addressing */
	struct job_vec owner_of_pattern; /* uint32_t: kind of each pattern */
	struct job_vec tensor;           /* struct job_tensor */
	struct job_vec item;             /* struct job_item */
	struct job_vec copy;             /* struct job_copy */

	/* finished */
	uint32_t *order;       /* items by file and offset */
	struct job_vec extent; /* struct job_extent */
	/* no two items overlap, and elements of each item are stored in the order in which they are
	 * wanted */
	bool plain;
	bool casts;    /* elements of some rank are converted */
	bool converts; /* the same, or bytes of some items are reversed */
	/* @views: some items are read through views; @mixed: a tensor has both such items and
	 * others */
	bool views, mixed;
	struct job_vec part; /* the parts of stripes that are read, if not @plain */
	uint64_t unique, staging;
	struct dcp_stripes of;             /* of DCP_JOB_ALL */
	struct dcp_job_flow *rank, *group; /* by rank, by group */
};

/* wanted.c */

#define JOB_AT(vec, type, i) (&((type *)(vec).p)[i])

static inline const struct job_kind *dcp_job_kind_of(const struct dcp_job *job,
						     const struct job_item *item)
{
	uint32_t kind = *JOB_AT(job->owner_of_pattern, uint32_t, item->pattern);

	return JOB_AT(job->kind, struct job_kind, kind);
}

/* Room for @n more elements of @size bytes after the vector's end, within the job's memory. */
int dcp_job_room(struct dcp_job *job, struct job_vec *v, size_t n, size_t size);
/* Array that is counted like a vector and freed with free(). */
void *dcp_job_array(struct dcp_job *job, size_t n, size_t size);
int dcp_job_no_memory(const struct dcp_job *job, struct dcp_err *err);
/* Size of a file in bytes, decompressed if pieces count decompressed bytes. */
uint64_t dcp_job_file_size(const struct dcp_job *job, uint32_t file);
/* Is the piece read through a view? */
bool dcp_job_is_opaque(const struct dcp_piece *p);
/* Is the piece never read, because its elements are zeros that are not stored? Its items have no
 * bytes. */
static inline bool dcp_job_is_zeros(const struct dcp_piece *p)
{
	return p->filter == DCP_FILTER_ZERO;
}

/* The ranks of a layout for a given rule and number of dimensions. */
struct job_team {
	struct dcp_layout_rule rule;
	uint32_t ndim;
	struct dcp_spread *spread;
	const uint32_t *copy; /* offsets of the ranks of a part */
	uint32_t ncopies;
	uint8_t *rank; /* by rank of the job: enum job_rank */
	bool same;     /* there is a single part */
};

enum job_rank {
	JOB_HAS = 1,  /* the key */
	JOB_LEAD = 2, /* the first rank of its group that holds its part */
};

enum { JOB_TEAMS = 64 };

/* All teams that were made so far, for iterating over the kinds. */
struct job_teams {
	const struct dcp_job *job;
	const struct dcp_layout *layout;
	struct dcp_arena arena;
	struct job_team *slot[JOB_TEAMS];
};

void dcp_job_teams_init(struct job_teams *x, const struct dcp_job *job,
			const struct dcp_layout *layout);
void dcp_job_teams_finish(struct job_teams *x);
/* The team of a kind, set to its shape; valid until the next call. */
int dcp_job_team(struct job_teams *x, const struct job_kind *k,
		 const struct dcp_layout_rule *rule, const struct job_team **out,
		 struct dcp_err *err);
/* The box of all elements of a kind. */
struct dcp_spread_box dcp_job_whole(const struct job_kind *k);

/* wanted.c: which elements of each kind any rank needs; which copies are read */
int dcp_job_find_wanted(struct dcp_job *job, struct dcp_err *err);
int dcp_job_choose(struct dcp_job *job);

/* wanted.c: the union of all needs */
int dcp_job_find_union(struct dcp_job *job, struct dcp_err *err);

/* each.c: computes the needs of one rank after the other */
struct job_needs {
	const struct dcp_job *job;
	struct dcp_arena arena, scratch;
	struct job_described **of; /* by kind */
	struct dcp_chunk_need *v;  /* in the form of the loader; want: bytes of its units */
	size_t n, cap;
	uint64_t views; /* bytes that the rank reads through views */
};
void dcp_job_needs_init(struct job_needs *x, const struct dcp_job *job);
void dcp_job_needs_finish(struct job_needs *x);
int dcp_job_needs(struct job_needs *x, uint32_t rank, struct dcp_err *err);

/* Functions that compute the flows of all ranks, and the bytes that ranks [first, first + n) send
 * to each rank. */
struct job_way {
	int (*flows)(struct dcp_job *job, struct dcp_err *err);
	int (*sends)(const struct dcp_job *job, uint32_t first, uint32_t n, uint64_t *rows,
		     struct dcp_err *err);
	int (*receives)(const struct dcp_job *job, uint32_t rank, uint64_t *from,
			struct dcp_err *err);
	int (*reads)(const struct dcp_job *job, uint32_t rank, dcp_job_read_fn fn, void *ctx);
};
/* closed.c: each byte is read once, and job->plain; each.c: all other cases, rank by rank */
extern const struct job_way dcp_job_closed, dcp_job_each;
const struct job_way *dcp_job_way(const struct dcp_job *job);

/* flow.c: job->rank, job->group */
int dcp_job_find_flows(struct dcp_job *job, struct dcp_err *err);
/* flow.c: for a job whose layout @from holds everything already */
struct job_move {
	uint32_t from, to;
	uint64_t bytes;
};
typedef void (*job_move_fn)(void *ctx, const struct job_move *m);
/* Every transfer between ranks, those from a rank to itself included. */
int dcp_job_moves(const struct dcp_job *job, job_move_fn fn, void *ctx, struct dcp_err *err);
