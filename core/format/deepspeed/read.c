/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read: a checkpoint's model and optimizer files, from the first to the last.
 */
#include <stdlib.h>

#include "core/format/deepspeed/deepspeed_int.h"

/* Much more than the offsets of a hundred thousand flat tensors take. */
static const size_t arena_limit = (size_t)4 << 30;

/* How many of @n files, from @*f on, are of that rank: they are passed over. */
static size_t pass_over(const struct dcp_ds_name **f, size_t *n, uint32_t mp)
{
	size_t passed = 0;

	for (; *n && (*f)->mp == mp; ++*f, --*n)
		passed++;
	return passed;
}

/* Model and optimizer files of each rank; one may lack what the other has. */
static int make_parts(struct dcp_ds *ds)
{
	size_t nmodels, noptims;
	const struct dcp_ds_name *models = dcp_ds_files(ds, DCP_DS_MODEL, &nmodels);
	const struct dcp_ds_name *optims = dcp_ds_files(ds, DCP_DS_OPTIM, &noptims);

	ds->part = dcp_arena_calloc(&ds->arena, ds->nfiles + 1, sizeof(*ds->part));
	if (!ds->part)
		return -ENOMEM;
	while (nmodels || noptims) {
		struct dcp_ds_part *p = &ds->part[ds->nparts++];
		const struct dcp_ds_name *first = optims;

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

/* Without a word of it in the files, a layer has as many files as there are ranks. */
static uint32_t guess_tp(const struct dcp_ds *ds)
{
	uint32_t most = ds->part[ds->nparts - 1].mp + 1, layers = 0;
	size_t n;
	const struct dcp_ds_name *f = dcp_ds_files(ds, DCP_DS_LAYER, &n);

	for (size_t i = 0; i < n; i++)
		layers = DCP_MAX(layers, f[i].mp + 1);
	return layers && most % layers == 0 ? layers : most;
}

int dcp_ds_read_parts(struct dcp_ds *ds)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < ds->nparts; i++) {
		rc = dcp_ds_read_models(ds, &ds->part[i]);
		if (rc == 0)
			rc = dcp_ds_read_optims(ds, &ds->part[i]);
	}
	/* experts may lie with several of them */
	for (size_t i = 0; rc == 0 && i < ds->nparts; i++)
		rc = dcp_ds_lay_out(ds, &ds->part[i]);
	return rc == 0 ? dcp_ds_name_all(ds) : rc;
}

int dcp_ds_begin(struct dcp_ds *ds, const struct dcp_load *in, struct dcp_err *err)
{
	int rc;

	*ds = (struct dcp_ds){ .in = in, .err = err, .tp = 1 };
	dcp_arena_init(&ds->arena, arena_limit);
	if (dcp_ds_list_files(in->dir, &ds->file, &ds->nfiles) < 0 ||
	    dcp_intern_str(&ds->states, "fp32", NULL) < 0)
		return -ENOMEM;
	rc = make_parts(ds);
	if (rc == 0 && ds->nparts)
		ds->tp = guess_tp(ds);
	return rc;
}

void dcp_ds_end(struct dcp_ds *ds)
{
	for (size_t i = 0; i < ds->nparts; i++)
		dcp_buf_finish(&ds->part[i].common);
	dcp_ds_rules_finish(ds);
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
