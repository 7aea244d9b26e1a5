/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First all keys are matched, which needs nothing but their names; then the keys that come out
 * are collected, so that those made twice are known before any is told; then each is told.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/intern.h"
#include "core/rules/rules_int.h"

#define MAP_ARENA (1u << 30) /* of one tensor's pieces */

/* A key of the source that some rule takes. */
struct hit {
	uint64_t number;
	uint32_t key;  /* in map.keys */
	uint32_t rule; /* by number */
	uint32_t made; /* in map.made */
};

/* A key that comes out: who makes it, and who else would. */
struct made {
	uint32_t by, also; /* hits; UINT32_MAX: nobody */
};

struct map {
	const struct dcp_rules *r;
	const struct dcp_rules_source *from;
	const struct dcp_sink *to;
	struct dcp_rules_report *report;
	struct dcp_intern keys, out; /* as the source has them; as they come out */
	struct hit *hit;
	struct made *made; /* by number in out */
	bool *used;        /* by rule */
	size_t nhit, hit_cap, made_cap;
	uint32_t *file; /* number of each file for the sink, plus one; 0: not told yet */
	struct dcp_arena arena;
	struct dcp_buf text;
	struct dcp_err *err;
};

static void say(const struct map *m, enum dcp_rules_what what, const char *key, unsigned line,
		const char *text)
{
	if (m->report->say)
		m->report->say(m->report->ctx, what, key, line, text);
}

static int room(void **array, size_t *cap, size_t n, size_t size)
{
	size_t want = *cap ? *cap * 2 : 256;
	void *p;

	if (n < *cap)
		return 0;
	p = realloc(*array, want * size);
	if (!p)
		return -ENOMEM;
	*array = p;
	*cap = want;
	return 0;
}

/* ---- which rule ---- */

/* The key as patterns see it: prefixes stripped, parts erased. In @text. */
static const char *bare_key(const struct dcp_rules *r, const char *key, struct dcp_buf *text)
{
	bool again = true;

	dcp_buf_reset(text);
	for (const char *s = key; *s;) {
		size_t i = 0;

		if (s == key || s[-1] == '.')
			while (i < r->nerase &&
			       strncmp(s, r->erase[i].text, r->erase[i].n) != 0)
				i++;
		else
			i = r->nerase;
		if (i < r->nerase) {
			s += r->erase[i].n;
		} else {
			dcp_buf_add(text, s, 1);
			s++;
		}
	}
	dcp_buf_add(text, "", 0);
	key = text->p ? text->p : "";
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

/* The first rule that takes the key, or NULL. */
static const struct rule *find_rule(const struct dcp_rules *r, const char *key,
				    struct slot_value *value)
{
	size_t n = strlen(key);

	for (size_t i = 0; i < r->nrule; i++)
		for (uint32_t k = 0; k < r->rule[i].nsrc; k++)
			if (dcp_rules_match(&r->rule[i].src[k], key, n, value))
				return &r->rule[i];
	return NULL;
}

/* Note that the hit just added makes @key. */
static int note_made(struct map *m, const char *key, size_t n)
{
	uint32_t hit = (uint32_t)m->nhit, number;
	int rc = dcp_intern_add(&m->out, key, n, DCP_INTERN_NONE, &number);

	if (rc < 0)
		return rc;
	m->hit[hit].made = number;
	if (rc == 0) {
		if (m->made[number].also == UINT32_MAX)
			m->made[number].also = hit;
		return 0;
	}
	rc = room((void **)&m->made, &m->made_cap, number, sizeof(*m->made));
	if (rc == 0)
		m->made[number] = (struct made){ hit, UINT32_MAX };
	return rc;
}

static int on_key(void *ctx, uint64_t number, const char *key)
{
	struct map *m = ctx;
	struct slot_value value[DCP_RULES_MAX_SLOTS];
	dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
	const char *bare = bare_key(m->r, key, &m->text);
	const struct rule *rule = find_rule(m->r, bare, value);
	struct hit *hit;
	int rc;

	if (dcp_buf_error(&m->text))
		return -ENOMEM;
	if (!rule) {
		m->report->unmatched++;
		say(m, DCP_RULES_UNMATCHED, key, 0, "no rule fits it");
		return 0;
	}
	m->used[rule - m->r->rule] = true;
	if (rule->drop) {
		m->report->dropped++;
		return 0;
	}
	if (m->nhit >= UINT32_MAX - 1)
		return -E2BIG;
	rc = room((void **)&m->hit, &m->hit_cap, m->nhit, sizeof(*m->hit));
	if (rc < 0)
		return rc;
	hit = &m->hit[m->nhit];
	*hit = (struct hit){ .number = number, .rule = (uint32_t)(rule - m->r->rule) };
	rc = dcp_intern_add(&m->keys, key, strlen(key), DCP_INTERN_NONE, &hit->key);
	if (rc < 0)
		return rc;
	if (!dcp_rules_expand(&rule->dst[0], value, &out)) {
		m->report->failed++;
		say(m, DCP_RULES_FAILED, key, rule->line, "its number would be negative");
		return 0;
	}
	rc = dcp_buf_error(&out);
	if (rc == 0)
		rc = note_made(m, out.n ? out.p : "", out.n);
	if (rc == 0)
		m->nhit++;
	return rc;
}

/* ---- telling ---- */

/* The sink's number of file @number of the source. */
static int tell_file(struct map *m, uint32_t number, uint32_t *out)
{
	const struct dcp_file_id *id;
	int rc = 0;

	if (number >= m->from->nfiles)
		return dcp_fail(m->err, -EBADMSG, DCP_ERR_NO_OFFSET, "file %u of %zu", number,
				m->from->nfiles);
	id = &m->from->files[number];
	if (!m->file[number]) {
		rc = id->unpacked ? m->to->unpacked(m->to->ctx, id->name, out)
				  : m->to->file(m->to->ctx, id->name, out);
		m->file[number] = *out + 1;
	}
	*out = m->file[number] - 1;
	return rc;
}

static int tell_files(struct map *m, struct dcp_tensor *t)
{
	struct dcp_piece *p = dcp_arena_calloc(&m->arena, t->npieces, sizeof(*p));
	int rc = 0;

	if (!p)
		return -ENOMEM;
	for (size_t i = 0; rc == 0 && i < t->npieces; i++) {
		p[i] = t->pieces[i];
		rc = tell_file(m, p[i].file, &p[i].file);
	}
	t->pieces = p;
	return rc;
}

/* Between dots, as files of a Hugging Face model have their keys. */
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

static void collide(const struct map *m, const struct made *made, char *why, size_t size)
{
	const struct hit *a = &m->hit[made->by], *b = &m->hit[made->also];

	snprintf(why, size, "both %.160s (line %u) and %.160s (line %u) become this key",
		 dcp_intern_text(&m->keys, a->key), m->r->rule[a->rule].line,
		 dcp_intern_text(&m->keys, b->key), m->r->rule[b->rule].line);
}

static int tell_hit(struct map *m, uint32_t number)
{
	const struct hit *hit = &m->hit[number];
	const struct made *made = &m->made[hit->made];
	unsigned line = m->r->rule[hit->rule].line;
	struct dcp_tensor t;
	char why[400];
	int rc;

	if (made->by != number)
		return 0;
	dcp_arena_reset(&m->arena);
	rc = m->from->tensor(m->from->ctx, hit->number, &m->arena, &t, m->err);
	if (rc < 0)
		return rc;
	t.key = dcp_intern_text(&m->out, hit->made);
	t.alias_of = NULL;
	rc = split_path(m, &t);
	if (rc < 0)
		return rc;
	if (made->also != UINT32_MAX) {
		collide(m, made, why, sizeof(why));
		t.error = why;
		t.partly = false;
		m->report->collisions++;
		say(m, DCP_RULES_COLLISION, t.key, line, why);
	} else if (t.error && !t.partly) {
		m->report->failed++;
		say(m, DCP_RULES_FAILED, t.key, line, t.error);
	} else {
		m->report->mapped++;
	}
	rc = tell_files(m, &t);
	return rc < 0 ? rc : m->to->tensor(m->to->ctx, &t);
}

static int run(struct map *m)
{
	int rc = m->from->list(m->from->ctx, on_key, m, m->err);

	for (size_t i = 0; rc == 0 && i < m->r->nrule; i++)
		if (!m->used[i]) {
			m->report->unused++;
			say(m, DCP_RULES_UNUSED, NULL, m->r->rule[i].line,
			    "no key fits this rule");
		}
	for (size_t i = 0; rc == 0 && i < m->nhit; i++)
		rc = tell_hit(m, (uint32_t)i);
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
		rc = run(&m);
	dcp_intern_finish(&m.keys);
	dcp_intern_finish(&m.out);
	dcp_arena_finish(&m.arena);
	dcp_buf_finish(&m.text);
	free(m.hit);
	free(m.made);
	free(m.used);
	free(m.file);
	return dcp_err_say(err, rc);
}
