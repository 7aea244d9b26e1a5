/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever the bytes: an array's elements have a size, a shape that can be counted and strides
 * that stay in it, and every refusal has a reason. The same bytes as deflate stay in their
 * room.
 */
#include <stdlib.h>

#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/origin/archive/archive.h"
#include "core/origin/origin.h"
#include "core/parse/numpy/numpy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool ok)
{
	if (!ok)
		abort();
}

static void check(const struct dcp_npy *a, const struct dcp_source *src)
{
	uint64_t volume, nbytes, last = 0;

	must(a->off <= src->size && a->ndim <= DCP_MAX_NDIM);
	must((a->kind == DCP_NPY_NUMBERS) == (a->itemsize > 0));
	must(dcp_shape_volume(a->shape, a->ndim, &volume));
	must(!dcp_ckd_mul(&nbytes, volume, a->itemsize) && nbytes == a->nbytes);
	for (uint32_t d = 0; d < a->ndim && volume > 0 && a->itemsize; d++)
		last += (a->shape[d] - 1) * a->stride[d];
	must(volume == 0 || !a->itemsize || last + 1 == volume);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct dcp_source src = dcp_source_mem(data, n);
	struct dcp_err err = { 0 };
	struct dcp_npy a;
	char head[64];
	size_t got = 0;
	int rc = dcp_npy_read(&src, &a, &err);

	must(rc == 0 || (err.code == rc && err.msg[0]));
	if (rc == 0)
		check(&a, &src);
	err.code = 0;
	rc = dcp_inflate_head(&src, DCP_CODEC_DEFLATE, head, sizeof(head), &got, &err);
	must(got <= sizeof(head));
	must(rc == 0 || (err.code == rc && err.msg[0]));
	return 0;
}
