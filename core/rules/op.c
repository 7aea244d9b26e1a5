/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of a rule as text: their names and numbers, and whether they fit its keys. */
#include "core/rules/rules_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/base/text.h"

enum { NAME = 24 };

static const char *blanks(const char *s, const char *end)
{
	while (s < end && (*s == ' ' || *s == '\t' || *s == '\r'))
		s++;
	return s < end && *s == '#' ? end : s;
}

/* Letters, digits and _ at *@s, moved past them. */
static struct word name_at(const char **s, const char *end)
{
	struct word w = { .s = *s };

	while (*s < end && ((**s >= 'a' && **s <= 'z') || (**s >= 'A' && **s <= 'Z') ||
			    (**s >= '0' && **s <= '9') || **s == '_'))
		++*s;
	w.n = (size_t)(*s - w.s);
	return w;
}

static bool is(struct word w, const char *text)
{
	return w.n == strlen(text) && memcmp(w.s, text, w.n) == 0;
}

/* ", nearest is X" for a word that is not a name of @n things. */
static const char *nearest(struct word w, const char *(*name)(size_t i), size_t n, char out[64])
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

static int decimal(struct rules_parse *ps, struct word w, uint64_t *out)
{
	const char *s = w.s, *end = s + w.n;

	if (dcp_take_number(&s, end, DCP_ANY_DIGITS, out) && s == end)
		return 0;
	return bad_text(ps, w.s, "%.*s is not a number", (int)DCP_MIN(w.n, (size_t)60), w.s);
}

static int factor(struct rules_parse *ps, const char **s, struct factor *out)
{
	struct word w = name_at(s, ps->end);
	char near[64];

	if (w.n == 0)
		return bad_text(ps, w.s, "expected a number");
	out->word = dcp_rules_word_at(w.s, w.n);
	if (dcp_is_digit(*w.s))
		return decimal(ps, w, &out->value);
	if (out->word >= 0)
		return 0;
	return bad_text(ps, w.s, "%.*s is not a number of a model%s",
			(int)DCP_MIN(w.n, (size_t)60), w.s,
			nearest(w, dcp_rules_word, dcp_rules_nwords, near));
}

static int amount(struct rules_parse *ps, const char **s, struct amount *out)
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
		rc = factor(ps, s, &out->f[out->n]);
		if (rc < 0)
			return rc;
		out->f[out->n++].divide = divide;
		if (*s == ps->end || (**s != '*' && **s != '/'))
			return 0;
		divide = *(*s)++ == '/';
	}
}

/* "{e}" at *@s. */
static int slot(struct rules_parse *ps, const struct rule *rule, const char **s, struct op *op)
{
	const char *at = (*s)++;
	struct word w = name_at(s, ps->end);

	if (*s == ps->end || **s != '}')
		return bad_text(ps, at, "a slot is written {e}");
	++*s;
	for (uint32_t i = 0; i < rule->nslot; i++)
		if (is(w, rule->slot_name[i])) {
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
static int dtype(struct rules_parse *ps, const char **s, struct op *op)
{
	struct word w;

	*s = blanks(*s, ps->end);
	w = name_at(s, ps->end);
	op->dtype = dcp_rules_dtype(w.s, w.n);
	if (!op->dtype)
		return bad_text(ps, w.s, "expected f32, bf16 or f16");
	*s = blanks(*s, ps->end);
	if (*s == ps->end || **s != ')')
		return bad_text(ps, *s, "expected )");
	++*s;
	return 0;
}

static int order(struct rules_parse *ps, const char **s, struct op *op)
{
	struct word w = name_at(s, ps->end);

	if (dcp_rules_qkv_order(w.s, w.n, &op->order))
		return 0;
	return bad_text(ps, w.s, "expected parts_first, parts_last or stored");
}

/* After the opening bracket: numbers, one list of numbers, a slot, an order; up to the closing
 * one. */
static int args(struct rules_parse *ps, const struct rule *rule, const char **s, struct op *op)
{
	struct amount *arg = dcp_arena_calloc(&ps->r->arena, RULES_MAX_ARGS, sizeof(*arg));
	bool in_list = false, closed = false;
	int rc = arg ? 0 : -ENOMEM;

	op->arg = arg;
	while (rc == 0) {
		*s = blanks(*s, ps->end);
		if (*s < ps->end && **s == '[' && op->def->list && !op->is_list) {
			op->is_list = in_list = true;
			*s = blanks(*s + 1, ps->end);
		}
		if (op->narg == RULES_MAX_ARGS)
			return dcp_rules_bad(ps, *s, -E2BIG, "more than %d numbers",
					     RULES_MAX_ARGS);
		if (*s < ps->end && **s == '{' && op->slot == RULES_NO_SLOT && !in_list)
			rc = slot(ps, rule, s, op);
		else if (op->def->order && op->narg == op->def->most && !closed)
			rc = order(ps, s, op), closed = true;
		else
			rc = amount(ps, s, &arg[op->narg++]);
		if (rc < 0)
			return rc;
		*s = blanks(*s, ps->end);
		if (in_list && *s < ps->end && **s == ']') {
			in_list = false;
			closed = true;
			*s = blanks(*s + 1, ps->end);
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

static int one_op(struct rules_parse *ps, const struct rule *rule, const char **s,
		  struct op *op)
{
	const char *at = *s;
	struct word w = name_at(s, ps->end);
	char near[64];
	size_t i = 0;
	int rc = 0;

	while (i < dcp_rules_nop_defs && !is(w, dcp_rules_op_defs[i].name))
		i++;
	if (i == dcp_rules_nop_defs)
		return bad_text(ps, at, "%.*s is not an operation%s",
				(int)DCP_MIN(DCP_MAX(w.n, (size_t)1), (size_t)60), at,
				nearest(w, op_name, dcp_rules_nop_defs, near));
	*op = (struct op){ .def = &dcp_rules_op_defs[i], .slot = RULES_NO_SLOT };
	if (*s < ps->end && **s == '(') {
		++*s;
		rc = op->def->dtype ? dtype(ps, s, op) : args(ps, rule, s, op);
	}
	if (rc == 0 && *s < ps->end && !strchr(" \t\r", **s))
		rc = bad_text(ps, *s, "a blank stands between operations");
	return rc < 0 ? rc : check_args(ps, at, op);
}

/* ---- do they fit the keys? ---- */

/* How many tensors there are after it, @k, and which slots it takes. */
static int step(struct rules_parse *ps, struct rule *rule, const char *at, const struct op *op,
		uint64_t *k)
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

	for (s = blanks(s, ps->end); rc == 0 && s < ps->end; s = blanks(s, ps->end)) {
		const char *at = s;

		if (rule->nop == RULES_MAX_OPS)
			return dcp_rules_bad(ps, s, -E2BIG, "more than %d operations",
					     RULES_MAX_OPS);
		rc = one_op(ps, rule, &s, &list[rule->nop]);
		if (rc == 0)
			rc = step(ps, rule, at, &list[rule->nop++], &k);
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
