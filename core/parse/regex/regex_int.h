/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regex_int: what the two files behind regex.h share, and nobody else includes.
 *
 *	compile.c     a pattern becomes a program
 *	match.c       a text goes all ways through it
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/parse/regex/regex.h"

enum dcp_pyre_op {
	DCP_PYRE_CHAR,  /* one character: c */
	DCP_PYRE_ANY,   /* any but a newline */
	DCP_PYRE_SET,   /* one of a set: x is its number */
	DCP_PYRE_SPLIT, /* go on at x and at y */
	DCP_PYRE_JUMP,  /* go on at x */
	DCP_PYRE_START, /* ^ \A */
	DCP_PYRE_END,   /* $ */
	DCP_PYRE_LAST,  /* \Z */
	DCP_PYRE_WORD,  /* \b; x = 1: \B */
	DCP_PYRE_MATCH,
};

struct dcp_pyre_step {
	uint8_t op;
	uint32_t c;
	uint32_t x, y;
};

struct dcp_pyre_range {
	uint32_t lo, hi;
};

struct dcp_pyre_set {
	uint32_t first, n; /* in ranges */
	bool negated;
};

struct dcp_pyre {
	struct dcp_pyre_step *step;
	struct dcp_pyre_set *set;
	struct dcp_pyre_range *range;
	size_t n;
};

/* The character at @p; a byte that is not UTF-8 counts for itself. */
static inline uint32_t dcp_pyre_decode(const char *p, size_t *n)
{
	const uint8_t *b = (const uint8_t *)p;
	uint32_t more = b[0] >= 0xf0 ? 3 : b[0] >= 0xe0 ? 2 : b[0] >= 0xc0 ? 1 : 0;
	uint32_t c = more ? b[0] & (0x3fu >> more) : b[0];

	for (uint32_t i = 1; i <= more; i++) {
		if ((b[i] & 0xc0) != 0x80) {
			*n = 1;
			return b[0];
		}
		c = c << 6 | (b[i] & 0x3f);
	}
	*n = more + 1;
	return c;
}

static inline bool dcp_pyre_is_word(uint32_t c)
{
	return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
	       (c >= 'A' && c <= 'Z') || c >= 0x80;
}
