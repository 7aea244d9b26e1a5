/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Putting the ranks' files together. A tensor that says itself which part of the whole it is
 * (DTensor, ShardedTensor) is told once, under its key, made of what all ranks hold; replicas
 * count once. Nothing says what plain tensors and objects of different ranks have to do with
 * each other, so those of rank r are told below "rank<r>", keys and paths alike, also where
 * there is one rank only. Of a job of one rank FSDP saves whole tensors for a model: they keep
 * their names, as DTensors of more ranks do.
 *
 *	checkpoint_0.pt {"model": {"w": tensor}}    rank0.model.w, path rank0 / model / w
 *	checkpoint_0.pt {"model": {"w": DTensor}}   model.w
 *
 * A file that cannot be read is told as the object "rank<r>" with its error; a tensor that has
 * a part in it is broken and names it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/format/gather/copies.h"
#include "core/format/torch/ranks.h"
#include "core/format/torch/state.h"
#include "core/model/tensor.h"
#include "core/parse/dir/dir.h"
#include "core/parse/torch/torch.h"

struct rank_file {
	const char *file;
	struct dcp_rank_name name;
};

struct ranks {
	const struct dcp_load *in;
	struct rank_file *file; /* by rank */
	size_t n, nbroken;
	struct dcp_copies shards;
	size_t at;             /* the file that is read */
	size_t nprefix;        /* components in front of its keys */
	struct dcp_err broken; /* of the first file that cannot be read */
};

static int by_rank(const void *a, const void *b)
{
	const struct rank_file *x = a, *y = b;

	if (x->name.rank != y->name.rank)
		return x->name.rank < y->name.rank ? -1 : 1;
	return strcmp(x->file, y->file);
}

static int list_files(struct ranks *r)
{
	const struct dcp_dir *dir = r->in->dir;

	r->file = calloc(dir->n + 1, sizeof(*r->file));
	if (!r->file)
		return -ENOMEM;
	for (size_t i = 0; i < dir->n; i++) {
		struct rank_file *f = &r->file[r->n];

		f->file = dir->entries[i].name;
		r->n += !dir->entries[i].is_dir && dcp_rank_name(f->file, &f->name);
	}
	qsort(r->file, r->n, sizeof(*r->file), by_rank);
	return 0;
}

/* A part of a tensor: kept under the key it has without the rank in front. */
static int on_shard(void *ctx, const struct dcp_tensor *told)
{
	struct ranks *r = ctx;
	struct dcp_tensor t = *told;

	for (size_t i = 0; i < r->nprefix && i + 1 < t.npath; i++)
		t.key += strlen(told->path[i]) + 1;
	t.path += r->nprefix;
	t.npath -= r->nprefix;
	if (t.npath == 0) {
		/* The file is one such tensor: it has no name of its own. */
		t.path = told->path;
		t.npath = told->npath;
		t.key = told->key;
	}
	return dcp_copies_add(&r->shards, &t, (uint32_t)r->at);
}

/* Returns 1 when the rank's file cannot be read: @why says it. */
static int tell_rank(struct ranks *r, struct dcp_err *why, struct dcp_err *err)
{
	const struct dcp_load *in = r->in;
	const struct rank_file *f = &r->file[r->at];
	char component[40];
	const char *prefix = component;
	struct dcp_tstate s = { .sink = in->sink, .shard = on_shard, .ctx = r };
	struct dcp_input input;
	struct dcp_torch *t;
	int rc;

	snprintf(component, sizeof(component), "rank%" PRIu64, f->name.rank);
	r->nprefix = f->name.world != 1 || strncmp(f->name.set, "model", 5) != 0;
	s.prefix = &prefix;
	s.nprefix = r->nprefix;
	rc = in->sink->file(in->sink->ctx, f->file, &s.file);
	if (rc < 0)
		return rc;
	rc = dcp_dir_input(in->dir, f->file, &input, why);
	if (rc == 0) {
		rc = dcp_torch_open(&input.src, 0, &t, why);
		if (rc == -ENOMEM)
			dcp_fail(err, rc, DCP_ERR_NO_OFFSET, "out of memory reading %s",
				 f->file);
		else if (rc < 0)
			dcp_err_where(why, rc, "%s", f->file);
		if (rc < 0)
			dcp_input_close(&input);
	}
	if (rc < 0)
		return rc == -ENOMEM ? rc : 1;
	s.t = t;
	rc = dcp_tstate_tell(&s, err);
	dcp_torch_close(t);
	dcp_input_close(&input);
	return rc;
}

static int tell_broken(const struct ranks *r, const char *why)
{
	const struct dcp_sink *sink = r->in->sink;
	char component[40];
	const char *path = component;
	struct dcp_object o = {
		.key = component, .path = &path, .npath = 1, .type = "", .error = why
	};

	snprintf(component, sizeof(component), "rank%" PRIu64, r->file[r->at].name.rank);
	return sink->object(sink->ctx, &o);
}

static int tell_files(struct ranks *r, struct dcp_err *err)
{
	const struct dcp_progress *progress = r->in->progress;
	int rc = 0;

	for (r->at = 0; r->at < r->n && rc == 0; r->at++) {
		struct dcp_err why = { 0 };

		rc = tell_rank(r, &why, err);
		if (progress)
			progress->tell(progress->ctx, r->at + 1, r->n, "files");
		if (rc != 1)
			continue;
		if (r->nbroken++ == 0)
			r->broken = why;
		if (r->nbroken == r->n) {
			if (err)
				*err = why;
			return why.code ? why.code : -EBADMSG;
		}
		rc = tell_broken(r, why.msg);
	}
	return rc;
}

static const char *file_name(void *ctx, uint32_t who)
{
	const struct ranks *r = ctx;

	return r->file[who].file;
}

static int tell_facts(const struct ranks *r)
{
	const struct dcp_sink *sink = r->in->sink;
	char text[24];
	int rc = sink->meta(sink->ctx, "framework", "torch");

	snprintf(text, sizeof(text), "%zu", r->n);
	return rc < 0 ? rc : sink->meta(sink->ctx, "ranks", text);
}

int dcp_ranks_load(const struct dcp_load *in, struct dcp_err *err)
{
	struct ranks r = { .in = in };
	int rc = list_files(&r);

	dcp_copies_init(&r.shards);
	if (rc == 0)
		rc = tell_files(&r, err);
	for (uint32_t k = 0; k < r.shards.names.n && rc == 0; k++)
		rc = dcp_copies_tell(&r.shards, k, in->sink, r.nbroken ? r.broken.msg : NULL,
				     file_name, &r);
	if (rc == 0)
		rc = tell_facts(&r);
	if (rc == -ENOMEM)
		dcp_fail(err, rc, DCP_ERR_NO_OFFSET, "out of memory for the parts of tensors");
	dcp_copies_finish(&r.shards);
	free(r.file);
	return rc;
}
