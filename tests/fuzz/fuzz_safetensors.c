/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever the bytes: no crash, no leak, a reason with every refusal; and what is accepted
 * keeps the promises of the header file.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/model/tensor.h"
#include "core/origin/origin.h"
#include "core/parse/safetensors/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool ok)
{
	if (!ok)
		abort();
}

static void check_entry(const struct dcp_safetensors_entry *e)
{
	uint64_t bytes;

	must(e->name && e->dtype_name && e->ndim <= DCP_MAX_NDIM && e->itemsize > 0);
	must(dcp_shape_volume(e->shape, e->ndim, &bytes));
	must(!dcp_ckd_mul(&bytes, bytes, e->itemsize) && bytes == e->nbytes);
	if (e->dtype != DCP_DTYPE_OTHER)
		must(e->itemsize == dcp_dtype_info(e->dtype)->size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct dcp_source src = dcp_source_mem(data, n);
	struct dcp_safetensors st = { 0 };
	struct dcp_err err = { 0 };
	struct dcp_arena a;
	int code;

	dcp_arena_init(&a, 1 << 20);
	code = dcp_safetensors_read(&src, &a, &st, &err);
	must(code == 0 || (err.code == code && err.msg[0] && (st.n == 0 || code == -ENODATA)));
	for (size_t i = 0; i < st.n; i++) {
		check_entry(&st.entries[i]);
		if (i)
			must(st.entries[i].off ==
			     st.entries[i - 1].off + st.entries[i - 1].nbytes);
	}
	if (st.n) {
		uint64_t end = st.entries[st.n - 1].off + st.entries[st.n - 1].nbytes;

		must(code == 0 ? end == n : end > n);
	}
	for (size_t i = 0; i < st.nmeta; i++)
		must(dcp_safetensors_meta(&st, st.meta[2 * i]) == st.meta[2 * i + 1]);
	dcp_arena_finish(&a);
	return 0;
}
