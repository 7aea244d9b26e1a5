/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patterns: compiled once into literals, stars, numbers and names. Matching allocates nothing,
 * and only the latest star is ever tried again: what an earlier one could give, the later one
 * gives too.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/text.h"
#include "core/rules/rules_int.h"

enum { MAX_DIGITS = 18 };

int dcp_rules_bad(const struct rules_parse *ps, const char *at, int code, const char *fmt, ...)
{
	char what[320];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	return dcp_fail(ps->err, code, "%.120s:%u:%u: %s", ps->r->name, ps->line,
			(unsigned)(at - ps->line_text) + 1, what);
}

static bool is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* The slot of that name; a star is always new. */
static int slot_of(struct rules_parse *ps, struct rule *rule, const char *at, const char *name,
		   size_t n, bool is_source, uint8_t *out)
{
	const char *known;

	for (uint32_t i = 0; *name != '*' && i < rule->nslot; i++)
		if (strlen(rule->slot_name[i]) == n && !memcmp(rule->slot_name[i], name, n)) {
			*out = (uint8_t)i;
			return 0;
		}
	if (rule->nslot == DCP_RULES_MAX_SLOTS)
		return dcp_rules_bad(ps, at, -E2BIG, "more than %d slots in a rule",
				     DCP_RULES_MAX_SLOTS);
	known = dcp_arena_strndup(&ps->r->arena, name, n);
	if (!known)
		return -ENOMEM;
	*out = (uint8_t)rule->nslot;
	if (!is_source) { /* for unstack() to count; whether it does is seen when all is read */
		rule->each |= 1u << *out;
		rule->each_at[*out] = at;
	}
	rule->slot_name[rule->nslot++] = known;
	return 0;
}

/* The @k-th star of this pattern is the k-th of the left side. */
static int star_of(struct rules_parse *ps, struct rule *rule, const char *at, uint32_t k,
		   bool is_source, uint8_t *out)
{
	for (uint32_t i = 0; i < rule->nslot; i++)
		if (rule->slot_name[i][0] == '*' && k-- == 0) {
			*out = (uint8_t)i;
			return 0;
		}
	if (is_source)
		return slot_of(ps, rule, at, "*", 1, true, out);
	return bad_text(ps, at, "the left side has no * for this one");
}

/* "4" or "layers" at *@s, moved past it: what is added to a number. False: neither. */
static bool added(const char **s, const char *end, struct pattern_op *op)
{
	const char *from = *s;

	if (dcp_take_number(s, end, MAX_DIGITS, &op->add))
		return true;
	while (*s < end && is_letter(**s))
		++*s;
	op->word = (uint32_t)(dcp_rules_word_at(from, (size_t)(*s - from)) + 1);
	return op->word != 0;
}

/* "i}", "i+4}" or "i+layers}" after the bracket at *@s, moved past it. */
static int number_op(struct rules_parse *ps, struct rule *rule, const char **s, const char *end,
		     bool is_source, struct pattern_op *op)
{
	const char *at = *s - 1, *name = *s, *p = name;
	bool is_name;
	size_t n;
	int rc;

	while (p < end && (is_letter(*p) || (p > name && dcp_is_digit(*p))))
		p++;
	n = (size_t)(p - name);
	is_name = n == 4 && memcmp(name, "from", 4) == 0;
	if (!is_source && !is_name && p < end && (*p == '+' || *p == '-')) {
		op->minus = *p++ == '-';
		if (!added(&p, end, op))
			n = 0;
	}
	if (n == 0 || n > 31 || p == end || *p != '}')
		return bad_text(ps, at, "a slot is written {i}%s; a bracket by itself \\{",
				is_source ? "" : ", {i+4} or {i+layers}");
	*s = p + 1;
	op->kind = is_name ? PATTERN_NAME : PATTERN_NUMBER;
	rc = slot_of(ps, rule, at, name, n, is_source, &op->slot);
	if (rc == 0 && is_name)
		rule->name = op->slot;
	return rc;
}

/* Literal bytes at *@s, copied to *@text. */
static int literal_op(struct rules_parse *ps, const char **s, const char *end, char **text,
		      struct pattern_op *op)
{
	const char *p = *s;

	op->kind = PATTERN_LITERAL;
	op->text = *text;
	for (; p < end && *p != '*' && *p != '{'; p++) {
		if (*p == '\\' && ++p == end)
			return bad_text(ps, p - 1, "a pattern ends in a lone \\");
		*(*text)++ = *p;
		op->n++;
	}
	*s = p;
	return 0;
}

int dcp_rules_pattern(struct rules_parse *ps, struct rule *rule, const char *s, size_t n,
		      bool is_source, struct pattern *out)
{
	const char *end = s + n;
	struct pattern_op *op;
	uint32_t stars = 0;
	char *text;
	int rc = 0;

	if (n > DCP_RULES_MAX_PATTERN)
		return dcp_rules_bad(ps, s, -E2BIG, "a pattern of %zu bytes; the limit is %d",
				     n, DCP_RULES_MAX_PATTERN);
	*out = (struct pattern){ .text = dcp_arena_strndup(&ps->r->arena, s, n),
				 .column = (unsigned)(s - ps->line_text) + 1 };
	op = dcp_arena_calloc(&ps->r->arena, n, sizeof(*op));
	text = dcp_arena_alloc(&ps->r->arena, n);
	if (!out->text || !op || !text)
		return -ENOMEM;
	out->op = op;
	for (; rc == 0 && s < end; op++, out->nop++) {
		if (*s == '{') {
			s++;
			rc = number_op(ps, rule, &s, end, is_source, op);
		} else if (*s == '*') {
			op->kind = PATTERN_STAR;
			rc = star_of(ps, rule, s++, stars++, is_source, &op->slot);
		} else {
			rc = literal_op(ps, &s, end, &text, op);
		}
		if (rc == 0 && op->kind != PATTERN_LITERAL) {
			if (is_source && out->nop && op[-1].kind == op->kind)
				return bad_text(ps, s - 1,
						"two slots need something between them");
			out->slots |= 1u << op->slot;
		}
	}
	return rc;
}

/* A whole number at @at of the key. */
static bool match_number(const char *key, size_t n, size_t *at, struct slot_value *out)
{
	const char *s = key + *at, *p = s;

	*out = (struct slot_value){ .s = s };
	if ((*at > 0 && dcp_is_digit(s[-1])) ||
	    !dcp_take_number(&p, key + n, MAX_DIGITS, &out->number))
		return false;
	out->n = (size_t)(p - s);
	*at += out->n;
	return true;
}

/* All that stands between two dots, or a dot and an end of the key. */
static bool match_name(const char *key, size_t n, size_t *at, struct slot_value *out)
{
	size_t from = *at;

	if (from > 0 && key[from - 1] != '.')
		return false;
	while (*at < n && key[*at] != '.')
		++*at;
	*out = (struct slot_value){ .s = key + from, .n = *at - from };
	return out->n > 0;
}

static bool match_op(const struct pattern_op *op, const char *key, size_t n, size_t *at,
		     struct slot_value *value)
{
	if (op->kind == PATTERN_NUMBER)
		return match_number(key, n, at, &value[op->slot]);
	if (op->kind == PATTERN_NAME)
		return match_name(key, n, at, &value[op->slot]);
	if (op->n > n - *at || memcmp(key + *at, op->text, op->n) != 0)
		return false;
	*at += op->n;
	return true;
}

static bool same_text(const struct slot_value *a, const struct slot_value *b)
{
	return a->n == b->n && memcmp(a->s, b->s, a->n) == 0;
}

/* A slot that stands twice must be the same both times. */
static bool match_slot(const struct pattern_op *op, const char *key, size_t n, size_t *at,
		       struct slot_value *value, uint32_t *set)
{
	struct slot_value was = value[op->slot];

	if (op->kind == PATTERN_LITERAL)
		return match_op(op, key, n, at, value);
	if (!(*set & 1u << op->slot)) {
		*set |= 1u << op->slot;
		return match_op(op, key, n, at, value);
	}
	if (match_op(op, key, n, at, value) && value[op->slot].number == was.number &&
	    (op->kind == PATTERN_NUMBER || same_text(&value[op->slot], &was)))
		return true;
	value[op->slot] = was;
	return false;
}

bool dcp_rules_match(const struct pattern *p, const char *key, size_t n,
		     struct slot_value *value)
{
	const struct pattern_op *last = &p->op[p->nop - 1];
	uint32_t i = 0, star = UINT32_MAX, set = 0, set_before = 0;
	size_t at = 0, tried = 0;

	/* Keys of one layer differ at their ends. */
	if (last->kind == PATTERN_LITERAL &&
	    (last->n > n || memcmp(key + n - last->n, last->text, last->n) != 0))
		return false;
	for (;;) {
		if (i < p->nop && p->op[i].kind == PATTERN_STAR) {
			star = i;
			tried = at;
			value[p->op[i++].slot] = (struct slot_value){ .s = key + at };
			set_before = set;
			continue;
		}
		if (i == p->nop && at == n)
			return true;
		if (i < p->nop && match_slot(&p->op[i], key, n, &at, value, &set)) {
			i++;
			continue;
		}
		if (star == UINT32_MAX || tried == n)
			return false;
		at = ++tried;
		i = star + 1;
		set = set_before;
		value[p->op[star].slot].n++;
	}
}

int dcp_rules_expand(const struct pattern *p, const struct slot_value *value,
		     const struct dcp_rules_config *config, struct dcp_buf *out)
{
	for (uint32_t i = 0; i < p->nop; i++) {
		const struct pattern_op *op = &p->op[i];
		uint64_t add = op->word ? dcp_rules_word_value(op->word - 1, config) : op->add,
			 number;

		if (op->word && add == 0)
			return -EINVAL;
		if (op->kind == PATTERN_LITERAL) {
			dcp_buf_add(out, op->text, op->n);
			continue;
		}
		if (op->kind != PATTERN_NUMBER || add == 0) {
			dcp_buf_add(out, value[op->slot].s, value[op->slot].n);
			continue;
		}
		number = value[op->slot].number;
		if (op->minus ? number < add : dcp_ckd_add(&number, number, add))
			return -ERANGE;
		dcp_buf_printf(out, "%llu",
			       (unsigned long long)(op->minus ? number - add : number));
	}
	return 0;
}
