/* SPDX-License-Identifier: Apache-2.0 */
/*
 * groups: which files of a directory are versions, or parts of one, by themselves?
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/base/intern.h"
#include "core/format/format.h"

struct dcp_dirent;

struct dcp_group {
	const struct dcp_format *format;
	uint32_t name; /* in names */
};

struct dcp_groups {
	const struct dcp_group *at;
	size_t n;
	struct dcp_intern names;
	struct dcp_buf list; /* struct dcp_group */
};

/*
 * The groups that families of @all see in the files of @dir, each once: those of the first family
 * that says MANY or YES and claims the file. Links, and files for which @is_text_link (may be NULL)
 * is true, name what is there anyway: links count when there is nothing else. @g is empty before,
 * to be finished in any case. -ENOMEM.
 */
int dcp_groups_list(dcp_families all, const struct dcp_dir *dir,
		    bool (*is_text_link)(const struct dcp_dir *, const struct dcp_dirent *),
		    struct dcp_groups *g);
void dcp_groups_finish(struct dcp_groups *g);
