/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/rights.h"

#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"

enum { OWNER = 0400, GROUP = 0040, OTHER = 0004 };

/* The id that stat() and access control lists show for an id that is not mapped in this user
 * namespace. */
enum { OVERFLOW_ID = 65534 };

static bool is_unmapped(uint32_t id)
{
	return id == OVERFLOW_ID || id == UINT32_MAX;
}

/* An id that is not mapped here matches no user. So if its entry denies, no later entry may allow
 * its users. */
static struct dcp_rights drop_unmapped(struct dcp_rights r)
{
	if (is_unmapped(r.uid) && !(r.mode & OWNER))
		r.mode = 0;
	if (is_unmapped(r.gid) && !(r.mode & GROUP))
		r.mode &= ~(uint32_t)OTHER;
	return r;
}

static bool has_bits(uint32_t bits, uint32_t need)
{
	return (bits & need) == need;
}

struct dcp_rights dcp_rights_of_mode(uint32_t uid, uint32_t gid, uint32_t mode, uint32_t need)
{
	struct dcp_rights r = { uid, gid, 0 };

	r.mode |= has_bits(mode >> 6, need) ? OWNER : 0;
	r.mode |= has_bits(mode >> 3, need) ? GROUP : 0;
	r.mode |= has_bits(mode, need) ? OTHER : 0;
	return drop_unmapped(r);
}

/* ---- several ---- */

/* What distinguishes two users in the rights of two files. */
struct user {
	uint32_t uid;
	bool in_a, in_b; /* member of the group of the first, of the second */
};

static bool lets_user(const struct dcp_rights *r, uint32_t uid, bool member)
{
	return r->mode & (uid == r->uid ? OWNER : member ? GROUP : OTHER);
}

/* All users whose rights may differ: calls @fn for each. */
static void each_user(const struct dcp_rights *a, const struct dcp_rights *b, uint32_t uid,
		      void (*fn)(void *ctx, const struct user *u), void *ctx)
{
	uint32_t uids[4] = { a->uid, b->uid, uid, 1 };

	while (uids[3] == a->uid || uids[3] == b->uid || uids[3] == uid)
		uids[3]++; /* another user */
	for (size_t i = 0; i < DCP_LEN(uids); i++)
		for (unsigned in = 0; in < 4; in++) {
			struct user u = { uids[i], in & 1, in >> 1 };

			if (a->gid != b->gid || u.in_a == u.in_b)
				fn(ctx, &u);
		}
}

/* The common rights, expressed with the owner and the group of @r. */
struct saying {
	const struct dcp_rights *a, *b;
	struct dcp_rights r;
	uint32_t worth; /* how many users may read, weighted by how common their class is */
};

static uint32_t class_of(const struct saying *s, const struct user *u)
{
	return u->uid == s->r.uid                            ? OWNER
	       : (s->r.gid == s->a->gid ? u->in_a : u->in_b) ? GROUP
							     : OTHER;
}

static void deny_user(void *ctx, const struct user *u)
{
	struct saying *s = ctx;

	if (!lets_user(s->a, u->uid, u->in_a) || !lets_user(s->b, u->uid, u->in_b))
		s->r.mode &= ~class_of(s, u);
}

static void count_user(void *ctx, const struct user *u)
{
	struct saying *s = ctx;
	bool named = u->uid == s->a->uid || u->uid == s->b->uid;

	if (s->r.mode & class_of(s, u) && u->uid) /* root needs no rights */
		s->worth += named ? 1 : u->in_a || u->in_b ? 4 : 16;
}

/* The most permissive rights with that owner and that group, which is one of the two groups. */
static struct saying make_saying(const struct dcp_rights *a, const struct dcp_rights *b,
				 uint32_t uid, uint32_t gid)
{
	struct saying s = { a, b, { uid, gid, OWNER | GROUP | OTHER }, 0 };

	each_user(a, b, uid, deny_user, &s);
	each_user(a, b, uid, count_user, &s);
	return s;
}

struct dcp_rights dcp_rights_meet(struct dcp_rights a, struct dcp_rights b)
{
	const uint32_t uids[] = { a.uid, b.uid, 0 }, gids[] = { a.gid, b.gid };
	struct saying best;

	if (a.mode == DCP_RIGHTS_ALL.mode || dcp_rights_equal(a, b))
		return b;
	if (b.mode == DCP_RIGHTS_ALL.mode)
		return a;
	best = make_saying(&a, &b, a.uid, a.gid);
	for (size_t i = 1; i < DCP_LEN(uids) * DCP_LEN(gids); i++) {
		struct saying s =
			make_saying(&a, &b, uids[i / DCP_LEN(gids)], gids[i % DCP_LEN(gids)]);

		if (s.worth > best.worth)
			best = s;
	}
	return best.r;
}

struct dcp_rights dcp_rights_as(struct dcp_rights r, uint32_t uid, uint32_t gid)
{
	struct dcp_rights to = { uid, gid, DCP_RIGHTS_ALL.mode };

	return make_saying(&r, &to, uid, gid).r;
}

bool dcp_rights_equal(struct dcp_rights a, struct dcp_rights b)
{
	return a.uid == b.uid && a.gid == b.gid && a.mode == b.mode;
}

/* ---- access control lists ---- */

enum { ACL_VERSION = 2, ACL_HEAD = 4, ACL_ENTRY = 8 };
enum {
	ACL_USER_OBJ = 0x01,
	ACL_USER = 0x02,
	ACL_GROUP_OBJ = 0x04,
	ACL_GROUP = 0x08,
	ACL_MASK = 0x10,
	ACL_OTHER = 0x20,
};

struct entry {
	uint32_t tag, perm, id;
};

static struct entry entry_at(const uint8_t *p)
{
	return (struct entry){ dcp_load_le16(p), dcp_load_le16(p + 2), dcp_load_le32(p + 4) };
}

/* The mode of the entries for owner, group and others, with the mask of all groups and named
 * users. */
static uint32_t mode_in(const uint8_t *p, const uint8_t *end, uint32_t *mask)
{
	uint32_t mode = 0;

	*mask = 07;
	for (; p < end; p += ACL_ENTRY) {
		struct entry e = entry_at(p);

		mode |= e.tag == ACL_USER_OBJ    ? (e.perm & 07) << 6
			: e.tag == ACL_GROUP_OBJ ? (e.perm & 07) << 3
			: e.tag == ACL_OTHER     ? e.perm & 07
						 : 0;
		*mask = e.tag == ACL_MASK ? e.perm & 07 : *mask;
	}
	return mode & (0707 | *mask << 3);
}

int dcp_rights_of_acl(uint32_t uid, uint32_t gid, const void *acl, size_t n, uint32_t need,
		      struct dcp_rights *out)
{
	const uint8_t *p = (const uint8_t *)acl + ACL_HEAD, *end = (const uint8_t *)acl + n;
	uint32_t mask;

	if (n < ACL_HEAD || (n - ACL_HEAD) % ACL_ENTRY || dcp_load_le32(acl) != ACL_VERSION)
		return -EINVAL;
	*out = dcp_rights_of_mode(uid, gid, mode_in(p, end, &mask), need);
	for (; p < end; p += ACL_ENTRY) {
		struct entry e = entry_at(p);
		struct dcp_rights denied = { uid, e.id, OWNER | OTHER };

		if (has_bits(e.perm & mask, need) || (e.tag == ACL_USER && e.id == uid))
			continue; /* of several entries for a user the owner's entry counts */
		if (e.tag == ACL_USER)
			denied = (struct dcp_rights){ e.id, gid, GROUP | OTHER };
		if (e.tag == ACL_USER || e.tag == ACL_GROUP)
			*out = dcp_rights_meet(*out, drop_unmapped(denied));
	}
	return 0;
}

/* XDR: a count, then of each entry type, flags, mask, and a counted name padded to four. */
bool dcp_rights_nfs4_is_mode(const void *acl, size_t n)
{
	static const char *const special[] = { "OWNER@", "GROUP@", "EVERYONE@" };
	const uint8_t *p = acl, *end = p + n;
	uint32_t left;

	if (n < 4)
		return false;
	left = dcp_load_be32(p);
	for (p += 4; left; left--) {
		bool known = false;
		uint32_t length;

		if (end - p < 16)
			return false;
		length = dcp_load_be32(p + 12);
		p += 16;
		if (length > 64 || end - p < (ptrdiff_t)(length + 3) / 4 * 4)
			return false;
		for (size_t i = 0; i < DCP_LEN(special); i++)
			known |= length == strlen(special[i]) && !memcmp(p, special[i], length);
		if (!known)
			return false;
		p += (length + 3) / 4 * 4;
	}
	return p == end;
}
