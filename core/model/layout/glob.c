/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a key match a glob? Compiled once into literals, stars and numbers; matched without
 * allocation, in time linear in the key for all but contrived globs: after a star the next
 * literal is searched for, and only the latest star is ever tried again (what an earlier one
 * could give, the later one gives too).
 */
#include <string.h>

#include "core/base/number.h"
#include "core/model/layout/layout_int.h"

enum { NEAR_GLOBS = 256, NEAR_LEN = 128 };

/* Bytes that @op takes of the key at @k, or -1. */
static ptrdiff_t op_takes(const struct glob_op *op, const char *key, size_t k, size_t n,
			  uint64_t *number)
{
	const char *s = key + k;

	switch (op->kind) {
	case GLOB_LITERAL:
		return op->n <= n - k && memcmp(s, op->text, op->n) == 0 ? (ptrdiff_t)op->n
									 : -1;
	case GLOB_ANY:
		return k < n ? 1 : -1;
	case GLOB_NUMBER:
		if ((k > 0 && dcp_is_digit(key[k - 1])) ||
		    !dcp_take_number(&s, key + n, DCP_ANY_DIGITS, number) || *number < op->lo ||
		    *number > op->hi)
			return -1;
		return s - (key + k);
	case GLOB_STAR:
		break;
	}
	return -1;
}

/* Where a star that ends at @k or later may end, given what follows it; n + 1: nowhere. */
static size_t star_end(const struct glob *g, uint32_t next, const char *key, size_t k, size_t n)
{
	const struct glob_op *op = &g->op[next];
	const char *hit;

	if (k > n || op->kind != GLOB_LITERAL)
		return k;
	if (next + 1 == g->nop)
		return op->n <= n - k ? n - op->n : n + 1;
	hit = memmem(key + k, n - k, op->text, op->n);
	return hit ? (size_t)(hit - key) : n + 1;
}

/* Numbers matched into @number (LAYOUT_MAX_NUMBERS). */
static bool glob_match(const struct glob *g, uint64_t pairs, const char *key, size_t n,
		       uint64_t *number)
{
	uint32_t i = 0, star = UINT32_MAX, nn = 0, star_nn = 0;
	size_t k = 0, star_k = 0;

	if (g->pairs & ~pairs || n < g->min)
		return false;
	while (i < g->nop || k < n) {
		ptrdiff_t took = -1;

		if (i < g->nop && g->op[i].kind == GLOB_STAR) {
			star = i++;
			if (i == g->nop)
				return true;
			star_nn = nn;
			k = star_k = star_end(g, i, key, k, n);
			if (k > n)
				return false;
			continue;
		}
		if (i < g->nop)
			took = op_takes(&g->op[i], key, k, n, &number[nn]);
		if (took >= 0) {
			nn += g->op[i++].kind == GLOB_NUMBER;
			k += (size_t)took;
			continue;
		}
		if (star == UINT32_MAX || star_k >= n)
			return false;
		i = star + 1;
		nn = star_nn;
		k = star_k = star_end(g, i, key, star_k + 1, n);
		if (k > n)
			return false;
	}
	return true;
}

bool dcp_layout_rule(const struct dcp_layout *l, const char *key, struct dcp_layout_rule *out)
{
	size_t n = strlen(key);
	uint64_t pairs = dcp_layout_pairs(key, n);

	*out = (struct dcp_layout_rule){ .key = key, .number = UINT32_MAX };
	for (size_t r = 0; r < l->nrule; r++)
		for (uint32_t g = 0; g < l->rule[r].nglob; g++)
			if (glob_match(&l->glob[l->rule[r].glob + g], pairs, key, n,
				       out->stage)) {
				out->number = (uint32_t)r;
				return true;
			}
	return false;
}

/* A glob's bytes with 0 for what matches anything; returns how many, at most NEAR_LEN. */
static size_t flatten(const struct glob *g, char *out)
{
	size_t n = 0;

	for (uint32_t i = 0; i < g->nop; i++) {
		const struct glob_op *op = &g->op[i];

		if (op->kind != GLOB_LITERAL && n < NEAR_LEN)
			out[n++] = '\0';
		for (uint32_t j = 0; op->kind == GLOB_LITERAL && j < op->n && n < NEAR_LEN; j++)
			out[n++] = op->text[j];
	}
	return n;
}

/* Edit distance in which a wildcard takes any run of the key for nothing. */
static size_t distance(const struct glob *g, const char *key, size_t nk)
{
	char flat[NEAR_LEN];
	size_t ng = flatten(g, flat), row[NEAR_LEN + 1];

	for (size_t k = 0; k <= nk; k++)
		row[k] = k;
	for (size_t i = 0; i < ng; i++) {
		size_t diagonal = row[0];

		row[0] += flat[i] != '\0';
		for (size_t k = 1; k <= nk; k++) {
			size_t up = row[k], d = diagonal + (flat[i] != key[k - 1]);

			if (flat[i] == '\0')
				d = DCP_MIN(up, row[k - 1]);
			else
				d = DCP_MIN(d, DCP_MIN(up, row[k - 1]) + 1);
			row[k] = d;
			diagonal = up;
		}
	}
	return row[nk];
}

uint32_t dcp_layout_glob_nearest(const struct dcp_layout *l, const char *key,
				 const struct glob **out)
{
	size_t nk = strnlen(key, NEAR_LEN), best = SIZE_MAX, seen = 0;
	uint32_t nearest = UINT32_MAX;

	for (uint32_t r = 0; r < l->nrule; r++)
		for (uint32_t i = 0; i < l->rule[r].nglob && seen < NEAR_GLOBS; i++, seen++) {
			const struct glob *g = &l->glob[l->rule[r].glob + i];
			size_t d = distance(g, key, nk);

			if (d < best) {
				best = d;
				nearest = r;
				*out = g;
			}
		}
	return nearest;
}
