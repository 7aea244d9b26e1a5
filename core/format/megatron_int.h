/* SPDX-License-Identifier: Apache-2.0 */
/*
 * megatron_int: what the files that read mp_rank directories share.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/format/copies.h"
#include "core/format/format.h"
#include "core/format/megatron_rules.h"

#define DCP_MEGATRON_FILE "model_optim_rng.pt"
#define DCP_MEGATRON_DIR 64 /* room for the name of a directory */

/* One mp_rank directory, or one that should be there. */
struct dcp_mrank {
	const char *dir;    /* its name */
	uint64_t number[3]; /* mp_rank_<tp>_<pp or ep>_<ep> */
	unsigned nnumbers;
	uint32_t tp, pp, ep;
	const char *error; /* why it cannot be read; NULL: it can */
};

/* What the arguments of the run say; 0: nothing. */
struct dcp_margs {
	uint64_t tp, pp, ep, layers, hidden, ffn, heads, kv_channels, vocab, experts;
};

struct dcp_mlegacy {
	const struct dcp_load *in;
	struct dcp_mrank *rank; /* by tp, then pp, then ep */
	size_t n;
	uint32_t tp, pp, ep; /* degrees */
	struct dcp_margs args;
	struct dcp_mrules rules;
	/* The model's tensors as the files have them: "<chunk>/<stage>/<expert rank>/<key>". */
	struct dcp_copies model;
	size_t ninferred; /* keys told that were put together by a rule */
};

/* The directory of that place, or NULL. */
struct dcp_mrank *dcp_mlegacy_rank(const struct dcp_mlegacy *m, uint32_t tp, uint32_t pp,
				   uint32_t ep);

/* How the directory of that place is called, there or not. */
void dcp_mlegacy_dir(const struct dcp_mlegacy *m, uint32_t tp, uint32_t pp, uint32_t ep,
		     char name[DCP_MEGATRON_DIR]);

/* Read the files of all ranks; those in front of number @first cannot be. */
int dcp_mlegacy_tell_ranks(struct dcp_mlegacy *m, size_t first, struct dcp_err *err);

/* Keep the tensor @t, told by rank number @who as local key @key of model chunk @chunk. */
int dcp_mlegacy_keep(struct dcp_mlegacy *m, const struct dcp_tensor *t, const char *key,
		     uint32_t chunk, uint32_t who);

/* A key of the copies, taken apart. */
struct dcp_mplace {
	uint32_t chunk, stage, ep;
	const char *key; /* as the file has it */
};

/* A parameter of an expert: expert-parallel ranks hold different ones. */
bool dcp_mplace_is_expert(const char *key);

/* Tell number @number of the copies, which lies at @place, under the key @key. @copy: room
 * for a pointer per tensor-parallel rank. */
int dcp_mlegacy_join(struct dcp_mlegacy *m, uint32_t number, const struct dcp_mplace *place,
		     const char *key, const struct dcp_copy **copy);

/* Tell the model: stages behind each other, tensor-parallel parts put together. */
int dcp_mlegacy_tell_model(struct dcp_mlegacy *m, struct dcp_err *err);
