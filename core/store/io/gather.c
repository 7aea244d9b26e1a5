/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/io/gather.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "core/base/base.h"
#include "core/store/io/fetch.h"

enum {
	STRIDE_ALONE = 26 << 10, /* as DCP_FETCH_STRIDE, where each read is a call */
	BANDS = 4, /* spans of a box that the kernel is advised of before they are read */
	LONGEST = 32 << 20, /* of one read */
	TILE = 32,          /* elements a side, where both sides jump */
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

		g->read[g->nreads++] = (struct dcp_read){ from.fd, now, off, to, from.blob };
		if (g->nreads == DCP_QUEUE_READS)
			rc = dcp_gather_end(g);
		off += now;
		to = (char *)to + now;
		n -= now;
	}
	return rc;
}

/* All of it at once, @extent bytes of the file. */
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

/* Index after index of dimension @k. */
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

/* As many indices of dimension @k at once as a span holds, of a box that is too long for one.
 */
static int add_bands(struct dcp_gather *g, char *dst, struct dcp_from from,
		     const struct dcp_strided *s, uint32_t k, uint64_t per)
{
	struct dcp_strided band = *s;
	int rc = 0;

	for (uint64_t i = 0; i < s->count[k] && rc == 0; i += per) {
		band.count[k] = DCP_MIN(per, s->count[k] - i);
		if (from.fd >= 0 && i / per % BANDS == 0 && i + per < s->count[k]) {
			uint64_t behind = (s->count[k] - i - per) * s->file_stride[k];

			posix_fadvise(from.fd, (off_t)(band.off + per * s->file_stride[k]),
				      (off_t)DCP_MIN(behind, (uint64_t)BANDS * DCP_GATHER_SPAN),
				      POSIX_FADV_WILLNEED);
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
