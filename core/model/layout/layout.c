/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/layout/rule.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/text.h"

void dcp_layout_free(struct dcp_layout *l)
{
	if (!l)
		return;
	free(l->rule);
	free(l->glob);
	free(l->place);
	dcp_arena_finish(&l->arena);
	free(l);
}

const char *dcp_layout_name(const struct dcp_layout *l)
{
	return l->name;
}

const struct dcp_mesh *dcp_layout_mesh(const struct dcp_layout *l)
{
	return &l->mesh;
}

uint32_t dcp_layout_ranks(const struct dcp_layout *l)
{
	return l->nranks;
}

void dcp_layout_coords(const struct dcp_layout *l, uint32_t rank, uint32_t *at)
{
	for (uint32_t d = l->mesh.ndim; d-- > 0; rank /= l->mesh.size[d])
		at[d] = rank % l->mesh.size[d];
}

uint64_t dcp_layout_hash(const struct dcp_layout *l)
{
	return l->hash;
}

/*
 * Does a key match a glob? Globs are compiled once into literals, stars and numbers, and matched
 * without allocation, in time linear in the key for all but contrived globs: after a star the next
 * literal is searched for, and only the latest star is tried again, because it can match all that
 * an earlier star could.
 */

enum { NEAR_GLOBS = 256, NEAR_LEN = 128 };

/* Bytes that @op takes of the key at @k, or -1. */
static ptrdiff_t op_takes(const struct glob_op *op, const char *key, size_t k, size_t n,
			  uint64_t *number)
{
	const char *s = key + k;

	switch (op->kind) {
	case GLOB_LITERAL:
		return op->n <= n - k && memcmp(s, op->text, op->n) == 0 ? (ptrdiff_t)op->n
									 : -1;
	case GLOB_ANY:
		return k < n ? 1 : -1;
	case GLOB_NUMBER:
		if ((k > 0 && dcp_is_digit(key[k - 1])) ||
		    !dcp_take_number(&s, key + n, DCP_ANY_DIGITS, number) || *number < op->lo ||
		    *number > op->hi)
			return -1;
		return s - (key + k);
	case GLOB_STAR:
		break;
	}
	return -1;
}

/* The first place from @k on where a star may end, by the literal after it; n + 1: none. */
static size_t star_end(const struct glob *g, uint32_t next, const char *key, size_t k, size_t n)
{
	const struct glob_op *op = &g->op[next];
	const char *hit;

	if (k > n || op->kind != GLOB_LITERAL)
		return k;
	if (next + 1 == g->nop)
		return op->n <= n - k ? n - op->n : n + 1;
	hit = memmem(key + k, n - k, op->text, op->n);
	return hit ? (size_t)(hit - key) : n + 1;
}

/* Match a key; @number (LAYOUT_MAX_NUMBERS) gets the numbers. */
static bool glob_match(const struct glob *g, uint64_t pairs, const char *key, size_t n,
		       uint64_t *number)
{
	uint32_t i = 0, star = UINT32_MAX, nn = 0, star_nn = 0;
	size_t k = 0, star_k = 0;

	if (g->pairs & ~pairs || n < g->min)
		return false;
	while (i < g->nop || k < n) {
		ptrdiff_t took = -1;

		if (i < g->nop && g->op[i].kind == GLOB_STAR) {
			star = i++;
			if (i == g->nop)
				return true;
			star_nn = nn;
			k = star_k = star_end(g, i, key, k, n);
			if (k > n)
				return false;
			continue;
		}
		if (i < g->nop)
			took = op_takes(&g->op[i], key, k, n, &number[nn]);
		if (took >= 0) {
			nn += g->op[i++].kind == GLOB_NUMBER;
			k += (size_t)took;
			continue;
		}
		if (star == UINT32_MAX || star_k >= n)
			return false;
		i = star + 1;
		nn = star_nn;
		k = star_k = star_end(g, i, key, star_k + 1, n);
		if (k > n)
			return false;
	}
	return true;
}

bool dcp_layout_rule(const struct dcp_layout *l, const char *key, struct dcp_layout_rule *out)
{
	size_t n = strlen(key);
	uint64_t pairs = dcp_layout_pairs(key, n);

	*out = (struct dcp_layout_rule){ .key = key, .number = UINT32_MAX };
	for (size_t r = 0; r < l->nrule; r++)
		for (uint32_t g = 0; g < l->rule[r].nglob; g++)
			if (glob_match(&l->glob[l->rule[r].glob + g], pairs, key, n,
				       out->stage)) {
				out->number = (uint32_t)r;
				return true;
			}
	return false;
}

/* Write a glob's bytes with 0 for each wildcard; returns their number, at most NEAR_LEN. */
static size_t flatten_glob(const struct glob *g, char *out)
{
	size_t n = 0;

	for (uint32_t i = 0; i < g->nop; i++) {
		const struct glob_op *op = &g->op[i];

		if (op->kind != GLOB_LITERAL && n < NEAR_LEN)
			out[n++] = '\0';
		for (uint32_t j = 0; op->kind == GLOB_LITERAL && j < op->n && n < NEAR_LEN; j++)
			out[n++] = op->text[j];
	}
	return n;
}

/* Edit distance in which a wildcard takes any run of the key for nothing. */
static size_t measure_distance(const struct glob *g, const char *key, size_t nk)
{
	char flat[NEAR_LEN];
	size_t ng = flatten_glob(g, flat), row[NEAR_LEN + 1];

	for (size_t k = 0; k <= nk; k++)
		row[k] = k;
	for (size_t i = 0; i < ng; i++) {
		size_t diagonal = row[0];

		row[0] += flat[i] != '\0';
		for (size_t k = 1; k <= nk; k++) {
			size_t up = row[k], d = diagonal + (flat[i] != key[k - 1]);

			if (flat[i] == '\0')
				d = DCP_MIN(up, row[k - 1]);
			else
				d = DCP_MIN(d, DCP_MIN(up, row[k - 1]) + 1);
			row[k] = d;
			diagonal = up;
		}
	}
	return row[nk];
}

uint32_t dcp_layout_glob_nearest(const struct dcp_layout *l, const char *key,
				 const struct glob **out)
{
	size_t nk = strnlen(key, NEAR_LEN), best = SIZE_MAX, seen = 0;
	uint32_t nearest = UINT32_MAX;

	for (uint32_t r = 0; r < l->nrule; r++)
		for (uint32_t i = 0; i < l->rule[r].nglob && seen < NEAR_GLOBS; i++, seen++) {
			const struct glob *g = &l->glob[l->rule[r].glob + i];
			size_t d = measure_distance(g, key, nk);

			if (d < best) {
				best = d;
				nearest = r;
				*out = g;
			}
		}
	return nearest;
}

/* Layouts as normalized text, which parses back to an equal layout. */

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

/* The text before the next argument: "(" or ", ". */
static const char *take_separator(bool *first)
{
	bool was = *first;

	*first = false;
	return was ? "(" : ", ";
}

static void print_args(const struct place *p, struct dcp_buf *out)
{
	bool first = true;

	if (has_dim(p))
		dcp_buf_printf(out, "%s%d", take_separator(&first), p->dim);
	if (p->kind == PLACE_STRIDED || p->kind == PLACE_INTERLEAVE || p->kind == PLACE_STAGE)
		dcp_buf_printf(out, "%s%ju", take_separator(&first), (uintmax_t)p->arg);
	if (p->kind == PLACE_FLAT && p->arg)
		dcp_buf_printf(out, "%spad=%ju", take_separator(&first), (uintmax_t)p->arg);
	if (split_word(p))
		dcp_buf_printf(out, "%s%s", take_separator(&first), split_word(p));
	if (p->number) {
		dcp_buf_str(out, take_separator(&first));
		print_list(out, p->grouped ? "groups=[" : "sizes=[", p);
	}
	if (p->optional && p->kind != PLACE_COLWISE && p->kind != PLACE_ROWWISE)
		dcp_buf_printf(out, "%soptional", take_separator(&first));
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

/* The arithmetic of cutting: the elements of a length that belong to one of several parts. */

/* The edge before part @index where parts have @c elements and the last ones are clipped. */
static uint64_t find_edge(uint64_t c, uint64_t index, uint64_t n)
{
	uint64_t at;

	return dcp_ckd_mul(&at, c, index) || at > n ? n : at;
}

static struct slice cut_chunk(uint64_t n, uint64_t parts, uint64_t index)
{
	uint64_t c = dcp_div_up(n, parts), lo = find_edge(c, index, n);

	return (struct slice){ lo, find_edge(c, index + 1, n) - lo };
}

static struct slice cut_balanced(uint64_t n, uint64_t parts, uint64_t index)
{
	uint64_t small = n / parts, larger = n % parts;

	return (struct slice){ small * index + DCP_MIN(index, larger),
			       small + (index < larger) };
}

static int cut_sized(const struct place *p, uint32_t index, uint64_t n, struct slice *out,
		     char *why, size_t why_size)
{
	uint64_t lo = 0;

	if (p->sum != n) {
		snprintf(why, why_size, "the sizes add up to %ju, the length is %ju",
			 (uintmax_t)p->sum, (uintmax_t)n);
		return -EINVAL;
	}
	for (uint32_t i = 0; i < index; i++)
		lo += p->number[i];
	*out = (struct slice){ lo, p->number[index] };
	return 0;
}

int dcp_layout_part(enum split_kind kind, const struct place *p, uint32_t parts, uint32_t index,
		    uint64_t n, struct slice *out, char *why, size_t why_size)
{
	uint64_t before;

	switch (kind) {
	case SPLIT_BALANCED:
		*out = cut_balanced(n, parts, index);
		return 0;
	case SPLIT_SIZES:
		return cut_sized(p, index, n, out, why, why_size);
	case SPLIT_EVEN:
		if (n % parts != 0) {
			snprintf(why, why_size, "%ju is not a multiple of %u", (uintmax_t)n,
				 parts);
			return -EINVAL;
		}
		break;
	case SPLIT_LAST:
		if (dcp_ckd_mul(&before, dcp_div_up(n, parts), parts - 1) || before > n) {
			snprintf(why, why_size,
				 "%u times %ju is more than %ju: nothing is left for the last",
				 parts - 1, (uintmax_t)dcp_div_up(n, parts), (uintmax_t)n);
			return -EINVAL;
		}
		break;
	case SPLIT_CHUNK:
	case SPLIT_PAD:
	case SPLIT_TIGHT:
		break;
	}
	*out = cut_chunk(n, parts, index);
	return 0;
}

static int alloc_slices(struct slices *out, uint64_t n, struct dcp_arena *arena, char *why,
			size_t why_size)
{
	if (n > DCP_LAYOUT_MAX_SPANS) {
		snprintf(why, why_size, "%ju spans; the limit is %d", (uintmax_t)n,
			 DCP_LAYOUT_MAX_SPANS);
		return -E2BIG;
	}
	*out = (struct slices){ .v = dcp_arena_alloc(arena, n * sizeof(*out->v)) };
	return out->v ? 0 : -ENOMEM;
}

static void add_slice(struct slices *s, uint64_t lo, uint64_t n)
{
	if (n == 0)
		return;
	s->v[s->n++] = (struct slice){ lo, n };
	s->len += n;
}

static int cut_grouped(const struct place *p, uint32_t parts, uint32_t index, uint64_t n,
		       struct dcp_arena *arena, struct slices *out, char *why, size_t why_size)
{
	uint64_t base = 0, scale = n / p->sum;
	int rc;

	if (n % p->sum != 0) {
		snprintf(why, why_size,
			 "the groups add up to %ju, which does not divide the length %ju",
			 (uintmax_t)p->sum, (uintmax_t)n);
		return -EINVAL;
	}
	rc = alloc_slices(out, p->nnumber, arena, why, why_size);
	for (size_t i = 0; rc == 0 && i < p->nnumber; i++) {
		struct slice part;

		rc = dcp_layout_part(p->split, p, parts, index, p->number[i] * scale, &part,
				     why, why_size);
		if (rc < 0)
			break;
		add_slice(out, base + part.lo, part.n);
		base += p->number[i] * scale;
	}
	return rc;
}

/* torch.chunk() twice: in split_factor pieces, and each piece in parts. */
static int cut_strided(const struct place *p, uint32_t parts, uint32_t index, uint64_t n,
		       struct dcp_arena *arena, struct slices *out, char *why, size_t why_size)
{
	uint64_t c = dcp_div_up(n, p->arg), pieces = c ? dcp_div_up(n, c) : 0;
	int rc = alloc_slices(out, pieces, arena, why, why_size);

	for (uint64_t j = 0; rc == 0 && j < pieces; j++) {
		struct slice piece = cut_chunk(n, p->arg, j);
		struct slice part = cut_chunk(piece.n, parts, index);

		add_slice(out, piece.lo + part.lo, part.n);
	}
	return rc;
}

static int cut_interleaved(const struct place *p, uint32_t parts, uint32_t index, uint64_t n,
			   struct dcp_arena *arena, struct slices *out, char *why,
			   size_t why_size)
{
	uint64_t blocks = dcp_div_up(n, p->arg);
	uint64_t mine = blocks > index ? dcp_div_up(blocks - index, parts) : 0;
	int rc = alloc_slices(out, mine, arena, why, why_size);

	for (uint64_t j = 0; rc == 0 && j < mine; j++) {
		uint64_t lo = (j * parts + index) * p->arg;

		add_slice(out, lo, DCP_MIN(p->arg, n - lo));
	}
	return rc;
}

int dcp_layout_split(const struct place *p, uint32_t parts, uint32_t index, uint64_t n,
		     struct dcp_arena *arena, struct slices *out, char *why, size_t why_size)
{
	int rc;

	if (p->grouped)
		return cut_grouped(p, parts, index, n, arena, out, why, why_size);
	if (p->kind == PLACE_STRIDED && parts > 1)
		return cut_strided(p, parts, index, n, arena, out, why, why_size);
	if (p->kind == PLACE_INTERLEAVE && parts > 1)
		return cut_interleaved(p, parts, index, n, arena, out, why, why_size);
	rc = dcp_layout_part(p->split, p, parts, index, n, &out->one, why, why_size);
	if (rc < 0)
		return rc;
	out->v = &out->one;
	out->n = out->one.n != 0;
	out->len = p->split == SPLIT_PAD ? dcp_div_up(n, parts) : out->one.n;
	return 0;
}

/* Append the intersection of a span with @s, whose first element will be at @at. */
static void add_overlap(struct dcp_axis *out, struct dcp_span *to, const struct slice *s,
			uint64_t at, const struct dcp_span *from)
{
	uint64_t lo = DCP_MAX(s->lo, from->at);
	uint64_t hi = DCP_MIN(s->lo + s->n, from->at + from->n);
	struct dcp_span *last = out->n ? &to[out->n - 1] : NULL;

	if (lo >= hi)
		return;
	if (last && last->lo + last->n == from->lo + (lo - from->at) &&
	    last->at + last->n == at + (lo - s->lo))
		last->n += hi - lo;
	else
		to[out->n++] = (struct dcp_span){ at + (lo - s->lo), from->lo + (lo - from->at),
						  hi - lo };
}

static void take_one(struct dcp_axis *axis, const struct slices *s, struct dcp_span *span)
{
	uint64_t lo = DCP_MIN(s->v[0].lo, span->n);

	span->n = DCP_MIN(s->v[0].n, span->n - lo);
	span->lo += lo;
	axis->n = span->n != 0;
	axis->len = s->len;
}

/* Slices ascend and spans do too, so one walk over both finds every meeting, and there are at most
 * as many as slices and spans together. */
int dcp_layout_axis_take(struct dcp_axis *axis, const struct slices *s, struct dcp_arena *arena)
{
	struct dcp_axis out = { .len = s->len };
	size_t room = s->n + axis->n, j = 0;
	struct dcp_span *to = NULL;
	uint64_t at = 0;

	if (s->n == 0 || axis->n == 0) {
		*axis = out;
		return 0;
	}
	to = dcp_arena_alloc(arena, room * sizeof(*to));
	if (!to)
		return -ENOMEM;
	if (s->n == 1 && axis->n == 1) {
		to[0] = axis->span[0];
		axis->span = to;
		take_one(axis, s, to);
		return 0;
	}
	for (size_t i = 0; i < s->n; at += s->v[i++].n) {
		while (j < axis->n && axis->span[j].at + axis->span[j].n <= s->v[i].lo)
			j++;
		for (size_t k = j; k < axis->n && axis->span[k].at < s->v[i].lo + s->v[i].n;
		     k++)
			add_overlap(&out, to, &s->v[i], at, &axis->span[k]);
	}
	out.span = to;
	*axis = out;
	return out.n > DCP_LAYOUT_MAX_SPANS ? -E2BIG : 0;
}
