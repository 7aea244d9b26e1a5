/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/io/queue.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/store/io/fetch.h"
#include "core/store/io/ring.h"

enum { AHEAD = 32 /* reads that the kernel is advised of before they are made */ };

struct dcp_queue {
	pthread_mutex_t lock; /* the rest; not held while anything is opened or read */
	struct dcp_ring *idle[DCP_QUEUE_RINGS];
	size_t nidle, nopen;
	void *buffer[DCP_QUEUE_RINGS];
	size_t nbuffers;
	void *memory; /* to be registered; NULL: nothing, or it was refused */
	size_t nmemory;
	int refused; /* why; also looked at without the lock, as the two above */
	bool off; /* rings are not available, now or later; also looked at without the lock */
};

int dcp_queue_create(struct dcp_queue **out)
{
	struct dcp_queue *q = calloc(1, sizeof(*q));

	if (!q)
		return -ENOMEM;
	pthread_mutex_init(&q->lock, NULL);
	*out = q;
	return 0;
}

void dcp_queue_destroy(struct dcp_queue *q)
{
	if (!q)
		return;
	while (q->nidle)
		dcp_ring_close(q->idle[--q->nidle]);
	while (q->nbuffers)
		free(q->buffer[--q->nbuffers]);
	pthread_mutex_destroy(&q->lock);
	free(q);
}

void dcp_queue_register(struct dcp_queue *q, void *memory, size_t n)
{
	q->memory = memory;
	q->nmemory = n;
}

int dcp_queue_refused(const struct dcp_queue *q)
{
	return __atomic_load_n(&q->refused, __ATOMIC_RELAXED);
}

int dcp_queue_probe(void)
{
	struct dcp_ring *ring;
	int rc = dcp_ring_open(2, &ring);

	if (rc == 0)
		dcp_ring_close(ring);
	return rc;
}

bool dcp_queue_batches(const struct dcp_queue *q)
{
	return q && !__atomic_load_n(&q->off, __ATOMIC_RELAXED);
}

/* ---- buffers ---- */

void *dcp_queue_take(struct dcp_queue *q)
{
	void *buffer = NULL;

	if (q) {
		pthread_mutex_lock(&q->lock);
		if (q->nbuffers)
			buffer = q->buffer[--q->nbuffers];
		pthread_mutex_unlock(&q->lock);
	}
	return buffer ? buffer : malloc(DCP_QUEUE_BUFFER);
}

void dcp_queue_give(struct dcp_queue *q, void *buffer)
{
	if (q) {
		pthread_mutex_lock(&q->lock);
		if (q->nbuffers < DCP_LEN(q->buffer)) {
			q->buffer[q->nbuffers++] = buffer;
			buffer = NULL;
		}
		pthread_mutex_unlock(&q->lock);
	}
	free(buffer);
}

/* ---- rings ---- */

/* Give back a ring, or (NULL) the place of a ring that is gone; @off: for good. */
static void give(struct dcp_queue *q, struct dcp_ring *ring, bool off)
{
	pthread_mutex_lock(&q->lock);
	if (ring)
		q->idle[q->nidle++] = ring;
	else
		q->nopen--;
	if (off)
		__atomic_store_n(&q->off, true, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&q->lock);
}

/* Its memory is not registered, because of @rc. */
static void refuse(struct dcp_queue *q, int rc)
{
	__atomic_store_n(&q->memory, NULL, __ATOMIC_RELAXED);
	__atomic_store_n(&q->refused, rc, __ATOMIC_RELAXED);
}

/* A ring that is the caller's until it is given back; NULL: none is available. */
static struct dcp_ring *take(struct dcp_queue *q)
{
	struct dcp_ring *ring = NULL;
	bool open = false;
	int rc;

	pthread_mutex_lock(&q->lock);
	if (q->nidle) {
		ring = q->idle[--q->nidle];
	} else if (!q->off && q->nopen < DCP_QUEUE_RINGS) {
		q->nopen++;
		open = true;
	}
	pthread_mutex_unlock(&q->lock);
	if (!open)
		return ring;
	rc = dcp_ring_open(DCP_QUEUE_READS, &ring);
	if (q->memory) {
		int refused = rc < 0 ? rc : dcp_ring_register(ring, q->memory, q->nmemory);

		if (refused < 0)
			refuse(q, refused);
	}
	if (rc == 0)
		return ring;
	/* what is short now may be there next time; what is forbidden will not be allowed */
	give(q, NULL, rc != -ENOMEM && rc != -EMFILE && rc != -ENFILE && rc != -EAGAIN);
	return NULL;
}

/* ---- one after the other ---- */

/* What is missing of @r, whose first @done bytes are there. */
static int read_rest(const struct dcp_read *r, uint32_t done, struct dcp_io_counts *io)
{
	while (done < r->n) {
		ssize_t got =
			pread(r->fd, (char *)r->to + done, r->n - done, (off_t)(r->off + done));

		io->calls++;
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return -EIO;
		io->fetched += (uint64_t)got;
		done += (uint32_t)got;
	}
	return 0;
}

/* Would it be answered without waiting? */
static bool is_cached(const struct dcp_read *r, struct dcp_io_counts *io)
{
	io->calls++;
	return dcp_is_cached(r->fd, r->off);
}

/* Tell the kernel of the next reads, so that it makes them side by side. */
static void announce(const struct dcp_read *reads, size_t n, struct dcp_io_counts *io)
{
	n = DCP_MIN(n, AHEAD);
	if (n < 2 || is_cached(reads, io))
		return;
	for (size_t i = 0; i < n; i++)
		posix_fadvise(reads[i].fd, (off_t)reads[i].off, (off_t)reads[i].n,
			      POSIX_FADV_WILLNEED);
	io->calls += n;
}

static int read_each(const struct dcp_read *reads, size_t n, struct dcp_io_counts *io)
{
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++) {
		if (i % AHEAD == 0)
			announce(reads + i, n - i, io);
		rc = read_rest(&reads[i], 0, io);
	}
	return rc;
}

static bool is_of_blob(const struct dcp_read *r)
{
	return r->fd < 0 && r->blob;
}

/* Some reads are made by their blobs, all of one blob together. */
static int read_mixed(struct dcp_queue *q, const struct dcp_read *reads, size_t n,
		      struct dcp_io_counts *io)
{
	int rc = 0;

	for (size_t i = 0, k; i < n && rc == 0; i = k) {
		bool blob = is_of_blob(&reads[i]);

		for (k = i; k < n && is_of_blob(&reads[k]) == blob &&
			    (!blob || reads[k].blob == reads[i].blob);
		     k++)
			io->fetched += blob ? reads[k].n : 0;
		io->calls += blob;
		rc = blob ? reads[i].blob->ops->read(&reads[i], k - i)
			  : dcp_queue_read(q, &reads[i], k - i, io);
	}
	return rc;
}

int dcp_queue_read(struct dcp_queue *q, const struct dcp_read *reads, size_t n,
		   struct dcp_io_counts *io)
{
	void *memory = q ? __atomic_load_n(&q->memory, __ATOMIC_RELAXED) : NULL;
	struct dcp_ring *ring;
	bool fixed;
	uint32_t done[DCP_QUEUE_READS];
	int rc;

	for (size_t i = 0; i < n; i++)
		if (is_of_blob(&reads[i]))
			return read_mixed(q, reads, n, io);
	ring = q && (n > 1 || (n && memory)) ? take(q) : NULL;
	fixed = ring && memory && __atomic_load_n(&q->memory, __ATOMIC_RELAXED);
	if (!ring)
		return read_each(reads, n, io);
	rc = dcp_ring_read(ring, reads, n, done, &io->calls);
	if (rc < 0)
		dcp_ring_close(ring);
	give(q, rc < 0 ? NULL : ring, false);
	rc = 0;
	for (size_t i = 0; i < n && rc == 0; i++) {
		io->fetched += done[i];
		io->ring += done[i];
		io->fixed += fixed ? done[i] : 0;
		rc = read_rest(&reads[i], done[i], io);
	}
	return rc;
}
