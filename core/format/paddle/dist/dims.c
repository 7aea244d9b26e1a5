/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dims: boxes and shapes compared, and in words.
 */
#include <inttypes.h>
#include <stdio.h>

#include "core/format/paddle/dist/key.h"

void dcp_pjoin_box_text(char *buf, size_t size, const uint64_t *lo, const uint64_t *len,
			uint32_t ndim)
{
	size_t n = (size_t)snprintf(buf, size, "[");

	for (uint32_t d = 0; d < ndim && n + 48 < size; d++)
		n += (size_t)snprintf(buf + n, size - n, "%s%" PRIu64 ":%" PRIu64,
				      d ? ", " : "", lo[d], lo[d] + len[d]);
	snprintf(buf + n, size - n, "]");
}

void dcp_pjoin_dims_text(char *buf, size_t size, const uint64_t *dims, uint32_t ndim)
{
	size_t n = (size_t)snprintf(buf, size, "[");

	for (uint32_t d = 0; d < ndim && n + 24 < size; d++)
		n += (size_t)snprintf(buf + n, size - n, d ? ", %" PRIu64 : "%" PRIu64,
				      dims[d]);
	snprintf(buf + n, size - n, "]");
}

int dcp_pjoin_compare(const uint64_t *a, const uint64_t *b, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++)
		if (a[k] != b[k])
			return a[k] < b[k] ? -1 : 1;
	return 0;
}
