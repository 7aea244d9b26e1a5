/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loading: one run of dcpfs load, shared by the verb (verbs/load.c), its report, its
 * trace and its dump.
 */
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
 * dump: what a rank has loaded, as one safetensors file: DIR/rank-00003-of-00008.safetensors.
 *
 * Begun before data moves, so that a full disk or a file that is there already are known early;
 * written under a temporary name, and called by its own when all ranks have written theirs.
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
	uint64_t bytes,
		left_out; /* of the file; parts that cannot be read or said in safetensors */
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
/* The parts as they are now, and down to the disk. */
int dump_write(struct dump *d, struct dcpload_plan *plan, struct dcpload_error *err);
int dump_publish(struct dump *d, struct dcpload_error *err);
/* Close; what was not published is removed. */
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
	uint64_t dump_ns, open_ns, plan_ns, execute_ns, staging; /* the most of any rank */
	struct dcp_http_counts http;
	double amplification; /* bytes read for each that is needed; once, if that is known */
};

struct loading {
	const struct load_opts *opts;
	struct dcpload_comm *comm;
	struct dcpload *ck;
	struct dcpload_plan *plan;
	struct progress progress;
	struct dcpload_error err;
	const char *doing;    /* for messages: between the steps of the library */
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
/* Collective: what @fn does on each rank, for as long as it takes; then as loading_agree(). */
int loading_step(struct loading *l, int (*fn)(struct loading *l, struct dcpload_error *err));
/* Say that --keys do. */
enum cmd_exit loading_matches_nothing(struct loading *l);
/* What @l->err says, by one of the ranks. */
enum cmd_exit loading_fail(const struct loading *l, enum cmd_exit code);

/* Events of an execution that a rank keeps for --trace. */
#define LOADING_EVENTS 65536

/* Collective. An existing file is replaced only if it is a trace. */
enum cmd_exit loading_check_trace(struct loading *l);
/* Collective: rank 0 writes what all ranks did when, if it is asked for. */
enum cmd_exit loading_trace(struct loading *l);
/* Collective: may rank 0 replace the file of --metrics? */
enum cmd_exit loading_check_metrics(struct loading *l);
/*
 * Rank 0, or a process that found no others, writes how it went, if that is asked for: it began
 * @began and ends with @code. Returns @code, or what writing gave.
 */
enum cmd_exit loading_metrics(const struct loading *l, enum cmd_exit code, int64_t began);
/* Collective: rank 0 prints what all ranks did. */
enum cmd_exit loading_report(struct loading *l);
