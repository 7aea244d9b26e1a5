/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First all keys are matched, by their names alone, and keys that become one tensor form a group.
 * Then the resulting keys are collected, so that keys made twice are known before anything is
 * emitted. Then each group is emitted.
 */
#include "core/rules/rules_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/text.h"

/* The sink's number of file @number of the source. */
static int emit_file(struct map *m, uint32_t number, uint32_t *out)
{
	const struct dcp_file_id *id;
	int rc = 0;

	if (number >= m->from->nfiles)
		return dcp_fail(m->err, -EBADMSG, "file %u of %zu", number, m->from->nfiles);
	id = &m->from->files[number];
	if (!m->file[number]) {
		rc = id->unpacked ? dcp_emit_unpacked(m->to, id->name, out)
				  : dcp_emit_file(m->to, id->name, out);
		m->file[number] = *out + 1;
	}
	*out = m->file[number] - 1;
	return rc;
}

static int emit_terms(struct map *m, struct dcp_piece *p)
{
	struct dcp_term *more = dcp_arena_calloc(&m->arena, p->nmore, sizeof(*more));
	int rc = more ? 0 : -ENOMEM;

	for (uint32_t i = 0; rc == 0 && i < p->nmore; i++) {
		more[i].off = p->more[i].off;
		rc = emit_file(m, p->more[i].file, &more[i].file);
	}
	p->more = more;
	return rc;
}

static int emit_files(struct map *m, struct dcp_tensor *t)
{
	struct dcp_piece *p = dcp_arena_calloc(&m->arena, t->npieces, sizeof(*p));
	int rc = 0;

	if (!p)
		return -ENOMEM;
	for (size_t i = 0; rc == 0 && i < t->npieces; i++) {
		p[i] = t->pieces[i];
		rc = emit_file(m, p[i].file, &p[i].file);
		if (rc == 0 && p[i].nmore)
			rc = emit_terms(m, &p[i]);
	}
	t->pieces = p;
	t->ncopies = 0; /* their file numbers are those of the source */
	return rc;
}

/* Make the path of components from the key, split at dots: in files of a Hugging Face model dots
 * separate components. */
static int split_path(struct map *m, struct dcp_tensor *t)
{
	size_t n = strlen(t->key), parts = 1;
	char *copy = dcp_arena_strndup(&m->arena, t->key, n), *dot;
	const char **path;

	for (size_t i = 0; i < n; i++)
		parts += t->key[i] == '.';
	path = dcp_arena_calloc(&m->arena, parts, sizeof(*path));
	if (!copy || !path)
		return -ENOMEM;
	t->path = path;
	t->npath = parts;
	for (size_t i = 0; i < parts; i++) {
		*path++ = copy;
		dot = strchr(copy, '.');
		if (dot) {
			*dot = '\0';
			copy = dot + 1;
		}
	}
	return 0;
}

/* The name of resulting key @number. If the model ties two keys and only this one exists, it gets
 * the name of the other, which programs read. */
static const char *name_of(const struct map *m, uint32_t number)
{
	const char *name = dcp_intern_text(&m->out, number), *key, *of;

	for (size_t i = 0;
	     m->from->config && m->from->config->tie == 1 && dcp_rules_tie(m->r, i, &key, &of);
	     i++)
		if (strcmp(name, key) == 0 &&
		    dcp_intern_find(&m->out, of, strlen(of)) == DCP_INTERN_NONE)
			return of;
	return name;
}

/* The new name of the tensor of which @t is an alias, if both are emitted without operations; else
 * NULL. */
static const char *find_alias(struct map *m, const struct group *g, const struct dcp_tensor *t)
{
	const struct group *other;
	uint32_t key, number;
	const char *name;

	if (!t->alias_of || m->r->rule[g->rule].nop)
		return NULL;
	key = dcp_intern_find(&m->keys, t->alias_of, strlen(t->alias_of));
	if (key == DCP_INTERN_NONE)
		return NULL;
	other = &m->group[m->hit[m->hit_of_key[key]].group];
	if (m->r->rule[other->rule].nop || dcp_rules_key_made(m, other, NULL, 0, 0, &name) < 0)
		return NULL;
	number = dcp_intern_find(&m->out, name, strlen(name));
	return number != DCP_INTERN_NONE && m->made[number].emitted &&
			       m->made[number].also == UINT32_MAX
		       ? name_of(m, number)
		       : NULL;
}

static void fail_key(struct map *m, enum dcp_rules_what what, const struct group *g,
		     struct dcp_tensor *t, const char *why)
{
	t->error = why;
	t->npieces = 0;
	m->report->collisions += what == DCP_RULES_COLLISION;
	m->report->failed += what == DCP_RULES_FAILED;
	dcp_rules_say(m, what, t->key, m->r->rule[g->rule].line, why);
}

/* Cast to the dtype requested for all tensors, unless a rule cast this one. */
static void cast_all(const struct map *m, struct dcp_tensor *t)
{
	enum dcp_dtype to = m->from->cast;

	if (!to || t->cast || t->dtype == to || !dcp_dtype_can_add(t->dtype))
		return;
	t->cast = to;
	t->dtype_name = dcp_dtype_info(to)->name;
}

/* Emit one key of a group, made from @w, or broken with the reason in @why. */
static int emit_key(struct map *m, uint32_t number, const char *key, struct dcp_tensor t,
		    const struct work *w, const struct dcp_err *why)
{
	const struct group *g = &m->group[number];
	uint32_t out = dcp_intern_find(&m->out, key, strlen(key));
	struct made *made = &m->made[out];
	char text[400];
	int rc;

	if (made->emitted)
		return 0;
	made->emitted = true;
	t.key = name_of(m, out);
	if (made->also != UINT32_MAX) {
		const struct group *b = &m->group[made->also];

		if (made->also == made->by)
			snprintf(text, sizeof(text), "%.160s (line %u) becomes this key twice",
				 dcp_rules_key_of(m, &m->hit[g->hit]),
				 m->r->rule[g->rule].line);
		else
			snprintf(text, sizeof(text),
				 "both %.160s (line %u) and %.160s (line %u) become this key",
				 dcp_rules_key_of(m, &m->hit[g->hit]), m->r->rule[g->rule].line,
				 dcp_rules_key_of(m, &m->hit[b->hit]),
				 m->r->rule[b->rule].line);
		fail_key(m, DCP_RULES_COLLISION, g, &t, text);
	} else if (why->code) {
		fail_key(m, DCP_RULES_FAILED, g, &t, why->msg);
	} else {
		rc = w ? dcp_work_done(w, &m->arena, &t) : 0;
		if (rc < 0)
			return rc;
		cast_all(m, &t);
		/* if only parts are broken, the index finds which files are missing */
		t.error = NULL;
		m->report->mapped++;
	}
	t.partly = false;
	t.alias_of = t.error ? NULL : find_alias(m, g, &t);
	rc = split_path(m, &t);
	if (rc == 0)
		rc = emit_files(m, &t);
	return rc < 0 ? rc : dcp_emit_tensor(m->to, &t);
}

static int dcp_rules_emit_group(struct map *m, uint32_t number)
{
	const struct group *g = &m->group[number];
	const struct rule *rule = &m->r->rule[g->rule];
	struct dcp_err why = { 0 };
	struct dcp_tensor first = { .dtype = DCP_DTYPE_U8, .itemsize = 1 };
	struct flow f = { .e = 1 };
	const char *key;
	int rc = 0;

	dcp_rules_make(m, g, &f, &first, &why);
	for (uint64_t e = 0; rc == 0 && e < dcp_rules_members(m, g, &f); e++)
		for (uint32_t j = 0; rc == 0 && j < rule->ndst; j++) {
			rc = dcp_rules_key_made(m, g, &f, j, e, &key);
			if (rc == -ERANGE || rc == -EINVAL) {
				m->report->failed++;
				dcp_rules_say(
					m, DCP_RULES_FAILED,
					dcp_rules_key_of(m, &m->hit[g->hit]), rule->line,
					rc == -ERANGE
						? "the number of its new key would be negative"
						: "the number of its new key needs what no "
						  "config.json has");
				rc = 0;
				continue;
			}
			if (rc == 0)
				rc = emit_key(m, number, key, first,
					      rule->nop && !why.code ? &f.w[j * f.e + e] : NULL,
					      &why);
		}
	dcp_arena_reset(&m->arena);
	return rc;
}

enum { NEAR_KEYS = 100, NEAR_RULES = 256 }; /* limits up to which a nearest rule is searched */

#define MAP_ARENA (1u << 30) /* limit for the pieces of one group */

static bool is_holding(const struct map *m, const struct rule *rule)
{
	uint64_t value[2] = { 1, 1 };

	for (size_t i = 0; i < 2 && rule->equal[0]; i++)
		value[i] = dcp_rules_word_value(rule->equal[i] - 1, m->from->config);
	return value[0] == value[1] && value[0] &&
	       (!rule->says || (m->from->adapter[rule->of] &&
				strcmp(rule->says, m->from->adapter[rule->of]) == 0));
}

/* The first rule that matches the key, or NULL; *src receives the index of the pattern. */
static const struct rule *find_rule(const struct map *m, const char *key,
				    struct slot_value *value, uint32_t *src)
{
	const struct dcp_rules *r = m->r;
	size_t n = strlen(key);

	for (size_t i = 0; i < r->nrule; i++)
		for (uint32_t k = 0; is_holding(m, &r->rule[i]) && k < r->rule[i].nsrc; k++)
			if (dcp_rules_match(&r->rule[i].src[k], key, n, value)) {
				*src = k;
				return r->rule[i].refuse ? NULL : &r->rule[i];
			}
	return NULL;
}

static int new_group(struct map *m, uint32_t rule, uint32_t *out)
{
	int rc = DCP_GROW(m->group, m->group_cap, m->ngroup);

	if (rc < 0)
		return rc;
	*out = (uint32_t)m->ngroup;
	m->group[m->ngroup++] = (struct group){ .rule = rule };
	return 0;
}

/* Find or create the group of keys with these slots; the joined slot is ignored. */
static int find_group(struct map *m, const struct rule *rule, const struct slot_value *value,
		      uint32_t *out)
{
	uint32_t number = (uint32_t)(rule - m->r->rule), id;
	int rc;

	if (rule->nsrc == 1 && rule->join == RULES_NO_SLOT)
		return new_group(m, number, out);
	dcp_buf_reset(&m->made_text);
	dcp_buf_printf(&m->made_text, "%u", number);
	for (uint32_t i = 0; i < rule->nslot; i++)
		if (i != rule->join && !(rule->each >> i & 1)) {
			dcp_buf_add(&m->made_text, "", 1);
			dcp_buf_add(&m->made_text, value[i].s, value[i].n);
		}
	rc = dcp_buf_error(&m->made_text);
	if (rc == 0)
		rc = dcp_intern_add(&m->ids, m->made_text.p, m->made_text.n, DCP_INTERN_NONE,
				    &id);
	if (rc <= 0) {
		*out = rc == 0 ? m->group_of_id[id] : 0;
		return rc;
	}
	rc = DCP_GROW(m->group_of_id, m->id_cap, id);
	if (rc == 0)
		rc = new_group(m, number, out);
	if (rc == 0)
		m->group_of_id[id] = *out;
	return rc;
}

/* Write a key or pattern without the content of its slots: numbers and slots become 0, a star is
 * dropped. */
static void write_outline(const char *s, char *out, size_t size)
{
	size_t n = 0;

	while (*s && n + 1 < size) {
		bool slot = *s == '{' && strchr(s, '}');

		if (slot || (*s >= '0' && *s <= '9')) {
			s = slot ? strchr(s, '}') + 1 : s + strspn(s, "0123456789");
			out[n++] = '0';
		} else if (*s == '*' || *s == '\\') {
			s++;
		} else {
			out[n++] = *s++;
		}
	}
	out[n] = '\0';
}

/* Which rule is nearest to @key? Searched only for the first keys, since every pattern is
 * compared. */
static void find_nearest(const struct map *m, const char *key, char *why, size_t size)
{
	char a[DCP_NEAR_MAX], b[DCP_NEAR_MAX];
	const struct rule *rule = m->r->rule, *found = NULL;
	const struct pattern *pattern = NULL;
	struct dcp_near near;

	snprintf(why, size, "%s", m->r->other ? m->r->other : "no rule fits it");
	if (m->r->other || m->report->unmatched >= NEAR_KEYS || m->r->nrule > NEAR_RULES)
		return;
	write_outline(key, a, sizeof(a));
	near = dcp_near_to(a);
	for (size_t i = 0; i < m->r->nrule; i++)
		for (uint32_t k = 0; k < rule[i].nsrc; k++) {
			write_outline(rule[i].src[k].text, b, sizeof(b));
			if (dcp_near_take(&near, b)) {
				found = &rule[i];
				pattern = &found->src[k];
			}
		}
	if (found)
		snprintf(why, size, "no rule fits it, nearest is %.120s in line %u",
			 pattern->text, found->line);
}

/* The value of {from} in a key that matches pattern @src of the rule; NULL: the pattern has no
 * {from}. */
static const struct slot_value *name_in(const struct rule *rule, uint32_t src,
					const struct slot_value *value)
{
	bool has = rule->name != RULES_NO_SLOT && (rule->src[src].slots >> rule->name & 1);

	return has && !rule->drop ? &value[rule->name] : NULL;
}

static int on_name(void *ctx, uint64_t number, const char *key)
{
	struct map *m = ctx;
	struct slot_value value[DCP_RULES_MAX_SLOTS];
	const char *bare = dcp_rules_bare_key(m->r, key, &m->text);
	uint32_t src;
	const struct rule *rule = find_rule(m, bare, value, &src);
	const struct slot_value *name = rule ? name_in(rule, src, value) : NULL;

	if (!name)
		return dcp_buf_error(&m->text);
	return DCP_MIN(dcp_intern_add(&m->names, name->s, name->n, DCP_INTERN_NONE, NULL), 0);
}

/* Choose the name for {from} whose keys are mapped: the requested name, "default", or the only name
 * found. */
static int choose_name(struct map *m)
{
	const char *asked = m->from->part, *name = asked ? asked : "default";
	bool any = asked;
	int rc = 0;

	for (size_t i = 0; i < m->r->nrule; i++)
		any |= m->r->rule[i].name != RULES_NO_SLOT;
	m->name = DCP_INTERN_NONE;
	if (any)
		rc = m->from->list(m->from->ctx, on_name, m, m->err);
	if (rc == 0)
		m->name = dcp_intern_find(&m->names, name, strlen(name));
	if (rc == 0 && asked && m->name == DCP_INTERN_NONE)
		return dcp_fail(m->err, -ENOKEY, "these rules know of no \"%.100s\" in keys",
				asked);
	if (m->name == DCP_INTERN_NONE && m->names.n == 1)
		m->name = 0;
	return rc;
}

static int on_key(void *ctx, uint64_t number, const char *key)
{
	struct map *m = ctx;
	struct slot_value value[DCP_RULES_MAX_SLOTS];
	const char *bare = dcp_rules_bare_key(m->r, key, &m->text);
	struct hit hit = { .number = number };
	const struct slot_value *name;
	bool is_other;
	const struct rule *rule = find_rule(m, bare, value, &hit.src);
	int rc;

	if (dcp_buf_error(&m->text))
		return -ENOMEM;
	if (!rule) {
		char why[320];

		find_nearest(m, bare, why, sizeof(why));
		m->report->unmatched++;
		dcp_rules_say(m, DCP_RULES_UNMATCHED, key, 0, why);
		return 0;
	}
	m->used[rule - m->r->rule] = true;
	name = name_in(rule, hit.src, value);
	is_other = name && dcp_intern_find(&m->names, name->s, name->n) != m->name;
	if (is_other && m->name == DCP_INTERN_NONE) {
		m->report->unmatched++;
		dcp_rules_say(m, DCP_RULES_UNMATCHED, key, 0,
			      "it is of one of several, none of which is called default: "
			      "--hf-from NAME takes one");
		return 0;
	}
	if (rule->drop || is_other) {
		m->report->dropped++;
		return 0;
	}
	if (m->nhit >= UINT32_MAX - 1)
		return -E2BIG;
	if (rule->join != RULES_NO_SLOT)
		hit.member = value[rule->join].number;
	rc = find_group(m, rule, value, &hit.group);
	if (rc == 0)
		rc = dcp_intern_str(&m->keys, key, &hit.key);
	if (rc >= 0)
		rc = DCP_GROW(m->hit, m->hit_cap, m->nhit);
	if (rc == 0)
		m->hit[m->nhit++] = hit;
	return rc;
}

/* ---- groups ---- */

static int by_group(const void *a, const void *b)
{
	const struct hit *x = a, *y = b;

	return DCP_CMP(x->group, y->group) ?: DCP_CMP(x->src, y->src) ?:
	       DCP_CMP(x->member, y->member) ?: DCP_CMP(x->key, y->key);
}

static int sort_hits(struct map *m)
{
	bool sorted = true;

	m->hit_of_key = calloc(m->nhit + 1, sizeof(*m->hit_of_key));
	if (!m->hit_of_key)
		return -ENOMEM;
	for (size_t i = 1; sorted && i < m->nhit; i++)
		sorted = m->hit[i].group > m->hit[i - 1].group;
	if (!sorted)
		DCP_SORT(m->hit, m->nhit, by_group);
	for (size_t i = 0; i < m->nhit; i++) {
		struct group *g = &m->group[m->hit[i].group];

		m->hit_of_key[m->hit[i].key] = (uint32_t)i;
		if (g->nhit++ == 0)
			g->hit = (uint32_t)i;
	}
	return 0;
}

static int note_made(struct map *m, uint32_t group, const char *key)
{
	uint32_t number;
	int rc = dcp_intern_str(&m->out, key, &number);

	if (rc < 0)
		return rc;
	if (rc == 0) {
		if (m->made[number].also == UINT32_MAX)
			m->made[number].also = group;
		return 0;
	}
	rc = DCP_GROW(m->made, m->made_cap, number);
	if (rc == 0)
		m->made[number] = (struct made){ group, UINT32_MAX, false };
	return rc;
}

/* Note the keys that a group will make. If the rule unstacks a tensor, the shape of the tensor
 * gives their number. */
static int note_group(struct map *m, uint32_t number)
{
	const struct group *g = &m->group[number];
	const struct rule *rule = &m->r->rule[g->rule];
	struct dcp_err unread = { 0 };
	struct flow f = { .e = 1 };
	struct dcp_tensor first;
	const char *key;
	int rc = 0;

	if (rule->each)
		dcp_rules_make(m, g, &f, &first, &unread);
	for (uint64_t e = 0; rc == 0 && e < dcp_rules_members(m, g, &f); e++)
		for (uint32_t j = 0; rc == 0 && j < rule->ndst; j++) {
			rc = dcp_rules_key_made(m, g, &f, j, e, &key);
			if (rc == 0)
				rc = note_made(m, number, key);
			else if (rc == -ERANGE || rc == -EINVAL)
				rc = 0; /* dcp_rules_emit_group() reports this error */
		}
	dcp_arena_reset(&m->arena);
	return rc;
}

static int run_map(struct map *m)
{
	int rc = choose_name(m);

	if (rc == 0)
		rc = m->from->list(m->from->ctx, on_key, m, m->err);
	for (size_t i = 0; rc == 0 && i < m->r->nrule; i++)
		if (!m->used[i] && is_holding(m, &m->r->rule[i])) {
			m->report->unused++;
			dcp_rules_say(m, DCP_RULES_UNUSED, NULL, m->r->rule[i].line,
				      "no key fits this rule");
		}
	if (rc == 0)
		rc = sort_hits(m);
	for (size_t i = 0; rc == 0 && i < m->ngroup; i++)
		rc = note_group(m, (uint32_t)i);
	for (size_t i = 0; rc == 0 && i < m->ngroup; i++)
		rc = dcp_rules_emit_group(m, (uint32_t)i);
	return rc;
}

int dcp_rules_map(const struct dcp_rules *r, const struct dcp_rules_source *from,
		  const struct dcp_sink *to, struct dcp_rules_report *report,
		  struct dcp_err *err)
{
	struct dcp_rules_report unread = { 0 };
	struct map m = {
		.r = r, .from = from, .to = to, .report = report ? report : &unread, .err = err
	};
	int rc = -ENOMEM;

	dcp_arena_init(&m.arena, MAP_ARENA);
	m.used = calloc(r->nrule + 1, sizeof(*m.used));
	m.file = calloc(from->nfiles + 1, sizeof(*m.file));
	if (m.used && m.file)
		rc = run_map(&m);
	dcp_intern_finish(&m.keys);
	dcp_intern_finish(&m.out);
	dcp_intern_finish(&m.ids);
	dcp_intern_finish(&m.names);
	dcp_arena_finish(&m.arena);
	dcp_buf_finish(&m.text);
	dcp_buf_finish(&m.made_text);
	free(m.hit);
	free(m.group);
	free(m.group_of_id);
	free(m.hit_of_key);
	free(m.made);
	free(m.used);
	free(m.file);
	return dcp_err_say(err, rc);
}
