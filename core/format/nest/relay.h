/* SPDX-License-Identifier: Apache-2.0 */
/*
 * relay: a sink in front of another, for families whose checkpoints stand inside something:
 * a directory of a directory, an archive, a decompressed file.
 *
 * The inner family emits files by the names it knows; they lie in a directory @below, or place()
 * says where their bytes really lie, and the pieces are moved there. Keys may get a prefix, so that
 * two parts of one version do not clash; keys that others refer to (aliases, {"$tensor": key} in
 * objects) get it too:
 *
 *	dcp_auto_relay struct dcp_relay r = { .to = in->sink, .below = "inner/" };
 *	struct dcp_load inner = dcp_relay_load(&r, in, &inner_dir);
 *
 *	... format->load(&inner, err);
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/format/format.h"
#include "core/model/tensor.h"

/* Where a file of the inner checkpoint lies in the outer one. */
struct dcp_place {
	char name[4096]; /* of the outer file */
	uint64_t base;   /* the inner file's first byte in it */
	bool unpacked;   /* in what comes out when the outer file is decompressed */
};

struct dcp_relay {
	const struct dcp_sink *to;
	const char *below; /* what stands in front of names of files; NULL: nothing */
	/* In place of that; may be NULL. 0 and @out, or a negative errno that ends the load. */
	int (*place)(void *ctx, const char *name, struct dcp_place *out);
	void *ctx;
	/* A path component to put in front of all keys (and paths), joined with "."; NULL: none. */
	const char *prefix;
	int rc; /* what the sink @to failed with, if it did */
	/* the relay's own */
	struct dcp_sink sink; /* of dcp_relay_load() */
	struct dcp_buf files; /* of each number handed out: the outer file's, and the base */
	struct dcp_buf pieces, terms, text, path, alias, json;
};

/* The sink to load into. @r must outlive it. */
struct dcp_sink dcp_relay_sink(struct dcp_relay *r);
/*
 * @in for a checkpoint in @dir, emitted through @r, which must outlive it. Nothing compressed is
 * read through it: what unpacks knows files of the outer directory only.
 */
struct dcp_load dcp_relay_load(struct dcp_relay *r, const struct dcp_load *in,
			       const struct dcp_dir *dir);
void dcp_relay_finish(struct dcp_relay *r);
#define dcp_auto_relay __attribute__((cleanup(dcp_relay_finish)))

/*
 * inner: a checkpoint that stands inside another, whatever its family.
 */

struct dcp_err;
struct dcp_load;

/*
 * Emit the checkpoint in the directory of @in, recognized by the table of families. A directory
 * that is not a checkpoint itself but holds exactly one other directory is descended into, three
 * deep; file names emitted to the sink stay relative to in->dir. Where several files are
 * checkpoints by themselves, each one's keys get its name in front. -EINVAL when it is not a
 * checkpoint, or not a complete one; else what the family gave.
 */
int dcp_inner_load(const struct dcp_load *in, struct dcp_err *err);

/*
 * The directory @name below in->dir, in the same way. Its keys and paths get the component
 * @prefix in front, unless that is NULL.
 */
int dcp_inner_load_at(const struct dcp_load *in, const char *name, const char *prefix,
		      struct dcp_err *err);
