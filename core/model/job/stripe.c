/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/job/stripe.h"

#include <errno.h>
#include <stdlib.h>

#include "core/model/job/chunk.h"

enum {
	STRIPE_MOST = 4 << 20,
	SLOT_LEAST = 64 << 10,
};

int dcp_stripes_number(struct dcp_stripes *s, const struct dcp_file_id *files, size_t n)
{
	uint64_t all = 0;

	s->nfiles = n;
	s->base = calloc(n + 1, sizeof(*s->base));
	if (!s->base)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		s->base[i] = all;
		all += files[i].size / s->size + (files[i].size % s->size != 0);
	}
	s->base[n] = all;
	return 0;
}

uint64_t dcp_stripe_size(uint64_t staging, uint32_t ranks, uint64_t slack, uint64_t tried,
			 uint64_t most)
{
	/* Two slots, the window's head, and in the worst case @ranks stripes in each
	 * message buffer. */
	uint64_t room = DCP_MIN(staging - DCP_CHUNK_BLOCK, (uint64_t)1 << 40),
		 share = room / (2 * (uint64_t)ranks + 2), least = slack + DCP_CHUNK_BLOCK,
		 worst = DCP_MIN(DCP_MAX(share, least) - slack, (uint64_t)STRIPE_MOST),
		 used = 2 * (tried + slack) + most, next;

	worst -= worst % DCP_CHUNK_BLOCK;
	if (tried && (tried <= worst || used <= room))
		return tried;
	next = tried ? DCP_MIN(tried / 2, tried * room / used)
		     : DCP_MIN(room / 4 - slack, (uint64_t)STRIPE_MOST);
	return DCP_MAX(next - next % DCP_CHUNK_BLOCK, worst);
}

uint64_t dcp_slot_size(uint64_t staging, uint32_t n, uint64_t most)
{
	uint64_t size =
		DCP_MIN(DCP_MAX((staging - DCP_CHUNK_BLOCK) / n, (uint64_t)SLOT_LEAST), most);

	return size - size % DCP_CHUNK_BLOCK;
}
