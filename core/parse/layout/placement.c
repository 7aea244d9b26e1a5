/* SPDX-License-Identifier: Apache-2.0 */
/* One word of a rule, such as "shard(0, even)@tp", into a placement. */
#include <errno.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/base/text.h"
#include "core/parse/layout/layout_int.h"

const char *const dcp_layout_place_words[] = {
	"replicate", "shard", "strided", "interleave", "flat",         "only",
	"stage",     "drop",  "colwise", "rowwise",    "dims_mapping", NULL,
};

/* Words that name a rule, and who takes them. */
static const struct {
	const char *word;
	enum split_kind kind;
	bool shard, flat;
} splits[] = {
	{ "balanced", SPLIT_BALANCED, true, false }, { "even", SPLIT_EVEN, true, true },
	{ "last", SPLIT_LAST, true, false },         { "pad", SPLIT_PAD, true, false },
	{ "tight", SPLIT_TIGHT, false, true },
};

/* One placement while it is read. */
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

/* "@tp" at @s, or the only dimension where nothing stands. */
static int mesh_dim(struct reading *r, const char *s, const char *end)
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

static int no_argument(const struct reading *r, const struct layout_arg *a)
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

/* The first bare number or dim=: the dimension. */
static bool dim_argument(struct reading *r, const struct layout_arg *a)
{
	if (r->has_dim || !a->has_value || a->is_list || (a->name[0] && strcmp(a->name, "dim")))
		return false;
	r->has_dim = true;
	r->p.dim = (int32_t)DCP_MAX(DCP_MIN(a->value, INT32_MAX), INT32_MIN);
	return true;
}

/* The number after it, or one called @name or @other. */
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

/* What each kind takes besides the words of shard. */
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

/* A bare word that names a rule. 1: taken; 0: it is none. */
static int rule_word(struct reading *r, const struct kind *k, const char *word)
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

static int word_argument(struct reading *r, const struct kind *k, const struct layout_arg *a)
{
	int rc;

	if (strcmp(a->name, "optional") == 0 && k->kind != PLACE_STAGE) {
		r->p.optional = true;
		return 0;
	}
	rc = rule_word(r, k, a->name);
	return rc == 0 ? no_argument(r, a) : DCP_MIN(rc, 0);
}

static int one_argument(struct reading *r, const struct kind *k, const struct layout_arg *a)
{
	if (!a->has_value)
		return word_argument(r, k, a);
	if ((k->dim && dim_argument(r, a)) || own_argument(r, a, k->arg, k->arg_other))
		return 0;
	if (k->splits && a->is_list &&
	    (!strcmp(a->name, "sizes") || !strcmp(a->name, "groups")))
		return take_list(r, a);
	if (!a->is_list && a->value <= 0 && k->arg)
		return bad_place(r, "%s is at least 1, not %jd", k->arg, (intmax_t)a->value);
	if (a->name[0])
		return no_argument(r, a);
	return bad_place(r, "one number too many");
}

static int consistent(struct reading *r, const struct kind *k)
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

static int cutting(struct reading *r, const struct kind *k, const char *s, const char *end)
{
	struct dcp_layout_args args;
	int rc = dcp_layout_args(r->ps, s, end, &args);

	r->p.kind = k->kind;
	for (size_t i = 0; rc == 0 && i < args.n; i++)
		rc = one_argument(r, k, &args.arg[i]);
	if (rc == 0)
		rc = consistent(r, k);
	if (rc == 0)
		rc = mesh_dim(r, args.end, end);
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

/* "replicate", "replicate@dp": nothing but a check of the name. */
static int replicate(struct reading *r, const char *s, const char *end)
{
	struct dcp_layout_args args;
	int rc = dcp_layout_args(r->ps, s, end, &args);

	if (rc < 0 || (rc == 0 && args.end == end && args.n == 0))
		return rc;
	if (args.n > 0)
		return bad(r->ps, "%.*s takes no arguments", r->n, r->text);
	return mesh_dim(r, args.end, end);
}

static int drop(struct reading *r, const char *s, const char *end)
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
		return replicate(&r, s, end);
	if (strcmp(word, "drop") == 0)
		return drop(&r, s, end);
	if (strcmp(word, "only") == 0)
		return dcp_layout_only(ps, text, n);
	for (size_t i = 0; i < DCP_LEN(kinds); i++)
		if (strcmp(kinds[i].word, word) == 0)
			return cutting(&r, &kinds[i], s, end);
	dcp_layout_nearest(near, sizeof(near), word, dcp_layout_place_words);
	return bad(ps, "%.*s is not a placement%s", r.n, text, near);
}
