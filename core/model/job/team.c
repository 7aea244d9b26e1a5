/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who holds what of the tensors of a kind? That is a spread; which ranks hold a part together,
 * and of how many groups they are, is the same for all kinds of one rule.
 */
#include <errno.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/model/job/job_int.h"

void dcp_job_teams_init(struct job_teams *x, const struct dcp_job *job,
			const struct dcp_layout *layout)
{
	*x = (struct job_teams){ .job = job, .layout = layout };
	dcp_arena_init(&x->arena, job->opts.memory);
}

void dcp_job_teams_finish(struct job_teams *x)
{
	dcp_arena_finish(&x->arena);
}

struct dcp_spread_box dcp_job_whole(const struct job_kind *k)
{
	static const uint64_t zero[DCP_MAX_NDIM];

	return (struct dcp_spread_box){ zero, k->t.shape };
}

/* Which ranks have it, which lead, and how many groups there are to a part. */
static void find_groups(const struct dcp_job *job, struct job_team *t)
{
	for (uint32_t r = 0; r < job->ranks; r++) {
		uint32_t first = dcp_spread_first(t->spread, r), last = JOB_NONE, groups = 0;

		if (first == JOB_NONE)
			continue;
		t->rank[r] |= JOB_HAS;
		if (r != first)
			continue;
		for (uint32_t i = 0; i < t->ncopies; i++) {
			uint32_t group = (r + t->copy[i]) / job->opts.group;

			if (group == last)
				continue;
			t->rank[r + t->copy[i]] |= JOB_LEAD;
			last = group;
			groups++;
		}
		t->ngroups = t->ngroups == 0 || t->ngroups == groups ? groups : JOB_NONE;
	}
	if (t->ngroups == JOB_NONE)
		t->ngroups = 0;
}

static int make(struct job_teams *x, const struct dcp_layout_rule *rule, uint32_t ndim,
		struct job_team **out)
{
	struct job_team *t = dcp_arena_calloc(&x->arena, 1, sizeof(*t));
	int rc;

	if (!t)
		return -ENOMEM;
	t->rule = *rule;
	t->ndim = ndim;
	t->rank = dcp_arena_calloc(&x->arena, x->job->ranks, sizeof(*t->rank));
	if (!t->rank)
		return -ENOMEM;
	rc = dcp_spread_make(x->layout, rule, ndim, &x->arena, &t->spread);
	if (rc < 0)
		return rc;
	t->copy = dcp_spread_copies(t->spread, &t->ncopies);
	find_groups(x->job, t);
	*out = t;
	return 0;
}

bool dcp_job_is_team(const struct job_team *t, const struct job_kind *k,
		     const struct dcp_layout_rule *rule)
{
	return t->ndim == k->t.ndim && t->rule.number == rule->number &&
	       !memcmp(t->rule.stage, rule->stage, sizeof(rule->stage));
}

int dcp_job_team(struct job_teams *x, const struct job_kind *k,
		 const struct dcp_layout_rule *rule, const struct job_team **out,
		 struct dcp_err *err)
{
	uint64_t hash = dcp_hash64_more(rule->number, rule->stage, sizeof(rule->stage));
	struct job_team **slot = &x->slot[(hash + k->t.ndim) % JOB_TEAMS];
	int rc = 0;

	if (!*slot || !dcp_job_is_team(*slot, k, rule)) {
		if (x->arena.used > x->arena.limit / 8) {
			memset(x->slot, 0, sizeof(x->slot));
			dcp_arena_reset(&x->arena);
		}
		*slot = NULL;
		rc = make(x, rule, k->t.ndim, slot);
	}
	if (rc == 0)
		rc = dcp_spread_set((*slot)->spread, k->t.key, k->t.shape, err);
	*out = *slot;
	return rc == -ENOMEM ? dcp_job_no_memory(x->job, err) : rc;
}
