/* SPDX-License-Identifier: Apache-2.0 */
/* A text of rules, line by line. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/hash.h"
#include "core/rules/rules_int.h"

/* Return the next word at *@s and advance *@s past it. A word ends at a blank or a comma; a comma
 * is a word itself. */
static struct word next_word(const char **s, const char *end)
{
	struct word w;
	const char *p = *s;

	while (p < end && (*p == ' ' || *p == '\t' || *p == '\r'))
		p++;
	if (p < end && *p == '#')
		p = end;
	w.s = p;
	if (p < end && *p == ',')
		p++;
	else
		while (p < end && !strchr(" \t\r,", *p))
			p += *p == '\\' && p + 1 < end ? 2 : 1;
	w.n = (size_t)(p - w.s);
	*s = p;
	return w;
}

static bool is_word(struct word w, const char *text)
{
	return w.n == strlen(text) && memcmp(w.s, text, w.n) == 0;
}

/* Parse patterns separated by commas, up to and including the word @stop, or to the end of the
 * line. */
static int parse_patterns(struct rules_parse *ps, const char **s, struct rule *rule,
			  bool is_source, const char *stop, const struct pattern **out,
			  uint32_t *count)
{
	bool arrow = stop && *stop == '-';
	struct pattern *p = dcp_arena_calloc(&ps->r->arena, DCP_RULES_MAX_SOURCES, sizeof(*p));
	struct word w;
	int rc;

	if (!p)
		return -ENOMEM;
	*out = p;
	for (*count = 0;;) {
		w = next_word(s, ps->end);
		if (w.n == 0 || is_word(w, ",") || is_word(w, "->") || is_word(w, ":") ||
		    is_word(w, "="))
			return bad_text(ps, w.s, "expected a key's pattern%s",
					arrow && w.n == 0 ? ", then ->" : "");
		if (*count == DCP_RULES_MAX_SOURCES)
			return dcp_rules_bad(ps, w.s, -E2BIG, "more than %d patterns",
					     DCP_RULES_MAX_SOURCES);
		rc = dcp_rules_pattern(ps, rule, w.s, w.n, is_source, &p[*count]);
		if (rc < 0)
			return rc;
		++*count;
		w = next_word(s, ps->end);
		if (stop && is_word(w, stop))
			return 0;
		if (w.n == 0 && !arrow)
			return 0;
		if (!is_word(w, ","))
			return bad_text(ps, w.s, "expected %s or a comma",
					arrow ? "->" : "the end of the line");
	}
}

static int new_rule(struct rules_parse *ps, const char *at, struct rule **out)
{
	struct dcp_rules *r = ps->r;

	if (r->nrule == DCP_RULES_MAX_RULES)
		return dcp_rules_bad(ps, at, -E2BIG, "more than %d rules", DCP_RULES_MAX_RULES);
	if (DCP_GROW(r->rule, r->rule_cap, r->nrule) < 0)
		return -ENOMEM;
	*out = &r->rule[r->nrule++];
	**out = (struct rule){ .line = ps->line, .join = RULES_NO_SLOT, .name = RULES_NO_SLOT };
	return 0;
}

static int drop_line(struct rules_parse *ps, const char *s)
{
	struct rule *rule;
	int rc = new_rule(ps, s, &rule);

	if (rc < 0)
		return rc;
	rule->drop = true;
	return parse_patterns(ps, &s, rule, true, NULL, &rule->src, &rule->nsrc);
}

static int rename_line(struct rules_parse *ps, const char *s)
{
	struct rule *rule;
	int rc = new_rule(ps, s, &rule);

	if (rc == 0)
		rc = parse_patterns(ps, &s, rule, true, "->", &rule->src, &rule->nsrc);
	if (rc == 0)
		rc = parse_patterns(ps, &s, rule, false, ":", &rule->dst, &rule->ndst);
	return rc < 0 ? rc : dcp_rules_ops(ps, rule, s);
}

/* Copy a word without its backslashes to the arena. */
static int copy_plain(struct rules_parse *ps, struct word w, const char **out)
{
	char *p = dcp_arena_alloc(&ps->r->arena, w.n + 1), *end = p;

	if (!p)
		return -ENOMEM;
	if (w.n > DCP_RULES_MAX_PATTERN)
		return dcp_rules_bad(ps, w.s, -E2BIG, "%zu bytes; the limit is %d", w.n,
				     DCP_RULES_MAX_PATTERN);
	for (size_t i = 0; i < w.n; i++) {
		if (w.s[i] == '\\' && i + 1 < w.n)
			i++;
		*end++ = w.s[i];
	}
	*end = '\0';
	*out = p;
	return 0;
}

/* Parse the words of a line "strip", "erase" or "models", separated by blanks. */
static int affix_line(struct rules_parse *ps, const char *s, struct affix **list, size_t *n,
		      size_t *cap, const char *expected)
{
	size_t before = *n;
	struct affix a;
	struct word w;
	int rc;

	while ((w = next_word(&s, ps->end)).n) {
		if (is_word(w, ",") && *n > before)
			continue;
		if (*n == DCP_RULES_MAX_SOURCES)
			return dcp_rules_bad(ps, w.s, -E2BIG, "more than %d of them",
					     DCP_RULES_MAX_SOURCES);
		rc = DCP_GROW(*list, *cap, *n);
		if (rc == 0)
			rc = copy_plain(ps, w, &a.text);
		if (rc < 0)
			return rc;
		a.n = strlen(a.text);
		(*list)[(*n)++] = a;
	}
	if (*n == before)
		return bad_text(ps, s, "%s", expected);
	return 0;
}

static int mark_line(struct rules_parse *ps, const char *s, enum mark_kind kind)
{
	struct rule slots = { .join = RULES_NO_SLOT, .name = RULES_NO_SLOT };
	struct dcp_rules *r = ps->r;
	struct mark *m;
	int rc;

	if (r->nmark == DCP_RULES_MAX_MARKS)
		return dcp_rules_bad(ps, s, -E2BIG, "more than %d of them",
				     DCP_RULES_MAX_MARKS);
	if (DCP_GROW(r->mark, r->mark_cap, r->nmark) < 0)
		return -ENOMEM;
	m = &r->mark[r->nmark];
	*m = (struct mark){ .kind = kind };
	rc = parse_patterns(ps, &s, &slots, true, NULL, &m->pattern, &m->n);
	if (rc == 0 && kind == MARK_FEWER && m->n != 2)
		return bad_text(ps, s, "expected two patterns: fewer A, B");
	r->nmark += rc == 0;
	return rc;
}

static int tie_line(struct rules_parse *ps, const char *s)
{
	struct dcp_rules *r = ps->r;
	struct word key = next_word(&s, ps->end), eq = next_word(&s, ps->end),
		    of = next_word(&s, ps->end), rest = next_word(&s, ps->end);
	struct tie t;
	int rc;

	if (key.n == 0 || !is_word(eq, "=") || of.n == 0 || rest.n)
		return bad_text(ps, key.s, "expected two keys: tie A = B");
	if (r->ntie == DCP_RULES_MAX_SOURCES)
		return dcp_rules_bad(ps, key.s, -E2BIG, "more than %d ties",
				     DCP_RULES_MAX_SOURCES);
	rc = DCP_GROW(r->tie, r->tie_cap, r->ntie);
	if (rc == 0)
		rc = copy_plain(ps, key, &t.key);
	if (rc == 0)
		rc = copy_plain(ps, of, &t.of);
	if (rc == 0)
		r->tie[r->ntie++] = t;
	return rc;
}

/* Parse a line "refuse": keys that no rule below may match. */
static int refuse_line(struct rules_parse *ps, const char *s)
{
	size_t number = ps->r->nrule;
	int rc = drop_line(ps, s);

	if (rc == 0)
		ps->r->rule[number].refuse = true;
	return rc;
}

/* The index + 1 of a word of config.json; 0: not such a word. */
static uint32_t number_word(struct word w)
{
	for (size_t i = 0; i < dcp_rules_nwords; i++)
		if (is_word(w, dcp_rules_word(i)))
			return (uint32_t)i + 1;
	return 0;
}

const char *const dcp_rules_adapter_words[DCP_RULES_ADAPTER_WORDS] = {
	"bias", "rank_pattern", "save_projection", "save_only_topk_weights", "save_indices",
};

/* Parse a line "if": its rule holds only for adapters with that value in their configuration, or
 * for models with two equal numbers. */
static int parse_if(struct rules_parse *ps, const char *s)
{
	struct word fact = next_word(&s, ps->end), eq = next_word(&s, ps->end),
		    value = next_word(&s, ps->end), first;
	bool ends = value.n > 1 && value.s[value.n - 1] == ':';
	size_t number = ps->r->nrule;
	uint32_t equal[2] = { number_word(fact), 0 };
	const char *rest = s;
	struct rule *rule;
	uint32_t of = 0;
	int rc;

	while (of < DCP_RULES_ADAPTER_WORDS && !is_word(fact, dcp_rules_adapter_words[of]))
		of++;
	value.n -= ends;
	equal[1] = equal[0] ? number_word(value) : 0;
	if (!(of < DCP_RULES_ADAPTER_WORDS || equal[1]) || !is_word(eq, "=") || !ends)
		return dcp_rules_bad(ps, fact.s, -EINVAL,
				     "expected a value and a rule: if bias = all: A -> B");
	first = next_word(&s, ps->end);
	rc = is_word(first, "drop")     ? drop_line(ps, s)
	     : is_word(first, "refuse") ? refuse_line(ps, s)
					: rename_line(ps, rest);
	if (rc < 0)
		return rc;
	rule = &ps->r->rule[number];
	memcpy(rule->equal, equal, sizeof(equal));
	if (equal[1])
		return 0;
	rule->of = of;
	rule->says = dcp_arena_strndup(&ps->r->arena, value.s, value.n);
	return rule->says ? 0 : -ENOMEM;
}

/* Parse a line "else": the rest of the line is the message for keys that no rule matches. */
static int parse_else(struct rules_parse *ps, const char *s)
{
	const char *end = ps->end;

	while (s < end && (*s == ' ' || *s == '\t'))
		s++;
	while (s < end && strchr(" \t\r", end[-1]))
		end--;
	if (s == end || *s == '#')
		return bad_text(ps, s, "expected a reason, which is given for other keys");
	ps->r->other = dcp_arena_strndup(&ps->r->arena, s, (size_t)(end - s));
	return ps->r->other ? 0 : -ENOMEM;
}

static int parse_line(struct rules_parse *ps)
{
	struct dcp_rules *r = ps->r;
	const char *s = ps->line_text;
	struct word w = next_word(&s, ps->end);

	for (const char *p = ps->line_text; p < ps->end; p++)
		if ((unsigned char)*p < ' ' && *p != '\t' && *p != '\r')
			return bad_text(ps, p, "byte 0x%02x; rules are text",
					(unsigned char)*p);
	if (w.n == 0)
		return 0;
	if (is_word(w, "drop"))
		return drop_line(ps, s);
	if (is_word(w, "refuse"))
		return refuse_line(ps, s);
	if (is_word(w, "strip"))
		return affix_line(ps, s, &r->strip, &r->nstrip, &r->strip_cap,
				  "expected what keys begin with: strip module.");
	if (is_word(w, "erase"))
		return affix_line(ps, s, &r->erase, &r->nerase, &r->erase_cap,
				  "expected part of a key: erase _orig_mod.");
	if (is_word(w, "models"))
		return affix_line(ps, s, &r->model, &r->nmodel, &r->model_cap,
				  "expected types of models: models llama");
	if (is_word(w, "has") || is_word(w, "lacks") || is_word(w, "fewer"))
		return mark_line(ps, s,
				 *w.s == 'h'   ? MARK_HAS
				 : *w.s == 'l' ? MARK_LACKS
					       : MARK_FEWER);
	if (is_word(w, "if"))
		return parse_if(ps, s);
	if (is_word(w, "else"))
		return parse_else(ps, s);
	if (is_word(w, "tie"))
		return tie_line(ps, s);
	return rename_line(ps, w.s);
}

static int parse_lines(struct rules_parse *ps, const char *text, size_t n)
{
	const char *end = text + n;
	int rc = 0;

	while (rc == 0 && text < end) {
		const char *eol = memchr(text, '\n', (size_t)(end - text));

		ps->line++;
		ps->line_text = text;
		ps->end = eol ? eol : end;
		rc = parse_line(ps);
		text = eol ? eol + 1 : end;
	}
	return rc;
}

int dcp_rules_parse(const char *text, size_t n, const char *name, struct dcp_rules **out,
		    struct dcp_err *err)
{
	struct dcp_rules *r;
	struct rules_parse ps = { .err = err };
	int rc;

	if (n > DCP_RULES_MAX_TEXT)
		return dcp_fail(err, -E2BIG, "%.120s: %zu bytes of rules; the limit is %u",
				name, n, DCP_RULES_MAX_TEXT);
	r = calloc(1, sizeof(*r));
	if (!r)
		return dcp_err_say(err, -ENOMEM);
	dcp_arena_init(&r->arena, RULES_MAX_ARENA);
	r->name = dcp_arena_strdup(&r->arena, name);
	r->hash = dcp_hash64(text, n);
	ps.r = r;
	rc = r->name ? parse_lines(&ps, text, n) : -ENOMEM;
	if (rc < 0) {
		dcp_rules_free(r);
		return dcp_err_say(err, rc);
	}
	*out = r;
	return 0;
}

void dcp_rules_free(struct dcp_rules *r)
{
	if (!r)
		return;
	dcp_arena_finish(&r->arena);
	free(r->rule);
	free(r->strip);
	free(r->erase);
	free(r->tie);
	free(r->mark);
	free(r->model);
	free(r);
}

const char *dcp_rules_name(const struct dcp_rules *r)
{
	return r->name;
}

uint64_t dcp_rules_hash(const struct dcp_rules *r)
{
	return r->hash;
}

bool dcp_rules_tie(const struct dcp_rules *r, size_t i, const char **key, const char **of)
{
	if (i >= r->ntie)
		return false;
	*key = r->tie[i].key;
	*of = r->tie[i].of;
	return true;
}
