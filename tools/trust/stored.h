/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stored: do the files of a version have what they say of themselves?
 *
 * ZIP archives have a CRC-32 of each member, also those that stand in a row, as in .distcp files. 0
 * means that the writer computed none, as torch does when it is told so.
 */
#pragma once
#include <stdint.h>

#include "tools/pick.h"

/* Bytes of a file that are not what their checksum says, or that cannot be read. */
struct stored_bad {
	uint32_t file;
	uint64_t off, n;
	const char *why; /* as long as the call takes */
};

struct stored {
	struct pick *p;
	unsigned jobs; /* files at a time, as in struct walk */
	uint64_t rate; /* bytes a second; 0: any */
	void (*bad)(void *ctx, const struct stored_bad *b); /* one thread at a time */
	void *ctx;
	uint64_t checked; /* members that were as their checksums say */
};

/* Read all files that have checksums. 0 or -ENOMEM. */
int stored_check(struct stored *w);
