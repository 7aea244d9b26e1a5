/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/gather.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/model/strided.h"
#include "core/store/fetch.h"

enum {
	SPAN_BYTES = 1 << 20, /* read at once, on the stack */
	BANDS = 4,            /* of them the kernel is told of before they are read */
	AHEAD = 32,           /* reads the kernel is told of before they are made */
	TILE = 32,            /* elements a side, where both sides jump */
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

struct reader {
	char *dst;
	int fd;
	struct dcp_io_counts *io;
	uint8_t *span; /* SPAN_BYTES */
};

static int pread_all(const struct reader *r, uint64_t off, void *buf, uint64_t n)
{
	char *to = buf;

	while (n) {
		ssize_t got = pread(r->fd, to, n, (off_t)off);

		r->io->calls++;
		r->io->fetched += got > 0 ? (uint64_t)got : 0;
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return -EIO;
		to += got;
		off += (uint64_t)got;
		n -= (uint64_t)got;
	}
	return 0;
}

/* The dimension whose neighbours lie furthest apart in the file. */
static uint32_t widest(const struct dcp_strided *s)
{
	uint32_t k = 0;

	for (uint32_t i = 1; i < s->ndim; i++)
		if (s->file_stride[i] > s->file_stride[k])
			k = i;
	return k;
}

/* @s with one dimension less: its first index of dimension @k. */
static struct dcp_strided without(const struct dcp_strided *s, uint32_t k)
{
	struct dcp_strided sub = *s;

	sub.ndim--;
	for (uint32_t i = k; i < sub.ndim; i++) {
		sub.count[i] = s->count[i + 1];
		sub.file_stride[i] = s->file_stride[i + 1];
		sub.dst_stride[i] = s->dst_stride[i + 1];
	}
	return sub;
}

/* Would a read at @off be answered without waiting? */
static bool is_cached(const struct reader *r, uint64_t off)
{
	char byte;
	struct iovec iov = { &byte, 1 };

	r->io->calls++;
	return preadv2(r->fd, &iov, 1, (off_t)off, RWF_NOWAIT) == 1;
}

/* Tell the kernel of the next reads, @stride apart, so that it makes them side by side. */
static void announce(const struct reader *r, uint64_t off, uint64_t extent, uint64_t stride,
		     uint64_t count)
{
	count = DCP_MIN(count, AHEAD);
	if (count < 2 || is_cached(r, off))
		return;
	for (uint64_t i = 0; i < count; i++)
		posix_fadvise(r->fd, (off_t)(off + i * stride), (off_t)extent,
			      POSIX_FADV_WILLNEED);
	r->io->calls += count;
}

static int read_span(const struct reader *r, const struct dcp_strided *s, uint64_t extent)
{
	int rc = pread_all(r, s->off, r->span, extent);

	if (rc == 0)
		dcp_gather_copy(r->dst, r->span, s);
	return rc;
}

static int read_box(const struct reader *r, const struct dcp_strided *s);

/* Index after index of dimension @k. */
static int read_each(const struct reader *r, const struct dcp_strided *s, uint32_t k)
{
	struct dcp_strided sub = without(s, k);
	uint64_t extent = dcp_strided_extent(&sub);
	int rc = 0;

	for (uint64_t i = 0; i < s->count[k] && rc == 0; i++) {
		if (i % AHEAD == 0 && extent <= SPAN_BYTES)
			announce(r, sub.off, extent, s->file_stride[k], s->count[k] - i);
		rc = read_box(r, &sub);
		sub.off += s->file_stride[k];
		sub.dst += s->dst_stride[k];
	}
	return rc;
}

/* As many indices of dimension @k at once as a span holds, of a box that is too long for one.
 */
static int read_bands(const struct reader *r, const struct dcp_strided *s, uint32_t k,
		      uint64_t per)
{
	struct dcp_strided band = *s;
	int rc = 0;

	for (uint64_t i = 0; i < s->count[k] && rc == 0; i += per) {
		band.count[k] = DCP_MIN(per, s->count[k] - i);
		if (i / per % BANDS == 0 && i + per < s->count[k]) {
			uint64_t behind = (s->count[k] - i - per) * s->file_stride[k];

			posix_fadvise(r->fd, (off_t)(band.off + per * s->file_stride[k]),
				      (off_t)DCP_MIN(behind, (uint64_t)BANDS * SPAN_BYTES),
				      POSIX_FADV_WILLNEED);
			r->io->calls++;
		}
		rc = read_span(r, &band, dcp_strided_extent(&band));
		band.off += per * s->file_stride[k];
		band.dst += per * s->dst_stride[k];
	}
	return rc;
}

static int read_box(const struct reader *r, const struct dcp_strided *s)
{
	uint64_t extent = dcp_strided_extent(s), rest;
	uint32_t k = widest(s);

	if (s->ndim == 0)
		return pread_all(r, s->off, r->dst + s->dst, s->run);
	if (s->file_stride[k] > DCP_FETCH_STRIDE)
		return read_each(r, s, k);
	if (extent <= SPAN_BYTES)
		return read_span(r, s, extent);
	rest = extent - (s->count[k] - 1) * s->file_stride[k];
	if (rest > SPAN_BYTES)
		return read_each(r, s, k);
	return read_bands(r, s, k, (SPAN_BYTES - rest) / s->file_stride[k] + 1);
}

int dcp_gather_read(char *dst, int fd, const struct dcp_strided *s, struct dcp_io_counts *io)
{
	uint8_t span[SPAN_BYTES];
	const struct reader r = { dst, fd, io, span };

	io->read += dcp_strided_bytes(s);
	dcp_io_fetched(io, s, 0);
	return read_box(&r, s);
}
