/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the elements of the flat tensors that belong to each parameter.
 *
 * Stages 1 and 2: a group consists of consecutive parameters (with recorded gaps between them if
 * parameter_alignment was on). It is padded to a multiple of 2 * ranks and cut into equal slices.
 * Later releases cut the padding off the master weights again ("lean"), so the last slices may be
 * short or empty. Older releases padded to other multiples: then the length that fits most files
 * is taken as the length of a slice.
 *
 * Stage 3: every parameter is cut by itself into slices of ceil(elements / ranks). A rank's flat
 * tensor has one slice of each parameter, one after the other.
 *
 * Stage 1 before 0.5.9 cut a group first into waves (communication intervals), then each wave
 * over the ranks: slice k lies with rank k % ranks, in flat tensor number k / ranks of the group.
 */
#include "core/format/deepspeed/deepspeed_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int lay_group(struct dcp_deepspeed_laying *l, const struct dcp_deepspeed_list *list,
		     struct dcp_deepspeed_param *p, size_t n)
{
	struct dcp_deepspeed_group g = { .flat = list->flat,
					 .waves = list->waves,
					 .count = list->count,
					 .lanes = 1,
					 .step = 1 };

	if (n && dcp_deepspeed_all_experts(l->ds, p, n))
		return dcp_deepspeed_add_experts(l, list, &g, p, n);
	if (g.count != l->part->world)
		g.why = dcp_deepspeed_text(l->ds,
					   "its group is cut over %" PRIu32 " of %" PRIu32
					   " ranks, and nothing says which",
					   g.count, l->part->world);
	dcp_deepspeed_place_params(l, list, &g, p, n);
	return dcp_deepspeed_add_group(l, &g, p, n);
}

/* ---- one list of parameters for several flat tensors (before 0.5) ---- */

/* Elements of the master weights of a list, in all files. */
static uint64_t room_of(const struct dcp_deepspeed_part *part,
			const struct dcp_deepspeed_list *list)
{
	uint64_t total = 0;

	for (size_t i = 0; i < part->nranks; i++)
		for (uint32_t w = 0; !part->rank[i].why && w < list->waves; w++)
			total +=
				part->rank[i].place[(list->flat + w) * part->rank[i].nstates].n;
	return total;
}

/* The number of parameters that a list has room for. If the padding was not cut off, the list may
 * seem to have room for a few more tiny parameters: then lengths do not fit, and the parameters are
 * broken. */
static size_t take_some(const struct dcp_deepspeed_part *part,
			const struct dcp_deepspeed_list *list,
			const struct dcp_deepspeed_param *p, size_t n)
{
	uint64_t total = room_of(part, list);
	size_t i = 0;

	for (; i < n && p[i].numel <= total; i++)
		total -= p[i].numel;
	return i;
}

/* The same for stage 3, where flat tensors have the same length on all ranks. */
static size_t take_slices(const struct dcp_deepspeed_part *part,
			  const struct dcp_deepspeed_list *list,
			  const struct dcp_deepspeed_param *p, size_t n)
{
	uint64_t length = 0;
	size_t i = 0;

	for (size_t k = 0; length == 0 && k < part->nranks; k++)
		if (!part->rank[k].why)
			length = part->rank[k].place[list->flat * part->rank[k].nstates].n;
	for (; i < n && dcp_div_up(p[i].numel, list->count) <= length; i++)
		length -= dcp_div_up(p[i].numel, list->count);
	return i;
}

static size_t count_params(const struct dcp_deepspeed_part *part, uint32_t list, size_t at)
{
	const struct dcp_deepspeed_list *l = &part->list[list];
	size_t left = part->nparams - at;

	if (part->nlisted == part->nlists)
		return part->group_n[list];
	if (part->stage == 3)
		return list + 1 == part->nlists ? left
						: take_slices(part, l, part->param + at, left);
	return take_some(part, l, part->param + at, left);
}

static int lay_lists(struct dcp_deepspeed_laying *l)
{
	struct dcp_deepspeed_part *part = l->part;
	size_t at = 0;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < part->nlists; i++) {
		size_t n = count_params(part, i, at);

		rc = lay_group(l, &part->list[i], part->param + at, n);
		at += n;
	}
	for (; rc == 0 && at < part->nparams; at++) {
		struct dcp_deepspeed_group none = { .count = 1,
						    .waves = 1,
						    .lanes = 1,
						    .step = 1,
						    .why = "no flat group has room for it" };

		rc = dcp_deepspeed_add_group(l, &none, part->param + at, 1);
	}
	return rc;
}

/* Make the groups of @part, and find where in its group each parameter lies. */
static int dcp_deepspeed_lay_out(struct dcp_deepspeed *ds, struct dcp_deepspeed_part *part)
{
	struct dcp_deepspeed_laying l = { .ds = ds, .part = part };
	int rc = 0;

	if (!part->first || !part->named)
		return 0;
	if (part->nlisted != part->nlists && part->nlisted != 1)
		return dcp_deepspeed_emit_broken(
			ds, part->first->name,
			dcp_deepspeed_text(ds,
					   "it has %" PRIu32 " flat groups, %s lists %" PRIu32,
					   part->nlists, part->named->name, part->nlisted));
	rc = lay_lists(&l);
	if (rc == 0) {
		part->nparams = DCP_NITEMS(l.params, struct dcp_deepspeed_param);
		part->ngroups = l.ngroups;
		part->param = dcp_arena_dup(&ds->arena, l.params.p, part->nparams,
					    sizeof(*part->param));
		part->group = dcp_arena_dup(&ds->arena, l.groups.p, part->ngroups,
					    sizeof(*part->group));
		rc = part->param && part->group ? 0 : -ENOMEM;
	}
	dcp_buf_finish(&l.params);
	dcp_buf_finish(&l.groups);
	return rc < 0 ? -ENOMEM : 0;
}

/* read: reads all model and optimizer files of a checkpoint. */

/* Much more memory than the offsets of a hundred thousand flat tensors take. */
static const size_t arena_limit = (size_t)4 << 30;

/* Pass over the files of rank @mp at the beginning of the @n files at @*f. Returns their number. */
static size_t pass_over(const struct dcp_deepspeed_name **f, size_t *n, uint32_t mp)
{
	size_t passed = 0;

	for (; *n && (*f)->mp == mp; ++*f, --*n)
		passed++;
	return passed;
}

/* Make a part for each rank that has model or optimizer files; a rank may lack either kind. */
static int make_parts(struct dcp_deepspeed *ds)
{
	size_t nmodels, noptims;
	const struct dcp_deepspeed_name *models =
		dcp_deepspeed_files(ds, DCP_DEEPSPEED_MODEL, &nmodels);
	const struct dcp_deepspeed_name *optims =
		dcp_deepspeed_files(ds, DCP_DEEPSPEED_OPTIM, &noptims);

	ds->part = dcp_arena_calloc(&ds->arena, ds->nfiles + 1, sizeof(*ds->part));
	if (!ds->part)
		return -ENOMEM;
	while (nmodels || noptims) {
		struct dcp_deepspeed_part *p = &ds->part[ds->nparts++];
		const struct dcp_deepspeed_name *first = optims;

		p->mp = nmodels && (!noptims || models->mp <= optims->mp) ? models->mp
									  : optims->mp;
		p->model = models;
		p->nmodels = pass_over(&models, &nmodels, p->mp);
		p->nranks = pass_over(&optims, &noptims, p->mp);
		p->rank = dcp_arena_calloc(&ds->arena, p->nranks + 1, sizeof(*p->rank));
		if (!p->rank)
			return -ENOMEM;
		for (size_t r = 0; r < p->nranks; r++)
			p->rank[r].name = &first[r];
	}
	return 0;
}

/* The assumed number of tensor-parallel ranks if no file records it: the number of files of a
 * layer, or else of all model-parallel ranks. */
static uint32_t guess_tp(const struct dcp_deepspeed *ds)
{
	uint32_t most = ds->part[ds->nparts - 1].mp + 1, layers = 0;
	size_t n;
	const struct dcp_deepspeed_name *f = dcp_deepspeed_files(ds, DCP_DEEPSPEED_LAYER, &n);

	for (size_t i = 0; i < n; i++)
		layers = DCP_MAX(layers, f[i].mp + 1);
	return layers && most % layers == 0 ? layers : most;
}

int dcp_deepspeed_read_parts(struct dcp_deepspeed *ds)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < ds->nparts; i++) {
		rc = dcp_deepspeed_read_models(ds, &ds->part[i]);
		if (rc == 0)
			rc = dcp_deepspeed_read_optims(ds, &ds->part[i]);
	}
	/* after all parts were read, because experts may lie with several parts */
	for (size_t i = 0; rc == 0 && i < ds->nparts; i++)
		rc = dcp_deepspeed_lay_out(ds, &ds->part[i]);
	return rc == 0 ? dcp_deepspeed_name_all(ds) : rc;
}

int dcp_deepspeed_begin(struct dcp_deepspeed *ds, const struct dcp_load *in,
			struct dcp_err *err)
{
	int rc;

	*ds = (struct dcp_deepspeed){ .in = in, .err = err, .tp = 1 };
	dcp_arena_init(&ds->arena, arena_limit);
	if (dcp_deepspeed_list_files(in->dir, &ds->file, &ds->nfiles) < 0 ||
	    dcp_intern_str(&ds->states, "fp32", NULL) < 0)
		return -ENOMEM;
	rc = make_parts(ds);
	if (rc == 0 && ds->nparts)
		ds->tp = guess_tp(ds);
	return rc;
}

void dcp_deepspeed_end(struct dcp_deepspeed *ds)
{
	for (size_t i = 0; i < ds->nparts; i++)
		dcp_buf_finish(&ds->part[i].common);
	dcp_deepspeed_rules_finish(ds);
	dcp_intern_finish(&ds->states);
	dcp_intern_finish(&ds->trained);
	dcp_intern_finish(&ds->frozen);
	dcp_intern_finish(&ds->buffers);
	dcp_intern_finish(&ds->emitted);
	dcp_intern_finish(&ds->reals);
	dcp_intern_finish(&ds->seen);
	dcp_intern_finish(&ds->expert_layers);
	dcp_buf_finish(&ds->names);
	dcp_buf_finish(&ds->alias);
	dcp_buf_finish(&ds->real_at);
	dcp_buf_finish(&ds->seen_hash);
	dcp_arena_finish(&ds->arena);
	free(ds->file);
}
