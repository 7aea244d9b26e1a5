/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of one placement: "(0, even, sizes=[2,3], dim=1)". */
#include <errno.h>
#include <string.h>

#include "core/base/number.h"
#include "core/parse/layout/layout_int.h"

const char *dcp_layout_blanks(const char *s, const char *end)
{
	while (s < end && (*s == ' ' || *s == '\t'))
		s++;
	return s;
}

size_t dcp_layout_word(const char *s, const char *end)
{
	size_t n = 0;

	while (s + n < end && ((s[n] | 32) >= 'a' && (s[n] | 32) <= 'z'))
		n++;
	if (n == 0 && !(s < end && *s == '_'))
		return 0;
	while (s + n < end && (((s[n] | 32) >= 'a' && (s[n] | 32) <= 'z') || s[n] == '_' ||
			       dcp_is_digit(s[n])))
		n++;
	return n;
}

bool dcp_layout_int(const char **s, const char *end, int64_t *out)
{
	const char *p = *s;
	bool minus = p < end && *p == '-';
	uint64_t v;

	p += minus;
	if (!dcp_take_number(&p, end, DCP_ANY_DIGITS, &v) || v > INT64_MAX)
		return false;
	*out = minus ? -(int64_t)v : (int64_t)v;
	*s = p;
	return true;
}

static size_t count_commas(const char *s, const char *end)
{
	size_t n = 0;

	for (; s < end && *s != ']'; s++)
		n += *s == ',';
	return n;
}

/* "[1, 2]" at *@s: numbers from 0 on, in the arena. */
static int list(struct layout_parse *ps, const char **s, const char *end,
		struct layout_arg *arg)
{
	const char *p = *s + 1;
	size_t room = count_commas(p, end) + 1;
	uint64_t *v;

	ps->l->nlisted += room;
	if (ps->l->nlisted > DCP_LAYOUT_MAX_SPANS)
		return dcp_layout_bad(ps, -E2BIG, "more than %d numbers in lists",
				      DCP_LAYOUT_MAX_SPANS);
	v = dcp_arena_calloc(&ps->l->arena, room, sizeof(*v));
	if (!v)
		return -ENOMEM;
	arg->is_list = true;
	arg->list = v;
	do {
		int64_t number;

		p = dcp_layout_blanks(p, end);
		if (!dcp_layout_int(&p, end, &number) || number < 0)
			return bad(ps, "a list holds numbers, as in [4,2,2], not %.*s",
				   (int)DCP_MIN(end - *s, 60), *s);
		v[arg->nlist++] = (uint64_t)number;
		p = dcp_layout_blanks(p, end);
	} while (p < end && *p++ == ',');
	if (p[-1] != ']')
		return bad(ps, "a list ends in ], not as in %.*s", (int)DCP_MIN(end - *s, 60),
			   *s);
	*s = p;
	return 0;
}

/* "name", "name=value" or a value at *@s. */
static int argument(struct layout_parse *ps, const char **s, const char *end,
		    struct layout_arg *arg)
{
	const char *start = *s, *p = start;
	size_t n = dcp_layout_word(p, end);

	*arg = (struct layout_arg){ 0 };
	if (n >= sizeof(arg->name))
		return bad(ps, "no argument is called %.*s", (int)DCP_MIN(n, (size_t)60), p);
	memcpy(arg->name, p, n);
	p = dcp_layout_blanks(p + n, end);
	if (n > 0 && (p >= end || *p != '=')) {
		*s = p;
		return 0;
	}
	if (n > 0)
		p = dcp_layout_blanks(p + 1, end);
	arg->has_value = true;
	*s = p;
	if (p < end && *p == '[')
		return list(ps, s, end, arg);
	if (dcp_layout_int(s, end, &arg->value))
		return 0;
	return bad(ps, "expected a number or a list, found %.*s", (int)DCP_MIN(end - start, 60),
		   start);
}

int dcp_layout_args(struct layout_parse *ps, const char *s, const char *end,
		    struct dcp_layout_args *out)
{
	const char *p = s;

	*out = (struct dcp_layout_args){ .end = s };
	if (p >= end || *p != '(')
		return 0;
	p = dcp_layout_blanks(p + 1, end);
	while (p < end && *p != ')') {
		int rc;

		if (out->n == DCP_LEN(out->arg))
			return bad(ps, "more than %zu arguments in %.*s", DCP_LEN(out->arg),
				   (int)DCP_MIN(end - s, 60), s);
		rc = argument(ps, &p, end, &out->arg[out->n++]);
		if (rc < 0)
			return rc;
		p = dcp_layout_blanks(p, end);
		if (p < end && *p == ',')
			p = dcp_layout_blanks(p + 1, end);
		else if (p < end && *p != ')')
			return bad(ps, "arguments are separated by commas, not as in %.*s",
				   (int)DCP_MIN(end - s, 60), s);
	}
	if (p >= end)
		return bad(ps, "no ) after %.*s", (int)DCP_MIN(end - s, 60), s);
	out->end = p + 1;
	return 0;
}
