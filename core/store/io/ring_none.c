/* SPDX-License-Identifier: Apache-2.0 */
/* In place of ring_uring.c, in builds without liburing: reads go through preadv. */
#include "core/store/io/queue.h"

#include <errno.h>

int dcp_ring_open(unsigned entries, struct dcp_ring **out)
{
	return -ENOTSUP;
}

void dcp_ring_close(struct dcp_ring *r)
{
}

int dcp_ring_register(struct dcp_ring *r, void *memory, size_t n)
{
	return -ENOTSUP;
}

int dcp_ring_read(struct dcp_ring *r, const struct dcp_read *reads, size_t n, uint32_t *done,
		  uint64_t *calls)
{
	return -ENOTSUP;
}
