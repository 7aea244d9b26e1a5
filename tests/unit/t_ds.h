/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_ds: DeepSpeed checkpoints for tests, of any shape, and what each parameter of them is.
 *
 *	struct t_ds c = { .stage = 1, .world = 3, .param = params, .nparams = 2, .lean = true };
 *	t_ds_write(&c, &dir, "tag/");
 *	t_ds_check(&c, &sink);
 *
 * Every value is a function of (state, name, element). A file is made as DeepSpeed's saver
 *makes it: all parameters of a group one behind the other, padded, cut into slices. It shares
 *no code with the reader, which goes the other way.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

struct t_dir;
struct t_sink;

/* A torch.save file that is put together value by value: pk is its pickle. */
struct t_stream {
	struct dcp_buf pk;
	struct dcp_buf data[512];
	size_t n;
};
/* Push a tensor whose storage is a copy of @numel elements; of @shape, row-major, from @first.
 */
void t_stream_tensor(struct t_stream *s, const char *class, const void *p, size_t numel,
		     size_t size, size_t first, const int64_t *shape, size_t ndim);
/* Push the string key and then the value that follows. */
void t_stream_key(struct t_stream *s, const char *key);
/* Write it and start anew. */
void t_stream_put(struct t_stream *s, const struct t_dir *d, const char *name);

struct t_ds_param {
	const char *name;
	int64_t shape[4];
	size_t ndim;
	unsigned group;
	bool frozen;
	const char *tied; /* another name of it */
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
	int64_t tp, pp;     /* 0: not recorded */
	const char *buffer; /* the name of a frozen parameter that is called a buffer */
	/* damage; of a rank: its number + 1 */
	unsigned wrong_count; /* ranks, as rank 1 has it */
	unsigned wrong_shape; /* the rank that lists the last parameter with another shape */
	unsigned short_flat;  /* the rank whose first flat tensors lack an element */
	unsigned no_moment;   /* the rank without exp_avg */
};

/* What model-parallel rank r adds to each value: r times this. */
#define T_DS_RANK 200000.0f

float t_ds_value(const char *state, const char *name, uint64_t element);

/* All files of it, "global_step1/mp_rank_00_model_states.pt" where @at is "global_step1/". */
void t_ds_write(const struct t_ds *c, const struct t_dir *d, const char *at);

/* fp32, exp_avg and exp_avg_sq of all parameters (and ties) are told with the right bytes;
 * returns how many tensors that is. */
unsigned t_ds_check(const struct t_ds *c, const struct t_sink *s);

/* The tensor @key is told, of @shape, and element i of it is @at(i)'s value. */
void t_ds_check_one(const struct t_sink *s, const char *key, const char *state,
		    const char *name, uint64_t n);
