/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/arena.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16, BLOCK_MIN = 4096, BLOCK_MAX = 1 << 20 };

struct dcp_arena_block {
	struct dcp_arena_block *next;
	size_t size, used;
	_Alignas(ALIGN) unsigned char bytes[];
};

void dcp_arena_init(struct dcp_arena *a, size_t limit)
{
	*a = (struct dcp_arena){ .limit = limit };
}

void dcp_arena_finish(struct dcp_arena *a)
{
	while (a->head) {
		struct dcp_arena_block *next = a->head->next;

		free(a->head);
		a->head = next;
	}
	a->used = 0;
}

/* Blocks grow, so the newest is the largest, and a caller that resets in a loop soon needs no
 * malloc. A block that was made for a single huge array is not kept. */
void dcp_arena_reset(struct dcp_arena *a)
{
	struct dcp_arena_block *kept = a->head;

	if (kept && kept->size <= BLOCK_MAX) {
		a->head = kept->next;
		kept->next = NULL;
		kept->used = 0;
	} else {
		kept = NULL;
	}
	dcp_arena_finish(a);
	a->head = kept;
}

/* Blocks double from 4 KiB to 1 MiB, so a small arena stays small. */
static struct dcp_arena_block *block_for(struct dcp_arena *a, size_t n)
{
	size_t size = a->head ? a->head->size * 2 : BLOCK_MIN;
	struct dcp_arena_block *b;

	if (a->head && a->head->size - a->head->used >= n)
		return a->head;
	if (size > BLOCK_MAX)
		size = BLOCK_MAX;
	if (size < n)
		size = n;
	b = malloc(sizeof(*b) + size);
	if (!b)
		return NULL;
	b->next = a->head;
	b->size = size;
	b->used = 0;
	a->head = b;
	return b;
}

void *dcp_arena_alloc(struct dcp_arena *a, size_t n)
{
	struct dcp_arena_block *b;
	void *p;

	if (n > SIZE_MAX / 2)
		return NULL;
	n = (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
	if (n > a->limit - a->used)
		return NULL;
	b = block_for(a, n);
	if (!b)
		return NULL;
	p = b->bytes + b->used;
	b->used += n;
	a->used += n;
	return p;
}

void *dcp_arena_calloc(struct dcp_arena *a, size_t n, size_t size)
{
	size_t bytes;
	void *p;

	if (__builtin_mul_overflow(n, size, &bytes))
		return NULL;
	p = dcp_arena_alloc(a, bytes);
	if (p)
		memset(p, 0, bytes);
	return p;
}

void *dcp_arena_dup(struct dcp_arena *a, const void *p, size_t n, size_t size)
{
	void *to = dcp_arena_calloc(a, n + !n, size);

	if (to && n)
		memcpy(to, p, n * size);
	return to;
}

char *dcp_arena_strndup(struct dcp_arena *a, const char *s, size_t n)
{
	char *p = n < SIZE_MAX ? dcp_arena_alloc(a, n + 1) : NULL;

	if (p) {
		memcpy(p, s, n);
		p[n] = '\0';
	}
	return p;
}

char *dcp_arena_strdup(struct dcp_arena *a, const char *s)
{
	return dcp_arena_strndup(a, s, strlen(s));
}
