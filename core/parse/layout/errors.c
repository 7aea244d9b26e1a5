/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parse: what all texts of a layout need: errors with a line, arrays that grow, placements.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/near.h"
#include "core/parse/layout/layout_int.h"

int dcp_layout_bad(const struct layout_parse *ps, int code, const char *fmt, ...)
{
	char what[320];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	if (ps->line == 0)
		return dcp_fail(ps->err, code, "%.160s: %s", ps->l->name, what);
	return dcp_fail(ps->err, code, "%.160s:%u: %s", ps->l->name, ps->line, what);
}

void dcp_layout_nearest(char *out, size_t size, const char *word, const char *const *known)
{
	struct dcp_near near = dcp_near_to(word);
	const char *nearest = NULL;

	for (size_t i = 0; known[i]; i++)
		if (dcp_near_take(&near, known[i]))
			nearest = known[i];
	out[0] = '\0';
	if (nearest)
		snprintf(out, size, ", nearest is \"%s\"", nearest);
}

static bool cuts(const struct place *p)
{
	return p->kind != PLACE_ONLY && p->kind != PLACE_STAGE;
}

int dcp_layout_place_add(struct layout_parse *ps, const struct place *p)
{
	struct dcp_layout *l = ps->l;
	struct rule *r = &l->rule[l->nrule - 1];
	int rc;

	if (r->nplace == LAYOUT_MAX_PLACES)
		return dcp_layout_bad(ps, -E2BIG, "more than %d placements", LAYOUT_MAX_PLACES);
	for (uint32_t i = 0; i < r->nplace; i++) {
		const struct place *q = &l->place[r->place + i];

		if (p->kind == PLACE_ONLY || q->kind == PLACE_ONLY)
			continue;
		if (p->mesh_dim == q->mesh_dim)
			return bad(ps, "two placements over mesh dimension %s",
				   l->mesh.dim[p->mesh_dim]);
		if (q->kind == PLACE_FLAT && cuts(p) && p->kind != PLACE_FLAT)
			return bad(ps, "after flat there are no dimensions left to cut");
	}
	rc = DCP_GROW(l->place, l->place_cap, l->nplace);
	if (rc < 0)
		return rc;
	l->place[l->nplace++] = *p;
	l->rule[l->nrule - 1].nplace++;
	return 0;
}

int dcp_layout_mesh_find(const struct layout_parse *ps, const char *name, size_t n,
			 uint32_t *out)
{
	const char *known[DCP_LAYOUT_MAX_DIMS + 1] = { 0 };
	const struct dcp_mesh *mesh = &ps->l->mesh;
	char word[LAYOUT_MAX_NAME + 1] = "", near[LAYOUT_MAX_NAME + 32];

	memcpy(word, name, DCP_MIN(n, (size_t)LAYOUT_MAX_NAME));
	for (uint32_t d = 0; d < mesh->ndim; d++) {
		known[d] = mesh->dim[d];
		if (strlen(mesh->dim[d]) == n && memcmp(mesh->dim[d], name, n) == 0) {
			*out = d;
			return 0;
		}
	}
	dcp_layout_nearest(near, sizeof(near), word, known);
	return bad(ps, "the mesh has no dimension \"%s\"%s", word, near);
}
