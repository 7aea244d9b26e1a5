/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record: the digests of tensors as a file, in a form that tools/load/load.h reads.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/store/cache/cache.h"
#include "tools/pick.h"

/* The digest by XXH3 of a tensor, kept beside the index as "digests". */
struct record_kept {
	struct dcp_kept_head head;
	char text[40]; /* 32 digits and a NUL */
};

struct record_tensor {
	const char *key, *digest;
};

struct record {
	const struct pick *p; /* the version is open */
	const char *path;     /* "-": to standard output */
	bool in_toto;         /* a statement, instead of lines */
	bool sha256;          /* what the digests are; otherwise XXH3 */
	const struct record_tensor *tensors;
	size_t n;
	uint64_t nbytes; /* of all tensors */
};

/*
 * May the file at @path be written? Not in @source, nor over a file that is no record. The reason
 * is printed.
 */
enum cmd_exit record_check(const char *path, const char *source);
enum cmd_exit record_write(const struct record *r);
