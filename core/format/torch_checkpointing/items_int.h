/* SPDX-License-Identifier: Apache-2.0 */
/*
 * items_int: the contents of a metadata.pkl of torch_checkpointing, and the declarations that
 * the sources of this family share.
 *
 *	{"metadata": {item: {"nested_path_to_metadata": {'["w"]': [group, ...]},
 *	                     "rank_to_layout_info": {rank: layout or None}}},
 *	 "world_size": n, "version": "2.0"}
 *
 *	{"metadata": {'["item","w"]': [group, ...]},            "version": "1.0", or none
 *	 "rank_to_layout_info_mappings": {rank: {item: layout or None}},
 *	 "world_size": n}
 *
 *	group   {"sharding_metadata": {"type": .., "data": {..}}, "ranks": (r, ...)}
 *	layout  {"file_path": .., "serialization_format": {"type": ..}}; None: the default file
 *
 * The pickle holds plain values; all other keys in it are ignored. The lists of ranks in its
 * entries grow with ranks times tensors. So that the lists need not all fit in memory, each
 * entry is read while the pickle is parsed. A fault in one entry makes only that entry unreadable.
 *
 * Source: distributed_metadata.py, dtensor_metadata.py and default_metadata.py of
 * torch_checkpointing 0.1.0 and 0.1.1.
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
#include "core/format/gather/join.h"
#include "core/format/torch/torch.h"
#include "core/parse/pickle/pickle.h"

struct dcp_err;
struct dcp_source;

#define DCP_ITEMS_MAX_RANKS (1u << 20)
#define DCP_ITEMS_MAX_BOXES (1u << 16) /* of one tensor in one rank */

/* A sorted list of ranks, and the position of each in the file's list. Equal lists share one. */
struct dcp_items_list {
	size_t n;
	struct dcp_items_rank {
		uint32_t rank, at;
	} by_rank[];
};

/* The ranks that hold one tensor in the same way, and how they hold it. */
struct dcp_items_group {
	struct dcp_items_group *next;
	const char *error; /* not NULL: the group cannot be read, other fields may not be set */
	const struct dcp_items_list *ranks;
	const char *dtype; /* torch's name: "bfloat16" */
	uint32_t ndim;
	const uint64_t *shape; /* of the whole tensor */
	/* DTensorShardingMetadata: the ranks of the mesh, and one placement for each dimension of
	 * the mesh, whose @at is not set */
	const struct dcp_items_list *mesh;
	const struct dcp_torch_placement *place;
	uint32_t nplace;
	/* default_tensor_v1 (mesh is NULL): the boxes that the ranks hold */
	const struct dcp_torch_placement_box *box;
	size_t nbox;
};

/* One tensor as metadata.pkl describes it. */
struct dcp_items_entry {
	const char *key; /* item and path, joined with '.' */
	const char *const *path;
	size_t npath;
	uint32_t item;
	const char *error; /* why its path cannot be used; NULL: it can */
	struct dcp_items_group *first;
};

enum dcp_items_coding {
	DCP_ITEMS_TORCH,
	DCP_ITEMS_JSON,
	DCP_ITEMS_RAW,
	DCP_ITEMS_SAFETENSORS,
	DCP_ITEMS_UNKNOWN, /* the file's error names it */
};

/* Which file holds an item of one rank. */
struct dcp_items_layout {
	uint32_t rank;
	enum dcp_items_coding coding;
	const char *path;  /* NULL: <item>_<rank>.pt, by torch.save */
	const char *error; /* why the file cannot be read; NULL: no fault known */
};

struct dcp_items_item {
	const char *name;
	const struct dcp_items_layout *layout;
	size_t nlayouts;
};

struct dcp_items_meta {
	struct dcp_arena arena;
	struct dcp_intern names, keys, lists;
	struct dcp_buf items;   /* struct dcp_items_item, by number in names */
	struct dcp_buf entries; /* struct dcp_items_entry, by number in keys */
	struct dcp_buf shared;  /* struct dcp_items_list *, by number in lists */
	struct dcp_buf pending; /* struct dcp_items_entry whose item is not known yet */
	struct dcp_buf scratch;
	uint64_t work, work_limit; /* ranks and characters read so far, and their limit */
	bool exhausted;            /* work is beyond the limit */
	uint64_t world;
	char version[16];
};

/* Read a metadata.pkl. Returns 0, -EBADMSG (damaged, or another kind of pickle), -E2BIG, -ENOMEM,
 * or the source's error. The caller calls dcp_items_meta_finish() also after an error. */
int dcp_items_meta_read(struct dcp_items_meta *m, const struct dcp_source *src,
			struct dcp_err *err);
void dcp_items_meta_finish(struct dcp_items_meta *m);

size_t dcp_items_nentries(const struct dcp_items_meta *m);
const struct dcp_items_entry *dcp_items_entry(const struct dcp_items_meta *m, size_t i);

/* The entry whose key is @key, or NULL. */
const struct dcp_items_entry *dcp_items_find(const struct dcp_items_meta *m, const char *key);

/* The group of @e that contains rank @rank, or NULL. */
const struct dcp_items_group *dcp_items_group_of(const struct dcp_items_entry *e,
						 uint32_t rank);

/* The entry of @rank in list @l, or NULL. */
const struct dcp_items_rank *dcp_items_list_find(const struct dcp_items_list *l, uint32_t rank);

/* The layout of item @it in rank @rank; NULL: the metadata has none. */
const struct dcp_items_layout *dcp_items_layout_of(const struct dcp_items_item *it,
						   uint32_t rank);

/* ---- used only by the sources that read a metadata.pkl ---- */

/* Count @n more ranks or characters as read. -E2BIG: beyond the limit, which no real file
 * reaches. */
int dcp_items_work(struct dcp_items_meta *m, uint64_t n, struct dcp_err *err);

/* Read the list @v of groups into @out. A fault in a group is stored in the group; the function
 * itself fails only with -E2BIG and -ENOMEM. */
int dcp_items_read_groups(struct dcp_items_meta *m, struct dcp_pv v,
			  struct dcp_items_group **out, struct dcp_err *err);

struct dcp_items_entry *dcp_items_entries(const struct dcp_items_meta *m);
struct dcp_items_item *dcp_items_items(const struct dcp_items_meta *m);

/* The number of the item @name; a new item is added. */
int dcp_items_get_item(struct dcp_items_meta *m, const char *name, uint32_t *number);

/* ---- meta.c: where the files of items lie ---- */

/* Read {rank: layout or None} of item @number. */
int dcp_items_read_layouts(struct dcp_items_meta *m, uint32_t number, struct dcp_pv v,
			   struct dcp_err *err);
/* Read {rank: {item: layout or None}} of all items, which version 1.0 keeps in its root. */
int dcp_items_read_flat_layouts(struct dcp_items_meta *m, struct dcp_pv root,
				struct dcp_err *err);

/* ---- items.c: names of files ---- */

/* The parts of a file's name. */
struct dcp_items_name {
	const char *item; /* the name up to the rank or the extension */
	size_t len;
	enum dcp_items_coding coding; /* by the file's extension */
	bool ranked;
	uint32_t rank;
};

/* Take apart the name @file; false: it is not the name of an item's file. */
bool dcp_items_name(const char *file, struct dcp_items_name *out);

/* Is @name that of a directory with one rank's files, "rank_3" or "rank3"? */
bool dcp_items_rank_dir(const char *name, uint32_t *rank);

/* One file to be read. */
struct dcp_items_file {
	const char *name; /* below the version's directory */
	const char *item; /* NULL: the file holds a dict of items (checkpoint_<rank>.pt) */
	const char *error;
	enum dcp_items_coding coding;
	uint32_t rank, number; /* number at the sink */
	bool ranked;
	bool promised; /* metadata.pkl needs the file: its absence is an error */
	bool broken;
};

struct dcp_items {
	const struct dcp_load *in;
	struct dcp_items_meta meta; /* without entries if no metadata.pkl could be read */
	bool has_meta;
	uint64_t world;
	struct dcp_arena arena;
	struct dcp_buf files; /* struct dcp_items_file, by rank */
	size_t nfiles, at;
	struct dcp_copies copies;
	struct dcp_shard_parts parts; /* shards of tensors that consist of several tensors */
	struct dcp_buf faults;        /* const char * for each key of copies, or NULL */
	struct dcp_arena scratch;     /* of the current tensor */
	struct dcp_places places;     /* of the joined tensors */
	struct dcp_items_emitted {    /* the prefix of all paths in the current file */
		const char *path[2];
		size_t npath, nrank;
		char rank[24];
	} front;
};

/* ---- join.c ---- */

struct dcp_items_file *dcp_items_file(const struct dcp_items *r, size_t i);

/*
 * Sink functions for the tensors of the current file, whose paths begin with the prefix.
 * dcp_items_on_tensor() takes a plain tensor: it is kept as a part if metadata.pkl places it,
 * or else emitted unchanged. dcp_items_on_part() takes a tensor that was stored with its own
 * place in the whole (DTensor, ShardedTensor).
 */
int dcp_items_on_tensor(void *ctx, const struct dcp_tensor *t);
int dcp_items_on_part(void *ctx, const struct dcp_tensor *t);

/* Emit the joined tensors, and with an error each tensor that metadata.pkl lists but no file
 * holds. */
int dcp_items_join(struct dcp_items *r);

/* ---- read.c: the contents of one file ---- */

/* Emit the current file. Returns 1 when the file cannot be read, with the reason in @why. */
int dcp_items_read(struct dcp_items *r, struct dcp_err *why);

/*
 * place: compares the tensors of a rank's file with metadata.pkl.
 *
 * A plain tensor, stored as it was in the rank's memory, becomes a part of the whole tensor. The
 * place that a DTensor records for itself must agree with metadata.pkl.
 */

struct dcp_arena;
struct dcp_tensor;

/*
 * Make @out from @local, the plain tensor of rank @rank: a part of the tensor that @g describes.
 * @local has one piece, or none if it has no elements. @out points into @arena and @local. Returns
 * 0, -EBADMSG (@local is not what the metadata says; the message has found and expected), -E2BIG or
 * -ENOMEM.
 */
int dcp_items_place(const struct dcp_items_group *g, uint32_t rank,
		    const struct dcp_tensor *local, struct dcp_arena *arena,
		    struct dcp_tensor *out, struct dcp_err *err);

/* Check that the pieces of @part, which have their places in the whole already, are those that
 * @g gives to rank @rank. Fails like dcp_items_place(). */
int dcp_items_compare(const struct dcp_items_group *g, uint32_t rank,
		      const struct dcp_tensor *part, struct dcp_arena *arena,
		      struct dcp_err *err);
