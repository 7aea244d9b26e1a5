/* SPDX-License-Identifier: Apache-2.0 */
/* export: one run of dcpfs export, shared by the verb (verbs/export.c), the choice of items (set.c,
 * parts.c), their reader (read.c), and the report (report.c). */
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
	struct dcp_said *said;           /* metadata that stored files have beside tensors */
	struct dcp_quantized *quantized; /* of the version, where tensors are converted */
	struct out_left damaged;         /* the first item that cannot be read */
	uint64_t ndamaged;
	struct dcp_layouts *layouts;
	const struct dcp_layout *layout; /* NULL: everything is written whole, by rank 0 */
	uint64_t *held;                  /* bytes that each rank writes */
	bool is_file;                    /* by its name, OUT is one file */
	bool local;  /* the set has the arrays that this process holds in the layout */
	bool is_cut; /* some of these arrays are parts of their tensors */
	struct dcpload_comm *comm; /* of the processes that share the work, or this one alone */
	struct export_reader *reader;
	struct save *save;
	struct save_opts how; /* options of the save */
	struct dcp_write_opts form;
	uint64_t kept, copied, direct; /* sums of save_counts over all processes */
	struct progress progress;
	struct dcp_err err;
	struct dcpload_error told;                      /* the last failure of any rank */
	const char *doing;                              /* for messages: "exporting" */
	bool given_up;                                  /* atomic: another rank is lost */
	enum cmd_exit (*fn)(struct exporting *x), code; /* of export_step_code() */
	int64_t start_ns;
};

/* Names of --dtype, of which the first leaves tensors as they are; of --protocol, without which
 * the format decides; of --comm. */
extern const char *const export_dtypes[], *const export_protocols[], *const export_comms[];
#define EXPORT_NO_PROTOCOL UINT64_MAX
/* The number of --protocol; 0: the format's default. */
unsigned export_protocol(const struct export_opts *o);

/* Is @out on a server, not in a directory? */
bool export_is_remote(const char *out);
/* CMD_USAGE if @out is the source, or in it. */
enum cmd_exit export_check_apart(const char *out, const char *from);
/* The same, and if @out is in a mount of dcpfs, or its directory is missing. */
enum cmd_exit export_check_place(const char *out, const char *from);
/*
 * Check @file, a page, drawing or table that @verb writes and that begins with @head: it may not be
 * in the source, nor replace a file that begins otherwise. It gets the permissions of its sources,
 * @p and (or NULL) @q. NULL: standard output.
 */
enum cmd_exit export_check_file(const char *verb, const char *file, const char *head,
				const char *source);
enum cmd_exit export_put_file(struct out *o, const char *verb, const char *file,
			      const char *head, const struct pick *p, const struct pick *q);
/* The permission bits that files written into the directory @dir (or as @out) must not have:
 * dcp_grants_withheld(). -ENOMEM. */
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
/* Open the layout by which the output is cut. */
enum cmd_exit export_layout(struct exporting *x);
/* Find the parts of @t in the layout. @why: the reason if it cannot be cut, or NULL. 0 or
 * -errno. */
int export_parts(struct exporting *x, struct dcp_write_tensor *t, const char **why);
/* Make @t the array that this process holds of it. 1; 0: it holds nothing of it. */
int export_local(struct exporting *x, struct dcp_write_tensor *t, const struct dcp_cut **cut,
		 const char **why);

/* Fill the set with the items that are asked for and that the format can hold; list the rest. 0 or
 * -errno. Without --partial an unreadable item is an error, too. */
int export_choose(struct exporting *x);
/* Are extra files those of a Hugging Face directory, numbered as by dcp_hf_next_file()? Otherwise
 * their numbers are those of the version's files. */
bool export_is_asset(const struct exporting *x);

/* The source of a save, for @x->opts->jobs threads. Finish it with export_close(). */
struct export_reader;
int export_reader(struct exporting *x, struct export_reader **out);
struct save_source export_source(struct export_reader *r);
/* Callbacks of the set: the metadata that files have beside tensors; the number of bytes of 0x80
 * or more in a part. @ctx: the reader. */
int export_said(void *ctx, const size_t *tensors, size_t n, const char **object);
int export_high(void *ctx, size_t tensor, size_t part, uint64_t off, size_t n, uint64_t *count,
		struct dcp_err *err);
void export_close(struct export_reader *r);
/* Read [off, off + n) of a part of a tensor, or of the whole tensor, in the form that is written.
 * For one thread at a time. */
#define EXPORT_WHOLE SIZE_MAX
int export_read(struct export_reader *r, size_t tensor, size_t part, uint64_t off, void *buf,
		size_t n, struct dcp_err *err);

/* Read the sealed output back and compare it. 0, -EBADMSG (it differs), or -errno. */
int export_verify(struct exporting *x);

/* ---- processes that share the work: collective, but for export_leads() ---- */

/* Milliseconds after which a rank that does not answer is lost. Long work is done by
 * export_step(). */
int export_timeout(uint64_t seconds);
/* Collective: call @fn on this rank (NULL: nothing), however long it takes, then agree as
 * export_agree() does. */
int export_step(struct exporting *x, int (*fn)(struct exporting *x));
/* Does this rank print the error? Rank 0 does. If rank 0 is lost, rank 1 does, and, as it may have
 * been on the same node, the first rank of each node. */
bool export_speaks(const struct dcpload_comm *comm, const struct dcpload_error *err);

/* Options for how ranks find each other and how long they wait. AT() gives the place of the
 * members. */
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

/* dcpload_comm_open_as() by these options. @comm: an index of export_comms. */
int export_open_comm(int comm, uint64_t timeout_s, bool insecure, struct dcpload_comm **out,
		     struct dcpload_error *err);
/* Collective: do all ranks have the same options of @table, as far as its rows require? @values:
 * the options of this rank. -EINVAL with the option and two values, the same error on all ranks. */
int export_compare_options(const struct dcpload_comm *comm, const struct opt *table,
			   const void *values, uint64_t timeout_s, struct dcpload_error *err);
/* Open the communicator of x->opts, and compare options. */
enum cmd_exit export_join(struct exporting *x, const struct opt *table, const void *values);
/* The exit code for an error of dcpload_comm_open(): a wrong start of ranks is CMD_USAGE. */
enum cmd_exit export_exit_of_comm(int rc);
/* Leave the job, and free everything. */
void export_finish(struct exporting *x);
/* Is this the rank that makes files and prints? */
bool export_leads(const struct exporting *x);
/* Collective: a failure of any rank, on all ranks. @rc and @x->err are those of this rank. */
int export_agree(struct exporting *x, int rc);
/* The same for an exit code whose error this rank has printed: others get the code of the lowest
 * rank that failed. */
enum cmd_exit export_agree_code(struct exporting *x, enum cmd_exit code);
/* The same for the exit code of @fn, however long it takes. */
enum cmd_exit export_step_code(struct exporting *x, enum cmd_exit (*fn)(struct exporting *x));
/* A number that the leading rank reads and sends to all ranks. */
int export_identity(struct exporting *x, uint64_t *out);
/* Collective: -ESTALE if ranks have different plans. */
int export_same_plan(struct exporting *x);
/* Send the checksums of all ranks to the leading rank. */
int export_share_sums(struct exporting *x);

/* Put the items that were left out, as lines and as the member left_out. */
void export_put_left(const struct exporting *x, struct out *o);
void export_put_left_json(const struct exporting *x, struct dcp_jsonw *w);
/* Print which items were written, and which not. */
enum cmd_exit export_report(const struct exporting *x);
