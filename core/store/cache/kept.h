/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kept: what was found out about a version by reading all of it, beside its index, for as long
 * as its files do not change.
 *
 * A file has the extension DCP_CACHE_KEPT_EXT, and in it a header, which says of which files of
 * the version and by which release of dcpfs it was made, and the bytes. Any difference, and
 * damage, means that there is none.
 */
#pragma once
#include <stddef.h>

struct dcp_buf;
struct dcp_version;

/* The bytes called @name ("stats") of @v into @out. -ENOENT: there are none; -ENOMEM. */
int dcp_kept_read(const struct dcp_version *v, const char *name, struct dcp_buf *out);

/* Keep them. Where the index is in memory, or nothing can be written, they are not kept:
 * nothing depends on it. */
void dcp_kept_write(const struct dcp_version *v, const char *name, const void *p, size_t n);
