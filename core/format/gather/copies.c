/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/gather/copies.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/base/err.h"
#include "core/base/sort.h"

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
}

struct dcp_copies_key *dcp_copies_at(const struct dcp_copies *g, uint32_t key)
{
	return DCP_ITEMS(g->keys, struct dcp_copies_key) + key;
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

struct numbered {
	struct dcp_piece p;
	size_t i;
};

/* Of equal ones the first emitted stays in front. */
static int compare(const void *pa, const void *pb, void *ndim)
{
	const struct numbered *a = pa, *b = pb;

	return dcp_piece_compare(&a->p, &b->p, *(const uint32_t *)ndim) ?: DCP_CMP(a->i, b->i);
}

/* All pieces of the good copies, each place once, and once more from another file; NULL: no memory. */
static struct dcp_piece *unite(struct dcp_copies *g, const struct dcp_copies_key *k,
			       struct dcp_tensor *t)
{
	struct numbered *all;
	struct dcp_piece *to, *more;
	size_t n = 0, kept = 0, ncopies = 0;
	bool again = false;

	for (const struct dcp_copy *c = k->first; c; c = c->next)
		n += c->t.error ? 0 : c->t.npieces;
	all = dcp_arena_calloc(&g->arena, n + 1, sizeof(*all));
	to = dcp_arena_calloc(&g->arena, n + 1, sizeof(*to));
	more = dcp_arena_calloc(&g->arena, n + 1, sizeof(*more));
	if (!all || !to || !more)
		return NULL;
	n = 0;
	for (const struct dcp_copy *c = k->first; c; c = c->next)
		for (size_t i = 0; !c->t.error && i < c->t.npieces; i++, n++)
			all[n] = (struct numbered){ c->t.pieces[i], n };
	qsort_r(all, n, sizeof(*all), compare, &t->ndim);
	for (size_t i = 0; i < n; i++)
		if (!kept || dcp_piece_compare(&to[kept - 1], &all[i].p, t->ndim) != 0) {
			to[kept++] = all[i].p;
			again = false;
		} else if (!again && to[kept - 1].file != all[i].p.file) {
			more[ncopies++] = all[i].p;
			again = true;
		}
	t->pieces = to;
	t->npieces = kept;
	t->copies = more;
	t->ncopies = ncopies;
	return to;
}

/* Elements that no piece holds, as far as counting can say. */
static uint64_t count_missing(const struct dcp_tensor *t, uint64_t *volume)
{
	uint64_t sum = 0;

	if (!dcp_shape_volume(t->shape, t->ndim, volume))
		return 0; /* the index says what is wrong */
	for (size_t i = 0; i < t->npieces; i++)
		if (dcp_ckd_add(&sum, sum, t->pieces[i].run_n))
			return 0;
	return sum < *volume ? *volume - sum : 0;
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

static void join(struct dcp_copies *g, const struct dcp_copies_key *k, struct dcp_tensor *t,
		 const char *missing, struct dcp_err *why)
{
	const struct dcp_copy *bad, *head = choose(k, &bad);
	uint64_t volume = 0, lost;

	*t = head->t;
	if (t->error) {
		dcp_fail(why, -EBADMSG, "%s: %s", head->file, t->error);
		return;
	}
	for (const struct dcp_copy *c = head->next; c; c = c->next) {
		if (c->t.error || dcp_copies_alike(&head->t, &c->t))
			continue;
		dcp_fail(why, -EBADMSG, "%s and %s disagree about its dtype or shape",
			 head->file, c->file);
		return;
	}
	if (!unite(g, k, t)) {
		dcp_fail(why, -ENOMEM, "out of memory for its pieces");
		return;
	}
	lost = count_missing(t, &volume);
	if (lost && bad)
		dcp_fail(why, -EBADMSG, "%s: %s", bad->file, bad->t.error);
	else if (lost)
		dcp_fail(why, -EBADMSG, "%" PRIu64 " of %" PRIu64 " element%s missing: %s",
			 lost, volume, volume == 1 ? " is" : "s are",
			 missing ? missing : "no file holds them");
}

int dcp_copies_emit(struct dcp_copies *g, uint32_t key, const struct dcp_sink *sink,
		    const char *missing)
{
	struct dcp_err why = { 0 };
	struct dcp_tensor t;

	join(g, dcp_copies_at(g, key), &t, missing, &why);
	if (why.code == -ENOMEM)
		return -ENOMEM;
	t.error = why.code ? why.msg : NULL;
	t.alias_of = NULL; /* a rank's view of what it holds; the whole is emitted */
	return dcp_emit_tensor(sink, &t);
}
