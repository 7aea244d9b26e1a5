/* SPDX-License-Identifier: Apache-2.0 */
/* Parses a layout file: lines become a mesh and rules. */
#include "core/parse/layout/layout.h"

#include <errno.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/text.h"

/* Parses a word of a rule, such as "shard(0, even)@tp", into a placement. */

const char *const dcp_layout_place_words[] = {
	"replicate", "shard", "strided", "interleave", "flat",         "only",
	"stage",     "drop",  "colwise", "rowwise",    "dims_mapping", NULL,
};

/* Words for ways to split, and the placements that accept them. */
static const struct {
	const char *word;
	enum split_kind kind;
	bool shard, flat;
} splits[] = {
	{ "balanced", SPLIT_BALANCED, true, false }, { "even", SPLIT_EVEN, true, true },
	{ "last", SPLIT_LAST, true, false },         { "pad", SPLIT_PAD, true, false },
	{ "tight", SPLIT_TIGHT, false, true },
};

/* A placement while it is read. */
struct reading {
	struct layout_parse *ps;
	const char *text; /* for messages */
	int n;
	struct place p;
	bool has_dim, has_arg;
};

#define bad_place(r, fmt, ...) bad((r)->ps, "%.*s: " fmt, (r)->n, (r)->text, ##__VA_ARGS__)

bool dcp_layout_is_place(const char *text, size_t n)
{
	size_t w = dcp_layout_word(text, text + n);

	if (n > 0 && (text[0] == '[' || text[0] == '('))
		return true;
	if (w == 0 || (w < n && !strchr("(@=", text[w])))
		return false;
	for (size_t i = 0; dcp_layout_place_words[i]; i++)
		if (strlen(dcp_layout_place_words[i]) == w &&
		    memcmp(dcp_layout_place_words[i], text, w) == 0)
			return true;
	return false;
}

/* Parse "@tp" at @s; without it, take the only dimension. */
static int take_mesh_dim(struct reading *r, const char *s, const char *end)
{
	const struct dcp_mesh *mesh = &r->ps->l->mesh;

	if (s < end && *s == '@')
		return dcp_layout_mesh_find(r->ps, s + 1, (size_t)(end - s - 1),
					    &r->p.mesh_dim);
	if (s < end)
		return bad_place(r, "@ and a mesh dimension, or nothing, follows, not %.*s",
				 (int)DCP_MIN(end - s, 40), s);
	if (mesh->ndim == 1) {
		r->p.mesh_dim = 0;
		return 0;
	}
	return bad_place(r, "over which mesh dimension? write %.*s@%s, or another one", r->n,
			 r->text, mesh->dim[0]);
}

static int fail_no_argument(const struct reading *r, const struct layout_arg *a)
{
	const char *known[] = { "balanced", "even",   "last",     "pad",
				"sizes",    "groups", "optional", NULL };
	char near[64];

	dcp_layout_nearest(near, sizeof(near), a->name, known);
	return bad_place(r, "no argument \"%s\"%s", a->name, near);
}

static int take_list(struct reading *r, const struct layout_arg *a)
{
	if (r->p.number)
		return bad_place(r, "one list is enough");
	r->p.number = a->list;
	r->p.nnumber = a->nlist;
	r->p.grouped = a->name[0] == 'g';
	for (size_t i = 0; i < a->nlist; i++) {
		if (r->p.grouped && a->list[i] == 0)
			return bad_place(r, "a group of 0");
		if (dcp_ckd_add(&r->p.sum, r->p.sum, a->list[i]))
			return bad_place(r, "the list adds up to too much");
	}
	if (!r->p.grouped)
		r->p.split = SPLIT_SIZES;
	return 0;
}

/* Take the first bare number or dim= as the dimension. */
static bool dim_argument(struct reading *r, const struct layout_arg *a)
{
	if (r->has_dim || !a->has_value || a->is_list || (a->name[0] && strcmp(a->name, "dim")))
		return false;
	r->has_dim = true;
	r->p.dim = (int32_t)DCP_MAX(DCP_MIN(a->value, INT32_MAX), INT32_MIN);
	return true;
}

/* Take the next number, or an argument called @name or @other. */
static bool own_argument(struct reading *r, const struct layout_arg *a, const char *name,
			 const char *other)
{
	if (r->has_arg || !name || !a->has_value || a->is_list || a->value <= 0 ||
	    (a->name[0] && strcmp(a->name, name) && (!other || strcmp(a->name, other))))
		return false;
	r->has_arg = true;
	r->p.arg = (uint64_t)a->value;
	return true;
}

/* The arguments of each kind, besides ways to split. */
static const struct kind {
	const char *word;
	enum place_kind kind;
	bool dim, arg_needed, splits;
	const char *arg, *arg_other;
} kinds[] = {
	{ "shard", PLACE_SHARD, true, false, true, NULL, NULL },
	{ "colwise", PLACE_COLWISE, false, false, true, NULL, NULL },
	{ "rowwise", PLACE_ROWWISE, false, false, true, NULL, NULL },
	{ "strided", PLACE_STRIDED, true, true, false, "split_factor", "sf" },
	{ "interleave", PLACE_INTERLEAVE, true, false, false, "block", NULL },
	{ "flat", PLACE_FLAT, false, false, false, "pad", NULL },
	{ "stage", PLACE_STAGE, false, true, true, "layers", NULL },
};

/* Take a bare word for a way to split. 1: taken; 0: another word. */
static int take_rule_word(struct reading *r, const struct kind *k, const char *word)
{
	for (size_t i = 0; i < DCP_LEN(splits); i++) {
		if (strcmp(splits[i].word, word) != 0)
			continue;
		if (!(k->kind == PLACE_FLAT ? splits[i].flat : k->splits && splits[i].shard))
			return 0;
		if (r->p.split != SPLIT_CHUNK)
			return bad_place(r, "one rule is enough");
		r->p.split = splits[i].kind;
		return 1;
	}
	return 0;
}

static int take_word_argument(struct reading *r, const struct kind *k,
			      const struct layout_arg *a)
{
	int rc;

	if (strcmp(a->name, "optional") == 0 && k->kind != PLACE_STAGE) {
		r->p.optional = true;
		return 0;
	}
	rc = take_rule_word(r, k, a->name);
	return rc == 0 ? fail_no_argument(r, a) : DCP_MIN(rc, 0);
}

static int take_one_argument(struct reading *r, const struct kind *k,
			     const struct layout_arg *a)
{
	if (!a->has_value)
		return take_word_argument(r, k, a);
	if ((k->dim && dim_argument(r, a)) || own_argument(r, a, k->arg, k->arg_other))
		return 0;
	if (k->splits && a->is_list &&
	    (!strcmp(a->name, "sizes") || !strcmp(a->name, "groups")))
		return take_list(r, a);
	if (!a->is_list && a->value <= 0 && k->arg)
		return bad_place(r, "%s is at least 1, not %jd", k->arg, (intmax_t)a->value);
	if (a->name[0])
		return fail_no_argument(r, a);
	return bad_place(r, "one number too many");
}

static int check_place(struct reading *r, const struct kind *k)
{
	const struct place *p = &r->p;

	if (k->dim && !r->has_dim)
		return bad_place(r, "which dimension? write %s(0)", k->word);
	if (k->arg_needed && !r->has_arg)
		return bad_place(r, "%s is missing", k->arg);
	if (p->number && !p->grouped && p->split != SPLIT_SIZES)
		return bad_place(r, "sizes cannot be combined with another way to split");
	if (p->grouped && p->split == SPLIT_PAD)
		return bad_place(r, "groups cannot be padded");
	if (k->kind == PLACE_STAGE && (p->grouped || p->split == SPLIT_PAD))
		return bad_place(r, "layers are neither grouped nor padded");
	if (k->kind == PLACE_FLAT && p->arg && p->split != SPLIT_CHUNK)
		return bad_place(r, "pad cannot be combined with another way to split");
	return 0;
}

static int take_cutting(struct reading *r, const struct kind *k, const char *s, const char *end)
{
	struct dcp_layout_args args;
	int rc = dcp_layout_args(r->ps, s, end, &args);

	r->p.kind = k->kind;
	for (size_t i = 0; rc == 0 && i < args.n; i++)
		rc = take_one_argument(r, k, &args.arg[i]);
	if (rc == 0)
		rc = check_place(r, k);
	if (rc == 0)
		rc = take_mesh_dim(r, args.end, end);
	if (rc < 0)
		return rc;
	if (k->kind == PLACE_INTERLEAVE && !r->has_arg)
		r->p.arg = 1;
	if (r->p.split == SPLIT_SIZES && r->p.nnumber != r->ps->l->mesh.size[r->p.mesh_dim])
		return bad_place(r, "%zu size%s for %u rank%s of %s", r->p.nnumber,
				 dcp_s(r->p.nnumber), r->ps->l->mesh.size[r->p.mesh_dim],
				 dcp_s(r->ps->l->mesh.size[r->p.mesh_dim]),
				 r->ps->l->mesh.dim[r->p.mesh_dim]);
	return dcp_layout_place_add(r->ps, &r->p);
}

/* Parse "replicate" or "replicate@dp": only the name is checked. */
static int take_replicate(struct reading *r, const char *s, const char *end)
{
	struct dcp_layout_args args;
	int rc = dcp_layout_args(r->ps, s, end, &args);

	if (rc < 0 || (rc == 0 && args.end == end && args.n == 0))
		return rc;
	if (args.n > 0)
		return bad(r->ps, "%.*s takes no arguments", r->n, r->text);
	return take_mesh_dim(r, args.end, end);
}

static int take_drop(struct reading *r, const char *s, const char *end)
{
	struct dcp_layout *l = r->ps->l;

	if (s < end)
		return bad_place(r, "drop stands alone");
	l->rule[l->nrule - 1].drop = true;
	return 0;
}

int dcp_layout_place(struct layout_parse *ps, const char *text, size_t n)
{
	struct reading r = { .ps = ps, .text = text, .n = (int)DCP_MIN(n, (size_t)80) };
	size_t w = dcp_layout_word(text, text + n);
	const char *s = text + w, *end = text + n;
	char word[24] = "", near[64];

	if (w == 0 || (w == 12 && memcmp(text, "dims_mapping", w) == 0))
		return dcp_layout_list(ps, text, n);
	memcpy(word, text, DCP_MIN(w, sizeof(word) - 1));
	if (strcmp(word, "replicate") == 0)
		return take_replicate(&r, s, end);
	if (strcmp(word, "drop") == 0)
		return take_drop(&r, s, end);
	if (strcmp(word, "only") == 0)
		return dcp_layout_only(ps, text, n);
	for (size_t i = 0; i < DCP_LEN(kinds); i++)
		if (strcmp(kinds[i].word, word) == 0)
			return take_cutting(&r, &kinds[i], s, end);
	dcp_layout_nearest(near, sizeof(near), word, dcp_layout_place_words);
	return bad(ps, "%.*s is not a placement%s", r.n, text, near);
}

static int add_mesh_dim(struct layout_parse *ps, const char *name, size_t n, int64_t size)
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

/* Parse "dp=2 tp=4". Commas are accepted, and also "dp2" if the name does not end in a digit. */
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
		rc = add_mesh_dim(ps, name, w, size);
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

/* A mistyped placement would silently be a glob. */
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

/* Find the next word at *@s, which ends at a blank outside of brackets. 0: no more words. */
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

static int parse_rule(struct layout_parse *ps, const char *s, const char *end)
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

static int parse_line(struct layout_parse *ps, const char *s, const char *end)
{
	size_t n = dcp_layout_next_word(&s, end);
	const char *p;

	if (n == 0)
		return 0;
	if (n != 4 || memcmp(s, "mesh", 4) != 0)
		return parse_rule(ps, s, end);
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

static int fail_control_byte(struct layout_parse *ps, const char *s, size_t n)
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
		rc = fail_control_byte(ps, s, (size_t)(eol - s));
		if (rc == 0)
			rc = parse_line(ps, s, eol);
		if (rc < 0)
			return rc;
		s = eol < end ? eol + 1 : end;
	}
	return 0;
}
