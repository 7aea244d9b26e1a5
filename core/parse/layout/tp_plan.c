/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hugging Face's tp_plan: one flat JSON object of strings.
 * Strings have no escapes, and messages name lines.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/sort.h"
#include "core/parse/json.h"
#include "core/parse/layout/layout_int.h"

struct entry {
	const char *name, *value;
	size_t n, nvalue, components;
	unsigned line;
};

struct plan {
	struct layout_parse *ps;
	struct entry *entry;
	size_t n, cap;
};

/* @over: the mesh dimension that is cut; NULL: none. */
static const struct {
	const char *style, *place, *over;
} styles[] = {
	{ "colwise", "colwise", "@tp" },
	{ "colwise_gather_output", "colwise", "@tp" },
	{ "colwise_rep", "colwise", "@tp" },
	{ "local_colwise", "colwise", "@tp" },
	{ "rowwise", "rowwise", "@tp" },
	{ "rowwise_rep", "rowwise", "@tp" },
	{ "rowwise_split_input", "rowwise", "@tp" },
	{ "local_rowwise", "rowwise", "@tp" },
	{ "packed_colwise", "colwise(groups=[1,1])", "@tp" },
	{ "local_packed_colwise", "colwise(groups=[1,1])", "@tp" },
	{ "packed_rowwise", "rowwise(groups=[1,1])", "@tp" },
	{ "local_packed_rowwise", "rowwise(groups=[1,1])", "@tp" },
	{ "embedding_rowwise", "shard(0, optional)", "@tp" },
	{ "embedding_colwise", "shard(1, optional)", "@tp" },
	{ "grouped_gemm", "shard(0, even, optional)", "@ep" },
	{ "replicate", "replicate", NULL },
	{ "local", "replicate", NULL },
	{ "local_params", "replicate", NULL },
	{ "gather", "replicate", NULL },
	{ "all_reduce", "replicate", NULL },
	{ "sequence_parallel", "replicate", NULL },
	{ "ep_router", "replicate", NULL },
	{ "ep_dispatch_experts", "replicate", NULL },
	{ "moe_tp_experts", "replicate", NULL },
	{ "moe_identity_expert", "replicate", NULL },
	{ "mla_kv_a_proj", "replicate", NULL },
	{ "replicated_with_grad_allreduce", "replicate", NULL },
};

/* The line that @to lies on, from @from on line ps->line. */
static void count_lines(struct layout_parse *ps, const char *from, const char *to)
{
	while ((from = memchr(from, '\n', (size_t)(to - from)))) {
		ps->line++;
		from++;
	}
}

/* @quoted without its quotes. */
static int string(struct layout_parse *ps, struct dcp_bytes quoted, const char **out, size_t *n)
{
	if (quoted.n < 2 || quoted.p[quoted.n - 1] != '"')
		return bad(ps, "a string without an end");
	*out = (const char *)quoted.p + 1;
	*n = quoted.n - 2;
	for (size_t i = 0; i < *n; i++)
		if ((*out)[i] == '\\' || (unsigned char)(*out)[i] < ' ')
			return bad(ps, "strings hold neither backslashes nor control bytes");
	return 0;
}

/* A string, or a list with its brackets. */
static int value(struct layout_parse *ps, struct dcp_bytes text, struct entry *e)
{
	if (text.p[0] == '"')
		return string(ps, text, &e->value, &e->nvalue);
	if (text.p[0] != '[')
		return bad(ps, "expected a string or a list of numbers, found %.*s",
			   (int)DCP_MIN(text.n, (size_t)20), (const char *)text.p);
	if (memchr(text.p, '\n', text.n))
		return bad(ps, "a list ends on its line");
	e->value = (const char *)text.p;
	e->nvalue = text.n;
	return 0;
}

static int member(struct plan *plan, struct dcp_bytes name, struct dcp_bytes text)
{
	struct entry e = { .components = 1, .line = plan->ps->line };
	int rc = string(plan->ps, name, &e.name, &e.n);

	if (rc == 0)
		rc = value(plan->ps, text, &e);
	if (rc < 0)
		return rc;
	if (e.n == 4 && memcmp(e.name, "mesh", 4) == 0)
		return dcp_layout_mesh_words(plan->ps, e.value, e.nvalue);
	if (e.n == 0)
		return bad(plan->ps, "a name without letters");
	for (size_t i = 0; i < e.n; i++)
		e.components += e.name[i] == '.';
	rc = DCP_GROW(plan->entry, plan->cap, plan->n);
	if (rc == 0)
		plan->entry[plan->n++] = e;
	return rc;
}

static int members(struct plan *plan, const char *text, size_t n)
{
	struct dcp_json_walk walk = { .text = text, .n = n };
	struct dcp_bytes name, value;
	const char *at = text;
	struct dcp_err err;
	int rc;

	while ((rc = dcp_json_walk(&walk, &name, &value, &err)) > 0) {
		count_lines(plan->ps, at, (const char *)name.p);
		at = (const char *)name.p;
		rc = member(plan, name, value);
		if (rc < 0)
			return rc;
	}
	if (rc == 0)
		return 0;
	count_lines(plan->ps, at, text + walk.at);
	return bad(plan->ps, "%s", err.msg);
}

/* More components first, then longer names: a parameter before its module. */
static int by_length(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	return DCP_CMP(y->components, x->components) ?: DCP_CMP(y->n, x->n) ?:
	       memcmp(x->name, y->name, x->n) ?: DCP_CMP(x->line, y->line);
}

/* "layers.*.q_proj" as the body of a glob, "layers.{*}.q_proj", into @out (3 bytes for one). */
static size_t body(const struct entry *e, char *out)
{
	size_t n = 0;

	if (dcp_layout_is_word(e->name, e->n))
		out[n++] = '\\';
	for (size_t i = 0; i < e->n; i++) {
		if (e->name[i] == '*') {
			memcpy(out + n, "{*}", 3);
			n += 3;
			continue;
		}
		if (strchr("?{()[]@#", e->name[i]))
			out[n++] = '\\';
		out[n++] = e->name[i];
	}
	return n;
}

/* The module or parameter itself, what is in it, and both after any prefix. */
static int globs(struct layout_parse *ps, const struct entry *e)
{
	char text[DCP_LAYOUT_MAX_GLOB + 8] = "*.";
	size_t n;
	int rc;

	if (e->n > DCP_LAYOUT_MAX_GLOB / 3)
		return dcp_layout_bad(ps, -E2BIG, "a name of %zu bytes; the limit is %d", e->n,
				      DCP_LAYOUT_MAX_GLOB / 3);
	for (size_t i = 0; i < e->n; i++)
		if (e->name[i] == ' ' || e->name[i] == '\t')
			return bad(ps, "blank in the name \"%.*s\"", (int)e->n, e->name);
	n = body(e, text + 2);
	memcpy(text + 2 + n, ".*", 2);
	rc = dcp_layout_rule_glob(ps, text + 2, n);
	if (rc == 0)
		rc = dcp_layout_rule_glob(ps, text + 2, n + 2);
	if (rc == 0)
		rc = dcp_layout_rule_glob(ps, text, n + 2);
	if (rc == 0)
		rc = dcp_layout_rule_glob(ps, text, n + 4);
	return rc;
}

/* The dimension that a style cuts: @dim where the mesh has it, else "@tp", else the only one.
 */
static const char *over(const struct dcp_mesh *mesh, const char *dim)
{
	const char *at = "";

	for (uint32_t d = 0; d < mesh->ndim; d++) {
		if (strcmp(mesh->dim[d], dim + 1) == 0)
			return dim;
		if (strcmp(mesh->dim[d], "tp") == 0)
			at = "@tp";
	}
	return at;
}

static int places(struct layout_parse *ps, const char *s, size_t n)
{
	const char *end = s + n, *known[DCP_LEN(styles) + 1] = { 0 };
	char text[64], near[64];
	size_t w;
	int rc = 0;

	for (size_t i = 0; i < DCP_LEN(styles); i++) {
		known[i] = styles[i].style;
		if (strlen(known[i]) == n && memcmp(known[i], s, n) == 0) {
			snprintf(text, sizeof(text), "%s%s", styles[i].place,
				 styles[i].over ? over(&ps->l->mesh, styles[i].over) : "");
			return dcp_layout_place(ps, text, strlen(text));
		}
	}
	if (!dcp_layout_is_place(s, dcp_layout_next_word(&s, end))) {
		snprintf(text, sizeof(text), "%.*s", (int)DCP_MIN(end - s, 60), s);
		dcp_layout_nearest(near, sizeof(near), text, known);
		return bad(ps, "\"%s\" is neither a style nor a placement%s", text, near);
	}
	while (rc == 0 && (w = dcp_layout_next_word(&s, end)) > 0) {
		rc = dcp_layout_place(ps, s, w);
		s += w;
	}
	return rc;
}

static int rules(struct plan *plan)
{
	struct layout_parse *ps = plan->ps;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < plan->n; i++) {
		const struct entry *e = &plan->entry[i];

		ps->line = e->line;
		if (i > 0 && e->n == e[-1].n && memcmp(e->name, e[-1].name, e->n) == 0)
			return bad(ps, "\"%.*s\" stands on line %u too",
				   (int)DCP_MIN(e->n, (size_t)100), e->name, e[-1].line);
		rc = dcp_layout_rule_begin(ps);
		if (rc == 0)
			rc = globs(ps, e);
		if (rc == 0)
			rc = places(ps, e->value, e->nvalue);
		if (rc == 0)
			rc = dcp_layout_rule_end(ps);
	}
	if (rc == 0)
		rc = dcp_layout_rule_begin(ps);
	if (rc == 0)
		rc = dcp_layout_rule_glob(ps, "*", 1);
	return rc;
}

int dcp_layout_json(struct layout_parse *ps, const char *text, size_t n)
{
	struct plan plan = { .ps = ps };
	int rc;

	ps->line = 1;
	rc = members(&plan, text, n);
	if (rc == 0 && ps->l->mesh.ndim == 0)
		rc = dcp_layout_mesh_words(ps, "tp=1", 4);
	if (rc == 0)
		DCP_SORT(plan.entry, plan.n, by_length);
	if (rc == 0)
		rc = rules(&plan);
	free(plan.entry);
	return rc;
}
