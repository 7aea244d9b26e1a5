/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/io/queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/system.h"
#include "core/model/geometry/strided.h"
#include "core/origin/dir/dir.h"

enum { AHEAD = 32 /* reads that the kernel is advised of before they are made */ };

struct dcp_queue {
	pthread_mutex_t lock; /* the rest; not held while anything is opened or read */
	struct dcp_ring *idle[DCP_QUEUE_RINGS];
	size_t nidle, nopen;
	void *buffer[DCP_QUEUE_RINGS];
	size_t nbuffers;
	void *memory; /* memory to be registered; NULL: none, or the registration was refused */
	size_t nmemory;
	int refused; /* why it was refused; this and the two above are also read without the lock */
	bool off; /* rings will never be available; also read without the lock */
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
static void give_ring(struct dcp_queue *q, struct dcp_ring *ring, bool off)
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

/* Note that the memory is not registered, because of @rc. */
static void refuse_memory(struct dcp_queue *q, int rc)
{
	__atomic_store_n(&q->memory, NULL, __ATOMIC_RELAXED);
	__atomic_store_n(&q->refused, rc, __ATOMIC_RELAXED);
}

/* Get a ring for the caller alone, until it is given back; NULL: none is available. */
static struct dcp_ring *take_ring(struct dcp_queue *q)
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
			refuse_memory(q, refused);
	}
	if (rc == 0)
		return ring;
	/* a shortage may pass; a prohibition is permanent */
	give_ring(q, NULL, rc != -ENOMEM && rc != -EMFILE && rc != -ENFILE && rc != -EAGAIN);
	return NULL;
}

/* ---- one after the other ---- */

/* Read the rest of @r, whose first @done bytes have arrived. */
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

/* Would the read return without waiting? */
static bool is_cached(const struct dcp_read *r, struct dcp_io_counts *io)
{
	io->calls++;
	return dcp_is_cached(r->fd, r->off);
}

/* Announce the next reads to the kernel, so that it makes them in parallel. */
static void announce_reads(const struct dcp_read *reads, size_t n, struct dcp_io_counts *io)
{
	n = DCP_MIN(n, AHEAD);
	if (n < 2 || is_cached(reads, io))
		return;
	for (size_t i = 0; i < n; i++)
		dcp_bring_near(reads[i].fd, reads[i].off, reads[i].n);
	io->calls += n;
}

static int read_each(const struct dcp_read *reads, size_t n, struct dcp_io_counts *io)
{
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++) {
		if (i % AHEAD == 0)
			announce_reads(reads + i, n - i, io);
		rc = read_rest(&reads[i], 0, io);
	}
	return rc;
}

static bool is_of_blob(const struct dcp_read *r)
{
	return r->fd < 0 && r->blob;
}

/* Make a batch in which some reads are made by their blobs; reads of one blob are passed to it
 * together. */
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
	ring = q && (n > 1 || (n && memory)) ? take_ring(q) : NULL;
	fixed = ring && memory && __atomic_load_n(&q->memory, __ATOMIC_RELAXED);
	if (!ring)
		return read_each(reads, n, io);
	rc = dcp_ring_read(ring, reads, n, done, &io->calls);
	if (rc < 0)
		dcp_ring_close(ring);
	give_ring(q, rc < 0 ? NULL : ring, false);
	rc = 0;
	for (size_t i = 0; i < n && rc == 0; i++) {
		io->fetched += done[i];
		io->ring += done[i];
		io->fixed += fixed ? done[i] : 0;
		rc = read_rest(&reads[i], done[i], io);
	}
	return rc;
}

enum {
	STRIDE_ALONE = 26 << 10, /* as DCP_FETCH_STRIDE, where each read is a call */
	BANDS = 4, /* spans of a box that are announced to the kernel before they are read */
	LONGEST = 32 << 20, /* of one read */
	/* side of a square in elements, if source and destination both have strides */
	TILE = 32,
};

/* A series of runs; the compiler turns each small width into plain moves. */
static void copy_series(char *dst, const uint8_t *src, uint64_t run, uint64_t count,
			uint64_t dst_stride, uint64_t src_stride)
{
#define COPY_EACH(width)                                                                       \
	for (; count--; dst += dst_stride, src += src_stride)                                  \
	memcpy(dst, src, width)
	switch (run) {
	case 1:
		COPY_EACH(1);
		break;
	case 2:
		COPY_EACH(2);
		break;
	case 4:
		COPY_EACH(4);
		break;
	case 8:
		COPY_EACH(8);
		break;
	case 16:
		COPY_EACH(16);
		break;
	default:
		COPY_EACH(run);
	}
#undef COPY_EACH
}

/* The last two dimensions of a transposed array, in squares that fit the nearest cache. */
static void copy_tiles(char *dst, const uint8_t *src, const struct dcp_strided *s)
{
	uint32_t in = s->ndim - 1, out = in - 1;

	for (uint64_t i = 0; i < s->count[out]; i += TILE)
		for (uint64_t j = 0; j < s->count[in]; j += TILE) {
			uint64_t rows = DCP_MIN(s->count[out] - i, TILE);
			uint64_t cols = DCP_MIN(s->count[in] - j, TILE);

			for (uint64_t k = i; k < i + rows; k++)
				copy_series(
					dst + k * s->dst_stride[out] + j * s->dst_stride[in],
					src + k * s->file_stride[out] + j * s->file_stride[in],
					s->run, cols, s->dst_stride[in], s->file_stride[in]);
		}
}

static void copy_from(char *dst, const uint8_t *src, const struct dcp_strided *s, uint32_t k)
{
	uint32_t last = s->ndim - 1;

	if (k + 1 == last && s->run <= 16 && s->file_stride[k] < s->file_stride[last]) {
		copy_tiles(dst, src, s);
	} else if (k == last) {
		copy_series(dst, src, s->run, s->count[k], s->dst_stride[k], s->file_stride[k]);
	} else {
		for (uint64_t i = 0; i < s->count[k]; i++)
			copy_from(dst + i * s->dst_stride[k], src + i * s->file_stride[k], s,
				  k + 1);
	}
}

void dcp_gather_copy(char *dst, const uint8_t *src, const struct dcp_strided *s)
{
	if (s->ndim == 0)
		memcpy(dst + s->dst, src, s->run);
	else
		copy_from(dst + s->dst, src, s, 0);
}

/* ---- without a mapping ---- */

void dcp_gather_begin(struct dcp_gather *g, struct dcp_queue *queue, struct dcp_io_counts *io)
{
	g->queue = queue;
	g->io = io;
	g->stride = dcp_queue_batches(queue) ? DCP_FETCH_STRIDE : STRIDE_ALONE;
	g->nreads = g->nboxes = 0;
	g->used = 0;
	g->span = NULL;
}

void dcp_gather_finish(struct dcp_gather *g)
{
	if (g->span)
		dcp_queue_give(g->queue, g->span);
	g->span = NULL;
}

int dcp_gather_end(struct dcp_gather *g)
{
	int rc = dcp_queue_read(g->queue, g->read, g->nreads, g->io);

	for (size_t i = 0; i < g->nboxes && rc == 0; i++)
		dcp_gather_copy(g->box[i].dst, g->span + g->box[i].at, &g->box[i].s);
	g->nreads = g->nboxes = 0;
	g->used = 0;
	return rc;
}

static int add_read(struct dcp_gather *g, struct dcp_from from, uint64_t off, void *to,
		    uint64_t n)
{
	int rc = 0;

	while (n && rc == 0) {
		uint32_t now = (uint32_t)DCP_MIN(n, LONGEST);

		g->read[g->nreads++] =
			(struct dcp_read){ from.fd,   now,          off,       to,
					   from.blob, from.planned, from.until };
		if (g->nreads == DCP_QUEUE_READS)
			rc = dcp_gather_end(g);
		off += now;
		to = (char *)to + now;
		n -= now;
	}
	return rc;
}

/* Add the whole box as one span, @extent bytes of the file. */
static int add_span(struct dcp_gather *g, char *dst, struct dcp_from from,
		    const struct dcp_strided *s, uint64_t extent)
{
	int rc = 0;

	if (g->nboxes == DCP_GATHER_BOXES || extent > DCP_GATHER_SPAN - g->used)
		rc = dcp_gather_end(g);
	if (rc == 0 && !g->span) {
		g->span = dcp_queue_take(g->queue);
		rc = g->span ? 0 : -ENOMEM;
	}
	if (rc < 0)
		return rc;
	g->box[g->nboxes++] = (struct dcp_gather_box){ *s, dst, g->used };
	g->used += (uint32_t)extent;
	return add_read(g, from, s->off, g->span + g->used - extent, extent);
}

static int add_box(struct dcp_gather *g, char *dst, struct dcp_from from,
		   const struct dcp_strided *s);

/* Add the box index by index of dimension @k. */
static int add_each(struct dcp_gather *g, char *dst, struct dcp_from from,
		    const struct dcp_strided *s, uint32_t k)
{
	struct dcp_strided sub = dcp_strided_without(s, k);
	int rc = 0;

	for (uint64_t i = 0; i < s->count[k] && rc == 0; i++) {
		rc = add_box(g, dst, from, &sub);
		sub.off += s->file_stride[k];
		sub.dst += s->dst_stride[k];
	}
	return rc;
}

/* Add a box that is too long for one span: as many indices of dimension @k at once as fit. */
static int add_bands(struct dcp_gather *g, char *dst, struct dcp_from from,
		     const struct dcp_strided *s, uint32_t k, uint64_t per)
{
	struct dcp_strided band = *s;
	int rc = 0;

	for (uint64_t i = 0; i < s->count[k] && rc == 0; i += per) {
		band.count[k] = DCP_MIN(per, s->count[k] - i);
		if (from.fd >= 0 && i / per % BANDS == 0 && i + per < s->count[k]) {
			uint64_t behind = (s->count[k] - i - per) * s->file_stride[k];

			dcp_bring_near(from.fd, band.off + per * s->file_stride[k],
				       DCP_MIN(behind, (uint64_t)BANDS * DCP_GATHER_SPAN));
			g->io->calls++;
		}
		rc = add_span(g, dst, from, &band, dcp_strided_extent(&band));
		band.off += per * s->file_stride[k];
		band.dst += per * s->dst_stride[k];
	}
	return rc;
}

static int add_box(struct dcp_gather *g, char *dst, struct dcp_from from,
		   const struct dcp_strided *s)
{
	uint64_t extent = dcp_strided_extent(s), rest;
	uint32_t k = dcp_strided_widest(s);

	if (s->ndim == 0)
		return add_read(g, from, s->off, dst + s->dst, s->run);
	if (s->file_stride[k] > g->stride)
		return add_each(g, dst, from, s, k);
	if (extent <= DCP_GATHER_SPAN)
		return add_span(g, dst, from, s, extent);
	rest = extent - (s->count[k] - 1) * s->file_stride[k];
	if (rest > DCP_GATHER_SPAN)
		return add_each(g, dst, from, s, k);
	return add_bands(g, dst, from, s, k, (DCP_GATHER_SPAN - rest) / s->file_stride[k] + 1);
}

int dcp_gather_add(struct dcp_gather *g, char *dst, struct dcp_from from,
		   const struct dcp_strided *s)
{
	g->io->read += dcp_strided_bytes(s);
	dcp_io_fetched(g->io, s, 0);
	return add_box(g, dst, from, s);
}

/* ---- fetch: pages of mapped files ---- */

enum {
	LOOKS = 2,
	LONG_RUN = 128 << 10,
	ADVICE_BYTES = 512 << 10,
	/* The kernel reads at most the read-ahead of the device for one range, which is at least
	 * this. */
	RANGE_BYTES = 128 << 10,
};

static uint64_t page_size(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

void dcp_io_add(struct dcp_io_counts *to, const struct dcp_io_counts *more)
{
	if (!to)
		return;
	__atomic_fetch_add(&to->mapped, more->mapped, __ATOMIC_RELAXED);
	__atomic_fetch_add(&to->read, more->read, __ATOMIC_RELAXED);
	__atomic_fetch_add(&to->span, more->span, __ATOMIC_RELAXED);
	__atomic_fetch_add(&to->direct, more->direct, __ATOMIC_RELAXED);
	__atomic_fetch_add(&to->fetched, more->fetched, __ATOMIC_RELAXED);
	__atomic_fetch_add(&to->runs, more->runs, __ATOMIC_RELAXED);
	__atomic_fetch_add(&to->ring, more->ring, __ATOMIC_RELAXED);
	__atomic_fetch_add(&to->fixed, more->fixed, __ATOMIC_RELAXED);
	__atomic_fetch_add(&to->calls, more->calls, __ATOMIC_RELAXED);
}

void dcp_fetch_begin(struct dcp_fetch *f, struct dcp_io_counts *io)
{
	f->n = 0;
	f->io = io;
	f->warm = 0;
	f->cold = false;
}

/* Try madvise() of all ranges in one call, where the kernel permits it; opening and closing its
 * handle takes two more calls. */
static bool ask_together(const struct dcp_fetch *f)
{
	int self = dcp_pidfd_open(getpid());
	ssize_t done;

	if (self < 0)
		return false;
	done = dcp_process_madvise(self, f->range, f->n, MADV_WILLNEED);
	close(self);
	return done > 0;
}

void dcp_fetch_end(struct dcp_fetch *f)
{
	if (f->n > 3 && ask_together(f)) {
		f->io->calls += 3;
	} else {
		for (size_t i = 0; i < f->n; i++)
			madvise(f->range[i].iov_base, f->range[i].iov_len, MADV_WILLNEED);
		f->io->calls += f->n;
	}
	f->n = 0;
}

static void add_range(struct dcp_fetch *f, const uint8_t *map, uint64_t lo, uint64_t hi)
{
	uint64_t page = page_size();

	lo -= lo % page;
	hi += (page - hi % page) % page;
	if (f->n) { /* the same page again, or the next */
		const struct iovec *last = &f->range[f->n - 1];
		uintptr_t end = (uintptr_t)last->iov_base + last->iov_len;

		if ((uintptr_t)map + lo < end &&
		    (uintptr_t)map + lo >= (uintptr_t)last->iov_base)
			lo = end - (uintptr_t)map;
	}
	while (lo < hi) {
		uint64_t n = DCP_MIN(hi - lo, RANGE_BYTES - lo % RANGE_BYTES);

		if (f->n == DCP_FETCH_RANGES)
			dcp_fetch_end(f);
		f->range[f->n++] = (struct iovec){ (void *)(uintptr_t)(map + lo), n };
		f->asked += n;
		lo += n;
	}
}

/* Add a range of @extent bytes for each index of the dimensions from @k on. Between these ranges
 * are holes worth skipping. */
static void ask_each(struct dcp_fetch *f, const uint8_t *map, const struct dcp_strided *s,
		     uint32_t k, uint64_t off, uint64_t extent)
{
	while (k < s->ndim && s->file_stride[k] <= DCP_FETCH_STRIDE)
		k++;
	if (k == s->ndim) {
		add_range(f, map, off, off + extent);
		return;
	}
	for (uint64_t i = 0; i < s->count[k]; i++)
		ask_each(f, map, s, k + 1, off + i * s->file_stride[k], extent);
}

void dcp_io_fetched(struct dcp_io_counts *io, const struct dcp_strided *s, uint64_t bytes)
{
	bool by_run = s->ndim == 0;

	for (uint32_t k = 0; k < s->ndim; k++)
		by_run |= s->file_stride[k] > DCP_FETCH_STRIDE;
	*(by_run ? &io->direct : &io->span) += dcp_strided_bytes(s);
	io->fetched += bytes;
}

static bool is_there(struct dcp_fetch *f, const uint8_t *map, uint64_t at)
{
	f->io->calls++;
	return dcp_is_resident(map + at);
}

void dcp_fetch_run(struct dcp_fetch *f, int fd, const struct dcp_strided *s)
{
	if (s->ndim || s->run < LONG_RUN)
		return; /* many reads in parallel are as good, and each request would be a call */
	f->io->calls++;
	if (dcp_is_cached(fd, s->off + s->run - 1))
		return;
	for (uint64_t at = 0; at < s->run; at += ADVICE_BYTES) {
		dcp_bring_near(fd, s->off + at, DCP_MIN(s->run - at, (uint64_t)ADVICE_BYTES));
		f->io->calls++;
	}
}

void dcp_fetch_add(struct dcp_fetch *f, const uint8_t *map, const struct dcp_strided *s)
{
	uint64_t extent = s->run;

	if (!f->cold) {
		if (f->warm == LOOKS ||
		    (is_there(f, map, s->off) &&
		     is_there(f, map, s->off + dcp_strided_extent(s) - 1))) {
			f->warm = DCP_MIN(f->warm + 1, LOOKS);
			return;
		}
		f->cold = true;
	}
	for (uint32_t k = 0; k < s->ndim; k++)
		if (s->file_stride[k] <= DCP_FETCH_STRIDE)
			extent += (s->count[k] - 1) * s->file_stride[k];
	f->asked = 0;
	ask_each(f, map, s, 0, s->off, extent);
	dcp_io_fetched(f->io, s, f->asked);
}
