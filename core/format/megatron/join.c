/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One tensor of the whole model from what ranks hold of it. How they do is a matter of rules
 * (rules.h); what a rule says is checked against the shapes, and against what the
 * checkpoint says elsewhere (check.c).
 */
#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "core/format/megatron/megatron_int.h"

/* Where part number @i of the tensor should lie; a missing directory's name goes to @dir. */
static const struct dcp_mrank *home_of(const struct dcp_mjoin *j, size_t i,
				       char dir[DCP_MEGATRON_DIR])
{
	const struct dcp_mlegacy *m = j->m;
	uint32_t part = (uint32_t)(i % j->nparts), stack = (uint32_t)(i / j->nparts);
	uint32_t ep = j->place.holder == DCP_MHOLD_STACK ? stack : j->place.ep;
	uint32_t first, step;
	const struct dcp_mrank *r;

	if (j->place.holder == DCP_MHOLD_ALL) {
		r = dcp_mlegacy_rank(m, part, j->place.stage, DCP_MEGATRON_ANY,
				     DCP_MEGATRON_ANY);
		dcp_mlegacy_expected(m, part, &first, &step);
		dcp_mlegacy_dir(m, part, j->place.stage, first, dir);
		return r;
	}
	r = dcp_mlegacy_rank(m, DCP_MEGATRON_ANY, j->place.stage, ep, part);
	for (uint32_t t = part; t < m->tp; t += m->etp) {
		dcp_mlegacy_expected(m, t, &first, &step);
		if (ep < first || (ep - first) % step)
			continue;
		dcp_mlegacy_dir(m, t, j->place.stage, ep, dir);
		break;
	}
	return r;
}

static void fail_missing(struct dcp_mjoin *j, size_t i)
{
	const struct dcp_copy *c = j->copy[i];
	char dir[DCP_MEGATRON_DIR] = "";
	const struct dcp_mrank *r = home_of(j, i, dir);

	if (c)
		dcp_fail(&j->why, -EBADMSG, "%s/%s: %s", j->m->rank[c->who].dir,
			 j->m->rank[c->who].file, c->t.error);
	else if (r && r->error)
		dcp_fail(&j->why, -EBADMSG, "%s", r->error);
	else if (r)
		dcp_fail(&j->why, -EBADMSG, "%s/%s does not hold it", r->dir, r->file);
	else
		dcp_fail(&j->why, -EBADMSG, "%s/%s is missing, which holds one of its %u parts",
			 dir, j->m->file, j->nstacks * j->nparts);
}

/* One copy as it is: all ranks hold the same, or there is one rank. */
static void take_one(struct dcp_mjoin *j)
{
	const struct dcp_copy *first = NULL;

	for (uint32_t i = 0; i < j->nparts; i++) {
		const struct dcp_copy *c = j->copy[i];

		if (!c || c->t.error)
			continue;
		if (first && !dcp_copies_alike(&first->t, &c->t)) {
			dcp_fail(&j->why, -EBADMSG,
				 "%s and %s hold it in different shapes, and all ranks should "
				 "hold the same: say how it is cut in " DCP_MEGATRON_RULES,
				 first->file, c->file);
			return;
		}
		first = first ? first : c;
	}
	if (!first) {
		for (uint32_t i = 0; i < j->nparts && !j->why.code; i++)
			if (j->copy[i])
				fail_missing(j, i);
		return;
	}
	j->t = first->t;
	memcpy(j->shape, first->t.shape, first->t.ndim * sizeof(*j->shape));
}

static void find_rule(struct dcp_mjoin *j)
{
	struct dcp_mlegacy *m = j->m;

	if (!dcp_mrules_find(&m->rules, j->key, &j->rule)) {
		dcp_fail(&j->why, -ENOTSUP,
			 "the files do not say how %u tensor-parallel ranks hold it, and its "
			 "name does not show it: put a line \"%.120s shard(0)\" (or replicate) "
			 "into " DCP_MEGATRON_RULES " beside %s",
			 j->nparts, j->key, m->rank[0].dir);
		return;
	}
	m->ninferred += !j->rule.line;
	if (j->rule.old && m->version < 1)
		j->rule.groups = j->rule.old;
}

/* Is it of a kind that dcpfs does not know how to join? Decided by its name. */
static bool is_refused(struct dcp_mjoin *j)
{
	const struct dcp_mlegacy *m = j->m;

	if (j->place.holder == DCP_MHOLD_ALL)
		return false;
	if (dcp_mlegacy_lost_experts(m)) {
		dcp_fail(&j->why, -ENOTSUP,
			 "experts are cut by %u tensor-parallel ranks and everything else by "
			 "%u: several ranks wrote to the same mp_rank file, and only one of "
			 "their parts is left; save with --ckpt-format torch_dist",
			 m->etp, m->tp);
		return true;
	}
	if (j->nstacks > 1 && !dcp_mview_is_stacked(j->place.key)) {
		dcp_fail(&j->why, -ENOTSUP,
			 "each of %u expert-parallel ranks has its own under this name, and "
			 "how they follow one another is not known; save with --ckpt-format "
			 "torch_dist",
			 j->nstacks);
		return true;
	}
	return false;
}

static void join(struct dcp_mjoin *j)
{
	size_t n = (size_t)j->nstacks * j->nparts;

	if (is_refused(j))
		return;
	if (n == 1) {
		take_one(j);
		return;
	}
	find_rule(j);
	if (j->why.code)
		return;
	if (j->rule.replicate && !j->rule.line && strstr(j->key, "_down_proj."))
		dcp_mjoin_see_latent(j);
	if (j->rule.replicate && j->nstacks == 1) {
		take_one(j);
		return;
	}
	for (size_t i = 0; i < n; i++)
		if (!j->copy[i] || j->copy[i]->t.error) {
			fail_missing(j, i);
			return;
		}
	if (j->rule.gated)
		dcp_mjoin_see_gate(j);
	if (!j->why.code)
		dcp_mjoin_add_up(j);
	if (!j->why.code)
		dcp_mjoin_check_args(j);
	if (!j->why.code)
		dcp_mjoin_cut(j);
}

/* ---- copies ---- */

size_t dcp_mlegacy_max_copies(const struct dcp_mlegacy *m)
{
	return DCP_MAX(m->tp, DCP_MIN(m->ep * m->etp, (uint32_t)DCP_MEGATRON_MAX_PARTS));
}

static void sort_copies(struct dcp_mjoin *j, const struct dcp_copies_key *k)
{
	const struct dcp_mlegacy *m = j->m;

	j->nstacks = j->place.holder == DCP_MHOLD_STACK ? m->ep : 1;
	j->nparts = j->place.holder == DCP_MHOLD_ALL ? m->tp : m->etp;
	if ((size_t)j->nstacks * j->nparts > dcp_mlegacy_max_copies(m)) {
		dcp_fail(&j->why, -E2BIG,
			 "%u expert and %u tensor parallel ranks: at most %d parts of one "
			 "tensor are joined",
			 j->nstacks, j->nparts, DCP_MEGATRON_MAX_PARTS);
		return;
	}
	memset(j->copy, 0, (size_t)j->nstacks * j->nparts * sizeof(*j->copy));
	for (const struct dcp_copy *c = k->first; c; c = c->next) {
		const struct dcp_mrank *r = &m->rank[c->who];
		size_t stack = j->nstacks > 1 ? r->ep : 0;
		const struct dcp_copy **slot = &j->copy[stack * j->nparts + r->tp % j->nparts];

		if (!*slot || ((*slot)->t.error && !c->t.error))
			*slot = c;
	}
}

int dcp_mlegacy_join(struct dcp_mlegacy *m, uint32_t number, const struct dcp_mplace *place,
		     const char *key, const struct dcp_copy **copy)
{
	const struct dcp_copies_key *k = dcp_copies_at(&m->model, number);
	struct dcp_mjoin joining = { .m = m, .place = *place, .copy = copy }, *j = &joining;

	j->key = key;
	j->t = k->first->t;
	memcpy(j->shape, j->t.shape, j->t.ndim * sizeof(*j->shape));
	sort_copies(j, k);
	if (!j->why.code)
		join(j);
	if (j->why.code == -ENOMEM)
		return -ENOMEM;
	m->old_order |= m->version < 2 && strstr(key, "key_value.");
	j->t.key = key;
	j->t.path = &j->key;
	j->t.npath = 1;
	j->t.shape = j->shape;
	j->t.alias_of = NULL;
	j->t.error = j->why.code ? j->why.msg : NULL;
	return dcp_emit_tensor(m->in->sink, &j->t);
}
