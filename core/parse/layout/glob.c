/* SPDX-License-Identifier: Apache-2.0 */
/* A glob compiled into literals, stars and numbers. */
#include <errno.h>
#include <string.h>

#include "core/base/number.h"
#include "core/parse/layout/layout_int.h"

/* "3}" "0-15}" "16-}" "*}" at *@s, moved past it. */
static bool number_op(const char **s, const char *end, struct glob_op *op)
{
	const char *p = *s;

	*op = (struct glob_op){ .kind = GLOB_NUMBER, .hi = UINT64_MAX };
	if (p < end && *p == '*') {
		p++;
	} else {
		if (!dcp_take_number(&p, end, DCP_ANY_DIGITS, &op->lo))
			return false;
		op->hi = op->lo;
		if (p < end && *p == '-') {
			p++;
			op->hi = UINT64_MAX;
			if (p < end && *p != '}' &&
			    !dcp_take_number(&p, end, DCP_ANY_DIGITS, &op->hi))
				return false;
		}
	}
	if (p >= end || *p != '}' || op->hi < op->lo)
		return false;
	*s = p + 1;
	return true;
}

/* One op at *@s. Literal bytes go to *@text, which has room for all of them. */
static int next_op(const struct layout_parse *ps, const char **s, const char *end, char **text,
		   struct glob_op *op)
{
	const char *p = *s;

	*op = (struct glob_op){ .text = *text };
	if (*p == '*' || *p == '?') {
		op->kind = *p == '*' ? GLOB_STAR : GLOB_ANY;
		*s = p + 1;
		return 0;
	}
	if (*p == '{') {
		*s = p + 1;
		return number_op(s, end, op)
			       ? 0
			       : bad(ps,
				     "glob %.*s: {} holds a number, as in {3} {0-15} {16-} {*}",
				     (int)DCP_MIN(end - p, 60), p);
	}
	for (op->kind = GLOB_LITERAL; p < end && !strchr("*?{", *p); p++) {
		if (*p == '\\' && ++p == end)
			return bad(ps, "a glob ends in a lone \\");
		*(*text)++ = *p;
		op->n++;
	}
	*s = p;
	return 0;
}

static void glob_facts(struct glob *g)
{
	for (uint32_t i = 0; i < g->nop; i++) {
		const struct glob_op *op = &g->op[i];

		if (op->kind == GLOB_LITERAL)
			g->pairs |= dcp_layout_pairs(op->text, op->n);
		g->nnumber += op->kind == GLOB_NUMBER;
		g->min += op->kind == GLOB_LITERAL ? op->n : op->kind != GLOB_STAR;
	}
}

/* Ops that @n bytes can become at most: each wildcard and a literal before and after it. */
static size_t most_ops(const char *text, size_t n)
{
	size_t ops = 1;

	for (size_t i = 0; i < n; i++)
		ops += strchr("*?{", text[i]) ? 2 : 0;
	return ops;
}

int dcp_layout_glob_init(struct layout_parse *ps, const char *text, size_t n, struct glob *out)
{
	const char *s = text, *end = text + n;
	struct glob g = { 0 };
	struct glob_op *op;
	char *literal;

	if (n > DCP_LAYOUT_MAX_GLOB)
		return dcp_layout_bad(ps, -E2BIG, "a glob of %zu bytes; the limit is %d", n,
				      DCP_LAYOUT_MAX_GLOB);
	op = dcp_arena_calloc(&ps->l->arena, most_ops(text, n), sizeof(*op));
	literal = dcp_arena_alloc(&ps->l->arena, n);
	g.text = dcp_arena_strndup(&ps->l->arena, text, n);
	if (!op || !literal || !g.text)
		return -ENOMEM;
	g.op = op;
	while (s < end) {
		int rc = next_op(ps, &s, end, &literal, &op[g.nop]);

		if (rc < 0)
			return rc;
		if (g.nop > 0 && op[g.nop].kind == GLOB_STAR && op[g.nop - 1].kind == GLOB_STAR)
			continue;
		g.nop++;
	}
	glob_facts(&g);
	if (g.nnumber > LAYOUT_MAX_NUMBERS)
		return dcp_layout_bad(ps, -E2BIG, "glob %.60s: %u numbers; the limit is %d",
				      g.text, g.nnumber, LAYOUT_MAX_NUMBERS);
	*out = g;
	return 0;
}
