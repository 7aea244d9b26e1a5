/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/view/digest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/cleanup.h"
#include "core/base/endian.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/store/view/view.h"

enum { CHUNK = 1 << 20 };

static void add_u64(struct dcp_hash128 *h, uint64_t v)
{
	uint8_t bytes[8];

	dcp_store_le64(bytes, v);
	dcp_hash128_add(h, bytes, sizeof(bytes));
}

int dcp_digest(const struct dcp_view *view, char text[DCP_DIGEST_TEXT], struct dcp_err *err)
{
	const struct dcp_tensor *t = dcp_view_tensor(view);
	dcp_auto_free void *chunk = malloc(CHUNK);
	struct dcp_hash128 *h = dcp_hash128_new();
	uint64_t size = dcp_view_size(view), value[2];
	int rc = chunk && h ? 0 : -ENOMEM;

	if (h) {
		dcp_hash128_add(h, t->dtype_name, strlen(t->dtype_name) + 1);
		add_u64(h, t->ndim);
		for (uint32_t d = 0; d < t->ndim; d++)
			add_u64(h, t->shape[d]);
	}
	for (uint64_t at = 0; rc == 0 && at < size;) {
		size_t n = DCP_MIN(size - at, (uint64_t)CHUNK);

		rc = dcp_view_read(view, at, chunk, n);
		if (rc == 0)
			dcp_hash128_add(h, chunk, n);
		else
			dcp_fail(err, rc, at, "reading at byte %" PRIu64 ": %s", at,
				 strerror(-rc));
		at += n;
	}
	if (h)
		dcp_hash128_end(h, value);
	if (rc == 0)
		snprintf(text, DCP_DIGEST_TEXT, "%016" PRIx64 "%016" PRIx64, value[0],
			 value[1]);
	return rc;
}
