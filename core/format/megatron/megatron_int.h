/* SPDX-License-Identifier: Apache-2.0 */
/*
 * megatron_int: what the files that read mp_rank directories share.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/format/format.h"
#include "core/format/gather/join.h"

/*
 * rules: along which dimension do Megatron's tensor-parallel ranks hold a parameter?
 *
 * mp_rank files do not say; the names of the layers do. Rules are globs over whole keys, and
 * the first that matches counts. A file of rules in the version's directory stands before
 * those built in, one a line:
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

struct dcp_mrule {
	bool replicate;
	bool gated; /* one half or two: the sizes of the second layer say */
	uint32_t dim;
	uint32_t groups; /* as many parts of the same size */
	uint32_t old;    /* the same, but only before checkpoint_version 1; 0: as later */
	uint32_t nsizes; /* not 0: parts of these proportions instead */
	uint32_t size[DCP_MEGATRON_MAX_SIZES];
	unsigned line; /* in the file; 0: built in */
};

struct dcp_mrules {
	struct dcp_buf text; /* globs, each followed by a NUL */
	struct dcp_buf list;
};

/* Take the @n bytes of a file. -EBADMSG naming the line, -ENOMEM. */
int dcp_mrules_parse(struct dcp_mrules *r, const char *text, size_t n, struct dcp_err *err);
void dcp_mrules_finish(struct dcp_mrules *r);

/* The rule for @key; false: no rule matches, so how it is cut is not known. */
bool dcp_mrules_find(const struct dcp_mrules *r, const char *key, struct dcp_mrule *out);

struct dcp_dir;
struct dcp_pv;

#define DCP_MEGATRON_DIR 64          /* room for the name of a directory */
#define DCP_MEGATRON_ANY UINT32_MAX  /* any rank will do */
#define DCP_MEGATRON_MAX_PARTS 65536 /* of one tensor */

/* One mp_rank directory. */
struct dcp_mrank {
	const char *dir;    /* its name */
	const char *file;   /* its state; NULL: only what data-parallel ranks keep lies there */
	uint64_t number[3]; /* mp_rank_<tp>_<pp or ep>_<ep> */
	unsigned nnumbers;
	uint32_t tp, pp, ep;
	const char *error; /* why it cannot be read; NULL: it can */
};

/* What the arguments of the run say; 0: nothing. */
struct dcp_margs {
	uint64_t tp, pp, ep, etp; /* degrees; etp: tensor parallel ranks of an expert */
	uint64_t layers, hidden, ffn, heads, vocab, experts;
	uint64_t moe_ffn; /* of one expert */
	uint64_t kv_channels, value_channels;
	uint64_t qkv_heads;       /* rows of fused query, key and value, in heads */
	uint64_t q_rank, kv_rank; /* of latent attention; kv_rank with the rows for positions */
	bool varied;              /* layers differ in size */
};

struct dcp_mlegacy {
	const struct dcp_load *in;
	struct dcp_mrank *rank; /* by tp, then pp, then ep */
	size_t n;
	const char *file;         /* how states are called, for messages */
	uint32_t tp, pp, ep, etp; /* degrees */
	struct dcp_margs args;
	double version; /* checkpoint_version */
	struct dcp_mrules rules;
	/* The model's tensors as the files have them: "<chunk>/<stage>/<expert rank>/<key>". */
	struct dcp_copies model;
	size_t ninferred; /* keys emitted that were put together by a rule */
	bool old_order;   /* one was emitted whose rows stand as they did before version 2 */
};

/* ---- grid.c ---- */

void dcp_mlegacy_read_args(struct dcp_mlegacy *m, struct dcp_pv root);

/* ---- grid.c ---- */

/* Is that the name of a rank's directory? @r gets its numbers. */
bool dcp_mrank_parse(const char *name, struct dcp_mrank *r);

/* The state's name in the opened directory of a rank, or NULL. */
const char *dcp_mrank_file(const struct dcp_dir *dir);

/* List the directories; place them once the arguments are known. */
int dcp_mlegacy_list(struct dcp_mlegacy *m);
int dcp_mlegacy_place(struct dcp_mlegacy *m, struct dcp_err *err);

/* The directory of that place, one that can be read before others, or NULL. Each number may be
 * DCP_MEGATRON_ANY. @etp: the expert's part that is asked for. */
struct dcp_mrank *dcp_mlegacy_rank(const struct dcp_mlegacy *m, uint32_t tp, uint32_t pp,
				   uint32_t ep, uint32_t etp);

/* How the directory of that place is called, there or not. */
void dcp_mlegacy_dir(const struct dcp_mlegacy *m, uint32_t tp, uint32_t pp, uint32_t ep,
		     char name[DCP_MEGATRON_DIR]);

/* Which directories does Megatron write for tensor-parallel rank @tp? Those of expert ranks
 * *@first, *@first + *@step ... below m->ep. */
void dcp_mlegacy_expected(const struct dcp_mlegacy *m, uint32_t tp, uint32_t *first,
			  uint32_t *step);

/* Ranks wrote their experts over one another's. */
bool dcp_mlegacy_lost_experts(const struct dcp_mlegacy *m);

/* Who holds a parameter? */
enum dcp_mholder {
	DCP_MHOLD_ALL,    /* every expert-parallel rank the same */
	DCP_MHOLD_EXPERT, /* the expert-parallel rank whose expert it belongs to */
	DCP_MHOLD_STACK,  /* each expert-parallel rank its consecutive experts */
};

/* A key of the copies, taken apart. */
struct dcp_mplace {
	enum dcp_mholder holder;
	uint32_t chunk, stage, ep;
	const char *key; /* as the file has it */
};

/* As it stands among the copies. */
int dcp_mplace_print(const struct dcp_mplace *p, struct dcp_buf *out);

/* ---- legacy.c ---- */

/* ---- keys.c ---- */

/* Keep the tensor @t, emitted by rank number @who as local key @key of model chunk @chunk. */
int dcp_mlegacy_keep(struct dcp_mlegacy *m, const struct dcp_tensor *t, const char *key,
		     uint32_t chunk, uint32_t who);

/* Emit the model: one stage after the other, tensor-parallel parts put together. */
int dcp_mlegacy_emit_model(struct dcp_mlegacy *m, struct dcp_err *err);

/* ---- join.c ---- */

/* One tensor that is being put together. */
struct dcp_mjoin {
	struct dcp_mlegacy *m;
	struct dcp_mplace place;
	const char *key;              /* in the whole model */
	uint32_t nstacks;             /* expert-parallel ranks, each with experts of its own */
	uint32_t nparts;              /* tensor-parallel ranks that hold a part of each */
	const struct dcp_copy **copy; /* nstacks times nparts; NULL: not there */
	struct dcp_mrule rule;
	struct dcp_tensor t;
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_err why; /* has a code: the key is broken */
};

/* Room for the copies of any one tensor. */
size_t dcp_mlegacy_max_copies(const struct dcp_mlegacy *m);

/* Emit number @number of the copies, which lies at @place, under the key @key. */
int dcp_mlegacy_join(struct dcp_mlegacy *m, uint32_t number, const struct dcp_mplace *place,
		     const char *key, const struct dcp_copy **copy);

/*
 * The first projection of latent attention, which Transformer Engine's layers hold whole on every
 * rank: Megatron's own cut its outputs, which the arguments say.
 */
void dcp_mjoin_see_latent(struct dcp_mjoin *j);

/*
 * What a copy holds, as the layer sees it. Experts laid out for a grouped GEMM are one matrix
 * in the file and [experts, rows, columns] to the layer.
 */
struct dcp_mview {
	uint32_t ndim;
	uint64_t dim[DCP_MAX_NDIM], stride[DCP_MAX_NDIM];
};

/* Is it a matrix of several consecutive experts? 1: of first layers, 2: of second. */
int dcp_mview_is_stacked(const char *key);
