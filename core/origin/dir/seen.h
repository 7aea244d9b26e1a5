/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seen: what a scan of directories depended on: which ones were listed, which files were read or
 * stat'ed, and the identity (inode, size, times) of each just before.
 *
 * As long as all of these are unchanged, another scan would find the same: checking costs one
 * statx each, instead of a listing and a stat of every entry. Missed are only changes of size or
 * kind, in place, of files that were merely listed.
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
	bool failed;          /* incomplete: no memory, or more than DCP_SEEN_MAX */
	int shortage;         /* -EMFILE, -ENFILE or -ENOMEM: something could not be opened */
};

struct dcp_look {
	struct dcp_file_id id; /* without a name; inode 0: nothing was there */
	bool listed;           /* a directory, or whatever the source is */
};

void dcp_seen_finish(struct dcp_seen *s);

/* Note the current identity of @name in the directory @dirfd, whose path is @above (NULL: @name
 * is a path); of several notes the first stays. @s may be NULL. */
void dcp_seen_note(struct dcp_seen *s, int dirfd, const char *above, const char *name,
		   bool listed);

/* Opening something gave @code. If that was a lack of descriptors or memory, the thing may exist
 * though it was not seen, and s->shortage is set. @s may be NULL. Returns @code. */
int dcp_seen_opening(struct dcp_seen *s, int code);

size_t dcp_seen_count(const struct dcp_seen *s);
const char *dcp_seen_path(const struct dcp_seen *s, size_t i);
const struct dcp_look *dcp_seen_at(const struct dcp_seen *s, size_t i);

/* Is everything unchanged? Network file systems are made to ask their server. @calls is raised by
 * the number of system calls this took. */
bool dcp_seen_same(const struct dcp_seen *s, uint64_t *calls);
