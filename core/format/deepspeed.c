/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSpeed checkpoints: one directory a tag, beside each other; a file "latest" names the one
 * that was completed last.
 *
 *	latest                                            global_step20
 *	global_step20/mp_rank_00_model_states.pt          16-bit weights; names, order, ties
 *	global_step20/zero_pp_rank_0_mp_rank_00_optim_states.pt   one a rank: slices of fp32
 *	                                                  weights and of the optimizer's states
 *
 * Told are module.<name>, fp32.<name> and every state of the optimizer, exp_avg.<name>: path
 * role / name. The bytes are runs of all ranks' flat tensors; nothing is converted. Objects
 * are called by their file: mp_rank_00_model_states.pt.global_steps.
 *
 * A rank whose file is missing or damaged breaks the keys that it holds a part of. Where a
 * directory of versions is known, one that is not named by "latest" and lacks a file is
 * taken for one that is still being saved, or never was.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/format/deepspeed_int.h"
#include "core/format/formats.h"

/* Much more than the offsets of a hundred thousand flat tensors take. */
static const size_t arena_limit = (size_t)4 << 30;

enum { MAX_LOST = 100 }; /* files that are missing, told by name */

/* ---- which files ---- */

static int compare_u32(uint32_t a, uint32_t b)
{
	return (a > b) - (a < b);
}

static int by_number(const void *x, const void *y)
{
	const struct dcp_ds_name *a = x, *b = y;
	int c = compare_u32(a->kind, b->kind);

	c = c ? c : compare_u32(a->layer, b->layer);
	c = c ? c : compare_u32(a->expert, b->expert);
	c = c ? c : compare_u32(a->mp, b->mp);
	c = c ? c : compare_u32(a->dp, b->dp);
	return c ? c : strcmp(a->name, b->name);
}

static int list_files(const struct dcp_dir *dir, struct dcp_ds_name **out, size_t *n)
{
	struct dcp_ds_name *f = calloc(dir->n + 1, sizeof(*f));

	*n = 0;
	if (!f)
		return -ENOMEM;
	for (size_t i = 0; i < dir->n; i++)
		if (!dir->entries[i].is_dir && dcp_ds_name_parse(dir->entries[i].name, &f[*n]))
			++*n;
	qsort(f, *n, sizeof(*f), by_number);
	*out = f;
	return 0;
}

/* ---- probing ---- */

/* Does the list have every rank of @kind? If not, the first that is missing. */
static bool has_all(const struct dcp_ds_name *f, size_t n, uint8_t kind, uint32_t nmp,
		    uint32_t ndp, char missing[DCP_DS_NAME_MAX])
{
	size_t i = 0, end;

	while (i < n && f[i].kind != kind)
		i++;
	for (end = i; end < n && f[end].kind == kind;)
		end++;
	if (i == end)
		return true;
	for (uint32_t mp = 0; mp < nmp; mp++)
		for (uint32_t dp = 0; dp < ndp; dp++) {
			if (i == end || f[i].mp != mp || f[i].dp != dp) {
				dcp_ds_name_of_rank(&f[i == end ? end - 1 : i], dp, mp,
						    missing);
				return false;
			}
			while (i < end && f[i].mp == mp && f[i].dp == dp)
				i++; /* a rank may have files of two names */
		}
	return true;
}

static enum dcp_match judge(const struct dcp_ds_name *f, size_t n, char *why, size_t size)
{
	char missing[DCP_DS_NAME_MAX] = "";
	size_t models = 0, optims = 0;
	uint32_t nmp = 0, ndp = 0;
	bool sharded = false;

	for (size_t i = 0; i < n; i++) {
		if (f[i].kind != DCP_DS_MODEL && f[i].kind != DCP_DS_OPTIM)
			continue;
		models += f[i].kind == DCP_DS_MODEL;
		optims += f[i].kind == DCP_DS_OPTIM;
		sharded |= f[i].kind == DCP_DS_MODEL && f[i].sharded;
		nmp = DCP_MAX(nmp, f[i].mp + 1);
		ndp = DCP_MAX(ndp, f[i].dp + 1);
	}
	if (models + optims == 0)
		return DCP_MATCH_NO;
	if (models == 0)
		snprintf(missing, sizeof(missing), "mp_rank_00_model_states.pt");
	else if (has_all(f, n, DCP_DS_OPTIM, nmp, ndp, missing))
		has_all(f, n, DCP_DS_MODEL, nmp, sharded ? ndp : 1, missing);
	if (!missing[0])
		return DCP_MATCH_YES;
	snprintf(why, size, "%s is missing: the save was interrupted or is still running",
		 missing);
	return DCP_MATCH_INCOMPLETE;
}

static enum dcp_match probe(const struct dcp_dir *dir, char *why, size_t n)
{
	struct dcp_ds_name *f;
	enum dcp_match match = DCP_MATCH_NO;
	size_t count;

	/* One that is still being converted has all model files from the start. */
	if (dcp_format_deepspeed_universal.probe(dir, why, n) != DCP_MATCH_NO)
		return DCP_MATCH_NO;
	if (list_files(dir, &f, &count) == 0) {
		match = judge(f, count, why, n);
		free(f);
	}
	return match;
}

/* Does the file @mark of @above name @version? -1: there is no such file. */
static int is_named(const struct dcp_dir *above, const char *mark, const char *version)
{
	struct dcp_input in;
	char text[300];
	size_t n;

	if (!dcp_dir_find(above, mark) || dcp_dir_input(above, mark, &in, NULL) < 0)
		return -1;
	n = (size_t)DCP_MIN(in.src.size, sizeof(text) - 1);
	if (dcp_source_read(&in.src, 0, text, n) < 0)
		n = 0;
	dcp_input_close(&in);
	text[n] = '\0';
	text[strcspn(text, " \t\r\n")] = '\0';
	return strcmp(text, version) == 0;
}

bool dcp_ds_committed(const struct dcp_dir *above, const char *version)
{
	return !above || is_named(above, "latest", version) > 0 ||
	       is_named(above, "latest_universal", version) > 0;
}

/* ---- loading ---- */

static int make_parts(struct dcp_ds *ds)
{
	size_t n = 0;

	ds->part = dcp_arena_calloc(&ds->arena, ds->nfiles + 1, sizeof(*ds->part));
	if (!ds->part)
		return dcp_ds_no_memory(ds);
	/* Both kinds are sorted by mp; one may lack what the other has. */
	for (size_t i = 0, k = 0; i < ds->nfiles || k < ds->nfiles;) {
		struct dcp_ds_part *p = &ds->part[n];
		size_t models = i, optims;

		while (models < ds->nfiles && ds->file[models].kind != DCP_DS_MODEL)
			models++;
		for (optims = k; optims < ds->nfiles && ds->file[optims].kind != DCP_DS_OPTIM;)
			optims++;
		if (models == ds->nfiles && optims == ds->nfiles)
			break;
		p->mp = UINT32_MAX;
		if (models < ds->nfiles)
			p->mp = ds->file[models].mp;
		if (optims < ds->nfiles)
			p->mp = DCP_MIN(p->mp, ds->file[optims].mp);
		p->model = &ds->file[models];
		for (i = models; i < ds->nfiles && ds->file[i].kind == DCP_DS_MODEL &&
				 ds->file[i].mp == p->mp;)
			i++;
		p->nmodels = i - models;
		for (k = optims; k < ds->nfiles && ds->file[k].kind == DCP_DS_OPTIM &&
				 ds->file[k].mp == p->mp;)
			k++;
		p->nranks = k - optims;
		p->rank = dcp_arena_calloc(&ds->arena, p->nranks + 1, sizeof(*p->rank));
		if (!p->rank)
			return dcp_ds_no_memory(ds);
		for (size_t r = 0; r < p->nranks; r++)
			p->rank[r].name = &ds->file[optims + r];
		n++;
	}
	ds->nparts = n;
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

static int by_real(const void *x, const void *y)
{
	const struct dcp_ds_alias *a = x, *b = y;
	int c = strcmp(a->real, b->real);

	return c ? c : strcmp(a->name, b->name);
}

/* Sorted, each once: a tied weight may be told of by every stage. */
static int sort_aliases(struct dcp_ds *ds)
{
	struct dcp_ds_alias *a = (struct dcp_ds_alias *)(void *)ds->alias.p;
	size_t n = ds->alias.n / sizeof(*a), kept = 0;
	uint32_t number;
	int rc = 0;

	if (n)
		qsort(a, n, sizeof(*a), by_real);
	for (size_t i = 0; rc >= 0 && i < n; i++) {
		uint32_t at = (uint32_t)kept;

		if (strcmp(a[i].name, a[i].real) == 0 || dcp_ds_knows(&ds->told, a[i].name) ||
		    (kept && by_real(&a[kept - 1], &a[i]) == 0))
			continue;
		a[kept++] = a[i];
		rc = dcp_intern_add(&ds->reals, a[i].real, strlen(a[i].real), DCP_INTERN_NONE,
				    &number);
		if (rc == 1)
			dcp_buf_add(&ds->real_at, &at, sizeof(at));
	}
	ds->alias.n = kept * sizeof(*a);
	return rc < 0 || dcp_buf_error(&ds->real_at) ? dcp_ds_no_memory(ds) : 0;
}

static int add_name(struct dcp_intern *in, const char *name)
{
	uint32_t number;

	return dcp_intern_add(in, name, strlen(name), DCP_INTERN_NONE, &number);
}

/* Which names the optimizer's states are told of, and which are put together otherwise. */
static int name_all(struct dcp_ds *ds)
{
	const struct dcp_ds_alias *a;
	int rc = sort_aliases(ds);

	for (size_t i = 0; rc >= 0 && i < ds->nparts; i++) {
		const struct dcp_ds_part *p = &ds->part[i];

		ds->zero |= p->ngroups > 0;
		for (size_t k = 0; rc >= 0 && (p->ngroups || ds->universal) && k < p->nparams;
		     k++)
			rc = add_name(&ds->trained, p->param[k].name);
		for (size_t k = 0; rc >= 0 && k < p->nfrozen; k++)
			rc = add_name(&ds->frozen, p->frozen[k].name);
	}
	a = (const struct dcp_ds_alias *)(const void *)ds->alias.p;
	for (size_t i = 0; rc >= 0 && i < ds->alias.n / sizeof(*a); i++) {
		if (dcp_ds_knows(&ds->trained, a[i].real))
			rc = add_name(&ds->trained, a[i].name);
		else if (dcp_ds_knows(&ds->frozen, a[i].real))
			rc = add_name(&ds->frozen, a[i].name);
	}
	return rc < 0 ? dcp_ds_no_memory(ds) : 0;
}

int dcp_ds_read_parts(struct dcp_ds *ds)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < ds->nparts; i++) {
		rc = dcp_ds_read_models(ds, &ds->part[i]);
		if (rc == 0)
			rc = dcp_ds_read_optims(ds, &ds->part[i]);
		if (rc == 0)
			rc = dcp_ds_lay_out(ds, &ds->part[i]);
	}
	return rc == 0 ? name_all(ds) : rc;
}

/* ---- what is not all there ---- */

static const struct dcp_ds_part *part_of(const struct dcp_ds *ds, uint32_t mp)
{
	for (size_t i = 0; i < ds->nparts; i++)
		if (ds->part[i].mp == mp)
			return &ds->part[i];
	return NULL;
}

/* The first model-parallel rank from @mp on that no file is of; false: all have one. */
static bool lacks_part(const struct dcp_ds *ds, uint32_t *mp)
{
	for (; *mp < ds->tp * ds->pp; ++*mp)
		if (!part_of(ds, *mp))
			return true;
	return false;
}

/* A file of a rank that the metadata speaks of; false: all are there. */
static bool lacks(const struct dcp_ds *ds, char missing[DCP_DS_NAME_MAX])
{
	uint32_t mp = 0;

	if (lacks_part(ds, &mp) && ds->part->nmodels) {
		dcp_ds_name_of_rank(ds->part->model, 0, mp, missing);
		return true;
	}
	for (size_t i = 0; i < ds->nparts; i++) {
		const struct dcp_ds_part *p = &ds->part[i];

		for (uint32_t r = 0; p->first && r < p->world; r++)
			if (!dcp_ds_rank_of(p, r)) {
				dcp_ds_name_of_rank(p->first, r, p->mp, missing);
				return true;
			}
	}
	return false;
}

/* What is on ranks no file is of has no names: the files that would have them are told. */
static int tell_lost(struct dcp_ds *ds)
{
	char name[DCP_DS_NAME_MAX];
	int rc = 0;

	for (uint32_t mp = 0, n = 0;
	     rc == 0 && n < MAX_LOST && ds->part->nmodels && lacks_part(ds, &mp); mp++, n++) {
		dcp_ds_name_of_rank(ds->part->model, 0, mp, name);
		rc = dcp_ds_tell_broken(
			ds, name,
			dcp_ds_text(
				ds,
				"%s is missing: nothing that only model-parallel rank %" PRIu32
				" of %" PRIu32 " holds can be shown",
				name, mp, ds->tp * ds->pp));
	}
	return rc;
}

/* Without parameter shapes the optimizer's tensors have no names: they are told as they are. */
static int tell_nameless(struct dcp_ds *ds)
{
	int rc = 0;

	for (size_t i = 0; i < ds->nparts; i++) {
		const struct dcp_ds_part *p = &ds->part[i];

		for (size_t k = 0; rc == 0 && p->ngroups == 0 && k < p->nranks; k++)
			if (!p->rank[k].why)
				rc = dcp_ds_tell_raw(ds, p->rank[k].name->name, true);
	}
	return rc;
}

static int tell_others(struct dcp_ds *ds)
{
	size_t n;
	const struct dcp_ds_name *f = dcp_ds_files(ds, DCP_DS_EXPERT_OPTIM, &n);
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = dcp_ds_tell_raw(ds, f[i].name, false);
	return rc;
}

int dcp_ds_tell_facts(struct dcp_ds *ds)
{
	const struct dcp_sink *sink = ds->in->sink;
	char text[64];
	int rc;

	snprintf(text, sizeof(text), "deepspeed%s%s", ds->version[0] ? " " : "", ds->version);
	rc = sink->meta(sink->ctx, "framework", text);
	if (rc == 0 && ds->nparts && ds->part->first) {
		snprintf(text, sizeof(text), "%" PRIu32, ds->part->world);
		rc = sink->meta(sink->ctx, "data_parallel_ranks", text);
	}
	if (rc == 0 && ds->nparts > 1) {
		snprintf(text, sizeof(text), "%" PRIu32 " tensor-parallel, %zu pipeline stages",
			 ds->tp, ds->nparts / ds->tp);
		rc = sink->meta(sink->ctx, "model_parallel_ranks", text);
	}
	if (rc == 0 && ds->unjoined)
		rc = sink->meta(sink->ctx, "unjoined", ds->unjoined);
	return rc;
}

int dcp_ds_begin(struct dcp_ds *ds, const struct dcp_load *in, struct dcp_err *err)
{
	uint32_t number;

	*ds = (struct dcp_ds){ .in = in, .err = err, .tp = 1 };
	dcp_arena_init(&ds->arena, arena_limit);
	if (list_files(in->dir, &ds->file, &ds->nfiles) < 0 ||
	    dcp_intern_add(&ds->states, "fp32", 4, DCP_INTERN_NONE, &number) < 0)
		return dcp_ds_no_memory(ds);
	number = (uint32_t)make_parts(ds);
	if (number == 0 && ds->nparts)
		ds->tp = guess_tp(ds);
	return (int)number;
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
	dcp_intern_finish(&ds->told);
	dcp_intern_finish(&ds->reals);
	dcp_intern_finish(&ds->seen);
	dcp_buf_finish(&ds->alias);
	dcp_buf_finish(&ds->real_at);
	dcp_buf_finish(&ds->seen_hash);
	dcp_arena_finish(&ds->arena);
	free(ds->file);
}

static int load_parts(struct dcp_ds *ds)
{
	char missing[DCP_DS_NAME_MAX];
	int rc = dcp_ds_read_parts(ds);

	if (rc < 0)
		return rc;
	if (!ds->opened)
		return dcp_fail(ds->err, ds->damage.code, ds->damage.off, "%s", ds->damage.msg);
	if (ds->in->uncommitted && lacks(ds, missing))
		return dcp_fail(
			ds->err, -EINVAL, DCP_ERR_NO_OFFSET,
			"%s is missing and \"latest\" does not name this version: the save "
			"was interrupted or is still running",
			missing);
	rc = tell_lost(ds);
	if (rc == 0)
		rc = dcp_ds_tell_modules(ds);
	if (rc == 0)
		rc = dcp_ds_tell_states(ds);
	if (rc == 0)
		rc = tell_nameless(ds);
	if (rc == 0)
		rc = tell_others(ds);
	return rc == 0 ? dcp_ds_tell_facts(ds) : rc;
}

static int load(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_ds ds;
	int rc = dcp_ds_begin(&ds, in, err);

	if (rc == 0)
		rc = load_parts(&ds);
	dcp_ds_end(&ds);
	return rc;
}

const struct dcp_format dcp_format_deepspeed = {
	.name = "deepspeed",
	.what = "DeepSpeed",
	.probe = probe,
	.committed = dcp_ds_committed,
	.load = load,
};
