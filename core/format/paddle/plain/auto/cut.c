/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/paddle/plain/auto/auto_int.h"

enum { MAX_RANKS = 1 << 20 }; /* in one mesh */

static int read_mesh(struct dcp_pdcut *c, struct dcp_pv v, struct dcp_err *why)
{
	const struct dcp_pv *item = dcp_pv_items(dcp_pv_at(v, "process_shape"), &c->nmesh);
	uint64_t n = 1;

	c->group = dcp_pv_items(dcp_pv_at(v, "process_group"), &c->nplaces);
	if (c->nmesh == 0 || c->nmesh > DCP_PDCUT_MESH)
		return dcp_fail(why, -EBADMSG,
				"process_shape of %zu dimensions, expected 1 to %d", c->nmesh,
				DCP_PDCUT_MESH);
	for (size_t m = c->nmesh; m-- > 0;) {
		c->step[m] = n;
		if (!dcp_pv_u64(item[m], &c->mesh[m]) || c->mesh[m] == 0 ||
		    dcp_ckd_mul(&n, n, c->mesh[m]) || n > MAX_RANKS)
			return dcp_fail(why, -EBADMSG,
					"process_shape is not a mesh of up to %d ranks",
					MAX_RANKS);
	}
	if (n != c->nplaces)
		return dcp_fail(why, -EBADMSG,
				"process_group has %zu rank%s, process_shape %" PRIu64
				" place%s",
				c->nplaces, dcp_s(c->nplaces), n, dcp_s(n));
	return 0;
}

int dcp_pdcut_read(struct dcp_pdcut *c, struct dcp_pv v, uint32_t ndim, struct dcp_err *why)
{
	const struct dcp_pv *map = dcp_pv_get(v, "dims_mapping"), *item;
	uint32_t used = 0;
	size_t n;
	int rc;

	*c = (struct dcp_pdcut){ 0 };
	rc = read_mesh(c, v, why);
	if (rc < 0)
		return rc;
	item = dcp_pv_items(dcp_pv_at(v, "dims_mapping"), &n);
	if (!map || n != ndim)
		return dcp_fail(why, -EBADMSG,
				"dims_mapping is for %zu dimension%s, the tensor has %" PRIu32,
				n, dcp_s(n), ndim);
	for (uint32_t d = 0; d < ndim; d++) {
		if (item[d].type != DCP_PV_INT || item[d].i < -1 ||
		    item[d].i >= (int64_t)c->nmesh)
			return dcp_fail(why, -EBADMSG,
					"dims_mapping of dimension %" PRIu32
					" is not a dimension of process_shape",
					d);
		c->by[d] = (int8_t)item[d].i;
		if (c->by[d] >= 0 && used >> c->by[d] & 1)
			return dcp_fail(why, -EBADMSG,
					"dims_mapping cuts two dimensions by one of the mesh");
		if (c->by[d] >= 0)
			used |= 1u << c->by[d];
	}
	return 0;
}

static bool same_ranks(const struct dcp_pdcut *a, const struct dcp_pdcut *b)
{
	for (size_t i = 0; i < a->nplaces; i++) {
		uint64_t x, y;

		if (!dcp_pv_u64(a->group[i], &x) || !dcp_pv_u64(b->group[i], &y) || x != y)
			return false;
	}
	return true;
}

bool dcp_pdcut_same(const struct dcp_pdcut *a, const struct dcp_pdcut *b)
{
	return a->nmesh == b->nmesh && a->nplaces == b->nplaces &&
	       memcmp(a->mesh, b->mesh, sizeof(a->mesh)) == 0 &&
	       memcmp(a->by, b->by, sizeof(a->by)) == 0 &&
	       (a->group == b->group || same_ranks(a, b));
}

uint64_t dcp_pdcut_part(const struct dcp_pdcut *c, uint32_t ndim, uint64_t place)
{
	uint64_t number = 0;

	for (uint32_t d = 0; d < ndim; d++)
		if (c->by[d] >= 0)
			number = number * c->mesh[c->by[d]] +
				 place / c->step[c->by[d]] % c->mesh[c->by[d]];
	return number;
}
