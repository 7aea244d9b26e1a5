/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which key of the whole model is a key of one model-parallel rank?
 *
 * Stages: layer i of stage s is layer (layers of the stages before) + i; with interleaved
 * stages (model0, model1, ...) all stages of a chunk come before the next chunk. Experts: local
 * expert i of expert rank e is expert e * (local experts) + i.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/format/megatron_int.h"

enum { MAX_CHUNKS = 1024, MAX_LAYERS = 1 << 20 };

static struct dcp_mplace place_of(const char *text)
{
	struct dcp_mplace p = { 0 };
	int at = 0;

	sscanf(text, "%u/%u/%u/%n", &p.chunk, &p.stage, &p.ep, &at);
	p.key = text + at;
	return p;
}

bool dcp_mplace_is_expert(const char *key)
{
	return strstr(key, ".experts.") != NULL;
}

int dcp_mlegacy_keep(struct dcp_mlegacy *m, const struct dcp_tensor *t, const char *key,
		     uint32_t chunk, uint32_t who)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	const struct dcp_mrank *r = &m->rank[who];
	struct dcp_tensor copy = *t;
	const char *path;

	dcp_buf_printf(&name, "%u/%u/%u/%s", DCP_MIN(chunk, (uint32_t)MAX_CHUNKS - 1), r->pp,
		       dcp_mplace_is_expert(key) ? r->ep : 0, key);
	if (dcp_buf_error(&name))
		return -ENOMEM;
	path = name.p;
	copy.key = name.p;
	copy.path = &path;
	copy.npath = 1;
	copy.alias_of = NULL;
	return dcp_copies_add(&m->model, &copy, who);
}

/* The number behind @mark in @key; NULL: there is none. @end: behind its digits. */
static const char *find_number(const char *key, const char *mark, uint64_t *n, const char **end)
{
	const char *p = strstr(key, mark);
	size_t digits;

	if (!p)
		return NULL;
	p += strlen(mark);
	digits = strspn(p, "0123456789");
	if (digits == 0 || digits > 7 || (p[digits] && p[digits] != '.'))
		return NULL;
	*n = strtoull(p, NULL, 10);
	*end = p + digits;
	return p;
}

/* Of the layers that pipelines cut: not those of vision towers or of multi-token prediction. */
static const char *find_layer(const char *key, uint64_t *n, const char **end)
{
	static const char *const stacks[] = { "encoder.", "decoder.", "transformer.", "" };

	for (size_t i = 0; i < DCP_LEN(stacks); i++) {
		size_t len = strlen(stacks[i]);

		if (strncmp(key, stacks[i], len) == 0 && strncmp(key + len, "layers.", 7) == 0)
			return find_number(key, "layers.", n, end);
	}
	return NULL;
}

static const char *find_expert(const char *key, uint64_t *n, const char **end)
{
	const char *p = find_number(key, ".local_experts.", n, end);

	if (!p && dcp_mplace_is_expert(key)) /* grouped: linear_fc1.weight<i> */
		p = find_number(key, ".linear_fc1.weight", n, end);
	return !p && dcp_mplace_is_expert(key) ? find_number(key, ".linear_fc2.weight", n, end)
					       : p;
}

/* What numbers mean in the whole model. */
struct numbering {
	uint64_t *layers; /* per chunk and stage: how many there are; then: before them */
	uint32_t nchunks;
	uint64_t experts; /* local ones */
};

static int count(const struct dcp_mlegacy *m, struct numbering *to)
{
	uint64_t known = 0;
	uint32_t nstages = m->pp;

	for (uint32_t k = 0; k < m->model.names.n; k++)
		to->nchunks = DCP_MAX(to->nchunks,
				      place_of(dcp_intern_text(&m->model.names, k)).chunk + 1);
	to->layers = calloc((size_t)to->nchunks * nstages + 1, sizeof(*to->layers));
	if (!to->layers)
		return -ENOMEM;
	for (uint32_t k = 0; k < m->model.names.n; k++) {
		struct dcp_mplace p = place_of(dcp_intern_text(&m->model.names, k));
		uint64_t *layers = &to->layers[(size_t)p.chunk * nstages + p.stage], n;
		const char *end;

		if (find_layer(p.key, &n, &end))
			*layers = DCP_MAX(*layers, DCP_MIN(n + 1, (uint64_t)MAX_LAYERS));
		if (find_expert(p.key, &n, &end))
			to->experts = DCP_MAX(to->experts, n + 1);
		known = DCP_MAX(known, *layers);
	}
	/* A stage of which no file can be read has as many layers as the arguments, or the
	 * other stages, say. */
	if (m->args.layers && m->args.layers % ((uint64_t)to->nchunks * nstages) == 0)
		known = DCP_MIN(m->args.layers / ((uint64_t)to->nchunks * nstages),
				(uint64_t)MAX_LAYERS);
	for (size_t i = 0, before = 0; i < (size_t)to->nchunks * nstages; i++) {
		const struct dcp_mrank *r = NULL;
		uint64_t n = to->layers[i];

		for (uint32_t t = 0; t < m->tp && !r; t++) {
			r = dcp_mlegacy_rank(m, t, (uint32_t)(i % nstages), 0);
			r = r && !r->error ? r : NULL;
		}
		to->layers[i] = before;
		before += n || r ? n : known;
	}
	return 0;
}

/* The key in the whole model into @out. */
static int name_whole(const struct dcp_mlegacy *m, const struct numbering *all,
		      const struct dcp_mplace *p, struct dcp_buf *out)
{
	const char *at = p->key, *number, *end;
	uint64_t n;

	dcp_buf_reset(out);
	number = find_layer(p->key, &n, &end);
	if (number) {
		dcp_buf_add(out, at, (size_t)(number - at));
		dcp_buf_printf(out, "%" PRIu64,
			       all->layers[(size_t)p->chunk * m->pp + p->stage] + n);
		at = end;
	}
	number = find_expert(at, &n, &end);
	if (number) {
		dcp_buf_add(out, at, (size_t)(number - at));
		dcp_buf_printf(out, "%" PRIu64, p->ep * all->experts + n);
		at = end;
	}
	dcp_buf_str(out, at);
	return dcp_buf_error(out);
}

int dcp_mlegacy_tell_model(struct dcp_mlegacy *m, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	const struct dcp_copy **copy = calloc(m->tp, sizeof(*copy));
	struct numbering all = { 0 };
	struct dcp_intern told = { 0 };
	int rc = count(m, &all);

	(void)err;
	if (!copy)
		rc = -ENOMEM;
	for (uint32_t k = 0; k < m->model.names.n && rc == 0; k++) {
		struct dcp_mplace place = place_of(dcp_intern_text(&m->model.names, k));
		uint32_t number;

		rc = name_whole(m, &all, &place, &name);
		if (rc == 0)
			rc = dcp_intern_add(&told, name.p, name.n, DCP_INTERN_NONE, &number);
		/* What several stages hold is the same on all. */
		if (rc == 1)
			rc = dcp_mlegacy_join(m, k, &place, name.p, copy);
	}
	dcp_intern_finish(&told);
	free(all.layers);
	free(copy);
	return rc;
}
