/* SPDX-License-Identifier: Apache-2.0 */
/*
 * relay: a sink in front of another sink, for checkpoints in a directory of another checkpoint, in
 * an archive or in a compressed file.
 *
 * The inner family emits files by the names that it knows. The files lie in the directory @below,
 * or place() says where their bytes really lie, and the pieces are moved to that place. Keys may
 * get a prefix, so that two parts of one version do not clash; references to keys (aliases,
 * {"$tensor": key} in objects) get the prefix too:
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
	char name[4096]; /* name of the outer file */
	uint64_t base;   /* place of the inner file's first byte in the outer file */
	bool unpacked;   /* base counts in the decompressed outer file */
};

struct dcp_relay {
	const struct dcp_sink *to;
	const char *below; /* put in front of the names of files; NULL: nothing */
	/* Replaces @below; may be NULL. Returns 0 and fills @out, or a negative errno, which ends
	 * the load. */
	int (*place)(void *ctx, const char *name, struct dcp_place *out);
	void *ctx;
	/* A path component to put in front of all keys (and paths), joined with "."; NULL: none. */
	const char *prefix;
	int rc; /* the error of the sink @to, if there was one */
	/* private */
	struct dcp_sink sink; /* for dcp_relay_load() */
	struct dcp_buf files; /* by inner number: number of the outer file, and the base */
	struct dcp_buf pieces, terms, text, path, alias, json;
};

/* The sink to load into. @r must outlive it. */
struct dcp_sink dcp_relay_sink(struct dcp_relay *r);
/* Make a copy of @in for a checkpoint in @dir that is emitted through @r. @r must outlive the copy.
 * The copy cannot read compressed files: the unpacker knows only files of the outer directory. */
struct dcp_load dcp_relay_load(struct dcp_relay *r, const struct dcp_load *in,
			       const struct dcp_dir *dir);
void dcp_relay_finish(struct dcp_relay *r);
#define dcp_auto_relay __attribute__((cleanup(dcp_relay_finish)))

/* inner: loads a checkpoint of any family inside another checkpoint. */

struct dcp_err;
struct dcp_load;

/*
 * Emit the checkpoint in the directory of @in; the table of families finds its family. If the
 * directory is not a checkpoint but holds exactly one other directory, that directory is tried, up
 * to three levels down; the emitted file names remain relative to in->dir. If several files are
 * separate checkpoints, the keys of each get the name of its file in front. Returns -EINVAL if the
 * directory is not a complete checkpoint, else the result of the family.
 */
int dcp_inner_load(const struct dcp_load *in, struct dcp_err *err);

/* Emit the directory @name below in->dir in the same way. Its keys and paths get the component
 * @prefix in front unless @prefix is NULL. */
int dcp_inner_load_at(const struct dcp_load *in, const char *name, const char *prefix,
		      struct dcp_err *err);
