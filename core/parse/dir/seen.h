/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seen: what a look at directories depended on: which ones were listed, which files were
 * read or asked for their times, and how each looked just before.
 *
 * As long as all of them look the same, another look would find the same: asking again is one
 * statx each, instead of a listing and a stat of every entry. What escapes that are files that
 * were only listed, when their size or kind changes in place.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/intern.h"
#include "core/model/tensor.h"

#define DCP_SEEN_MAX 100000

struct dcp_seen {
	struct dcp_intern paths;
	struct dcp_buf looks; /* struct dcp_look, by the numbers of paths */
	int64_t newest_ns;    /* the last change of any of them */
	bool failed;          /* not all is here: no memory, or more than DCP_SEEN_MAX */
	int shortage;         /* -EMFILE, -ENFILE or -ENOMEM: something could not be opened */
};

struct dcp_look {
	struct dcp_file_id id; /* without a name; inode 0: nothing was there */
	bool listed;           /* a directory, or whatever the source is */
};

void dcp_seen_finish(struct dcp_seen *s);

/* Note how @name in the directory @dirfd, called @above (NULL: @name is a path), looks now;
 * of several notes the first stays. @s may be NULL. */
void dcp_seen_note(struct dcp_seen *s, int dirfd, const char *above, const char *name,
		   bool listed);

/* Opening something gave @code. For want of descriptors or memory it was not seen, though it may
 * well be there: s->shortage tells. @s may be NULL. Returns @code. */
int dcp_seen_opening(struct dcp_seen *s, int code);

size_t dcp_seen_count(const struct dcp_seen *s);
const char *dcp_seen_path(const struct dcp_seen *s, size_t i);
const struct dcp_look *dcp_seen_at(const struct dcp_seen *s, size_t i);

/* Does everything look as it did? Network file systems are made to ask their server. @calls is
 * raised by the number of calls that took. */
bool dcp_seen_same(const struct dcp_seen *s, uint64_t *calls);
