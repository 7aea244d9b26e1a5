/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_write: what a writer's plan says, as files in memory.
 */
#pragma once
#include "core/base/buf.h"
#include "core/write/write.h"

#define T_WRITE_MAX 64

struct t_written {
	char name[128];
	bool last;
	struct dcp_buf bytes;
};

struct t_write {
	struct t_written file[T_WRITE_MAX];
	size_t nfiles, nruns, ncrcs;
	const struct dcp_write_set *set;
	uint32_t crc[1024];
	uint64_t length[1024];
	struct {
		size_t file, run;
		uint64_t off;
		uint32_t before;
	} patch[2048];
};

/*
 * Run the plan of a format; byte @i of a part of tensor @t is t_write_byte(). Returns what it gave.
 */
int t_write_run(struct t_write *w, const struct dcp_write_format *f,
		const struct dcp_write_set *set, const struct dcp_write_opts *opts,
		struct dcp_err *err);
void t_write_finish(struct t_write *w);
unsigned char t_write_byte(size_t tensor, size_t part, uint64_t i);
/* For a set: how many of them are 0x80 or more. */
int t_write_high(void *ctx, size_t tensor, size_t part, uint64_t off, size_t n, uint64_t *count,
		 struct dcp_err *err);

/* The file of that name; fails the test when there is none. */
const struct t_written *t_write_file(const struct t_write *w, const char *name);

/* A whole tensor of one dimension or two (@cols not 0), for tables. */
#define T_WRITE_WHOLE(key_, dtype_, size_, rows, cols)                                         \
	{                                                                                      \
		.key = key_, .path = (const char *const[]){ key_ }, .npath = 1,                \
		.dtype = dtype_, .itemsize = size_, .ndim = (cols) ? 2 : 1,                    \
		.shape = (const uint64_t[]){ rows, cols },                                     \
		.parts =                                                                       \
			&(const struct dcp_write_part){ .ndim = (cols) ? 2 : 1,                \
							.lo = (const uint64_t[]){ 0, 0 },      \
							.shape = (const uint64_t[]){ rows,     \
										     cols } }, \
		.nparts = 1, .same_as = DCP_WRITE_ALONE                                        \
	}
