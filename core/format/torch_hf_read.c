/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "core/format/format.h"
#include "core/format/torch_hf_int.h"
#include "core/model/tensor.h"
#include "core/parse/dir.h"
#include "core/parse/json.h"
#include "core/parse/source.h"

static int no_memory(struct dcp_err *err)
{
	return dcp_fail(err, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory for headers");
}

static int add_shard(struct dcp_hf *h, const struct dcp_hf_shard *s, struct dcp_err *err)
{
	uint32_t at = (uint32_t)(h->shards.n / sizeof(*s)), number;
	struct dcp_hf_key *k, fresh = { at, at, 0 };
	int rc = dcp_intern_add(&h->names, s->e->name, strlen(s->e->name), DCP_INTERN_NONE,
				&number);

	if (rc < 0)
		return no_memory(err);
	if (rc == 1)
		dcp_buf_add(&h->keys, &fresh, sizeof(fresh));
	dcp_buf_add(&h->shards, s, sizeof(*s));
	if (dcp_buf_error(&h->keys) || dcp_buf_error(&h->shards))
		return no_memory(err);
	k = (struct dcp_hf_key *)(void *)h->keys.p + number;
	if (k->n > 0)
		((struct dcp_hf_shard *)(void *)h->shards.p)[k->last].next = at;
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
		s->error = "its saved_offsets have not as many numbers as its shape";
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

static int add_entries(struct dcp_hf *h, uint32_t i, const struct dcp_safetensors *st,
		       struct dcp_err *err)
{
	const char *text = dcp_safetensors_meta(st, "DCP_SHARDING_INFO");
	const char *broken = NULL;
	struct dcp_json *info = NULL;
	int rc = 0;

	if (text) {
		struct dcp_err why = { 0 };

		h->dcp = h->files[i].placed = true;
		if (dcp_json_parse(text, strlen(text), &info, &why) < 0)
			broken = dcp_arena_strndup(&h->arena, why.msg, strlen(why.msg));
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

		if (info && read_offsets(h, info, &s) < 0)
			rc = no_memory(err);
		if (rc == 0)
			rc = add_shard(h, &s, err);
	}
	dcp_json_free(info);
	return rc;
}

int dcp_hf_read(struct dcp_hf *h, uint32_t i, struct dcp_err *err)
{
	struct dcp_hf_file *f = &h->files[i];
	const struct dcp_sink *sink = h->in->sink;
	struct dcp_safetensors st = { 0 };
	struct dcp_err why = { 0 };
	dcp_auto_fd int fd = -1;
	struct dcp_source src;
	int rc = sink->file(sink->ctx, f->name, &f->number);

	if (rc < 0)
		return rc;
	rc = dcp_open_beneath(h->in->dir->fd, f->name, &fd, NULL, &why);
	if (rc == 0) {
		rc = dcp_source_fd(fd, &src);
		if (rc == 0)
			rc = dcp_safetensors_read(&src, &h->arena, &st, &why);
		if (rc < 0 && rc != -ENOMEM)
			dcp_err_where(&why, rc, "%s", f->name);
	}
	if (rc == -ENOMEM)
		return no_memory(err);
	if (rc == 0)
		return add_entries(h, i, &st, err);
	h->nbroken++;
	f->error = dcp_arena_strndup(&h->arena, why.msg, strlen(why.msg));
	if (!f->error)
		return no_memory(err);
	if (h->nbroken == h->nfiles) { /* nothing is left to show */
		if (err)
			*err = why;
		return rc;
	}
	return 0;
}

int dcp_hf_read_index(struct dcp_hf *h, struct dcp_err *err)
{
	const struct dcp_sink *sink = h->in->sink;
	dcp_auto_free char *text = NULL;
	dcp_auto_fd int fd = -1;
	struct dcp_source src;
	uint32_t number;
	int rc = sink->file(sink->ctx, h->index_name, &number);

	if (rc < 0)
		return rc;
	rc = dcp_open_beneath(h->in->dir->fd, h->index_name, &fd, NULL, err);
	if (rc < 0)
		return rc;
	rc = dcp_source_fd(fd, &src);
	if (rc < 0)
		return dcp_fail(err, rc, DCP_ERR_NO_OFFSET, "%s cannot be read", h->index_name);
	if (src.size > DCP_HF_MAX_INDEX)
		return dcp_fail(err, -E2BIG, DCP_ERR_NO_OFFSET,
				"%s has %llu bytes, at most %u are read", h->index_name,
				(unsigned long long)src.size, DCP_HF_MAX_INDEX);
	text = malloc((size_t)src.size + 1);
	if (!text)
		return no_memory(err);
	rc = dcp_source_read(&src, 0, text, (size_t)src.size);
	if (rc < 0)
		return dcp_fail(err, rc, DCP_ERR_NO_OFFSET, "%s cannot be read", h->index_name);
	rc = dcp_json_parse(text, (size_t)src.size, &h->index, err);
	if (rc < 0)
		return dcp_err_where(err, rc, "%s", h->index_name);
	h->map = dcp_json_get(h->index, "weight_map");
	if (!dcp_json_is_object(h->map))
		return dcp_fail(err, -EBADMSG, DCP_ERR_NO_OFFSET, "%s has no weight_map object",
				h->index_name);
	return 0;
}
