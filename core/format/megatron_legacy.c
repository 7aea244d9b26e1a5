/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron-LM's own checkpoints, one directory for each model-parallel rank:
 *
 *	mp_rank_<TT>[_<PPP>][_<EEE>]/model_optim_rng.pt     tensor, pipeline, expert parallel
 *	mp_rank_.../distrib_optim.pt                        flat buffers without names
 *
 * The model's tensors are put together (megatron_join.c): "model" and "language_model" are left
 * away, layers get the number they have in the whole model. What else the files hold is told as
 * the first rank has it; what another rank has differently, below the name of its directory:
 *
 *	args, iteration, rng_state, optimizer ...           of mp_rank_00_000
 *	mp_rank_01_000.rng_state ...                        where it differs
 *
 * A missing file breaks the keys that need it. latest_checkpointed_iteration.txt, beside the
 * versions, commits them.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "core/format/formats.h"
#include "core/format/megatron_int.h"
#include "core/model/tensor.h"
#include "core/parse/dir.h"
#include "core/parse/source.h"
#include "core/parse/torch.h"

enum { MAX_PARALLEL = 4096, MAX_RULES = 1 << 20 };

/* ---- names ---- */

/* "mp_rank_01_002": its numbers; false: it is called otherwise. */
static bool parse_name(const char *name, struct dcp_mrank *r)
{
	const char *p = name + 7;

	r->nnumbers = 0;
	if (strncmp(name, "mp_rank", 7) != 0)
		return false;
	while (*p == '_' && r->nnumbers < 3) {
		size_t n = strspn(p + 1, "0123456789");

		if (n == 0 || n > 6)
			return false;
		r->number[r->nnumbers++] = strtoull(p + 1, NULL, 10);
		p += n + 1;
	}
	return r->nnumbers > 0 && !*p;
}

static enum dcp_match probe(const struct dcp_dir *dir, char *why, size_t n)
{
	struct dcp_mrank r;

	(void)why;
	(void)n;
	for (size_t i = 0; i < dir->n; i++) {
		struct dcp_dir below;
		bool found;

		if (!dir->entries[i].is_dir || !parse_name(dir->entries[i].name, &r) ||
		    dcp_dir_open_at(dir, dir->entries[i].name, &below, NULL) < 0)
			continue;
		found = dcp_dir_find(&below, DCP_MEGATRON_FILE) != NULL;
		dcp_dir_close(&below);
		if (found)
			return DCP_MATCH_YES;
	}
	return DCP_MATCH_NO;
}

static int list_ranks(struct dcp_mlegacy *m)
{
	const struct dcp_dir *dir = m->in->dir;

	m->rank = calloc(dir->n + 1, sizeof(*m->rank));
	if (!m->rank)
		return -ENOMEM;
	for (size_t i = 0; i < dir->n; i++) {
		m->rank[m->n].dir = dir->entries[i].name;
		m->n += dir->entries[i].is_dir &&
			parse_name(dir->entries[i].name, &m->rank[m->n]);
	}
	return 0;
}

/* Two numbers are tensor and pipeline parallel, or (pipelines of one stage) tensor and expert
 * parallel: the arguments say which. */
static int place_ranks(struct dcp_mlegacy *m, struct dcp_err *err)
{
	m->tp = (uint32_t)DCP_MAX(m->args.tp, 1u);
	m->pp = (uint32_t)DCP_MAX(m->args.pp, 1u);
	m->ep = (uint32_t)DCP_MAX(m->args.ep, 1u);
	for (size_t i = 0; i < m->n; i++) {
		struct dcp_mrank *r = &m->rank[i];
		bool expert = r->nnumbers == 2 && m->args.pp == 1 && m->args.ep > 1;

		r->tp = (uint32_t)r->number[0];
		r->pp = r->nnumbers > 1 && !expert ? (uint32_t)r->number[1] : 0;
		r->ep = expert            ? (uint32_t)r->number[1]
			: r->nnumbers > 2 ? (uint32_t)r->number[2]
					  : 0;
		m->tp = DCP_MAX(m->tp, r->tp + 1);
		m->pp = DCP_MAX(m->pp, r->pp + 1);
		m->ep = DCP_MAX(m->ep, r->ep + 1);
	}
	if (m->tp > MAX_PARALLEL || m->pp > MAX_PARALLEL || m->ep > MAX_PARALLEL)
		return dcp_fail(
			err, -E2BIG, DCP_ERR_NO_OFFSET,
			"%u tensor, %u pipeline and %u expert parallel ranks: at most %d "
			"of each are possible",
			m->tp, m->pp, m->ep, MAX_PARALLEL);
	return 0;
}

void dcp_mlegacy_dir(const struct dcp_mlegacy *m, uint32_t tp, uint32_t pp, uint32_t ep,
		     char name[DCP_MEGATRON_DIR])
{
	unsigned numbers = m->n ? m->rank[0].nnumbers : 1;
	int at = snprintf(name, DCP_MEGATRON_DIR, "mp_rank_%02u", tp);

	if (numbers > 1)
		at += snprintf(name + at, (size_t)(DCP_MEGATRON_DIR - at), "_%03u",
			       numbers == 2 && m->pp == 1 ? ep : pp);
	if (numbers > 2)
		snprintf(name + at, (size_t)(DCP_MEGATRON_DIR - at), "_%03u", ep);
}

struct dcp_mrank *dcp_mlegacy_rank(const struct dcp_mlegacy *m, uint32_t tp, uint32_t pp,
				   uint32_t ep)
{
	for (size_t i = 0; i < m->n; i++)
		if (m->rank[i].tp == tp && m->rank[i].pp == pp && m->rank[i].ep == ep)
			return &m->rank[i];
	return NULL;
}

/* ---- one file ---- */

static uint64_t number_of(struct dcp_pv args, const char *name)
{
	const struct dcp_pv *v = dcp_pv_get(args, name);
	uint64_t n = 0;

	return v && dcp_pv_u64(*v, &n) && n <= INT64_MAX ? n : 0;
}

static void read_args(struct dcp_margs *a, struct dcp_pv root)
{
	const struct dcp_pv *args = dcp_pv_get(root, "args");

	if (!args || a->tp)
		return;
	*a = (struct dcp_margs){
		.tp = number_of(*args, "tensor_model_parallel_size"),
		.pp = number_of(*args, "pipeline_model_parallel_size"),
		.ep = number_of(*args, "expert_model_parallel_size"),
		.layers = number_of(*args, "num_layers"),
		.hidden = number_of(*args, "hidden_size"),
		.ffn = number_of(*args, "ffn_hidden_size"),
		.heads = number_of(*args, "num_attention_heads"),
		.kv_channels = number_of(*args, "kv_channels"),
		.vocab = number_of(*args, "padded_vocab_size"),
		.experts = number_of(*args, "num_experts"),
	};
}

/* ---- all files ---- */

/* The arguments stand in every file; they are needed before any can be told. */
static int find_args(struct dcp_mlegacy *m, size_t *first, struct dcp_err *err)
{
	struct dcp_err last = { 0 };

	*first = m->n;
	for (size_t i = 0; i < m->n && *first == m->n; i++) {
		char path[512];
		struct dcp_input input;
		struct dcp_torch *t;
		struct dcp_err why = { 0 };
		int rc;

		snprintf(path, sizeof(path), "%.250s/" DCP_MEGATRON_FILE, m->rank[i].dir);
		rc = dcp_dir_input(m->in->dir, path, &input, &why);
		if (rc == 0) {
			rc = dcp_torch_open(&input.src, 0, &t, &why);
			if (rc < 0)
				dcp_err_where(&why, rc, "%s", path);
			dcp_input_close(&input);
		}
		if (rc == -ENOMEM)
			return dcp_fail(err, rc, DCP_ERR_NO_OFFSET, "out of memory reading %s",
					path);
		if (rc == 0) {
			read_args(&m->args, dcp_torch_root(t));
			dcp_torch_close(t);
			*first = i;
		} else {
			m->rank[i].error =
				dcp_arena_strndup(&m->model.arena, why.msg, strlen(why.msg));
			last = last.code ? last : why;
			rc = m->rank[i].error ? 0 : -ENOMEM;
			if (rc < 0)
				return rc;
		}
	}
	if (*first < m->n)
		return 0;
	if (err)
		*err = last;
	return last.code ? last.code : -ENOENT;
}

static int read_rules(struct dcp_mlegacy *m, struct dcp_err *err)
{
	dcp_auto_free char *text = NULL;
	struct dcp_input input;
	uint32_t number;
	int rc;

	if (!dcp_dir_find(m->in->dir, DCP_MEGATRON_RULES))
		return 0;
	rc = m->in->sink->file(m->in->sink->ctx, DCP_MEGATRON_RULES, &number);
	if (rc == 0)
		rc = dcp_dir_input(m->in->dir, DCP_MEGATRON_RULES, &input, err);
	if (rc < 0)
		return rc;
	if (input.src.size > MAX_RULES)
		rc = dcp_fail(err, -E2BIG, DCP_ERR_NO_OFFSET,
			      DCP_MEGATRON_RULES " is too long");
	else
		text = malloc((size_t)input.src.size + 1);
	if (rc == 0)
		rc = text ? dcp_source_read(&input.src, 0, text, (size_t)input.src.size)
			  : -ENOMEM;
	if (rc == 0)
		rc = dcp_mrules_parse(&m->rules, text, (size_t)input.src.size, err);
	dcp_input_close(&input);
	return rc;
}

static int tell_facts(struct dcp_mlegacy *m)
{
	const struct dcp_sink *sink = m->in->sink;
	char text[256];
	int rc = sink->meta(sink->ctx, "framework", "megatron-lm");

	snprintf(text, sizeof(text), "%zu", m->n);
	if (rc == 0)
		rc = sink->meta(sink->ctx, "ranks", text);
	snprintf(text, sizeof(text), "tp=%u pp=%u ep=%u", m->tp, m->pp, m->ep);
	if (rc == 0)
		rc = sink->meta(sink->ctx, "parallel", text);
	if (rc < 0 || m->ninferred == 0)
		return rc;
	snprintf(text, sizeof(text),
		 "how tensor-parallel ranks hold %zu of the tensors is not recorded: it was "
		 "inferred from their names; rules in " DCP_MEGATRON_RULES " override it",
		 m->ninferred);
	return sink->meta(sink->ctx, "inferred", text);
}

static int load(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_mlegacy m = { .in = in };
	size_t first = 0;
	int rc = list_ranks(&m);

	dcp_copies_init(&m.model);
	if (rc == 0)
		rc = read_rules(&m, err);
	if (rc == 0)
		rc = find_args(&m, &first, err);
	if (rc == 0)
		rc = place_ranks(&m, err);
	if (rc == 0)
		rc = dcp_mlegacy_tell_ranks(&m, first, err);
	if (rc == 0)
		rc = dcp_mlegacy_tell_model(&m, err);
	if (rc == 0)
		rc = tell_facts(&m);
	if (rc == -ENOMEM)
		dcp_fail(err, rc, DCP_ERR_NO_OFFSET, "out of memory for the model's tensors");
	dcp_copies_finish(&m.model);
	dcp_mrules_finish(&m.rules);
	free(m.rank);
	return rc;
}

const struct dcp_format dcp_format_megatron_legacy = {
	.name = "megatron-legacy",
	.what = "Megatron-LM mp_rank directories",
	.probe = probe,
	.load = load,
};
