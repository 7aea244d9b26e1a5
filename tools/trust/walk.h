/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk: read tensors, or pairs of tensors of one shape, by several threads and in bounded memory.
 *
 * Each tensor is read in spans, which threads take one after the other, and a span in chunks of a
 * few hundred kB, which stay in the processor's cache while they are looked at. What is found in
 * the spans of a tensor is handed over together, in their order, so that results do not depend on
 * the threads.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/store/index/index.h"
#include "tools/pick.h"

/* A tensor of a version. */
struct walk_key {
	const char *key, *dtype_name;
	enum dcp_dtype dtype; /* of the elements that are read */
	uint32_t itemsize, ndim;
	const uint64_t *shape;
	uint64_t elements, nbytes;
	int64_t id, alias_of; /* rows; 0: it is no alias */
	const char *error;    /* why it cannot be read, or NULL */
};

struct walk_keys {
	struct dcp_arena arena;
	struct dcp_buf all; /* struct walk_key, by key */
	uint64_t nbytes;
};

#define WALK_NKEYS(k) DCP_NITEMS((k)->all, struct walk_key)
#define WALK_KEYS(k) DCP_ITEMS((k)->all, struct walk_key)

/* Tensors may be read where their files are mapped. Before a source is opened. */
void walk_prepare(void);
/* pick_source() and pick_version() for @verb, which with --hf says what cannot be had. */
enum cmd_exit walk_pick(struct pick *p, const char *source, const char *version,
			const struct pick_opts *opts, const char *verb);
/* walk_prepare(), and the same for the operands of a verb. */
enum cmd_exit walk_open(struct pick *p, const struct opt_args *args,
			const struct pick_opts *opts, const char *verb);

/*
 * The tensors of the version of @p that @words name (none: all), by key. CMD_NO: a word names none.
 * Finish it with walk_keys_finish().
 */
enum cmd_exit walk_keys(struct pick *p, const struct opt_texts *words, struct walk_keys *out);
void walk_keys_finish(struct walk_keys *keys);

/*
 * Of each key, the number (from 1) of the key of the list that has its bytes, as they are tied; 0:
 * its bytes are its own, or only outside the list there are such. malloc'ed; NULL: no memory.
 */
size_t *walk_ties(const struct walk_keys *keys);

/*
 * Call @fn with each file, by its number, that stores bytes of the tensor, once, and how many. What
 * it returns ends that.
 */
int walk_files(const struct pick *p, const struct walk_key *k,
	       int (*fn)(void *ctx, uint32_t file, uint64_t nbytes), void *ctx);

/*
 * What --by makes of a key, in @out: the part of the model, or the key without numbers, or its
 * dtype.
 */
enum walk_by { WALK_BY_KEY, WALK_BY_LAYER, WALK_BY_KIND, WALK_BY_DTYPE };
extern const char *const walk_bys[];
void walk_group(enum walk_by by, const struct walk_key *k, struct dcp_buf *out);

struct walk_item {
	const struct walk_key *key[2]; /* the second NULL: one tensor is read */
	size_t tag;                    /* the caller's */
};

struct walk {
	struct dcp_version *version[2];
	struct walk_item *items;
	size_t n;
	unsigned jobs; /* 0: as many as processors, at most 8 */
	uint64_t rate; /* bytes a second; 0: as fast as can be */
	bool whole;    /* a tensor is one span: its bytes come in order */
	size_t found;  /* bytes of what is found in a span; zeroed at first */
	/*
	 * Elements [first, first + n) of both; any thread. Not 0: the rest of the tensor is not
	 * read.
	 */
	int (*look)(void *ctx, const struct walk_item *item, void *found, uint64_t first,
		    const void *a, const void *b, size_t n);
	/*
	 * All spans of the item; or @rc and @err say why it, or (@side 1) its pair, could not be
	 * read. One thread at a time.
	 */
	void (*done)(void *ctx, const struct walk_item *item, void *found, size_t nspans,
		     int rc, unsigned side, const struct dcp_err *err);
	void *ctx;
	const char *what; /* for the progress: "comparing" */
};

/* 0 or -ENOMEM. */
int walk_run(struct walk *w);

/* Threads for --jobs: @jobs, at most WALK_MAX_JOBS; 0: as many as processors, at most 8. */
#define WALK_MAX_JOBS 64
unsigned walk_count_jobs(unsigned jobs);

/* Sleep until @done bytes since @start_ns are no more than @rate a second; 0: any. */
void walk_wait_for_rate(int64_t start_ns, uint64_t rate, uint64_t done);

/* "[0, 5]": the place of element @i in @shape. */
const char *walk_place(char *buf, size_t size, const struct walk_key *k, uint64_t i);

#define WALK_OPT_KEYS(type)                                                                    \
	{                                                                                      \
		.name = "keys", .arg = "KEY", .kind = OPT_TEXTS, .off = offsetof(type, keys),  \
		.help = "only these: a key, the part before a dot, or a pattern; again for "   \
			"more"                                                                 \
	}
#define WALK_OPT_BY(type)                                                                      \
	{                                                                                      \
		.name = "by", .arg = "WHAT", .kind = OPT_CHOICE, .choices = walk_bys,          \
		.off = offsetof(type, by), .help = "one row for each layer, kind or dtype"     \
	}
#define WALK_OPT_JOBS(type)                                                                    \
	{                                                                                      \
		'j', "jobs", "N", "threads that read; default: processors, at most 8",         \
			OPT_UINT, .off = offsetof(type, jobs), .max = 64                       \
	}
