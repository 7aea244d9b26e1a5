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
#include "core/format/gather/copies.h"
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
	struct dcp_intern emitted; /* keys, when there are several files */
	struct dcp_buf containers; /* the first file's */
	size_t nbroken;
	struct dcp_err broken; /* of the first file that cannot be read */
	struct dcp_err *err;
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

/* @why says what is wrong with the file; @w->err what ends the load. */
static int emit_file(struct emitter *w, struct dcp_err *why)
{
	const struct dcp_load *in = w->in;
	struct dcp_tstate s = {
		.sink = in->sink,
		.lists = true,
		.take = on_take,
		.shard = on_shard,
		.ctx = w,
		.containers = w->at ? NULL : &w->containers,
	};
	dcp_auto_torch struct dcp_torch *t = NULL;
	const char *name = w->files[w->at].name;
	int rc = dcp_emit_file(in->sink, name, &s.file);

	if (rc == 0)
		rc = dcp_torch_open_file(in->dir, name, &t, why);
	if (rc < 0)
		return rc;
	s.t = t;
	if (w->at == 0)
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

/* A file that cannot be read is emitted by its name; nothing is left when that is all. */
static int note_broken(struct emitter *w, const struct dcp_err *why)
{
	if (w->nbroken++ == 0)
		w->broken = *why;
	if (w->nbroken == w->n)
		return dcp_err_give(w->err, why, why->code);
	return dcp_emit_broken(w->in->sink, w->files[w->at].name, why->msg);
}

static int emit_all(struct emitter *w)
{
	int rc = 0;

	for (w->at = 0; rc == 0 && w->at < w->n; w->at++) {
		struct dcp_err why = { 0 };

		rc = emit_file(w, &why);
		if (rc == -ENOMEM && why.code)
			return dcp_fail(w->err, rc, "%s", why.msg);
		if (rc < 0 && why.code)
			rc = note_broken(w, &why);
	}
	return rc;
}

static int emit_shards(struct emitter *w)
{
	char missing[512];
	int rc = 0;

	name_missing(w, missing, sizeof(missing));
	for (uint32_t k = 0; rc == 0 && k < w->shards.names.n; k++)
		rc = dcp_copies_emit(&w->shards, k, w->in->sink,
				     w->nbroken ? w->broken.msg : missing);
	return rc;
}

int dcp_composer_emit_files(const struct dcp_load *in, const struct dcp_composer_file *files,
			    size_t n, struct dcp_err *err)
{
	struct emitter w = { .in = in, .files = files, .n = n, .err = err };
	int rc;

	dcp_copies_init(&w.shards);
	rc = emit_all(&w);
	if (rc == 0)
		rc = emit_shards(&w);
	if (n > 1)
		rc = dcp_emit_fact(in->sink, rc, "ranks", "%zu", n);
	if (rc == 0 && w.containers.n)
		rc = dcp_emit_meta(in->sink, "containers", w.containers.p);
	dcp_buf_finish(&w.containers);
	dcp_copies_finish(&w.shards);
	dcp_intern_finish(&w.emitted);
	return rc;
}
