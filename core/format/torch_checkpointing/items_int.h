/* SPDX-License-Identifier: Apache-2.0 */
/*
 * items_int: the contents of a metadata.pkl of torch_checkpointing, and what its files share.
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
 *	layout  {"file_path": .., "serialization_format": {"type": ..}}; None: by default
 *
 * It is a pickle of plain values: nothing else in it is looked at. Entries are taken as they
 * come, so that the lists of ranks in them, which grow with ranks times tensors, need not fit
 * in memory. What one entry says wrong is its own error.
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
#include "core/format/torch/shard/shard.h"
#include "core/format/torch/torch.h"
#include "core/parse/pickle/pickle.h"

struct dcp_err;
struct dcp_source;

#define DCP_TITEMS_MAX_RANKS (1u << 20)
#define DCP_TITEMS_MAX_BOXES (1u << 16) /* of one tensor in one rank */

/* Ranks, and the position of each in the original list. Equal lists are stored once. */
struct dcp_titems_list {
	size_t n;
	struct dcp_titems_rank {
		uint32_t rank, at;
	} by_rank[];
};

/* How some ranks hold one tensor. */
struct dcp_titems_group {
	struct dcp_titems_group *next;
	const char *error; /* nothing else is known */
	const struct dcp_titems_list *ranks;
	const char *dtype; /* torch's name: "bfloat16" */
	uint32_t ndim;
	const uint64_t *shape; /* of the whole */
	/* DTensorShardingMetadata: one placement for each dimension of the mesh, @at not set */
	const struct dcp_titems_list *mesh;
	const struct dcp_tplace *place;
	uint32_t nplace;
	/* default_tensor_v1: what the ranks hold, when mesh is NULL */
	const struct dcp_tplace_box *box;
	size_t nbox;
};

/* One tensor. */
struct dcp_titems_entry {
	const char *key; /* item and path, joined with '.' */
	const char *const *path;
	size_t npath;
	uint32_t item;
	const char *error; /* its path cannot be read */
	struct dcp_titems_group *first;
};

enum dcp_titems_coding {
	DCP_TITEMS_TORCH,
	DCP_TITEMS_JSON,
	DCP_TITEMS_RAW,
	DCP_TITEMS_SAFETENSORS,
	DCP_TITEMS_UNKNOWN, /* the file's error names it */
};

/* Where a rank's file of an item lies. */
struct dcp_titems_layout {
	uint32_t rank;
	enum dcp_titems_coding coding;
	const char *path;  /* NULL: <item>_<rank>.pt, by torch.save */
	const char *error; /* what is wrong with it */
};

struct dcp_titems_item {
	const char *name;
	const struct dcp_titems_layout *layout;
	size_t nlayouts;
};

struct dcp_titems_meta {
	struct dcp_arena arena;
	struct dcp_intern names, keys, lists;
	struct dcp_buf items;   /* struct dcp_titems_item, by number in names */
	struct dcp_buf entries; /* struct dcp_titems_entry, by number in keys */
	struct dcp_buf shared;  /* struct dcp_titems_list *, by number in lists */
	struct dcp_buf pending; /* struct dcp_titems_entry whose item is not known yet */
	struct dcp_buf scratch;
	uint64_t work, work_limit; /* ranks and characters looked at so far */
	bool exhausted;            /* more than any real file has */
	uint64_t world;
	char version[16];
};

/*
 * Read a metadata.pkl. Returns 0, -EBADMSG (damaged, or another kind of pickle), -E2BIG,
 * -ENOMEM, or what the source gave. dcp_titems_meta_finish() in any case.
 */
int dcp_titems_meta_read(struct dcp_titems_meta *m, const struct dcp_source *src,
			 struct dcp_err *err);
void dcp_titems_meta_finish(struct dcp_titems_meta *m);

size_t dcp_titems_nentries(const struct dcp_titems_meta *m);
const struct dcp_titems_entry *dcp_titems_entry(const struct dcp_titems_meta *m, size_t i);

/* The entry of that key, or NULL. */
const struct dcp_titems_entry *dcp_titems_find(const struct dcp_titems_meta *m,
					       const char *key);

/* How rank @rank holds it; NULL: the metadata does not have that rank. */
const struct dcp_titems_group *dcp_titems_group_of(const struct dcp_titems_entry *e,
						   uint32_t rank);

/* The entry of a list, or NULL. */
const struct dcp_titems_rank *dcp_titems_list_find(const struct dcp_titems_list *l,
						   uint32_t rank);

/* Where the file of rank @rank lies; NULL: the metadata does not have it. */
const struct dcp_titems_layout *dcp_titems_layout_of(const struct dcp_titems_item *it,
						     uint32_t rank);

/* ---- for the files that read a metadata.pkl alone ---- */

/* Count @n more; -E2BIG when it is more than any real file says. */
int dcp_titems_work(struct dcp_titems_meta *m, uint64_t n, struct dcp_err *err);

/*
 * Read the list @v of groups into @out. What is wrong with a group is its error; -E2BIG and
 * -ENOMEM are the only failures.
 */
int dcp_titems_read_groups(struct dcp_titems_meta *m, struct dcp_pv v,
			   struct dcp_titems_group **out, struct dcp_err *err);

struct dcp_titems_entry *dcp_titems_entries(const struct dcp_titems_meta *m);
struct dcp_titems_item *dcp_titems_items(const struct dcp_titems_meta *m);

/* The number of the item @name, which is made where it is new. */
int dcp_titems_get_item(struct dcp_titems_meta *m, const char *name, uint32_t *number);

/* ---- meta.c: where the files of items lie ---- */

/* {rank: layout or None} of item @number. */
int dcp_titems_read_layouts(struct dcp_titems_meta *m, uint32_t number, struct dcp_pv v,
			    struct dcp_err *err);
/* {rank: {item: layout or None}}, which version 1.0 has in its root. */
int dcp_titems_read_flat_layouts(struct dcp_titems_meta *m, struct dcp_pv root,
				 struct dcp_err *err);

/* ---- items.c: names of files ---- */

/* A file's name, taken apart. */
struct dcp_titems_name {
	const char *item; /* the name up to the rank or the extension */
	size_t len;
	enum dcp_titems_coding coding; /* by its extension */
	bool ranked;
	uint32_t rank;
};

/* false: not the name of an item's file. */
bool dcp_titems_name(const char *file, struct dcp_titems_name *out);

/* "rank_3", "rank3": a directory of a rank's files. */
bool dcp_titems_rank_dir(const char *name, uint32_t *rank);

/* One file to be read. */
struct dcp_titems_file {
	const char *name; /* below the version's directory */
	const char *item; /* NULL: it holds a dict of items (checkpoint_<rank>.pt) */
	const char *error;
	enum dcp_titems_coding coding;
	uint32_t rank, number; /* number at the sink */
	bool ranked;
	bool promised; /* metadata.pkl needs it */
	bool broken;
};

struct dcp_titems {
	const struct dcp_load *in;
	struct dcp_titems_meta meta; /* without entries where there is no metadata.pkl */
	bool has_meta;
	uint64_t world;
	struct dcp_arena arena;
	struct dcp_buf files; /* struct dcp_titems_file, by rank */
	size_t nfiles, at;
	struct dcp_copies copies;
	struct dcp_tparts parts;    /* shards of tensors that consist of several */
	struct dcp_buf faults;      /* const char * for each key of copies, or NULL */
	struct dcp_arena scratch;   /* of the tensor at hand */
	struct dcp_places places;   /* of what was put together */
	struct dcp_titems_emitted { /* what is in front of the paths of the file at hand */
		const char *path[2];
		size_t npath, nrank;
		char rank[24];
	} front;
};

/* ---- items.c: which files there are ---- */

struct dcp_titems_file *dcp_titems_file(const struct dcp_titems *r, size_t i);

/* A tensor of the file at hand, with its front: a part of something, or emitted as it is. Those
 * that say themselves which part they are come through the second. */
int dcp_titems_on_tensor(void *ctx, const struct dcp_tensor *t);
int dcp_titems_on_part(void *ctx, const struct dcp_tensor *t);

/* ---- join.c ---- */

/* Emit what was put together, and what metadata.pkl lists and no file holds. */
int dcp_titems_join(struct dcp_titems *r);

/* ---- read.c: what is in one file ---- */

/* Emit the file at hand. Returns 1 when it cannot be read: @why says it. */
int dcp_titems_read(struct dcp_titems *r, struct dcp_err *why);

/*
 * place: what a rank's file holds, compared with what metadata.pkl says of it.
 *
 * A tensor that is stored as it was in the rank's memory becomes a part of the whole; one that
 * says itself which part it is must say the same.
 */

struct dcp_arena;
struct dcp_err;
struct dcp_tensor;

/*
 * The local tensor @local of rank @rank, one whole piece or (without elements) none, as a part
 * of what @g describes. What @out points at lives in @arena and @local. -EBADMSG (it is not
 * what the metadata says: found and expected), -E2BIG, -ENOMEM.
 */
int dcp_titems_place(const struct dcp_titems_group *g, uint32_t rank,
		     const struct dcp_tensor *local, struct dcp_arena *arena,
		     struct dcp_tensor *out, struct dcp_err *err);

/* The same of @part, which is in pieces of the whole already: are they the right ones? */
int dcp_titems_compare(const struct dcp_titems_group *g, uint32_t rank,
		       const struct dcp_tensor *part, struct dcp_arena *arena,
		       struct dcp_err *err);
