/* SPDX-License-Identifier: Apache-2.0 */
/* Send tensors through the operations of a rule. */
#include <errno.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/rules/rules_int.h"

enum { MAX_MADE = 65536 }; /* limit of tensors at one time */

#define bad(r, ...) dcp_fail((r)->err, -EINVAL, __VA_ARGS__)

static struct work *alloc_works(struct run *r, size_t n)
{
	return dcp_arena_calloc(r->arena, n, sizeof(struct work));
}

static int read_number(struct run *r, const struct op *op, uint32_t i, uint64_t *out)
{
	return dcp_rules_amount(&op->arg[i], r->config, out, r->err);
}

/* Argument @i as a dimension of a tensor of @ndim dimensions. */
static int read_dimension(struct run *r, const struct op *op, uint32_t i, uint32_t ndim,
			  uint32_t *out)
{
	uint64_t d;
	int rc = read_number(r, op, i, &d);

	if (rc < 0)
		return rc;
	if (op->arg[i].minus ? d == 0 || d > ndim : d >= ndim)
		return bad(r, "dimension %s%llu of a tensor that has %u",
			   op->arg[i].minus ? "-" : "", (unsigned long long)d, ndim);
	*out = (uint32_t)(op->arg[i].minus ? ndim - d : d);
	return 0;
}

/* ---- one tensor ---- */

static int transpose_tensor(struct run *r, const struct op *op, struct work *w)
{
	uint32_t order[DCP_MAX_NDIM];
	uint64_t last;
	int rc = op->narg ? read_number(r, op, 0, &last) : 0;

	if (w->ndim < 2)
		return bad(r, "a tensor of %u dimension%s cannot be transposed", w->ndim,
			   w->ndim == 1 ? "" : "s");
	if (rc < 0 || (op->narg && w->shape[w->ndim - 1] == last))
		return rc;
	for (uint32_t d = 0; d < w->ndim; d++)
		order[d] = d;
	order[w->ndim - 1] = w->ndim - 2;
	order[w->ndim - 2] = w->ndim - 1;
	return dcp_work_permute(w, order);
}

static int permute_dims(struct run *r, const struct op *op, struct work *w)
{
	uint32_t order[DCP_MAX_NDIM];
	uint64_t seen = 0;

	if (op->narg != w->ndim)
		return bad(r, "%u numbers for %u dimensions", op->narg, w->ndim);
	for (uint32_t i = 0; i < op->narg; i++) {
		int rc = read_dimension(r, op, i, w->ndim, &order[i]);

		if (rc < 0)
			return rc;
		if (seen & 1ull << order[i])
			return bad(r, "dimension %u twice", order[i]);
		seen |= 1ull << order[i];
	}
	return dcp_work_permute(w, order);
}

static int reshape_tensor(struct run *r, const struct op *op, struct work *w)
{
	uint64_t shape[DCP_MAX_NDIM], volume, known = 1;
	uint32_t rest = UINT32_MAX;
	int rc = 0;

	if (!dcp_shape_volume(w->shape, w->ndim, &volume))
		return bad(r, "its shape is invalid");
	for (uint32_t i = 0; rc == 0 && i < op->narg; i++) {
		rc = read_number(r, op, i, &shape[i]);
		if (rc == 0 && op->arg[i].minus) {
			if (shape[i] != 1 || rest != UINT32_MAX)
				return bad(r, "-1 stands once in a shape");
			rest = i;
		} else if (rc == 0 && dcp_ckd_mul(&known, known, shape[i])) {
			return bad(r, "its numbers do not fit in 64 bits");
		}
	}
	if (rc < 0)
		return rc;
	if (rest != UINT32_MAX && known && volume % known == 0) {
		shape[rest] = volume / known;
		known = volume;
	}
	if (known != volume)
		return bad(r, "%llu elements do not fit a shape of %llu",
			   (unsigned long long)volume, (unsigned long long)known);
	return dcp_work_reshape(w, op->narg, shape);
}

static int narrow_dim(struct run *r, const struct op *op, struct work *w)
{
	uint64_t lo, n;
	uint32_t d;
	int rc = read_dimension(r, op, 0, w->ndim, &d);

	if (rc == 0)
		rc = read_number(r, op, 1, &lo);
	if (rc == 0)
		rc = read_number(r, op, 2, &n);
	return rc < 0 ? rc : dcp_work_narrow(w, d, lo, n);
}

/* Read the arguments of pad and unpad: a number of elements, and the dimension. Fails unless @w has
 * at least (@least) or at most that many elements. */
static int read_length(struct run *r, const struct op *op, const struct work *w, bool least,
		       uint32_t *d, uint64_t *n)
{
	int rc = read_number(r, op, 0, n);

	*d = 0;
	if (rc == 0 && op->narg == 2)
		rc = read_dimension(r, op, 1, w->ndim, d);
	if (rc < 0)
		return rc;
	if (*d >= w->ndim || (least ? w->shape[*d] < *n : w->shape[*d] > *n))
		return bad(r, "dimension %u has %llu elements, %s than %llu", *d,
			   *d < w->ndim ? (unsigned long long)w->shape[*d] : 1ull,
			   least ? "fewer" : "more", (unsigned long long)*n);
	return 0;
}

static int unpad_dim(struct run *r, const struct op *op, struct work *w)
{
	uint32_t d;
	uint64_t n;
	int rc = read_length(r, op, w, true, &d, &n);

	return rc < 0 ? rc : dcp_work_narrow(w, d, 0, n);
}

static int pad_dim(struct run *r, const struct op *op, struct work *w)
{
	uint32_t d;
	uint64_t n;
	int rc = read_length(r, op, w, false, &d, &n);

	return rc < 0 ? rc : dcp_work_pad(w, d, n);
}

static int count_shares(struct run *r, const struct op *op, struct work *w)
{
	uint32_t d;
	int rc = read_dimension(r, op, 0, w->ndim, &d);

	return rc < 0 ? rc : dcp_work_shares(w, d);
}

static int cast_tensor(struct run *r, const struct op *op, struct work *w)
{
	if (w->cast)
		return bad(r, "it is cast to %s already", w->dtype_name);
	if (w->dtype == op->dtype)
		return 0;
	if (!dcp_dtype_can_cast(w->dtype, op->dtype))
		return bad(r, "%s cannot become %s", w->dtype_name,
			   dcp_dtype_info(op->dtype)->name);
	w->cast = op->dtype;
	w->dtype_name = dcp_dtype_info(op->dtype)->name;
	return 0;
}

/* ---- several ---- */

/* Determine which tensors are joined into one: @n tensors that are @step apart in the list of all.
 * They differ in the joined slot, whose axis is removed, or, without a slot, in their list. */
static void take_axis(struct flow *f, uint8_t slot, size_t *n, size_t *step)
{
	uint32_t at = 0;

	*n = f->k;
	*step = f->e;
	if (slot == RULES_NO_SLOT) {
		f->k = 1;
		return;
	}
	while (f->axis[at].slot != slot) /* the parser ensures that the axis exists */
		at++;
	*n = f->axis[at].n;
	*step = 1;
	for (uint32_t i = at + 1; i < f->naxis; i++) {
		*step *= f->axis[i].n;
		f->axis[i - 1] = f->axis[i];
	}
	f->naxis--;
	f->e /= *n;
}

/* concat, stack: join tensors of a list that differ in the slot; without a slot, join the lists.
 * concat joins along an existing dimension, stack along a new one. */
static int join_lists(struct run *r, const struct op *op, struct flow *f)
{
	bool added = *op->def->name == 's';
	size_t all = f->k * f->e, n, step, lists;
	struct work *out, *in;
	uint32_t d;
	int rc = read_dimension(r, op, 0, f->w[0].ndim + added, &d);

	take_axis(f, op->slot, &n, &step);
	lists = all / n;
	out = alloc_works(r, lists);
	in = alloc_works(r, n);
	if (!out || !in)
		return -ENOMEM;
	for (size_t j = 0; rc == 0 && j < lists; j++) {
		for (size_t i = 0; rc == 0 && i < n; i++) {
			in[i] = f->w[(j / step * n + i) * step + j % step];
			if (added)
				rc = dcp_work_insert(&in[i], d);
		}
		if (rc == 0)
			rc = dcp_work_concat(in, n, d, &out[j]);
	}
	f->w = out;
	return rc;
}

/* List i of the result is the list whose index is the i-th number. */
static int order_lists(struct run *r, const struct op *op, struct flow *f)
{
	struct work *out = alloc_works(r, f->k * f->e);
	uint64_t from, seen = 0;
	int rc = 0;

	if (!out)
		return -ENOMEM;
	for (uint32_t i = 0; i < op->narg; i++) {
		rc = read_number(r, op, i, &from);
		if (rc < 0)
			return rc;
		if (op->narg != f->k || from >= f->k || seen >> from & 1)
			return bad(r, "%zu tensors: expected each number from 0 on once", f->k);
		seen |= 1ull << from;
		memcpy(&out[i * f->e], &f->w[from * f->e], f->e * sizeof(*out));
	}
	f->w = out;
	return 0;
}

/* Compute the sizes of the parts into @size; the arguments are sizes or ratios. */
static int read_part_sizes(struct run *r, const struct op *op, uint64_t n, uint64_t *size,
			   uint32_t parts)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < parts; i++) {
		int rc = op->is_list ? read_number(r, op, i + 1, &size[i]) : 0;

		if (rc < 0)
			return rc;
		if (!op->is_list)
			size[i] = 1;
		if (dcp_ckd_add(&sum, sum, size[i]))
			return bad(r, "its numbers do not fit in 64 bits");
	}
	if (sum == 0 || n % sum)
		return bad(r, "%llu elements cannot be split: the parts add up to %llu",
			   (unsigned long long)n, (unsigned long long)sum);
	for (uint32_t i = 0; i < parts; i++)
		size[i] *= n / sum;
	return 0;
}

static int split_tensors(struct run *r, const struct op *op, struct flow *f)
{
	uint64_t count = op->narg - 1u, size[1000], lo = 0;
	struct work *out;
	uint32_t d;
	int rc = op->is_list ? 0 : read_number(r, op, 1, &count);

	if (rc < 0)
		return rc;
	if (count > DCP_LEN(size) || f->k * f->e > MAX_MADE / count)
		return bad(r, "too many parts");
	out = alloc_works(r, f->k * f->e * count);
	if (!out)
		return -ENOMEM;
	for (size_t j = 0; rc == 0 && j < f->k * f->e; j++, lo = 0) {
		rc = read_dimension(r, op, 0, f->w[j].ndim, &d);
		if (rc == 0)
			rc = read_part_sizes(r, op, f->w[j].shape[d], size, (uint32_t)count);
		for (size_t i = 0; rc == 0 && i < count; lo += size[i], i++) {
			/* Each part makes a list of its own; the members of a list stay
			 * consecutive. */
			struct work *to = &out[(j / f->e * count + i) * f->e + j % f->e];

			*to = f->w[j];
			rc = dcp_work_narrow(to, d, lo, size[i]);
		}
	}
	f->w = out;
	f->k *= count;
	return rc;
}

static int unstack_tensors(struct run *r, const struct op *op, struct flow *f)
{
	uint64_t shape[DCP_MAX_NDIM], n;
	struct work *out;
	uint32_t d;
	int rc = read_dimension(r, op, 0, f->w[0].ndim, &d);

	if (rc < 0)
		return rc;
	n = f->w[0].shape[d];
	if (n == 0 || f->k * f->e > MAX_MADE / n)
		return bad(r, "%llu elements cannot become one tensor each",
			   (unsigned long long)n);
	out = alloc_works(r, f->k * f->e * n);
	if (!out)
		return -ENOMEM;
	for (size_t j = 0; j < f->k * f->e * n; j++) {
		struct work *to = &out[j];

		*to = f->w[j / n];
		if (d >= to->ndim || to->shape[d] != n)
			return bad(r, "some tensors have %llu elements there, others do not",
				   (unsigned long long)n);
		rc = dcp_work_narrow(to, d, j % n, 1);
		memcpy(shape, to->shape, d * sizeof(*shape));
		memcpy(shape + d, to->shape + d + 1, (to->ndim - d - 1) * sizeof(*shape));
		if (rc == 0)
			rc = dcp_work_reshape(to, to->ndim - 1, shape);
		if (rc < 0)
			return rc;
	}
	f->w = out;
	f->e *= n;
	f->axis[f->naxis++] = (struct flow_axis){ op->slot, n };
	return 0;
}

/* Take element @i of dimension @d, which has two elements, and remove the dimension. */
static int one_of_pair(struct work *w, uint32_t d, uint64_t i)
{
	uint64_t shape[2] = { w->shape[d == 0], w->shape[d == 2 ? 1 : 2] };
	int rc = dcp_work_narrow(w, d, i, 1);

	return rc < 0 ? rc : dcp_work_reshape(w, 2, shape);
}

static int split_pairs(struct run *r, const struct op *op, struct flow *f)
{
	struct work *out = alloc_works(r, f->e * 2);

	if (!out)
		return -ENOMEM;
	for (size_t j = 0; j < f->e; j++) {
		struct work w = f->w[j];
		uint64_t shape[3] = { w.shape[0] / 2, 2, w.ndim > 1 ? w.shape[1] : 0 };
		bool in_turn = !op->narg && w.ndim == 2 && w.shape[0] % 2 == 0;
		uint32_t d = in_turn;
		int rc = 0;

		if (!in_turn && w.ndim != 3)
			return bad(r, "it has %u dimensions and %llu rows: expected %s", w.ndim,
				   (unsigned long long)(w.ndim ? w.shape[0] : 0),
				   op->narg
					   ? "three, one of which has two elements"
					   : "rows of both in turn, or two of [rows, columns]");
		if (op->narg)
			rc = read_dimension(r, op, 0, w.ndim, &d);
		else if (in_turn)
			rc = dcp_work_reshape(&w, 3, shape);
		if (rc == 0 && w.shape[d] != 2)
			return bad(r, "dimension %u has %llu elements: expected 2", d,
				   (unsigned long long)w.shape[d]);
		for (uint64_t i = 0; rc == 0 && i < 2; i++) {
			out[i * f->e + j] = w;
			rc = one_of_pair(&out[i * f->e + j], d, i);
		}
		if (rc < 0)
			return rc;
	}
	f->w = out;
	f->k = 2;
	return 0;
}

/* clang-format off */
const struct op_def dcp_rules_op_defs[] = {
	{ "T", "T or T(hidden)", 0, 1, .each = transpose_tensor },
	{ "permute", "permute(1, 0)", 1, RULES_MAX_ARGS, OP_DIMS_ALL, .each = permute_dims },
	{ "reshape", "reshape(heads, -1, hidden)", 1, RULES_MAX_ARGS, OP_DIMS_ALL, .each = reshape_tensor },
	{ "shares", "shares(0)", 1, 1, 1, .each = count_shares },
	{ "narrow", "narrow(dimension, from, length)", 3, 3, 1, .each = narrow_dim },
	{ "pad", "pad(vocab)", 1, 2, 1 << 1, .each = pad_dim },
	{ "unpad", "unpad(vocab)", 1, 2, 1 << 1, .each = unpad_dim },
	{ "rope", "rope(heads)", 1, RULES_MAX_ARGS, .per = true, .all = dcp_rules_rope },
	{ "unrope", "unrope(heads)", 1, RULES_MAX_ARGS, .per = true, .all = dcp_rules_rope },
	{ "cast", "cast(bf16)", .dtype = true, .each = cast_tensor },
	{ "qkv", "qkv(heads, kv_heads) or qkv(heads, kv_heads, stored)", 2, 2, .order = true, .of = 1, .to = 3, .all = dcp_rules_qkv },
	{ "fuse_qkv", "fuse_qkv(heads, kv_heads)", 2, 2, .of = 3, .to = 1, .all = dcp_rules_fuse_qkv },
	{ "concat", "concat(0)", 1, 1, 1, OP_SLOT_JOINS, .all = join_lists },
	{ "stack", "stack(0) or stack(0, {e})", 1, 1, 1, OP_SLOT_JOINS, .all = join_lists },
	{ "order", "order(1, 0)", 1, RULES_MAX_ARGS, .all = order_lists },
	{ "split", "split(0, 2) or split(0, [2, 1, 1])", 2, 2, 1, .list = true, .all = split_tensors },
	{ "pairs", "pairs or pairs(1)", 0, 1, 1, .of = 1, .to = 2, .all = split_pairs },
	{ "unstack", "unstack(0, {e})", 1, 1, 1, OP_SLOT_COUNTS, .all = unstack_tensors },
};
/* clang-format on */
const size_t dcp_rules_nop_defs = DCP_LEN(dcp_rules_op_defs);

static int apply_op(struct run *r, const struct op *op, struct flow *f)
{
	int rc = 0;

	if (op->def->all)
		return op->def->all(r, op, f);
	for (size_t j = 0; rc == 0 && j < f->k * f->e; j++)
		rc = op->def->each(r, op, &f->w[j]);
	return rc;
}

int dcp_rules_flow(const struct rule *rule, const struct dcp_rules_source *from, struct flow *f,
		   struct dcp_arena *arena, struct dcp_err *err)
{
	struct run r = { from->config, from->qkv_order, arena, err };

	for (uint32_t i = 0; i < rule->nop; i++) {
		int rc = apply_op(&r, &rule->op[i], f);

		if (rc == -ENOMEM)
			return dcp_fail(err, rc, "%s: it needs too much memory",
					rule->op[i].def->name);
		if (rc < 0)
			return dcp_err_where(err, rc, "line %u: %s", rule->line,
					     rule->op[i].def->name);
	}
	return 0;
}
