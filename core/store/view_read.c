/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of a view: pointers into mappings for the kernel to copy, or copies. A copy goes piece
 * by piece, not in destination order: all runs of a piece that a request needs are gathered
 * together, so that many columns of many files cost one look at each file. Where elements are
 * swapped or widened they pass through a small buffer.
 */
#include "core/store/view_int.h"

#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "core/model/plan.h"
#include "core/model/strided.h"
#include "core/store/fetch.h"
#include "core/store/gather.h"
#include "core/store/guard.h"

enum {
	CONVERT_BYTES = 64 << 10,
	FETCH_MIN = 64 << 10,   /* of less, nobody looks whether it is there */
	FETCH_AHEAD = 2 << 20,  /* of what follows, while reads go on one behind the other */
	FETCH_TAIL = 24 << 20,  /* so far before its end read-ahead is given one */
	IOV_MIN_RUN = 32 << 10, /* mean bytes an iovec entry must carry to beat memcpy */
	TOUCHED = 64,           /* files a request copied from that are checked together */
};

/* One read while it is answered. Not cleared as a whole: that would cost small reads. */
struct request {
	const struct dcp_view *view;
	uint64_t off; /* in the body */
	char *dst;
	size_t n;
	struct dcp_fetch *fetch;
	struct dcp_gather *gather;
	uint32_t touched[TOUCHED];
	uint32_t ntouched;
	struct dcp_io_counts io;
};

static void start(struct request *r, const struct dcp_view *view)
{
	r->view = view;
	r->gather = NULL;
	r->ntouched = 0;
	r->io = (struct dcp_io_counts){ 0 };
}

static const struct dcp_backing *backing_of(const struct dcp_view *view,
					    const struct dcp_piece *p)
{
	return &view->backing[p - view->t.pieces];
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

/* ---- pages ---- */

static bool is_free(const struct dcp_backing *b, const struct dcp_strided *s)
{
	return s->off >= b->free && s->off + dcp_strided_extent(s) <= b->free_end;
}

static int fetch_strided(void *arg, const struct dcp_strided *s)
{
	struct request *r = arg;
	const struct dcp_backing *b = backing_of(r->view, s->piece);
	const struct dcp_strided tail = { .off = b->free_end, .run = b->end - b->free_end };

	if (b->number == DCP_VIEW_NO_FILE)
		return 0;
	if (is_free(b, s)) {
		/* read-ahead finds what is there already, and goes no further */
		if (tail.run == 0 || s->off + FETCH_TAIL < b->free_end)
			return 0;
		s = &tail;
	}
	if (b->map)
		dcp_fetch_add(r->fetch, b->map, s);
	else
		dcp_fetch_run(r->fetch, b->exact, s);
	return 0;
}

/*
 * Ask for the pages behind a request that are not there and, when it goes on where the last one
 * ended, for some of what follows: of the cut, no further, for what nobody wants is not read.
 * A whole tensor is left to the kernel, whose read-ahead there brings nothing but its bytes,
 * in larger pieces of memory than those asked for one by one.
 */
static void fetch(struct request *r)
{
	const struct dcp_view *view = r->view;
	uint64_t from = r->off, to = r->off + r->n, unit = view->unit, fetched;
	struct dcp_fetch f;

	if (r->n < FETCH_MIN || view->whole)
		return;
	if (__atomic_exchange_n(&view->ahead->end, to, __ATOMIC_RELAXED) == r->off) {
		fetched = __atomic_load_n(&view->ahead->fetched, __ATOMIC_RELAXED);
		from = DCP_MAX(from, fetched);
		if (from >= DCP_MIN(to + FETCH_AHEAD / 2, view->body))
			return;
		to = DCP_MIN(to + FETCH_AHEAD, view->body);
	}
	__atomic_store_n(&view->ahead->fetched, to, __ATOMIC_RELAXED);
	from /= unit;
	to = (to + unit - 1) / unit;
	dcp_fetch_begin(&f, &r->io);
	r->fetch = &f;
	dcp_strided_part(&view->tiling, &view->cut, from, to - from, fetch_strided, r);
	dcp_fetch_end(&f);
}

/* ---- copies ---- */

/*
 * Files are checked behind the copies out of them: before, a writer could come in between.
 * Few enough are remembered until the end of the request.
 */
static int check_touched(struct request *r)
{
	int rc = 0;

	for (uint32_t i = 0; i < r->ntouched && rc == 0; i++)
		rc = dcp_files_check(r->view->files, r->touched[i]);
	r->io.calls += r->ntouched;
	r->ntouched = 0;
	return rc;
}

static int touch(struct request *r, uint32_t number)
{
	int rc = 0;

	if (number == DCP_VIEW_NO_FILE)
		return 0;
	for (uint32_t i = 0; i < r->ntouched; i++)
		if (r->touched[i] == number)
			return 0;
	if (r->ntouched == TOUCHED && r->gather)
		rc = dcp_gather_end(r->gather);
	if (rc == 0 && r->ntouched == TOUCHED)
		rc = check_touched(r);
	if (rc < 0)
		return rc;
	r->touched[r->ntouched++] = number;
	return 0;
}

/* What a piece stores into what the tensor holds; whole elements. */
static void to_values(const struct dcp_view *view, const struct dcp_piece *p, char *dst,
		      uint64_t n)
{
	if (p->swap)
		dcp_dtype_swap(view->t.dtype, dst, n);
	if (p->filter != DCP_FILTER_NONE)
		dcp_dtype_negate(view->t.dtype, dst, n, p->filter == DCP_FILTER_CONJ);
}

/* Bring every run of @s in dimensions from @k on to the byte order of this machine. */
static void convert_runs(const struct dcp_view *view, const struct dcp_strided *s, uint32_t k,
			 char *dst)
{
	if (k == s->ndim) {
		to_values(view, s->piece, dst, s->run / view->t.itemsize);
		return;
	}
	for (uint64_t i = 0; i < s->count[k]; i++)
		convert_runs(view, s, k + 1, dst + i * s->dst_stride[k]);
}

struct copy {
	struct request *r;
	char *dst;
};

static int copy_strided(void *arg, const struct dcp_strided *s)
{
	const struct copy *c = arg;
	struct request *r = c->r;
	const struct dcp_backing *b = backing_of(r->view, s->piece);
	bool convert = s->piece->swap || s->piece->filter != DCP_FILTER_NONE;
	uint64_t bytes = dcp_strided_bytes(s);
	int rc = touch(r, b->number);

	if (rc < 0)
		return rc;
	r->io.runs += bytes / s->run;
	if (b->map) {
		dcp_gather_copy(c->dst, b->map + s->off, s);
		r->io.mapped += bytes;
	} else {
		rc = dcp_gather_add(r->gather, c->dst, is_free(b, s) ? b->fd : b->exact, s);
		if (rc == 0 && convert)
			rc = dcp_gather_end(r->gather);
	}
	if (rc == 0 && convert)
		convert_runs(r->view, s, 0, c->dst + s->dst);
	return rc;
}

/* A part of one element, which is in one piece or in the padding; never of a converted one. */
static int copy_bytes(struct request *r, uint64_t off, char *dst, size_t n)
{
	struct copy c = { r, dst };
	struct dcp_plan_iter it;
	struct dcp_seg s;

	if (n == 0)
		return 0;
	dcp_plan_start(&it, &r->view->tiling, &r->view->cut, off, n);
	dcp_plan_next(&it, &s);
	if (s.piece)
		return copy_strided(
			&c, &(struct dcp_strided){ .piece = s.piece, .off = s.off, .run = n });
	memset(dst, 0, n);
	return 0;
}

/* Elements [first, first + n) of the cut's array as the tensor has them. */
static int copy_elements(struct request *r, uint64_t first, char *dst, uint64_t n)
{
	const struct dcp_view *view = r->view;
	uint64_t data = view->cut.flat_n, have = first < data ? data - first : 0;
	struct copy c = { r, dst };

	if (dcp_cut_is_padded(&view->cut))
		memset(dst, 0, n * view->t.itemsize);
	else if (view->cut.flat && have < n)
		memset(dst + have * view->t.itemsize, 0, (n - have) * view->t.itemsize);
	return dcp_strided_part(&view->tiling, &view->cut, first, n, copy_strided, &c);
}

/* Stored bytes [off, off + n) of the body as they are. */
static int copy_stored(struct request *r, uint64_t off, char *dst, size_t n)
{
	uint64_t itemsize = r->view->t.itemsize, inside = off % itemsize, whole;
	size_t head = inside ? DCP_MIN(n, itemsize - inside) : 0;
	int rc = copy_bytes(r, off, dst, head);

	off += head;
	dst += head;
	whole = (n - head) / itemsize;
	if (rc == 0 && whole)
		rc = copy_elements(r, off / itemsize, dst, whole);
	whole *= itemsize;
	return rc < 0 ? rc : copy_bytes(r, off + whole, dst + whole, n - head - whole);
}

/* Whole elements at a time through a buffer, then the bytes of them that were asked for. */
static int copy_converted(struct request *r)
{
	const struct dcp_view *view = r->view;
	char stored[CONVERT_BYTES], wide[CONVERT_BYTES];
	uint64_t most = CONVERT_BYTES / DCP_MAX(view->unit, view->t.itemsize);
	uint64_t off = r->off;
	char *dst = r->dst;
	size_t n = r->n;

	while (n) {
		uint64_t first = off / view->unit, inside = off % view->unit;
		uint64_t count = DCP_MIN(most, (inside + n + view->unit - 1) / view->unit);
		size_t bytes = DCP_MIN(n, count * view->unit - inside);
		int rc = copy_elements(r, first, stored, count);

		if (rc == 0)
			rc = dcp_gather_end(r->gather);
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

static int copy_body(void *arg)
{
	struct request *r = arg;
	struct dcp_gather gather;
	int rc;

	r->gather = &gather;
	dcp_gather_begin(&gather, dcp_files_opts(r->view->files)->queue, &r->io);
	fetch(r);
	rc = r->view->convert ? copy_converted(r) : copy_stored(r, r->off, r->dst, r->n);
	if (rc == 0)
		rc = dcp_gather_end(&gather);
	return rc < 0 ? rc : check_touched(r);
}

int dcp_view_read(const struct dcp_view *view, uint64_t off, void *buf, size_t n)
{
	struct request r;
	int rc;

	start(&r, view);
	r.dst = buf;
	r.n = n;
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
	rc = dcp_guard_run(copy_body, &r);
	dcp_io_add(dcp_files_opts(view->files)->counts, &r.io);
	return rc;
}

int dcp_view_iov(const struct dcp_view *view, uint64_t off, size_t n, struct iovec *iov,
		 int max)
{
	struct dcp_plan_iter it;
	struct request r;
	struct dcp_seg s;
	int used = 0, rc = 0;

	if (view->convert || max < 1 || n == 0)
		return 0;
	if (off < view->header.n) {
		size_t head = DCP_MIN(n, view->header.n - off);

		iov[used++] = (struct iovec){ view->header.p + off, head };
		off += head;
		n -= head;
	}
	start(&r, view);
	r.off = off - view->header.n;
	r.n = n;
	dcp_plan_start(&it, &view->tiling, &view->cut, r.off, n);
	while (dcp_plan_next(&it, &s)) {
		const struct dcp_backing *b = s.piece ? backing_of(view, s.piece) : NULL;
		uint64_t entries = (uint64_t)used + s.count;

		if (!b || !b->map || entries > (uint64_t)max ||
		    (entries > 2 && n / entries < IOV_MIN_RUN))
			return 0;
		rc = touch(&r, b->number);
		if (rc < 0)
			return rc;
		for (uint64_t i = 0; i < s.count; i++)
			iov[used++] = (struct iovec){
				(void *)(uintptr_t)(b->map + s.off + i * s.stride), s.run
			};
	}
	rc = check_touched(&r);
	if (rc < 0)
		return rc;
	fetch(&r);
	r.io.mapped += n;
	r.io.runs += (uint64_t)used;
	dcp_io_add(dcp_files_opts(view->files)->counts, &r.io);
	return used;
}
