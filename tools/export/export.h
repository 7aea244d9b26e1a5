/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export: one run of dcpfs export, shared by the verb (verbs/export.c), what it takes from the
 * source (set.c, parts.c), how that is read (read.c), and the report (report.c).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/write/write.h"
#include "tools/load/dcpload.h"
#include "tools/out.h"
#include "tools/pick.h"
#include "tools/save/save.h"

struct export_opts {
	const char *as, *layout;
	struct opt_texts keys, skip;
	int dtype, form, comm, protocol;
	uint64_t jobs, max_shard, timeout;
	bool verify, resume, force, direct, partial, insecure, dry;
	struct pick_opts pick;
};

/* Where a tensor of the set comes from. */
struct export_from {
	int64_t row;
	enum dcp_dtype dtype;      /* of the view; the set's where it is not converted */
	const struct dcp_cut *cut; /* of this rank's array; NULL: the tensor, or boxes of it */
};

struct exporting {
	const struct export_opts *opts;
	const struct opt_args *args;
	const char *out;
	const struct dcp_write_format *format;
	struct pick pick;
	struct dcp_arena arena;
	struct dcp_write_set set;
	struct dcp_buf tensors, from, objects, extras, extra_from, left, asks;
	struct dcp_said *said;           /* what stored files say beside tensors */
	struct dcp_quantized *quantized; /* of the version, where tensors are converted */
	struct out_left damaged;         /* the first that cannot be read */
	uint64_t ndamaged;
	struct dcp_layouts *layouts;
	const struct dcp_layout *layout; /* NULL: everything is written whole, by rank 0 */
	uint64_t *held;                  /* bytes that each rank writes */
	bool is_file;                    /* OUT is one file, by its name */
	bool local; /* the set has what this process holds in the layout, as arrays of their own */
	bool is_cut;               /* some of these are not all of their tensor */
	struct dcpload_comm *comm; /* of the processes that share the work, or this one alone */
	struct export_reader *reader;
	struct save *save;
	struct save_opts how; /* of it, and what it writes */
	struct dcp_write_opts form;
	uint64_t kept, copied, direct; /* as save_counts, of all processes */
	struct progress progress;
	struct dcp_err err;
	struct dcpload_error told;                      /* the last failure of any rank */
	const char *doing;                              /* for messages: "exporting" */
	bool given_up;                                  /* atomic: another rank is lost */
	enum cmd_exit (*fn)(struct exporting *x), code; /* of export_step_code() */
	int64_t start_ns;
};

/*
 * Names of --dtype; the first leaves tensors as they are. Of --protocol; none of them is the
 * format's own. Of --comm.
 */
extern const char *const export_dtypes[], *const export_protocols[], *const export_comms[];
#define EXPORT_NO_PROTOCOL UINT64_MAX
/* The number; 0: the format's own. */
unsigned export_protocol(const struct export_opts *o);

/* Is @out on a server, not in a directory? */
bool export_is_remote(const char *out);
/* Never over or into the source. */
enum cmd_exit export_check_apart(const char *out, const char *from);
/* The same, nor into a mount of dcpfs or where no directory is. */
enum cmd_exit export_check_place(const char *out, const char *from);
/*
 * @file: a page, drawing or table that @verb writes, which begins with @head. Never into the
 * source, nor over anything that begins otherwise; with the rights of what it was made from, @p and
 * (or NULL) @q. NULL: standard output.
 */
enum cmd_exit export_check_file(const char *verb, const char *file, const char *head,
				const char *source);
enum cmd_exit export_put_file(struct out *o, const char *verb, const char *file,
			      const char *head, const struct pick *p, const struct pick *q);
/*
 * The permission bits which what is written into the directory @dir (or beside others as @out) must
 * not have: dcp_grants_withheld(). -ENOMEM.
 */
int export_withheld(const struct dcp_version *v, const char *source, const char *dir,
		    uint32_t *out);
int export_withheld_beside(const struct dcp_version *v, const char *source, const char *out,
			   uint32_t *bits);
/* Make an empty file without these bits, or empty the existing file and remove the bits from
 * it. -errno. */
int export_create(const char *path, uint32_t withheld);
/* Is @path absent, empty, no regular file, or a file that begins with @head? */
bool export_may_replace(const char *path, const char *head);
/* Does each word of --keys name a key, and is anything left of them? */
enum cmd_exit export_check_keys(struct exporting *x);
/* Open the layout that is asked for. */
enum cmd_exit export_open_layout(struct exporting *x);
/* The same, to cut what is written by it. */
enum cmd_exit export_layout(struct exporting *x);
/* The parts of @t in the layout; @why: it cannot be cut so, or NULL. 0 or -errno. */
int export_parts(struct exporting *x, struct dcp_write_tensor *t, const char **why);
/* Make of @t the array that this process holds of it. 1; 0: it holds none. */
int export_local(struct exporting *x, struct dcp_write_tensor *t, const struct dcp_cut **cut,
		 const char **why);

/*
 * Fill the set with what is asked for and the format can hold; list the rest. 0 or -errno; without
 * --partial also for what cannot be read.
 */
int export_choose(struct exporting *x);
/* Are the extras those of a directory of Hugging Face, by their places (dcp_hf_next_file)? Else by
 * their numbers among the version's files. */
bool export_is_asset(const struct exporting *x);

/* The source of a save, for @x->opts->jobs threads. Finish it with export_close(). */
struct export_reader;
int export_reader(struct exporting *x, struct export_reader **out);
struct save_source export_source(struct export_reader *r);
/* For the set: what files say beside tensors, and counts bytes of parts. @ctx: the reader. */
int export_said(void *ctx, const size_t *tensors, size_t n, const char **object);
int export_high(void *ctx, size_t tensor, size_t part, uint64_t off, size_t n, uint64_t *count,
		struct dcp_err *err);
void export_close(struct export_reader *r);
/* [off, off + n) of a part of a tensor, or of all of it, as it is written; one thread. */
#define EXPORT_WHOLE SIZE_MAX
int export_read(struct export_reader *r, size_t tensor, size_t part, uint64_t off, void *buf,
		size_t n, struct dcp_err *err);

/* Read back what was sealed and compare it. 0, -EBADMSG (it differs), or -errno. */
int export_verify(struct exporting *x);

/* ---- processes that share the work: collective, but for export_leads() ---- */

/* How long a rank may not answer. What takes long is done by export_step(). */
int export_timeout(uint64_t seconds);
/* Collective: @fn of this rank (NULL: nothing), for as long as it takes; then as export_agree(). */
int export_step(struct exporting *x, int (*fn)(struct exporting *x));
/*
 * Does this rank say what failed? Rank 0 does; when that is the rank that is lost, rank 1, and as
 * it may have been on the same node, the first of each.
 */
bool export_speaks(const struct dcpload_comm *comm, const struct dcpload_error *err);

/*
 * How the ranks of a job find each other, and how long they wait: as AT() says, where the options
 * are kept.
 */
#define EXPORT_OPTS_JOB(timeout_at, insecure_at)                                               \
	{ 0,                                                                                   \
	  "timeout",                                                                           \
	  "S",                                                                                 \
	  "seconds without progress of another rank; default 60",                              \
	  OPT_UINT,                                                                            \
	  timeout_at,                                                                          \
	  .max = 1000000 },                                                                    \
	{                                                                                      \
		0, "insecure", NULL,                                                           \
			"without a secret, any process that reaches the port may be a rank",   \
			OPT_FLAG, insecure_at                                                  \
	}

/* dcpload_comm_open_as(), by what these say. @comm: of export_comms. */
int export_open_comm(int comm, uint64_t timeout_s, bool insecure, struct dcpload_comm **out,
		     struct dcpload_error *err);
/*
 * Collective: were all ranks given the same options of @table, as far as the rows ask for that?
 * @values: those of this rank. -EINVAL, with the option and two values; all ranks get the same
 * error.
 */
int export_compare_options(const struct dcpload_comm *comm, const struct opt *table,
			   const void *values, uint64_t timeout_s, struct dcpload_error *err);
/* Open the communicator of x->opts, and compare options. */
enum cmd_exit export_join(struct exporting *x, const struct opt *table, const void *values);
/* The exit code for what dcpload_comm_open() returned: how ranks were started is usage. */
enum cmd_exit export_exit_of_comm(int rc);
/* Leave them, and free all. */
void export_finish(struct exporting *x);
/* Is it the rank that makes files and prints? */
bool export_leads(const struct exporting *x);
/* The failure of any of them, on all: @rc and @x->err are this one's. */
int export_agree(struct exporting *x, int rc);
/* The same with the code of a failure that this rank has reported: the others get that of
 * the lowest rank that failed. */
enum cmd_exit export_agree_code(struct exporting *x, enum cmd_exit code);
/* The same of what @fn returns, for as long as it takes. */
enum cmd_exit export_step_code(struct exporting *x, enum cmd_exit (*fn)(struct exporting *x));
/* A number that the leading rank read, for all ranks. */
int export_identity(struct exporting *x, uint64_t *out);
/* Do all see the same? -ESTALE. */
int export_same_plan(struct exporting *x);
/* Send what each rank wrote to the leading rank. */
int export_share_sums(struct exporting *x);

/* What was left out, as lines and as the member left_out. */
void export_put_left(const struct exporting *x, struct out *o);
void export_put_left_json(const struct exporting *x, struct dcp_jsonw *w);
/* What was written, and what was not. */
enum cmd_exit export_report(const struct exporting *x);
