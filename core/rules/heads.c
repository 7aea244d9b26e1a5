/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that belong to heads of attention: pairs and halves of rotary embeddings; queries, keys and
 * values in one tensor.
 */
#include <errno.h>
#include <string.h>

#include "core/rules/rules_int.h"
#include "core/rules/work.h"

#define bad(r, ...) dcp_fail((r)->err, -EINVAL, __VA_ARGS__)

static uint64_t rows_of(const struct work *w)
{
	return w->ndim ? w->shape[0] : 1;
}

/* The rows as @a times @b times what is left. False: they do not divide, or no dimension is
 * left. */
static bool can_split(const struct work *w, uint64_t a, uint64_t b)
{
	return w->ndim && w->ndim + 2 <= DCP_MAX_NDIM && w->shape[0] &&
	       w->shape[0] % (a * b) == 0;
}

static int split_rows(struct work *w, uint64_t a, uint64_t b)
{
	uint64_t shape[DCP_MAX_NDIM] = { a, b, w->shape[0] / (a * b) };

	memcpy(shape + 3, w->shape + 1, (w->ndim - 1) * sizeof(*shape));
	return dcp_work_reshape(w, w->ndim + 2, shape);
}

/* The way back: the first three dimensions as one. */
static int join_rows(struct work *w)
{
	uint64_t shape[DCP_MAX_NDIM] = { w->shape[0] * w->shape[1] * w->shape[2] };

	memcpy(shape + 1, w->shape + 3, (w->ndim - 3) * sizeof(*shape));
	return dcp_work_reshape(w, w->ndim - 2, shape);
}

/* In each head, rows of pairs (x0 y0 x1 y1 ...) become halves (x0 x1 ... y0 y1 ...), or back. */
static int turn_heads(struct run *r, struct work *w, uint64_t heads, bool back)
{
	uint32_t order[DCP_MAX_NDIM];
	int rc;

	if (w->ndim == 0 || heads == 0 || heads > UINT64_MAX / 2 || w->shape[0] % (2 * heads))
		return bad(r, "%llu rows are not %llu heads of an even size",
			   (unsigned long long)rows_of(w), (unsigned long long)heads);
	if (w->shape[0] == 0)
		return 0;
	if (w->ndim + 2 > DCP_MAX_NDIM)
		return bad(r, "it has too many dimensions");
	rc = split_rows(w, heads, back ? 2 : w->shape[0] / heads / 2);
	for (uint32_t d = 0; d < w->ndim; d++)
		order[d] = d == 1 ? 2 : d == 2 ? 1 : d;
	if (rc == 0)
		rc = dcp_work_permute(w, order);
	return rc < 0 ? rc : join_rows(w);
}

/* One number of heads is that of every tensor; of several, 0 leaves a tensor as it is. */
int dcp_rules_rope(struct run *r, const struct op *op, struct flow *f)
{
	bool back = *op->def->name == 'u';
	int rc = 0;

	for (size_t j = 0; rc == 0 && j < f->k * f->e; j++) {
		uint64_t heads;

		rc = dcp_rules_amount(&op->arg[op->narg > 1 ? j / f->e : 0], r->config, &heads,
				      r->err);
		if (rc == 0 && (heads || op->narg == 1))
			rc = turn_heads(r, &f->w[j], heads, back);
	}
	return rc;
}

/* ---- queries, keys and values in one ---- */

/* Groups of heads, and the query heads in each. */
static int qkv_numbers(struct run *r, const struct op *op, uint64_t *groups, uint64_t *per)
{
	uint64_t heads;
	int rc = dcp_rules_amount(&op->arg[0], r->config, &heads, r->err);

	if (rc == 0)
		rc = dcp_rules_amount(&op->arg[1], r->config, groups, r->err);
	if (rc < 0)
		return rc;
	if (*groups == 0 || heads == 0 || heads % *groups || heads > UINT32_MAX)
		return bad(r, "%llu heads in %llu groups", (unsigned long long)heads,
			   (unsigned long long)*groups);
	*per = heads / *groups;
	return 0;
}

bool dcp_rules_qkv_order(const char *name, size_t n, enum qkv_order *order)
{
	static const char *const names[] = { [QKV_PARTS_FIRST] = "parts_first",
					     [QKV_PARTS_LAST] = "parts_last",
					     [QKV_STORED] = "stored" };

	for (uint32_t i = QKV_PARTS_FIRST; i < DCP_LEN(names); i++)
		if (n == strlen(names[i]) && memcmp(name, names[i], n) == 0) {
			*order = i;
			return true;
		}
	return false;
}

/* The rows as three dimensions, of which @dim counts parts, or the heads of a group. */
static int split_qkv(struct run *r, enum qkv_order order, uint32_t dim, struct work *w,
		     uint64_t groups, uint64_t per)
{
	if (order != QKV_GROUPS && per != 1)
		return bad(
			r,
			"rows with parts first or last have a key and a value for each head, "
			"not for each of %llu groups",
			(unsigned long long)groups);
	if (!can_split(w, groups, per + 2))
		return bad(r,
			   "%llu rows are not %llu groups of %llu heads and a key and a value",
			   (unsigned long long)rows_of(w), (unsigned long long)groups,
			   (unsigned long long)per);
	if (dim == 0)
		return split_rows(w, 3, groups);
	return split_rows(w, groups, dim == 1 ? per + 2 : w->shape[0] / groups / 3);
}

/* Three parts of the rows, of each head or group. */
int dcp_rules_qkv(struct run *r, const struct op *op, struct flow *f)
{
	struct work *out = dcp_arena_calloc(r->arena, 3 * f->e, sizeof(*out));
	enum qkv_order order = op->order;
	uint64_t groups, per;
	uint32_t dim;
	int rc = out ? qkv_numbers(r, op, &groups, &per) : -ENOMEM;

	if (order == QKV_STORED) {
		order = QKV_GROUPS;
		if (r->qkv_order &&
		    !dcp_rules_qkv_order(r->qkv_order, strlen(r->qkv_order), &order))
			return bad(r,
				   "the source says that its rows are in the order "
				   "\"%.40s\", which is not known",
				   r->qkv_order);
	}
	dim = order == QKV_PARTS_FIRST ? 0 : order == QKV_PARTS_LAST ? 2 : 1;
	for (size_t j = 0; rc == 0 && j < f->e; j++) {
		struct work w = f->w[j];

		rc = split_qkv(r, order, dim, &w, groups, per);
		for (uint32_t i = 0; rc == 0 && i < 3; i++) {
			struct work *to = &out[i * f->e + j];

			*to = w;
			rc = dcp_work_narrow(to, dim, i == 0 ? 0 : per + i - 1,
					     i == 0 ? per : 1);
			if (rc == 0)
				rc = join_rows(to);
		}
	}
	f->w = out;
	f->k = 3;
	return rc;
}

int dcp_rules_fuse_qkv(struct run *r, const struct op *op, struct flow *f)
{
	struct work *out = dcp_arena_calloc(r->arena, f->e, sizeof(*out)), part[3];
	uint64_t groups, per;
	int rc = out ? qkv_numbers(r, op, &groups, &per) : -ENOMEM;

	for (size_t j = 0; rc == 0 && j < f->e; j++) {
		for (uint32_t i = 0; rc == 0 && i < 3; i++) {
			uint64_t n = i == 0 ? per : 1;

			part[i] = f->w[i * f->e + j];
			if (!can_split(&part[i], groups, n))
				return bad(r, "%llu rows are not %llu heads",
					   (unsigned long long)rows_of(&part[i]),
					   (unsigned long long)(groups * n));
			rc = split_rows(&part[i], groups, n);
		}
		if (rc == 0)
			rc = dcp_work_concat(part, 3, 1, &out[j]);
		if (rc == 0)
			rc = join_rows(&out[j]);
	}
	f->w = out;
	f->k = 1;
	return rc;
}
