/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/near.h"

#include <string.h>

#include "core/base/base.h"

static size_t clipped(const char *s)
{
	return strnlen(s, DCP_NEAR_MAX);
}

/* Optimal string alignment over three rows; row minima give the early end. */
size_t dcp_near_distance(const char *a, const char *b, size_t limit)
{
	size_t rows[3][DCP_NEAR_MAX + 1];
	size_t *before = rows[0], *prev = rows[1], *cur = rows[2];
	size_t na = clipped(a), nb = clipped(b);

	if ((na > nb ? na - nb : nb - na) > limit)
		return limit + 1;
	for (size_t j = 0; j <= nb; j++)
		prev[j] = j;
	for (size_t i = 1; i <= na; i++) {
		size_t best = cur[0] = i, *spare = before;

		for (size_t j = 1; j <= nb; j++) {
			size_t d = prev[j - 1] + (a[i - 1] != b[j - 1]);

			d = DCP_MIN(d, DCP_MIN(prev[j], cur[j - 1]) + 1);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				d = DCP_MIN(d, before[j - 2] + 1);
			cur[j] = d;
			best = DCP_MIN(best, d);
		}
		if (best > limit)
			return limit + 1;
		before = prev;
		prev = cur;
		cur = spare;
	}
	return prev[nb] > limit ? limit + 1 : prev[nb];
}

size_t dcp_near_limit(const char *name)
{
	size_t n = clipped(name);

	return n < 5 ? 1 : 1 + n / 3;
}

bool dcp_near_take(struct dcp_near *near, const char *name)
{
	size_t d = dcp_near_distance(near->word, name, near->best);
	bool nearer = d < near->best;

	near->best = nearer ? d : near->best;
	return nearer;
}
