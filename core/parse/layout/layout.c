/* SPDX-License-Identifier: Apache-2.0 */
/* A layout as a thing: made, put on another mesh, asked for its ranks, freed. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/hash.h"
#include "core/parse/layout/layout_int.h"

static struct dcp_layout *layout_new(const char *name)
{
	struct dcp_layout *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	dcp_arena_init(&l->arena, LAYOUT_MAX_ARENA);
	l->nranks = 1;
	l->name = dcp_arena_strdup(&l->arena, name);
	if (!l->name) {
		dcp_layout_free(l);
		return NULL;
	}
	return l;
}

/* What was parsed becomes *@out, or is freed. */
static int finish(struct layout_parse *ps, int rc, struct dcp_layout **out)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_layout *l = ps->l;

	if (rc == 0 && l->nrule == 0) {
		ps->line = 0;
		rc = bad(ps, "no rules; \"* replicate\" is the simplest");
	}
	if (rc == 0)
		rc = dcp_layout_print(l, &text);
	if (rc == -ENOMEM)
		dcp_fail(ps->err, rc, "%.160s: out of memory", l->name);
	if (rc < 0) {
		dcp_layout_free(l);
		return rc;
	}
	l->hash = dcp_hash64(text.p, text.n);
	*out = l;
	return 0;
}

static bool is_json(const char *text, size_t n)
{
	size_t i = 0;

	while (i < n &&
	       (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n'))
		i++;
	return i < n && text[i] == '{';
}

int dcp_layout_parse(const char *name, const char *text, size_t n, struct dcp_layout **out,
		     struct dcp_err *err)
{
	struct layout_parse ps = { .l = layout_new(name), .err = err };
	int rc;

	if (!ps.l)
		return -ENOMEM;
	if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
		text += 3; /* the mark that some editors put in front of UTF-8 */
		n -= 3;
	}
	if (n > DCP_LAYOUT_MAX_TEXT)
		rc = dcp_layout_bad(&ps, -E2BIG, "%zu bytes; a layout has at most %u", n,
				    DCP_LAYOUT_MAX_TEXT);
	else if (is_json(text, n))
		rc = dcp_layout_json(&ps, text, n);
	else
		rc = dcp_layout_lines(&ps, text, n);
	return finish(&ps, rc, out);
}

int dcp_layout_on_mesh(const struct dcp_layout *l, const char *mesh, struct dcp_layout **out,
		       struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT, rules = DCP_BUF_INIT;
	struct layout_parse ps = { .mesh_given = true, .err = err };
	unsigned *lines = calloc(l->nrule, sizeof(*lines));
	int rc;

	dcp_buf_printf(&name, "mesh:%s:%s", mesh, l->name);
	dcp_layout_print_rules(l, &rules);
	ps.l = dcp_buf_error(&name) || dcp_buf_error(&rules) ? NULL : layout_new(name.p);
	if (!lines || !ps.l) {
		free(lines);
		dcp_layout_free(ps.l);
		return -ENOMEM;
	}
	for (size_t i = 0; i < l->nrule; i++)
		lines[i] = l->rule[i].line;
	ps.lines = lines;
	rc = dcp_layout_mesh_words(&ps, mesh, strlen(mesh));
	if (rc == 0)
		rc = dcp_layout_lines(&ps, rules.p, rules.n);
	free(lines);
	return finish(&ps, rc, out);
}
