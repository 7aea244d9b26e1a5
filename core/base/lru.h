/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lru: a list in the order of last use, of things that carry its link as their first member.
 *
 *	struct thing { struct dcp_lru_link use; ... };
 *	struct dcp_lru things = { 0 };
 *
 *	dcp_lru_add(&things, &t->use);
 *	for (struct dcp_lru_link *l = things.oldest; l; l = l->newer)
 *		((struct thing *)l)->...
 *
 * Nothing is owned; whoever uses it from several threads holds a lock.
 */
#pragma once

struct dcp_lru_link {
	struct dcp_lru_link *older, *newer;
};

struct dcp_lru {
	struct dcp_lru_link *oldest, *newest;
};

/* As the newest. */
static inline void dcp_lru_add(struct dcp_lru *t, struct dcp_lru_link *l)
{
	l->older = t->newest;
	l->newer = 0;
	*(t->newest ? &t->newest->newer : &t->oldest) = l;
	t->newest = l;
}

static inline void dcp_lru_remove(struct dcp_lru *t, struct dcp_lru_link *l)
{
	*(l->older ? &l->older->newer : &t->oldest) = l->newer;
	*(l->newer ? &l->newer->older : &t->newest) = l->older;
}

/* Note a use of @l, which is in the list. */
static inline void dcp_lru_use(struct dcp_lru *t, struct dcp_lru_link *l)
{
	if (l == t->newest)
		return;
	dcp_lru_remove(t, l);
	dcp_lru_add(t, l);
}
