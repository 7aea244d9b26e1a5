/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron-LM's own checkpoints, one directory for each model-parallel rank:
 *
 *	mp_rank_<TT>[_<PPP>][_<EEE>]/model_optim_rng.pt     see grid.c
 *	mp_rank_.../distrib_optim.pt                        flat buffers without names
 *
 * The model's tensors are put together (join.c): "model" and "language_model" are left
 * away, layers get the number they have in the whole model. What else the files hold is emitted as
 * the first rank has it; what another rank has differently, below the name of its directory:
 *
 *	args, iteration, rng_state, optimizer ...           of mp_rank_00_000
 *	mp_rank_01_000.rng_state ...                        where it differs
 *
 * A missing file breaks the keys that need it. latest_checkpointed_iteration.txt, beside the
 * versions, commits them.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cleanup.h"
#include "core/format/formats.h"
#include "core/format/megatron/megatron_int.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/origin/source.h"
#include "core/parse/torch/torch.h"

enum { MAX_RULES = 1 << 20 };

static enum dcp_match probe(const struct dcp_dir *dir, char *why, size_t n)
{
	struct dcp_mrank r;

	for (size_t i = 0; i < dir->n; i++) {
		dcp_auto_dir struct dcp_dir below = { 0 };
		bool found;

		if (!dir->entries[i].is_dir || !dcp_mrank_parse(dir->entries[i].name, &r) ||
		    dcp_dir_open_at(dir, dir->entries[i].name, &below, NULL) < 0)
			continue;
		found = dcp_mrank_file(&below) != NULL;
		if (found)
			return DCP_MATCH_YES;
	}
	return DCP_MATCH_NO;
}

/* Returns 1 when the file of rank @r cannot be read: @why says it. */
static int read_args(struct dcp_mlegacy *m, const struct dcp_mrank *r, struct dcp_err *why)
{
	dcp_auto_torch struct dcp_torch *t = NULL;
	char path[512];
	int rc;

	snprintf(path, sizeof(path), "%.250s/%.250s", r->dir, r->file);
	rc = dcp_torch_open_file(m->in->dir, path, &t, why);
	if (rc < 0)
		return rc == -ENOMEM ? rc : 1;
	dcp_mlegacy_read_args(m, dcp_torch_root(t));
	return 0;
}

/* The arguments stand in every file; they are needed before any can be emitted. */
static int find_args(struct dcp_mlegacy *m, size_t *first, struct dcp_err *err)
{
	struct dcp_err last = { 0 };

	for (*first = 0; *first < m->n; ++*first) {
		struct dcp_mrank *r = &m->rank[*first];
		struct dcp_err why = { 0 };
		int rc;

		if (!r->file)
			continue;
		rc = read_args(m, r, &why);
		if (rc <= 0)
			return rc;
		r->error = dcp_arena_strdup(&m->model.arena, why.msg);
		if (!r->error)
			return -ENOMEM;
		last = last.code ? last : why;
	}
	return dcp_err_give(err, &last, last.code ? last.code : -ENOENT);
}

static int read_rules(struct dcp_mlegacy *m, struct dcp_err *err)
{
	dcp_auto_free char *text = NULL;
	dcp_auto_input struct dcp_input input = { 0 };
	uint32_t number;
	int rc;

	if (!dcp_dir_find(m->in->dir, DCP_MEGATRON_RULES))
		return 0;
	rc = dcp_emit_file(m->in->sink, DCP_MEGATRON_RULES, &number);
	if (rc == 0)
		rc = dcp_dir_input(m->in->dir, DCP_MEGATRON_RULES, &input, err);
	if (rc < 0)
		return rc;
	if (input.src.size > MAX_RULES)
		rc = dcp_fail(err, -E2BIG, DCP_MEGATRON_RULES " is too long");
	else
		text = malloc((size_t)input.src.size + 1);
	if (rc == 0)
		rc = text ? dcp_source_read(&input.src, 0, text, (size_t)input.src.size)
			  : -ENOMEM;
	if (rc == 0)
		rc = dcp_mrules_parse(&m->rules, text, (size_t)input.src.size, err);
	return rc;
}

static int emit_facts(struct dcp_mlegacy *m)
{
	const struct dcp_sink *sink = m->in->sink;
	int rc = dcp_emit_fact(sink, 0, "framework", "megatron-lm");

	rc = dcp_emit_fact(sink, rc, "ranks", "%zu", m->n);
	if (m->etp == m->tp)
		rc = dcp_emit_fact(sink, rc, "parallel", "tp=%u pp=%u ep=%u", m->tp, m->pp,
				   m->ep);
	else
		rc = dcp_emit_fact(sink, rc, "parallel", "tp=%u pp=%u ep=%u etp=%u", m->tp,
				   m->pp, m->ep, m->etp);
	if (m->old_order)
		rc = dcp_emit_fact(sink, rc, "query_key_value", "%s",
				   m->version == 0   ? "parts_first"
				   : m->version == 1 ? "parts_last"
						     : "unknown");
	if (m->ninferred == 0)
		return rc;
	return dcp_emit_fact(
		sink, rc, "inferred",
		"how tensor-parallel ranks hold %zu of the tensors is not recorded: it was "
		"inferred from their names; rules in " DCP_MEGATRON_RULES " override it",
		m->ninferred);
}

static int load(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_mlegacy m = { .in = in };
	size_t first = 0;
	int rc = dcp_mlegacy_list(&m);

	dcp_copies_init(&m.model);
	if (rc == 0)
		rc = read_rules(&m, err);
	if (rc == 0)
		rc = find_args(&m, &first, err);
	if (rc == 0)
		rc = dcp_mlegacy_place(&m, err);
	if (rc == 0)
		rc = dcp_mlegacy_emit_ranks(&m, first);
	if (rc == 0)
		rc = dcp_mlegacy_emit_model(&m, err);
	if (rc == 0)
		rc = emit_facts(&m);
	if (rc == -ENOMEM)
		dcp_fail(err, rc, "out of memory for the model's tensors");
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
	.marks =
		(const struct dcp_mark[]){
			{ "latest_checkpointed_iteration.txt",
			  "a Megatron-LM run without its iterations" },
			{ "mp_rank*(_+([0-9]))",
			  "a Megatron-LM checkpoint without model_optim_rng.pt" },
			{ 0 },
		},
};
