/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compare: the tensors of two versions by key.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/model/measure/stats.h"
#include "tools/out.h"
#include "tools/trust/walk.h"

enum compare_state {
	CMP_EQUAL,
	CMP_CLOSE,
	CMP_DIFFERS,
	CMP_DTYPE,
	CMP_SHAPE,
	CMP_ONLY_A,
	CMP_ONLY_B,
	CMP_UNREAD,
	CMP_OBJECT
};
#define COMPARE_STATES (CMP_OBJECT + 1)
extern const char *const compare_states[];

/* A key of either side. */
struct pair {
	const char *name;
	const struct walk_key *a, *b;
	enum compare_state state;
	struct dcp_difference d;
	uint64_t tensors; /* of a group */
};

struct comparing {
	struct pick *p[2];
	const struct walk_keys *keys[2];
	struct dcp_tolerance tolerance;
	bool tolerates, quick; /* quick: up to the first difference */
	unsigned jobs;
	uint64_t rate; /* bytes of one side a second; 0: any */

	struct pair *pairs; /* malloc'ed, by key */
	size_t n;
	uint64_t
		skipped; /* bytes of one side that were not read, as digests of both are known */
	enum cmd_exit code; /* of what cannot be read, which was said */
};

/* Fill the fields from pairs on. -ENOMEM. */
int compare_run(struct comparing *w);
/* Order of pairs. */
int compare_by_name(const void *a, const void *b);

/* A row of a list of these fields. @kind: "tensor" or "object"; @quick: as it was compared. */
extern const struct out_field compare_fields[];
void compare_put_row(struct out *o, const struct pair *p, const char *kind, bool quick);

/*
 * A drawing of pairs that are not in groups: layers from left to right, their parameters from
 * above; darker where more is changed. -ENOMEM.
 */
int compare_strip(const struct comparing *w, const char *title, struct dcp_buf *out);
