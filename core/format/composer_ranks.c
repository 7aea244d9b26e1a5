/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of several files the tensors in parts (ShardedTensor) are put together. Everything else was
 * the same on all ranks, so the lowest one's is told, and of others what only they have.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/format/composer_int.h"
#include "core/format/format.h"
#include "core/format/torch_state.h"
#include "core/model/tensor.h"
#include "core/parse/dir.h"
#include "core/parse/pyjson.h"
#include "core/parse/torch.h"

struct telling {
	const struct dcp_load *in;
	const struct dcp_composer_file *files;
	size_t n, at; /* the file at hand */
	uint32_t file;
	const struct dcp_torch *t;
	struct dcp_cshards shards;
	struct dcp_intern told; /* keys, when there are several files */
	char **why;             /* of each file: why it could not be read, or NULL */
	char text[1024];
	struct dcp_err *err;
};

/* Is it told already? It is from now on. */
static int seen(struct telling *w, const char *key)
{
	uint32_t number;
	int rc = dcp_intern_add(&w->told, key, strlen(key), DCP_INTERN_NONE, &number);

	if (rc < 0)
		return dcp_fail(w->err, rc, DCP_ERR_NO_OFFSET, "out of memory for keys");
	return rc == 0;
}

static int on_take(void *ctx, const struct dcp_leaf *leaf)
{
	struct telling *w = ctx;
	int rc;

	if (dcp_cshards_is(leaf->value)) {
		rc = dcp_cshards_add(&w->shards, w->t, leaf, w->file, w->err);
		return rc < 0 ? rc : 1;
	}
	return w->n > 1 ? seen(w, leaf->key) : 0;
}

static int tell_version(const struct telling *w)
{
	const struct dcp_sink *sink = w->in->sink;
	const struct dcp_pv *v = dcp_pv_get(dcp_torch_root(w->t), "state");
	const char *version = NULL;
	char text[64];

	v = v ? dcp_pv_get(*v, "metadata") : NULL;
	v = v ? dcp_pv_get(*v, "composer_env_info") : NULL;
	v = v ? dcp_pv_get(*v, "composer_version") : NULL;
	version = v ? dcp_pv_str(*v) : NULL;
	snprintf(text, sizeof(text), "composer%s%.40s", version ? " " : "",
		 version ? version : "");
	return sink->meta(sink->ctx, "framework", text);
}

/* @why says what is wrong with the file; @w->err what ends the load. */
static int tell_file(struct telling *w, struct dcp_err *why)
{
	const struct dcp_load *in = w->in;
	struct dcp_tstate s = { .sink = in->sink, .lists = true, .take = on_take, .ctx = w };
	struct dcp_torch *t = NULL;
	struct dcp_input input;
	const char *name = w->files[w->at].name;
	int rc = in->sink->file(in->sink->ctx, name, &w->file);

	if (rc < 0)
		return rc;
	rc = dcp_dir_input(in->dir, name, &input, why);
	if (rc < 0)
		return rc;
	rc = dcp_torch_open(&input.src, 0, &t, why);
	if (rc == 0) {
		w->t = s.t = t;
		s.file = w->file;
		rc = w->at == 0 ? tell_version(w) : 0;
		if (rc == 0)
			rc = dcp_tstate_tell(&s, w->err);
		dcp_torch_close(t);
	} else {
		dcp_err_where(why, rc, "%s", name);
	}
	dcp_input_close(&input);
	return rc;
}

/* Why something that was in the file of @rank is missing. */
static const char *file_of(void *ctx, uint64_t rank)
{
	struct telling *w = ctx;
	const char *first = w->files[0].name, *digits;

	for (size_t i = 0; i < w->n; i++)
		if (w->files[i].rank == rank && w->why[i]) {
			return w->why[i];
		} else if (w->files[i].rank == rank) {
			snprintf(w->text, sizeof(w->text), "%s does not hold it",
				 w->files[i].name);
			return w->text;
		}
	digits = strstr(first, "rank");
	for (const char *next = digits; (next = next ? strstr(next + 1, "rank") : NULL);)
		digits = next;
	if (!digits)
		return NULL;
	digits += 4;
	snprintf(w->text, sizeof(w->text), "%.*s%" PRIu64 "%s is not there",
		 (int)(digits - first), first, rank, digits + strspn(digits, "0123456789"));
	return w->text;
}

/* A file that cannot be read is told by its name; nothing is left when that is all. */
static int note_broken(struct telling *w, const struct dcp_err *why, size_t *nbroken)
{
	const char *name = w->files[w->at].name;
	struct dcp_object o = {
		.key = name, .path = &name, .npath = 1, .type = "", .error = why->msg
	};

	if (++*nbroken == w->n) {
		if (w->err)
			*w->err = *why;
		return why->code;
	}
	w->why[w->at] = strdup(why->msg);
	if (!w->why[w->at])
		return dcp_fail(w->err, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory");
	return w->in->sink->object(w->in->sink->ctx, &o);
}

static int tell_all(struct telling *w)
{
	size_t nbroken = 0;
	int rc = 0;

	for (w->at = 0; rc == 0 && w->at < w->n; w->at++) {
		struct dcp_err why = { 0 };

		rc = tell_file(w, &why);
		if (rc == -ENOMEM && why.code)
			return dcp_fail(w->err, rc, DCP_ERR_NO_OFFSET, "%s", why.msg);
		if (rc < 0 && why.code)
			rc = note_broken(w, &why, &nbroken);
	}
	return rc < 0 ? rc : dcp_cshards_tell(&w->shards, w->in->sink, file_of, w, w->err);
}

int dcp_composer_tell_files(const struct dcp_load *in, const struct dcp_composer_file *files,
			    size_t n, struct dcp_err *err)
{
	struct telling w = { .in = in, .files = files, .n = n, .err = err };
	char count[24];
	int rc;

	w.why = calloc(n + 1, sizeof(*w.why));
	if (!w.why)
		return dcp_fail(err, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory");
	dcp_cshards_init(&w.shards);
	rc = tell_all(&w);
	snprintf(count, sizeof(count), "%zu", n);
	if (rc == 0 && n > 1)
		rc = in->sink->meta(in->sink->ctx, "ranks", count);
	dcp_cshards_finish(&w.shards);
	dcp_intern_finish(&w.told);
	for (size_t i = 0; i < n; i++)
		free(w.why[i]);
	free(w.why);
	return rc;
}
