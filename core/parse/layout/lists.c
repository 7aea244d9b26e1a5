/* SPDX-License-Identifier: Apache-2.0 */
/* Placements that are lists: torch's and Paddle's, with an item for each mesh dimension; Paddle's
 * dims_mapping, with a number for each tensor dimension; and only(), with ranges of coordinates. */
#include "core/parse/layout/layout.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/text.h"

/* parse: helpers for all texts of a layout: errors with a line, arrays that grow, placements. */

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

static bool is_cutting(const struct place *p)
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
		if (q->kind == PLACE_FLAT && is_cutting(p) && p->kind != PLACE_FLAT)
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

/* The arguments of one placement: "(0, even, sizes=[2,3], dim=1)". */

static const char *dcp_layout_blanks(const char *s, const char *end)
{
	while (s < end && (*s == ' ' || *s == '\t'))
		s++;
	return s;
}

size_t dcp_layout_word(const char *s, const char *end)
{
	size_t n = 0;

	while (s + n < end && ((s[n] | 32) >= 'a' && (s[n] | 32) <= 'z'))
		n++;
	if (n == 0 && !(s < end && *s == '_'))
		return 0;
	while (s + n < end && (((s[n] | 32) >= 'a' && (s[n] | 32) <= 'z') || s[n] == '_' ||
			       dcp_is_digit(s[n])))
		n++;
	return n;
}

bool dcp_layout_int(const char **s, const char *end, int64_t *out)
{
	const char *p = *s;
	bool minus = p < end && *p == '-';
	uint64_t v;

	p += minus;
	if (!dcp_take_number(&p, end, DCP_ANY_DIGITS, &v) || v > INT64_MAX)
		return false;
	*out = minus ? -(int64_t)v : (int64_t)v;
	*s = p;
	return true;
}

static size_t count_commas(const char *s, const char *end)
{
	size_t n = 0;

	for (; s < end && *s != ']'; s++)
		n += *s == ',';
	return n;
}

/* Parse "[1, 2]" at *@s: non-negative numbers, in the arena. */
static int take_list(struct layout_parse *ps, const char **s, const char *end,
		     struct layout_arg *arg)
{
	const char *p = *s + 1;
	size_t room = count_commas(p, end) + 1;
	uint64_t *v;

	ps->l->nlisted += room;
	if (ps->l->nlisted > DCP_LAYOUT_MAX_SPANS)
		return dcp_layout_bad(ps, -E2BIG, "more than %d numbers in lists",
				      DCP_LAYOUT_MAX_SPANS);
	v = dcp_arena_calloc(&ps->l->arena, room, sizeof(*v));
	if (!v)
		return -ENOMEM;
	arg->is_list = true;
	arg->list = v;
	do {
		int64_t number;

		p = dcp_layout_blanks(p, end);
		if (!dcp_layout_int(&p, end, &number) || number < 0)
			return bad(ps, "a list holds numbers, as in [4,2,2], not %.*s",
				   (int)DCP_MIN(end - *s, 60), *s);
		v[arg->nlist++] = (uint64_t)number;
		p = dcp_layout_blanks(p, end);
	} while (p < end && *p++ == ',');
	if (p[-1] != ']')
		return bad(ps, "a list ends in ], not as in %.*s", (int)DCP_MIN(end - *s, 60),
			   *s);
	*s = p;
	return 0;
}

/* Parse "name", "name=value" or a value at *@s. */
static int take_argument(struct layout_parse *ps, const char **s, const char *end,
			 struct layout_arg *arg)
{
	const char *start = *s, *p = start;
	size_t n = dcp_layout_word(p, end);

	*arg = (struct layout_arg){ 0 };
	if (n >= sizeof(arg->name))
		return bad(ps, "no argument is called %.*s", (int)DCP_MIN(n, (size_t)60), p);
	memcpy(arg->name, p, n);
	p = dcp_layout_blanks(p + n, end);
	if (n > 0 && (p >= end || *p != '=')) {
		*s = p;
		return 0;
	}
	if (n > 0)
		p = dcp_layout_blanks(p + 1, end);
	arg->has_value = true;
	*s = p;
	if (p < end && *p == '[')
		return take_list(ps, s, end, arg);
	if (dcp_layout_int(s, end, &arg->value))
		return 0;
	return bad(ps, "expected a number or a list, found %.*s", (int)DCP_MIN(end - start, 60),
		   start);
}

int dcp_layout_args(struct layout_parse *ps, const char *s, const char *end,
		    struct dcp_layout_args *out)
{
	const char *p = s;

	*out = (struct dcp_layout_args){ .end = s };
	if (p >= end || *p != '(')
		return 0;
	p = dcp_layout_blanks(p + 1, end);
	while (p < end && *p != ')') {
		int rc;

		if (out->n == DCP_LEN(out->arg))
			return bad(ps, "more than %zu arguments in %.*s", DCP_LEN(out->arg),
				   (int)DCP_MIN(end - s, 60), s);
		rc = take_argument(ps, &p, end, &out->arg[out->n++]);
		if (rc < 0)
			return rc;
		p = dcp_layout_blanks(p, end);
		if (p < end && *p == ',')
			p = dcp_layout_blanks(p + 1, end);
		else if (p < end && *p != ')')
			return bad(ps, "arguments are separated by commas, not as in %.*s",
				   (int)DCP_MIN(end - s, 60), s);
	}
	if (p >= end)
		return bad(ps, "no ) after %.*s", (int)DCP_MIN(end - s, 60), s);
	out->end = p + 1;
	return 0;
}

enum { MAX_RANGES = 256 };

static bool is_word(const char *s, size_t n, const char *word)
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

/* Parse Shard(0), Shard(dim=0) or _StridedShard(dim=0, sf=2) into @p. */
static int take_shard(struct layout_parse *ps, const struct dcp_layout_args *args, bool strided,
		      struct place *p)
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

static int take_torch_place(struct layout_parse *ps, const char **s, const char *end,
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
	if (is_word(word, n, "Replicate") && args.n == 0)
		return 0;
	if (is_word(word, n, "Shard") || is_word(word, n, "_StridedShard"))
		return take_shard(ps, &args, word[0] == '_', &p);
	if (is_word(word, n, "Partial"))
		return bad(
			ps,
			"Partial is a sum not yet taken; no rank holds a part of the tensor");
	memcpy(text, word, DCP_MIN(n, sizeof(text) - 1));
	dcp_layout_nearest(near, sizeof(near), text, known);
	return bad(ps, "%.*s is not one of torch's placements%s", (int)DCP_MIN(end - word, 40),
		   word, near);
}

/* Parse "[Shard(0), Replicate()]", with as many items as the mesh has dimensions. */
static int take_torch_list(struct layout_parse *ps, const char *s, const char *end)
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
		rc = take_torch_place(ps, &s, end, n);
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

/* Parse the mesh dimension that cuts dimension @dim of the tensor; -1: not cut. */
static int take_mesh_dim(struct layout_parse *ps, const char **s, const char *end, int32_t dim)
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

/* Parse "0, 1]": mesh dimensions that cut a dimension of the tensor one after the other. */
static int take_mesh_dims(struct layout_parse *ps, const char **s, const char *end, int32_t dim)
{
	const char *close = memchr(*s, ']', (size_t)(end - *s));
	int rc = 0;

	if (!close)
		return bad(ps, "dims_mapping: a [ that is not closed");
	while ((*s = dcp_layout_blanks(*s, close)) < close && rc == 0) {
		rc = take_mesh_dim(ps, s, close, dim);
		*s = dcp_layout_blanks(*s, close);
		if (rc == 0 && *s < close && *(*s)++ != ',')
			rc = bad(ps, "numbers are separated by commas");
	}
	*s = close + 1;
	return rc;
}

/* Parse "-1, 0]" or, since Paddle 3.3, "[], [0, 1]]": an item for each dimension of the tensor. */
static int take_dims_mapping(struct layout_parse *ps, const char *s, const char *end)
{
	for (int32_t dim = 0;; dim++) {
		int rc;

		s = dcp_layout_blanks(s, end);
		if (s >= end && dim == 0)
			return 0;
		if (s < end && *s == '[') {
			s++;
			rc = take_mesh_dims(ps, &s, end, dim);
		} else {
			rc = take_mesh_dim(ps, &s, end, dim);
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
		return take_dims_mapping(ps, s, end);
	return take_torch_list(ps, s, end);
}

/* Parse "0-3" or "-1" at *@s, inside mesh dimension @dim. */
static int take_range(struct layout_parse *ps, const char **s, const char *end, uint32_t dim,
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

/* Parse "pp=0|3-4" at *@s into @to. */
static int take_ranges(struct layout_parse *ps, const char **s, const char *end,
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
		rc = take_range(ps, s, end, dim, &to[(*n)++]);
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
		rc = take_ranges(ps, &s, end, found, &p.nrange);
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

/* A glob compiled into literals, stars and numbers. */

/* Parse "3}", "0-15}", "16-}" or "*}" at *@s, and move past it. */
static bool number_op(const char **s, const char *end, struct glob_op *op)
{
	const char *p = *s;

	*op = (struct glob_op){ .kind = GLOB_NUMBER, .hi = UINT64_MAX };
	if (p < end && *p == '*') {
		p++;
	} else {
		if (!dcp_take_number(&p, end, DCP_ANY_DIGITS, &op->lo))
			return false;
		op->hi = op->lo;
		if (p < end && *p == '-') {
			p++;
			op->hi = UINT64_MAX;
			if (p < end && *p != '}' &&
			    !dcp_take_number(&p, end, DCP_ANY_DIGITS, &op->hi))
				return false;
		}
	}
	if (p >= end || *p != '}' || op->hi < op->lo)
		return false;
	*s = p + 1;
	return true;
}

/* Parse an op at *@s. Literal bytes go to *@text, which has room for all of them. */
static int next_op(const struct layout_parse *ps, const char **s, const char *end, char **text,
		   struct glob_op *op)
{
	const char *p = *s;

	*op = (struct glob_op){ .text = *text };
	if (*p == '*' || *p == '?') {
		op->kind = *p == '*' ? GLOB_STAR : GLOB_ANY;
		*s = p + 1;
		return 0;
	}
	if (*p == '{') {
		*s = p + 1;
		return number_op(s, end, op)
			       ? 0
			       : bad(ps,
				     "glob %.*s: {} holds a number, as in {3} {0-15} {16-} {*}",
				     (int)DCP_MIN(end - p, 60), p);
	}
	for (op->kind = GLOB_LITERAL; p < end && !strchr("*?{", *p); p++) {
		if (*p == '\\' && ++p == end)
			return bad(ps, "a glob ends in a lone \\");
		*(*text)++ = *p;
		op->n++;
	}
	*s = p;
	return 0;
}

static void find_glob_facts(struct glob *g)
{
	for (uint32_t i = 0; i < g->nop; i++) {
		const struct glob_op *op = &g->op[i];

		if (op->kind == GLOB_LITERAL)
			g->pairs |= dcp_layout_pairs(op->text, op->n);
		g->nnumber += op->kind == GLOB_NUMBER;
		g->min += op->kind == GLOB_LITERAL ? op->n : op->kind != GLOB_STAR;
	}
}

/* The largest number of ops that @n bytes can become: each wildcard, and literals around it. */
static size_t most_ops(const char *text, size_t n)
{
	size_t ops = 1;

	for (size_t i = 0; i < n; i++)
		ops += strchr("*?{", text[i]) ? 2 : 0;
	return ops;
}

int dcp_layout_glob_init(struct layout_parse *ps, const char *text, size_t n, struct glob *out)
{
	const char *s = text, *end = text + n;
	struct glob g = { 0 };
	struct glob_op *op;
	char *literal;

	if (n > DCP_LAYOUT_MAX_GLOB)
		return dcp_layout_bad(ps, -E2BIG, "a glob of %zu bytes; the limit is %d", n,
				      DCP_LAYOUT_MAX_GLOB);
	op = dcp_arena_calloc(&ps->l->arena, most_ops(text, n), sizeof(*op));
	literal = dcp_arena_alloc(&ps->l->arena, n);
	g.text = dcp_arena_strndup(&ps->l->arena, text, n);
	if (!op || !literal || !g.text)
		return -ENOMEM;
	g.op = op;
	while (s < end) {
		int rc = next_op(ps, &s, end, &literal, &op[g.nop]);

		if (rc < 0)
			return rc;
		if (g.nop > 0 && op[g.nop].kind == GLOB_STAR && op[g.nop - 1].kind == GLOB_STAR)
			continue;
		g.nop++;
	}
	find_glob_facts(&g);
	if (g.nnumber > LAYOUT_MAX_NUMBERS)
		return dcp_layout_bad(ps, -E2BIG, "glob %.60s: %u numbers; the limit is %d",
				      g.text, g.nnumber, LAYOUT_MAX_NUMBERS);
	*out = g;
	return 0;
}
