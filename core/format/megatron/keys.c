/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Translates a key of one model-parallel rank into the key of the whole model.
 *
 * Stages: layer i of stage s is layer (layers of all stages before) + i. With interleaved
 * stages (model0, model1, ...) all stages of a chunk come before the next chunk. The layers of
 * encoder and decoder are counted apart. Experts: local expert i of expert-parallel rank e is
 * expert e * (local experts) + i. Experts that are stacked in one matrix (experts.weight1) have no
 * number.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/text.h"
#include "core/format/megatron/megatron_int.h"

enum { MAX_CHUNKS = 256, MAX_LAYERS = 1 << 20 };

/* ---- where a key belongs ---- */

/* Find the number after @mark in @key. Returns its first digit, or NULL if there is no number;
 * @end is after its digits. */
static const char *find_number(const char *key, const char *mark, uint64_t *n, const char **end)
{
	const char *p = strstr(key, mark);

	if (!p)
		return NULL;
	*end = p += strlen(mark);
	return dcp_take_number(end, NULL, 7, n) && (!**end || **end == '.') ? p : NULL;
}

static bool is_expert(const char *key)
{
	return strstr(key, ".experts.") != NULL;
}

/* Find the number of an expert: local_experts.<i>, or linear_fc1.weight<i> of a grouped GEMM. */
static const char *find_expert(const char *key, uint64_t *n, const char **end)
{
	static const char *const marks[] = { ".local_experts.", ".linear_fc1.weight",
					     ".linear_fc2.weight", ".linear_fc1.bias",
					     ".linear_fc2.bias" };
	const char *p = NULL;

	for (size_t i = 0; i < DCP_LEN(marks) && !p && is_expert(key); i++)
		p = find_number(key, marks[i], n, end);
	return p;
}

/* Is @key extra state of Transformer Engine, such as scales? Each rank has its own. */
static bool is_extra_state(const char *key)
{
	return strstr(key, "._extra_state") != NULL;
}

static enum dcp_mholder holder_of(const char *key)
{
	const char *end;
	uint64_t n;

	if (!is_expert(key))
		return DCP_MHOLD_ALL;
	return find_expert(key, &n, &end) || is_extra_state(key) ? DCP_MHOLD_EXPERT
								 : DCP_MHOLD_STACK;
}

static struct dcp_megatron_place place_of(const char *text)
{
	struct dcp_megatron_place p = { 0 };
	int at = 0;

	sscanf(text, "%u/%u/%u/%n", &p.chunk, &p.stage, &p.ep, &at);
	p.key = text + at;
	p.holder = holder_of(p.key);
	return p;
}

/*
 * Note if experts are cut by all tensor-parallel ranks, which the inputs of an expert's second
 * layer show. The argument expert_tensor_parallel_size may be wrong: Megatron's own converter
 * (tools/checkpoint) copies it from the source.
 */
static void see_expert(struct dcp_megatron_legacy *m, const char *key,
		       const struct dcp_tensor *t)
{
	bool matrix = dcp_megatron_view_is_stacked(key) == 2;
	uint64_t experts = matrix ? m->args.experts / m->ep : 1, inputs;

	if (t->error || t->ndim != 2 || (!matrix && !strstr(key, ".linear_fc2.weight")))
		return;
	inputs = t->shape[!matrix];
	if (inputs && inputs <= INT32_MAX && inputs * m->tp == experts * m->args.moe_ffn)
		m->etp = m->tp;
}

int dcp_megatron_legacy_keep(struct dcp_megatron_legacy *m, const struct dcp_tensor *t,
			     const char *key, uint32_t chunk, uint32_t who)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	const struct dcp_megatron_rank *r = &m->rank[who];
	struct dcp_megatron_place place = {
		.chunk = DCP_MIN(chunk, (uint32_t)MAX_CHUNKS - 1),
		.stage = r->pp,
		.ep = holder_of(key) == DCP_MHOLD_EXPERT ? r->ep : 0,
		.key = key,
	};
	struct dcp_tensor copy = *t;
	const char *path;

	if (is_expert(key))
		see_expert(m, key, t);
	if (dcp_megatron_place_print(&place, &name))
		return -ENOMEM;
	path = name.p;
	copy.key = name.p;
	copy.path = &path;
	copy.npath = 1;
	copy.alias_of = NULL;
	return dcp_copies_add(&m->model, &copy, who, r->dir);
}

/* ---- numbers ---- */

/* The stacks of layers that pipelines cut. Stacks of vision towers and of multi-token prediction
 * are not among them. */
static const char *const stacks[] = { "encoder.", "decoder.", "transformer.",
				      "language_model.decoder.", "" };

enum { NSTACKS = DCP_LEN(stacks) };

static const char *find_layer(const char *key, size_t *stack, uint64_t *n, const char **end)
{
	for (*stack = 0; *stack < DCP_LEN(stacks); ++*stack) {
		size_t len = strlen(stacks[*stack]);

		if (strncmp(key, stacks[*stack], len) == 0 &&
		    strncmp(key + len, "layers.", 7) == 0)
			return find_number(key, "layers.", n, end);
	}
	return NULL;
}

/* How the numbers in a rank's keys become the numbers of the whole model. */
struct numbering {
	/* For each stage of each chunk and each stack: its number of layers; after
	 * number_layers() the number of layers before it. */
	uint64_t (*layers)[NSTACKS];
	size_t nstages;   /* of all chunks */
	bool *read;       /* for each stage: has a file of it been read? */
	uint64_t experts; /* of each expert-parallel rank */
};

static int count_chunks(const struct dcp_megatron_legacy *m, struct numbering *to)
{
	const struct dcp_intern *names = &m->model.names;
	uint32_t nchunks = 0;

	for (uint32_t k = 0; k < names->n; k++)
		nchunks = DCP_MAX(nchunks, place_of(dcp_intern_text(names, k)).chunk + 1);
	to->nstages = (size_t)nchunks * m->pp;
	to->layers = calloc(to->nstages + 1, sizeof(*to->layers));
	to->read = calloc(m->pp, sizeof(*to->read));
	if (!to->layers || !to->read)
		return -ENOMEM;
	for (size_t i = 0; i < m->n; i++)
		to->read[m->rank[i].pp % m->pp] |= m->rank[i].file && !m->rank[i].error;
	for (uint32_t k = 0; k < names->n; k++) {
		struct dcp_megatron_place p = place_of(dcp_intern_text(names, k));
		uint64_t *layers = to->layers[(size_t)p.chunk * m->pp + p.stage], n;
		const char *end;
		size_t stack;

		if (find_layer(p.key, &stack, &n, &end))
			layers[stack] =
				DCP_MAX(layers[stack], DCP_MIN(n + 1, (uint64_t)MAX_LAYERS));
		if (find_expert(p.key, &n, &end))
			to->experts = DCP_MAX(to->experts, n + 1);
	}
	return 0;
}

/* The assumed number of layers of a stage whose files cannot be read: from the arguments, or else
 * from the other stages. */
static uint64_t guess_layers(const struct dcp_megatron_legacy *m, const struct numbering *all)
{
	uint64_t most = 0;

	if (m->args.layers && m->args.layers % all->nstages == 0)
		return DCP_MIN(m->args.layers / all->nstages, (uint64_t)MAX_LAYERS);
	for (size_t i = 0; i < all->nstages; i++)
		for (size_t k = 0; k < NSTACKS; k++)
			most = DCP_MAX(most, all->layers[i][k]);
	return most;
}

/* The first stack of which stage number @i has layers; NSTACKS: none. */
static size_t first_stack(const struct numbering *all, size_t i)
{
	size_t k = 0;

	while (k < NSTACKS && !all->layers[i][k])
		k++;
	return k;
}

/* Replace each number of layers by the number of layers before. */
static void number_layers(const struct dcp_megatron_legacy *m, struct numbering *all)
{
	uint64_t before[NSTACKS] = { 0 };
	uint64_t guess = all->nstages ? guess_layers(m, all) : 0;
	size_t stack = NSTACKS;

	for (size_t i = 0; i < all->nstages && stack == NSTACKS; i++)
		stack = first_stack(all, i);
	for (size_t i = 0; i < all->nstages; i++) {
		size_t first = first_stack(all, i);

		/* A stage that cannot be read continues where the stage before it ended. */
		if (first < NSTACKS)
			stack = first;
		else if (stack < NSTACKS && !all->read[i % m->pp])
			all->layers[i][stack] = guess;
		for (size_t k = 0; k < NSTACKS; k++) {
			uint64_t n = all->layers[i][k];

			all->layers[i][k] = before[k];
			before[k] += n;
		}
	}
}

/* Write the key in the whole model to @out. @who: a rank that holds it. */
static int name_whole(const struct dcp_megatron_legacy *m, const struct numbering *all,
		      const struct dcp_megatron_place *p, uint32_t who, struct dcp_buf *out)
{
	const char *at = p->key, *number, *end;
	size_t stack;
	uint64_t n;

	dcp_buf_reset(out);
	/* Each expert-parallel rank has such a key, and no number distinguishes the keys. */
	if (p->ep > 0 && !find_expert(at, &n, &end))
		dcp_buf_printf(out, "%s.", m->rank[who].dir);
	number = find_layer(p->key, &stack, &n, &end);
	if (number) {
		n += all->layers[(size_t)p->chunk * m->pp + p->stage][stack];
		dcp_buf_add(out, at, (size_t)(number - at));
		dcp_buf_printf(out, "%" PRIu64, n);
		at = end;
	}
	number = find_expert(at, &n, &end);
	if (number) {
		dcp_buf_add(out, at, (size_t)(number - at));
		dcp_buf_printf(out, "%" PRIu64, p->ep * all->experts + n);
		at = end;
	}
	return dcp_buf_str(out, at);
}

int dcp_megatron_legacy_emit_model(struct dcp_megatron_legacy *m, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	const struct dcp_copy **copy = calloc(dcp_megatron_legacy_max_copies(m), sizeof(*copy));
	struct numbering all = { 0 };
	struct dcp_intern emitted = { 0 };
	int rc = count_chunks(m, &all);

	if (rc == 0)
		number_layers(m, &all);
	if (!copy)
		rc = -ENOMEM;
	for (uint32_t k = 0; k < m->model.names.n && rc == 0; k++) {
		struct dcp_megatron_place place = place_of(dcp_intern_text(&m->model.names, k));

		rc = name_whole(m, &all, &place, dcp_copies_at(&m->model, k)->first->who,
				&name);
		if (rc == 0)
			rc = dcp_intern_add(&emitted, name.p, name.n, DCP_INTERN_NONE, NULL);
		/* A key that several stages hold is the same on all of them: emit it once. */
		if (rc == 1)
			rc = dcp_megatron_legacy_join(m, k, &place, name.p, copy);
	}
	dcp_intern_finish(&emitted);
	free(all.layers);
	free(all.read);
	free(copy);
	return rc;
}
