/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program: which variables does a Paddle program store, and in which order?
 *
 * A .pdiparams has tensors and no names: they are the program's persistable variables, sorted
 * by name. Two forms of program name them:
 *
 *   .pdmodel  protobuf ProgramDesc: blocks -> vars; feed, fetch, readers and raw ones are not
 *             stored
 *   .json     PIR: program.regions[].blocks[].ops[], operation "p" is a parameter, its name is
 *             A[3], its type O.TT.D
 *
 * Sources: paddle/phi/core/framework/framework.proto, paddle/fluid/pir/serialize_deserialize.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"

struct dcp_err;
struct dcp_source;

struct dcp_paddle_var {
	const char *name;    /* UTF-8 */
	const int64_t *dims; /* -1: any; NULL: the program does not say */
	uint32_t ndim;
};

struct dcp_paddle_program {
	struct dcp_paddle_var *vars; /* sorted by name, each once */
	size_t n;
	struct dcp_arena arena;
};

/*
 * Read a program of either form: JSON begins with '{', anything else is taken as protobuf.
 * Returns 0, -EBADMSG, -E2BIG, -ENOMEM, or what the source gave. @out is to be finished after
 * success.
 */
int dcp_paddle_program_read(const struct dcp_source *src, struct dcp_paddle_program *out,
			    struct dcp_err *err);
void dcp_paddle_program_finish(struct dcp_paddle_program *p);
