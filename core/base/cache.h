/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache: the parts of a cache with a limit: a table by key, and a list in the order of last use.
 *
 *	struct thing { struct dcp_lru_link use; struct dcp_table_link at; ... };
 *
 *	static struct dcp_table_link *buckets[1024];
 *	struct dcp_table table = { buckets, DCP_LEN(buckets) };
 *	struct dcp_lru used = { 0 };
 *
 *	dcp_table_add(&table, &t->at, number);
 *	dcp_lru_add(&used, &t->use);
 *	t = DCP_OF(dcp_table_find(&table, number), struct thing, at);
 *	t = DCP_OF(dcp_lru_oldest(&used, LOOKS, is_unused), struct thing, use);
 *
 * Tables and lists own nothing. Callers that share them between threads hold a lock.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The thing that has @link as its @member; NULL of NULL. */
#define DCP_OF(link, type, member) ((type *)dcp_around((link), offsetof(type, member)))

static inline void *dcp_around(void *link, size_t off)
{
	return link ? (char *)link - off : NULL;
}

/* ---- by last use ---- */

struct dcp_lru_link {
	struct dcp_lru_link *older, *newer;
};

struct dcp_lru {
	struct dcp_lru_link *oldest, *newest;
};

/* Add @l as the link that was used last. */
static inline void dcp_lru_add(struct dcp_lru *t, struct dcp_lru_link *l)
{
	l->older = t->newest;
	l->newer = NULL;
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

/* Among the @looks links that were used longest ago, find the oldest that @may() accepts. NULL: it
 * accepts none. Refused links count as used now, so that the next call looks at others. */
static inline struct dcp_lru_link *dcp_lru_oldest(struct dcp_lru *t, size_t looks,
						  bool (*may)(const struct dcp_lru_link *l))
{
	struct dcp_lru_link *l;

	for (; looks && (l = t->oldest); looks--) {
		if (may(l))
			return l;
		dcp_lru_use(t, l);
	}
	return NULL;
}

/* ---- by key ---- */

struct dcp_table_link {
	struct dcp_table_link *next; /* in its bucket */
	uint64_t key;                /* a number, or a hash, which several things may share */
};

struct dcp_table {
	struct dcp_table_link **bucket;
	size_t nbuckets; /* a power of two */
};

static inline struct dcp_table_link **dcp_table_bucket(const struct dcp_table *t, uint64_t key)
{
	return &t->bucket[(key * 0x9e3779b97f4a7c15u) >> 32 & (t->nbuckets - 1)];
}

/* Find the link that was added last with @key; before() finds the next older link of the same key.
 * NULL: there is none. */
static inline struct dcp_table_link *dcp_table_find(const struct dcp_table *t, uint64_t key)
{
	struct dcp_table_link *l = *dcp_table_bucket(t, key);

	while (l && l->key != key)
		l = l->next;
	return l;
}

static inline struct dcp_table_link *dcp_table_before(const struct dcp_table_link *l)
{
	struct dcp_table_link *next = l->next;

	while (next && next->key != l->key)
		next = next->next;
	return next;
}

static inline void dcp_table_add(struct dcp_table *t, struct dcp_table_link *l, uint64_t key)
{
	struct dcp_table_link **b = dcp_table_bucket(t, key);

	*l = (struct dcp_table_link){ *b, key };
	*b = l;
}

/* Remove @l, if the table still has it. */
static inline void dcp_table_remove(struct dcp_table *t, struct dcp_table_link *l)
{
	struct dcp_table_link **at = dcp_table_bucket(t, l->key);

	while (*at && *at != l)
		at = &(*at)->next;
	if (*at)
		*at = l->next;
}
