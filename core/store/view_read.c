/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of a view, three ways: pointers into mappings for the kernel to copy; a plain copy,
 * straight to the caller; or, where elements are swapped or widened, through a small buffer.
 *
 * What makes a segment cheap was measured: out of a warm mapping memcpy beats any read call at
 * every run length; without a mapping, one pread over holes beats one per run until the stride
 * is about 26 KB.
 */
#include "core/store/view_int.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/model/plan.h"
#include "core/store/guard.h"

enum {
	SPAN_STRIDE = 26 << 10, /* read through holes below this distance of runs */
	SPAN_BYTES = 64 << 10,  /* in pieces of this size, on the stack */
	CONVERT_BYTES = 16 << 10,
	IOV_MIN_RUN = 4096, /* mean bytes an iovec entry must carry to beat memcpy */
};

static const struct dcp_backing *backing_of(const struct dcp_view *view,
					    const struct dcp_seg *s)
{
	return &view->backing[s->piece - view->t.pieces];
}

/* Is the file still the one that was indexed? @last remembers what was asked already. */
static int check_file(const struct dcp_view *view, const struct dcp_backing *b, uint32_t *last)
{
	if (b->number == *last || b->number == DCP_VIEW_NO_FILE)
		return 0;
	*last = b->number;
	return dcp_files_check(view->files, b->number);
}

int dcp_view_check(const struct dcp_view *view)
{
	uint32_t last = DCP_VIEW_NO_FILE;
	int rc = 0;

	for (size_t i = 0; i < view->t.npieces && rc == 0; i++)
		rc = check_file(view, &view->backing[i], &last);
	return rc;
}

static int pread_all(int fd, uint64_t off, void *buf, size_t n)
{
	char *to = buf;

	while (n) {
		ssize_t got = pread(fd, to, n, (off_t)off);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return -EIO;
		to += got;
		off += (uint64_t)got;
		n -= (size_t)got;
	}
	return 0;
}

/* Runs close together are fetched in one read, holes and all, and picked out of it. */
static int pread_spans(int fd, const struct dcp_seg *s, char *dst)
{
	char span[SPAN_BYTES];
	uint64_t per = s->run >= sizeof(span) || !s->stride
			       ? 1
			       : (sizeof(span) - s->run) / s->stride + 1;

	if (s->stride > SPAN_STRIDE || s->run > s->stride)
		per = 1;
	for (uint64_t i = 0; i < s->count; i += per) {
		uint64_t n = DCP_MIN(per, s->count - i), from = s->off + i * s->stride;
		int rc;

		if (n == 1) {
			rc = pread_all(fd, from, dst, s->run);
			dst += s->run;
		} else {
			rc = pread_all(fd, from, span, (n - 1) * s->stride + s->run);
			for (uint64_t k = 0; k < n && rc == 0; k++, dst += s->run)
				memcpy(dst, span + k * s->stride, s->run);
		}
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Single elements at a distance: the compiler turns each width into plain moves. */
static void gather_small(char *dst, const uint8_t *src, uint64_t run, uint64_t count,
			 uint64_t stride)
{
	switch (run) {
	case 1:
		for (; count--; dst += 1, src += stride)
			*dst = (char)*src;
		break;
	case 2:
		for (; count--; dst += 2, src += stride)
			memcpy(dst, src, 2);
		break;
	case 4:
		for (; count--; dst += 4, src += stride)
			memcpy(dst, src, 4);
		break;
	case 8:
		for (; count--; dst += 8, src += stride)
			memcpy(dst, src, 8);
		break;
	default:
		for (; count--; dst += run, src += stride)
			memcpy(dst, src, run);
	}
}

static int copy_seg(const struct dcp_view *view, const struct dcp_seg *s, char *dst)
{
	const struct dcp_backing *b = backing_of(view, s);

	if (!b->map)
		return s->count == 1 ? pread_all(b->fd, s->off, dst, s->run)
				     : pread_spans(b->fd, s, dst);
	if (s->count == 1)
		memcpy(dst, b->map + s->off, s->run);
	else
		gather_small(dst, b->map + s->off, s->run, s->count, s->stride);
	return 0;
}

static int check_copied(const struct dcp_view *view, const struct dcp_backing *b)
{
	return !b || b->number == DCP_VIEW_NO_FILE ? 0
						   : dcp_files_check(view->files, b->number);
}

/*
 * Stored bytes [off, off + n) of the body as they are, no widening; swapped pieces swapped.
 * Files are checked behind the copies out of them: before, a writer could come in between.
 */
static int copy_stored(const struct dcp_view *view, uint64_t off, char *dst, size_t n)
{
	const struct dcp_backing *b, *last = NULL;
	struct dcp_plan_iter it;
	struct dcp_seg s;
	int rc;

	dcp_plan_start(&it, &view->tiling, &view->cut, off, n);
	while (dcp_plan_next(&it, &s)) {
		if (!s.piece) {
			memset(dst, 0, s.run);
			break;
		}
		b = backing_of(view, &s);
		rc = last && b->number != last->number ? check_copied(view, last) : 0;
		if (rc == 0)
			rc = copy_seg(view, &s, dst);
		if (rc < 0)
			return rc;
		if (s.piece->swap)
			dcp_dtype_swap(view->t.dtype, dst, s.run * s.count / view->t.itemsize);
		dst += s.run * s.count;
		last = b;
	}
	return check_copied(view, last);
}

/* Whole elements at a time through a buffer, then the bytes of them that were asked for. */
static int copy_converted(const struct dcp_view *view, uint64_t off, char *dst, size_t n)
{
	char stored[CONVERT_BYTES], wide[CONVERT_BYTES];
	uint64_t most = CONVERT_BYTES / DCP_MAX(view->unit, view->t.itemsize);

	while (n) {
		uint64_t first = off / view->unit, inside = off % view->unit;
		uint64_t count = DCP_MIN(most, (inside + n + view->unit - 1) / view->unit);
		size_t bytes = DCP_MIN(n, count * view->unit - inside);
		int rc = copy_stored(view, first * view->t.itemsize, stored,
				     count * view->t.itemsize);

		if (rc < 0)
			return rc;
		if (view->widen)
			dcp_dtype_widen(view->t.dtype, wide, stored, count);
		memcpy(dst, (view->widen ? wide : stored) + inside, bytes);
		dst += bytes;
		off += bytes;
		n -= bytes;
	}
	return 0;
}

struct request {
	const struct dcp_view *view;
	uint64_t off;
	char *dst;
	size_t n;
};

static int copy_body(void *arg)
{
	const struct request *r = arg;

	return r->view->convert ? copy_converted(r->view, r->off, r->dst, r->n)
				: copy_stored(r->view, r->off, r->dst, r->n);
}

int dcp_view_read(const struct dcp_view *view, uint64_t off, void *buf, size_t n)
{
	struct request r = { .view = view, .dst = buf, .n = n };

	if (off < view->header.n) {
		size_t head = DCP_MIN(n, view->header.n - off);

		memcpy(r.dst, view->header.p + off, head);
		r.dst += head;
		r.n -= head;
		off += head;
	}
	if (r.n == 0)
		return 0;
	r.off = off - view->header.n;
	return dcp_guard_run(copy_body, &r);
}

int dcp_view_iov(const struct dcp_view *view, uint64_t off, size_t n, struct iovec *iov,
		 int max)
{
	struct dcp_plan_iter it;
	uint32_t last = DCP_VIEW_NO_FILE;
	struct dcp_seg s;
	int used = 0;

	if (view->convert || max < 1 || n == 0)
		return 0;
	if (off < view->header.n) {
		size_t head = DCP_MIN(n, view->header.n - off);

		iov[used++] = (struct iovec){ view->header.p + off, head };
		off += head;
		n -= head;
	}
	dcp_plan_start(&it, &view->tiling, &view->cut, off - view->header.n, n);
	while (dcp_plan_next(&it, &s)) {
		const struct dcp_backing *b = s.piece ? backing_of(view, &s) : NULL;
		int rc;

		if (!b || !b->map || s.count > (uint64_t)(max - used) ||
		    (s.count > 1 && s.run < IOV_MIN_RUN))
			return 0;
		rc = check_file(view, b, &last);
		if (rc < 0)
			return rc;
		for (uint64_t i = 0; i < s.count; i++)
			iov[used++] = (struct iovec){
				(void *)(uintptr_t)(b->map + s.off + i * s.stride), s.run
			};
	}
	if (used > 2 && n / (size_t)used < IOV_MIN_RUN)
		return 0;
	return used;
}
