/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepspeed_int: what the files of the DeepSpeed family share.
 *
 *	deepspeed.c            the families; which files there are; the order of loading
 *	deepspeed_name.c       what a file name says
 *	deepspeed_model.c      a model file: parameters, their order, what ties them
 *	deepspeed_optim.c      an optimizer file: where its flat tensors lie
 *	deepspeed_layout.c     which elements of them are a parameter
 *	deepspeed_run.c        one parameter as runs of files
 *	deepspeed_join.c       pieces of model-parallel ranks to one tensor
 *	deepspeed_rule.c       the rules for that
 *	deepspeed_state.c      telling fp32, exp_avg, ... of every parameter
 *	deepspeed_module.c     telling the 16-bit weights
 *	deepspeed_unit.c       those of several tensor-parallel ranks
 *	deepspeed_tell.c       telling under all names
 *	deepspeed_rest.c       telling everything else
 *	deepspeed_universal.c  a checkpoint that was converted to one file a parameter and state
 *
 * Words. A model-parallel rank (mp_rank_01 in file names) is a tensor-parallel rank of a
 *pipeline stage: it has parameters of its own, a "part" of the model. Its optimizer's tensors
 *are cut over the data-parallel ranks (zero_pp_rank_3): one optimizer file each. In it every
 * parameter group (stage 3: sub-group) is one flat tensor for each state: "fp32" is the master
 *weight.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/format/format.h"
#include "core/model/tensor.h"
#include "core/parse/dir.h"
#include "core/parse/torch.h"

/* ---- names ---- */

enum dcp_ds_kind {
	DCP_DS_MODEL,  /* mp_rank_00_model_states.pt, zero_pp_rank_0_mp_rank_00_model_.. */
	DCP_DS_OPTIM,  /* [bf16_|fp16_]zero_pp_rank_0_mp_rank_00_optim_states.pt */
	DCP_DS_LAYER,  /* layer_03-model_00-model_states.pt: a layer of a pipeline */
	DCP_DS_EXPERT, /* layer_0_expert_3_mp_rank_00_model_states.pt */
	DCP_DS_EXPERT_OPTIM, /* expp_rank_0_mp_rank_00_optim_states.pt */
};

#define DCP_DS_NAME_MAX 96

struct dcp_ds_name {
	const char *name; /* borrowed from the directory */
	uint32_t mp, dp, layer, expert;
	uint8_t kind;
	bool sharded; /* has zero_pp_rank_ */
};

bool dcp_ds_name_parse(const char *name, struct dcp_ds_name *out);

/* What the file of another rank would be called. */
void dcp_ds_name_of_rank(const struct dcp_ds_name *like, uint32_t dp, uint32_t mp,
			 char out[DCP_DS_NAME_MAX]);

/* ---- what was read ---- */

/* A flat tensor of an optimizer file. */
struct dcp_ds_place {
	uint64_t off, n; /* first byte; elements */
	uint32_t file;   /* the sink's number */
	uint8_t dtype;   /* enum dcp_dtype */
	bool swap, there;
};

/* What all parameters of a group have in common: step. */
struct dcp_ds_common {
	uint32_t flat, state;
	struct dcp_ds_place place; /* a tensor of one element, or */
	uint32_t ndim;
	const char *type, *json; /* a value */
	const char *first;       /* key of the first tensor told of it */
};

/* One optimizer file. */
struct dcp_ds_rank {
	const struct dcp_ds_name *name;
	const char *why;            /* not NULL: why it is of no use */
	struct dcp_ds_place *place; /* [flat * nstates + state] */
	uint32_t nstates;
};

struct dcp_ds_param {
	const char *name;
	const uint64_t *shape;
	uint32_t ndim;
	uint32_t group;
	uint64_t numel;
	uint64_t off;    /* in the group; in stage 3 in each rank's slice of it */
	const char *why; /* not NULL: why it cannot be placed */
};

struct dcp_ds_group {
	uint32_t flat;       /* its number in the optimizer files */
	uint32_t count;      /* it is cut over so many ranks: */
	uint32_t base, step; /* slice k lies with rank base + k * step */
	uint64_t numel;      /* elements of its parameters and of what lies between them */
	uint64_t slice;      /* elements a rank has room for */
	const char *why;     /* not NULL: why nothing of it can be read */
};

/* A frozen parameter that stage 3 cut: each model file has a fragment. */
struct dcp_ds_frozen {
	const char *name;
	const uint64_t *shape;
	uint32_t ndim;
	uint64_t numel;
	struct dcp_ds_place *fragment; /* of each model file of the part */
};

/* One model-parallel rank. */
struct dcp_ds_part {
	uint32_t mp;
	const struct dcp_ds_name *model; /* its files, by rank; nmodels of them */
	size_t nmodels;
	const struct dcp_ds_name *named; /* the model file that named the parameters, or NULL */
	struct dcp_ds_rank *rank;        /* its optimizer files, by rank */
	size_t nranks;
	uint32_t world; /* ranks there should be; 0: no optimizer file could be read */
	unsigned stage; /* 1 (also 2) or 3; 0: nothing is cut */
	bool whole;     /* the model file has the optimizer, too (stage 0) */
	uint32_t nflat; /* flat tensors of each state */

	struct dcp_ds_param *param;
	size_t nparams;
	uint32_t *group_n; /* parameters in each group that the model file lists */
	uint32_t nlisted;
	struct dcp_ds_group *group;
	size_t ngroups;
	struct dcp_ds_frozen *frozen;
	size_t nfrozen;
	struct dcp_buf common; /* struct dcp_ds_common */

	/* from the first optimizer file */
	const uint32_t *count;      /* ranks each flat tensor is cut over */
	const uint64_t *const *gap; /* behind each parameter of a flat tensor, or NULL */
	const uint32_t *ngap;
	const struct dcp_ds_name *first;
};

/* Two names of one parameter. */
struct dcp_ds_alias {
	const char *name, *real;
};

/* A checkpoint while it is loaded. */
struct dcp_ds {
	const struct dcp_load *in;
	struct dcp_err *err;
	struct dcp_arena arena;
	struct dcp_ds_name *file; /* by kind, mp, layer, expert, dp */
	size_t nfiles;
	struct dcp_ds_part *part;
	size_t nparts;
	uint32_t tp;               /* tensor-parallel ranks of ... */
	uint32_t pp;               /* ... so many pipeline stages; 0: nobody says how many */
	struct dcp_intern states;  /* 0 is "fp32" */
	struct dcp_intern trained; /* names that optimizer states are told of, aliases too */
	struct dcp_intern frozen;  /* names that fragments are told of */
	struct dcp_intern buffers; /* names that the model says are no parameters */
	struct dcp_intern told;    /* names that have an fp32 otherwise */
	struct dcp_buf alias;      /* struct dcp_ds_alias, by real name once all are read */
	struct dcp_intern reals;   /* names that have aliases ... */
	struct dcp_buf real_at;    /* ... and the number of the first one of each */
	bool zero;                 /* there are optimizer states by name */
	const char *unjoined;      /* why a name was told of each rank; NULL: none was */
	struct dcp_ds_rules *rules;
	struct dcp_intern seen;   /* what was told of the first file of a kind ... */
	struct dcp_buf seen_hash; /* ... and its hash, by number */
	bool before_expert;       /* ranks of one expert are neighbours */
	bool universal;
	char version[32];      /* of DeepSpeed */
	bool opened;           /* a file could be read */
	struct dcp_err damage; /* of the first that could not */
};

/* Out of memory, told. */
int dcp_ds_no_memory(struct dcp_ds *ds);
/* Text in the arena; NULL when memory is out. */
const char *dcp_ds_text(struct dcp_ds *ds, const char *fmt, ...) DCP_PRINTF(2, 3);
const char *dcp_ds_keep(struct dcp_ds *ds, const char *text);

/*
 * A file of the checkpoint opened and parsed. Returns 0, 1 when it cannot be read (@why says
 * it, the file is named), or a negative errno that ends the load.
 */
struct dcp_ds_input {
	struct dcp_input in;
	struct dcp_torch *t;
	uint32_t file; /* the sink's number */
};
int dcp_ds_open(struct dcp_ds *ds, const char *name, struct dcp_ds_input *out,
		struct dcp_err *why);
void dcp_ds_close(struct dcp_ds_input *in);

/* The files of @kind in @ds->file. */
const struct dcp_ds_name *dcp_ds_files(const struct dcp_ds *ds, enum dcp_ds_kind kind,
				       size_t *n);

/* ---- deepspeed_model.c, deepspeed_optim.c ---- */

/* Read all model files of @part, and tell what else is in them. */
int dcp_ds_read_models(struct dcp_ds *ds, struct dcp_ds_part *part);
int dcp_ds_read_optims(struct dcp_ds *ds, struct dcp_ds_part *part);

/* Where tensor @v lies; not there if it is not one that lies in one run. 0 or -ENOMEM. */
int dcp_ds_take_place(const struct dcp_ds_input *in, struct dcp_pv v, struct dcp_ds_place *out);

/* ---- deepspeed_layout.c ---- */

/* Groups, and where in them each parameter lies. */
int dcp_ds_lay_out(struct dcp_ds *ds, struct dcp_ds_part *part);

/* The optimizer file of a data-parallel rank, or NULL. */
const struct dcp_ds_rank *dcp_ds_rank_of(const struct dcp_ds_part *part, uint64_t dp);

/* Elements of a slice of a group that are no padding (stages 1 and 2). */
uint64_t dcp_ds_lean(const struct dcp_ds_group *g, uint32_t slice);

/* ---- deepspeed_run.c ---- */

/* Elements of a parameter that lie in one file, one behind the other. */
struct dcp_ds_run {
	uint64_t first, n;
	uint64_t off;
	uint32_t file;
	bool swap;
};

/*
 * All runs of @state of @p, in order, added to @out (struct dcp_ds_run), and their dtype.
 * Returns 1; 0: no file has this state for it; -EBADMSG: it cannot be read, @why says it;
 * -ENOMEM.
 */
int dcp_ds_runs(struct dcp_ds *ds, const struct dcp_ds_part *part, const struct dcp_ds_param *p,
		uint32_t state, struct dcp_buf *out, uint8_t *dtype, struct dcp_err *why);
/* The same of a frozen parameter of stage 3. */
int dcp_ds_frozen_runs(struct dcp_ds *ds, const struct dcp_ds_part *part,
		       const struct dcp_ds_frozen *f, struct dcp_buf *out, uint8_t *dtype,
		       struct dcp_err *why);

/* ---- deepspeed_rule.c, deepspeed_join.c ---- */

enum dcp_ds_cut {
	DCP_DS_CUT_ROWS,
	DCP_DS_CUT_COLUMNS,
	DCP_DS_CUT_REPLICATED,
	DCP_DS_CUT_AVERAGED,
	DCP_DS_CUT_HALVES,
	DCP_DS_CUT_SUBS,
};
#define DCP_DS_CUT_COUNT (DCP_DS_CUT_SUBS + 1)

#define DCP_DS_OPEN UINT64_MAX /* a dimension that is what is left over */

/* A tensor made of others, along @dim of its recorded shape. */
struct dcp_ds_sub {
	uint64_t *shape;
	uint32_t ndim, dim;
	uint64_t *width; /* of each; NULL: as many equal ones as shape[dim] says */
	uint32_t nwidths;
	uint64_t **shard; /* what each rank holds of each; NULL: equal shares */
	uint32_t nshards;
};

struct dcp_ds_rule {
	enum dcp_ds_cut cut;
	const struct dcp_ds_sub *sub;
	uint64_t rows;   /* not 0: cut to so many */
	bool by_default; /* no list has the name */
};

/* Keep the first universal_checkpoint_info that is found. */
int dcp_ds_take_rules(struct dcp_ds *ds, struct dcp_pv from);
void dcp_ds_rules_finish(struct dcp_ds *ds);
/* The rule for @name; returns why there is none, or NULL. */
const char *dcp_ds_rule(const struct dcp_ds *ds, const char *name, struct dcp_ds_rule *out);

/* What one tensor-parallel rank holds. */
struct dcp_ds_local {
	uint32_t ndim;
	const uint64_t *shape;
};

/* Elements [first, first + n) of a rank's, and the box of the whole they fill. */
struct dcp_ds_box {
	uint32_t local;
	uint64_t first, n;
	const uint64_t *lo, *len;
};

struct dcp_ds_whole {
	uint32_t ndim;
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_ds_box *box;
	size_t nbox;
	struct dcp_arena *arena;
};

/* The whole, in @arena; returns why it cannot be made, or NULL. */
const char *dcp_ds_join(const struct dcp_ds_rule *rule, const struct dcp_ds_local *local,
			size_t n, struct dcp_arena *arena, struct dcp_ds_whole *w);

/* ---- deepspeed_tell.c ---- */

/*
 * <rank>.<role>.<name>, without <rank> when that is NULL: @t with its key and path. dtype_name
 * and itemsize may be left to the dtype.
 */
int dcp_ds_tell_one(struct dcp_ds *ds, const char *rank, const char *role, const char *name,
		    const struct dcp_tensor *t);
/* The same, also under every name that is tied to @name. */
int dcp_ds_tell_tensor(struct dcp_ds *ds, const char *rank, const char *role, const char *name,
		       const struct dcp_tensor *t);
int dcp_ds_tell_object(struct dcp_ds *ds, const char *rank, const char *role, const char *name,
		       const char *type, const char *json);
/* @name is told of each tensor-parallel rank, for that reason. */
int dcp_ds_note_unjoined(struct dcp_ds *ds, const char *name, const char *why);

/* ---- deepspeed_state.c, deepspeed_module.c, deepspeed_unit.c ---- */

/* Master weights and moments. */
int dcp_ds_tell_states(struct dcp_ds *ds);
/* The 16-bit weights, and as fp32 what the optimizer has not. */
int dcp_ds_tell_modules(struct dcp_ds *ds);
/* Those of one model, layer or expert from the files of its tensor-parallel ranks. */
int dcp_ds_tell_unit(struct dcp_ds *ds, const struct dcp_ds_name *file, size_t n);

/* The state dict in a file: all of it, or what a model file calls "module"; NULL: none. */
const struct dcp_pv *dcp_ds_state_dict(const struct dcp_ds_name *name,
				       const struct dcp_ds_input *in, struct dcp_pv *room);
bool dcp_ds_knows(const struct dcp_intern *in, const char *name);

/* Is a weight of such a file what the optimizer would have had, but for being frozen or a
 * buffer? Layers of a pipeline call tied weights by other names, so of theirs only buffers are.
 */
bool dcp_ds_is_fp32(const struct dcp_ds *ds, uint8_t kind, const char *name);

/* A sink for module.<name>: paths put right, placeholders left out, fp32 told beside it. */
struct dcp_ds_front {
	struct dcp_ds *ds;
	const struct dcp_ds_name *file;
};
struct dcp_sink dcp_ds_front_sink(struct dcp_ds_front *f);

/* ---- deepspeed_rest.c ---- */

/* What of a model or optimizer file is told nowhere else. */
int dcp_ds_tell_rest(struct dcp_ds *ds, const struct dcp_ds_name *name,
		     const struct dcp_ds_input *in);
/* One value, as an object and the tensors in it; path[0] is the file and only part of the key.
 */
int dcp_ds_tell_value(struct dcp_ds *ds, const struct dcp_ds_input *in, struct dcp_pv v,
		      const char *const *path, size_t n);
/* A file nothing is known of, leaf by leaf; or only what of it dcp_ds_tell_rest() left out. */
int dcp_ds_tell_raw(struct dcp_ds *ds, const char *file, bool tensors_only);
/* A file that is of no use: an object of its name. @why NULL: out of memory. */
int dcp_ds_tell_broken(struct dcp_ds *ds, const char *file, const char *why);

/* ---- deepspeed.c ---- */

/* Read the names in the directory; dcp_ds_end() whatever it returns. */
int dcp_ds_begin(struct dcp_ds *ds, const struct dcp_load *in, struct dcp_err *err);
void dcp_ds_end(struct dcp_ds *ds);
/* Read all model and optimizer files. */
int dcp_ds_read_parts(struct dcp_ds *ds);
int dcp_ds_tell_facts(struct dcp_ds *ds);
/* Does a "latest" in @above name @version? True also when nothing is known of @above (NULL). */
bool dcp_ds_committed(const struct dcp_dir *above, const char *version);
