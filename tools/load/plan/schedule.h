/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule: what a rank sends to whom, where each byte is read by one rank of the job, the owner of
 * its stripe (core/model/job/chunk.h).
 *
 * When the plan is made, every rank sends each owner which bytes of the owner's
 * stripes it needs. Stripes are as large as the messages of all ranks allow. In round k, rank r
 * reads the blocks of stripe k * ranks + r that any rank needs and sends each rank its bytes, in
 * order. A rank stores only what it needs itself and what others need of its own stripes.
 */
#pragma once
#include "core/model/job/chunk.h"
#include "tools/load/load.h"

/*
 * What a rank needs from a stripe: @count times @run bytes, every @step bytes of the file from @lo
 * on. They may reach beyond it, where its last element may end. Sent between ranks in this form.
 */
struct load_round_part {
	uint64_t stripe, lo;
	uint32_t run, step, count, file;
	uint32_t number; /* place in the order in which parts of a stripe are sent */
	uint32_t need;   /* the need that is packed, from 1; 0: bytes as in the file */
};

struct load_rounds {
	struct dcp_stripes of;
	uint32_t self;
	uint64_t slack;               /* bytes that a part may reach beyond its stripe */
	struct load_round_part *mine; /* what this rank needs, in order */
	size_t nmine, cap_mine;
	struct load_round_part *
		*theirs; /* what rank d needs of this rank's stripes, in order */
	size_t *ntheirs;
	struct load_round_part *memory; /* holds all of @theirs */
	size_t *next;                   /* index in theirs[d] of the current round */
	size_t next_mine;
	const void **send;
	uint64_t *nsend, *nrecv;
	void **recv;
	uint8_t *pack, *in; /* messages of a round: sent, received */
	uint64_t npack, nin;
	struct load_device *
		device; /* whose memory @there and @in are; NULL: messages go from host to host */
	/* where @pack goes before it is sent, with what this rank itself needs of its stripe */
	char *there;
	/* all ranks need the same, most of what is read, and devices gather whole stripes in @in */
	bool same;
	/*
	 * By CUDA IPC others read where it is what goes to @there: a half of it and @in, in turns,
	 * as the last round's may still be read.
	 */
	uint64_t half; /* bytes; 0: they do not */
	char *now;     /* the half of this round, or @there */
	bool mapped;   /* by others, perhaps: it must not be freed */
};

/* Collective: find which stripes of the files each rank reads, and what it sends of them. Sets
 * p->rounds and p->chunks. */
int load_make_rounds(struct dcpload_plan *p, uint64_t staging, bool slack,
		     struct dcpload_error *err);
/* @keep: buffers of messages stay until the process ends, as a device may still use them. */
void load_rounds_free(struct load_rounds *r, bool keep);
/* Bytes of message buffers, in the host's memory and a device's; NULL: 0. */
uint64_t load_rounds_bytes(const struct load_rounds *r);
uint64_t load_rounds_device_bytes(const struct load_rounds *r);

/* Number of the parts from v[next] on that are of @stripe; *bytes: their bytes. */
size_t load_round_parts(const struct load_round_part *v, size_t n, size_t next, uint64_t stripe,
			uint64_t *bytes);
/* Collective: send and receive what r->send and r->recv describe, in the host's memory. */
int load_rounds_send(const struct dcpload_plan *p, struct dcpload_error *err);
