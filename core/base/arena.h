/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena: memory for objects that are made together and freed together. A bump allocator with a
 * byte limit, which guards against a header that claims a petabyte, and lets tests run out of
 * memory. One thread at a time.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct dcp_arena_block;

struct dcp_arena {
	struct dcp_arena_block *head; /* newest block first */
	size_t used;                  /* bytes handed out, padding included */
	size_t limit;
};

/* Allocates nothing before the first allocation. */
void dcp_arena_init(struct dcp_arena *a, size_t limit);

/* Free everything; the arena is empty and usable again. Accepts a zeroed arena. */
void dcp_arena_finish(struct dcp_arena *a);

/* dcp_auto_arena struct dcp_arena a = DCP_ARENA_INIT(limit): finished at the end of scope. */
#define DCP_ARENA_INIT(max) ((struct dcp_arena){ .limit = (max) })
#define dcp_auto_arena __attribute__((cleanup(dcp_arena_finish)))

/* Free everything, but keep the newest block for the next allocations. */
void dcp_arena_reset(struct dcp_arena *a);

/* @n bytes aligned to 16, not cleared; NULL past the limit or out of memory. */
void *dcp_arena_alloc(struct dcp_arena *a, size_t n);

/* Array of @n elements of @size bytes, cleared; NULL also when n * size overflows. */
void *dcp_arena_calloc(struct dcp_arena *a, size_t n, size_t size);

/* Copy of the @n elements of @size bytes at @p, which may be NULL if @n is 0. NULL only when out of
 * memory. */
void *dcp_arena_dup(struct dcp_arena *a, const void *p, size_t n, size_t size);

/* Copy of @n bytes, or of a whole text, followed by a NUL. */
char *dcp_arena_strndup(struct dcp_arena *a, const char *s, size_t n);
char *dcp_arena_strdup(struct dcp_arena *a, const char *s);
