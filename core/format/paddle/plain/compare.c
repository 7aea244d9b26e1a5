/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stored bytes are compared, not values: what one file holds in another order or encoding than
 * the other is taken for different, which costs no more than a name of its own.
 */
#include <string.h>

#include "core/base/base.h"
#include "core/base/hash.h"
#include "core/format/paddle/plain/plain_int.h"

enum { BLOCKS = 4, BLOCK = 4096 }; /* of a larger value */

/* Everything but the place in the file. */
static void add_form(struct dcp_hash128 *h, const struct dcp_tensor *t,
		     const struct dcp_piece *p)
{
	const uint64_t numbers[] = { p->run_lo, p->run_n, p->nbytes,        p->enc,
				     p->filter, p->swap,  p->stride != NULL };

	dcp_hash128_add(h, p->lo, t->ndim * sizeof(*p->lo));
	dcp_hash128_add(h, p->len, t->ndim * sizeof(*p->len));
	if (p->stride)
		dcp_hash128_add(h, p->stride, t->ndim * sizeof(*p->stride));
	dcp_hash128_add(h, numbers, sizeof(numbers));
}

static int add_bytes(struct dcp_hash128 *h, const struct dcp_source *src, uint64_t off,
		     uint64_t n)
{
	uint8_t buf[BLOCK];

	while (n > 0) {
		size_t part = (size_t)DCP_MIN(n, sizeof(buf));
		int rc = dcp_source_read(src, off, buf, part);

		if (rc < 0)
			return rc;
		dcp_hash128_add(h, buf, part);
		off += part;
		n -= part;
	}
	return 0;
}

/* All of it, or its start, its end and what lies evenly between them. */
static int add_piece(struct dcp_hash128 *h, const struct dcp_source *src,
		     const struct dcp_piece *p, uint64_t *budget, bool *sampled)
{
	bool whole = p->nbytes <= DCP_PDSAME_WHOLE;
	uint64_t cost = whole ? p->nbytes : BLOCKS * BLOCK;
	int rc = 0;

	if (cost > *budget)
		return -E2BIG;
	*budget -= cost;
	if (whole)
		return add_bytes(h, src, p->off, p->nbytes);
	*sampled = true;
	for (uint64_t i = 0; rc == 0 && i + 1 < BLOCKS; i++)
		rc = add_bytes(h, src, p->off + (p->nbytes - BLOCK) / (BLOCKS - 1) * i, BLOCK);
	return rc < 0 ? rc : add_bytes(h, src, p->off + p->nbytes - BLOCK, BLOCK);
}

int dcp_pdsame_read(const struct dcp_source *src, const struct dcp_tensor *t, uint64_t *budget,
		    struct dcp_pdsame *out)
{
	struct dcp_hash128 *h;
	int rc = 0;

	*out = (struct dcp_pdsame){ 0 };
	if (t->error)
		return 0;
	h = dcp_hash128_new();
	if (!h)
		return -ENOMEM;
	dcp_hash128_add(h, t->dtype_name, strlen(t->dtype_name) + 1);
	dcp_hash128_add(h, &t->ndim, sizeof(t->ndim));
	dcp_hash128_add(h, t->shape, t->ndim * sizeof(*t->shape));
	for (size_t i = 0; rc == 0 && i < t->npieces; i++) {
		add_form(h, t, &t->pieces[i]);
		rc = add_piece(h, src, &t->pieces[i], budget, &out->sampled);
	}
	dcp_hash128_end(h, out->sum);
	out->known = rc == 0;
	return 0;
}
