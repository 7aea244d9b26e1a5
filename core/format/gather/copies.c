/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/gather/copies.h"

#include <errno.h>
#include <string.h>

#include "core/base/err.h"

/* Descriptions of tens of millions of pieces. */
static const size_t arena_limit = (size_t)4 << 30;

void dcp_copies_init(struct dcp_copies *g)
{
	*g = (struct dcp_copies){ 0 };
	dcp_arena_init(&g->arena, arena_limit);
}

void dcp_copies_finish(struct dcp_copies *g)
{
	dcp_arena_finish(&g->arena);
	dcp_intern_finish(&g->names);
	dcp_buf_finish(&g->keys);
	dcp_join_finish(&g->join);
}

struct dcp_copies_key *dcp_copies_at(const struct dcp_copies *g, uint32_t key)
{
	return DCP_ITEMS(g->keys, struct dcp_copies_key) + key;
}

int dcp_copies_read(struct dcp_copies *g, const struct dcp_load *in, size_t n,
		    int (*read)(void *ctx, size_t i, struct dcp_err *why),
		    int (*emit_broken)(void *ctx, size_t i, const char *why), void *ctx,
		    struct dcp_err *err)
{
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++) {
		struct dcp_err why = { 0 };

		rc = read(ctx, i, &why);
		dcp_load_progress(in, i + 1, n, "files");
		if (rc != 1)
			continue;
		if (g->nbroken++ == 0)
			g->broken = why;
		rc = g->nbroken == n ? dcp_err_give(err, &why, why.code ?: -EBADMSG)
				     : emit_broken(ctx, i, why.msg);
	}
	return rc;
}

/* ---- copying ---- */

static bool copy_str(struct dcp_copies *g, const char **s)
{
	if (*s)
		*s = dcp_arena_strdup(&g->arena, *s);
	return *s != NULL;
}

static bool copy_dims(struct dcp_copies *g, const uint64_t **dims, uint32_t ndim)
{
	*dims = dcp_arena_dup(&g->arena, *dims, ndim, sizeof(**dims));
	return *dims != NULL;
}

static bool copy_path(struct dcp_copies *g, struct dcp_tensor *t)
{
	const char **path = dcp_arena_dup(&g->arena, t->path, t->npath, sizeof(*path));
	bool ok = path != NULL;

	for (size_t i = 0; ok && i < t->npath; i++)
		ok = copy_str(g, &path[i]);
	t->path = path;
	return ok;
}

static bool copy_pieces(struct dcp_copies *g, struct dcp_tensor *t)
{
	struct dcp_piece *p = dcp_arena_dup(&g->arena, t->pieces, t->npieces, sizeof(*p));
	bool ok = p != NULL;

	for (size_t i = 0; ok && i < t->npieces; i++)
		ok = copy_dims(g, &p[i].lo, t->ndim) && copy_dims(g, &p[i].len, t->ndim) &&
		     (!p[i].stride || copy_dims(g, &p[i].stride, t->ndim));
	t->pieces = p;
	return ok;
}

/* The key and path of a later copy are those of the first. */
static bool copy_tensor(struct dcp_copies *g, struct dcp_tensor *t,
			const struct dcp_copies_key *k)
{
	if (k->first) {
		t->key = k->first->t.key;
		t->path = k->first->t.path;
		t->npath = k->first->t.npath;
	} else if (!copy_str(g, &t->key) || !copy_path(g, t)) {
		return false;
	}
	return copy_str(g, &t->dtype_name) && copy_dims(g, &t->shape, t->ndim) &&
	       (!t->error || copy_str(g, &t->error)) &&
	       (!t->alias_of || copy_str(g, &t->alias_of)) && copy_pieces(g, t);
}

int dcp_copies_number(struct dcp_copies *g, const char *key, uint32_t *number)
{
	struct dcp_copies_key fresh = { 0 };
	int rc = dcp_intern_str(&g->names, key, number);

	if (rc == 1)
		dcp_buf_add(&g->keys, &fresh, sizeof(fresh));
	return rc < 0 || dcp_buf_error(&g->keys) ? -ENOMEM : 0;
}

int dcp_copies_add(struct dcp_copies *g, const struct dcp_tensor *t, uint32_t who,
		   const char *file)
{
	struct dcp_copy *c = dcp_arena_alloc(&g->arena, sizeof(*c));
	struct dcp_copies_key *k;
	uint32_t number;

	if (dcp_copies_number(g, t->key, &number) < 0 || !c)
		return -ENOMEM;
	k = dcp_copies_at(g, number);
	*c = (struct dcp_copy){ .who = who, .file = file, .t = *t };
	if (!copy_tensor(g, &c->t, k))
		return -ENOMEM;
	if (k->last)
		k->last->next = c;
	else
		k->first = c;
	k->last = c;
	k->n++;
	return 0;
}

/* ---- joining ---- */

bool dcp_copies_alike(const struct dcp_tensor *a, const struct dcp_tensor *b)
{
	return a->ndim == b->ndim && a->dtype == b->dtype && a->itemsize == b->itemsize &&
	       strcmp(a->dtype_name, b->dtype_name) == 0 &&
	       memcmp(a->shape, b->shape, a->ndim * sizeof(*a->shape)) == 0;
}

/* The first good copy, or the first of all. @bad: the first that is broken. */
static const struct dcp_copy *choose(const struct dcp_copies_key *k,
				     const struct dcp_copy **bad)
{
	const struct dcp_copy *good = NULL;

	*bad = NULL;
	for (const struct dcp_copy *c = k->first; c; c = c->next) {
		if (c->t.error && !*bad)
			*bad = c;
		if (!c->t.error && !good)
			good = c;
	}
	return good ? good : k->first;
}

/* @t: the key as all copies together have it, its pieces in @j. */
static int join(struct dcp_join *j, const struct dcp_copies_key *k, struct dcp_tensor *t,
		const char *missing, struct dcp_err *why)
{
	const struct dcp_copy *bad, *head = choose(k, &bad);

	*t = head->t;
	if (t->error) {
		dcp_fail(why, -EBADMSG, "%s: %s", head->file, t->error);
		return 0;
	}
	dcp_join_begin(j);
	if (bad)
		dcp_join_lose(j, -EBADMSG, "%s: %s", bad->file, bad->t.error);
	for (const struct dcp_copy *c = k->first; c; c = c->next) {
		if (!c->t.error && !dcp_copies_alike(&head->t, &c->t)) {
			dcp_fail(why, -EBADMSG, "%s and %s disagree about its dtype or shape",
				 head->file, c->file);
			return 0;
		}
		for (size_t i = 0; !c->t.error && i < c->t.npieces; i++)
			dcp_join_add(j, &c->t.pieces[i]);
	}
	return dcp_join_end(j, t, NULL, missing ? missing : "no file holds them", why);
}

int dcp_copies_emit(struct dcp_copies *g, uint32_t key, const struct dcp_sink *sink,
		    const char *missing)
{
	struct dcp_err why = { 0 };
	struct dcp_tensor t;
	int rc = join(&g->join, dcp_copies_at(g, key), &t, missing, &why);

	if (rc < 0)
		return rc;
	t.error = why.code ? why.msg : NULL;
	t.alias_of = NULL; /* a rank's view of what it holds; the whole is emitted */
	return dcp_emit_tensor(sink, &t);
}

int dcp_copies_emit_all(struct dcp_copies *g, const struct dcp_sink *sink, const char *missing)
{
	int rc = 0;

	for (uint32_t k = 0; k < g->names.n && rc == 0; k++)
		rc = dcp_copies_emit(g, k, sink, g->nbroken ? g->broken.msg : missing);
	return rc;
}
