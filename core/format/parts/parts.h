/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parts: several checkpoints in one directory that together are one version.
 *
 * A part consists of a family and the names that the family may see: files of the version's
 * directory, or a directory below it. Parts are emitted one after another to the same sink. Their
 * files have the names that they have in the version's directory; their keys get the name of the
 * part in front. Only the keys of a single model remain as they are stored.
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
	DCP_PART_STATE, /* optimizer, random states: keys always get the part's name */
	DCP_PART_MODEL, /* keys get the part's name unless it is the only model */
	DCP_PART_PLAIN, /* keys never get it: the framework itself reads these parts as one */
	DCP_PART_SPARE, /* a model, left out if a plain part before it holds a model */
};

struct dcp_part {
	const char *name;  /* name of its file or directory */
	const char *below; /* "optimizer_0/", or "" */
	enum dcp_part_role role;
	const struct dcp_format *format;
	struct dcp_dir dir; /* the names that the family may see */
};

struct dcp_parts {
	struct dcp_arena arena;
	struct dcp_buf list; /* struct dcp_part */
	unsigned depth;      /* number of parts around this one */
};

void dcp_parts_init(struct dcp_parts *p, unsigned depth);
void dcp_parts_finish(struct dcp_parts *p);

size_t dcp_parts_n(const struct dcp_parts *p);
struct dcp_part *dcp_parts_at(const struct dcp_parts *p, size_t i);

/* Add a part; takes @dir, also on failure. Changes the name if another part has it. -ENOMEM. */
int dcp_parts_add(struct dcp_parts *p, const char *name, const char *below,
		  enum dcp_part_role role, const struct dcp_format *format,
		  struct dcp_dir *dir);

/* dcp_parts_is_file(): is @e, by its name, a file that is a part? @state: the file makes its
 * directory a version. dcp_parts_is_dir(): is @e a directory of a part? @alone: it is a version
 * even without other parts. @role may be NULL. */
bool dcp_parts_is_file(const struct dcp_dirent *e, bool *state);
bool dcp_parts_is_dir(const struct dcp_dirent *e, bool *alone, enum dcp_part_role *role);
/* May @e be a model with a name that is in no table? Names of saves are no names of models. */
bool dcp_parts_may_be_role(const struct dcp_dirent *e);
/* The role of the files of a group (of ranks) with the name @group. */
enum dcp_part_role dcp_parts_role(const char *group);
/* Do models of @format have Hugging Face's names? */
bool dcp_parts_is_hf(const struct dcp_format *format);
/* Is a file with this name a model, if it lies beside parts? */
bool dcp_parts_is_model(const char *name);

/* The library that wrote a directory in which models in directories of any name are parts. */
enum dcp_parts_home {
	DCP_HOME_NONE,
	DCP_HOME_PIPELINE, /* diffusers: a version even with only one model */
	DCP_HOME_MODULES,  /* sentence-transformers */
	DCP_HOME_STATES,   /* Accelerate or a Trainer */
	DCP_HOME_ADAPTER,  /* PEFT: only adapters are parts */
};
enum dcp_parts_home dcp_parts_home(const struct dcp_dir *dir);

/* The family of a single JSON file; not in the table of families. */
extern const struct dcp_format dcp_part_json;

/*
 * Emit all parts, and the files that describe models in directories. An unreadable part is emitted
 * as an object of its name with the error. A negative result means that no part can be read, or
 * is the error of the sink.
 */
int dcp_parts_emit(const struct dcp_load *in, const struct dcp_parts *p, struct dcp_err *err);
