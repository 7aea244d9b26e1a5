/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies: are elements that several files of a version hold the same in all of them?
 */
#pragma once
#include "tools/trust/walk.h"

struct copies_bad {
	const struct walk_key *key;
	uint32_t file,
		other; /* where its elements are read from; where they differ, or cannot be read */
	uint64_t off, n; /* bytes of the file that hold them, if it says so; 0: it does not */
	uint64_t first,
		differ;  /* the first that differs, of those elements; and how many bytes do */
	uint64_t bytes;  /* of those elements */
	const char *why; /* it cannot be read; NULL: it differs */
	struct dcp_version *with; /* the version as it is read from there; NULL: it cannot be */
};

struct copies {
	struct pick *p;
	const struct pick_opts *opts;
	const struct walk_keys *keys;
	unsigned jobs; /* tensors at a time, as in struct walk */
	uint64_t rate; /* bytes a second; 0: any */
	void (*bad)(void *ctx, const struct copies_bad *b); /* one thread at a time */
	void *ctx;
	uint64_t equal; /* copies that are the same */
};

/*
 * Read what is stored more than once. 0; -ENOMEM; -EIO: the version cannot be opened once more,
 * which was printed.
 */
int copies_check(struct copies *w);
