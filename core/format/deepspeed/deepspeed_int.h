/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepspeed_int: the declarations that the sources of the DeepSpeed family share.
 *
 *	deepspeed.c            the family; the order of loading
 *	load.c                 services for all sources while a checkpoint is loaded: which files there are,
 *	                       which are missing, what their names say
 *	model_file.c           a model file: parameters, their order
 *	optim_file.c           an optimizer file: how its flat tensors are cut, and the states in it
 *	layout.c               reads all model and optimizer files; which elements of the flat tensors belong to
 *	                       which parameter
 *	slice.c                where a slice of a group lies; one parameter as runs of files
 *	expert.c               which ranks hold which experts
 *	rule.c, neox.c, join.c from the ranks' tensors to one tensor: see "join" below
 *	emitting               see "emit" below
 *	universal.c            a checkpoint that was converted to one file for each parameter and state
 *
 * Words. A model-parallel rank (mp_rank_01 in file names) is a tensor-parallel rank of a
 * pipeline stage: it has parameters of its own, a "part" of the model. The optimizer's tensors of
 * a part are cut over the data-parallel ranks (zero_pp_rank_3), and each of these writes one
 * optimizer file. In the file every parameter group (stage 3: sub-group) has one flat tensor for
 * each state; the state "fp32" is the master weight. Experts are cut over fewer ranks. The ranks
 * that hold the same experts are a "share".
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
 * join: finds the elements of the ranks' tensors that make up one tensor of the model.
 *
 *	rule.c            the rule for a name, from universal_checkpoint_info; its affine_map, which gives
 *	                  blocks of elements
 *	neox.c            the rules of GPT-NeoX, whose checkpoints record none
 *	join.c            from a rule and the shapes of all ranks to boxes of the whole; are copies equal?
 *
 * Except for the comparison of copies, this is arithmetic on shapes and knows no files.
 */

struct dcp_arena;
struct dcp_deepspeed;

enum dcp_deepspeed_cut {
	DCP_DEEPSPEED_CUT_ROWS,
	DCP_DEEPSPEED_CUT_COLUMNS,
	DCP_DEEPSPEED_CUT_REPLICATED,
	DCP_DEEPSPEED_CUT_AVERAGED,
	DCP_DEEPSPEED_CUT_SUMMED,
	DCP_DEEPSPEED_CUT_HALVES,
	DCP_DEEPSPEED_CUT_SUBS,
	DCP_DEEPSPEED_CUT_MAP,
};
#define DCP_DEEPSPEED_CUT_COUNT (DCP_DEEPSPEED_CUT_MAP + 1)

/* What a list of patterns may say in place of a cut. REFUSED: tensors of such names cannot be
 * joined, for a known reason; UNKNOWN: it is not known how to join them. */
enum { DCP_DEEPSPEED_LIST_REFUSED = DCP_DEEPSPEED_CUT_COUNT + 1, DCP_DEEPSPEED_LIST_UNKNOWN };

/* A dimension that is recorded as -1: its size follows from the other dimensions. */
#define DCP_DEEPSPEED_OPEN UINT64_MAX

/* A tensor that consists of several sub-tensors along @dim of its recorded shape. */
struct dcp_deepspeed_sub {
	uint64_t *shape;
	uint32_t ndim, dim;
	uint64_t *width; /* of each sub-tensor; NULL: shape[dim] sub-tensors of equal width */
	uint32_t nwidths;
	uint64_t **shard; /* for each sub-tensor, each rank's share of its width; NULL: equal */
	uint32_t nshards;
	bool unequal; /* the shares may differ, but shard is NULL: they are not known */
};

/* Elements [from, from + len) of a rank's tensor are [at, at + len) of the whole. */
struct dcp_deepspeed_block {
	const uint64_t *from, *at, *len;
};

struct dcp_deepspeed_shard {
	const uint64_t *shape;
	const struct dcp_deepspeed_block *block;
	size_t n;
};

/* The blocks that every rank holds. Of blocks that several ranks hold, only one is listed. */
struct dcp_deepspeed_map {
	uint32_t ndim;
	const uint64_t *shape;
	const struct dcp_deepspeed_shard *shard;
	size_t n;
};

struct dcp_deepspeed_rule {
	enum dcp_deepspeed_cut cut;
	const char *pattern; /* that matches the name; NULL: none */
	const struct dcp_deepspeed_sub *sub;
	const struct dcp_deepspeed_map *map;
	uint64_t rows;   /* not 0: rows of the whole, the rest is padding */
	uint64_t height; /* not 0: rows that the whole must have */
	bool by_default; /* no list has the name */
	bool complete;   /* the lists are AutoTP's: a name in no list may be no parameter */
};

/* Read the rules from the universal_checkpoint_info of @from, or, in a model file of GPT-NeoX, from
 * its arguments. The first rules that are found are kept. */
int dcp_deepspeed_take_rules(struct dcp_deepspeed *ds, struct dcp_pv from);
void dcp_deepspeed_rules_finish(struct dcp_deepspeed *ds);
/* Are @args the arguments in a model file of GPT-NeoX? @width: the width of its model. */
bool dcp_deepspeed_is_neox(struct dcp_pv args, uint64_t *width);
/* A rule that is built in, because checkpoints do not record it. */
struct dcp_deepspeed_known {
	const char *pattern;
	uint8_t list; /* enum dcp_deepspeed_cut, DCP_DEEPSPEED_LIST_REFUSED or DCP_DEEPSPEED_LIST_UNKNOWN */
	uint64_t height; /* as in struct dcp_deepspeed_rule */
	const char *why; /* why it is refused or not known; NULL for a cut */
};
enum { DCP_DEEPSPEED_NEOX = 8 }; /* rules of GPT-NeoX */
void dcp_deepspeed_neox(struct dcp_deepspeed *ds, uint64_t width,
			struct dcp_deepspeed_known out[DCP_DEEPSPEED_NEOX]);

/* Find the rule for @name. Returns NULL, or the reason why there is no rule. */
const char *dcp_deepspeed_rule(const struct dcp_deepspeed *ds, const char *name,
			       struct dcp_deepspeed_rule *out);

/* The shape of one rank's tensor. */
struct dcp_deepspeed_local {
	uint32_t ndim;
	const uint64_t *shape;
};

/* Elements [first, first + n) of the tensor of rank @local, which begin at the position @from of
 * that tensor, and the box [lo, lo + len) of the whole that they fill. */
struct dcp_deepspeed_box {
	uint32_t local;
	uint64_t first, n;
	const uint64_t *lo, *len, *from;
};

struct dcp_deepspeed_whole {
	uint32_t ndim;
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_deepspeed_box *box;
	size_t nbox, room;
	bool sum, mean; /* values are the sum or mean of all ranks; the box is the first's */
	struct dcp_arena *arena;
};

/* ---- join.c ---- */

/* Make the whole in @arena from the tensors of @n ranks. Returns NULL, or the reason why it cannot
 * be made. */
const char *dcp_deepspeed_join(const struct dcp_deepspeed_rule *rule,
			       const struct dcp_deepspeed_local *local, size_t n,
			       struct dcp_arena *arena, struct dcp_deepspeed_whole *w);

/* ---- names ---- */

enum dcp_deepspeed_kind {
	DCP_DEEPSPEED_MODEL, /* mp_rank_00_model_states.pt, zero_pp_rank_0_mp_rank_00_model_.. */
	DCP_DEEPSPEED_OPTIM,  /* [bf16_|fp16_]zero_pp_rank_0_mp_rank_00_optim_states.pt */
	DCP_DEEPSPEED_LAYER,  /* layer_03-model_00-model_states.pt: a layer of a pipeline */
	DCP_DEEPSPEED_EXPERT, /* layer_0_expert_3_mp_rank_00_model_states.pt */
	DCP_DEEPSPEED_EXPERT_OPTIM, /* expp_rank_0_mp_rank_00_optim_states.pt */
};

#define DCP_DEEPSPEED_NAME_MAX 96

struct dcp_deepspeed_name {
	const char *name; /* borrowed from the directory */
	uint32_t mp, dp, layer, expert;
	uint8_t kind;
	bool sharded; /* has zero_pp_rank_ */
};

bool dcp_deepspeed_name_parse(const char *name, struct dcp_deepspeed_name *out);

/* The name of the file like @like, but of another rank. */
void dcp_deepspeed_name_of_rank(const struct dcp_deepspeed_name *like, uint32_t dp, uint32_t mp,
				char out[DCP_DEEPSPEED_NAME_MAX]);

/* ---- contents of files ---- */

/* Where a flat tensor of an optimizer file lies. */
struct dcp_deepspeed_place {
	uint64_t off, n; /* first byte; elements */
	uint32_t file;   /* the sink's number */
	uint8_t dtype;   /* enum dcp_dtype */
	bool swap, there;
};

/* A state that all parameters of a group have in common, such as step. */
struct dcp_deepspeed_common {
	uint32_t flat, state;
	struct dcp_deepspeed_place
		place; /* a tensor of one element; or else type and json are set */
	uint32_t ndim;
	const char *type, *json; /* a value that is no tensor */
	const char *first;       /* key of the first tensor emitted for this state */
};

/* One optimizer file. */
struct dcp_deepspeed_rank {
	const struct dcp_deepspeed_name *name;
	const char *why;                   /* not NULL: why the file cannot be used */
	struct dcp_deepspeed_place *place; /* [flat * nstates + state] */
	uint64_t *slice; /* slice number of each flat tensor, if the file says it (stage 3) */
	uint32_t nstates;
};

/* A layer of AutoEP: every weight is one tensor of all experts, [experts, ...]. */
struct dcp_deepspeed_experts {
	const char *prefix;         /* of its weights: "model.layers.0.mlp.experts" */
	uint32_t layer;             /* its number in names of files */
	uint32_t total, shares;     /* number of experts; of shares */
	const uint32_t *const *has; /* the experts of each share, in order */
	const uint32_t *nhas;
};

struct dcp_deepspeed_param {
	const char *name;
	const uint64_t *shape;
	uint32_t ndim;
	uint32_t group;
	uint64_t numel;
	uint64_t off;    /* element in the group; stage 3: in each rank's slice of the group */
	const char *why; /* not NULL: why its elements cannot be found */
	/* Set for AutoEP: this is the first share's parameter; the next share's is the element
	 * @next places further on in the array. */
	const struct dcp_deepspeed_experts *experts;
	uint32_t next;
	bool hidden; /* belongs to a share other than the first */
	bool whole;  /* tensor-parallel ranks do not cut it */
};

/* A parameter group as optimizer files have it. */
struct dcp_deepspeed_list {
	uint32_t flat;   /* its first flat tensor */
	uint32_t waves;  /* consecutive flat tensors of the group, each cut over all ranks */
	uint32_t count;  /* ranks that each wave is cut over */
	uint32_t shares; /* expert-parallel ranks, from the group's name; 0: no experts */
	const uint64_t *gap; /* elements after each parameter, or NULL */
	uint32_t ngap;
	bool muon; /* its param_group says that it uses Muon */
};

/*
 * A parameter group and its slices. Slice k belongs to rank base + k % count * step. If lanes is 1,
 * ranks are the data-parallel ranks of the part. If lanes is tp, they are all ranks of the stage,
 * numbered data-parallel rank * tp + tensor-parallel rank, so its parts take turns.
 */
struct dcp_deepspeed_group {
	uint32_t flat, waves, count; /* as above: count * waves slices */
	uint32_t base, step;
	uint32_t lanes;
	uint64_t numel;  /* elements of its parameters and of the gaps between them */
	uint64_t slice;  /* elements of one slice, with padding */
	const char *why; /* not NULL: why nothing of the group can be read */
};

/* A frozen parameter that stage 3 cut: each model file has a fragment. */
struct dcp_deepspeed_frozen {
	const char *name;
	const uint64_t *shape;
	uint32_t ndim;
	uint64_t numel;
	struct dcp_deepspeed_place *fragment; /* of each model file of the part */
};

/* A part of the model: what one model-parallel rank holds. */
struct dcp_deepspeed_part {
	uint32_t mp;
	const struct dcp_deepspeed_name *model; /* its files, by rank; nmodels of them */
	size_t nmodels;
	const struct dcp_deepspeed_name
		*named;                  /* the model file that named the parameters, or NULL */
	struct dcp_deepspeed_rank *rank; /* its optimizer files, by rank */
	size_t nranks;
	uint32_t world; /* expected data-parallel ranks; 0: no optimizer file could be read */
	unsigned stage; /* 1 (also for 2) or 3; 0: nothing is cut */
	bool whole;     /* stage 0: the model file has the optimizer, too */
	uint32_t nflat; /* flat tensors of each state */

	struct dcp_deepspeed_param *param;
	size_t nparams;
	uint32_t *group_n; /* parameters in each group that the model file lists */
	uint32_t nlisted;
	struct dcp_deepspeed_group *group;
	size_t ngroups;
	struct dcp_deepspeed_frozen *frozen;
	size_t nfrozen;
	struct dcp_buf common; /* struct dcp_deepspeed_common */

	/* from the first optimizer file */
	const struct dcp_deepspeed_list *list;
	uint32_t nlists;
	const struct dcp_deepspeed_name *first;
};

/* Two names of one parameter. */
struct dcp_deepspeed_alias {
	const char *name, *real;
};

/* A checkpoint while it is loaded. */
struct dcp_deepspeed {
	const struct dcp_load *in;
	struct dcp_err *err;
	struct dcp_arena arena;
	struct dcp_deepspeed_name *file; /* by kind, mp, layer, expert, dp */
	size_t nfiles;
	struct dcp_deepspeed_part *part;
	size_t nparts;
	uint32_t tp;              /* tensor-parallel ranks of each pipeline stage */
	uint32_t pp;              /* pipeline stages; 0: not recorded */
	struct dcp_intern states; /* 0 is "fp32" */
	struct dcp_intern
		trained; /* names for which optimizer states are emitted, aliases too */
	struct dcp_intern frozen;  /* names for which fragments are emitted */
	struct dcp_intern buffers; /* names that the model says are not parameters */
	struct dcp_intern emitted; /* names whose fp32 universal.c emits */
	struct dcp_buf
		alias; /* struct dcp_deepspeed_alias; sorted by real name after reading */
	struct dcp_intern reals; /* real names that have aliases */
	struct dcp_buf real_at;  /* number of the first alias of each real name */
	bool zero;               /* there are optimizer states by name */
	const char *unjoined;    /* why a name was emitted for each rank; NULL: none was */
	size_t nunjoined;
	uint64_t compared; /* bytes that were read to compare ranks */
	struct dcp_deepspeed_rules *rules;
	struct dcp_intern seen;   /* entries emitted for the first file of a kind */
	struct dcp_buf seen_hash; /* their hashes, by number */
	bool before_expert;       /* ranks of one expert are neighbours */
	struct dcp_deepspeed_experts *experts; /* layers of AutoEP */
	size_t nexperts;
	struct dcp_intern expert_layers; /* prefixes of these layers */
	uint32_t expert_lanes; /* 1: tensor-parallel ranks cut experts; more: they do not */
	struct dcp_buf names;  /* const char *: names of files, by the sink's number */
	bool universal;
	char version[32];      /* of DeepSpeed */
	bool opened;           /* at least one file could be read */
	struct dcp_err damage; /* of the first file that could not be read */
};

/* ---- load.c ---- */

/* Text in the arena; NULL when memory is out. */
const char *dcp_deepspeed_text(struct dcp_deepspeed *ds, const char *fmt, ...) DCP_PRINTF(2, 3);

/* An opened and parsed file of the checkpoint. */
struct dcp_deepspeed_input {
	struct dcp_input in;
	struct dcp_torch *t;
	uint32_t file; /* the sink's number */
};
/* Open the file @name. Returns 0, 1 when the file cannot be read (@why names it and the reason),
 * or a negative errno that ends the load. */
int dcp_deepspeed_open(struct dcp_deepspeed *ds, const char *name,
		       struct dcp_deepspeed_input *out, struct dcp_err *why);
void dcp_deepspeed_close(struct dcp_deepspeed_input *in);
/* Find where tensor @v lies. A tensor that is not one run counts as absent. 0 or -ENOMEM. */
int dcp_deepspeed_take_place(const struct dcp_deepspeed_input *in, struct dcp_pv v,
			     struct dcp_deepspeed_place *out);
void dcp_deepspeed_place_tensor(const struct dcp_deepspeed_input *in,
				const struct dcp_torch_tensor *tt,
				struct dcp_deepspeed_place *out);
/* For a file that cannot be used, emit an object of its name with the error @why. If @why is NULL,
 * memory ran out. */
int dcp_deepspeed_emit_broken(struct dcp_deepspeed *ds, const char *file, const char *why);

/* The files of this family in a directory, sorted. The caller frees the list. */
int dcp_deepspeed_list_files(const struct dcp_dir *dir, struct dcp_deepspeed_name **out,
			     size_t *n);
/* The files of @kind in @ds->file. */
const struct dcp_deepspeed_name *dcp_deepspeed_files(const struct dcp_deepspeed *ds,
						     enum dcp_deepspeed_kind kind, size_t *n);
/* The part of a model-parallel rank, or NULL. */
const struct dcp_deepspeed_part *dcp_deepspeed_part_of(const struct dcp_deepspeed *ds,
						       uint64_t mp);
/* The optimizer file of a data-parallel rank, or NULL. */
const struct dcp_deepspeed_rank *dcp_deepspeed_rank_of(const struct dcp_deepspeed_part *part,
						       uint64_t dp);
/* Does a "latest" in @above name @version? True also when nothing is known of @above (NULL). */
bool dcp_deepspeed_committed(const struct dcp_dir *above, const char *version);
/* Does a rank that the metadata counts lack its file? @missing: the first such file. */
bool dcp_deepspeed_lacks(const struct dcp_deepspeed *ds, char missing[DCP_DEEPSPEED_NAME_MAX]);
/* Parameters of ranks whose model file is missing have no names, so emit each missing file as a
 * broken object. */
int dcp_deepspeed_emit_lost(struct dcp_deepspeed *ds);

/* ---- layout.c ---- */

/* Read the names in the directory. The caller calls dcp_deepspeed_end() also after an error. */
int dcp_deepspeed_begin(struct dcp_deepspeed *ds, const struct dcp_load *in,
			struct dcp_err *err);
void dcp_deepspeed_end(struct dcp_deepspeed *ds);
/* Read all model and optimizer files. */
int dcp_deepspeed_read_parts(struct dcp_deepspeed *ds);

/* ---- model_file.c, optim_file.c ---- */

/* Read all model files of @part, or all its optimizer files, and emit their other entries. */
int dcp_deepspeed_read_models(struct dcp_deepspeed *ds, struct dcp_deepspeed_part *part);
int dcp_deepspeed_read_optims(struct dcp_deepspeed *ds, struct dcp_deepspeed_part *part);

/* One optimizer file while it is read. */
struct dcp_deepspeed_reading {
	struct dcp_deepspeed *ds;
	struct dcp_deepspeed_part *part;
	struct dcp_deepspeed_rank *rank;
	const struct dcp_deepspeed_input *in;
	struct dcp_pv dict;        /* optimizer_state_dict */
	struct dcp_pv base;        /* state dict of the wrapped optimizer */
	const struct dcp_pv *flat; /* master weights */
	size_t nflat;
	const uint32_t *waves; /* of each group; NULL: one wave each */
	size_t nlists;
	unsigned stage;
};

/* ---- load.c: names of one parameter ---- */

int dcp_deepspeed_read_aliases(struct dcp_deepspeed *ds, struct dcp_deepspeed_part *part,
			       const struct dcp_deepspeed_input *in);
/* Collect the names for which optimizer states are emitted, and the names of frozen parameters. */
int dcp_deepspeed_name_all(struct dcp_deepspeed *ds);

/* ---- layout.c, slice.c, expert.c ---- */

/* A part while its parameters are laid out in groups. */
struct dcp_deepspeed_laying {
	struct dcp_deepspeed *ds;
	struct dcp_deepspeed_part *part;
	struct dcp_buf params,
		groups; /* struct dcp_deepspeed_param, struct dcp_deepspeed_group */
	size_t ngroups;
};
int dcp_deepspeed_add_group(struct dcp_deepspeed_laying *l, const struct dcp_deepspeed_group *g,
			    struct dcp_deepspeed_param *p, size_t n);
/* Place the consecutive parameters [p, p + n) in group @g. */
void dcp_deepspeed_place_params(struct dcp_deepspeed_laying *l,
				const struct dcp_deepspeed_list *list,
				struct dcp_deepspeed_group *g, struct dcp_deepspeed_param *p,
				size_t n);

/* Where a slice of a group lies. */
struct dcp_deepspeed_slice {
	const struct dcp_deepspeed_part *part; /* NULL: the part has no file */
	uint32_t mp, dp, flat;
};
struct dcp_deepspeed_slice dcp_deepspeed_slice(const struct dcp_deepspeed *ds,
					       const struct dcp_deepspeed_part *part,
					       const struct dcp_deepspeed_group *g, uint64_t k);

/* Read the layers of AutoEP from the model file @root. The first list that is found is kept. */
int dcp_deepspeed_take_experts(struct dcp_deepspeed *ds, struct dcp_pv root);
/* The layer of AutoEP to which the weight @name belongs, or NULL. */
const struct dcp_deepspeed_experts *dcp_deepspeed_experts_of(const struct dcp_deepspeed *ds,
							     const char *name);
bool dcp_deepspeed_all_experts(const struct dcp_deepspeed *ds,
			       const struct dcp_deepspeed_param *p, size_t n);
/* Add a group of experts as one group for each share. */
int dcp_deepspeed_add_experts(struct dcp_deepspeed_laying *l,
			      const struct dcp_deepspeed_list *list,
			      struct dcp_deepspeed_group *g,
			      const struct dcp_deepspeed_param *p, size_t n);

/* Consecutive elements [first, first + n) of a parameter, at byte @off of one file. */
struct dcp_deepspeed_run {
	uint64_t first, n;
	uint64_t off;
	uint32_t file;
	bool swap;
};

/*
 * Add all runs of @state of @p to @out (struct dcp_deepspeed_run), in order, and set their dtype.
 * Returns 1; 0 if no file has this state of @p; -EBADMSG if the state cannot be read, with the
 * reason in @why; or -ENOMEM.
 */
int dcp_deepspeed_runs(struct dcp_deepspeed *ds, const struct dcp_deepspeed_part *part,
		       const struct dcp_deepspeed_param *p, uint32_t state, struct dcp_buf *out,
		       uint8_t *dtype, struct dcp_err *why);
/* The same for a frozen parameter of stage 3. */
int dcp_deepspeed_frozen_runs(struct dcp_deepspeed *ds, const struct dcp_deepspeed_part *part,
			      const struct dcp_deepspeed_frozen *f, struct dcp_buf *out,
			      uint8_t *dtype, struct dcp_err *why);

/*
 * emit: passes the contents of the files to the sink.
 *
 *	load.c              tensors and objects, under all names that a parameter has
 *	state.c             fp32, exp_avg, ... of every parameter, of one rank or joined from several
 *	module.c            the 16-bit weights, with the weights of AutoEP's experts
 *	module_joined.c     the 16-bit weights of several tensor-parallel ranks, and the sink for them
 *	model_file.c        all other values in the files
 */

/* ---- load.c ---- */

/* Emit @t with the key <rank>.<role>.<name>, or <role>.<name> if @rank is NULL, and the path of
 * these components. If @t has no dtype_name or itemsize, they are taken from its dtype. */
int dcp_deepspeed_emit_one(struct dcp_deepspeed *ds, const char *rank, const char *role,
			   const char *name, const struct dcp_tensor *t);
/* The same, and also emit @t under every name that is tied to @name. */
int dcp_deepspeed_emit_tensor(struct dcp_deepspeed *ds, const char *rank, const char *role,
			      const char *name, const struct dcp_tensor *t);
int dcp_deepspeed_emit_object(struct dcp_deepspeed *ds, const char *rank, const char *role,
			      const char *name, const char *type, const char *json);
/* Emit the framework, the numbers of ranks, and what was not joined. */
int dcp_deepspeed_emit_facts(struct dcp_deepspeed *ds);
/* Note that @name is emitted once for each tensor-parallel rank, and why. */
int dcp_deepspeed_note_unjoined(struct dcp_deepspeed *ds, const char *name, const char *why,
				const struct dcp_deepspeed_rule *rule);

/* ---- state.c ---- */

/* Emit master weights and moments. */
int dcp_deepspeed_emit_states(struct dcp_deepspeed *ds);

/* The states of one name while they are emitted. */
struct dcp_deepspeed_emitter {
	struct dcp_deepspeed *ds;
	uint32_t state;
	struct dcp_arena scratch; /* for one name */
	struct dcp_buf runs, pieces;
	size_t hint; /* the common entry that was found last; the next one is near */
};
/* The ranks that hold a parameter, in the order in which they are joined. */
struct dcp_deepspeed_shared {
	const struct dcp_deepspeed_part **part;
	const struct dcp_deepspeed_param **param;
	struct dcp_deepspeed_local *local;
	size_t n;
};
/* Add a piece for each run of a rank, cut to @box. */
int dcp_deepspeed_add_pieces(struct dcp_deepspeed_emitter *t,
			     const struct dcp_deepspeed_box *box, uint8_t dtype);

/* ---- join.c: are copies equal? ---- */

/* May @bytes of each of @ranks ranks be read, to compare the ranks? */
bool dcp_deepspeed_may_compare(struct dcp_deepspeed *ds, uint64_t bytes, size_t ranks);
/* Do all ranks hold the same values of the state? 1, 0 or -ENOMEM. */
int dcp_deepspeed_all_same(struct dcp_deepspeed_emitter *t,
			   const struct dcp_deepspeed_shared *s);

/* ---- module.c, module_joined.c ---- */

/* Emit the 16-bit weights, and also as fp32 the weights that the optimizer does not have. */
int dcp_deepspeed_emit_modules(struct dcp_deepspeed *ds);
/* Emit the weights of one model, layer or expert from the @n files of its tensor-parallel ranks. */
int dcp_deepspeed_emit_unit(struct dcp_deepspeed *ds, const struct dcp_deepspeed_name *file,
			    size_t n);

/* The state dict in a file: its root, or in a model file the entry "module"; NULL: none. */
const struct dcp_pv *dcp_deepspeed_state_dict(const struct dcp_deepspeed_name *name,
					      const struct dcp_deepspeed_input *in,
					      struct dcp_pv *room);

/* A sink for module.<name>, which corrects paths, leaves out placeholders and also emits fp32. */
struct dcp_deepspeed_front {
	struct dcp_deepspeed *ds;
	const struct dcp_deepspeed_name *file;
};
struct dcp_sink dcp_deepspeed_front_sink(struct dcp_deepspeed_front *f);

/* ---- model_file.c ---- */

/* Emit the values of a model or optimizer file that are not emitted elsewhere. */
int dcp_deepspeed_emit_rest(struct dcp_deepspeed *ds, const struct dcp_deepspeed_name *name,
			    const struct dcp_deepspeed_input *in);
/* Emit one value of a file, unless the first file of the same kind has an equal value. */
int dcp_deepspeed_emit_entry(struct dcp_deepspeed *ds, const struct dcp_deepspeed_name *name,
			     const struct dcp_deepspeed_input *in, struct dcp_pv v,
			     const char *const *path, size_t n);
/* Emit one value as an object, and the tensors in it. path[0] is the file: it is part of the key
 * but not of the path. */
int dcp_deepspeed_emit_value(struct dcp_deepspeed *ds, const struct dcp_deepspeed_input *in,
			     struct dcp_pv v, const char *const *path, size_t n);
/* Emit a file of unknown content, leaf by leaf; with @tensors_only only the leaves that
 * dcp_deepspeed_emit_rest() left out. */
int dcp_deepspeed_emit_raw(struct dcp_deepspeed *ds, const char *file, bool tensors_only);
