/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/base/err.h"
#include "core/format/format.h"
#include "core/format/hf/safetensors_int.h"
#include "core/model/tensor.h"

static const struct dcp_hf_set *set_of(const struct dcp_hf *h, const struct dcp_hf_shard *s)
{
	return &h->sets[h->files[s->file].set];
}

static const struct dcp_hf_shard *shard_at(const struct dcp_hf *h, uint32_t i)
{
	return DCP_ITEMS(h->shards, struct dcp_hf_shard) + i;
}

static uint32_t next_shard(const struct dcp_hf *h, uint32_t i)
{
	return shard_at(h, i)->next;
}

/* dtype and size of elements, as one entry has them. */
static void describe(struct dcp_tensor *t, const struct dcp_safetensors_entry *e)
{
	uint64_t volume;

	t->key = e->name;
	t->dtype = e->dtype;
	t->dtype_name =
		e->dtype == DCP_DTYPE_OTHER ? e->dtype_name : dcp_dtype_info(e->dtype)->name;
	t->itemsize = dcp_dtype_info(e->dtype)->size;
	t->ndim = e->ndim;
	t->shape = e->shape;
	if (t->itemsize == 0 && dcp_shape_volume(e->shape, e->ndim, &volume) && volume > 0 &&
	    e->nbytes % volume == 0 && e->nbytes / volume <= UINT32_MAX)
		t->itemsize = (uint32_t)(e->nbytes / volume);
}

/* A piece for a shard at @lo (ndim zeros or its saved_offsets); false: it has no elements. */
static bool make_piece(const struct dcp_hf *h, const struct dcp_hf_shard *s, const uint64_t *lo,
		       struct dcp_piece *p)
{
	*p = (struct dcp_piece){
		.lo = lo,
		.len = s->e->shape,
		.off = s->e->off,
		.nbytes = s->e->nbytes,
		.file = h->files[s->file].number,
		.enc = DCP_ENC_PLAIN,
	};
	return dcp_shape_volume(s->e->shape, s->e->ndim, &p->run_n) && p->run_n > 0;
}

static int emit_whole(struct dcp_hf *h, const struct dcp_hf_shard *s, const char *error)
{
	struct dcp_tensor t = { 0 };
	struct dcp_piece p;

	describe(&t, s->e);
	t.pieces = &p;
	t.npieces = make_piece(h, s, dcp_origin, &p);
	if (!error && t.npieces && !t.itemsize)
		error = "a dtype whose element size is not known";
	return dcp_hf_emit_tensor(h, set_of(h, s), &t, error);
}

/* Files without sharding info that hold the same key: the one that the index names has it,
 * else the first; then the others are errors. */
static int emit_single(struct dcp_hf *h, const struct dcp_hf_key *k)
{
	const struct dcp_hf_shard *s = shard_at(h, k->first);
	const char *mapped = dcp_hf_index_file(&set_of(h, s)->index, s->e->name);
	uint32_t i, chosen = k->first;
	bool named = false;
	int rc;

	for (i = k->first; mapped && !named && i != DCP_INTERN_NONE; i = next_shard(h, i))
		if (strcmp(h->files[shard_at(h, i)->file].name, mapped) == 0) {
			chosen = i;
			named = true;
		}
	rc = emit_whole(h, shard_at(h, chosen), shard_at(h, chosen)->error);
	for (i = k->first; rc == 0 && !named && i != DCP_INTERN_NONE; i = next_shard(h, i)) {
		struct dcp_err why;

		if (i == chosen)
			continue;
		dcp_fail(&why, -EBADMSG, "both %s and %s hold it, and neither says which part",
			 h->files[shard_at(h, chosen)->file].name,
			 h->files[shard_at(h, i)->file].name);
		rc = emit_whole(h, shard_at(h, i), why.msg);
	}
	return rc;
}

/* The smallest shape that all shards fit in: DCP records no other. */
static const char *cover(const struct dcp_hf *h, const struct dcp_hf_key *k, uint64_t *shape)
{
	const struct dcp_safetensors_entry *first = shard_at(h, k->first)->e;

	memset(shape, 0, first->ndim * sizeof(*shape));
	for (uint32_t i = k->first; i != DCP_INTERN_NONE; i = next_shard(h, i)) {
		const struct dcp_hf_shard *s = shard_at(h, i);
		const uint64_t *lo = s->lo ? s->lo : dcp_origin;

		if (!h->files[s->file].placed)
			continue;
		if (s->error)
			return s->error;
		if (s->e->ndim != first->ndim || s->e->dtype != first->dtype ||
		    strcmp(s->e->dtype_name, first->dtype_name) != 0)
			return "its shards disagree about dtype or number of dimensions";
		for (uint32_t d = 0; d < first->ndim; d++) {
			uint64_t end;

			if (dcp_ckd_add(&end, lo[d], s->e->shape[d]))
				return "a shard ends beyond any shape";
			shape[d] = DCP_MAX(shape[d], end);
		}
	}
	return NULL;
}

/*
 * The error of a file that may hold more of the key of @s, or NULL. A tensor's size is written
 * nowhere but in its shards, so when one of them cannot be read the others would pass for a
 * smaller tensor. With an index every key is in one file, which was read.
 */
static const char *lost_shard(const struct dcp_hf *h, const struct dcp_hf_shard *s)
{
	const struct dcp_hf_set *set = set_of(h, s);

	if (!h->nbroken || dcp_hf_index_file(&set->index, s->e->name))
		return NULL;
	for (uint32_t i = set->first; i < set->first + set->n; i++)
		if (h->files[i].error)
			return h->files[i].error;
	return NULL;
}

static int emit_sharded(struct dcp_hf *h, const struct dcp_hf_key *k)
{
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_tensor t = { 0 };
	const char *error = lost_shard(h, shard_at(h, k->first));

	if (!error)
		error = cover(h, k, shape);
	dcp_join_begin(&h->join);
	describe(&t, shard_at(h, k->first)->e);
	for (uint32_t i = k->first; i != DCP_INTERN_NONE && !error; i = next_shard(h, i)) {
		const struct dcp_hf_shard *s = shard_at(h, i);
		struct dcp_tensor one = { 0 };
		struct dcp_piece p;

		if (!h->files[s->file].placed ||
		    !make_piece(h, s, s->lo ? s->lo : dcp_origin, &p))
			continue;
		describe(&one, s->e);
		t.itemsize = one.itemsize;
		dcp_join_add(&h->join, &p);
	}
	if (!error) {
		t.shape = shape;
		if (dcp_join_end(&h->join, &t, NULL, NULL, NULL) < 0)
			return -ENOMEM;
		if (t.npieces && !t.itemsize)
			error = "a dtype whose element size is not known";
	}
	return dcp_hf_emit_tensor(h, set_of(h, shard_at(h, k->first)), &t, error);
}

/*
 * Shards of ranks, or a whole tensor. Where both are there, a consolidated file was written beside
 * the shards: the index says so when that file is complete.
 */
static int emit_key(struct dcp_hf *h, const struct dcp_hf_key *k)
{
	const struct dcp_hf_shard *s = shard_at(h, k->first);
	const char *mapped = dcp_hf_index_file(&set_of(h, s)->index, s->e->name);
	bool placed = false, whole = false;

	for (uint32_t i = k->first; i != DCP_INTERN_NONE; i = next_shard(h, i)) {
		const struct dcp_hf_file *f = &h->files[shard_at(h, i)->file];

		placed |= f->placed;
		whole |= !f->placed && mapped && strcmp(f->name, mapped) == 0;
	}
	return placed && !whole ? emit_sharded(h, k) : emit_single(h, k);
}

/*
 * safetensors' save_model() stores tied weights once, and in the metadata for each name it
 * dropped the one that it kept.
 */
static int emit_tied(struct dcp_hf *h, const struct dcp_hf_set *set, const char *dropped,
		     const char *kept)
{
	const char *shown = dcp_hf_key(h, set, dropped);
	struct dcp_tensor t = { 0 };
	const struct dcp_hf_key *keys = DCP_ITEMS(h->keys, struct dcp_hf_key);
	uint32_t number;
	int rc;

	if (!shown)
		return -ENOMEM;
	if (dcp_intern_has(&h->names, shown))
		return 0;
	rc = dcp_intern_str(&h->aliases, shown, &number);
	if (rc < 0)
		return -ENOMEM;
	shown = dcp_hf_key(h, set, kept);
	if (!shown)
		return -ENOMEM;
	number = rc ? dcp_intern_find(&h->names, shown, strlen(shown)) : DCP_INTERN_NONE;
	if (number == DCP_INTERN_NONE)
		return 0; /* any other fact */
	describe(&t, shard_at(h, keys[number].first)->e);
	t.key = dropped;
	t.alias_of = dcp_intern_text(&h->names, number);
	return dcp_hf_emit_tensor(h, set, &t, NULL);
}

static int emit_all_tied(struct dcp_hf *h, const struct dcp_hf_file *f)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && !f->placed && i < f->header.nmeta; i++)
		rc = emit_tied(h, &h->sets[f->set], f->header.meta[2 * i],
			       f->header.meta[2 * i + 1]);
	return rc;
}

int dcp_hf_emit(struct dcp_hf *h)
{
	const struct dcp_hf_key *keys = DCP_ITEMS(h->keys, struct dcp_hf_key);
	int rc = 0;

	for (uint32_t i = 0; i < h->names.n && rc == 0; i++)
		rc = emit_key(h, &keys[i]);
	for (uint32_t i = 0; i < h->nfiles && rc == 0; i++)
		rc = emit_all_tied(h, &h->files[i]);
	for (uint32_t i = 0; i < h->nsets && rc == 0; i++)
		rc = dcp_hf_emit_promised(h, &h->sets[i]);
	return rc;
}
