/* SPDX-License-Identifier: Apache-2.0 */
/* megatron_int: the declarations that the sources which read mp_rank directories share. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/format/format.h"
#include "core/format/gather/join.h"

/*
 * rules: the dimension along which Megatron's tensor-parallel ranks cut a parameter.
 *
 * mp_rank files do not record this dimension, but the names of the layers imply it. Rules are
 * globs over whole keys, and the first rule that matches counts. The rules of a file in the
 * version's directory, one on each line, come before the built-in rules:
 *
 *	# keys as dcpfs shows them     how they are cut
 *	*.mixer.out_proj.weight        shard(1)
 *	*.mlp.gate_up.weight           shard(0, groups=2)   two halves, each cut by all ranks
 *	*.mixer.in_proj.weight         shard(0, parts=4:4:1:1:2)   parts of these proportions,
 *	                               each cut by all ranks
 *	*.router.*                     replicate
 */

struct dcp_err;

#define DCP_MEGATRON_RULES "dcpfs.rules" /* the file's name */
#define DCP_MEGATRON_MAX_SIZES 8         /* proportions in a rule */

struct dcp_megatron_rule {
	bool replicate;
	bool gated; /* one half or two: the sizes of the second layer decide */
	uint32_t dim;
	uint32_t groups; /* number of parts of equal size, each cut by all ranks */
	uint32_t old;    /* groups before checkpoint_version 1; 0: as in later versions */
	uint32_t nsizes; /* not 0: parts of the proportions @size, in place of groups */
	uint32_t size[DCP_MEGATRON_MAX_SIZES];
	unsigned line; /* of the rule in the file; 0: built in */
};

struct dcp_megatron_rules {
	struct dcp_buf text; /* globs, each followed by a NUL */
	struct dcp_buf list;
};

/* Add the rules of a file of @n bytes. -EBADMSG (the message names the line), -ENOMEM. */
int dcp_megatron_rules_parse(struct dcp_megatron_rules *r, const char *text, size_t n,
			     struct dcp_err *err);
void dcp_megatron_rules_finish(struct dcp_megatron_rules *r);

/* Find the rule for @key; false: no rule matches, so it is not known how @key is cut. */
bool dcp_megatron_rules_find(const struct dcp_megatron_rules *r, const char *key,
			     struct dcp_megatron_rule *out);

struct dcp_dir;
struct dcp_pv;

#define DCP_MEGATRON_DIR 64          /* room for the name of a directory */
#define DCP_MEGATRON_ANY UINT32_MAX  /* any rank will do */
#define DCP_MEGATRON_MAX_PARTS 65536 /* of one tensor */

/* One mp_rank directory. */
struct dcp_megatron_rank {
	const char *dir;    /* its name */
	const char *file;   /* its state; NULL: it has only the files of a data-parallel rank */
	uint64_t number[3]; /* mp_rank_<tp>_<pp or ep>_<ep> */
	unsigned nnumbers;
	uint32_t tp, pp, ep;
	const char *error; /* why the state cannot be read, or NULL */
};

/* Numbers from the arguments of the run; 0: not given. */
struct dcp_margs {
	uint64_t tp, pp, ep, etp; /* degrees; etp: tensor-parallel ranks of an expert */
	uint64_t layers, hidden, ffn, heads, vocab, experts;
	uint64_t moe_ffn; /* of one expert */
	uint64_t kv_channels, value_channels;
	uint64_t qkv_heads; /* rows of fused query, key and value, in heads */
	/* of latent attention; kv_rank includes the rows for positions */
	uint64_t q_rank, kv_rank;
	bool varied; /* layers differ in size */
};

struct dcp_megatron_legacy {
	const struct dcp_load *in;
	struct dcp_megatron_rank *rank; /* by tp, then pp, then ep */
	size_t n;
	const char *file;         /* the name of state files, for messages */
	uint32_t tp, pp, ep, etp; /* degrees */
	struct dcp_margs args;
	double version; /* checkpoint_version */
	struct dcp_megatron_rules rules;
	/* The parts of the model's tensors, under the names "<chunk>/<stage>/<expert rank>/<key>",
	 * where <key> is the key in the file. */
	struct dcp_copies model;
	size_t ninferred; /* keys that were emitted after joining their parts by a rule */
	bool old_order;   /* a key was emitted whose rows are in the order before version 2 */
};

/* ---- grid.c ---- */

/* Read the arguments and the checkpoint_version of a state file. */
void dcp_megatron_legacy_read_args(struct dcp_megatron_legacy *m, struct dcp_pv root);

/* Is @name the name of a rank's directory? If so, @r gets its numbers. */
bool dcp_megatron_rank_parse(const char *name, struct dcp_megatron_rank *r);

/* The name of the state file in the opened directory of a rank, or NULL. */
const char *dcp_megatron_rank_file(const struct dcp_dir *dir);

/* List the directories of ranks. -ENOMEM. */
int dcp_megatron_legacy_list(struct dcp_megatron_legacy *m);
/* Give each directory its ranks and find the degrees, after the arguments were read. -E2BIG. */
int dcp_megatron_legacy_place(struct dcp_megatron_legacy *m, struct dcp_err *err);

/* A directory of these ranks, preferably one without an error, or NULL. Each number may be
 * DCP_MEGATRON_ANY. @etp: the expert tensor-parallel rank. */
struct dcp_megatron_rank *dcp_megatron_legacy_rank(const struct dcp_megatron_legacy *m,
						   uint32_t tp, uint32_t pp, uint32_t ep,
						   uint32_t etp);

/* The name of the directory of these ranks, whether the directory exists or not. */
void dcp_megatron_legacy_dir(const struct dcp_megatron_legacy *m, uint32_t tp, uint32_t pp,
			     uint32_t ep, char name[DCP_MEGATRON_DIR]);

/* The directories that Megatron writes for tensor-parallel rank @tp: those of the expert-parallel
 * ranks *@first, *@first + *@step, ... below m->ep. */
void dcp_megatron_legacy_expected(const struct dcp_megatron_legacy *m, uint32_t tp,
				  uint32_t *first, uint32_t *step);

/* Did ranks overwrite the experts of other ranks, because they had the same directory? */
bool dcp_megatron_legacy_lost_experts(const struct dcp_megatron_legacy *m);

/* The expert-parallel ranks that hold a parameter. */
enum dcp_mholder {
	DCP_MHOLD_ALL,    /* every rank holds the same values */
	DCP_MHOLD_EXPERT, /* one rank: the parameter belongs to an expert of this rank */
	DCP_MHOLD_STACK,  /* every rank holds consecutive experts of its own, stacked */
};

/* The parts of a name in m->model. */
struct dcp_megatron_place {
	enum dcp_mholder holder;
	uint32_t chunk, stage, ep;
	const char *key; /* in the file */
};

/* Write the name that @p has in m->model to @out. */
int dcp_megatron_place_print(const struct dcp_megatron_place *p, struct dcp_buf *out);

/* ---- keys.c ---- */

/* Keep the tensor @t, the key @key of model chunk @chunk in directory number @who of m->rank. */
int dcp_megatron_legacy_keep(struct dcp_megatron_legacy *m, const struct dcp_tensor *t,
			     const char *key, uint32_t chunk, uint32_t who);

/* Emit the model, one pipeline stage after the other, with tensor-parallel parts joined. */
int dcp_megatron_legacy_emit_model(struct dcp_megatron_legacy *m, struct dcp_err *err);

/* ---- join.c ---- */

/* One tensor while its parts are joined. */
struct dcp_megatron_join {
	struct dcp_megatron_legacy *m;
	struct dcp_megatron_place place;
	const char *key;  /* in the whole model */
	uint32_t nstacks; /* expert-parallel ranks, each with experts of its own */
	uint32_t nparts;  /* tensor-parallel ranks, each with a part of every stack */
	const struct dcp_copy **copy; /* nstacks times nparts; NULL: this part is missing */
	struct dcp_megatron_rule rule;
	struct dcp_tensor t;
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_err why; /* its code is not 0: the key is broken */
};

/* The most parts that one tensor may have. */
size_t dcp_megatron_legacy_max_copies(const struct dcp_megatron_legacy *m);

/* Join the parts with number @number and name @place in m->model, and emit them under the key
 * @key. @copy: room for dcp_megatron_legacy_max_copies() parts. */
int dcp_megatron_legacy_join(struct dcp_megatron_legacy *m, uint32_t number,
			     const struct dcp_megatron_place *place, const char *key,
			     const struct dcp_copy **copy);

/*
 * Decide whether the first projection of latent attention is cut. Transformer Engine's layers hold
 * it whole on every rank. Megatron's own layers cut its outputs; then a part does not have the size
 * that follows from the arguments of the run.
 */
void dcp_megatron_join_see_latent(struct dcp_megatron_join *j);

/* The dimensions and strides of a part as the layer sees it. Experts for a grouped GEMM are one
 * matrix in the file, but [experts, rows, columns] to the layer. */
struct dcp_megatron_view {
	uint32_t ndim;
	uint64_t dim[DCP_MAX_NDIM], stride[DCP_MAX_NDIM];
};

/* Is @key a matrix of several consecutive experts? 1: of their first layers, 2: of their second
 * layers, 0: no. */
int dcp_megatron_view_is_stacked(const char *key);
