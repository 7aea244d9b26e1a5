/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_ds: DeepSpeed checkpoints for tests, of any shape, and what each parameter of them is.
 *
 *	struct t_ds c = { .stage = 1, .world = 3, .param = params, .nparams = 2, .lean = true };
 *	t_ds_write(&c, &dir, "tag/");
 *	t_ds_check(&c, &sink);
 *
 * Every value is a function of (state, name, element). A file is made as DeepSpeed's saver
 * makes it: consecutive parameters of a group, padded, cut into slices. It shares
 * no code with the reader, which goes the other way.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/stream.h"
#include "tests/unit/t/sink.h"

struct t_ds_param {
	const char *name;
	int64_t shape[4];
	size_t ndim;
	unsigned group;
	bool frozen;
	const char *tied; /* another name of it */
	bool same;        /* model-parallel ranks hold the same */
	void *of;         /* for value() */
};

struct t_ds {
	unsigned stage, world;
	const struct t_ds_param *param;
	size_t nparams;
	unsigned ngroups;
	bool lean;           /* master weights without padding (stages 1 and 2) */
	bool elastic;        /* states as a list, lean too */
	bool one_list;       /* param_shapes is one mapping */
	bool no_stage;       /* as BF16_Optimizer */
	bool odd_unit;       /* padded to a multiple of the ranks, not of twice as many */
	bool no_ties;        /* no shared_params */
	bool int_step;       /* step in param_groups, a number */
	unsigned align;      /* parameters begin at multiples of it; 0: no gaps */
	const char *prefix;  /* of optimizer files: "bf16_", ... */
	bool old_name;       /* .._mp_rank_00optim_states.pt */
	uint32_t mp;         /* model-parallel rank */
	const char *uc_info; /* pickled universal_checkpoint_info, or NULL */
	size_t uc_n;
	int64_t neox;       /* not 0: the width of a model of GPT-NeoX, which keeps it */
	int64_t tp, pp;     /* 0: not recorded */
	const char *buffer; /* the name of a frozen parameter that is called a buffer */
	unsigned waves;     /* not 0: stage 1 as before 0.5.9, so many slices of each group */
	bool addresses;     /* the optimizer numbers parameters by their addresses */
	/* experts: the last group is theirs */
	unsigned ep;   /* expert-parallel ranks; 0: no experts */
	bool by_stage; /* all ranks of a stage share them, not those of a tensor-parallel one */
	bool before;   /* use_data_before_expert_parallelism */
	bool no_name;  /* their group is not called ep_size_<ep> */
	const char *autoep; /* pickled ds_autoep_layers, or NULL */
	size_t autoep_n;
	const void *world_of; /* for value() */
	/* what element @i of @p (of the experts of @share) is; NULL: as below */
	float (*value)(const struct t_ds *c, const char *state, const struct t_ds_param *p,
		       unsigned share, size_t i);
	/* damage; of a rank: its number + 1 */
	unsigned wrong_count; /* ranks, as rank 1 has it */
	unsigned wrong_shape; /* the rank that lists the last parameter with another shape */
	unsigned short_flat;  /* the rank whose first flat tensors lack an element */
	unsigned no_moment;   /* the rank without exp_avg */
};

/* What model-parallel rank r adds to each value: r times this. */
#define T_DS_RANK 200000.0f

float t_ds_value(const char *state, const char *name, uint64_t element);
size_t t_ds_numel(const struct t_ds_param *p);

/* All files of it, "global_step1/mp_rank_00_model_states.pt" where @at is "global_step1/". */
void t_ds_write(const struct t_ds *c, const struct t_dir *d, const char *at);

/*
 * The files of @tp tensor-parallel ranks of GPT-NeoX, whose model is @width wide: @param is what
 * each holds.
 */
void t_ds_write_neox(const struct t_dir *d, const char *at, const struct t_ds_param *param,
		     size_t n, unsigned tp, unsigned width);

/* fp32, exp_avg and exp_avg_sq of all parameters (and ties) are told with the right bytes;
 * returns how many tensors that is. */
unsigned t_ds_check(const struct t_ds *c, const struct t_sink *s);

/* The tensor @key is told, of @shape, and element i of it is @at(i)'s value. */
void t_ds_check_one(const struct t_sink *s, const char *key, const char *state,
		    const char *name, uint64_t n);

/* A checkpoint in a directory of its own, loaded into a sink. */
struct t_ds_loaded {
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;
	struct dcp_err err;
	int rc;
};

/* With the files of @c, if it is not NULL. */
void t_ds_make(struct t_ds_loaded *l, const struct t_ds *c);
/* @path: another directory than its own, or NULL. */
void t_ds_load(struct t_ds_loaded *l, const char *path, bool uncommitted);
void t_ds_unload(struct t_ds_loaded *l);
/* Nothing was told twice, or with an error. */
void t_ds_no_errors(const struct t_sink *s);
