/* SPDX-License-Identifier: Apache-2.0 */
/*
 * composer_int: what the files that read Composer's checkpoints share; nobody else includes it.
 *
 *	composer.c        names, and which kind of save it is
 *	composer_ranks.c  torch.save files: one, or one a rank
 *	composer_shard.c  tensors of which each rank's file holds a part
 *	composer_parts.c  the directory with composer_metadata.json
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/intern.h"
#include "core/parse/pickle.h"

struct dcp_err;
struct dcp_leaf;
struct dcp_load;
struct dcp_sink;
struct dcp_torch;

/* ---- composer_ranks.c ---- */

/* A file of the save; @name is borrowed. */
struct dcp_composer_file {
	const char *name;
	uint64_t rank;
};

/* Tell the files of one save, by rank. */
int dcp_composer_tell_files(const struct dcp_load *in, const struct dcp_composer_file *files,
			    size_t n, struct dcp_err *err);

/* ---- composer_parts.c ---- */

#define DCP_COMPOSER_METADATA "composer_metadata.json"
#define DCP_COMPOSER_RESUMPTION "resumption.pkl"

int dcp_composer_tell_parts(const struct dcp_load *in, struct dcp_err *err);

/* ---- composer_shard.c ---- */

/* Tensors in parts, of all files. */
struct dcp_cshards {
	struct dcp_arena arena;
	struct dcp_intern names; /* keys, numbered as in keys */
	struct dcp_buf keys;     /* struct dcp_cshard_key */
	struct dcp_buf pieces;   /* struct dcp_cshard_piece */
	struct dcp_buf scratch;
};

void dcp_cshards_init(struct dcp_cshards *c);
void dcp_cshards_finish(struct dcp_cshards *c);

/* Is it torch's ShardedTensor? */
bool dcp_cshards_is(struct dcp_pv v);

/* Note the parts that the leaf, found in @t, brings; @file is the sink's number of the file.
 * What is wrong with it becomes the tensor's error. -ENOMEM. */
int dcp_cshards_add(struct dcp_cshards *c, const struct dcp_torch *t,
		    const struct dcp_leaf *leaf, uint32_t file, struct dcp_err *err);

/* Tell every tensor. @file_of says why a rank's part may be missing: "x-rank1.pt is not there";
 * NULL: no idea. */
int dcp_cshards_tell(struct dcp_cshards *c, const struct dcp_sink *sink,
		     const char *(*file_of)(void *ctx, uint64_t rank), void *ctx,
		     struct dcp_err *err);
