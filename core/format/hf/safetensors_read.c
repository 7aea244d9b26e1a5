/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "core/base/err.h"
#include "core/format/format.h"
#include "core/format/hf/safetensors_int.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/json.h"

static int add_shard(struct dcp_hf *h, const struct dcp_hf_shard *s)
{
	uint32_t at = (uint32_t)(h->shards.n / sizeof(*s)), number;
	struct dcp_hf_key *k, fresh = { at, at, 0 };
	const char *key = dcp_hf_key(h, &h->sets[h->files[s->file].set], s->e->name);
	int rc = key ? dcp_intern_str(&h->names, key, &number) : -ENOMEM;

	if (rc < 0)
		return -ENOMEM;
	if (rc == 1)
		dcp_buf_add(&h->keys, &fresh, sizeof(fresh));
	dcp_buf_add(&h->shards, s, sizeof(*s));
	if (dcp_buf_error(&h->keys) || dcp_buf_error(&h->shards))
		return -ENOMEM;
	k = DCP_ITEMS(h->keys, struct dcp_hf_key) + number;
	if (k->n > 0)
		DCP_ITEMS(h->shards, struct dcp_hf_shard)[k->last].next = at;
	k->last = at;
	k->n++;
	return 0;
}

/* saved_offsets of one key: as many as its shape has dimensions. */
static int read_offsets(struct dcp_hf *h, const struct dcp_json *info, struct dcp_hf_shard *s)
{
	const struct dcp_json *saved =
		dcp_json_get(dcp_json_get(info, s->e->name), "saved_offsets");
	uint64_t *lo;

	if (!saved)
		return 0; /* whole, as torch takes it */
	if (!dcp_json_is_array(saved) || dcp_json_len(saved) != s->e->ndim) {
		s->error = "its saved_offsets and its shape differ in length";
		return 0;
	}
	lo = dcp_arena_calloc(&h->arena, s->e->ndim + 1, sizeof(*lo));
	if (!lo)
		return -ENOMEM;
	for (uint32_t k = 0; k < s->e->ndim; k++)
		if (!dcp_json_u64(dcp_json_at(saved, k), &lo[k]))
			s->error = "its saved_offsets are not numbers";
	s->lo = lo;
	return 0;
}

static int add_entries(struct dcp_hf *h, uint32_t i, const struct dcp_safetensors *st)
{
	const char *text = dcp_safetensors_meta(st, "DCP_SHARDING_INFO");
	const char *broken = NULL;
	dcp_auto_json struct dcp_json *info = NULL;
	int rc = 0;

	if (text) {
		struct dcp_err why = { 0 };

		h->dcp = h->files[i].placed = true;
		if (dcp_json_parse(text, strlen(text), &info, &why) < 0)
			broken = dcp_arena_strdup(&h->arena, why.msg);
	}
	if (dcp_safetensors_meta(st, "DCP_VERSION"))
		h->dcp = true;
	for (size_t e = 0; e < st->n && rc == 0; e++) {
		struct dcp_hf_shard s = {
			.e = &st->entries[e],
			.error = broken,
			.file = i,
			.next = DCP_INTERN_NONE,
		};

		if (info)
			rc = read_offsets(h, info, &s);
		if (rc == 0)
			rc = add_shard(h, &s);
	}
	return rc;
}

int dcp_hf_read(struct dcp_hf *h, uint32_t i, struct dcp_err *err)
{
	struct dcp_hf_file *f = &h->files[i];
	struct dcp_err why = { 0 };
	dcp_auto_input struct dcp_input input = { 0 };
	int rc = dcp_emit_file(h->in->sink, f->name, &f->number);

	if (rc < 0)
		return rc;
	rc = dcp_dir_input(h->in->dir, f->name, &input, &why);
	if (rc == 0) {
		rc = dcp_safetensors_read(&input.src, &h->arena, &f->header, &why);
		if (rc < 0)
			dcp_err_where(&why, rc, "%s", f->name);
	}
	if (rc == 0 || rc == -ENOMEM)
		return rc;
	*(rc == -ENODATA ? &f->cut : &f->error) = dcp_arena_strdup(&h->arena, why.msg);
	if (!f->cut && !f->error)
		return -ENOMEM;
	*(f->cut ? &h->ncut : &h->nbroken) += 1;
	if (h->nbroken + h->ncut == h->nfiles) /* none is whole: it may still be written */
		return dcp_err_give(err, &why, rc);
	return 0;
}

int dcp_hf_add_set(struct dcp_hf *h, uint32_t i)
{
	struct dcp_hf_set *set = &h->sets[i];
	int rc = 0;

	for (uint32_t k = set->first; rc == 0 && k < set->first + set->n; k++)
		rc = add_entries(h, k, &h->files[k].header);
	return rc;
}
