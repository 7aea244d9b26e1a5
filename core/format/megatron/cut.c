/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pieces of a tensor that ranks hold parts of.
 *
 * A rank's part of a cut dimension may be several sections, each of which all ranks cut: the
 * gate and the rest of a gated layer, or query, key and value in checkpoint_version 0. Rank r
 * of R holds [a_r b_r]; the whole, which is what one rank alone would hold, is
 * [a_0 .. a_R-1 b_0 .. b_R-1].
 */
#include <errno.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/base/text.h"
#include "core/format/megatron/megatron_int.h"
#include "core/format/torch/placement.h"

int dcp_mview_is_stacked(const char *key)
{
	size_t n = strlen(key);

	if (n < 16 || strncmp(key + n - 16, ".experts.weight", 15) != 0)
		return 0;
	return key[n - 1] == '1' ? 1 : key[n - 1] == '2' ? 2 : 0;
}

static bool is_row_major(const struct dcp_tensor *t)
{
	const uint64_t *stride = t->npieces ? t->pieces[0].stride : NULL;
	uint64_t step = 1;

	for (uint32_t k = t->ndim; stride && k-- > 0; step *= t->shape[k])
		if (stride[k] != step && t->shape[k] != 1)
			return false;
	return true;
}

/* A matrix [inputs, experts * outputs] whose memory is [experts, inputs, outputs]; of second
 * layers [experts * inputs, outputs], which is the same in both. */
static bool view_stacked(struct dcp_mjoin *j, const struct dcp_tensor *part,
			 struct dcp_mview *v)
{
	const struct dcp_mlegacy *m = j->m;
	uint64_t n = m->args.experts % m->ep == 0 ? m->args.experts / m->ep : 0;
	bool first = dcp_mview_is_stacked(j->place.key) == 1;

	if (!n || part->ndim != 2 || !is_row_major(part) || part->shape[first] % n != 0) {
		dcp_fail(&j->why, -EBADMSG,
			 "it is a matrix of several experts: expected num_experts in the "
			 "arguments of the run (found %llu) to divide by %u expert parallel "
			 "ranks and to divide its %s, which lie row by row",
			 (unsigned long long)m->args.experts, m->ep,
			 first ? "columns" : "rows");
		return false;
	}
	v->ndim = 3;
	v->dim[0] = n;
	v->dim[1] = part->shape[0] / (first ? 1 : n);
	v->dim[2] = part->shape[1] / (first ? n : 1);
	return true;
}

bool dcp_mjoin_view(struct dcp_mjoin *j, const struct dcp_tensor *part, struct dcp_mview *v)
{
	const uint64_t *stride = part->npieces ? part->pieces[0].stride : NULL;
	uint64_t step = 1;

	v->ndim = part->ndim;
	memcpy(v->dim, part->shape, part->ndim * sizeof(*v->dim));
	if (j->place.holder == DCP_MHOLD_STACK && dcp_mview_is_stacked(j->place.key)) {
		if (!view_stacked(j, part, v))
			return false;
		stride = NULL;
	}
	for (uint32_t k = v->ndim; k-- > 0; step *= v->dim[k])
		v->stride[k] = stride ? stride[k] : step;
	return true;
}

/* ---- the whole ---- */

static uint32_t count_sections(const struct dcp_mrule *r)
{
	return r->nsizes ? r->nsizes : r->groups;
}

/* Elements of section @i where all of them have @n; 0: they do not divide so. */
static uint64_t section(const struct dcp_mrule *r, uint32_t i, uint64_t n)
{
	uint64_t sum = r->groups;

	if (r->nsizes) {
		sum = 0;
		for (uint32_t k = 0; k < r->nsizes; k++)
			sum += r->size[k];
	}
	if (n % sum != 0)
		return 0;
	return n / sum * (r->nsizes ? r->size[i] : 1);
}

/* Do views @a and @b agree but for the cut? */
static bool fit(const struct dcp_mjoin *j, const struct dcp_mview *a, const struct dcp_mview *b)
{
	uint32_t d = j->rule.dim;

	if (a->ndim != b->ndim)
		return false;
	for (uint32_t k = 0; k < a->ndim; k++)
		if (k != d && a->dim[k] != b->dim[k])
			return false;
	if (b->dim[d] && !section(&j->rule, 0, b->dim[d]))
		return false;
	return count_sections(&j->rule) == 1 || a->dim[d] == b->dim[d];
}

/* Part number @i, of which the whole's shape is taken or widened. */
static bool add_part(struct dcp_mjoin *j, size_t i, const struct dcp_mview *first)
{
	const struct dcp_tensor *part = &j->copy[i]->t;
	uint32_t d = j->rule.dim, stack = (uint32_t)(i / j->nparts);
	struct dcp_mview v;

	if (!dcp_mjoin_view(j, part, &v))
		return false;
	/* Ranks of other experts have parts of the same sizes. */
	if (strcmp(part->dtype_name, j->t.dtype_name) != 0 || !fit(j, first, &v) ||
	    (stack > 0 && v.dim[d] != first->dim[d]) ||
	    (stack == 0 && dcp_ckd_add(&j->shape[d], j->shape[d], v.dim[d])) ||
	    (stack > 0 && i % j->nparts == 0 &&
	     dcp_ckd_add(&j->shape[0], j->shape[0], v.dim[0]))) {
		dcp_fail(&j->why, -EBADMSG,
			 "the parts of %s and %s do not fit together along dimension %u: say "
			 "how it is cut in " DCP_MEGATRON_RULES,
			 j->copy[0]->file, j->copy[i]->file, d);
		return false;
	}
	return true;
}

void dcp_mjoin_add_up(struct dcp_mjoin *j)
{
	struct dcp_mview first;
	uint32_t d = j->rule.dim;

	j->t = j->copy[0]->t;
	if (!dcp_mjoin_view(j, &j->t, &first))
		return;
	j->t.ndim = first.ndim;
	memcpy(j->shape, first.dim, first.ndim * sizeof(*j->shape));
	if (d >= first.ndim || (j->nstacks > 1 && d == 0)) {
		dcp_fail(&j->why, -EBADMSG,
			 "it has %u dimension%s and should be cut along dimension %u: say how "
			 "it is cut in " DCP_MEGATRON_RULES,
			 first.ndim, dcp_s(first.ndim), d);
		return;
	}
	j->shape[d] = 0;
	for (size_t i = 0; i < (size_t)j->nstacks * j->nparts; i++)
		if (!add_part(j, i, &first))
			return;
}

/* ---- its pieces ---- */

/* Elements [at, at + len) along the cut of @part, which begin at element @to of the whole. */
struct cut {
	const struct dcp_tensor *part;
	uint32_t stack;
	uint64_t at, len, to;
};

static bool cut_piece(struct dcp_mjoin *j, const struct cut *c, struct dcp_piece *p)
{
	const struct dcp_tensor *part = c->part;
	uint32_t n = j->t.ndim, d = j->rule.dim;
	uint64_t *lo = dcp_arena_calloc(&j->m->model.arena, 2 * (size_t)n, sizeof(*lo));
	uint64_t *len = lo + n, at[DCP_MAX_NDIM] = { 0 };
	struct dcp_mview v;

	if (!dcp_mjoin_view(j, part, &v))
		return false;
	for (uint32_t k = 0; lo && k < n; k++) {
		lo[k] = k == d ? c->to : k == 0 ? c->stack * v.dim[0] : 0;
		len[k] = k == d ? c->len : v.dim[k];
	}
	at[d] = c->at;
	*p = part->pieces[0];
	/* inside the part, which was checked */
	if (lo && dcp_tplace_piece(&(struct dcp_tplace_box){ lo, at, len }, n, v.dim,
				   p->stride ? v.stride : NULL, part->itemsize,
				   &j->m->model.arena, p) == 0)
		return true;
	dcp_fail(&j->why, -ENOMEM, "out of memory for its pieces");
	return false;
}

/* All sections of the experts of one expert-parallel rank, or of what is not an expert. */
static bool cut_stack(struct dcp_mjoin *j, uint32_t stack, struct dcp_piece *p)
{
	uint64_t to = 0;

	for (uint32_t g = 0; g < count_sections(&j->rule); g++)
		for (uint32_t i = 0; i < j->nparts; i++) {
			const struct dcp_tensor *part =
				&j->copy[(size_t)stack * j->nparts + i]->t;
			struct cut c = { .part = part, .stack = stack, .to = to };
			struct dcp_mview v;

			if (part->npieces == 0)
				continue; /* no elements */
			if (!dcp_mjoin_view(j, part, &v))
				return false;
			for (uint32_t k = 0; k < g; k++)
				c.at += section(&j->rule, k, v.dim[j->rule.dim]);
			c.len = section(&j->rule, g, v.dim[j->rule.dim]);
			if (c.len && !cut_piece(j, &c, &p[j->t.npieces++]))
				return false;
			to += c.len;
		}
	return true;
}

void dcp_mjoin_cut(struct dcp_mjoin *j)
{
	size_t n = (size_t)j->nstacks * j->nparts * count_sections(&j->rule);
	struct dcp_piece *p =
		n < 1u << 24 ? dcp_arena_calloc(&j->m->model.arena, n, sizeof(*p)) : NULL;

	if (!p) {
		dcp_fail(&j->why, -ENOMEM, "out of memory for its pieces");
		return;
	}
	j->t.pieces = p;
	j->t.npieces = 0;
	for (uint32_t s = 0; s < j->nstacks; s++)
		if (!cut_stack(j, s, p))
			return;
}
