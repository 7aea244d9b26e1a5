/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stored: do the files of a version have what they say of themselves?
 *
 * ZIP archives have a CRC-32 of each member, also those that stand in a row, as in .distcp files. 0
 * means that the writer computed none, as torch does when it is told so.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "tools/pick.h"
#include "tools/trust/walk.h"

/*
 * Bytes of a file that are not what their checksum says, or that cannot be read: told for each
 * tensor that lies in them, with whether another file has the same bytes; or once.
 */
struct stored_bad {
	const char *key; /* NULL: no tensor */
	uint32_t file;
	uint64_t off, n;
	const char *why; /* as long as the call takes */
	bool first;      /* the first time that these bytes are told */
};

struct stored {
	struct pick *p;
	const struct walk_keys *keys;
	unsigned jobs; /* files at a time, as in struct walk */
	uint64_t rate; /* bytes a second; 0: any */
	void (*bad)(void *ctx, const struct stored_bad *b); /* by the calling thread */
	void *ctx;
	uint64_t checked; /* members that were as their checksums say */
};

/* Read all files that have checksums. 0 or -ENOMEM. */
int stored_check(struct stored *w);
