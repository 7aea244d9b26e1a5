/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>

#include "core/base/ckd.h"
#include "core/format/paddle/plain/plain_int.h"
#include "core/parse/numpy/ndpickle.h"

/* In one file, a gigabyte each. Every one is looked for among all keys. */
enum { MAX_PARTS = 1024 };

static int take_shape(struct dcp_pdbig *b, struct dcp_pv v)
{
	bool listed = v.type == DCP_PV_TUPLE || v.type == DCP_PV_LIST;

	if (!dcp_pv_dims(v, DCP_MAX_NDIM, b->shape, &b->t.ndim))
		return dcp_fail(&b->why, -EBADMSG, DCP_PDBIG_TABLE " has %s OriginShape for it",
				listed ? "a damaged" : "no");
	b->t.shape = b->shape;
	return 0;
}

/* The run of elements that one part holds. */
static int take_part(struct dcp_pdbig *b, const char *name, uint64_t *at)
{
	const struct dcp_pv *v = name ? dcp_pv_get(b->root, name) : NULL;
	struct dcp_piece p = {
		.lo = dcp_origin, .len = b->shape, .run_lo = *at, .file = b->file
	};
	struct dcp_tensor one = { 0 };
	struct dcp_ndarray a;
	enum dcp_pdwrap wrap;
	int rc;

	if (!v)
		return dcp_fail(&b->why, -EBADMSG, "its part %.80s is missing",
				name ? name : "without a name");
	rc = dcp_ndarray_read(dcp_pdvalue_array(*v, &wrap), &a, &b->why);
	if (rc != 1)
		return rc < 0 ? rc
			      : dcp_fail(&b->why, -EBADMSG, "its part %.80s is not an array",
					 name);
	dcp_pdvalue_take(&one, &a, wrap != DCP_PDWRAP_NONE || b->bf16);
	if (!b->t.dtype_name) {
		b->t.dtype = one.dtype;
		b->t.dtype_name = one.dtype_name;
		b->t.itemsize = one.itemsize;
	}
	if (one.dtype != b->t.dtype || a.ndim != 1 || !a.row_major)
		return dcp_fail(&b->why, -EBADMSG, "its part %.80s is not one row of %s", name,
				b->t.dtype_name);
	p.run_n = a.shape[0];
	dcp_ndarray_place(&a, &p);
	if (dcp_ckd_add(at, *at, p.run_n))
		return dcp_fail(&b->why, -EBADMSG, "its parts are too long");
	if (p.run_n > 0)
		dcp_buf_add(&b->pieces, &p, sizeof(p));
	return dcp_buf_error(&b->pieces);
}

static int join(struct dcp_pdbig *b, struct dcp_pv info)
{
	const struct dcp_pv *slices = dcp_pv_get(info, "slices");
	const struct dcp_pv *shape = dcp_pv_get(info, "OriginShape"), *name;
	uint64_t at = 0, volume;
	size_t n = 0;
	int rc;

	if (!slices || !shape)
		return dcp_fail(&b->why, -EBADMSG,
				DCP_PDBIG_TABLE " does not say how it was cut");
	rc = take_shape(b, *shape);
	name = dcp_pv_items(*slices, &n);
	b->nparts += n;
	if (b->nparts > MAX_PARTS)
		return dcp_fail(&b->why, -E2BIG, DCP_PDBIG_TABLE " names more than %d parts",
				MAX_PARTS);
	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = take_part(b, dcp_pv_str(name[i]), &at);
	if (rc < 0)
		return rc;
	if (!dcp_shape_volume(b->shape, b->t.ndim, &volume) || at != volume)
		return dcp_fail(&b->why, -EBADMSG,
				"its parts have %" PRIu64 " elements, its shape another number",
				at);
	return 0;
}

int dcp_pdbig_join(struct dcp_pdbig *b, struct dcp_pv info)
{
	int rc;

	b->t = (struct dcp_tensor){ 0 };
	b->why = (struct dcp_err){ 0 };
	dcp_buf_reset(&b->pieces);
	rc = join(b, info);
	if (rc == 0) {
		b->t.pieces = DCP_ITEMS(b->pieces, struct dcp_piece);
		b->t.npieces = DCP_NITEMS(b->pieces, struct dcp_piece);
	}
	if (!b->t.dtype_name)
		b->t.dtype_name = "";
	return rc;
}
