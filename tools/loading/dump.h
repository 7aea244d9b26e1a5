/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dump: what a rank has loaded, as one safetensors file: DIR/rank-00003-of-00008.safetensors.
 *
 * Begun before data moves, so that a full disk or a file that is there already are known early;
 * written under a temporary name, and called by its own when all ranks have written theirs.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "tools/load/dcpload.h"

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
