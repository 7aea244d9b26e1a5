/* SPDX-License-Identifier: Apache-2.0 */
/* loading: one run of dcpfs load, shared by the verb (verbs/load.c), its report, its trace and its
 * dump. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/remote/http.h"
#include "tools/cmd.h"
#include "tools/load/comm/comm.h"
#include "tools/load/dcpload.h"
#include "tools/opt.h"
#include "tools/out.h"

/*
 * dump: the part of a rank as one safetensors file: DIR/rank-00003-of-00008.safetensors.
 *
 * It is begun before data moves, so that a full disk or an existing file is noticed early. It has a
 * temporary name until all ranks have written their files.
 */

struct dump_of {
	const char *dir, *version, *layout;
	const char *metadata; /* as dcp_safetensors_begin_meta() takes it */
	uint32_t rank, ranks; /* of the layout */
	uint32_t withheld;    /* permission bits that neither the file nor the directory gets */
	bool force;           /* replace a file of that name */
};

struct dump {
	int dir, file; /* descriptors; -1: none */
	char path[512];
	char name[48], temp[72]; /* in the directory; temp "": the file has no name */
	struct dcp_buf header;
	uint64_t bytes, left_out; /* bytes of the file; parts unreadable or unfit for it */
	bool force;
};

#define DUMP_INIT                                                                              \
	{                                                                                      \
		.dir = -1, .file = -1                                                          \
	}

/* Each returns 0, or a negative errno with a line in @err; none is collective. The plan is
 * finished. */
int dump_begin(struct dump *d, const struct dump_of *of, const struct dcpload_plan *plan,
	       struct dcpload_error *err);
/* Write the parts as they are now, and sync the file. */
int dump_write(struct dump *d, struct dcpload_plan *plan, struct dcpload_error *err);
int dump_publish(struct dump *d, struct dcpload_error *err);
/* Close; a file that was not published is removed. */
void dump_end(struct dump *d);

struct load_opts {
	const char *version, *layout, *rank, *dump, *trace, *device, *metrics;
	struct opt_texts keys, skip, ignore;
	int comm, io, exchange, dtype, form;
	uint64_t staging, threads, timeout, repeat, coordinator;
	const char *verify; /* a record of dcpfs verify, or NULL */
	bool strict, partial, check, cold, force, weights_only, insecure, no_cache;
};

/* Of all ranks. */
struct loading_totals {
	uint64_t parts, needed, read, exchanged, dumped, undumped;
	uint64_t dump_ns, open_ns, plan_ns, execute_ns, staging; /* the largest of all ranks */
	struct dcp_http_counts http;
	double amplification; /* bytes read for each needed byte; 1 if it is known to be once */
};

struct loading {
	const struct load_opts *opts;
	struct dcpload_comm *comm;
	struct dcpload *ck;
	struct dcpload_plan *plan;
	struct progress progress;
	struct dcpload_error err;
	const char *doing;    /* for messages: the step between calls of the library */
	uint32_t rank, ranks; /* of the layout */
	const char *layout;
	char named[32]; /* the name of the default layout, when none was given */
	int out;        /* of out_divert() */
	struct dump dump;
	uint64_t dump_ns;
	struct loading_totals total; /* when @reported */
	bool reported;
	uint64_t ignored[OPT_MAX_TEXTS]; /* keys that each of opts->ignore names */
};

/* Names of enum dcpload_io and enum dcpload_exchange; NULL at the end. */
extern const char *const loading_ios[], *const loading_exchanges[];

/* Collective: milliseconds that ranks wait for each other. */
int loading_timeout(const struct loading *l);
/* Collective: load_agree() on @rc and @l->err. */
int loading_agree(struct loading *l, int rc);
/* Collective: call @fn on each rank, however long it takes, then agree as loading_agree() does. */
int loading_step(struct loading *l, int (*fn)(struct loading *l, struct dcpload_error *err));
/* Print that --keys match nothing. */
enum cmd_exit loading_matches_nothing(struct loading *l);
/* Print @l->err, on one of the ranks. */
enum cmd_exit loading_fail(const struct loading *l, enum cmd_exit code);

/* Events of an execution that a rank keeps for --trace. */
#define LOADING_EVENTS 65536

/* Collective. An existing file is replaced only if it is a trace. */
enum cmd_exit loading_check_trace(struct loading *l);
/* Collective: rank 0 writes the trace of all ranks, if it is asked for. */
enum cmd_exit loading_trace(struct loading *l);
/* Collective: may rank 0 replace the file of --metrics? */
enum cmd_exit loading_check_metrics(struct loading *l);
/* Rank 0, or a process without a job, writes the metrics if they are asked for. The load began at
 * @began and ends with @code. Returns @code, or the error of writing. */
enum cmd_exit loading_metrics(const struct loading *l, enum cmd_exit code, int64_t began);
/* Collective: rank 0 prints the report of all ranks. */
enum cmd_exit loading_report(struct loading *l);
