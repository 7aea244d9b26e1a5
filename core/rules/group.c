/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that belong together: are all there, what becomes of them, under which keys? */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/rules/map.h"
#include "core/rules/work.h"

void dcp_rules_say(const struct map *m, enum dcp_rules_what what, const char *key,
		   unsigned line, const char *text)
{
	if (m->report->say)
		m->report->say(m->report->ctx, what, key, line, text);
}

/* How many bytes of @s, which stands where a part of a key begins, are erased? */
static size_t erased(const struct dcp_rules *r, const char *s)
{
	for (size_t i = 0; i < r->nerase; i++)
		if (strncmp(s, r->erase[i].text, r->erase[i].n) == 0)
			return r->erase[i].n;
	return 0;
}

/* Most keys are bare: nothing is copied of them. */
const char *dcp_rules_without_parts(const struct dcp_rules *r, const char *key,
				    struct dcp_buf *text)
{
	const char *from = key; /* what comes before was copied */
	size_t n;

	dcp_buf_reset(text);
	for (const char *s = key, *dot; s && *s && r->nerase;) {
		n = erased(r, s);
		if (n) {
			dcp_buf_add(text, from, (size_t)(s - from));
			from = s += n;
			if (s[-1] == '.')
				continue;
		}
		dot = strchr(s, '.');
		s = dot ? dot + 1 : NULL;
	}
	if (from == key)
		return key;
	dcp_buf_str(text, from);
	return text->p ? text->p : "";
}

const char *dcp_rules_bare_key(const struct dcp_rules *r, const char *key, struct dcp_buf *text)
{
	bool again = true;

	key = dcp_rules_without_parts(r, key, text);
	while (again) {
		again = false;
		for (size_t i = 0; i < r->nstrip; i++)
			if (strncmp(key, r->strip[i].text, r->strip[i].n) == 0) {
				key += r->strip[i].n;
				again = true;
			}
	}
	return key;
}

const char *dcp_rules_key_of(const struct map *m, const struct hit *h)
{
	return dcp_intern_text(&m->keys, h->key);
}

/* Is every member of every list there, once? What is not is said in @why. */
static bool is_complete(const struct map *m, const struct group *g, char *why, size_t size)
{
	const struct rule *rule = &m->r->rule[g->rule];
	const struct hit *h = &m->hit[g->hit];
	uint32_t each = 1, i;

	while (rule->join != RULES_NO_SLOT && each < g->nhit && h[each].src == 0)
		each++;
	for (i = 0; i < g->nhit; i++) {
		if (i && h[i].src == h[i - 1].src && h[i].member == h[i - 1].member) {
			snprintf(why, size, "both %.160s and %.160s are its part",
				 dcp_rules_key_of(m, &h[i - 1]), dcp_rules_key_of(m, &h[i]));
			return false;
		}
		if (h[i].src != i / each ||
		    (rule->join != RULES_NO_SLOT && h[i].member != i % each))
			break;
	}
	if (i == g->nhit && i == rule->nsrc * each)
		return true;
	if (rule->join == RULES_NO_SLOT)
		snprintf(why, size, "line %u: there is %.160s, but no %.100s", rule->line,
			 dcp_rules_key_of(m, h),
			 rule->src[DCP_MIN(i / each, rule->nsrc - 1)].text);
	else
		snprintf(why, size, "line %u: there is %.160s, but not number %u of %.100s",
			 rule->line, dcp_rules_key_of(m, h), i % each,
			 rule->src[DCP_MIN(i / each, rule->nsrc - 1)].text);
	return false;
}

int dcp_rules_make(struct map *m, const struct group *g, struct flow *f,
		   struct dcp_tensor *first, struct dcp_err *why)
{
	const struct rule *rule = &m->r->rule[g->rule];
	char lacks[400];
	bool complete;

	f->w = dcp_arena_calloc(&m->arena, g->nhit, sizeof(*f->w));
	f->k = rule->nsrc;
	f->e = g->nhit / rule->nsrc;
	f->naxis = rule->join != RULES_NO_SLOT;
	f->axis[0] = (struct flow_axis){ rule->join, f->e };
	if (!f->w)
		return dcp_fail(why, -ENOMEM, "it needs too much memory");
	complete = is_complete(m, g, lacks, sizeof(lacks));
	for (uint32_t i = 0; i < g->nhit; i++) {
		struct dcp_tensor *t = dcp_arena_calloc(&m->arena, 1, sizeof(*t));
		int rc = t ? m->from->tensor(m->from->ctx, m->hit[g->hit + i].number, &m->arena,
					     t, why)
			   : -ENOMEM;

		if (rc < 0)
			return dcp_err_say(why, rc);
		if (i == 0)
			*first = *t;
		if (!complete)
			return dcp_fail(why, -ENODATA, "%s", lacks);
		if (t->error && !t->partly)
			return dcp_fail(why, -EIO, "%s", t->error);
		if (rule->nop == 0)
			return 0;
		rc = dcp_work_from(t, &m->arena, &f->w[i], why);
		if (rc < 0)
			return dcp_err_where(why, rc, "%.160s",
					     dcp_rules_key_of(m, &m->hit[g->hit + i]));
	}
	return dcp_rules_flow(rule, m->from, f, &m->arena, why);
}

uint64_t dcp_rules_members(const struct map *m, const struct group *g, const struct flow *f)
{
	uint64_t n = 1;

	for (uint32_t i = 0; i < f->naxis; i++)
		if (m->r->rule[g->rule].each >> f->axis[i].slot & 1)
			n *= f->axis[i].n;
	return n;
}

int dcp_rules_key_made(struct map *m, const struct group *g, const struct flow *f, uint32_t dst,
		       uint64_t member, const char **out)
{
	const struct rule *rule = &m->r->rule[g->rule];
	const struct hit *h = &m->hit[g->hit];
	struct slot_value value[DCP_RULES_MAX_SLOTS];
	const char *bare = dcp_rules_bare_key(m->r, dcp_rules_key_of(m, h), &m->text);
	char digits[DCP_RULES_MAX_SLOTS][24];
	int rc;

	dcp_buf_reset(&m->made_text);
	if (dcp_buf_error(&m->text) ||
	    !dcp_rules_match(&rule->src[h->src], bare, strlen(bare), value))
		return -ENOMEM;
	for (uint32_t i = 0; i < rule->nslot; i++)
		if (rule->each >> i & 1)
			value[i] = (struct slot_value){ "0", 1, 0 };
	for (uint32_t i = f ? f->naxis : 0; i-- > 0;) {
		const struct flow_axis *a = &f->axis[i];
		unsigned long long number = member % a->n;
		int n;

		if (!(rule->each >> a->slot & 1))
			continue;
		n = snprintf(digits[i], sizeof(digits[i]), "%llu", number);
		value[a->slot] = (struct slot_value){ digits[i], (size_t)n, number };
		member /= a->n;
	}
	rc = dcp_rules_expand(&rule->dst[dst], value, m->from->config, &m->made_text);
	if (rc < 0)
		return rc;
	dcp_buf_add(&m->made_text, "", 0);
	*out = m->made_text.n ? m->made_text.p : "";
	return dcp_buf_error(&m->made_text);
}
