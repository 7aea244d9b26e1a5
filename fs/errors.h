/* SPDX-License-Identifier: Apache-2.0 */
/*
 * errors: what failed since the mount, for .dcpfs/errors.json. One line a (version, key), with
 * a count; bounded. Safe from any thread.
 */
#pragma once

struct dcp_jsonw;
struct dcpfs_errors;

#define DCPFS_ERRORS_MAX 10000 /* further ones are only counted */

struct dcpfs_errors *dcpfs_errors_create(void);
void dcpfs_errors_destroy(struct dcpfs_errors *e);

/* @key NULL: the version as a whole. The latest message stands. */
void dcpfs_errors_add(struct dcpfs_errors *e, const char *version, const char *key,
		      const char *message);

/* Append {"version", "key", "error", "count"} objects to an open array. */
void dcpfs_errors_write(struct dcpfs_errors *e, struct dcp_jsonw *w);
