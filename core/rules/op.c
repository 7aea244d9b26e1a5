/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of a rule as text: their names and numbers, and whether they fit its keys. */
#include "core/rules/rules_int.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/text.h"

/*
 * Patterns: compiled once into literals, stars, numbers and names. Matching allocates nothing, and
 * only the latest star is ever tried again: every match with an earlier star is also found with the
 * later one.
 */

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

/* The slot of that name; a star always makes a new slot. */
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
	if (!is_source) { /* a slot that unstack() must count; checked once the line is parsed */
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

/* Parse the amount added to a number, "4" or "layers", at *@s and advance *@s past it. False:
 * neither. */
static bool parse_added(const char **s, const char *end, struct pattern_op *op)
{
	const char *from = *s;

	if (dcp_take_number(s, end, MAX_DIGITS, &op->add))
		return true;
	while (*s < end && is_letter(**s))
		++*s;
	op->word = (uint32_t)(dcp_rules_word_at(from, (size_t)(*s - from)) + 1);
	return op->word != 0;
}

/* Parse "i}", "i+4}" or "i+layers}" after the bracket at *@s and advance *@s past it. */
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
		if (!parse_added(&p, end, op))
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

/* Copy the literal bytes at *@s to *@text. */
static int take_literal(struct rules_parse *ps, const char **s, const char *end, char **text,
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
			rc = take_literal(ps, &s, end, &text, op);
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

/* Match a whole number at @at of the key. */
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

/* Match a whole component of the key: up to a dot or an end of the key on both sides. */
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

/* A slot that occurs twice must have the same value both times. */
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

	/* Compare the end first: keys of one layer differ there. */
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

enum { NAME = 24 };

static const char *skip_blanks(const char *s, const char *end)
{
	while (s < end && (*s == ' ' || *s == '\t' || *s == '\r'))
		s++;
	return s < end && *s == '#' ? end : s;
}

/* Parse letters, digits and _ at *@s and advance *@s past them. */
static struct word name_at(const char **s, const char *end)
{
	struct word w = { .s = *s };

	while (*s < end && ((**s >= 'a' && **s <= 'z') || (**s >= 'A' && **s <= 'Z') ||
			    (**s >= '0' && **s <= '9') || **s == '_'))
		++*s;
	w.n = (size_t)(*s - w.s);
	return w;
}

static bool is_word(struct word w, const char *text)
{
	return w.n == strlen(text) && memcmp(w.s, text, w.n) == 0;
}

/* Write ", nearest is X" for a word that is not one of @n names. */
static const char *write_nearest(struct word w, const char *(*name)(size_t i), size_t n,
				 char out[64])
{
	char text[NAME] = "";
	const char *found = NULL;
	struct dcp_near near;

	memcpy(text, w.s, DCP_MIN(w.n, sizeof(text) - 1));
	near = dcp_near_to(text);
	for (size_t i = 0; i < n; i++)
		if (dcp_near_take(&near, name(i)))
			found = name(i);
	*out = '\0';
	if (found)
		snprintf(out, 64, ", nearest is \"%s\"", found);
	return out;
}

static const char *op_name(size_t i)
{
	return dcp_rules_op_defs[i].name;
}

static int parse_decimal(struct rules_parse *ps, struct word w, uint64_t *out)
{
	const char *s = w.s, *end = s + w.n;

	if (dcp_take_number(&s, end, DCP_ANY_DIGITS, out) && s == end)
		return 0;
	return bad_text(ps, w.s, "%.*s is not a number", (int)DCP_MIN(w.n, (size_t)60), w.s);
}

static int parse_factor(struct rules_parse *ps, const char **s, struct factor *out)
{
	struct word w = name_at(s, ps->end);
	char near[64];

	if (w.n == 0)
		return bad_text(ps, w.s, "expected a number");
	out->word = dcp_rules_word_at(w.s, w.n);
	if (dcp_is_digit(*w.s))
		return parse_decimal(ps, w, &out->value);
	if (out->word >= 0)
		return 0;
	return bad_text(ps, w.s, "%.*s is not a number of a model%s",
			(int)DCP_MIN(w.n, (size_t)60), w.s,
			write_nearest(w, dcp_rules_word, dcp_rules_nwords, near));
}

static int parse_amount(struct rules_parse *ps, const char **s, struct amount *out)
{
	bool divide = false;

	if (*s < ps->end && **s == '-') {
		out->minus = true;
		++*s;
	}
	for (;;) {
		int rc;

		if (out->n == RULES_MAX_FACTORS)
			return dcp_rules_bad(ps, *s, -E2BIG, "more than %d factors",
					     RULES_MAX_FACTORS);
		rc = parse_factor(ps, s, &out->f[out->n]);
		if (rc < 0)
			return rc;
		out->f[out->n++].divide = divide;
		if (*s == ps->end || (**s != '*' && **s != '/'))
			return 0;
		divide = *(*s)++ == '/';
	}
}

/* "{e}" at *@s. */
static int parse_slot(struct rules_parse *ps, const struct rule *rule, const char **s,
		      struct op *op)
{
	const char *at = (*s)++;
	struct word w = name_at(s, ps->end);

	if (*s == ps->end || **s != '}')
		return bad_text(ps, at, "a slot is written {e}");
	++*s;
	for (uint32_t i = 0; i < rule->nslot; i++)
		if (is_word(w, rule->slot_name[i])) {
			op->slot = (uint8_t)i;
			return 0;
		}
	return bad_text(ps, at, "no key of the rule has a slot {%.*s}",
			(int)DCP_MIN(w.n, (size_t)60), w.s);
}

enum dcp_dtype dcp_rules_dtype(const char *name, size_t n)
{
	static const enum dcp_dtype known[] = { DCP_DTYPE_F32, DCP_DTYPE_BF16, DCP_DTYPE_F16 };

	for (size_t i = 0; i < DCP_LEN(known); i++)
		if (dcp_dtype_from_torch(name, n) == known[i] ||
		    (strlen(dcp_dtype_info(known[i])->name) == n &&
		     strncasecmp(dcp_dtype_info(known[i])->name, name, n) == 0))
			return known[i];
	return DCP_DTYPE_OTHER;
}

/* "bf16)" */
static int parse_dtype(struct rules_parse *ps, const char **s, struct op *op)
{
	struct word w;

	*s = skip_blanks(*s, ps->end);
	w = name_at(s, ps->end);
	op->dtype = dcp_rules_dtype(w.s, w.n);
	if (!op->dtype)
		return bad_text(ps, w.s, "expected f32, bf16 or f16");
	*s = skip_blanks(*s, ps->end);
	if (*s == ps->end || **s != ')')
		return bad_text(ps, *s, "expected )");
	++*s;
	return 0;
}

static int parse_order(struct rules_parse *ps, const char **s, struct op *op)
{
	struct word w = name_at(s, ps->end);

	if (dcp_rules_qkv_order(w.s, w.n, &op->order))
		return 0;
	return bad_text(ps, w.s, "expected parts_first, parts_last or stored");
}

/* Parse arguments after the opening bracket, up to the closing one: numbers, one list of numbers, a
 * slot, an order. */
static int parse_args(struct rules_parse *ps, const struct rule *rule, const char **s,
		      struct op *op)
{
	struct amount *arg = dcp_arena_calloc(&ps->r->arena, RULES_MAX_ARGS, sizeof(*arg));
	bool in_list = false, closed = false;
	int rc = arg ? 0 : -ENOMEM;

	op->arg = arg;
	while (rc == 0) {
		*s = skip_blanks(*s, ps->end);
		if (*s < ps->end && **s == '[' && op->def->list && !op->is_list) {
			op->is_list = in_list = true;
			*s = skip_blanks(*s + 1, ps->end);
		}
		if (op->narg == RULES_MAX_ARGS)
			return dcp_rules_bad(ps, *s, -E2BIG, "more than %d numbers",
					     RULES_MAX_ARGS);
		if (*s < ps->end && **s == '{' && op->slot == RULES_NO_SLOT && !in_list)
			rc = parse_slot(ps, rule, s, op);
		else if (op->def->order && op->narg == op->def->most && !closed)
			rc = parse_order(ps, s, op), closed = true;
		else
			rc = parse_amount(ps, s, &arg[op->narg++]);
		if (rc < 0)
			return rc;
		*s = skip_blanks(*s, ps->end);
		if (in_list && *s < ps->end && **s == ']') {
			in_list = false;
			closed = true;
			*s = skip_blanks(*s + 1, ps->end);
		}
		if (*s < ps->end && **s == ')' && !in_list) {
			++*s;
			return 0;
		}
		if (*s == ps->end || **s != ',' || closed)
			return bad_text(ps, *s, "expected %c%s", in_list ? ']' : ')',
					closed ? "" : " or a comma");
		++*s;
	}
	return rc;
}

static int check_args(struct rules_parse *ps, const char *at, const struct op *op)
{
	const struct op_def *def = op->def;
	bool slot_ok = op->slot == RULES_NO_SLOT ? def->slot != OP_SLOT_COUNTS
						 : def->slot != OP_SLOT_NEVER;
	bool ok = slot_ok && def->dtype == !!op->dtype && op->narg >= def->least &&
		  (op->narg <= def->most || op->is_list);

	for (uint32_t i = 0; i < op->narg; i++) {
		const struct amount *a = &op->arg[i];
		bool dim = def->dims == OP_DIMS_ALL || (i < 8 && def->dims >> i & 1);

		ok &= !a->minus || (dim && a->n == 1 && a->f[0].word < 0);
	}
	return ok ? 0 : bad_text(ps, at, "it is written %s", def->usage);
}

static int parse_op(struct rules_parse *ps, const struct rule *rule, const char **s,
		    struct op *op)
{
	const char *at = *s;
	struct word w = name_at(s, ps->end);
	char near[64];
	size_t i = 0;
	int rc = 0;

	while (i < dcp_rules_nop_defs && !is_word(w, dcp_rules_op_defs[i].name))
		i++;
	if (i == dcp_rules_nop_defs)
		return bad_text(ps, at, "%.*s is not an operation%s",
				(int)DCP_MIN(DCP_MAX(w.n, (size_t)1), (size_t)60), at,
				write_nearest(w, op_name, dcp_rules_nop_defs, near));
	*op = (struct op){ .def = &dcp_rules_op_defs[i], .slot = RULES_NO_SLOT };
	if (*s < ps->end && **s == '(') {
		++*s;
		rc = op->def->dtype ? parse_dtype(ps, s, op) : parse_args(ps, rule, s, op);
	}
	if (rc == 0 && *s < ps->end && !strchr(" \t\r", **s))
		rc = bad_text(ps, *s, "a blank stands between operations");
	return rc < 0 ? rc : check_args(ps, at, op);
}

/* ---- do they fit the keys? ---- */

/* Check one operation: update @k, the number of tensors after it, and the slots that it uses up. */
static int check_step(struct rules_parse *ps, struct rule *rule, const char *at,
		      const struct op *op, uint64_t *k)
{
	const struct op_def *def = op->def;
	bool left = op->slot != RULES_NO_SLOT && !(rule->each >> op->slot & 1);
	uint64_t parts = 1;

	if (def->slot == OP_SLOT_JOINS && op->slot == RULES_NO_SLOT)
		*k = 1;
	if (def->slot == OP_SLOT_JOINS && op->slot != RULES_NO_SLOT) {
		if (!left || rule->join != RULES_NO_SLOT)
			return bad_text(ps, at,
					"keys are joined once, over a slot of the left side");
		rule->join = op->slot;
	}
	if (def->slot == OP_SLOT_COUNTS) {
		if (left || !rule->each_at[op->slot])
			return bad_text(ps, at,
					"{%s} is counted on the right side, once, and does not "
					"stand on the left",
					rule->slot_name[op->slot]);
		rule->each_at[op->slot] = NULL;
	}
	if (def->list) {
		parts = op->is_list ? op->narg - 1 : op->arg[1].f[0].value;
		if (!op->is_list &&
		    (op->arg[1].n > 1 || op->arg[1].f[0].word >= 0 || parts == 0))
			return bad_text(ps, at,
					"into how many parts? split(0, 2), or their sizes: "
					"split(0, [2, 1, 1])");
	}
	if (def->per && op->narg > 1 && op->narg != *k)
		return bad_text(ps, at, "found %u numbers of heads for %llu tensor%s", op->narg,
				(unsigned long long)*k, *k == 1 ? "" : "s");
	if (def->of && *k != def->of)
		return bad_text(ps, at, "%s is of %u tensor%s, not of %llu", def->name, def->of,
				def->of == 1 ? "" : "s", (unsigned long long)*k);
	*k = def->of ? def->to : DCP_MIN(*k * DCP_MIN(parts, 1000u), 1000u);
	return 0;
}

/* Every key on the left has the same slots; a key on the right has the slots that remain. */
static int check_slots(struct rules_parse *ps, const struct rule *rule)
{
	uint32_t joined = rule->join == RULES_NO_SLOT ? 0 : 1u << rule->join;

	for (uint32_t i = 1; i < rule->nsrc; i++)
		if (rule->src[i].slots != rule->src[0].slots)
			return bad_text(ps, ps->line_text + rule->src[i].column - 1,
					"keys that become one have the same slots");
	for (uint32_t i = 0; i < rule->ndst; i++)
		if (rule->dst[i].slots & joined)
			return bad_text(ps, ps->line_text + rule->dst[i].column - 1,
					"{%s} was joined over", rule->slot_name[rule->join]);
	for (uint32_t i = 0; i < rule->nslot; i++)
		if (rule->each_at[i])
			return bad_text(ps, rule->each_at[i], "{%s} is not on the left side",
					rule->slot_name[i]);
	return 0;
}

int dcp_rules_ops(struct rules_parse *ps, struct rule *rule, const char *s)
{
	struct op list[RULES_MAX_OPS], *kept;
	uint64_t k = rule->nsrc;
	int rc = 0;

	for (s = skip_blanks(s, ps->end); rc == 0 && s < ps->end; s = skip_blanks(s, ps->end)) {
		const char *at = s;

		if (rule->nop == RULES_MAX_OPS)
			return dcp_rules_bad(ps, s, -E2BIG, "more than %d operations",
					     RULES_MAX_OPS);
		rc = parse_op(ps, rule, &s, &list[rule->nop]);
		if (rc == 0)
			rc = check_step(ps, rule, at, &list[rule->nop++], &k);
	}
	if (rc == 0)
		rc = check_slots(ps, rule);
	if (rc < 0)
		return rc;
	if (k != rule->ndst)
		return bad_text(ps, ps->line_text + rule->dst[0].column - 1,
				"%llu tensor%s, and %u key%s for what comes out",
				(unsigned long long)k, k == 1 ? "" : "s", rule->ndst,
				rule->ndst == 1 ? "" : "s");
	kept = dcp_arena_calloc(&ps->r->arena, rule->nop + 1, sizeof(*kept));
	if (!kept)
		return -ENOMEM;
	memcpy(kept, list, rule->nop * sizeof(*kept));
	rule->op = kept;
	return 0;
}
