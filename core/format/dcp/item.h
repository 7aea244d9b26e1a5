/* SPDX-License-Identifier: Apache-2.0 */
/*
 * item: the data files of a DCP directory, opened to look at single items.
 *
 * A few descriptors are kept open: items of one file tend to come together.
 */
#pragma once
#include <stdint.h>

#include "core/base/buf.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/origin/source.h"

struct dcp_err;

#define DCP_TITEM_SLOTS 16

struct dcp_titem_files {
	const struct dcp_dir *dir;
	struct {
		uint64_t number; /* 1 + number of the file; 0: free */
		struct dcp_input input;
	} slot[DCP_TITEM_SLOTS];
	struct dcp_buf claimed; /* uint64_t per file: bytes of all items looked at */
};

void dcp_titem_files_init(struct dcp_titem_files *f, const struct dcp_dir *dir);
void dcp_titem_files_finish(struct dcp_titem_files *f);

/* The bytes of an item, decoded if it is compressed. Valid until the next item or finish. */
struct dcp_titem {
	struct dcp_source file, window, src; /* src is what to read */
	struct dcp_buf decoded;
};

/*
 * Look at [@off, @off + @nbytes) of file @number, called @name. A compressed item may decode to
 * @limit bytes. The item must be finished also after a failure. -E2BIG: the items of this file
 * are together many times longer than it, so they overlap.
 */
int dcp_titem_open(struct dcp_titem_files *f, uint32_t number, const char *name, uint64_t off,
		   uint64_t nbytes, enum dcp_filter filter, uint64_t limit,
		   struct dcp_titem *out, struct dcp_err *err);
void dcp_titem_finish(struct dcp_titem *item);
