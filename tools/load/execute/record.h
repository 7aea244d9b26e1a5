/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record: digests of tensors, as dcpfs verify --record has written them.
 *
 * Lines of a digest (32 or 64 hex digits), two spaces and the key as a cell of TSV; or a statement
 * of in-toto (LOAD_STATEMENT), whose subjects are tensors.
 */
#pragma once
#include <stddef.h>

#include "core/base/arena.h"
#include "core/base/buf.h"

struct dcp_err;

#define LOAD_STATEMENT "https://in-toto.io/Statement/v1"

struct load_line {
	const char *key, *digest;
};

/* Zeroed at first. */
struct load_record {
	char *text;
	struct dcp_buf lines; /* struct load_line, by key, each key once */
	struct dcp_arena arena;
};

/* How long the digest is that @line begins with; 0: it is no line of a record. */
size_t load_record_digest(const char *line);
/*
 * -EINVAL: it is no record, and @err says where; -errno; -ENOMEM. Call load_record_finish() in any
 * case.
 */
int load_record_read(const char *path, struct load_record *out, struct dcp_err *err);
void load_record_finish(struct load_record *r);
/* NULL: the key is not recorded. */
const struct load_line *load_record_find(const struct load_record *r, const char *key);
