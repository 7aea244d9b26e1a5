/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rights: the users who may read: one owner, one group, and all others, as in the mode of a file.
 *
 * A tensor made of several files may be read by users who may read each of the files. One owner and
 * one group cannot always express that; then the result is stricter, never laxer: every user that
 * it allows may read all of the files. Root is treated like any other user here; the kernel never
 * refuses root.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_rights {
	uint32_t uid, gid;
	uint32_t mode; /* bits of 0444: owner, group, everybody else */
};

#define DCP_RIGHTS_ALL ((struct dcp_rights){ 0, 0, 0444 })

enum {
	DCP_NEED_SEARCH = 1,
	DCP_NEED_WRITE = 2,
	DCP_NEED_READ = 4
}; /* permission bits; a directory's may be several */

/* The rights of users who have all permissions @need by the mode of a file. */
struct dcp_rights dcp_rights_of_mode(uint32_t uid, uint32_t gid, uint32_t mode, uint32_t need);

/*
 * The same with the access control list @acl of @n bytes, in the form of system.posix_acl_access. A
 * user whom an entry denies is denied; a user or group that only a named entry allows is left out.
 * -EINVAL: @acl is not such a list.
 */
int dcp_rights_of_acl(uint32_t uid, uint32_t gid, const void *acl, size_t n, uint32_t need,
		      struct dcp_rights *out);

/* Does system.nfs4_acl name only owner, group and everyone, as a mode does? */
bool dcp_rights_nfs4_is_mode(const void *acl, size_t n);

/* The rights of users who have both @a and @b. */
struct dcp_rights dcp_rights_meet(struct dcp_rights a, struct dcp_rights b);

/* The same rights or fewer, expressed with the given owner and group. */
struct dcp_rights dcp_rights_as(struct dcp_rights r, uint32_t uid, uint32_t gid);

bool dcp_rights_equal(struct dcp_rights a, struct dcp_rights b);
