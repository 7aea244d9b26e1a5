/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever the bytes: consecutive tensor streams, or one SelectedRows, lie inside the
 * file, and every refusal has a reason.
 */
#include <stdlib.h>

#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/origin/origin.h"
#include "core/parse/paddle/paddle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool ok)
{
	if (!ok)
		abort();
}

static void check(const struct dcp_lodtensor *x, const struct dcp_source *src)
{
	uint64_t volume, nbytes;

	must(x->ndim <= DCP_MAX_NDIM && x->itemsize && x->dtype_name[0]);
	must(dcp_shape_volume(x->shape, x->ndim, &volume));
	must(!dcp_ckd_mul(&nbytes, volume, x->itemsize) && nbytes == x->nbytes);
	must(dcp_range_ok(x->off, x->nbytes, src->size));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct dcp_source src = dcp_source_mem(data, n);
	struct dcp_selected_rows rows;
	struct dcp_lodtensor x;
	struct dcp_err err = { 0 };
	uint64_t at = 0;
	int rc = 0;

	while (at < n && (rc = dcp_lodtensor_read(&src, at, &x, &err)) == 0) {
		check(&x, &src);
		must(x.off > at);
		at = x.off + x.nbytes;
	}
	must(rc == 0 || (err.code == rc && err.msg[0]));
	err.code = 0;
	rc = dcp_selected_rows_read(&src, &rows, &err);
	must(rc == 0 || (err.code == rc && err.msg[0]));
	if (rc == 0) {
		check(&rows.value, &src);
		must(dcp_range_ok(rows.rows_off, 8 * rows.nrows, src.size));
	}
	return 0;
}
