/* SPDX-License-Identifier: Apache-2.0 */
/*
 * relay: a sink in front of another, for families whose checkpoints stand inside something:
 * a directory of a directory, an archive, a decompressed file.
 *
 * The inner family emits files by the names it knows; place() says where their bytes really
 * lie, and the pieces are moved there. Keys may get a prefix, so that two parts of one version
 * do not clash; keys that others refer to (aliases, {"$tensor": key} in objects) get it too:
 *
 *	struct dcp_relay r = { .to = in->sink, .place = place, .ctx = &mine };
 *	struct dcp_sink sink = dcp_relay_sink(&r);
 *
 *	... inner->load(&(struct dcp_load){ .dir = &inner_dir, .sink = &sink, ... }, err);
 *	dcp_relay_finish(&r);
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/base/buf.h"

struct dcp_sink;

/* Where a file of the inner checkpoint lies in the outer one. */
struct dcp_place {
	char name[4096]; /* of the outer file */
	uint64_t base;   /* the inner file's first byte in it */
	bool unpacked;   /* in what comes out when the outer file is decompressed */
};

struct dcp_relay {
	const struct dcp_sink *to;
	/* 0 and @out, or a negative errno that ends the load. */
	int (*place)(void *ctx, const char *name, struct dcp_place *out);
	/* Path components to put in front of a key (and of its path), joined with "."; NULL:
	 * none for this one. NULL function: none at all. */
	const char *(*prefix)(void *ctx, const char *key);
	void *ctx;
	int rc; /* what the sink @to failed with, if it did */
	/* the relay's own */
	struct dcp_buf files; /* of each number handed out: the outer file's, and the base */
	struct dcp_buf pieces, terms, text, path, alias, json;
};

/* The sink to load into. @r must outlive it. */
struct dcp_sink dcp_relay_sink(struct dcp_relay *r);
void dcp_relay_finish(struct dcp_relay *r);
