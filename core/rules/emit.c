/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/rules/map.h"
#include "core/rules/work.h"

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
	t->ncopies = 0; /* of files numbered otherwise */
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

/* Is it one tensor under two names, both emitted as they are? Then what the other is called now. */
static const char *alias(struct map *m, const struct group *g, const struct dcp_tensor *t)
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
		       ? dcp_intern_text(&m->out, number)
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

/* What is asked of every tensor, unless a rule said something else of it. */
static void cast_all(const struct map *m, struct dcp_tensor *t)
{
	enum dcp_dtype to = m->from->cast;

	if (!to || t->cast || t->dtype == to || !dcp_dtype_can_add(t->dtype))
		return;
	t->cast = to;
	t->dtype_name = dcp_dtype_info(to)->name;
}

/* One key of a group, made of @w, or broken for the reason in @why. */
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
	t.key = dcp_intern_text(&m->out, out);
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
		t.error =
			NULL; /* of a partly broken one the index finds again which files lack */
		m->report->mapped++;
	}
	t.partly = false;
	t.alias_of = t.error ? NULL : alias(m, g, &t);
	rc = split_path(m, &t);
	if (rc == 0)
		rc = emit_files(m, &t);
	return rc < 0 ? rc : dcp_emit_tensor(m->to, &t);
}

int dcp_rules_emit_group(struct map *m, uint32_t number)
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
