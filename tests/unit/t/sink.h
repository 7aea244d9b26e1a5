/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_sink: everything an adapter tells, copied and kept, and a plain slow reader for it.
 *
 * The sink does what the index does at the other end: it numbers files, and gives a tensor
 * whose pieces do not tile its shape or lie outside their file the reason as its error.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/err.h"
#include "core/model/tensor.h"

struct dcp_dir;
struct dcp_format;

struct t_fact {
	const char *name, *value;
};

struct t_sink {
	struct dcp_sink sink; /* hand out &s->sink */
	struct dcp_arena arena;
	const struct dcp_dir *dir; /* NULL: files are not looked at */
	struct dcp_tensor *tensor;
	struct dcp_object *object;
	struct t_fact *fact;
	const char **file;
	size_t ntensors, nobjects, nfacts, nfiles;
	size_t fail_at; /* that call (from 1) of the sink fails with -ENOSPC; 0: none */
	size_t calls;
};

void t_sink_init(struct t_sink *s, const struct dcp_dir *dir);
void t_sink_finish(struct t_sink *s);

/*
 * Open the directory @path, and load all of it into @s by *@format. NULL: by the family that takes
 * the directory, which *@format is then. Returns what load() gave; the caller closes in either
 * case.
 */
int t_sink_open(struct t_sink *s, const char *path, struct dcp_dir *dir,
		const struct dcp_format **format, struct dcp_err *err);
void t_sink_close(struct t_sink *s, struct dcp_dir *dir);

struct t_dir;
/* List @tree as @dir, find its family, and load all of it into @s; a failure fails the test. */
void t_sink_load(const struct t_dir *tree, struct dcp_dir *dir, struct t_sink *s);

/* The last told of that key, or NULL. */
const struct dcp_tensor *t_sink_tensor(const struct t_sink *s, const char *key);
const struct dcp_object *t_sink_object(const struct t_sink *s, const char *key);
const char *t_sink_fact(const struct t_sink *s, const char *name);

/*
 * Row-major little-endian bytes of @t, one element at a time; freed by the caller. NULL with
 * the reason in @err when they cannot be read.
 */
char *t_sink_read(const struct t_sink *s, const struct dcp_tensor *t, size_t *n,
		  struct dcp_err *err);
