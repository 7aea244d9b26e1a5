/* SPDX-License-Identifier: Apache-2.0 */
/* The plan for programs; dcpfs.1 has the form, under FOR PROGRAMS. */
#include <stdlib.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "tools/plan/plan.h"

enum { FORM = 1 };

static void put_layout(struct dcp_jsonw *w, const char *name, const struct dcp_layout *l)
{
	const struct dcp_mesh *mesh = l ? dcp_layout_mesh(l) : NULL;

	dcp_jsonw_key(w, name);
	if (!l) {
		dcp_jsonw_null(w);
		return;
	}
	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "name", dcp_layout_name(l));
	dcp_jsonw_put_u64(w, "ranks", dcp_layout_ranks(l));
	dcp_jsonw_put_object(w, "mesh");
	for (uint32_t d = 0; d < mesh->ndim; d++)
		dcp_jsonw_put_u64(w, mesh->dim[d], mesh->size[d]);
	dcp_jsonw_end(w);
	dcp_jsonw_end(w);
}

static void put_head(const struct plan *p, struct dcp_jsonw *w)
{
	dcp_jsonw_put_u64(w, "dcpfs", FORM);
	dcp_jsonw_put_str(w, "version", p->pick.ck.name);
	dcp_jsonw_put_str(w, "format", p->pick.ck.found->format->name);
	put_layout(w, "layout", p->to);
	put_layout(w, "from", p->from);
}

static void put_lost(const struct plan *p, struct dcp_jsonw *w)
{
	const struct plan_lost *v = DCP_ITEMS(p->lost, struct plan_lost);

	dcp_jsonw_put_array(w, "left_out");
	for (size_t i = 0; i < p->lost.n / sizeof(*v); i++) {
		dcp_jsonw_object(w);
		dcp_jsonw_put_str(w, "key", v[i].key);
		dcp_jsonw_put_str(w, "error", v[i].why);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
}

static void put_ignored(const struct plan *p, struct dcp_jsonw *w)
{
	dcp_jsonw_put_object(w, "ignored");
	for (size_t i = 0; i < p->opts->ignore.n; i++)
		dcp_jsonw_put_u64(w, p->opts->ignore.v[i], p->ignored[i]);
	dcp_jsonw_end(w);
}

static void put_amplification(const struct plan *p, struct dcp_jsonw *w)
{
	uint32_t rank;

	dcp_jsonw_put_object(w, "amplification");
	dcp_jsonw_put_f64(w, "alone", plan_alone(p));
	dcp_jsonw_put_f64(w, "together", plan_together(p));
	dcp_jsonw_end(w);
	dcp_jsonw_put_u64(w, "needed", plan_range(p, PLAN_NEEDS).sum);
	dcp_jsonw_put_u64(w, "sent", plan_range(p, PLAN_SENDS).sum);
	dcp_jsonw_put_u64(w, "staging", plan_staging(p, &rank));
}

static void put_simulated(const struct plan *p, struct dcp_jsonw *w)
{
	struct plan_time times[PLAN_WAYS];
	uint32_t n;

	dcp_jsonw_key(w, "simulated");
	if (!p->sim.on) {
		dcp_jsonw_null(w);
		return;
	}
	n = plan_sim_times(&p->sim, p->rank, p->ranks, p->group, p->groups, p->from != NULL,
			   times);
	dcp_jsonw_object(w);
	dcp_jsonw_put_u64(w, "nodes", p->sim.nodes);
	dcp_jsonw_put_u64(w, "gpus", p->sim.gpus);
	dcp_jsonw_put_f64(w, "disk", p->sim.disk);
	dcp_jsonw_put_f64(w, "store", p->sim.store);
	dcp_jsonw_put_f64(w, "net", p->sim.net);
	dcp_jsonw_put_array(w, "ways");
	for (uint32_t i = 0; i < n; i++) {
		dcp_jsonw_object(w);
		dcp_jsonw_put_str(w, "way", times[i].way);
		dcp_jsonw_put_f64(w, "reading", times[i].read);
		dcp_jsonw_put_f64(w, "exchange", times[i].send);
		dcp_jsonw_put_f64(w, "both_at_once", times[i].total);
		dcp_jsonw_put_f64(w, "one_by_one", times[i].read + times[i].send);
		dcp_jsonw_put_str(w, "limit", times[i].limit);
		dcp_jsonw_put_u64(w, "node", times[i].node);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
	dcp_jsonw_end(w);
}

enum cmd_exit plan_json(struct plan *p, struct out *o)
{
	struct dcp_jsonw *w = &o->json;
	struct dcp_err err = { .msg = "out of memory" };

	w->pretty = false; /* a table of a thousand ranks by a thousand is long enough */
	dcp_jsonw_object(w);
	put_head(p, w);
	put_amplification(p, w);
	put_simulated(p, w);
	if (dcp_job_json(p->job, w, &err) < 0)
		return cmd_fail(CMD_ENV, "%s", err.msg);
	put_lost(p, w);
	put_ignored(p, w);
	dcp_jsonw_end(w);
	return out_flush(o);
}

/* ---- one rank ---- */

static int put_stretch(void *ctx, uint32_t rank, uint32_t file, uint64_t off, uint64_t n)
{
	struct plan *p = ((void **)ctx)[0];
	struct dcp_jsonw *w = ((void **)ctx)[1];

	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "file", p->files[file].name);
	dcp_jsonw_put_u64(w, "offset", off);
	dcp_jsonw_put_u64(w, "nbytes", n);
	dcp_jsonw_end(w);
	return 0;
}

static void put_peers(struct dcp_jsonw *w, const char *name, const uint64_t *bytes, uint32_t n,
		      uint32_t self)
{
	dcp_jsonw_put_array(w, name);
	for (uint32_t r = 0; r < n; r++) {
		if (r == self || !bytes[r])
			continue;
		dcp_jsonw_array(w);
		dcp_jsonw_u64(w, r);
		dcp_jsonw_u64(w, bytes[r]);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
}

enum cmd_exit plan_rank_json(struct plan *p, uint32_t rank, struct out *o)
{
	dcp_auto_free uint64_t *to = calloc(p->ranks, sizeof(*to));
	dcp_auto_free uint64_t *from = calloc(p->ranks, sizeof(*from));
	void *ctx[2] = { p, &o->json };
	struct dcp_jsonw *w = &o->json;
	struct dcp_err err = { .msg = "out of memory" };

	if (!to || !from || dcp_job_sends(p->job, rank, 1, to, &err) < 0 ||
	    dcp_job_receives(p->job, rank, from, &err) < 0)
		return cmd_fail(CMD_ENV, "%s", err.msg);
	dcp_jsonw_object(w);
	put_head(p, w);
	dcp_jsonw_put_u64(w, "rank", rank);
	for (int n = 0; n < PLAN_NUMBERS; n++)
		dcp_jsonw_put_u64(w, plan_number_name[n],
				  plan_number(&p->rank[rank], (enum plan_number)n));
	dcp_jsonw_put_array(w, "part");
	dcp_job_reads(p->job, rank, put_stretch, ctx);
	dcp_jsonw_end(w);
	put_peers(w, "sends_to", to, p->ranks, rank);
	put_peers(w, "receives_from", from, p->ranks, rank);
	put_lost(p, w);
	dcp_jsonw_end(w);
	return out_flush(o);
}
