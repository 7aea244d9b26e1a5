/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the pieces of a key have in common: its dtype and its shape.
 */
#include <string.h>

#include "core/base/ckd.h"
#include "core/format/paddle/dist/key.h"

static void set_dtype(struct dcp_pjoin *j, const char *name)
{
	enum dcp_dtype dtype = dcp_dtype_from_torch(name, strlen(name));

	if (j->sized && dtype == j->t.dtype)
		return;
	if (j->sized)
		dcp_pjoin_fail(j, "its pieces are of different dtypes, %.32s among them", name);
	j->sized = true;
	j->t.dtype = dtype;
	j->t.dtype_name = dtype == DCP_DTYPE_OTHER ? name : dcp_dtype_info(dtype)->name;
	j->t.itemsize = dcp_dtype_info(dtype)->size;
}

/* Without a word in metadata u2 is bfloat16: Paddle had no uint16 then. */
void dcp_pjoin_stored_dtype(struct dcp_pdist *d, struct dcp_pjoin *j,
			    const struct dcp_parray *loc)
{
	enum dcp_dtype dtype = loc->dtype == DCP_DTYPE_U16 ? DCP_DTYPE_BF16 : loc->dtype;

	if (j->sized && j->t.dtype != dtype)
		dcp_pjoin_fail(j, "its pieces are stored as different dtypes, %s and %s",
			       j->t.dtype_name, loc->dtype_name);
	j->sized = true;
	j->t.dtype = dtype;
	j->t.dtype_name =
		dtype == DCP_DTYPE_OTHER ? loc->dtype_name : dcp_dtype_info(dtype)->name;
	j->t.itemsize = loc->itemsize;
}

static void join_shape(struct dcp_pjoin *j, const uint64_t *shape, bool *said)
{
	if (*said && memcmp(j->shape, shape, j->t.ndim * sizeof(*shape)) != 0)
		dcp_pjoin_fail(j, "its pieces disagree about global_shape");
	memcpy(j->shape, shape, j->t.ndim * sizeof(*shape));
	*said = true;
}

/* The smallest shape that all pieces fit in. */
static void grow_shape(struct dcp_pdist *d, struct dcp_pjoin *j,
		       const struct dcp_pmeta_box *box)
{
	const uint64_t *lo = dcp_pmeta_dims(&d->meta, box->lo);
	const uint64_t *len = dcp_pmeta_dims(&d->meta, box->len);

	for (uint32_t k = 0; k < j->t.ndim; k++) {
		uint64_t end;

		if (dcp_ckd_add(&end, lo[k], len[k]))
			dcp_pjoin_fail(j, "a piece ends beyond any shape");
		else
			j->shape[k] = DCP_MAX(j->shape[k], end);
	}
}

/* What the entries say in common. */
void dcp_pjoin_head(struct dcp_pdist *d, struct dcp_pjoin *j, const struct dcp_pmeta_key *k)
{
	bool said = false;
	uint64_t volume;
	uint32_t i;

	if (k->entry == DCP_PMETA_NONE) {
		dcp_pjoin_fail(j, "%.100s lists no piece of it", d->meta_name);
		return;
	}
	j->t.ndim = dcp_pmeta_entry(&d->meta, k->entry)->box.ndim;
	for (i = k->entry; i != DCP_PMETA_NONE && !dcp_pjoin_broken(j);) {
		const struct dcp_pmeta_entry *e = dcp_pmeta_entry(&d->meta, i);

		i = e->next;
		if (e->box.ndim != j->t.ndim)
			dcp_pjoin_fail(j, "its pieces are of different numbers of dimensions");
		else if (e->shape != DCP_PMETA_NO_DIMS)
			join_shape(j, dcp_pmeta_dims(&d->meta, e->shape), &said);
		if (e->dtype != DCP_PMETA_NONE)
			set_dtype(j, dcp_intern_text(&d->meta.dtypes, e->dtype));
	}
	for (i = k->entry; i != DCP_PMETA_NONE && !dcp_pjoin_broken(j) && !said;) {
		const struct dcp_pmeta_entry *e = dcp_pmeta_entry(&d->meta, i);

		i = e->next;
		grow_shape(d, j, &e->box);
	}
	if (!dcp_pjoin_broken(j) && !dcp_shape_volume(j->shape, j->t.ndim, &volume))
		dcp_pjoin_fail(j, "its shape does not fit in 64 bits");
}
