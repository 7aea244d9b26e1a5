/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts as normalized text, which parses back to an equal layout. */
#include <errno.h>

#include "core/base/buf.h"
#include "core/model/layout/layout_int.h"

static void print_list(struct dcp_buf *out, const char *name, const struct place *p)
{
	dcp_buf_str(out, name);
	for (size_t i = 0; i < p->nnumber; i++)
		dcp_buf_printf(out, "%s%ju", i ? "," : "", (uintmax_t)p->number[i]);
	dcp_buf_str(out, "]");
}

static const char *split_word(const struct place *p)
{
	switch (p->split) {
	case SPLIT_BALANCED:
		return "balanced";
	case SPLIT_EVEN:
		return "even";
	case SPLIT_LAST:
		return "last";
	case SPLIT_PAD:
		return "pad";
	case SPLIT_TIGHT:
		return "tight";
	case SPLIT_CHUNK:
	case SPLIT_SIZES:
		break;
	}
	return NULL;
}

static const char *kind_word(enum place_kind kind)
{
	static const char *const words[] = {
		[PLACE_SHARD] = "shard",
		[PLACE_COLWISE] = "colwise",
		[PLACE_ROWWISE] = "rowwise",
		[PLACE_STRIDED] = "strided",
		[PLACE_INTERLEAVE] = "interleave",
		[PLACE_FLAT] = "flat",
		[PLACE_ONLY] = "only",
		[PLACE_STAGE] = "stage",
	};

	return words[kind];
}

static bool has_dim(const struct place *p)
{
	return p->kind == PLACE_SHARD || p->kind == PLACE_STRIDED ||
	       p->kind == PLACE_INTERLEAVE;
}

/* The next argument: "(" or ", " in front of it. */
static const char *comma(bool *first)
{
	bool was = *first;

	*first = false;
	return was ? "(" : ", ";
}

static void print_args(const struct place *p, struct dcp_buf *out)
{
	bool first = true;

	if (has_dim(p))
		dcp_buf_printf(out, "%s%d", comma(&first), p->dim);
	if (p->kind == PLACE_STRIDED || p->kind == PLACE_INTERLEAVE || p->kind == PLACE_STAGE)
		dcp_buf_printf(out, "%s%ju", comma(&first), (uintmax_t)p->arg);
	if (p->kind == PLACE_FLAT && p->arg)
		dcp_buf_printf(out, "%spad=%ju", comma(&first), (uintmax_t)p->arg);
	if (split_word(p))
		dcp_buf_printf(out, "%s%s", comma(&first), split_word(p));
	if (p->number) {
		dcp_buf_str(out, comma(&first));
		print_list(out, p->grouped ? "groups=[" : "sizes=[", p);
	}
	if (p->optional && p->kind != PLACE_COLWISE && p->kind != PLACE_ROWWISE)
		dcp_buf_printf(out, "%soptional", comma(&first));
	if (!first)
		dcp_buf_str(out, ")");
}

static void print_only(const struct dcp_layout *l, const struct place *p, struct dcp_buf *out)
{
	dcp_buf_str(out, "only(");
	for (size_t i = 0; i < p->nrange; i++) {
		const struct place_range *r = &p->range[i];

		if (i > 0 && r->mesh_dim == r[-1].mesh_dim)
			dcp_buf_str(out, "|");
		else
			dcp_buf_printf(out, "%s%s=", i ? ", " : "", l->mesh.dim[r->mesh_dim]);
		dcp_buf_printf(out, "%d", r->lo);
		if (r->hi != r->lo)
			dcp_buf_printf(out, "-%d", r->hi);
	}
	dcp_buf_str(out, ")");
}

void dcp_layout_print_place(const struct dcp_layout *l, const struct place *p,
			    struct dcp_buf *out)
{
	if (p->kind == PLACE_ONLY) {
		print_only(l, p, out);
		return;
	}
	dcp_buf_str(out, kind_word(p->kind));
	print_args(p, out);
	dcp_buf_printf(out, "@%s", l->mesh.dim[p->mesh_dim]);
}

static void print_places(const struct dcp_layout *l, const struct rule *r, struct dcp_buf *out)
{
	if (r->drop || r->nplace == 0)
		dcp_buf_str(out, r->drop ? "drop" : "replicate");
	for (uint32_t i = 0; i < r->nplace; i++) {
		if (i > 0)
			dcp_buf_str(out, " ");
		dcp_layout_print_place(l, &l->place[r->place + i], out);
	}
}

void dcp_layout_print_rules(const struct dcp_layout *l, struct dcp_buf *out)
{
	for (size_t i = 0; i < l->nrule; i++) {
		const struct rule *r = &l->rule[i];

		for (uint32_t g = 0; g < r->nglob; g++)
			dcp_buf_printf(out, "%s ", l->glob[r->glob + g].text);
		print_places(l, r, out);
		dcp_buf_str(out, "\n");
	}
}

int dcp_layout_print(const struct dcp_layout *l, struct dcp_buf *out)
{
	dcp_buf_str(out, "mesh");
	for (uint32_t d = 0; d < l->mesh.ndim; d++)
		dcp_buf_printf(out, " %s=%u", l->mesh.dim[d], l->mesh.size[d]);
	dcp_buf_str(out, "\n");
	dcp_layout_print_rules(l, out);
	return dcp_buf_error(out);
}

int dcp_layout_explain(const struct dcp_layout *l, const char *key, struct dcp_buf *out,
		       unsigned *line)
{
	struct dcp_layout_rule rule;

	if (!dcp_layout_rule(l, key, &rule))
		return -ENOENT;
	*line = l->rule[rule.number].line;
	print_places(l, &l->rule[rule.number], out);
	return dcp_buf_error(out);
}
