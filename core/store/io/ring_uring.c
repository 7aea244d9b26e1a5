/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/io/queue.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

struct dcp_ring {
	struct io_uring uring;
	struct iovec held; /* registered memory */
};

int dcp_ring_open(unsigned entries, struct dcp_ring **out)
{
	struct dcp_ring *r = calloc(1, sizeof(*r));
	int rc;

	if (!r)
		return -ENOMEM;
	/* only waiting threads look for completions, so no interrupts between processors are
	 * needed */
	rc = io_uring_queue_init(entries, &r->uring, IORING_SETUP_COOP_TASKRUN);
	if (rc == -EINVAL) /* Linux before 5.19 */
		rc = io_uring_queue_init(entries, &r->uring, 0);
	if (rc < 0) {
		free(r);
		return rc;
	}
	io_uring_ring_dontfork(&r->uring);
	*out = r;
	return 0;
}

void dcp_ring_close(struct dcp_ring *r)
{
	if (!r)
		return;
	io_uring_queue_exit(&r->uring);
	free(r);
}

int dcp_ring_register(struct dcp_ring *r, void *memory, size_t n)
{
	struct iovec held = { memory, n };
	int rc = io_uring_register_buffers(&r->uring, &held, 1);

	if (rc == 0)
		r->held = held;
	return rc;
}

static bool is_held(const struct dcp_ring *r, const struct dcp_read *read)
{
	uintptr_t lo = (uintptr_t)r->held.iov_base, at = (uintptr_t)read->to;

	return at >= lo && at - lo <= r->held.iov_len && r->held.iov_len - (at - lo) >= read->n;
}

/* Take the completed reads; returns their number. */
static size_t reap_reads(struct dcp_ring *r, const struct dcp_read *reads, uint32_t *done)
{
	struct io_uring_cqe *cqe;
	unsigned head;
	size_t n = 0;

	io_uring_for_each_cqe(&r->uring, head, cqe)
	{
		size_t i = (size_t)cqe->user_data;

		if (cqe->res > 0)
			done[i] = (uint32_t)cqe->res <= reads[i].n ? (uint32_t)cqe->res : 0;
		n++;
	}
	io_uring_cq_advance(&r->uring, (unsigned)n);
	return n;
}

int dcp_ring_read(struct dcp_ring *r, const struct dcp_read *reads, size_t n, uint32_t *done,
		  uint64_t *calls)
{
	size_t asked = 0, came = 0;
	int rc = 0;

	memset(done, 0, n * sizeof(*done));
	for (size_t i = 0; i < n; i++) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&r->uring);

		if (is_held(r, &reads[i]))
			io_uring_prep_read_fixed(sqe, reads[i].fd, reads[i].to, reads[i].n,
						 reads[i].off, 0);
		else
			io_uring_prep_read(sqe, reads[i].fd, reads[i].to, reads[i].n,
					   reads[i].off);
		io_uring_sqe_set_data64(sqe, i);
	}
	while (came < n && (rc >= 0 || rc == -EINTR)) {
		rc = io_uring_submit_and_wait(&r->uring, (unsigned)(n - came));
		++*calls;
		asked += rc > 0 ? (size_t)rc : 0;
		came += reap_reads(r, reads, done);
	}
	if (came == n)
		return 0;
	/* Reads that the kernel took before it failed still write to their buffers. */
	while (came < asked) {
		struct io_uring_cqe *cqe;

		io_uring_wait_cqe(&r->uring, &cqe);
		came += reap_reads(r, reads, done);
	}
	return rc;
}
