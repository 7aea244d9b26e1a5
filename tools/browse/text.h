/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text: pages of dcpfs browse that say what one key is. Foreign text in them is spelled so that it
 * may be shown.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

struct dcp_measures;
struct pick;
struct walk_key;

/* A key of the version: a tensor, or (tensor NULL) an object. */
struct browse_item {
	const char *key;
	const struct walk_key *tensor;
	int64_t id;
	uint64_t nbytes;
};

struct browse_text {
	struct dcp_buf text;  /* lines, each with its NUL; out of memory: dcp_buf_error() */
	struct dcp_buf lines; /* where each begins, as uint64_t */
};

/* These replace what is in @t. Of a tensor: which bytes of which files make it up. */
void browse_plan(struct browse_text *t, const struct pick *p, const struct browse_item *item);
/*
 * Its statistics, which are kept as those of dcpfs stats, and, if asked for, a @histogram, which
 * reads all of the tensor. False: that was given up on the screen, or cannot be done, and @said is
 * why.
 */
bool browse_numbers(struct browse_text *t, const struct pick *p, struct dcp_measures *known,
		    const struct browse_item *item, bool histogram, char *said, size_t size);
/* An object as JSON, a line for each member and element. */
void browse_object(struct browse_text *t, const struct pick *p, const struct browse_item *item);
