/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSpeed checkpoints: one directory for each tag, beside each other; a file "latest" names the
 * directory that was completed last.
 *
 *	latest                                            global_step20
 *	global_step20/mp_rank_00_model_states.pt          16-bit weights; names, order, ties
 *	global_step20/zero_pp_rank_0_mp_rank_00_optim_states.pt   one a rank: slices of fp32
 *	                                                  weights and of the optimizer's states
 *
 * The keys are module.<name>, fp32.<name> and for every state of the optimizer exp_avg.<name> or
 * the like; their paths are role / name. The bytes of a tensor are runs of all ranks' flat tensors;
 * nothing is converted. Keys of objects begin with their file:
 * mp_rank_00_model_states.pt.global_steps.
 *
 * If the file of a rank is missing or damaged, the keys that the rank has a part of are broken. But
 * if the directory of versions is known, and its "latest" does not name the version, the version
 * counts as incomplete: its save is still running or was interrupted.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/format/deepspeed/deepspeed_int.h"
#include "core/format/formats.h"

/* ---- probing ---- */

/* Does the list have the files of all ranks of @kind? If not, @missing is the first that is not
 * there. */
static bool has_all(const struct dcp_deepspeed_name *f, size_t n, uint8_t kind, uint32_t nmp,
		    uint32_t ndp, char missing[DCP_DEEPSPEED_NAME_MAX])
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
				dcp_deepspeed_name_of_rank(&f[i == end ? end - 1 : i], dp, mp,
							   missing);
				return false;
			}
			while (i < end && f[i].mp == mp && f[i].dp == dp)
				i++; /* a rank may have files of two names */
		}
	return true;
}

static enum dcp_match judge_files(const struct dcp_deepspeed_name *f, size_t n, char *why,
				  size_t size)
{
	char missing[DCP_DEEPSPEED_NAME_MAX] = "";
	size_t models = 0, optims = 0;
	uint32_t nmp = 0, ndp = 0;
	bool sharded = false;

	for (size_t i = 0; i < n; i++) {
		if (f[i].kind != DCP_DEEPSPEED_MODEL && f[i].kind != DCP_DEEPSPEED_OPTIM)
			continue;
		models += f[i].kind == DCP_DEEPSPEED_MODEL;
		optims += f[i].kind == DCP_DEEPSPEED_OPTIM;
		sharded |= f[i].kind == DCP_DEEPSPEED_MODEL && f[i].sharded;
		nmp = DCP_MAX(nmp, f[i].mp + 1);
		ndp = DCP_MAX(ndp, f[i].dp + 1);
	}
	if (models + optims == 0)
		return DCP_MATCH_NO;
	if (models == 0)
		snprintf(missing, sizeof(missing), "mp_rank_00_model_states.pt");
	else if (has_all(f, n, DCP_DEEPSPEED_OPTIM, nmp, ndp, missing))
		has_all(f, n, DCP_DEEPSPEED_MODEL, nmp, sharded ? ndp : 1, missing);
	if (!missing[0])
		return DCP_MATCH_YES;
	snprintf(why, size, "%s is missing: the save was interrupted or is still running",
		 missing);
	return DCP_MATCH_INCOMPLETE;
}

static enum dcp_match probe_deepspeed(const struct dcp_dir *dir, char *why, size_t n)
{
	struct dcp_deepspeed_name *f;
	enum dcp_match match = DCP_MATCH_NO;
	size_t count;

	/* While a checkpoint is converted, its model files are all there from the start. */
	if (dcp_format_deepspeed_universal.probe(dir, why, n) != DCP_MATCH_NO)
		return DCP_MATCH_NO;
	if (dcp_deepspeed_list_files(dir, &f, &count) == 0) {
		match = judge_files(f, count, why, n);
		free(f);
	}
	return match;
}

/* ---- loading ---- */

/* Emit the optimizer files unchanged if there are no parameter shapes: then their tensors have no
 * names. */
static int emit_nameless(struct dcp_deepspeed *ds)
{
	int rc = 0;

	for (size_t i = 0; i < ds->nparts; i++) {
		const struct dcp_deepspeed_part *p = &ds->part[i];

		for (size_t k = 0; rc == 0 && p->ngroups == 0 && k < p->nranks; k++)
			if (!p->rank[k].why)
				rc = dcp_deepspeed_emit_raw(ds, p->rank[k].name->name, true);
	}
	return rc;
}

static int emit_others(struct dcp_deepspeed *ds)
{
	size_t n;
	const struct dcp_deepspeed_name *f =
		dcp_deepspeed_files(ds, DCP_DEEPSPEED_EXPERT_OPTIM, &n);
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = dcp_deepspeed_emit_raw(ds, f[i].name, false);
	return rc;
}

static int load_parts(struct dcp_deepspeed *ds)
{
	char missing[DCP_DEEPSPEED_NAME_MAX];
	int rc = dcp_deepspeed_read_parts(ds);

	if (rc < 0)
		return rc;
	if (!ds->opened)
		return dcp_fail_at(ds->err, ds->damage.code, ds->damage.off, "%s",
				   ds->damage.msg);
	if (ds->in->uncommitted && dcp_deepspeed_lacks(ds, missing))
		return dcp_fail(
			ds->err, -EINVAL,
			"%s is missing and \"latest\" does not name this version: the save "
			"was interrupted or is still running",
			missing);
	rc = dcp_deepspeed_emit_lost(ds);
	if (rc == 0)
		rc = dcp_deepspeed_emit_modules(ds);
	if (rc == 0)
		rc = dcp_deepspeed_emit_states(ds);
	if (rc == 0)
		rc = emit_nameless(ds);
	if (rc == 0)
		rc = emit_others(ds);
	return rc == 0 ? dcp_deepspeed_emit_facts(ds) : rc;
}

static int load_deepspeed(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_deepspeed ds;
	int rc = dcp_deepspeed_begin(&ds, in, err);

	if (rc == 0)
		rc = load_parts(&ds);
	dcp_deepspeed_end(&ds);
	return rc;
}

const struct dcp_format dcp_format_deepspeed = {
	.name = "deepspeed",
	.what = "DeepSpeed",
	.probe = probe_deepspeed,
	.committed = dcp_deepspeed_committed,
	.load = load_deepspeed,
	.marks =
		(const struct dcp_mark[]){
			{ "zero_to_fp32.py", "a DeepSpeed checkpoint" },
			{ "*zero_pp_rank_*_optim_states.pt", "a DeepSpeed ZeRO checkpoint" },
			{ "mp_rank_*_model_states.pt", "a DeepSpeed checkpoint" },
			{ "global_step*", "a DeepSpeed or verl checkpoint" },
			{ 0 },
		},
};
