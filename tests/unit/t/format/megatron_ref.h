/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_megatron_ref: which elements of a parameter does a rank of a Megatron-LM job compute with,
 * in the order in which they lie in its memory?
 *
 * One rank alone (t = 0 of r = 1) gives the whole.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define T_REF_ELEMS 8192 /* of one parameter */
#define T_REF_STAGES 8   /* of all chunks */

struct t_ref_job {
	int tp, pp, ep, etp, chunks;
	int said;    /* etp, as the arguments have it */
	int version; /* checkpoint_version */
	int layers[T_REF_STAGES];
	int hidden, heads, groups, head, ffn, vocab, experts;
	bool gated;
	enum { T_REF_NO_EXPERTS, T_REF_SEQUENTIAL, T_REF_GROUPED, T_REF_ONE_MATRIX } moe;
	bool edp_only; /* who wrote before 2026 */
};

/* What is being written down: element numbers, and the shape around them. */
struct t_ref_array {
	float v[T_REF_ELEMS];
	size_t n;
	int64_t shape[3];
	size_t ndim;
};

enum t_ref_kind {
	T_REF_QKV,
	T_REF_QKV_BIAS,
	T_REF_PROJ,
	T_REF_NORM,
	T_REF_FC1,
	T_REF_FC1_BIAS,
	T_REF_FC2,
	T_REF_SHARED1,
	T_REF_SHARED2,
	T_REF_EXPERT1,
	T_REF_EXPERT1_BIAS,
	T_REF_EXPERT2,
	T_REF_MATRIX1,
	T_REF_MATRIX2,
	T_REF_NKINDS
};

/* One for each expert, or does a job have it at all? */
bool t_ref_is_expert(int kind);
bool t_ref_has(const struct t_ref_job *j, int kind);

/* What tensor-parallel rank @t of @r holds, and expert-parallel rank @e of @n. */
void t_ref_fill(struct t_ref_array *a, const struct t_ref_job *j, int kind, int t, int r, int e,
		int n);

/* Rows of the vocabulary. */
void t_ref_vocab(struct t_ref_array *a, const struct t_ref_job *j, int t, int r);

/* Make the layers and experts of a model differ from one another. */
void t_ref_mark(struct t_ref_array *a, int layer, int expert);

/* The key of a layer's parameter, with the numbers that are given. */
void t_ref_name(char out[128], const struct t_ref_job *j, int kind, int layer, int expert);
