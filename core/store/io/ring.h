/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring: one io_uring (ring_uring.c, built where liburing was found), or a stub that has none
 * (ring_none.c). Readers use core/store/io/queue.h, which shares rings and works without them.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct dcp_read;
struct dcp_ring;

/* Room for @entries reads at once. -ENOTSUP (not built in), -EPERM and -ENOSYS (forbidden by the
 * kernel or by a sandbox), -EMFILE, -ENOMEM, ... */
int dcp_ring_open(unsigned entries, struct dcp_ring **out);
void dcp_ring_close(struct dcp_ring *r);

/* Keep [@memory, @memory + @n) in place: reads that lie in there then need not look up and hold
 * its pages each time. Until the ring is closed it must stay mapped. -ENOMEM: more than
 * RLIMIT_MEMLOCK allows, ... */
int dcp_ring_register(struct dcp_ring *r, void *memory, size_t n);

/*
 * Make @n reads, at most as many as there is room for, and wait for all of them: done[i] is how
 * many bytes of the i-th came, 0 if it failed. System calls are added to @calls. One thread at a
 * time. Negative: the ring can no longer be used; @done is valid all the same.
 */
int dcp_ring_read(struct dcp_ring *r, const struct dcp_read *reads, size_t n, uint32_t *done,
		  uint64_t *calls);
