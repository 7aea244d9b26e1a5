/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/base/bytes.h"
#include "core/model/rights.h"

/* ---- what the kernel would say, by brute force ---- */

enum { USERS = 6, GROUPS = 4 };

/* A user is a number and a set of groups; here root is a user like others. */
static bool lets(struct dcp_rights r, uint32_t uid, unsigned groups)
{
	bool member = r.gid < GROUPS && groups >> r.gid & 1;

	return r.mode & (uid == r.uid ? 0400 : member ? 0040 : 0004);
}

static uint32_t seed = 1;

static uint32_t draw(uint32_t n)
{
	seed = seed * 1664525 + 1013904223;
	return (seed >> 8) % n;
}

static struct dcp_rights some_rights(void)
{
	return dcp_rights_of_mode(draw(USERS - 1), draw(GROUPS), draw(01000), DCP_NEED_READ);
}

static void random_rights_never_grow(void **state)
{
	(void)state;
	for (int round = 0; round < 20000; round++) {
		struct dcp_rights row[5], all = DCP_RIGHTS_ALL;
		size_t n = 1 + draw(DCP_LEN(row));

		for (size_t i = 0; i < n; i++) {
			row[i] = some_rights();
			all = dcp_rights_meet(all, row[i]);
		}
		for (uint32_t uid = 0; uid < USERS; uid++)
			for (unsigned groups = 0; groups < 1 << GROUPS; groups++)
				for (size_t i = 0; i < n && lets(all, uid, groups); i++)
					assert_true(lets(row[i], uid, groups));
	}
}

static void renamed_owners_never_get_more(void **state)
{
	(void)state;
	for (int round = 0; round < 20000; round++) {
		struct dcp_rights r = some_rights();
		struct dcp_rights as = dcp_rights_as(r, draw(USERS), draw(GROUPS));

		for (uint32_t uid = 0; uid < USERS; uid++)
			for (unsigned groups = 0; groups < 1 << GROUPS; groups++)
				assert_true(!lets(as, uid, groups) || lets(r, uid, groups));
	}
}

static void rights_of_two_files_meet(void **state)
{
	static const struct {
		const char *what;
		struct dcp_rights a, b, want;
	} rows[] = {
		{ "alike", { 5, 7, 0440 }, { 5, 7, 0440 }, { 5, 7, 0440 } },
		{ "one owner", { 5, 7, 0444 }, { 5, 7, 0400 }, { 5, 7, 0400 } },
		{ "open to all", { 5, 7, 0444 }, { 6, 8, 0440 }, { 6, 8, 0440 } },
		{ "a team's directory", { 6, 7, 0440 }, { 5, 7, 0440 }, { 0, 7, 0040 } },
		{ "one is private", { 5, 7, 0400 }, { 5, 8, 0440 }, { 5, 7, 0400 } },
		{ "two are private", { 5, 7, 0400 }, { 6, 7, 0400 }, { 5, 7, 0 } },
		{ "the owner is denied", { 5, 7, 0044 }, { 5, 7, 0440 }, { 5, 7, 0040 } },
		{ "two groups", { 5, 7, 0440 }, { 5, 8, 0440 }, { 5, 7, 0400 } },
		{ "a group is denied", { 5, 7, 0404 }, { 5, 8, 0440 }, { 5, 7, 0400 } },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_rights got = dcp_rights_meet(rows[i].a, rows[i].b);

		t_case(rows[i].what);
		assert_int_equal(got.mode, rows[i].want.mode);
		if (got.mode)
			assert_true(dcp_rights_equal(got, rows[i].want));
		got = dcp_rights_meet(rows[i].b, rows[i].a);
		assert_int_equal(got.mode, rows[i].want.mode);
	}
}

/* ---- modes ---- */

static void modes_give_rights(void **state)
{
	struct dcp_rights r = dcp_rights_of_mode(5, 7, 0751, DCP_NEED_SEARCH | DCP_NEED_READ);

	(void)state;
	assert_int_equal(r.mode, 0440);
	assert_int_equal(dcp_rights_of_mode(5, 7, 0751, DCP_NEED_SEARCH).mode, 0444);
	assert_int_equal(dcp_rights_of_mode(5, 7, 0640, DCP_NEED_READ).mode, 0440);
	t_case("of another user namespace");
	assert_int_equal(dcp_rights_of_mode(65534, 7, 0044, DCP_NEED_READ).mode, 0);
	assert_int_equal(dcp_rights_of_mode(5, 65534, 0604, DCP_NEED_READ).mode, 0400);
	assert_int_equal(dcp_rights_of_mode(5, 65534, 0644, DCP_NEED_READ).mode, 0444);
}

/* ---- access control lists ---- */

struct entry {
	uint16_t tag, perm;
	uint32_t id;
};

enum { OBJ = 1, USER = 2, GOBJ = 4, GROUP = 8, MASK = 16, OTHER = 32, MOST = 6 };

/* As POSIX.1e draft 17 has it, and fs/posix_acl.c of Linux. */
static bool acl_lets(const struct entry *e, size_t n, uint32_t owner, uint32_t gid,
		     uint32_t uid, unsigned groups)
{
	uint32_t mask = 7, other = 0;
	bool member = false, granted = false;

	for (size_t i = 0; i < n; i++) {
		if (e[i].tag == MASK)
			mask = e[i].perm;
		if (e[i].tag == OTHER)
			other = e[i].perm;
	}
	for (size_t i = 0; i < n && uid == owner; i++)
		if (e[i].tag == OBJ)
			return e[i].perm & 4;
	for (size_t i = 0; i < n; i++)
		if (e[i].tag == USER && e[i].id == uid)
			return e[i].perm & mask & 4;
	for (size_t i = 0; i < n; i++) {
		uint32_t of = e[i].tag == GOBJ ? gid : e[i].id;

		if ((e[i].tag != GOBJ && e[i].tag != GROUP) || !(groups >> of & 1))
			continue;
		member = true;
		granted |= (e[i].perm & mask & 4) != 0;
	}
	return member ? granted : other & 4;
}

static size_t put_acl(const struct entry *e, size_t n, uint8_t *p)
{
	dcp_store_le32(p, 2);
	for (size_t i = 0; i < n; i++) {
		dcp_store_le16(p + 4 + 8 * i, e[i].tag);
		dcp_store_le16(p + 6 + 8 * i, e[i].perm);
		dcp_store_le32(p + 8 + 8 * i, e[i].id);
	}
	return 4 + 8 * n;
}

static void no_list_gives_more(void **state)
{
	(void)state;
	for (int round = 0; round < 20000; round++) {
		struct entry e[4 + MOST] = { { OBJ, (uint16_t)draw(8), 0 },
					     { GOBJ, (uint16_t)draw(8), 0 },
					     { OTHER, (uint16_t)draw(8), 0 },
					     { MASK, (uint16_t)draw(8), 0 } };
		size_t n = 4 + draw(MOST);
		uint32_t owner = draw(USERS - 1), gid = draw(GROUPS);
		uint8_t bytes[4 + 8 * DCP_LEN(e)];
		struct dcp_rights r;

		for (size_t i = 4; i < n; i++) {
			e[i].tag = draw(2) ? USER : GROUP;
			e[i].perm = (uint16_t)draw(8);
			e[i].id = e[i].tag == USER ? (uint32_t)i - 4 : draw(GROUPS);
		}
		assert_int_equal(dcp_rights_of_acl(owner, gid, bytes, put_acl(e, n, bytes),
						   DCP_NEED_READ, &r),
				 0);
		for (uint32_t uid = 0; uid < USERS; uid++)
			for (unsigned groups = 0; groups < 1 << GROUPS; groups++)
				assert_true(!lets(r, uid, groups) ||
					    acl_lets(e, n, owner, gid, uid, groups));
	}
}

static void access_lists_give_rights(void **state)
{
	static const struct {
		const char *what;
		struct entry e[MOST];
		size_t n;
		struct dcp_rights want;
	} rows[] = {
		{ "no more than a mode",
		  { { OBJ, 6, 0 }, { GOBJ, 4, 0 }, { OTHER, 0, 0 } },
		  3,
		  { 5, 7, 0440 } },
		{ "the mask stands for the group's",
		  { { OBJ, 6, 0 },
		    { USER, 4, 9 },
		    { GOBJ, 0, 0 },
		    { MASK, 4, 0 },
		    { OTHER, 0, 0 } },
		  5,
		  { 5, 7, 0400 } },
		{ "the mask takes away",
		  { { OBJ, 6, 0 }, { GOBJ, 4, 0 }, { MASK, 0, 0 }, { OTHER, 0, 0 } },
		  4,
		  { 5, 7, 0400 } },
		{ "one user is denied",
		  { { OBJ, 6, 0 },
		    { USER, 0, 9 },
		    { GOBJ, 4, 0 },
		    { MASK, 4, 0 },
		    { OTHER, 4, 0 } },
		  5,
		  { 9, 7, 0044 } },
		{ "one group is denied",
		  { { OBJ, 6, 0 },
		    { GOBJ, 4, 0 },
		    { GROUP, 0, 9 },
		    { MASK, 4, 0 },
		    { OTHER, 4, 0 } },
		  5,
		  { 5, 9, 0404 } },
	};
	uint8_t bytes[4 + 8 * MOST];
	struct dcp_rights r;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		size_t n = put_acl(rows[i].e, rows[i].n, bytes);

		t_case(rows[i].what);
		assert_int_equal(dcp_rights_of_acl(5, 7, bytes, n, DCP_NEED_READ, &r), 0);
		assert_int_equal(r.mode, rows[i].want.mode);
		assert_true(dcp_rights_equal(r, rows[i].want));
	}
	t_case("what lies behind a list is not of it");
	for (uint16_t tag = USER; tag <= MASK; tag *= 2) {
		const struct entry e[] = {
			{ OBJ, 6, 0 }, { GOBJ, 4, 0 }, { OTHER, 4, 0 }, { tag, 0, 9 }
		};

		put_acl(e, DCP_LEN(e), bytes);
		assert_int_equal(dcp_rights_of_acl(5, 7, bytes, 4 + 8 * 3, DCP_NEED_READ, &r),
				 0);
		assert_int_equal(r.mode, 0444);
	}
	t_case("bad ones");
	assert_int_equal(dcp_rights_of_acl(5, 7, bytes, 3, DCP_NEED_READ, &r), -EINVAL);
	assert_int_equal(dcp_rights_of_acl(5, 7, bytes, 11, DCP_NEED_READ, &r), -EINVAL);
	bytes[0] = 1;
	assert_int_equal(dcp_rights_of_acl(5, 7, bytes, 12, DCP_NEED_READ, &r), -EINVAL);
}

/* ---- NFSv4 ---- */

static size_t put_nfs4(const char *const *who, size_t n, uint8_t *p)
{
	uint8_t *at = p + 4;

	dcp_store_le32(p, __builtin_bswap32((uint32_t)n));
	for (size_t i = 0; i < n; i++) {
		size_t length = strlen(who[i]);

		memset(at, 0, 16 + length + 4);
		dcp_store_le32(at + 12, __builtin_bswap32((uint32_t)length));
		memcpy(at + 16, who[i], length);
		at += 16 + (length + 3) / 4 * 4;
	}
	return (size_t)(at - p);
}

static void nfs4_lists_are_compared_with_the_mode(void **state)
{
	static const char *const mode[] = { "OWNER@", "GROUP@", "EVERYONE@" };
	static const char *const named[] = { "OWNER@", "eve@example.org", "EVERYONE@" };
	uint8_t bytes[256];
	size_t n = put_nfs4(mode, 3, bytes);

	(void)state;
	assert_true(dcp_rights_nfs4_is_mode(bytes, n));
	for (size_t i = 0; i < n; i++)
		assert_false(dcp_rights_nfs4_is_mode(bytes, i));
	n = put_nfs4(named, 3, bytes);
	assert_false(dcp_rights_nfs4_is_mode(bytes, n));
	memset(bytes, 0xff, sizeof(bytes));
	assert_false(dcp_rights_nfs4_is_mode(bytes, sizeof(bytes)));
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_rights_never_grow),
		cmocka_unit_test(renamed_owners_never_get_more),
		cmocka_unit_test(rights_of_two_files_meet),
		cmocka_unit_test(modes_give_rights),
		cmocka_unit_test(no_list_gives_more),
		cmocka_unit_test(access_lists_give_rights),
		cmocka_unit_test(nfs4_lists_are_compared_with_the_mode),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
