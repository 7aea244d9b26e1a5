/* SPDX-License-Identifier: Apache-2.0 */
/* Plans again with the same wants: for another version, for the same version after its files have
 * changed, or without files that cannot be read, if other files hold the same elements. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/store/io/files.h"
#include "tools/load/load.h"

/* Check that @ck has the key of @w with the same shape and dtype. */
static int follow_want(struct dcpload_plan *p, struct load_want *w, struct dcpload *ck,
		       struct dcp_err *err)
{
	struct dcp_tensor t;
	struct dcp_row row;
	int rc;

	if (!w->id)
		return 0;
	dcp_arena_reset(&ck->answer);
	rc = load_find(ck, w->key, &ck->answer, &row, err);
	if (rc == 0)
		rc = dcp_index_tensor(dcp_version_index(ck->of.v), row.id, &ck->answer, &t,
				      err);
	if (rc < 0)
		return rc;
	if (row.dtype != w->target.dtype || strcmp(t.dtype_name, w->dtype_name) ||
	    row.ndim != w->global_ndim ||
	    memcmp(row.shape, w->global_shape, row.ndim * sizeof(*row.shape)))
		return dcp_fail(err, -EINVAL, "%s has another shape or dtype in %s than in %s",
				w->key, ck->of.name, p->ck->of.name);
	return 0;
}

/* Collective. Find the wants of @p in @ck; after -ENOENT and -EINVAL the plan is unchanged. */
static int refit_plan(struct dcpload_plan *p, struct dcpload *ck, struct dcpload_error *err)
{
	int rc = 0, timeout = (int)ck->config.timeout_ms;
	struct dcp_err own = { 0 };

	for (size_t i = 0; i < p->nwant && rc == 0; i++)
		rc = follow_want(p, &p->want[i], ck, &own);
	rc = load_agree(ck->comm, load_fail_err(err, rc, &own), err, timeout);
	if (rc < 0)
		return rc;
	p->finished = false;
	p->nneed = 0;
	load_plan_drop_chunks(p);
	for (size_t i = 0; i < p->nwant; i++) {
		struct load_want *w = &p->want[i];
		struct dcp_row row;

		dcp_arena_reset(&ck->answer);
		if (w->id && load_find(ck, w->key, &ck->answer, &row, NULL) == 0)
			w->id = row.id;
		w->through_view = false;
		w->target.swap = 0;
		w->target.plain = w->target.shown == w->target.dtype && !w->target.stride;
	}
	p->ck = ck;
	p->opened = ck->opened;
	return load_agree(ck->comm, load_locate(p, err), err, timeout);
}

/* Collective. */
static int decide_plan(struct dcpload_plan *p, struct dcpload_error *err)
{
	int rc = load_decide(p, err);

	p->finished = rc == 0;
	return rc;
}

static bool is_same_device(const struct dcpload *a, const struct dcpload *b)
{
	return a->device && b->device ? a->device->number == b->device->number
				      : a->device == b->device;
}

int dcpload_plan_rebase(struct dcpload_plan *p, struct dcpload *ck, struct dcpload_error *err)
{
	struct dcpload_error unused;
	int rc = 0;

	err = err ? err : &unused;
	*err = (struct dcpload_error){ .rank = -1 };
	if (!p->finished || ck->comm != p->ck->comm || !is_same_device(ck, p->ck))
		rc = load_fail(err, -EINVAL,
			       "the plan is not finished, or the version was opened with "
			       "another communicator or device");
	rc = load_agree(p->ck->comm, rc, err, (int)p->ck->config.timeout_ms);
	if (rc == 0)
		rc = refit_plan(p, ck, err);
	return rc < 0 ? rc : decide_plan(p, err);
}

int load_keep_up(struct dcpload_plan *p, struct dcpload_error *err)
{
	int rc;

	if (!p->finished || p->opened == p->ck->opened)
		return 0;
	rc = refit_plan(p, p->ck, err);
	return rc < 0 ? rc : decide_plan(p, err);
}

/* ---- a failed attempt ---- */

/* The trouble that a rank had. */
struct trouble {
	uint32_t lost; /* number of a file that cannot be read, plus 1 */
	uint32_t changed;
};

static struct trouble trouble_of(const struct load_blobs *b, uint32_t rank)
{
	return *(const struct trouble *)b->at[rank];
}

static bool needs_file(const struct dcpload_plan *p, uint32_t file)
{
	for (size_t i = 0; i < p->nneed; i++)
		if (p->need[i].file == file)
			return true;
	return false;
}

/* Collective. Plan without the files that ranks could not read. */
static int plan_without_lost(struct dcpload_plan *p, const struct load_blobs *b,
			     struct dcpload_error *err)
{
	struct dcp_files *files = dcp_version_files(p->ck->of.v);
	bool stuck = false;
	int rc;

	for (uint32_t r = 0; r < p->ck->comm->ranks; r++)
		if (trouble_of(b, r).lost)
			dcp_files_avoid(files, trouble_of(b, r).lost - 1);
	rc = refit_plan(p, p->ck, err);
	for (uint32_t r = 0; r < p->ck->comm->ranks && !stuck; r++)
		stuck = trouble_of(b, r).lost && needs_file(p, trouble_of(b, r).lost - 1);
	if (rc == 0)
		rc = decide_plan(p, err);
	if (rc == 0)
		rc = load_agree(
			p->ck->comm,
			stuck ? load_fail(err, -EIO, "no other file holds the same elements")
			      : 0,
			err, (int)p->ck->config.timeout_ms);
	return rc;
}

int load_renew(struct dcpload_plan *p, struct dcpload_error *err)
{
	struct dcpload_error first = *err;
	int rc = load_reopen(p->ck, err);

	if (rc == 0)
		rc = refit_plan(p, p->ck, err);
	if (rc == 0)
		snprintf(p->again_why, sizeof(p->again_why), "%.200s", first.text);
	return rc;
}

int load_again(struct dcpload_plan *p, bool *renewed, struct dcpload_error *err)
{
	const struct dcpload_comm *comm = p->ck->comm;
	struct trouble own = { atomic_exchange(&p->lost, 0), atomic_exchange(&p->changed, 0) };
	struct dcpload_error first = *err, second;
	bool changed = false, lost = false;
	struct load_blobs b;
	int rc;

	if (first.code != -EIO && first.code != -ESTALE && first.code != -ENOENT)
		return first.code;
	if (load_gather_same(comm, &own, sizeof(own), &b, NULL, (int)p->ck->config.timeout_ms) <
	    0)
		return first.code;
	for (uint32_t r = 0; r < comm->ranks; r++) {
		changed |= trouble_of(&b, r).changed != 0;
		lost |= trouble_of(&b, r).lost != 0;
	}
	rc = first.code;
	if (changed && !*renewed) {
		rc = load_renew(p, err);
		rc = rc < 0 ? rc : decide_plan(p, err);
	} else if (lost && !changed) {
		rc = plan_without_lost(p, &b, err);
	}
	*renewed |= changed;
	load_blobs_free(&b);
	if (rc == 0) {
		snprintf(p->again_why, sizeof(p->again_why), "%.200s", first.text);
		return 0;
	}
	second = *err;
	if (strcmp(first.text, second.text) != 0)
		load_fail(err, first.code, "%.500s; %.500s", first.text, second.text);
	err->rank = first.rank;
	return first.code;
}
