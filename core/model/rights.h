/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rights: who may read something: one owner, one group, and everybody else, as the mode of a
 * file says it.
 *
 * What is made of several files may be read by those who may read each of them. One owner and
 * one group cannot always express that; then the result is stricter, never laxer: whoever it
 * lets read may read every one of the files. Root is treated like any other user here; the
 * kernel never refuses it.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_rights {
	uint32_t uid, gid;
	uint32_t mode; /* of 0444: may the owner, the group, everybody else? */
};

#define DCP_RIGHTS_ALL ((struct dcp_rights){ 0, 0, 0444 })

enum {
	DCP_NEED_SEARCH = 1,
	DCP_NEED_WRITE = 2,
	DCP_NEED_READ = 4
}; /* permission bits; a directory's may be several */

/* Who has all of @need by the mode of a file. */
struct dcp_rights dcp_rights_of_mode(uint32_t uid, uint32_t gid, uint32_t mode, uint32_t need);

/*
 * The same with the access control list @acl of @n bytes, in the form of
 * system.posix_acl_access: users whom an entry denies are denied; a user or group allowed only
 * by a named entry is left out. -EINVAL: it is not such a list.
 */
int dcp_rights_of_acl(uint32_t uid, uint32_t gid, const void *acl, size_t n, uint32_t need,
		      struct dcp_rights *out);

/* Does system.nfs4_acl name only owner, group and everyone, as a mode does? */
bool dcp_rights_nfs4_is_mode(const void *acl, size_t n);

/* Those who may read both. */
struct dcp_rights dcp_rights_meet(struct dcp_rights a, struct dcp_rights b);

/* The same rights or fewer, expressed with another owner and group. */
struct dcp_rights dcp_rights_as(struct dcp_rights r, uint32_t uid, uint32_t gid);

bool dcp_rights_equal(struct dcp_rights a, struct dcp_rights b);
