/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepspeed_int: what the files of the DeepSpeed family share.
 *
 *	deepspeed.c            the family; the order of loading
 *	load.c                 what all of them need while a checkpoint is loaded: which files there are, which are
 *	                       missing, what their names say
 *	model_file.c           a model file: parameters, their order
 *	optim_file.c           an optimizer file: how its flat tensors are cut, and the states in it
 *	layout.c               all model and optimizer files read, and which elements of flat tensors are a parameter
 *	slice.c                where a slice of them lies; one parameter as runs of files
 *	expert.c               which ranks hold which experts
 *	join.h                 pieces of several ranks to one tensor: its files
 *	emitting               see below
 *	universal.c            a checkpoint that was converted to one file a parameter and state
 *
 * Words. A model-parallel rank (mp_rank_01 in file names) is a tensor-parallel rank of a
 * pipeline stage: it has parameters of its own, a "part" of the model. Its optimizer's tensors
 * are cut over the data-parallel ranks (zero_pp_rank_3): one optimizer file each. In it every
 * parameter group (stage 3: sub-group) is one flat tensor for each state: "fp32" is the master
 * weight. Experts are cut over fewer ranks, each set of which ("share") has its own.
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
#include "core/origin/dir/dir.h"
#include "core/parse/pickle/pickle.h"
#include "core/parse/torch/torch.h"

/*
 * join: which elements of the ranks' tensors are one tensor of the model?
 *
 *	rule.c            universal_checkpoint_info: the rule for a name; affine_map, element by element
 *	neox.c            the rules of GPT-NeoX, which records none
 *	join.c            from a rule and the shapes of all ranks to boxes of the whole; are copies equal?
 *
 * Pure arithmetic on shapes: nothing here knows files.
 */

struct dcp_arena;
struct dcp_ds;

enum dcp_ds_cut {
	DCP_DS_CUT_ROWS,
	DCP_DS_CUT_COLUMNS,
	DCP_DS_CUT_REPLICATED,
	DCP_DS_CUT_AVERAGED,
	DCP_DS_CUT_SUMMED,
	DCP_DS_CUT_HALVES,
	DCP_DS_CUT_SUBS,
	DCP_DS_CUT_MAP,
};
#define DCP_DS_CUT_COUNT (DCP_DS_CUT_MAP + 1)

/*
 * What a list of patterns may say beside a cut: that, and why, a name cannot be joined; that it is
 * not known how.
 */
enum { DCP_DS_LIST_REFUSED = DCP_DS_CUT_COUNT + 1, DCP_DS_LIST_UNKNOWN };

#define DCP_DS_OPEN UINT64_MAX /* a dimension that is what is left over */

/* A tensor made of others, along @dim of its recorded shape. */
struct dcp_ds_sub {
	uint64_t *shape;
	uint32_t ndim, dim;
	uint64_t *width; /* of each; NULL: as many equal ones as shape[dim] says */
	uint32_t nwidths;
	uint64_t **shard; /* what each rank holds of each; NULL: equal shares */
	uint32_t nshards;
	bool unequal; /* the shares need not be equal, and shard is NULL */
};

/* Elements [from, from + len) of a rank's tensor are [at, at + len) of the whole. */
struct dcp_ds_block {
	const uint64_t *from, *at, *len;
};

struct dcp_ds_shard {
	const uint64_t *shape;
	const struct dcp_ds_block *block;
	size_t n;
};

/* What every rank holds; of copies only one is there. */
struct dcp_ds_map {
	uint32_t ndim;
	const uint64_t *shape;
	const struct dcp_ds_shard *shard;
	size_t n;
};

struct dcp_ds_rule {
	enum dcp_ds_cut cut;
	const char *pattern; /* that matches the name; NULL: none */
	const struct dcp_ds_sub *sub;
	const struct dcp_ds_map *map;
	uint64_t rows;   /* if not 0: it is cut to so many */
	uint64_t height; /* if not 0: it must have so many rows */
	bool by_default; /* no list has the name, */
	bool complete;   /* so it may be no parameter */
};

/* Keep the first universal_checkpoint_info that is found, or what a model file of GPT-NeoX has
 * instead. */
int dcp_ds_take_rules(struct dcp_ds *ds, struct dcp_pv from);
void dcp_ds_rules_finish(struct dcp_ds *ds);
/* Are @args the arguments that a model file of GPT-NeoX keeps? @width: of its model. */
bool dcp_ds_is_neox(struct dcp_pv args, uint64_t *width);
/*
 * A rule that is known without being recorded: an enum dcp_ds_cut, or one of those above; @height
 * as in struct dcp_ds_rule; @why: it is refused, or not known.
 */
struct dcp_ds_known {
	const char *pattern;
	uint8_t list;
	uint64_t height;
	const char *why;
};
enum { DCP_DS_NEOX = 8 }; /* those of GPT-NeoX */
void dcp_ds_neox(struct dcp_ds *ds, uint64_t width, struct dcp_ds_known out[DCP_DS_NEOX]);

/* The rule for @name; returns why there is none, or NULL. */
const char *dcp_ds_rule(const struct dcp_ds *ds, const char *name, struct dcp_ds_rule *out);

/* What one rank holds. */
struct dcp_ds_local {
	uint32_t ndim;
	const uint64_t *shape;
};

/* Elements [first, first + n) of a rank's, the first of them at @from, and the box of the whole
 * they fill. */
struct dcp_ds_box {
	uint32_t local;
	uint64_t first, n;
	const uint64_t *lo, *len, *from;
};

struct dcp_ds_whole {
	uint32_t ndim;
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_ds_box *box;
	size_t nbox, room;
	bool sum, mean; /* of all ranks; the box is that of the first */
	struct dcp_arena *arena;
};

/* ---- join.c ---- */

/* The whole, in @arena; returns why it cannot be made, or NULL. */
const char *dcp_ds_join(const struct dcp_ds_rule *rule, const struct dcp_ds_local *local,
			size_t n, struct dcp_arena *arena, struct dcp_ds_whole *w);

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
	const char *first;       /* key of the first tensor emitted for it */
};

/* One optimizer file. */
struct dcp_ds_rank {
	const struct dcp_ds_name *name;
	const char *why;            /* not NULL: why it is of no use */
	struct dcp_ds_place *place; /* [flat * nstates + state] */
	uint64_t *slice;            /* of each flat tensor, where it says so (stage 3) */
	uint32_t nstates;
};

/* A layer of AutoEP: every weight is one tensor of all experts, [experts, ...]. */
struct dcp_ds_experts {
	const char *prefix;         /* of its weights: "model.layers.0.mlp.experts" */
	uint32_t layer;             /* in names of files */
	uint32_t total, shares;     /* experts; ranks that hold different ones */
	const uint32_t *const *has; /* of each share: the experts, in order */
	const uint32_t *nhas;
};

struct dcp_ds_param {
	const char *name;
	const uint64_t *shape;
	uint32_t ndim;
	uint32_t group;
	uint64_t numel;
	uint64_t off;    /* in the group; in stage 3 in each rank's slice of it */
	const char *why; /* not NULL: why it cannot be placed */
	/* of AutoEP: this is what the first share holds, that of the next is @next further on */
	const struct dcp_ds_experts *experts;
	uint32_t next;
	bool hidden; /* of another share than the first */
	bool whole;  /* tensor-parallel ranks do not cut it */
};

/* A parameter group as optimizer files have it. */
struct dcp_ds_list {
	uint32_t flat;       /* its first flat tensor; */
	uint32_t waves;      /* so many follow each other, each cut over all ranks */
	uint32_t count;      /* ranks it is cut over */
	uint32_t shares;     /* expert-parallel ranks, by its name; 0: none */
	const uint64_t *gap; /* after each parameter, or NULL */
	uint32_t ngap;
	bool muon; /* by its param_group */
};

struct dcp_ds_group {
	uint32_t flat, waves, count; /* as above: count * waves slices */
	uint32_t base, step; /* slice k lies with rank base + k % count * step; it is a rank */
	uint32_t lanes;      /* of the part, or (tp) of its stage: they take turns */
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
	const struct dcp_ds_list *list;
	uint32_t nlists;
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
	uint32_t tp;              /* tensor-parallel ranks of ... */
	uint32_t pp;              /* ... so many pipeline stages; 0: not recorded */
	struct dcp_intern states; /* 0 is "fp32" */
	struct dcp_intern
		trained; /* names for which optimizer states are emitted, aliases too */
	struct dcp_intern frozen;  /* names for which fragments are emitted */
	struct dcp_intern buffers; /* names that the model says are not parameters */
	struct dcp_intern emitted; /* names that have an fp32 otherwise */
	struct dcp_buf alias;      /* struct dcp_ds_alias, by real name once all are read */
	struct dcp_intern reals;   /* names that have aliases ... */
	struct dcp_buf real_at;    /* ... and the number of the first one of each */
	bool zero;                 /* there are optimizer states by name */
	const char *unjoined;      /* why a name was emitted for each rank; NULL: none was */
	size_t nunjoined;
	uint64_t compared; /* bytes of ranks that were read to see whether they are equal */
	struct dcp_ds_rules *rules;
	struct dcp_intern seen;         /* what was emitted for the first file of a kind ... */
	struct dcp_buf seen_hash;       /* ... and its hash, by number */
	bool before_expert;             /* ranks of one expert are neighbours */
	struct dcp_ds_experts *experts; /* of AutoEP ... */
	size_t nexperts;
	struct dcp_intern expert_layers; /* ... and their prefixes */
	uint32_t expert_lanes; /* 1: tensor-parallel ranks cut experts; more: they do not */
	struct dcp_buf names;  /* const char *: of files, by the sink's number */
	bool universal;
	char version[32];      /* of DeepSpeed */
	bool opened;           /* a file could be read */
	struct dcp_err damage; /* of the first that could not */
};

/* ---- load.c ---- */

/* Text in the arena; NULL when memory is out. */
const char *dcp_ds_text(struct dcp_ds *ds, const char *fmt, ...) DCP_PRINTF(2, 3);

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
/* Where tensor @v lies; absent unless the tensor lies in one run. 0 or -ENOMEM. */
int dcp_ds_take_place(const struct dcp_ds_input *in, struct dcp_pv v, struct dcp_ds_place *out);
void dcp_ds_place_tensor(const struct dcp_ds_input *in, const struct dcp_torch_tensor *tt,
			 struct dcp_ds_place *out);
/* A file that is of no use: an object of its name. @why NULL: out of memory. */
int dcp_ds_emit_broken(struct dcp_ds *ds, const char *file, const char *why);

/* The files of a directory that are of the family, sorted; freed by the caller. */
int dcp_ds_list_files(const struct dcp_dir *dir, struct dcp_ds_name **out, size_t *n);
/* The files of @kind in @ds->file. */
const struct dcp_ds_name *dcp_ds_files(const struct dcp_ds *ds, enum dcp_ds_kind kind,
				       size_t *n);
/* The part of a model-parallel rank, or NULL. */
const struct dcp_ds_part *dcp_ds_part_of(const struct dcp_ds *ds, uint64_t mp);
/* The optimizer file of a data-parallel rank, or NULL. */
const struct dcp_ds_rank *dcp_ds_rank_of(const struct dcp_ds_part *part, uint64_t dp);
/* Does a "latest" in @above name @version? True also when nothing is known of @above (NULL). */
bool dcp_ds_committed(const struct dcp_dir *above, const char *version);
/* A file of a rank that the metadata speaks of; false: all are there. */
bool dcp_ds_lacks(const struct dcp_ds *ds, char missing[DCP_DS_NAME_MAX]);
/* What lies on ranks without a file has no names: the files that would have them are named. */
int dcp_ds_emit_lost(struct dcp_ds *ds);

/* ---- layout.c ---- */

/* Read the names in the directory; dcp_ds_end() whatever it returns. */
int dcp_ds_begin(struct dcp_ds *ds, const struct dcp_load *in, struct dcp_err *err);
void dcp_ds_end(struct dcp_ds *ds);
/* Read all model and optimizer files. */
int dcp_ds_read_parts(struct dcp_ds *ds);

/* ---- model_file.c, optim_file.c ---- */

/* Read all model files of @part, and emit what else is in them. */
int dcp_ds_read_models(struct dcp_ds *ds, struct dcp_ds_part *part);
int dcp_ds_read_optims(struct dcp_ds *ds, struct dcp_ds_part *part);

/* One optimizer file while it is read. */
struct dcp_ds_reading {
	struct dcp_ds *ds;
	struct dcp_ds_part *part;
	struct dcp_ds_rank *rank;
	const struct dcp_ds_input *in;
	struct dcp_pv dict;        /* optimizer_state_dict */
	struct dcp_pv base;        /* what the wrapped optimizer said */
	const struct dcp_pv *flat; /* master weights */
	size_t nflat;
	const uint32_t *waves; /* of each group, or NULL: 1 */
	size_t nlists;
	unsigned stage;
};

/* ---- load.c: names of one parameter ---- */

int dcp_ds_read_aliases(struct dcp_ds *ds, struct dcp_ds_part *part,
			const struct dcp_ds_input *in);
/* For which names the optimizer's states are emitted, and which are joined otherwise. */
int dcp_ds_name_all(struct dcp_ds *ds);

/* ---- layout.c, slice.c, expert.c ---- */

/* A part while it is laid out. */
struct dcp_ds_laying {
	struct dcp_ds *ds;
	struct dcp_ds_part *part;
	struct dcp_buf params, groups; /* struct dcp_ds_param, struct dcp_ds_group */
	size_t ngroups;
};
int dcp_ds_add_group(struct dcp_ds_laying *l, const struct dcp_ds_group *g,
		     struct dcp_ds_param *p, size_t n);
/* The consecutive parameters [p, p + n). */
void dcp_ds_place_params(struct dcp_ds_laying *l, const struct dcp_ds_list *list,
			 struct dcp_ds_group *g, struct dcp_ds_param *p, size_t n);

/* Where a slice of a group lies. */
struct dcp_ds_slice {
	const struct dcp_ds_part *part; /* NULL: no file is of it */
	uint32_t mp, dp, flat;
};
struct dcp_ds_slice dcp_ds_slice(const struct dcp_ds *ds, const struct dcp_ds_part *part,
				 const struct dcp_ds_group *g, uint64_t k);

/* What a model file says of AutoEP, kept once. */
int dcp_ds_take_experts(struct dcp_ds *ds, struct dcp_pv root);
/* The layer of AutoEP that @name is a weight of, or NULL. */
const struct dcp_ds_experts *dcp_ds_experts_of(const struct dcp_ds *ds, const char *name);
bool dcp_ds_all_experts(const struct dcp_ds *ds, const struct dcp_ds_param *p, size_t n);
/* A group of experts, as many groups as there are shares of them. */
int dcp_ds_add_experts(struct dcp_ds_laying *l, const struct dcp_ds_list *list,
		       struct dcp_ds_group *g, const struct dcp_ds_param *p, size_t n);

/* Consecutive elements of a parameter in one file. */
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

/*
 * emit: from what was read to what the sink gets.
 *
 *	load.c              under all names that a parameter has
 *	state.c             fp32, exp_avg, ... of every parameter, of one rank or joined from several
 *	module.c            the 16-bit weights, with those of AutoEP's experts
 *	module_joined.c     those of several tensor-parallel ranks, and the sink for them
 *	model_file.c        everything else
 */

/* ---- load.c ---- */

/*
 * <rank>.<role>.<name>, without <rank> when that is NULL: @t with its key and path. dtype_name
 * and itemsize may be left to the dtype.
 */
int dcp_ds_emit_one(struct dcp_ds *ds, const char *rank, const char *role, const char *name,
		    const struct dcp_tensor *t);
/* The same, also under every name that is tied to @name. */
int dcp_ds_emit_tensor(struct dcp_ds *ds, const char *rank, const char *role, const char *name,
		       const struct dcp_tensor *t);
int dcp_ds_emit_object(struct dcp_ds *ds, const char *rank, const char *role, const char *name,
		       const char *type, const char *json);
/* What framework, how many ranks, and what was not joined. */
int dcp_ds_emit_facts(struct dcp_ds *ds);
/* Note that @name is emitted once for each tensor-parallel rank, and why. */
int dcp_ds_note_unjoined(struct dcp_ds *ds, const char *name, const char *why,
			 const struct dcp_ds_rule *rule);

/* ---- state.c ---- */

/* Master weights and moments. */
int dcp_ds_emit_states(struct dcp_ds *ds);

/* Those of one name while they are emitted. */
struct dcp_ds_emitter {
	struct dcp_ds *ds;
	uint32_t state;
	struct dcp_arena scratch; /* of one name */
	struct dcp_buf runs, pieces;
	size_t hint; /* the common entry that was found last: the next is near */
};
/* The ranks that hold a parameter, in the order in which they are joined. */
struct dcp_ds_shared {
	const struct dcp_ds_part **part;
	const struct dcp_ds_param **param;
	struct dcp_ds_local *local;
	size_t n;
};
/* Runs of one rank, as far as they fall into @box. */
int dcp_ds_add_pieces(struct dcp_ds_emitter *t, const struct dcp_ds_box *box, uint8_t dtype);

/* ---- join.c: are copies equal? ---- */

/* May so many bytes of each of @ranks ranks be read, to compare them? */
bool dcp_ds_may_compare(struct dcp_ds *ds, uint64_t bytes, size_t ranks);
/* Do all ranks hold the same values of the state? 1, 0 or -ENOMEM. */
int dcp_ds_all_same(struct dcp_ds_emitter *t, const struct dcp_ds_shared *s);

/* ---- module.c, module_joined.c ---- */

/* The 16-bit weights; and as fp32 the weights that the optimizer does not have. */
int dcp_ds_emit_modules(struct dcp_ds *ds);
/* Those of one model, layer or expert from the files of its tensor-parallel ranks. */
int dcp_ds_emit_unit(struct dcp_ds *ds, const struct dcp_ds_name *file, size_t n);

/* The state dict in a file: all of it, or what a model file calls "module"; NULL: none. */
const struct dcp_pv *dcp_ds_state_dict(const struct dcp_ds_name *name,
				       const struct dcp_ds_input *in, struct dcp_pv *room);

/* A sink for module.<name>: corrects paths, leaves out placeholders, also emits fp32. */
struct dcp_ds_front {
	struct dcp_ds *ds;
	const struct dcp_ds_name *file;
};
struct dcp_sink dcp_ds_front_sink(struct dcp_ds_front *f);

/* ---- model_file.c ---- */

/* The values of a model or optimizer file that are not emitted elsewhere. */
int dcp_ds_emit_rest(struct dcp_ds *ds, const struct dcp_ds_name *name,
		     const struct dcp_ds_input *in);
/* One value of it, unless the first file of its kind said the same. */
int dcp_ds_emit_entry(struct dcp_ds *ds, const struct dcp_ds_name *name,
		      const struct dcp_ds_input *in, struct dcp_pv v, const char *const *path,
		      size_t n);
/* One value, as an object and the tensors in it; path[0] is the file and only part of the key.
 */
int dcp_ds_emit_value(struct dcp_ds *ds, const struct dcp_ds_input *in, struct dcp_pv v,
		      const char *const *path, size_t n);
/* A file of unknown content, leaf by leaf; or only the leaves that dcp_ds_emit_rest() left
 * out. */
int dcp_ds_emit_raw(struct dcp_ds *ds, const char *file, bool tensors_only);
