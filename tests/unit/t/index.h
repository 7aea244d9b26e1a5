/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_index: an index being written beside a file of 4096 bytes, and what is told to it.
 */
#pragma once
#include <stdint.h>

#include "core/base/arena.h"
#include "core/store/index/index.h"
#include "tests/unit/t/parse/dir.h"

#define U64S(...)                                                                              \
	(const uint64_t[])                                                                     \
	{                                                                                      \
		__VA_ARGS__                                                                    \
	}

struct t_index {
	struct t_dir dir;
	struct dcp_index_writer *w; /* of x.dcpx in dir */
	struct dcp_sink sink;
	uint32_t file; /* "a.bin", 4096 bytes */
	struct dcp_index *ix;
	struct dcp_arena arena;
};

/* cmocka's setup and teardown; *state is the struct. */
int t_index_setup(void **state);
int t_index_teardown(void **state);

/* Commit, and open again by path as another process would. */
void t_index_reopen(struct t_index *p);

struct dcp_row t_index_row(struct t_index *p, enum dcp_row_kind kind, const char *key);
struct dcp_tensor t_index_tensor(struct t_index *p, int64_t id);

/* One piece of a vector of bytes that lies in a file of its own. */
void t_tell_vector(const struct dcp_sink *s, const char *key, uint32_t file, uint64_t off,
		   uint64_t n, const char *alias_of);
/* A vector without pieces. */
void t_tell_bare_alias(const struct dcp_sink *s, const char *key, uint64_t n,
		       enum dcp_dtype dtype, const char *alias_of);
void t_tell_object(const struct dcp_sink *s, const char *key, const char *json);

/* Make the hash in an index true again, so that what lies behind that check is reached. */
int t_reseal(const char *path);

/* Change a database behind everybody's back, and its hash with it. */
void t_sql(const char *path, const char *text);
