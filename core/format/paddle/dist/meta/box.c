/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>

#include "core/base/err.h"
#include "core/format/paddle/dist/meta/meta_int.h"
#include "core/parse/pyjson/pyjson.h"

int dcp_pmeta_take_dims(struct dcp_pmeta *m, const struct dcp_pv *v, const char *what,
			uint64_t *at, uint32_t *ndim, struct dcp_err *why)
{
	const struct dcp_pv *item;
	int negative = 0;
	size_t n = 0;

	if (!v || (v->type != DCP_PV_TUPLE && v->type != DCP_PV_LIST))
		return dcp_fail(why, -EBADMSG, "%s is %s, expected a tuple", what,
				v ? dcp_pyjson_type(*v) : "missing");
	item = dcp_pv_items(*v, &n);
	if (n > DCP_MAX_NDIM)
		return dcp_fail(why, -EBADMSG, "%s has %zu dimensions, at most %d are possible",
				what, n, DCP_MAX_NDIM);
	*at = DCP_NITEMS(m->dims, uint64_t);
	*ndim = (uint32_t)n;
	for (size_t i = 0; i < n; i++) {
		uint64_t d = 0;

		if (!dcp_pv_u64(item[i], &d)) {
			if (item[i].type != DCP_PV_INT)
				return dcp_fail(why, -EBADMSG, "%s holds %s, expected int",
						what, dcp_pyjson_type(item[i]));
			negative = 1;
		}
		dcp_buf_add(&m->dims, &d, sizeof(d));
	}
	return negative;
}

static int take_run(struct dcp_pv v, struct dcp_pmeta_box *box, struct dcp_err *why)
{
	const struct dcp_pv flat = dcp_pv_at(v, "is_flattened");
	size_t n;
	const struct dcp_pv *item = dcp_pv_items(dcp_pv_at(v, "flattened_range"), &n);
	uint64_t is = 0;

	if (flat.type != DCP_PV_NONE && !dcp_pv_u64(flat, &is))
		return dcp_fail(why, -EBADMSG, "is_flattened is %s", dcp_pyjson_type(flat));
	if (!is)
		return 0;
	if (n != 2 || !dcp_pv_u64(item[0], &box->run_lo) ||
	    !dcp_pv_u64(item[1], &box->run_hi) || box->run_lo > box->run_hi)
		return dcp_fail(why, -EBADMSG,
				"a flattened piece without a flattened_range (start, stop)");
	box->flat = true;
	return 0;
}

int dcp_pmeta_take_box(struct dcp_pmeta *m, struct dcp_pv v, bool bare,
		       struct dcp_pmeta_box *box, struct dcp_err *why)
{
	const struct dcp_pv *len = dcp_pv_get(v, "local_shape");
	uint32_t nlen = 0;
	int rc = dcp_pmeta_take_dims(m, dcp_pv_get(v, "global_offset"), "global_offset",
				     &box->lo, &box->ndim, why);

	if (rc == 1)
		return dcp_fail(why, -EBADMSG, "a piece has a negative global_offset");
	box->len = DCP_PMETA_NO_DIMS;
	if (rc == 0 && !(bare && (!len || len->type == DCP_PV_NONE))) {
		rc = dcp_pmeta_take_dims(m, len, "local_shape", &box->len, &nlen, why);
		if (rc >= 0 && nlen != box->ndim)
			return dcp_fail(why, -EBADMSG,
					"a piece has a global_offset of %" PRIu32
					" dimensions and a local_shape of %" PRIu32,
					box->ndim, nlen);
	}
	if (rc < 0)
		return rc;
	return take_run(v, box, why) < 0 ? -EBADMSG : rc;
}
