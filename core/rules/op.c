/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of a rule as text: their names and numbers, and whether they fit its keys. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/base/near.h"
#include "core/rules/rules_int.h"

enum { MAX_ARGS = 64, NAME = 24 };

/* Numbers behind the name, from least to most; a slot beside them: 0 never, 1 maybe, 2 always. */
static const struct {
	const char *name;
	uint8_t least, most, slot;
	bool list; /* a list as its last argument, too */
	const char *usage;
} ops[] = {
	[OP_T] = { "T", 0, 0, 0, false, "T" },
	[OP_PERMUTE] = { "permute", 1, MAX_ARGS, 0, false, "permute(1, 0)" },
	[OP_RESHAPE] = { "reshape", 1, MAX_ARGS, 0, false, "reshape(heads, -1, hidden)" },
	[OP_NARROW] = { "narrow", 3, 3, 0, false, "narrow(dimension, from, length)" },
	[OP_UNPAD] = { "unpad", 1, 2, 0, false, "unpad(vocab)" },
	[OP_ROPE] = { "rope", 1, 1, 0, false, "rope(heads)" },
	[OP_UNROPE] = { "unrope", 1, 1, 0, false, "unrope(heads)" },
	[OP_QKV] = { "qkv", 2, 2, 0, false, "qkv(heads, kv_heads)" },
	[OP_FUSE_QKV] = { "fuse_qkv", 2, 2, 0, false, "fuse_qkv(heads, kv_heads)" },
	[OP_CONCAT] = { "concat", 1, 1, 1, false, "concat(0)" },
	[OP_STACK] = { "stack", 1, 1, 1, false, "stack(0) or stack(0, {e})" },
	[OP_SPLIT] = { "split", 1, 2, 0, true, "split(0, 2) or split(0, [2, 1, 1])" },
	[OP_UNSTACK] = { "unstack", 1, 1, 2, false, "unstack(0, {e})" },
};

static const struct {
	const char *name;
	size_t at;
} words[] = {
	{ "heads", offsetof(struct dcp_rules_config, heads) },
	{ "kv_heads", offsetof(struct dcp_rules_config, kv_heads) },
	{ "head_dim", offsetof(struct dcp_rules_config, head_dim) },
	{ "hidden", offsetof(struct dcp_rules_config, hidden) },
	{ "intermediate", offsetof(struct dcp_rules_config, intermediate) },
	{ "layers", offsetof(struct dcp_rules_config, layers) },
	{ "vocab", offsetof(struct dcp_rules_config, vocab) },
	{ "experts", offsetof(struct dcp_rules_config, experts) },
};

const char *dcp_rules_op_name(enum op_kind kind)
{
	return ops[kind].name;
}

int dcp_rules_amount(const struct amount *a, const struct dcp_rules_config *config,
		     uint64_t *out, struct dcp_err *err)
{
	*out = 1;
	for (uint32_t i = 0; i < a->n; i++) {
		const struct factor *f = &a->f[i];
		uint64_t v = f->value;

		if (f->word >= 0) {
			v = 0;
			if (config)
				memcpy(&v, (const char *)config + words[f->word].at, sizeof(v));
			if (v == 0)
				return dcp_fail(err, -EINVAL, DCP_ERR_NO_OFFSET,
						"it needs %s, which no config.json tells",
						words[f->word].name);
		}
		if (f->divide && (v == 0 || *out % v))
			return dcp_fail(err, -EINVAL, DCP_ERR_NO_OFFSET,
					"%llu is no multiple of %llu", (unsigned long long)*out,
					(unsigned long long)v);
		if (f->divide)
			*out /= v;
		else if (dcp_ckd_mul(out, *out, v))
			return dcp_fail(err, -EINVAL, DCP_ERR_NO_OFFSET,
					"its numbers leave 64 bits");
	}
	return 0;
}

/* ---- text ---- */

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

/* ", nearest is X" for a word that is no name of @n things. */
static const char *nearest(struct word w, const char *(*name)(size_t i), size_t n, char out[64])
{
	char text[NAME] = "";
	const char *found = NULL;
	size_t best;

	memcpy(text, w.s, DCP_MIN(w.n, sizeof(text) - 1));
	best = dcp_near_limit(text) + 1;
	for (size_t i = 0; i < n; i++) {
		size_t d = dcp_near_distance(text, name(i), best);

		if (d < best) {
			best = d;
			found = name(i);
		}
	}
	*out = '\0';
	if (found)
		snprintf(out, 64, ", nearest is \"%s\"", found);
	return out;
}

static const char *op_name(size_t i)
{
	return ops[i].name;
}

static const char *word_name(size_t i)
{
	return words[i].name;
}

static int decimal(struct rules_parse *ps, struct word w, uint64_t *out)
{
	*out = 0;
	for (size_t i = 0; i < w.n; i++)
		if (w.s[i] < '0' || w.s[i] > '9' || dcp_ckd_mul(out, *out, 10) ||
		    dcp_ckd_add(out, *out, (uint64_t)(w.s[i] - '0')))
			return dcp_rules_bad(ps, w.s, -EINVAL, "%.*s is no number",
					     (int)DCP_MIN(w.n, (size_t)60), w.s);
	return 0;
}

static int factor(struct rules_parse *ps, const char **s, struct factor *out)
{
	struct word w = name_at(s, ps->end);
	char near[64];

	if (w.n == 0)
		return dcp_rules_bad(ps, w.s, -EINVAL, "a number stands here");
	out->word = -1;
	if (*w.s >= '0' && *w.s <= '9')
		return decimal(ps, w, &out->value);
	for (size_t i = 0; i < DCP_LEN(words); i++)
		if (is(w, words[i].name)) {
			out->word = (int)i;
			return 0;
		}
	return dcp_rules_bad(ps, w.s, -EINVAL, "%.*s is no number of a model%s",
			     (int)DCP_MIN(w.n, (size_t)60), w.s,
			     nearest(w, word_name, DCP_LEN(words), near));
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
		return dcp_rules_bad(ps, at, -EINVAL, "a slot is written {e}");
	++*s;
	for (uint32_t i = 0; i < rule->nslot; i++)
		if (is(w, rule->slot_name[i])) {
			op->slot = (uint8_t)i;
			return 0;
		}
	return dcp_rules_bad(ps, at, -EINVAL, "no key of the rule has a slot {%.*s}",
			     (int)DCP_MIN(w.n, (size_t)60), w.s);
}

/* Behind the opening bracket: numbers, one list of numbers, a slot; up to the closing one. */
static int args(struct rules_parse *ps, const struct rule *rule, const char **s, struct op *op)
{
	struct amount *arg = dcp_arena_calloc(&ps->r->arena, MAX_ARGS, sizeof(*arg));
	bool in_list = false, closed = false;
	int rc = arg ? 0 : -ENOMEM;

	op->arg = arg;
	while (rc == 0) {
		*s = blanks(*s, ps->end);
		if (*s < ps->end && **s == '[' && ops[op->kind].list && !op->is_list) {
			op->is_list = in_list = true;
			*s = blanks(*s + 1, ps->end);
		}
		if (op->narg == MAX_ARGS)
			return dcp_rules_bad(ps, *s, -E2BIG, "more than %d numbers", MAX_ARGS);
		if (*s < ps->end && **s == '{' && op->slot == RULES_NO_SLOT && !in_list)
			rc = slot(ps, rule, s, op);
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
			return dcp_rules_bad(ps, *s, -EINVAL, "%c stands here%s",
					     in_list ? ']' : ')', closed ? "" : ", or a comma");
		++*s;
	}
	return rc;
}

static int check_args(struct rules_parse *ps, const char *at, const struct op *op)
{
	bool slot_ok =
		op->slot == RULES_NO_SLOT ? ops[op->kind].slot != 2 : ops[op->kind].slot != 0;

	if (op->narg < ops[op->kind].least || (op->narg > ops[op->kind].most && !op->is_list) ||
	    !slot_ok || (op->kind == OP_SPLIT && op->narg < 2))
		return dcp_rules_bad(ps, at, -EINVAL, "it is written %s", ops[op->kind].usage);
	for (uint32_t i = 0; i < op->narg; i++) {
		const struct amount *a = &op->arg[i];
		bool dim = op->kind == OP_RESHAPE || op->kind == OP_PERMUTE ||
			   (i == 0 && op->kind >= OP_CONCAT) ||
			   (i == 0 && op->kind == OP_NARROW) ||
			   (i == 1 && op->kind == OP_UNPAD);

		if (a->minus && (!dim || a->n > 1 || a->f[0].word >= 0))
			return dcp_rules_bad(ps, at, -EINVAL, "it is written %s",
					     ops[op->kind].usage);
	}
	return 0;
}

static int one_op(struct rules_parse *ps, const struct rule *rule, const char **s,
		  struct op *op)
{
	const char *at = *s;
	struct word w = name_at(s, ps->end);
	char near[64];
	size_t i = 0;
	int rc = 0;

	while (i < DCP_LEN(ops) && !is(w, ops[i].name))
		i++;
	if (i == DCP_LEN(ops))
		return dcp_rules_bad(ps, at, -EINVAL, "%.*s is no operation%s",
				     (int)DCP_MIN(DCP_MAX(w.n, (size_t)1), (size_t)60), at,
				     nearest(w, op_name, DCP_LEN(ops), near));
	*op = (struct op){ .kind = (enum op_kind)i, .slot = RULES_NO_SLOT };
	if (*s < ps->end && **s == '(') {
		++*s;
		rc = args(ps, rule, s, op);
	}
	if (rc == 0 && *s < ps->end && !strchr(" \t\r", **s))
		rc = dcp_rules_bad(ps, *s, -EINVAL, "a blank stands between operations");
	return rc < 0 ? rc : check_args(ps, at, op);
}

/* ---- do they fit the keys? ---- */

static int step(struct rules_parse *ps, struct rule *rule, const char *at, const struct op *op,
		uint64_t *k)
{
	bool left = op->slot != RULES_NO_SLOT && op->slot != rule->each;

	switch (op->kind) {
	case OP_CONCAT:
	case OP_STACK:
		if (op->slot == RULES_NO_SLOT) {
			*k = 1;
			return 0;
		}
		if (!left || rule->join != RULES_NO_SLOT)
			return dcp_rules_bad(ps, at, -EINVAL,
					     "keys are joined once, over a slot of the left "
					     "side");
		rule->join = op->slot;
		return 0;
	case OP_UNSTACK:
		if (left || !rule->each_at)
			return dcp_rules_bad(ps, at, -EINVAL,
					     "{%s} is counted on the right side, once, and "
					     "does not stand on the left",
					     rule->slot_name[op->slot]);
		rule->each_at = NULL;
		return 0;
	case OP_QKV:
	case OP_FUSE_QKV:
		if (*k != (op->kind == OP_QKV ? 1 : 3))
			return dcp_rules_bad(ps, at, -EINVAL, "%s is of %s, not of %llu",
					     ops[op->kind].name,
					     op->kind == OP_QKV ? "one tensor" : "three",
					     (unsigned long long)*k);
		*k = op->kind == OP_QKV ? 3 : 1;
		return 0;
	case OP_SPLIT:
		if (!op->is_list && (op->arg[1].n > 1 || op->arg[1].f[0].word >= 0 ||
				     op->arg[1].f[0].value == 0))
			return dcp_rules_bad(ps, at, -EINVAL,
					     "into how many parts? split(0, 2), or their "
					     "sizes: split(0, [2, 1, 1])");
		*k *= op->is_list ? op->narg - 1 : DCP_MIN(op->arg[1].f[0].value, 1000u);
		*k = DCP_MIN(*k, 1000u);
		return 0;
	case OP_T:
	case OP_PERMUTE:
	case OP_RESHAPE:
	case OP_NARROW:
	case OP_UNPAD:
	case OP_ROPE:
	case OP_UNROPE:
		break;
	}
	return 0;
}

/* Every key on the left has the same slots; one on the right has those that are left. */
static int check_slots(struct rules_parse *ps, const struct rule *rule)
{
	uint32_t joined = rule->join == RULES_NO_SLOT ? 0 : 1u << rule->join;

	for (uint32_t i = 1; i < rule->nsrc; i++)
		if (rule->src[i].slots != rule->src[0].slots)
			return dcp_rules_bad(ps, ps->line_text + rule->src[i].column - 1,
					     -EINVAL,
					     "keys that become one have the same slots");
	for (uint32_t i = 0; i < rule->ndst; i++)
		if (rule->dst[i].slots & joined)
			return dcp_rules_bad(ps, ps->line_text + rule->dst[i].column - 1,
					     -EINVAL, "{%s} was joined over",
					     rule->slot_name[rule->join]);
	if (rule->each_at)
		return dcp_rules_bad(ps, rule->each_at, -EINVAL, "{%s} is not on the left side",
				     rule->slot_name[rule->each]);
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
		return dcp_rules_bad(ps, ps->line_text + rule->dst[0].column - 1, -EINVAL,
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
