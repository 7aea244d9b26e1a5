/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parts: checkpoints that lie beside each other and are one version.
 *
 * A part is a family and the names it may see: files of the version's directory, or a directory
 * below it. Parts are emitted one after another to the same sink, their files by their names in
 * the version's directory, their keys with the name of the part in front. Only a model that is
 * alone keeps its keys as they are stored.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/format/format.h"
#include "core/origin/dir/dir.h"

#define DCP_PARTS_DEPTH 3 /* parts that have parts: verl's global_step_N/actor/ is one */

enum dcp_part_role {
	DCP_PART_STATE, /* optimizer, random states: its name is always in front of its keys */
	DCP_PART_MODEL, /* unless it is the only one */
	DCP_PART_PLAIN, /* never: the framework itself reads it as one with the others */
	DCP_PART_SPARE, /* a model, left out where a plain part before it holds one */
};

struct dcp_part {
	const char *name;  /* of its file or directory */
	const char *below; /* "optimizer_0/", or "" */
	enum dcp_part_role role;
	const struct dcp_format *format;
	struct dcp_dir dir; /* all that the family may see */
};

struct dcp_parts {
	struct dcp_arena arena;
	struct dcp_buf list; /* struct dcp_part */
	unsigned depth;      /* parts this one is a part of */
};

void dcp_parts_init(struct dcp_parts *p, unsigned depth);
void dcp_parts_finish(struct dcp_parts *p);

size_t dcp_parts_n(const struct dcp_parts *p);
struct dcp_part *dcp_parts_at(const struct dcp_parts *p, size_t i);

/* Add a part; @dir is taken, also on failure. Names are made different. -ENOMEM. */
int dcp_parts_add(struct dcp_parts *p, const char *name, const char *below,
		  enum dcp_part_role role, const struct dcp_format *format,
		  struct dcp_dir *dir);

/* Is @e, by its name, a file that is a part? @state: one whose directory is a version
 * because of it. Is it a directory? @alone: one that is a version even by itself; @role may
 * be NULL. */
bool dcp_parts_is_file(const struct dcp_dirent *e, bool *state);
bool dcp_parts_is_dir(const struct dcp_dirent *e, bool *alone, enum dcp_part_role *role);
/* May it be a model by a name that no table knows? Not by the names of saves. */
bool dcp_parts_may_be_role(const struct dcp_dirent *e);
/* Which role have the files of a group (of ranks) called so? */
enum dcp_part_role dcp_parts_role(const char *group);
/* Has @format models by Hugging Face's names? */
bool dcp_parts_is_hf(const struct dcp_format *format);
/* Is a file of this name a model, beside parts? */
bool dcp_parts_is_model(const char *name);

/* Whose directory is it, where models in directories of any name are parts? */
enum dcp_parts_home {
	DCP_HOME_NONE,
	DCP_HOME_PIPELINE, /* diffusers': a version even when there is one model only */
	DCP_HOME_MODULES,  /* sentence-transformers' */
	DCP_HOME_STATES,   /* Accelerate's or a Trainer's */
	DCP_HOME_ADAPTER,  /* PEFT's: only adapters are */
};
enum dcp_parts_home dcp_parts_home(const struct dcp_dir *dir);

/* One JSON file; not in the table of families. */
extern const struct dcp_format dcp_part_json;

/*
 * Emit all parts, and the files that tell of models in directories. One that cannot be read is
 * emitted as an object of its name with the error; a negative return means that none can be read,
 * or is what the sink gave.
 */
int dcp_parts_emit(const struct dcp_load *in, const struct dcp_parts *p, struct dcp_err *err);
