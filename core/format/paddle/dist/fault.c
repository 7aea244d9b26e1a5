/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An array whose shape is not what metadata says. From 3.2 on a save that finds metadata of its
 * id leaves it as it is, so what does not fit is of another save. Earlier ones wrote their own
 * every time; there, what does not fit was recorded wrongly.
 *
 * Either several mesh dimensions cut one dimension of the tensor: 2.6 refuses to make it. 3.0
 * records what the last of those mesh dimensions alone would have given, and of ranks that
 * differ in the others only the lowest stores its piece. 3.1 has both right.
 *
 * Or ranks saved tensors of several shapes under one key: an offset names one file, so that of
 * the lowest rank stands for all.
 */
#include <inttypes.h>
#include <stdio.h>

#include "core/format/paddle/dist/key.h"

/* Another entry at the same place says that its array is of @shape. */
static bool meant_by_other(const struct dcp_pdist *d, const struct dcp_pjoin *j,
			   const struct dcp_pmeta_entry *e, const uint64_t *shape)
{
	const struct dcp_pmeta *m = &d->meta;

	for (uint32_t i = j->key->entry; i != DCP_PMETA_NONE;) {
		const struct dcp_pmeta_entry *o = dcp_pmeta_entry(m, i);

		i = o->next;
		if (o != e && o->box.ndim == e->box.ndim &&
		    dcp_dims_compare(dcp_pmeta_dims(m, o->box.lo), dcp_pmeta_dims(m, e->box.lo),
				     e->box.ndim) == 0 &&
		    dcp_dims_compare(dcp_pmeta_dims(m, o->box.len), shape, e->box.ndim) == 0)
			return true;
	}
	return false;
}

/* The dimension along which @shape is a part of @len, when it is larger along none; else
 * @ndim. */
static uint32_t cut_again(const uint64_t *len, const uint64_t *shape, uint32_t ndim)
{
	uint32_t found = ndim;

	for (uint32_t k = 0; k < ndim; k++) {
		if (shape[k] > len[k])
			return ndim;
		if (shape[k] < len[k] && found == ndim)
			found = k;
	}
	return found;
}

static void say_why(char *buf, size_t size, const struct dcp_pdist *d,
		    const struct dcp_pjoin *j, const struct dcp_pmeta_entry *e,
		    const struct dcp_parray *loc)
{
	uint32_t ndim = e->box.ndim, k = ndim;

	if (d->meta.generation != 'C' && loc->ndim == ndim) {
		if (meant_by_other(d, j, e, loc->shape)) {
			snprintf(buf, size,
				 "ranks saved tensors of different shapes under this key, "
				 "which Paddle before 3.2 cannot tell apart");
			return;
		}
		k = cut_again(dcp_pmeta_dims(&d->meta, e->box.len), loc->shape, ndim);
	}
	if (k < ndim)
		snprintf(buf, size,
			 "several mesh dimensions cut dimension %" PRIu32
			 ", of which Paddle 3.0 records the last one only, and it drops the "
			 "pieces of some ranks: save it again with 3.1 or later",
			 k);
	else
		snprintf(buf, size, "%s",
			 d->meta.generation == 'C'
				 ? "stale metadata, the data was saved again in another cut"
				 : "metadata and data are of different saves");
}

void dcp_pjoin_misfit(struct dcp_pdist *d, struct dcp_pjoin *j, const struct dcp_pmeta_entry *e,
		      const struct dcp_pmeta_record *r, const struct dcp_parray *loc)
{
	const uint64_t *len = dcp_pmeta_dims(&d->meta, e->box.len);
	uint64_t run = e->box.run_hi - e->box.run_lo;
	char is[100], said[100], at[100], why[256];

	if (d->join.lost.code)
		return;
	dcp_dims_text(is, sizeof(is), loc->shape, loc->ndim);
	dcp_dims_text(said, sizeof(said), e->box.flat ? &run : len,
		      e->box.flat ? 1 : e->box.ndim);
	dcp_box_text(at, sizeof(at), dcp_pmeta_dims(&d->meta, e->box.lo), len, e->box.ndim);
	say_why(why, sizeof(why), d, j, e, loc);
	dcp_join_lose(&d->join, -EBADMSG,
		      "%.100s says its piece %s is an array of shape %s, %.100s holds %s: %s",
		      d->meta_name, at, said, dcp_intern_text(&d->meta.files, r->file), is,
		      why);
}
