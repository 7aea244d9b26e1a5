/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "core/base/cleanup.h"
#include "core/parse/regex/regex_int.h"

/* The steps that are waiting for the next character. */
struct list {
	uint32_t *step;
	size_t n;
};

struct matcher {
	const struct dcp_pyre *re;
	const char *text, *p;
	uint32_t *mark; /* round in which a step was added last */
	uint32_t *stack;
	uint32_t round;
	bool matched;
};

static bool holds(const struct matcher *m, const struct dcp_pyre_step *s)
{
	bool before = m->p > m->text && dcp_pyre_is_word((uint8_t)m->p[-1]);
	bool after = *m->p && dcp_pyre_is_word((uint8_t)*m->p);

	switch ((enum dcp_pyre_op)s->op) {
	case DCP_PYRE_START:
		return m->p == m->text;
	case DCP_PYRE_END:
		return !*m->p || (*m->p == '\n' && !m->p[1]);
	case DCP_PYRE_LAST:
		return !*m->p;
	case DCP_PYRE_WORD:
		return (before != after) == (s->x == 0);
	case DCP_PYRE_CHAR:
	case DCP_PYRE_ANY:
	case DCP_PYRE_SET:
	case DCP_PYRE_SPLIT:
	case DCP_PYRE_JUMP:
	case DCP_PYRE_MATCH:
		break;
	}
	return false;
}

static void add(struct matcher *m, struct list *l, uint32_t start)
{
	size_t depth = 0;

	m->stack[depth++] = start;
	while (depth > 0) {
		uint32_t i = m->stack[--depth];
		const struct dcp_pyre_step *s = &m->re->step[i];

		if (m->mark[i] == m->round)
			continue;
		m->mark[i] = m->round;
		if (s->op == DCP_PYRE_MATCH) {
			m->matched = true;
		} else if (s->op == DCP_PYRE_CHAR || s->op == DCP_PYRE_ANY ||
			   s->op == DCP_PYRE_SET) {
			l->step[l->n++] = i;
		} else if (s->op == DCP_PYRE_SPLIT || s->op == DCP_PYRE_JUMP) {
			m->stack[depth++] = s->x;
			if (s->op == DCP_PYRE_SPLIT)
				m->stack[depth++] = s->y;
		} else if (holds(m, s)) {
			m->stack[depth++] = i + 1;
		}
	}
}

static bool takes(const struct dcp_pyre *re, const struct dcp_pyre_step *s, uint32_t c)
{
	const struct dcp_pyre_set *set;

	if (s->op == DCP_PYRE_CHAR)
		return s->c == c;
	if (s->op == DCP_PYRE_ANY)
		return c != '\n';
	set = &re->set[s->x];
	for (uint32_t i = 0; i < set->n; i++)
		if (c >= re->range[set->first + i].lo && c <= re->range[set->first + i].hi)
			return !set->negated;
	return set->negated;
}

bool dcp_pyre_match(const struct dcp_pyre *re, const char *text)
{
	/* two lists, marks, and a stack that may get both ways of each step */
	dcp_auto_free uint32_t *room = calloc(5 * re->n + 2, sizeof(*room));
	struct list now, next;
	struct matcher m = { .re = re, .text = text, .p = text, .round = 1 };

	if (!room)
		return false;
	now = (struct list){ room, 0 };
	next = (struct list){ room + re->n, 0 };
	m.mark = room + 2 * re->n;
	m.stack = room + 3 * re->n;
	add(&m, &now, 0);
	while (!m.matched && now.n > 0 && *m.p) {
		struct list swap = now;
		size_t n;
		uint32_t c = dcp_pyre_decode(m.p, &n);

		m.p += n;
		m.round++;
		next.n = 0;
		for (size_t i = 0; i < now.n; i++)
			if (takes(re, &re->step[now.step[i]], c))
				add(&m, &next, now.step[i] + 1);
		now = next;
		next = swap;
	}
	return m.matched;
}
