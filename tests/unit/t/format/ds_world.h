/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_ds_world: a model of known values, cut as tensor, expert, pipeline and data parallelism cut
 * it, and written as DeepSpeed's ranks write it. It goes only this way: which elements of the
 * model a rank holds is found one by one.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/unit/t/format/ds.h"

enum { T_DS_MAX_TP = 3, T_DS_MAX_PARAMS = 24, T_DS_MAX_NUMEL = 600, T_DS_MAX_SUBS = 3 };

enum t_ds_kind {
	T_DS_ROWS,
	T_DS_COLUMNS,
	T_DS_COPIED,
	T_DS_AVERAGED,
	T_DS_HALVES,
	T_DS_SUBS,
	T_DS_MAPPED,
	T_DS_KINDS
};

/* A parameter of the whole model, and what each tensor-parallel rank has of it. */
struct t_ds_global {
	char name[64];
	enum t_ds_kind kind;
	size_t dim, nsubs;
	int64_t shape[3];
	size_t ndim;
	int64_t width[T_DS_MAX_SUBS]
		     [T_DS_MAX_TP]; /* along dim: of each stretch, what each rank has */
	bool vocabulary;            /* rows from shape[0] - padding on are padding */
	int64_t padding;
};

struct t_ds_world {
	uint32_t seed;
	unsigned tp, pp, dp, stage, ep;
	bool by_stage, before, autoep, lean, elastic, no_name;
	struct t_ds_global param[T_DS_MAX_PARAMS];
	size_t n;
	size_t nexperts, first_expert; /* parameters from here on are experts' */
	unsigned local_experts;
};

uint32_t t_ds_next(struct t_ds_world *w, uint32_t below);
/* A parameter "<stem>.<kind>" of any shape. */
void t_ds_make_param(struct t_ds_world *w, struct t_ds_global *g, const char *stem,
		     enum t_ds_kind kind);
/* All files of it. */
void t_ds_write_world(const struct t_ds_world *w, const struct t_dir *d);
/* The name of an expert's parameter of its own, whose number in its share @g has. */
void t_ds_expert_name(const struct t_ds_world *w, const struct t_ds_global *g, unsigned share,
		      char out[80]);
