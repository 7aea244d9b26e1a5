/* SPDX-License-Identifier: Apache-2.0 */
/*
 * intern: byte strings to small numbers, each string kept once.
 *
 * Numbers count from 0 in order of arrival. A string costs its text, an entry of 12 bytes and about
 * two slots of 4 bytes: a hundred thousand keys take 2 MB and their text.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/base/buf.h"

#define DCP_INTERN_NONE UINT32_MAX

struct dcp_intern_entry {
	uint32_t off, len, hash;
};

struct dcp_intern {
	struct dcp_buf text; /* each string followed by a NUL */
	struct dcp_intern_entry *entry;
	uint32_t *slot; /* open addressing; number + 1, 0: free */
	uint32_t n, cap, nslots;
};

#define DCP_INTERN_INIT                                                                        \
	{                                                                                      \
		0                                                                              \
	}

void dcp_intern_finish(struct dcp_intern *in);

/*
 * Find the number of @s, adding @s if it is new. @number may be NULL. @guess is the expected
 * number (any value is allowed): a right guess saves hashing. Returns 1 (new), 0 (known),
 * -ENOMEM, or -E2BIG (more than 4 GiB of text or 2^31 strings).
 */
int dcp_intern_add(struct dcp_intern *in, const void *s, size_t n, uint32_t guess,
		   uint32_t *number);

/* Number of @s, or DCP_INTERN_NONE. */
uint32_t dcp_intern_find(const struct dcp_intern *in, const void *s, size_t n);

/* The same for a NUL-terminated text, without a guess. */
static inline int dcp_intern_str(struct dcp_intern *in, const char *s, uint32_t *number)
{
	return dcp_intern_add(in, s, strlen(s), DCP_INTERN_NONE, number);
}

static inline bool dcp_intern_has(const struct dcp_intern *in, const char *s)
{
	return dcp_intern_find(in, s, strlen(s)) != DCP_INTERN_NONE;
}

/* The string, NUL-terminated (it may hold NULs too). Valid until the next add. */
const char *dcp_intern_text(const struct dcp_intern *in, uint32_t number);
