/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors are looked at, and how they are put together. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/text.h"
#include "core/model/name.h"
#include "core/model/tensor.h"
#include "tools/trust/walk.h"

const char *const walk_bys[] = { "key", "layer", "kind", "dtype", NULL };

struct adding {
	struct walk_keys *keys;
	struct dcp_index *ix;
	const struct opt_texts *words;
	bool *seen; /* a word named something */
};

static bool is_wanted(struct adding *a, const char *key)
{
	bool wanted = a->words->n == 0;

	for (size_t i = 0; i < a->words->n; i++)
		if (dcp_name_listed(&a->words->v[i], 1, key))
			wanted = a->seen[i] = true;
	return wanted;
}

static int add_key(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	struct adding *a = ctx;
	struct dcp_arena *arena = &a->keys->arena;
	dcp_auto_arena struct dcp_arena scratch = DCP_ARENA_INIT((size_t)1 << 30);
	struct walk_key k = { .id = row->id, .alias_of = row->alias_of, .nbytes = row->nbytes };
	uint64_t *shape;
	struct dcp_tensor t;
	int rc;

	if (kind != DCP_ROW_TENSOR || !is_wanted(a, row->key))
		return 0;
	rc = dcp_index_tensor(a->ix, row->id, &scratch, &t, NULL);
	if (rc < 0)
		return rc;
	shape = dcp_arena_calloc(arena, row->ndim + 1, sizeof(*shape));
	k.key = dcp_arena_strdup(arena, row->key);
	k.dtype = row->dtype;
	k.dtype_name = dcp_arena_strdup(arena, t.dtype_name);
	k.error = t.error ? dcp_arena_strdup(arena, t.error) : NULL;
	if (!shape || !k.key || !k.dtype_name || (t.error && !k.error))
		return -ENOMEM;
	memcpy(shape, row->shape, row->ndim * sizeof(*shape));
	k.shape = shape;
	k.ndim = row->ndim;
	if (!dcp_shape_volume(shape, k.ndim, &k.elements))
		return -EOVERFLOW;
	k.itemsize = t.cast != DCP_DTYPE_OTHER ? dcp_dtype_info(t.cast)->size : t.itemsize;
	dcp_buf_add(&a->keys->all, &k, sizeof(k));
	if (!k.alias_of)
		a->keys->nbytes += k.nbytes;
	return dcp_buf_error(&a->keys->all);
}

static int by_key(const void *a, const void *b)
{
	return strcmp(((const struct walk_key *)a)->key, ((const struct walk_key *)b)->key);
}

enum cmd_exit walk_keys(struct pick *p, const struct opt_texts *words, struct walk_keys *out)
{
	bool seen[OPT_MAX_TEXTS] = { 0 };
	struct adding a = { out, dcp_version_index(p->ck.v), words, seen };
	int rc;

	*out = (struct walk_keys){ .arena = DCP_ARENA_INIT((size_t)1 << 32) };
	rc = dcp_each_row(a.ix, DCP_ROW_TENSOR, add_key, &a);
	if (rc < 0)
		return pick_unreadable(p, rc);
	if (WALK_NKEYS(out))
		qsort(WALK_KEYS(out), WALK_NKEYS(out), sizeof(struct walk_key), by_key);
	for (size_t i = 0; i < words->n; i++)
		if (!seen[i])
			return pick_no_match(p, words->v[i], "tensor");
	return CMD_OK;
}

void walk_keys_finish(struct walk_keys *keys)
{
	dcp_arena_finish(&keys->arena);
	dcp_buf_finish(&keys->all);
}

/* ---- what lies where ---- */

struct stored {
	uint32_t file;
	uint64_t nbytes;
};

static int by_file(const void *a, const void *b)
{
	uint32_t x = ((const struct stored *)a)->file, y = ((const struct stored *)b)->file;

	return (x > y) - (x < y);
}

size_t *walk_ties(const struct walk_keys *keys)
{
	const struct walk_key *k = WALK_KEYS(keys);
	size_t n = WALK_NKEYS(keys), *tie = calloc(n + 1, sizeof(*tie)), *by_id;
	uint64_t most = 0;

	for (size_t i = 0; i < n; i++)
		most = DCP_MAX(most, (uint64_t)DCP_MAX(k[i].id, k[i].alias_of));
	by_id = calloc(most + 1, sizeof(*by_id));
	for (size_t i = 0; tie && by_id && i < n; i++)
		if (!k[i].alias_of)
			by_id[k[i].id] = i + 1;
	/* What all of them are tied to may be outside the list: then the first stands for it. */
	for (size_t i = 0; tie && by_id && i < n; i++)
		if (k[i].alias_of && by_id[k[i].alias_of])
			tie[i] = by_id[k[i].alias_of];
		else if (k[i].alias_of)
			by_id[k[i].alias_of] = i + 1;
	if (!by_id) {
		free(tie);
		tie = NULL;
	}
	free(by_id);
	return tie;
}

int walk_files(const struct pick *p, const struct walk_key *k,
	       int (*fn)(void *ctx, uint32_t file, uint64_t nbytes), void *ctx)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	dcp_auto_buf struct dcp_buf all = DCP_BUF_INIT;
	struct dcp_index *ix = dcp_version_index(p->ck.v);
	size_t nfiles;
	struct dcp_tensor t;
	int rc;

	dcp_index_files(ix, &nfiles);
	rc = dcp_index_tensor(ix, k->id, &arena, &t, NULL);
	for (size_t i = 0; rc == 0 && i < t.npieces; i++) {
		const struct dcp_piece *piece = &t.pieces[i];
		struct stored s = { piece->file, piece->nbytes };
		struct stored *last =
			all.n ? &DCP_ITEMS(all, struct stored)[all.n / sizeof(s) - 1] : NULL;

		if (piece->file >= nfiles || piece->filter == DCP_FILTER_ZERO)
			continue;
		if (last && last->file == s.file)
			last->nbytes += s.nbytes;
		else
			dcp_buf_add(&all, &s, sizeof(s));
	}
	if (rc == 0)
		rc = dcp_buf_error(&all);
	if (all.n)
		qsort(all.p, DCP_NITEMS(all, struct stored), sizeof(struct stored), by_file);
	for (size_t i = 0, n = DCP_NITEMS(all, struct stored); rc == 0 && i < n;) {
		struct stored s = DCP_ITEMS(all, struct stored)[i];

		while (++i < n && DCP_ITEMS(all, struct stored)[i].file == s.file)
			s.nbytes += DCP_ITEMS(all, struct stored)[i].nbytes;
		rc = fn(ctx, s.file, s.nbytes);
	}
	return rc;
}

/* ---- groups ---- */

static bool is_number(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!dcp_is_digit(s[i]))
			return false;
	return n > 0;
}

/*
 * Up to and with the first number; without one, without the last part: "model.layers.3",
 * "model.norm".
 */
static void put_layer(const char *key, struct dcp_buf *out)
{
	const char *last = strrchr(key, '.');

	for (const char *p = key; *p;) {
		size_t n = strcspn(p, ".");

		if (is_number(p, n)) {
			dcp_buf_add(out, key, (size_t)(p + n - key));
			return;
		}
		p += n + (p[n] == '.');
	}
	dcp_buf_add(out, key, last ? (size_t)(last - key) : strlen(key));
}

/* A star for each number: "model.layers.*.mlp.up_proj.weight". */
static void put_kind(const char *key, struct dcp_buf *out)
{
	for (const char *p = key; *p;) {
		size_t n = strcspn(p, ".");

		if (is_number(p, n))
			dcp_buf_str(out, "*");
		else
			dcp_buf_add(out, p, n);
		if (p[n])
			dcp_buf_str(out, ".");
		p += n + (p[n] == '.');
	}
}

void walk_group(enum walk_by by, const struct walk_key *k, struct dcp_buf *out)
{
	if (by == WALK_BY_LAYER)
		put_layer(k->key, out);
	else if (by == WALK_BY_KIND)
		put_kind(k->key, out);
	else
		dcp_buf_str(out, by == WALK_BY_DTYPE ? k->dtype_name : k->key);
	dcp_buf_add(out, "", 1);
}

const char *walk_place(char *buf, size_t size, const struct walk_key *k, uint64_t i)
{
	return dcp_place_text(buf, size, k->shape, k->ndim, i);
}
