/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp_int: what the files that emit a DCP checkpoint share; only they include it.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/format/dcp/meta/meta.h"
#include "core/format/format.h"
#include "core/format/gather/join.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/origin/source.h"

/*
 * dcp: what the two forms of a torch.distributed.checkpoint directory share.
 *
 * One .metadata for all ranks, or one __<rank>.metadata for each: either way the tensors and
 * byte items of a joined struct dcp_tmeta are emitted to a sink. Tensor items are named by place
 * and length and not opened; byte items are read.
 */

#define DCP_TDCP_MAX_OBJECT (256u << 20) /* a byte item; train states are kilobytes */
#define DCP_TDCP_MAX_DECODED (64u << 20) /* of a compressed item, which is kept in memory */

struct dcp_tdcp {
	const struct dcp_load *in;
	struct dcp_tmeta meta;
	const char *missing; /* of rank-local metadata: why elements may be missing; or NULL */
	const char *const *rank; /* what to call the writer of each file read; or NULL */
};

/* Join, then emit every key and the facts. */
int dcp_tdcp_emit(struct dcp_tdcp *d, struct dcp_err *err);

/*
 * Is @name that of a data file, "<anything>__<i>_<n>.distcp"? @rank receives i. And of a
 * rank's metadata, "__<rank>.metadata"?
 */
bool dcp_tdcp_is_data_name(const char *name, uint64_t *rank);
bool dcp_tdcp_is_rank_name(const char *name, const char *suffix, uint64_t *rank);

/*
 * item: the data files of a DCP directory, opened to look at single items.
 *
 * A few descriptors are kept open: items of one file tend to come together.
 */

struct dcp_err;

#define DCP_TITEM_SLOTS 16

struct dcp_titem_files {
	const struct dcp_dir *dir;
	struct {
		uint64_t number; /* 1 + number of the file; 0: free */
		struct dcp_input input;
	} slot[DCP_TITEM_SLOTS];
	struct dcp_buf claimed; /* uint64_t per file: bytes of all items looked at */
};

void dcp_titem_files_init(struct dcp_titem_files *f, const struct dcp_dir *dir);

/* The bytes of an item, decoded if it is compressed. Valid until the next item or finish. */
struct dcp_titem {
	struct dcp_source file, window, src; /* src is what to read */
	struct dcp_buf decoded;
};

/*
 * Look at [@off, @off + @nbytes) of file @number, called @name. A compressed item may decode to
 * @limit bytes. The item must be finished also after a failure. -E2BIG: the items of this file
 * are together many times longer than it, so they overlap.
 */
int dcp_titem_open(struct dcp_titem_files *f, uint32_t number, const char *name, uint64_t off,
		   uint64_t nbytes, enum dcp_filter filter, uint64_t limit,
		   struct dcp_titem *out, struct dcp_err *err);
void dcp_titem_finish(struct dcp_titem *item);

/* A record of the key at hand: which offsets it is for, and its number in by_key. */
struct dcp_tdcp_place {
	const uint64_t *lo;
	uint32_t rank_file, i;
};

struct dcp_tdcp_emitter {
	struct dcp_tdcp *d;
	const struct dcp_tmeta *m;
	const struct dcp_sink *sink;
	struct dcp_titem_files files;
	bool lists;             /* open lists in byte items: the state is Composer's */
	struct dcp_buf emitted; /* uint32_t per data file: 1 + its number at the sink, or 0 */
	uint64_t plain[512];    /* kinds of items that were found to be tensors; by hash */
	unsigned misses;        /* items that were to be looked at and could not */
	struct dcp_buf path_text, path_ptrs;
	struct dcp_buf containers; /* of byte items */
	/* of the key at hand, kept for the next one */
	struct dcp_join
		join; /* its chunks that hold elements, as pieces in the file that lists them */
	struct dcp_buf dims, places, blocks;
};

/* What is being found out about one tensor; arrays live in the emitter until the next key. */
struct dcp_tdcp_join {
	struct dcp_tensor t; /* dtype, itemsize (0: not known), ndim, shape, pieces */
	uint64_t shape[DCP_MAX_NDIM];
	char dtype_name[64];
	struct dcp_err why; /* not empty: the key is broken */
	struct dcp_tdcp_place *place;
	size_t nplaces;
};

static inline bool dcp_tdcp_is_broken(const struct dcp_tdcp_join *j)
{
	return j->why.msg[0] != '\0';
}

/* object.c */
/* The sink's number of data file @file. */
int dcp_tdcp_file_number(struct dcp_tdcp_emitter *w, uint32_t file, uint32_t *number);
void dcp_tdcp_emitter_finish(struct dcp_tdcp_emitter *w);

int dcp_tdcp_join(struct dcp_tdcp_emitter *w, uint32_t key, struct dcp_tdcp_join *j);

/* A byte item's key as Megatron-Core makes it of a part of an object. */
struct dcp_tdcp_shard {
	size_t nkey;       /* of the object's own key */
	const char *shape; /* its text, to the end */
	uint32_t ndim;
	uint64_t at[8], of[8];
	bool cut; /* the shape lacks its last number */
};

/* Emit the parts of objects that no key is for. */
int dcp_tdcp_emit_lost_shards(struct dcp_tdcp_emitter *w);

int dcp_tdcp_emit_tensor(struct dcp_tdcp_emitter *w, uint32_t key);
int dcp_tdcp_emit_bytes(struct dcp_tdcp_emitter *w, uint32_t key);
/* What is in the item @r, a tensor without elements of its own, as its parts. */
int dcp_tdcp_emit_parts(struct dcp_tdcp_emitter *w, const char *key, const char *const *path,
			size_t npath, const struct dcp_tmeta_record *r);
