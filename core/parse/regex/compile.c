/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/parse/regex/regex_int.h"

struct compiler {
	const char *p, *start;
	struct dcp_buf step, set, range;
	size_t n, nsets, nranges;
	unsigned depth;
	struct dcp_err *err;
};

static int fail(struct compiler *c, int code, const char *what)
{
	return dcp_fail(c->err, code, (uint64_t)(c->p - c->start),
			"regular expression \"%.100s\": %s", c->start, what);
}

static struct dcp_pyre_step *at(struct compiler *c, size_t i)
{
	return (struct dcp_pyre_step *)(void *)c->step.p + i;
}

static int emit(struct compiler *c, enum dcp_pyre_op op, uint32_t ch, uint32_t x, uint32_t y)
{
	struct dcp_pyre_step s = { .op = (uint8_t)op, .c = ch, .x = x, .y = y };

	if (c->n == DCP_PYRE_MAX)
		return fail(c, -E2BIG, "too long");
	dcp_buf_add(&c->step, &s, sizeof(s));
	c->n++;
	return dcp_buf_error(&c->step) ? -ENOMEM : 0;
}

static int add_range(struct compiler *c, uint32_t lo, uint32_t hi)
{
	struct dcp_pyre_range r = { lo, hi };

	if (c->nranges == DCP_PYRE_MAX)
		return fail(c, -E2BIG, "too long");
	dcp_buf_add(&c->range, &r, sizeof(r));
	c->nranges++;
	return dcp_buf_error(&c->range) ? -ENOMEM : 0;
}

static int end_set(struct compiler *c, size_t first, bool negated)
{
	struct dcp_pyre_set s = { (uint32_t)first, (uint32_t)(c->nranges - first), negated };

	dcp_buf_add(&c->set, &s, sizeof(s));
	if (dcp_buf_error(&c->set))
		return -ENOMEM;
	return emit(c, DCP_PYRE_SET, 0, (uint32_t)c->nsets++, 0);
}

/* The ranges of \d \w \s; of \D \W \S the gaps between them. */
static int add_class(struct compiler *c, char letter)
{
	static const struct dcp_pyre_range digit[] = { { '0', '9' } };
	static const struct dcp_pyre_range word[] = {
		{ '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' }, { 0x80, UINT32_MAX }
	};
	static const struct dcp_pyre_range space[] = { { '\t', '\r' }, { ' ', ' ' } };
	char lower = (char)(letter | 0x20);
	const struct dcp_pyre_range *r = lower == 'd' ? digit : lower == 'w' ? word : space;
	size_t n = lower == 'd' ? 1 : lower == 'w' ? 5 : 2;
	uint64_t from = 0;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < n; i++) {
		if (letter == lower)
			rc = add_range(c, r[i].lo, r[i].hi);
		else if (r[i].lo > from)
			rc = add_range(c, (uint32_t)from, r[i].lo - 1);
		from = (uint64_t)r[i].hi + 1;
	}
	if (rc == 0 && letter != lower && from <= UINT32_MAX)
		rc = add_range(c, (uint32_t)from, UINT32_MAX);
	return rc;
}

static bool is_class(char c)
{
	return c && strchr("dDwWsS", c);
}

/* The character that an escape behind the backslash stands for; moves past it. */
static int escaped(struct compiler *c, uint32_t *out)
{
	static const char from[] = "nrtfv", to[] = "\n\r\t\f\v";
	const char *known = *c->p ? strchr(from, *c->p) : NULL;
	size_t n = 1;

	if (!*c->p)
		return fail(c, -EINVAL, "ends in a backslash");
	if (known)
		*out = (uint8_t)to[known - from];
	else if (dcp_pyre_is_word((uint8_t)*c->p) && !(*c->p & 0x80) && *c->p != '_')
		return fail(c, -ENOTSUP, "an escape that is not known here");
	else
		*out = dcp_pyre_decode(c->p, &n);
	c->p += n;
	return 0;
}

static int set_item(struct compiler *c, uint32_t *out, bool *class)
{
	size_t n;

	*class = false;
	if (*c->p != '\\') {
		*out = dcp_pyre_decode(c->p, &n);
		c->p += n;
		return 0;
	}
	c->p++;
	if (!is_class(*c->p))
		return escaped(c, out);
	*class = true;
	return add_class(c, *c->p++);
}

/* Behind the '['. */
static int parse_set(struct compiler *c)
{
	size_t first = c->nranges;
	bool negated = *c->p == '^', class;
	int rc = 0;

	c->p += negated;
	for (bool some = false; rc == 0 && (*c->p != ']' || !some); some = true) {
		uint32_t lo, hi;

		if (!*c->p)
			return fail(c, -EINVAL, "[ is not closed");
		rc = set_item(c, &lo, &class);
		if (rc < 0 || class)
			continue;
		hi = lo;
		if (c->p[0] == '-' && c->p[1] && c->p[1] != ']') {
			c->p++;
			rc = set_item(c, &hi, &class);
			if (rc == 0 && (class || hi < lo))
				rc = fail(c, -EINVAL, "a range that makes no sense");
		}
		if (rc == 0)
			rc = add_range(c, lo, hi);
	}
	if (rc < 0)
		return rc;
	c->p++;
	return end_set(c, first, negated);
}

static int parse_escape(struct compiler *c)
{
	size_t first = c->nranges;
	uint32_t ch;
	int rc;

	switch (*c->p) {
	case 'A':
		c->p++;
		return emit(c, DCP_PYRE_START, 0, 0, 0);
	case 'Z':
		c->p++;
		return emit(c, DCP_PYRE_LAST, 0, 0, 0);
	case 'b':
	case 'B':
		return emit(c, DCP_PYRE_WORD, 0, *c->p++ == 'B', 0);
	default:
		break;
	}
	if (is_class(*c->p)) {
		rc = add_class(c, *c->p++);
		return rc < 0 ? rc : end_set(c, first, false);
	}
	rc = escaped(c, &ch);
	return rc < 0 ? rc : emit(c, DCP_PYRE_CHAR, ch, 0, 0);
}

static int parse_choice(struct compiler *c);

/* Behind the '('. */
static int parse_group(struct compiler *c)
{
	int rc;

	if (c->p[0] == '?' && c->p[1] == ':') {
		c->p += 2;
	} else if (c->p[0] == '?' && c->p[1] == 'P' && c->p[2] == '<') {
		c->p += strcspn(c->p, ">)");
		if (*c->p != '>')
			return fail(c, -EINVAL, "a group's name is not closed");
		c->p++;
	} else if (c->p[0] == '?') {
		return fail(c, -ENOTSUP, "a group that does more than group");
	}
	if (++c->depth > DCP_PYRE_MAX_DEPTH)
		return fail(c, -E2BIG, "nested too deep");
	rc = parse_choice(c);
	c->depth--;
	if (rc < 0)
		return rc;
	if (*c->p != ')')
		return fail(c, -EINVAL, "( is not closed");
	c->p++;
	return 0;
}

static int parse_atom(struct compiler *c)
{
	uint32_t ch;
	size_t n;

	switch (*c->p) {
	case '(':
		c->p++;
		return parse_group(c);
	case '[':
		c->p++;
		return parse_set(c);
	case '\\':
		c->p++;
		return parse_escape(c);
	case '.':
		c->p++;
		return emit(c, DCP_PYRE_ANY, 0, 0, 0);
	case '^':
		c->p++;
		return emit(c, DCP_PYRE_START, 0, 0, 0);
	case '$':
		c->p++;
		return emit(c, DCP_PYRE_END, 0, 0, 0);
	case '*':
	case '+':
	case '?':
		return fail(c, -EINVAL, "nothing to repeat");
	default:
		ch = dcp_pyre_decode(c->p, &n);
		c->p += n;
		return emit(c, DCP_PYRE_CHAR, ch, 0, 0);
	}
}

/* {m}, {m,}, {,n}, {m,n}; anything else behind a brace is text, as in Python. */
static bool parse_counts(const char **p, uint32_t *min, uint32_t *max)
{
	char *end;
	const char *q = *p + 1;
	bool low = *q >= '0' && *q <= '9', comma;

	*min = low ? (uint32_t)DCP_MIN(strtoul(q, &end, 10), 0xfffful) : 0;
	q = low ? end : q;
	comma = *q == ',';
	q += comma;
	*max = comma ? UINT32_MAX : *min;
	if (comma && *q >= '0' && *q <= '9') {
		*max = (uint32_t)DCP_MIN(strtoul(q, &end, 10), 0xfffful);
		q = end;
	}
	if (*q != '}' || (!low && !comma))
		return false;
	*p = q + 1;
	return true;
}

/* The steps from @first on, once more at the end. */
static int copy_steps(struct compiler *c, size_t first, size_t n)
{
	uint32_t shift = (uint32_t)(c->n - first);
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < n; i++) {
		struct dcp_pyre_step s = *at(c, first + i);
		bool goes = s.op == DCP_PYRE_SPLIT || s.op == DCP_PYRE_JUMP;

		rc = emit(c, (enum dcp_pyre_op)s.op, s.c, goes ? s.x + shift : s.x,
			  goes ? s.y + shift : s.y);
	}
	return rc;
}

/* The steps [first, n) of an atom become @min to @max of them. */
static int repeat(struct compiler *c, size_t first, uint32_t min, uint32_t max)
{
	size_t n = c->n - first, from = first + 1;
	int rc = 0;

	/* A copy to work from, behind a jump over it that costs nothing. */
	if (max != UINT32_MAX && max < min)
		return fail(c, -EINVAL, "counts in the wrong order");
	rc = emit(c, DCP_PYRE_JUMP, 0, 0, 0);
	if (rc < 0)
		return rc;
	memmove(at(c, first + 1), at(c, first), n * sizeof(struct dcp_pyre_step));
	*at(c, first) =
		(struct dcp_pyre_step){ .op = DCP_PYRE_JUMP, .x = (uint32_t)(first + 1 + n) };
	for (size_t i = from; i < from + n; i++)
		if (at(c, i)->op == DCP_PYRE_SPLIT || at(c, i)->op == DCP_PYRE_JUMP) {
			at(c, i)->x++;
			at(c, i)->y++;
		}
	for (uint32_t i = 0; rc == 0 && i < min; i++)
		rc = copy_steps(c, from, n);
	if (max == UINT32_MAX) {
		size_t loop = c->n;

		if (rc == 0)
			rc = emit(c, DCP_PYRE_SPLIT, 0, (uint32_t)loop + 1,
				  (uint32_t)(loop + n + 2));
		if (rc == 0)
			rc = copy_steps(c, from, n);
		return rc == 0 ? emit(c, DCP_PYRE_JUMP, 0, (uint32_t)loop, 0) : rc;
	}
	for (uint32_t i = min; rc == 0 && i < max; i++) {
		size_t here = c->n;

		rc = emit(c, DCP_PYRE_SPLIT, 0, (uint32_t)here + 1, (uint32_t)(here + n + 1));
		if (rc == 0)
			rc = copy_steps(c, from, n);
	}
	return rc;
}

static int parse_piece(struct compiler *c)
{
	size_t first = c->n;
	uint32_t min = 1, max = 1;
	bool repeated = true;
	int rc = parse_atom(c);

	if (rc < 0)
		return rc;
	if (*c->p == '*')
		min = 0, max = UINT32_MAX, c->p++;
	else if (*c->p == '+')
		max = UINT32_MAX, c->p++;
	else if (*c->p == '?')
		min = 0, c->p++;
	else
		repeated = *c->p == '{' && parse_counts(&c->p, &min, &max);
	if (!repeated)
		return 0;
	c->p += *c->p == '?'; /* lazy or not, the same texts match */
	if (*c->p == '*' || *c->p == '+')
		return fail(c, -ENOTSUP, "a possessive or repeated repeat");
	return repeat(c, first, min, max);
}

static int parse_choice(struct compiler *c)
{
	size_t ends[64], nends = 0, first = c->n;
	int rc = 0;

	for (;;) {
		while (rc == 0 && *c->p && *c->p != '|' && *c->p != ')')
			rc = parse_piece(c);
		if (rc < 0 || *c->p != '|')
			break;
		c->p++;
		if (nends == DCP_LEN(ends))
			return fail(c, -E2BIG, "too many alternatives");
		/* split in front of this alternative, jump to the end behind it */
		rc = emit(c, DCP_PYRE_JUMP, 0, 0, 0);
		if (rc == 0)
			rc = emit(c, DCP_PYRE_JUMP, 0, 0, 0);
		if (rc < 0)
			return rc;
		memmove(at(c, first + 1), at(c, first),
			(c->n - 1 - first) * sizeof(struct dcp_pyre_step));
		for (size_t i = first + 1; i < c->n; i++)
			if (at(c, i)->op == DCP_PYRE_SPLIT || at(c, i)->op == DCP_PYRE_JUMP) {
				at(c, i)->x++;
				at(c, i)->y++;
			}
		*at(c, first) = (struct dcp_pyre_step){ .op = DCP_PYRE_SPLIT,
							.x = (uint32_t)first + 1,
							.y = (uint32_t)c->n };
		ends[nends++] = c->n - 1;
		first = c->n;
	}
	for (size_t i = 0; rc == 0 && i < nends; i++)
		at(c, ends[i])->x = (uint32_t)c->n;
	return rc;
}

static void *hand_over(struct dcp_arena *arena, const struct dcp_buf *b)
{
	return dcp_arena_strndup(arena, b->n ? b->p : "", b->n);
}

int dcp_pyre_compile(const char *pattern, struct dcp_arena *arena, struct dcp_pyre **out,
		     struct dcp_err *err)
{
	struct compiler c = { .p = pattern, .start = pattern, .err = err };
	struct dcp_pyre *re = dcp_arena_calloc(arena, 1, sizeof(*re));
	int rc = re ? parse_choice(&c) : -ENOMEM;

	if (rc == 0 && *c.p)
		rc = fail(&c, -EINVAL, ") without (");
	if (rc == 0)
		rc = emit(&c, DCP_PYRE_MATCH, 0, 0, 0);
	if (rc == 0) {
		re->step = hand_over(arena, &c.step);
		re->set = hand_over(arena, &c.set);
		re->range = hand_over(arena, &c.range);
		re->n = c.n;
		if (!re->step || !re->set || !re->range)
			rc = -ENOMEM;
	}
	dcp_buf_finish(&c.step);
	dcp_buf_finish(&c.set);
	dcp_buf_finish(&c.range);
	if (rc == -ENOMEM)
		return dcp_fail(err, rc, DCP_ERR_NO_OFFSET, "out of memory");
	if (rc == 0)
		*out = re;
	return rc;
}
