/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport of one process.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/load/comm/transport.h"

static int alone_allgather(void *ctx, const void *mine, size_t n, void *all, int timeout_ms)
{
	if (n)
		memmove(all, mine, n);
	return 0;
}

static int alone_alltoallv(void *ctx, const void *const *send, const uint64_t *nsend,
			   void *const *recv, const uint64_t *nrecv, int timeout_ms)
{
	if (nsend[0] != nrecv[0])
		return -EPROTO;
	return alone_allgather(ctx, send[0], nsend[0], recv[0], timeout_ms);
}

static int alone_split(void *ctx, uint32_t color, uint32_t key, struct dcpload_comm **out,
		       int timeout_ms)
{
	return load_alone_open(NULL, out, NULL);
}

const struct dcpload_comm load_alone = {
	.size = sizeof(load_alone),
	.ranks = 1,
	.name = "alone",
	.allgather = alone_allgather,
	.alltoallv = alone_alltoallv,
	.split = alone_split,
};

int load_alone_open(const struct dcpload_comm_config *config, struct dcpload_comm **out,
		    struct dcpload_error *err)
{
	(void)config;
	struct dcpload_comm *comm = malloc(sizeof(*comm));

	if (!comm)
		return load_say(err, -ENOMEM);
	*comm = load_alone;
	comm->ctx = comm;
	comm->close = free;
	*out = comm;
	return 0;
}
