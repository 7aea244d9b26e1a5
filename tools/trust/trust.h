/* SPDX-License-Identifier: Apache-2.0 */
/* trust: functions that diff, verify, stats, scan and bisect share, under the names of their
 * files. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/model/measure/stats.h"
#include "core/store/cache/cache.h"
#include "core/store/index/index.h"
#include "core/store/view/measure.h"
#include "tools/cmd.h"
#include "tools/out.h"
#include "tools/pick.h"

/*
 * walk: read tensors, or pairs of tensors of one shape, by several threads and in bounded memory.
 *
 * A tensor is read in spans, which threads take in turn, and a span in chunks of a few hundred kB,
 * which stay in the processor's cache while they are examined. Findings of a tensor's spans are
 * handed over together, in order, so that results do not depend on the threads.
 */

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

/* Allow reading tensors in mapped files. To be called before a source is opened. */
void walk_prepare(void);
/* pick_source() and pick_version() for @verb; with --hf it prints keys that are left out. */
enum cmd_exit walk_pick(struct pick *p, const char *source, const char *version,
			const struct pick_opts *opts, const char *verb);
/* walk_prepare() and walk_pick() for the operands of a verb. */
enum cmd_exit walk_open(struct pick *p, const struct opt_args *args,
			const struct pick_opts *opts, const char *verb);

/* Find the tensors that @words name (no words: all), sorted by key. CMD_NO: a word names no tensor.
 * Finish it with walk_keys_finish(). */
enum cmd_exit walk_keys(struct pick *p, const struct opt_texts *words, struct walk_keys *out);
void walk_keys_finish(struct walk_keys *keys);

/* For each key, the number (from 1) of the listed key that it is tied to; 0: it is tied to no
 * listed key. malloc'ed; NULL: no memory. */
size_t *walk_ties(const struct walk_keys *keys);

/* Call @fn once for each file that stores bytes of the tensor, with its number and the count of
 * bytes. A result of @fn other than 0 ends the walk. */
int walk_files(const struct pick *p, const struct walk_key *k,
	       int (*fn)(void *ctx, uint32_t file, uint64_t nbytes), void *ctx);

/* The group of a key by --by, into @out: the part of the model, the key without numbers, or the
 * dtype. */
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
	size_t found;  /* size of the findings of a span; zeroed at first */
	/* Elements [first, first + n) of both; any thread. Not 0: the rest of the tensor is not
	 * read. */
	int (*look)(void *ctx, const struct walk_item *item, void *found, uint64_t first,
		    const void *a, const void *b, size_t n);
	/* The item is done. @rc < 0: the tensor of key[@side] cannot be read, for the reason in
	 * @err. One thread at a time. */
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

/* compare: the tensors of two versions by key. */

enum compare_state {
	CMP_EQUAL,
	CMP_CLOSE,
	CMP_DIFFERS,
	CMP_DTYPE,
	CMP_SHAPE,
	CMP_ONLY_A,
	CMP_ONLY_B,
	CMP_UNREAD,
	CMP_OBJECT
};
#define COMPARE_STATES (CMP_OBJECT + 1)
extern const char *const compare_states[];

/* A key of either side. */
struct pair {
	const char *name;
	const struct walk_key *a, *b;
	enum compare_state state;
	struct dcp_difference d;
	uint64_t tensors; /* of a group */
};

struct comparing {
	struct pick *p[2];
	const struct walk_keys *keys[2];
	struct dcp_tolerance tolerance;
	bool tolerates, quick; /* quick: up to the first difference */
	unsigned jobs;
	uint64_t rate; /* bytes of one side a second; 0: any */

	struct pair *pairs; /* malloc'ed, by key */
	size_t n;
	uint64_t
		skipped; /* bytes of one side that were not read, as digests of both are known */
	enum cmd_exit code; /* of unreadable tensors, which were reported */
};

/* Fill the fields from pairs on. -ENOMEM. */
int compare_run(struct comparing *w);
/* Order of pairs. */
int compare_by_name(const void *a, const void *b);

/* Put a row of a list of these fields. @kind: "tensor" or "object"; @quick: that of the
 * comparison. */
extern const struct out_field compare_fields[];
void compare_put_row(struct out *o, const struct pair *p, const char *kind, bool quick);

/* A drawing of ungrouped pairs: layers from left to right, parameters from top to bottom, darker
 * where more has changed. -ENOMEM. */
int compare_strip(const struct comparing *w, const char *title, struct dcp_buf *out);

/* copies: compare elements that several files of a version have. */

struct copies_bad {
	const struct walk_key *key;
	uint32_t file,
		other; /* the file that was read first; the file that differs, or cannot be read */
	uint64_t off, n;        /* where @file has these elements; 0: not known */
	uint64_t first, differ; /* the first element that differs; number of differing bytes */
	uint64_t bytes;         /* of these elements */
	const char *why;        /* it cannot be read; NULL: it differs */
	struct dcp_version *with; /* the version as read from @other; NULL: unreadable */
};

struct copies {
	struct pick *p;
	const struct pick_opts *opts;
	const struct walk_keys *keys;
	unsigned jobs; /* tensors at a time, as in struct walk */
	uint64_t rate; /* bytes a second; 0: any */
	void (*bad)(void *ctx, const struct copies_bad *b); /* one thread at a time */
	void *ctx;
	uint64_t equal; /* copies that are the same */
};

/* Compare all copies. 0; -ENOMEM; -EIO: the version cannot be opened once more, which was
 * printed. */
int copies_check(struct copies *w);

/*
 * judge: what happens if a name in a pickle is imported and called.
 *
 * A table of judgements, not a proof. OWN: names that torch, numpy and known trainers save, and
 * that only make values of their arguments. DANGEROUS: names that run commands or code, open files
 * or connections, or lead to such names. UNKNOWN: all other names.
 */

enum judgement { JUDGED_OWN, JUDGED_UNKNOWN, JUDGED_DANGEROUS };
extern const char *const judgements[]; /* "own", "unknown", "dangerous" */

/* @name may have dots, for attributes; no pattern makes an attribute OWN. */
enum judgement judge(const char *module, const char *name);

/* measure: statistics of tensors, measured once and kept beside the index. */

/* Does it have NaN or infinity? */
static inline bool measured_is_bad(const struct dcp_measured *m)
{
	return m->s.nans || m->s.infs;
}

struct measuring {
	struct pick *p;
	const struct walk_keys *keys;
	bool histogram;
	bool known;    /* read no tensor: only kept records */
	unsigned jobs; /* as in struct walk */
	uint64_t rate;

	struct dcp_measured *m;       /* a record a key, in their order */
	struct dcp_stats_bins **bins; /* with histogram */
	enum cmd_exit code;           /* of unreadable tensors, which were reported */
	struct dcp_arena arena;
};

/* Fill the fields from m on. -ENOMEM. */
int measure_run(struct measuring *w);
void measure_finish(struct measuring *w);

/* Statistics of one tensor, or of several together. */
struct measure_row {
	const char *name;
	const struct walk_key *key; /* of several tensors the first */
	struct dcp_measured m;
	struct dcp_stats_bins *bins;
	uint64_t tensors;
	bool mixed; /* several dtypes */
};

struct dcp_stats_of measure_of(const struct measure_row *r);
/* A row of a list of these fields. */
extern const struct out_field measure_fields[];
void measure_put_row(struct out *o, const struct measure_row *r);

/* overtime: statistics of tensors in every version of a source, and the distance of each version
 * from the version before. */

/* Print a row for each complete version, the oldest first, for the tensors that @keys name; a
 * drawing goes into @file. */
enum cmd_exit overtime(const char *source, const struct pick_opts *opts,
		       const struct opt_texts *keys, unsigned jobs, uint64_t rate,
		       enum out_form form, const char *file);

/* record: the digests of tensors as a file, in a form that tools/load/load.h reads. */

/* The digest by XXH3 of a tensor, kept beside the index as "digests". */
struct record_kept {
	struct dcp_kept_head head;
	char text[40]; /* 32 digits and a NUL */
};

struct record_tensor {
	const char *key, *digest;
};

struct record {
	const struct pick *p; /* the version is open */
	const char *path;     /* "-": to standard output */
	bool in_toto;         /* a statement, instead of lines */
	bool sha256;          /* digests are SHA-256, else XXH3 */
	const struct record_tensor *tensors;
	size_t n;
	uint64_t nbytes; /* of all tensors */
};

/* May the file at @path be written? It may not be in @source, nor replace a file that is no record.
 * The reason is printed. */
enum cmd_exit record_check(const char *path, const char *source);
enum cmd_exit record_write(const struct record *r);

/*
 * signed: do the files of a version have the digests that a manifest of model-signing (OMS v1)
 * lists?
 *
 * model.sig, in the version's directory or in one above it up to SOURCE, is a sigstore bundle: a
 * DSSE envelope around an in-toto statement, which lists files, or parts of files, with digests.
 * Each digest is compared, and so is the digest of all. The signature over the statement is not
 * checked: that needs keys and certificates, and is the job of the signer's program.
 */

struct signed_bad {
	const char *file; /* below the source, or the manifest */
	uint64_t off, n;
	const char *why; /* valid during the call */
};

struct signed_files {
	struct pick *p;
	unsigned jobs;                                      /* as in struct walk */
	uint64_t rate;                                      /* bytes a second; 0: any */
	void (*bad)(void *ctx, const struct signed_bad *b); /* one thread at a time */
	void *ctx;

	uint64_t manifests, agree; /* manifests found; digests that agree */
	uint64_t unknown;          /* digests by an algorithm that is not known here */
	char algorithm[32];        /* such an algorithm */
};

/* Read what is listed, and warn of digests that are not known. 0 or -ENOMEM. */
int signed_check(struct signed_files *w);

/*
 * stored: compare files of a version with the checksums in them.
 *
 * ZIP archives have a CRC-32 of each member, also archives in a row, as in .distcp files. A CRC-32
 * of 0 was not computed, which is an option of torch.
 */

/* Bytes of a file that differ from their checksum or cannot be read. Each tensor in them is
 * reported; if there is none, the bytes are reported once. @why tells whether another file has
 * them. */
struct stored_bad {
	const char *key; /* NULL: no tensor */
	uint32_t file;
	uint64_t off, n;
	const char *why; /* valid during the call */
	bool first;      /* these bytes were not reported before */
};

struct stored {
	struct pick *p;
	const struct walk_keys *keys;
	unsigned jobs; /* files at a time, as in struct walk */
	uint64_t rate; /* bytes a second; 0: any */
	void (*bad)(void *ctx, const struct stored_bad *b); /* by the calling thread */
	void *ctx;
	uint64_t checked; /* members that agree with their checksums */
};

/* Read all files that have checksums. 0 or -ENOMEM. */
int stored_check(struct stored *w);
