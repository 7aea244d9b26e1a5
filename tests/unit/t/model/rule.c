/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/model/rule.h"

#include <stdio.h>
#include <string.h>

#include "core/base/base.h"

enum { DIMS = 3 };

struct writing {
	char *at;
	struct t_choice *c;
	uint32_t size[DIMS], ndim;
};

static void put_list(struct writing *w, const char *name, uint32_t n)
{
	w->at += sprintf(w->at, ", %s=[", name);
	for (uint32_t i = 0; i < n; i++)
		w->at += sprintf(w->at, "%s%u", i ? "," : "", 1 + (unsigned)t_pick(w->c, 3));
	w->at += sprintf(w->at, "]");
}

/* One that cuts a dimension of the tensor over mesh dimension @m. */
static void put_cut(struct writing *w, uint32_t m)
{
	static const char *const splits[] = { "",       "", ", balanced", ", pad", ", even",
					      ", last", "" };
	static const char *const words[] = { "colwise", "rowwise" };
	unsigned dim = (unsigned)t_pick(w->c, 3), way = (unsigned)t_pick(w->c, 12);
	const char *optional = t_pick(w->c, 4) ? ", optional" : "";

	if (way < 6)
		w->at += sprintf(w->at, " shard(%u%s%s)", dim, splits[t_pick(w->c, 7)],
				 optional);
	else if (way < 8)
		w->at += sprintf(w->at, " strided(%u, %u%s)", dim,
				 1 + (unsigned)t_pick(w->c, 4), optional);
	else if (way < 10)
		w->at += sprintf(w->at, " interleave(%u, %u%s)", dim,
				 1 + (unsigned)t_pick(w->c, 4), optional);
	else if (way == 10) {
		w->at += sprintf(w->at, " shard(%u%s", dim, optional);
		if (t_pick(w->c, 2))
			put_list(w, "groups", 1 + (uint32_t)t_pick(w->c, 3));
		else
			put_list(w, "sizes", w->size[m]);
		w->at += sprintf(w->at, ")");
	} else
		w->at += sprintf(w->at, " %s", words[t_pick(w->c, 2)]);
	w->at += sprintf(w->at, "@%c", 'a' + (int)m);
}

static void put_flat(struct writing *w, uint32_t m)
{
	static const char *const ways[] = { "flat", "flat(tight)", "flat(pad=3)", "flat(even)",
					    "flat(optional)" };

	w->at += sprintf(w->at, " %s@%c", ways[t_pick(w->c, DCP_LEN(ways))], 'a' + (int)m);
}

static void put_only(struct writing *w)
{
	uint32_t m = (uint32_t)t_pick(w->c, w->ndim), n = w->size[m];
	unsigned lo = (unsigned)t_pick(w->c, n), hi = lo + (unsigned)t_pick(w->c, n - lo);

	w->at += sprintf(w->at, " only(%c=%u-%u|%d)", 'a' + (int)m, lo, hi,
			 -1 - (int)t_pick(w->c, n));
}

/* Placements over some mesh dimensions, in any order. */
static void put_places(struct writing *w, bool numbers)
{
	uint32_t order[DIMS] = { 0, 1, 2 };
	bool flat = false;

	if (t_pick(w->c, 12) == 1) {
		w->at += sprintf(w->at, " drop\n");
		return;
	}
	for (uint32_t i = w->ndim; i > 1; i--) {
		uint32_t j = (uint32_t)t_pick(w->c, i), was = order[i - 1];

		order[i - 1] = order[j];
		order[j] = was;
	}
	w->at += sprintf(w->at, " replicate");
	if (t_pick(w->c, 4) == 1)
		put_only(w);
	for (uint32_t i = 0; i < w->ndim; i++) {
		flat = flat || t_pick(w->c, 5) == 1;
		if (t_pick(w->c, 4) == 1)
			continue;
		if (flat)
			put_flat(w, order[i]);
		else if (numbers && t_pick(w->c, 2)) {
			w->at += sprintf(w->at, " stage(%u)@%c", 8 + (unsigned)t_pick(w->c, 2),
					 'a' + (int)order[i]);
			numbers = false;
		} else
			put_cut(w, order[i]);
	}
	w->at += sprintf(w->at, "\n");
}

void t_rule_layout(char text[T_RULE_TEXT], uint32_t ranks, struct t_choice *c)
{
	struct writing w = { .at = text, .c = c, .ndim = 1 + (uint32_t)t_pick(c, DIMS) };

	w.at += sprintf(w.at, "mesh");
	for (uint32_t m = 0; m < w.ndim; m++) {
		w.size[m] = 1 + (uint32_t)t_pick(c, DCP_MIN(ranks, 9u));
		ranks /= w.size[m];
		w.at += sprintf(w.at, " %c=%u", 'a' + (int)m, w.size[m]);
	}
	w.at += sprintf(w.at, "\n");
	if (t_pick(c, 2)) {
		w.at += sprintf(w.at, "*.{*}.w");
		put_places(&w, true);
	}
	w.at += sprintf(w.at, "*");
	put_places(&w, false);
}
