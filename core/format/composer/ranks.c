/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of several files the tensors in parts (ShardedTensor) are put together. Everything else was
 * the same on all ranks, so the lowest one's is emitted, and of others what only they have.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/format/composer/composer_int.h"
#include "core/format/format.h"
#include "core/format/gather/join.h"
#include "core/format/torch/shard/parts.h"
#include "core/format/torch/shard/shard.h"
#include "core/format/torch/state.h"
#include "core/model/tensor.h"
#include "core/parse/pyjson/pyjson.h"
#include "core/parse/torch/torch.h"

struct emitter {
	const struct dcp_load *in;
	const struct dcp_composer_file *files;
	size_t n, at; /* the file at hand */
	struct dcp_copies shards;
	struct dcp_tparts parts;   /* shards of tensors that consist of several */
	struct dcp_intern emitted; /* keys, when there are several files */
	struct dcp_buf containers; /* the first file's */
};

/* Was it emitted already? From now on it counts as emitted. */
static int seen(struct emitter *w, const char *key)
{
	int rc = dcp_intern_str(&w->emitted, key, NULL);

	return rc < 0 ? rc : rc == 0;
}

static int on_take(void *ctx, const struct dcp_leaf *leaf)
{
	struct emitter *w = ctx;

	return w->n > 1 && !dcp_tshard_is(leaf->value) ? seen(w, leaf->key) : 0;
}

static int on_shard(void *ctx, const struct dcp_tensor *t)
{
	struct emitter *w = ctx;

	return dcp_copies_add(&w->shards, t, (uint32_t)w->at, w->files[w->at].name);
}

static int emit_version(const struct dcp_sink *sink, const struct dcp_torch *t)
{
	struct dcp_pv metadata = dcp_pv_at(dcp_pv_at(dcp_torch_root(t), "state"), "metadata");
	const char *version = dcp_pv_str(
		dcp_pv_at(dcp_pv_at(metadata, "composer_env_info"), "composer_version"));
	int rc = dcp_emit_fact(sink, 0, "framework", "composer%s%.40s", version ? " " : "",
			       version ? version : "");
	return dcp_emit_fact(sink, rc, "lists", "opened");
}

/* What is in file @at; 1: it cannot be read, @why says it. */
static int emit_file(void *ctx, size_t at, struct dcp_err *why)
{
	struct emitter *w = ctx;
	const struct dcp_load *in = w->in;
	struct dcp_tstate s = {
		.sink = in->sink,
		.lists = true,
		.take = on_take,
		.shard = on_shard,
		.parts = &w->parts,
		.who = (uint32_t)at,
		.name = w->files[at].name,
		.ctx = w,
		.containers = at ? NULL : &w->containers,
	};
	dcp_auto_torch struct dcp_torch *t = NULL;
	const char *name = w->files[at].name;
	int rc = dcp_emit_file(in->sink, name, &s.file);

	if (rc < 0)
		return rc;
	rc = dcp_torch_open_file(in->dir, name, &t, why);
	if (rc < 0)
		return rc == -ENOMEM ? rc : 1;
	w->at = at;
	s.t = t;
	if (at == 0)
		rc = emit_version(in->sink, t);
	return rc < 0 ? rc : dcp_tstate_emit(&s);
}

/* The name of the first rank's file that is not there, in @out. */
static void name_missing(const struct emitter *w, char *out, size_t n)
{
	const char *first = w->files[0].name, *digits = NULL;
	uint64_t rank = 0;

	for (size_t i = 0; i < w->n && w->files[i].rank <= rank; i++)
		rank = w->files[i].rank + 1;
	for (const char *p = first; (p = strstr(p, "rank")); p += 4)
		digits = p + 4;
	if (digits)
		snprintf(out, n, "%.*s%" PRIu64 "%s is not there", (int)(digits - first), first,
			 rank, digits + strspn(digits, "0123456789"));
	else
		snprintf(out, n, "another rank's file is not there");
}

static int emit_broken(void *ctx, size_t at, const char *why)
{
	const struct emitter *w = ctx;

	return dcp_emit_broken(w->in->sink, w->files[at].name, why);
}

int dcp_composer_emit_files(const struct dcp_load *in, const struct dcp_composer_file *files,
			    size_t n, struct dcp_err *err)
{
	struct emitter w = { .in = in, .files = files, .n = n };
	char missing[512];
	int rc;

	dcp_copies_init(&w.shards);
	dcp_tparts_init(&w.parts);
	name_missing(&w, missing, sizeof(missing));
	rc = dcp_copies_read(&w.shards, in, n, emit_file, emit_broken, &w, err);
	if (rc == 0)
		rc = dcp_tparts_join(&w.parts, &w.shards, in->sink);
	if (rc == 0)
		rc = dcp_copies_emit_all(&w.shards, in->sink, missing);
	if (n > 1)
		rc = dcp_emit_fact(in->sink, rc, "ranks", "%zu", n);
	if (rc == 0 && w.containers.n)
		rc = dcp_emit_meta(in->sink, "containers", w.containers.p);
	dcp_buf_finish(&w.containers);
	dcp_copies_finish(&w.shards);
	dcp_tparts_finish(&w.parts);
	dcp_intern_finish(&w.emitted);
	return rc;
}
