/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring: one io_uring, or word that there is none: ring_uring.c where liburing was found, else
 * ring_none.c. Whoever has reads to make asks store/queue, which shares rings and does without.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct dcp_read;
struct dcp_ring;

/* Room for @entries reads at once. -ENOTSUP (not built in), -EPERM and -ENOSYS (the kernel, or
 * who watches over this process, does not let us), -EMFILE, -ENOMEM, ... */
int dcp_ring_open(unsigned entries, struct dcp_ring **out);
void dcp_ring_close(struct dcp_ring *r);

/*
 * Make @n reads, at most as many as there is room for, and wait for all of them: done[i] is how
 * many bytes of the i-th came, 0 if it failed. @calls: of the kernel, added to. One thread at a
 * time. Negative: the ring is of no more use; what is in @done stands.
 */
int dcp_ring_read(struct dcp_ring *r, const struct dcp_read *reads, size_t n, uint32_t *done,
		  uint64_t *calls);
