/* SPDX-License-Identifier: Apache-2.0 */
/* files: the weight files of a Hugging Face directory, and their sets. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/intern.h"
#include "core/format/gather/join.h"
#include "core/format/weights/name.h"
#include "core/parse/safetensors/safetensors.h"

struct dcp_dir;
struct dcp_err;
struct dcp_load;
struct dcp_tensor;

#define DCP_WEIGHTS_MEMORY (1u << 30) /* all headers together; 100,000 keys are some 20 MB */

/* Files of one model; see name.h. */
struct dcp_weights_set {
	const char *name;
	const char *component; /* put in front of its keys; NULL: nothing */
	struct dcp_weights_index index;
	uint32_t first, n; /* files */
};

struct dcp_weights_file {
	const char *name; /* below the version's directory */
	const char *set_name;
	const char *error; /* why nothing of the file can be shown */
	const char *cut;   /* description of an early end, if the header is valid */
	struct dcp_safetensors header;
	uint32_t set;
	uint32_t number; /* at the sink */
	bool placed;     /* has DCP_SHARDING_INFO */
	uint32_t
		nparts; /* number of parts of the model by the file's name; 0: not in the name */
	bool left_over; /* file of another save: the index has another number of parts */
};

/* One entry of one file. */
struct dcp_weights_shard {
	const struct dcp_safetensors_entry *e;
	const uint64_t *lo;  /* saved_offsets; NULL: not recorded */
	const char *error;   /* the fault of the saved_offsets */
	uint32_t file, next; /* next shard of the same key, or DCP_INTERN_NONE */
};

struct dcp_weights_key {
	uint32_t first, last, n; /* shards, in order of files */
};

struct dcp_weights {
	const struct dcp_load *in;
	struct dcp_arena arena;
	struct dcp_weights_file *files; /* in order of their sets */
	struct dcp_weights_set *sets;
	size_t nfiles, nsets, nbroken, ncut;
	struct dcp_weights_sets kept;            /* which sets are shown, and how */
	struct dcp_intern file_names, set_names; /* to their numbers */
	struct dcp_intern names;                 /* keys with the component of their set */
	struct dcp_buf keys,
		shards; /* struct dcp_weights_key by number, struct dcp_weights_shard */
	struct dcp_intern aliases; /* keys emitted as aliases of others */
	bool dcp;                  /* written by DCP */
	struct dcp_buf num;
	struct dcp_join join; /* of the key at hand */
};

/* List the files of @kind in @dir, which is in->dir or @below it ("sharded/"), in order of
 * their sets. -ENOMEM. */
int dcp_weights_add_files(struct dcp_weights *h, const struct dcp_dir *dir, const char *below,
			  enum dcp_weights_kind kind);
/* Make the sets of the files, by name, and find the component of each set. -ENOMEM. */
int dcp_weights_make_sets(struct dcp_weights *h);
/* Assign each index in @dir to the set of the same name; with @any, an index of another name
 * to the only set. Files of other saves are left over, and named as left out. */
int dcp_weights_read_indexes(struct dcp_weights *h, const struct dcp_dir *dir,
			     enum dcp_weights_kind kind, bool any, struct dcp_err *err);

/* The file with the name @name, or NULL; @name may be NULL. */
const struct dcp_weights_file *dcp_weights_find_file(const struct dcp_weights *h,
						     const char *name);

/* The shown name of @key, in memory that the next call reuses; NULL: no memory. */
const char *dcp_weights_key(struct dcp_weights *h, const struct dcp_weights_set *set,
			    const char *key);

/* Emit @t, with its key in the files of @set, under the shown key; with @error, @t has no
 * pieces. */
int dcp_weights_emit_tensor(struct dcp_weights *h, const struct dcp_weights_set *set,
			    struct dcp_tensor *t, const char *error);

/* Emit, as broken, the keys that are in the index of @set but not in h->names. */
int dcp_weights_emit_promised(struct dcp_weights *h, const struct dcp_weights_set *set);

void dcp_weights_finish(struct dcp_weights *h);
