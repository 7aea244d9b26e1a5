/* SPDX-License-Identifier: Apache-2.0 */
/* A layout file: lines to a mesh and rules. */
#include <errno.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/near.h"
#include "core/parse/layout/layout_int.h"

static int mesh_add(struct layout_parse *ps, const char *name, size_t n, int64_t size)
{
	struct dcp_layout *l = ps->l;
	struct dcp_mesh *mesh = &l->mesh;

	if (n > LAYOUT_MAX_NAME)
		return dcp_layout_bad(ps, -E2BIG,
				      "a mesh dimension's name has at most %d bytes, not %zu",
				      LAYOUT_MAX_NAME, n);
	for (uint32_t d = 0; d < mesh->ndim; d++)
		if (strlen(mesh->dim[d]) == n && memcmp(mesh->dim[d], name, n) == 0)
			return bad(ps, "mesh dimension %.*s twice", (int)n, name);
	if (mesh->ndim == DCP_LAYOUT_MAX_DIMS)
		return dcp_layout_bad(ps, -E2BIG, "more than %d mesh dimensions",
				      DCP_LAYOUT_MAX_DIMS);
	if (size < 1)
		return bad(ps, "mesh dimension %.*s has %jd ranks; 1 is the least", (int)n,
			   name, (intmax_t)size);
	if (size > DCP_LAYOUT_MAX_RANKS / l->nranks)
		return dcp_layout_bad(ps, -E2BIG, "the mesh has more than %u ranks",
				      DCP_LAYOUT_MAX_RANKS);
	mesh->dim[mesh->ndim] = dcp_arena_strndup(&l->arena, name, n);
	if (!mesh->dim[mesh->ndim])
		return -ENOMEM;
	mesh->size[mesh->ndim++] = (uint32_t)size;
	l->nranks *= (uint32_t)size;
	return 0;
}

/* "dp=2 tp=4"; commas will do too, and "dp2" where the name ends in no digit. */
int dcp_layout_mesh_words(struct layout_parse *ps, const char *text, size_t n)
{
	const char *s = text, *end = text + n;

	for (;;) {
		const char *name;
		int64_t size;
		size_t w;
		int rc;

		while (s < end && (*s == ' ' || *s == '\t' || *s == ','))
			s++;
		if (s == end)
			return 0;
		name = s;
		w = dcp_layout_word(s, end);
		s += w;
		if (s < end && *s == '=') {
			s++;
		} else {
			while (w > 0 && s[-1] >= '0' && s[-1] <= '9')
				s--, w--;
		}
		if (w == 0 || !dcp_layout_int(&s, end, &size) ||
		    (s < end && !strchr(" \t,", *s)))
			return bad(ps, "a mesh is written dp=2 tp=4, not %.*s",
				   (int)DCP_MIN(end - name, 60), name);
		rc = mesh_add(ps, name, w, size);
		if (rc < 0)
			return rc;
	}
}

int dcp_layout_rule_begin(struct layout_parse *ps)
{
	struct dcp_layout *l = ps->l;
	int rc;

	if (l->mesh.ndim == 0)
		return bad(ps, "a mesh line, such as mesh dp=2 tp=4, comes first");
	if (l->nrule == DCP_LAYOUT_MAX_RULES)
		return dcp_layout_bad(ps, -E2BIG, "more than %d rules", DCP_LAYOUT_MAX_RULES);
	rc = DCP_GROW(l->rule, l->rule_cap, l->nrule);
	if (rc < 0)
		return rc;
	if (ps->lines)
		ps->line = ps->lines[l->nrule];
	l->rule[l->nrule++] = (struct rule){ .glob = (uint32_t)l->nglob,
					     .place = (uint32_t)l->nplace,
					     .line = ps->line };
	return 0;
}

bool dcp_layout_is_word(const char *text, size_t n)
{
	size_t far = n < 6 ? 1 : 2;
	char word[24] = "";

	if (n < 4 || n >= sizeof(word) || dcp_layout_word(text, text + n) != n)
		return false;
	memcpy(word, text, n);
	if (strcmp(word, "mesh") == 0)
		return true;
	for (size_t i = 0; dcp_layout_place_words[i]; i++)
		if (dcp_near_distance(word, dcp_layout_place_words[i], far) <= far)
			return true;
	return false;
}

/* A placement mistyped would silently be a glob. */
static int check_word(struct layout_parse *ps, const char *text, size_t n)
{
	char word[24] = "", near[64];

	if (!dcp_layout_is_word(text, n))
		return 0;
	memcpy(word, text, n);
	dcp_layout_nearest(near, sizeof(near), word, dcp_layout_place_words);
	return bad(ps, "%s is not a placement%s; a key of that name is written \\%s", word,
		   near, word);
}

/* Brackets and @ belong to placements. */
static int check_glob(struct layout_parse *ps, const char *text, size_t n)
{
	char word[24] = "", near[64];
	size_t w = dcp_layout_word(text, text + n);

	for (size_t i = 0; i < n; i++) {
		if (text[i] == '\\') {
			i++;
		} else if (strchr("()[]@", text[i])) {
			memcpy(word, text, DCP_MIN(w, sizeof(word) - 1));
			dcp_layout_nearest(near, sizeof(near), word, dcp_layout_place_words);
			return bad(ps,
				   "%.*s is not a placement%s; in a glob %c is written \\%c",
				   (int)DCP_MIN(n, (size_t)60), text, near, text[i], text[i]);
		}
	}
	return check_word(ps, text, n);
}

int dcp_layout_rule_glob(struct layout_parse *ps, const char *text, size_t n)
{
	struct dcp_layout *l = ps->l;
	int rc = check_glob(ps, text, n);

	if (rc < 0)
		return rc;
	if (l->nglob == DCP_LAYOUT_MAX_GLOBS)
		return dcp_layout_bad(ps, -E2BIG, "more than %d globs", DCP_LAYOUT_MAX_GLOBS);
	rc = DCP_GROW(l->glob, l->glob_cap, l->nglob);
	if (rc == 0)
		rc = dcp_layout_glob_init(ps, text, n, &l->glob[l->nglob]);
	if (rc < 0)
		return rc;
	l->nglob++;
	l->rule[l->nrule - 1].nglob++;
	return 0;
}

int dcp_layout_rule_end(struct layout_parse *ps)
{
	struct dcp_layout *l = ps->l;
	const struct rule *r = &l->rule[l->nrule - 1];
	uint32_t nstage = 0;

	if (r->drop && r->nplace > 0)
		return bad(ps, "drop must be the only placement: no rank holds the key");
	for (uint32_t i = 0; i < r->nplace; i++)
		nstage += l->place[r->place + i].kind == PLACE_STAGE;
	for (uint32_t i = 0; i < r->nglob; i++)
		if (l->glob[r->glob + i].nnumber < nstage)
			return bad(ps,
				   "glob %.60s: stage needs a {} for the number, as in "
				   "*.layers.{*}.*",
				   l->glob[r->glob + i].text);
	return 0;
}

/* The next word at *@s: up to a blank outside of brackets. 0: none is left on the line. */
size_t dcp_layout_next_word(const char **s, const char *end)
{
	const char *p;
	int depth = 0;

	while (*s < end && (**s == ' ' || **s == '\t' || **s == '\r'))
		(*s)++;
	if (*s < end && **s == '#')
		*s = end;
	for (p = *s; p < end && (depth > 0 || !strchr(" \t\r", *p)); p++) {
		if (*p == '\\' && p + 1 < end)
			p++;
		else if (*p == '(' || *p == '[')
			depth++;
		else if ((*p == ')' || *p == ']') && depth > 0)
			depth--;
	}
	return (size_t)(p - *s);
}

static int rule_line(struct layout_parse *ps, const char *s, const char *end)
{
	bool placing = false;
	int rc = dcp_layout_rule_begin(ps);
	size_t n;

	while (rc == 0 && (n = dcp_layout_next_word(&s, end)) > 0) {
		placing = placing || dcp_layout_is_place(s, n);
		if (placing)
			rc = dcp_layout_place(ps, s, n);
		else
			rc = dcp_layout_rule_glob(ps, s, n);
		s += n;
	}
	if (rc < 0)
		return rc;
	if (ps->l->rule[ps->l->nrule - 1].nglob == 0)
		return bad(ps, "a rule begins with a glob, such as *.weight");
	if (!placing)
		return bad(ps, "no placement after the globs; replicate is one");
	return dcp_layout_rule_end(ps);
}

static int one_line(struct layout_parse *ps, const char *s, const char *end)
{
	size_t n = dcp_layout_next_word(&s, end);
	const char *p;

	if (n == 0)
		return 0;
	if (n != 4 || memcmp(s, "mesh", 4) != 0)
		return rule_line(ps, s, end);
	if (ps->l->nrule > 0 || ps->mesh_given)
		return bad(ps, "mesh lines stand before the rules");
	p = memchr(s, '#', (size_t)(end - s));
	if (!p)
		p = end;
	while (p > s && strchr(" \t\r", p[-1]))
		p--;
	if (p == s + 4)
		return bad(ps, "a mesh is written dp=2 tp=4, not empty");
	return dcp_layout_mesh_words(ps, s + 4, (size_t)(p - s - 4));
}

static int control_byte(struct layout_parse *ps, const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)s[i] < ' ' && s[i] != '\t' && s[i] != '\r')
			return bad(ps, "byte 0x%02x; a layout is text", (unsigned char)s[i]);
	return 0;
}

int dcp_layout_lines(struct layout_parse *ps, const char *text, size_t n)
{
	const char *s = text, *end = text + n;

	while (s < end) {
		const char *eol = memchr(s, '\n', (size_t)(end - s));
		int rc;

		if (!eol)
			eol = end;
		ps->line++;
		rc = control_byte(ps, s, (size_t)(eol - s));
		if (rc == 0)
			rc = one_line(ps, s, eol);
		if (rc < 0)
			return rc;
		s = eol < end ? eol + 1 : end;
	}
	return 0;
}
