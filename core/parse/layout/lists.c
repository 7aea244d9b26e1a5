/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placements that are lists: torch's and Paddle's, one a mesh dimension; Paddle's dims_mapping,
 * one number a tensor dimension; and only(), ranges of coordinates.
 */
#include <errno.h>
#include <string.h>

#include "core/base/text.h"
#include "core/parse/layout/layout_int.h"

enum { MAX_RANGES = 256 };

static bool is(const char *s, size_t n, const char *word)
{
	return strlen(word) == n && memcmp(s, word, n) == 0;
}

/* "dist.Shard" -> "Shard" */
static size_t last_component(const char **s, const char *end)
{
	size_t n = dcp_layout_word(*s, end);

	while (*s + n + 1 < end && (*s)[n] == '.' && dcp_layout_word(*s + n + 1, end) > 0) {
		*s += n + 1;
		n = dcp_layout_word(*s, end);
	}
	return n;
}

/* Shard(0), Shard(dim=0), _StridedShard(dim=0, sf=2) into @p. */
static int torch_shard(struct layout_parse *ps, const struct dcp_layout_args *args,
		       bool strided, struct place *p)
{
	bool dim = false, factor = !strided;

	p->kind = strided ? PLACE_STRIDED : PLACE_SHARD;
	for (size_t i = 0; i < args->n; i++) {
		const struct layout_arg *a = &args->arg[i];

		if (!a->has_value || a->is_list || a->value > INT32_MAX || a->value < INT32_MIN)
			return bad(ps, "Shard takes numbers, not \"%s\"", a->name);
		if (!dim && (!a->name[0] || strcmp(a->name, "dim") == 0)) {
			p->dim = (int32_t)a->value;
			dim = true;
		} else if (!factor && a->value > 0 &&
			   (!strcmp(a->name, "sf") || !strcmp(a->name, "split_factor"))) {
			p->arg = (uint64_t)a->value;
			factor = true;
		} else {
			return bad(ps, "Shard does not take argument %zu", i + 1);
		}
	}
	if (!dim)
		return bad(ps, "Shard needs a dimension, as in Shard(0)");
	if (!factor)
		p->arg = 1; /* torch's default */
	return dcp_layout_place_add(ps, p);
}

static int torch_one(struct layout_parse *ps, const char **s, const char *end,
		     uint32_t mesh_dim)
{
	static const char *const known[] = { "Shard", "Replicate", "_StridedShard", NULL };
	struct place p = { .mesh_dim = mesh_dim };
	const char *word = *s;
	size_t n = last_component(&word, end);
	struct dcp_layout_args args;
	char text[32] = "", near[64];
	int rc = dcp_layout_args(ps, word + n, end, &args);

	if (rc < 0)
		return rc;
	*s = args.end;
	if (is(word, n, "Replicate") && args.n == 0)
		return 0;
	if (is(word, n, "Shard") || is(word, n, "_StridedShard"))
		return torch_shard(ps, &args, word[0] == '_', &p);
	if (is(word, n, "Partial"))
		return bad(
			ps,
			"Partial is a sum not yet taken; no rank holds a part of the tensor");
	memcpy(text, word, DCP_MIN(n, sizeof(text) - 1));
	dcp_layout_nearest(near, sizeof(near), text, known);
	return bad(ps, "%.*s is not one of torch's placements%s", (int)DCP_MIN(end - word, 40),
		   word, near);
}

/* "[Shard(0), Replicate()]", as many as the mesh has dimensions. */
static int torch_list(struct layout_parse *ps, const char *s, const char *end)
{
	const struct dcp_mesh *mesh = &ps->l->mesh;
	uint32_t n = 0;

	for (;; n++) {
		int rc;

		s = dcp_layout_blanks(s, end);
		if (s >= end)
			break;
		if (n == mesh->ndim)
			return bad(ps, "more placements than the %u of the mesh", mesh->ndim);
		rc = torch_one(ps, &s, end, n);
		if (rc < 0)
			return rc;
		s = dcp_layout_blanks(s, end);
		if (s < end && *s++ != ',')
			return bad(ps, "placements are separated by commas");
	}
	if (n < mesh->ndim)
		return bad(ps, "%u placement%s for a mesh of %u dimension%s", n, dcp_s(n),
			   mesh->ndim, dcp_s(mesh->ndim));
	return 0;
}

/* A mesh dimension that cuts dimension @dim of the tensor; -1: none does. */
static int dims_mapping_one(struct layout_parse *ps, const char **s, const char *end,
			    int32_t dim)
{
	struct place p = { .kind = PLACE_SHARD, .split = SPLIT_LAST, .dim = dim };
	const char *start = *s;
	int64_t m;

	if (!dcp_layout_int(s, end, &m) || m < -1)
		return bad(ps, "dims_mapping holds mesh dimensions from 0, or -1, not %.*s",
			   (int)DCP_MIN(end - start, 40), start);
	if (m >= ps->l->mesh.ndim)
		return bad(ps, "dims_mapping names mesh dimension %jd of %u", (intmax_t)m,
			   ps->l->mesh.ndim);
	p.mesh_dim = (uint32_t)m;
	return m < 0 ? 0 : dcp_layout_place_add(ps, &p);
}

/* After a bracket: "0, 1]", mesh dimensions that cut one of the tensor one after the other. */
static int dims_mapping_several(struct layout_parse *ps, const char **s, const char *end,
				int32_t dim)
{
	const char *close = memchr(*s, ']', (size_t)(end - *s));
	int rc = 0;

	if (!close)
		return bad(ps, "dims_mapping: a [ that is not closed");
	while ((*s = dcp_layout_blanks(*s, close)) < close && rc == 0) {
		rc = dims_mapping_one(ps, s, close, dim);
		*s = dcp_layout_blanks(*s, close);
		if (rc == 0 && *s < close && *(*s)++ != ',')
			rc = bad(ps, "numbers are separated by commas");
	}
	*s = close + 1;
	return rc;
}

/* "-1, 0]" or, since Paddle 3.3, "[], [0, 1]]": for each dimension of the tensor. */
static int dims_mapping(struct layout_parse *ps, const char *s, const char *end)
{
	for (int32_t dim = 0;; dim++) {
		int rc;

		s = dcp_layout_blanks(s, end);
		if (s >= end && dim == 0)
			return 0;
		if (s < end && *s == '[') {
			s++;
			rc = dims_mapping_several(ps, &s, end, dim);
		} else {
			rc = dims_mapping_one(ps, &s, end, dim);
		}
		if (rc < 0)
			return rc;
		s = dcp_layout_blanks(s, end);
		if (s >= end)
			return 0;
		if (*s++ != ',')
			return bad(ps, "numbers are separated by commas");
	}
}

int dcp_layout_list(struct layout_parse *ps, const char *text, size_t n)
{
	bool named = n > 12 && memcmp(text, "dims_mapping", 12) == 0;
	const char *s = text + (named ? 12 : 0), *end = text + n, *first;
	char close;

	s += named && *s == '=';
	close = s < end && *s == '[' ? ']' : s < end && *s == '(' ? ')' : '\0';
	if (!close || end[-1] != close || end - s < 2)
		return bad(ps,
			   "%.*s: expected a list such as [Shard(0), Replicate()] or "
			   "dims_mapping=[-1,0]",
			   (int)DCP_MIN(n, (size_t)60), text);
	first = dcp_layout_blanks(++s, --end);
	if (named || (first < end && memchr("-[0123456789", *first, 12)))
		return dims_mapping(ps, s, end);
	return torch_list(ps, s, end);
}

/* "0-3" or "-1" at *@s, inside mesh dimension @dim. */
static int range(struct layout_parse *ps, const char **s, const char *end, uint32_t dim,
		 struct place_range *out)
{
	int64_t size = ps->l->mesh.size[dim], lo, hi;
	const char *start = *s;

	if (!dcp_layout_int(s, end, &lo))
		return bad(ps, "only: expected coordinates such as 0, 0-3 or -1, found %.*s",
			   (int)DCP_MIN(end - start, 40), start);
	hi = lo;
	if (lo >= 0 && *s < end && **s == '-') {
		(*s)++;
		if (!dcp_layout_int(s, end, &hi) || hi < lo)
			return bad(ps, "only: %.*s is not a range",
				   (int)DCP_MIN(end - start, 40), start);
	}
	if (lo < -size || hi >= size)
		return bad(ps, "only: %s has coordinates 0 to %jd, not %.*s",
			   ps->l->mesh.dim[dim], (intmax_t)size - 1, (int)(*s - start), start);
	*out = (struct place_range){ dim, (int32_t)lo, (int32_t)hi };
	return 0;
}

/* "pp=0|3-4" at *@s into @to. */
static int ranges(struct layout_parse *ps, const char **s, const char *end,
		  struct place_range *to, size_t *n)
{
	size_t w = dcp_layout_word(*s, end);
	uint32_t dim;
	int rc = dcp_layout_mesh_find(ps, *s, w, &dim);

	if (rc < 0)
		return rc;
	for (size_t i = 0; i < *n; i++)
		if (to[i].mesh_dim == dim)
			return bad(ps, "only: %s twice", ps->l->mesh.dim[dim]);
	*s = dcp_layout_blanks(*s + w, end);
	if (*s >= end || **s != '=')
		return bad(ps, "only: = and coordinates follow %s", ps->l->mesh.dim[dim]);
	do {
		*s = dcp_layout_blanks(*s + 1, end);
		if (*n == MAX_RANGES)
			return dcp_layout_bad(ps, -E2BIG, "only: more than %d ranges",
					      MAX_RANGES);
		rc = range(ps, s, end, dim, &to[(*n)++]);
		if (rc < 0)
			return rc;
		*s = dcp_layout_blanks(*s, end);
	} while (*s < end && **s == '|');
	return 0;
}

int dcp_layout_only(struct layout_parse *ps, const char *text, size_t n)
{
	struct place_range found[MAX_RANGES], *kept;
	struct place p = { .kind = PLACE_ONLY };
	const char *s = text + 5, *end = text + n - 1;

	if (n < 7 || text[4] != '(' || *end != ')')
		return bad(ps, "%.*s: which ranks? write only(%s=0)",
			   (int)DCP_MIN(n, (size_t)60), text, ps->l->mesh.dim[0]);
	for (;;) {
		int rc;

		s = dcp_layout_blanks(s, end);
		rc = ranges(ps, &s, end, found, &p.nrange);
		if (rc < 0)
			return rc;
		if (s >= end)
			break;
		if (*s++ != ',')
			return bad(ps,
				   "only: commas stand between mesh dimensions, | between "
				   "coordinates, not %.*s",
				   (int)DCP_MIN(end - s + 1, 40), s - 1);
	}
	kept = dcp_arena_calloc(&ps->l->arena, p.nrange, sizeof(*kept));
	if (!kept)
		return -ENOMEM;
	memcpy(kept, found, p.nrange * sizeof(*kept));
	p.range = kept;
	return dcp_layout_place_add(ps, &p);
}
