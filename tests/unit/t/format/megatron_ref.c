/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "tests/unit/t/format/megatron_ref.h"

static void put_element(struct t_ref_array *a, int v)
{
	assert_true(a->n < T_REF_ELEMS);
	a->v[a->n++] = (float)v;
}

/* A whole row of @cols elements, or one element of a bias. */
static void put_row(struct t_ref_array *a, int row, int cols)
{
	for (int c = 0; c < cols; c++)
		put_element(a, row * cols + c);
}

static void shape_rows(struct t_ref_array *a, int cols)
{
	a->ndim = cols > 1 ? 2 : 1;
	a->shape[0] = (int64_t)a->n / cols;
	a->shape[1] = cols;
}

/* ---- layers: what rank @t of @r holds ---- */

/* Rows of q (0), k (1) or v (2) of a head, or of a group of heads. */
static int qkv_row(const struct t_ref_job *j, int which, int head, int c)
{
	return (which * j->heads + head) * j->head + c;
}

/* One rank: (3, heads, head size), (heads, head size, 3), or for each group its queries, its
 * key, its value. */
static void put_qkv(struct t_ref_array *a, const struct t_ref_job *j, int t, int r, int cols)
{
	int n = j->heads / r, per = j->heads / j->groups;

	if (j->version == 0) {
		for (int s = 0; s < 3; s++)
			for (int h = t * n; h < (t + 1) * n; h++)
				for (int c = 0; c < j->head; c++)
					put_row(a, qkv_row(j, s, h, c), cols);
	} else if (j->version == 1) {
		for (int h = t * n; h < (t + 1) * n; h++)
			for (int c = 0; c < j->head; c++)
				for (int s = 0; s < 3; s++)
					put_row(a, qkv_row(j, s, h, c), cols);
	} else {
		/* with fewer groups than ranks, ranks share a group's rows evenly */
		int rows = (j->heads + 2 * j->groups) * j->head, at = 0;

		for (int g = 0; g < j->groups; g++)
			for (int h = 0; h < per + 2; h++)
				for (int c = 0; c < j->head; c++, at++)
					if (at / (rows / r) == t)
						put_row(a,
							h < per ? qkv_row(j, 0, g * per + h, c)
								: qkv_row(j, h - per + 1, g, c),
							cols);
	}
	shape_rows(a, cols);
}

/* The first layer: its part of the gate, then its part of what is gated. */
static void put_outputs(struct t_ref_array *a, const struct t_ref_job *j, int t, int r,
			int cols)
{
	int n = j->ffn / r;

	for (int half = 0; half <= j->gated; half++)
		for (int f = t * n; f < (t + 1) * n; f++)
			put_row(a, half * j->ffn + f, cols);
	shape_rows(a, cols);
}

/* A layer whose inputs, @of all in all, are cut. */
static void put_inputs(struct t_ref_array *a, int rows, int of, int t, int r)
{
	int n = of / r;

	for (int i = 0; i < rows; i++)
		for (int c = t * n; c < (t + 1) * n; c++)
			put_element(a, i * of + c);
	shape_rows(a, n);
	a->ndim = 2;
	a->shape[0] = rows;
	a->shape[1] = n;
}

static void put_rows(struct t_ref_array *a, int of, int cols, int t, int r)
{
	int n = of / r;

	for (int i = t * n; i < (t + 1) * n; i++)
		put_row(a, i, cols);
	shape_rows(a, cols);
}

/* Experts of rank @e of @n in one matrix: first layers, transposed, consecutive. */
static void put_matrix1(struct t_ref_array *a, const struct t_ref_job *j, int t, int r, int e,
			int n)
{
	int local = j->experts / n, part = j->ffn / r;

	for (int x = e * local; x < (e + 1) * local; x++)
		for (int i = 0; i < j->hidden; i++)
			for (int half = 0; half <= j->gated; half++)
				for (int f = t * part; f < (t + 1) * part; f++)
					put_element(a,
						    ((x * j->hidden + i) * 2 + half) * j->ffn +
							    f);
	a->ndim = 2;
	a->shape[0] = j->hidden;
	a->shape[1] = (int64_t)a->n / j->hidden;
}

static void put_matrix2(struct t_ref_array *a, const struct t_ref_job *j, int t, int r, int e,
			int n)
{
	int local = j->experts / n, part = j->ffn / r;

	for (int x = e * local; x < (e + 1) * local; x++)
		for (int f = t * part; f < (t + 1) * part; f++)
			for (int i = 0; i < j->hidden; i++)
				put_element(a, (x * j->ffn + f) * j->hidden + i);
	shape_rows(a, j->hidden);
	a->ndim = 2;
}

void t_ref_vocab(struct t_ref_array *a, const struct t_ref_job *j, int t, int r)
{
	a->n = 0;
	put_rows(a, j->vocab, j->hidden, t, r);
}

/* ---- keys ---- */

/* Names until 2023, and now. */
static const char *const names[T_REF_NKINDS][2] = {
	[T_REF_QKV] = { "self_attention.query_key_value.weight",
			"self_attention.linear_qkv.weight" },
	[T_REF_QKV_BIAS] = { "self_attention.query_key_value.bias",
			     "self_attention.linear_qkv.bias" },
	[T_REF_PROJ] = { "self_attention.dense.weight", "self_attention.linear_proj.weight" },
	[T_REF_NORM] = { "input_norm.weight", "self_attention.linear_qkv.layer_norm_weight" },
	[T_REF_FC1] = { "mlp.dense_h_to_4h.weight", "mlp.linear_fc1.weight" },
	[T_REF_FC1_BIAS] = { "mlp.dense_h_to_4h.bias", "mlp.linear_fc1.bias" },
	[T_REF_FC2] = { "mlp.dense_4h_to_h.weight", "mlp.linear_fc2.weight" },
	[T_REF_SHARED1] = { NULL, "mlp.shared_experts.linear_fc1.weight" },
	[T_REF_SHARED2] = { NULL, "mlp.shared_experts.linear_fc2.weight" },
	[T_REF_EXPERT1] = { NULL, "linear_fc1.weight" },
	[T_REF_EXPERT1_BIAS] = { NULL, "linear_fc1.bias" },
	[T_REF_EXPERT2] = { NULL, "linear_fc2.weight" },
	[T_REF_MATRIX1] = { NULL, "mlp.experts.weight1" },
	[T_REF_MATRIX2] = { NULL, "mlp.experts.weight2" },
};

bool t_ref_is_expert(int kind)
{
	return kind >= T_REF_EXPERT1 && kind <= T_REF_EXPERT2;
}

bool t_ref_has(const struct t_ref_job *j, int kind)
{
	if (kind >= T_REF_FC1 && kind <= T_REF_FC2)
		return j->moe == T_REF_NO_EXPERTS;
	if (kind == T_REF_SHARED1 || kind == T_REF_SHARED2)
		return j->moe != T_REF_NO_EXPERTS;
	if (t_ref_is_expert(kind))
		return j->moe == T_REF_SEQUENTIAL || j->moe == T_REF_GROUPED;
	return kind < T_REF_FC1 || j->moe == T_REF_ONE_MATRIX;
}

/* @t of @r, and of experts @e of @n. */
void t_ref_fill(struct t_ref_array *a, const struct t_ref_job *j, int kind, int t, int r, int e,
		int n)
{
	a->n = 0;
	switch (kind) {
	case T_REF_QKV:
	case T_REF_QKV_BIAS:
		put_qkv(a, j, t, r, kind == T_REF_QKV ? j->hidden : 1);
		break;
	case T_REF_PROJ:
		put_inputs(a, j->hidden, j->heads * j->head, t, r);
		break;
	case T_REF_NORM:
		put_rows(a, j->hidden, 1, 0, 1);
		break;
	case T_REF_FC1:
	case T_REF_SHARED1:
	case T_REF_EXPERT1:
		put_outputs(a, j, t, r, j->hidden);
		break;
	case T_REF_FC1_BIAS:
	case T_REF_EXPERT1_BIAS:
		put_outputs(a, j, t, r, 1);
		break;
	case T_REF_FC2:
	case T_REF_SHARED2:
	case T_REF_EXPERT2:
		put_inputs(a, j->hidden, j->ffn, t, r);
		break;
	case T_REF_MATRIX1:
		put_matrix1(a, j, t, r, e, n);
		break;
	default:
		put_matrix2(a, j, t, r, e, n);
	}
}

/* Layers and experts differ from one another. */
void t_ref_mark(struct t_ref_array *a, int layer, int expert)
{
	for (size_t i = 0; i < a->n; i++)
		a->v[i] += (float)(T_REF_ELEMS * (layer * 8 + expert));
}

void t_ref_name(char out[128], const struct t_ref_job *j, int kind, int layer, int expert)
{
	const char *stack = j->version < 3 ? "encoder" : "decoder";
	const char *text = names[kind][j->version >= 3];

	if (!t_ref_is_expert(kind))
		snprintf(out, 128, "%s.layers.%d.%s", stack, layer, text);
	else if (j->moe == T_REF_SEQUENTIAL)
		snprintf(out, 128, "%s.layers.%d.mlp.experts.local_experts.%d.%s", stack, layer,
			 expert, text);
	else
		snprintf(out, 128, "%s.layers.%d.mlp.experts.%s%d", stack, layer, text, expert);
}
