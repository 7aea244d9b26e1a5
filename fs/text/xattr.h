/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xattr: what getfattr -d shows of a tensor or object file: user.dcpfs.key, dtype, shape,
 * nbytes, version, format, path, files, alias_of, type, error; those that apply.
 */
#pragma once
#include <stdint.h>

struct dcp_buf;
struct dcpfs;

/* Append the value (no NUL). -ENODATA: the node has no attribute of that name. */
int dcpfs_xattr_get(struct dcpfs *fs, uint64_t ino, const char *name, struct dcp_buf *out);

/* Append the names, each with its NUL. Empty for nodes without attributes. */
int dcpfs_xattr_list(struct dcpfs *fs, uint64_t ino, struct dcp_buf *out);
