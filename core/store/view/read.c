/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a view: the result is pointers into mappings, from which the kernel copies, or copies of
 * the bytes. A copy goes piece by piece, not in destination order: all runs of a piece that a
 * request needs are gathered together, so that a request for many columns of many files visits each
 * file once. Where elements are swapped, cast or widened they pass through a small buffer.
 */
#include "core/store/view/view_int.h"

#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "core/model/geometry/strided.h"
#include "core/origin/dir/dir.h"
#include "core/store/io/files.h"
#include "core/store/io/queue.h"
#include "core/store/view/view.h"

enum {
	CONVERT_BYTES = 64 << 10,
	FETCH_MIN = 64 << 10,   /* smaller reads are not checked for being cached */
	FETCH_AHEAD = 2 << 20,  /* bytes to read ahead while reads are consecutive */
	FETCH_TAIL = 24 << 20,  /* the last bytes, which are requested explicitly */
	IOV_MIN_RUN = 32 << 10, /* mean bytes an iovec entry must carry to beat memcpy */
};

/* A file that a request holds. */
struct touched {
	uint32_t number;
	const struct dcp_file *file;
};

/* One read while it is answered. Not cleared as a whole: that would cost small reads. */
struct request {
	const struct dcp_view *view;
	uint64_t off; /* in the body */
	char *dst;
	size_t n;
	struct dcp_fetch *fetch;
	struct dcp_gather *gather;
	struct touched touched[DCP_REPLY_FILES]; /* checked together, after the copies */
	uint32_t ntouched;
	struct dcp_io_counts io;
};

static void start_request(struct request *r, const struct dcp_view *view)
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

/* Is the file still the file that was indexed? Opening a file compares it anyway. */
static int check_file(const struct dcp_view *view, uint32_t number)
{
	const struct dcp_file *file;
	int rc = dcp_files_hold(view->files, number, true, &file, NULL);

	if (rc < 0)
		return rc == -ENOENT ? -ESTALE : rc;
	rc = dcp_files_check(view->files, number, true);
	dcp_files_release(view->files, number);
	return rc;
}

/* Is the file different from the last one? Pieces of one file are mostly consecutive. */
static bool is_next(const struct dcp_backing *b, uint32_t *last)
{
	if (b->number == *last || b->number == DCP_VIEW_NO_FILE)
		return false;
	*last = b->number;
	return true;
}

int dcp_view_check(const struct dcp_view *view)
{
	uint32_t last = DCP_VIEW_NO_FILE;
	int rc = 0;

	for (size_t i = 0; i < view->t.npieces && rc == 0; i++)
		if (is_next(&view->backing[i], &last))
			rc = check_file(view, last);
	return rc;
}

void dcp_view_keep(const struct dcp_view *view, struct dcp_kept *kept)
{
	uint32_t last = DCP_VIEW_NO_FILE;

	for (size_t i = 0; i < view->t.npieces; i++)
		if (is_next(&view->backing[i], &last))
			dcp_files_keep(view->files, last, kept);
}

/* ---- files ---- */

static void release_touched(struct request *r, uint32_t keep)
{
	while (r->ntouched > keep)
		dcp_files_release(r->view->files, r->touched[--r->ntouched].number);
}

/* Files are checked after the copies from them: a writer could change one between a check and a
 * copy. If they are few they are held until the end of the request. */
static int check_touched(struct request *r)
{
	int rc = 0;

	r->io.calls += r->ntouched;
	for (uint32_t i = 0; i < r->ntouched && rc == 0; i++)
		rc = dcp_files_check(r->view->files, r->touched[i].number, false);
	return rc;
}

/* Returns 1 and the file of @b, held by the request, or 0 when the request already holds its limit.
 * A file that is gone when it is reopened counts as removed. */
static int hold_more(struct request *r, const struct dcp_backing *b,
		     const struct dcp_file **out)
{
	int rc;

	for (uint32_t i = r->ntouched; i-- > 0;)
		if (r->touched[i].number == b->number) {
			*out = r->touched[i].file;
			return 1;
		}
	if (r->ntouched == DCP_REPLY_FILES)
		return 0;
	rc = dcp_files_hold(r->view->files, b->number, r->ntouched == 0, out, NULL);
	if (rc == -EMFILE && r->ntouched)
		return 0;
	if (rc < 0)
		return rc == -ENOENT ? -ESTALE : rc;
	r->touched[r->ntouched++] = (struct touched){ b->number, *out };
	return 1;
}

/* The same, but if the limit is reached, the held files are released after their pending reads are
 * made. */
static int touch_file(struct request *r, const struct dcp_backing *b,
		      const struct dcp_file **out)
{
	int rc = hold_more(r, b, out);

	if (rc == 0) {
		rc = dcp_gather_end(r->gather);
		if (rc == 0)
			rc = check_touched(r);
		release_touched(r, 0);
		if (rc == 0)
			rc = hold_more(r, b, out);
	}
	return DCP_MIN(rc, 0);
}

/* The descriptor to read @s from, if the file is not mapped. */
static int fd_of(const struct request *r, const struct dcp_backing *b,
		 const struct dcp_file *file, bool free)
{
	return r->view->whole || free ? file->fd
				      : dcp_files_exact_fd(r->view->files, b->number);
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
	const struct dcp_file *file;
	int rc;

	if (b->number == DCP_VIEW_NO_FILE)
		return 0;
	if (is_free(b, s)) {
		/* near the end, request the tail: read-ahead finds its pages cached and stops
		 * there */
		if (tail.run == 0 || s->off + FETCH_TAIL < b->free_end)
			return 0;
		s = &tail;
	}
	rc = hold_more(r, b, &file);
	if (rc <= 0)
		return rc < 0 ? rc : -EMFILE; /* enough files are held */
	if (file->map)
		dcp_fetch_add(r->fetch, file->map, s);
	else if (file->fd >= 0)
		dcp_fetch_run(r->fetch, fd_of(r, b, file, false), s);
	return 0;
}

/*
 * Request the missing pages of a read and, if it begins where the last read ended, some pages after
 * it, but none beyond the cut, so that nothing is read in vain. A whole tensor is left to the
 * kernel: its read-ahead then brings only bytes of the tensor, in larger pieces of memory than
 * requested pages.
 */
static void fetch_pages(struct request *r)
{
	const struct dcp_view *view = r->view;
	uint64_t from = r->off, to = r->off + r->n, unit = view->unit, fetched;
	uint32_t held = r->ntouched;
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
	release_touched(r, held);
}

/* ---- copies ---- */

/* Convert stored values of a piece to values of the tensor; whole elements. */
static void convert_values(const struct dcp_view *view, const struct dcp_piece *p, char *dst,
			   uint64_t n)
{
	if (p->swap)
		dcp_swap(dcp_dtype_swap_unit(view->t.dtype, view->t.itemsize), dst,
			 n * view->t.itemsize);
	if (p->filter != DCP_FILTER_NONE)
		dcp_dtype_negate(view->t.dtype, dst, n, p->filter == DCP_FILTER_CONJ);
}

/* Bring every run of @s in dimensions from @k on to the byte order of this machine. */
static void convert_runs(const struct dcp_view *view, const struct dcp_strided *s, uint32_t k,
			 char *dst)
{
	if (k == s->ndim) {
		convert_values(view, s->piece, dst, s->run / view->t.itemsize);
		return;
	}
	for (uint64_t i = 0; i < s->count[k]; i++)
		convert_runs(view, s, k + 1, dst + i * s->dst_stride[k]);
}

static void clear_runs(const struct dcp_strided *s, uint32_t k, char *dst)
{
	if (k == s->ndim)
		memset(dst, 0, s->run);
	else
		for (uint64_t i = 0; i < s->count[k]; i++)
			clear_runs(s, k + 1, dst + i * s->dst_stride[k]);
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
	const uint8_t *map = b->decoded;
	uint64_t bytes = dcp_strided_bytes(s);
	const struct dcp_file *file = NULL;
	int rc;

	if (s->piece->filter == DCP_FILTER_ZERO) {
		clear_runs(s, 0, c->dst + s->dst);
		return 0;
	}
	rc = b->number == DCP_VIEW_NO_FILE ? 0 : touch_file(r, b, &file);
	if (rc < 0)
		return rc;
	r->io.runs += bytes / s->run;
	if (file)
		map = file->map;
	if (map) {
		dcp_gather_copy(c->dst, map + s->off, s);
		r->io.mapped += bytes;
	} else {
		rc = dcp_gather_add(r->gather, c->dst,
				    (struct dcp_from){ .blob = &file->blob,
						       .fd = fd_of(r, b, file, is_free(b, s)),
						       .until = b->until },
				    s);
		if (rc == 0 && convert)
			rc = dcp_gather_end(r->gather);
	}
	if (rc == 0 && convert)
		convert_runs(r->view, s, 0, c->dst + s->dst);
	return rc;
}

static int copy_run(void *arg, const struct dcp_run *run)
{
	const struct dcp_strided s = {
		.piece = run->piece, .off = run->off, .dst = run->dst, .run = run->n
	};

	return copy_strided(arg, &s);
}

/* Copy a part of one element, which lies in one piece or in the padding; never a converted
 * element. */
static int copy_bytes(struct request *r, uint64_t off, char *dst, size_t n)
{
	struct copy c = { r, dst };

	if (n == 0)
		return 0;
	memset(dst, 0, n);
	return DCP_MIN(dcp_strided_runs(&r->view->tiling, &r->view->cut, off, n, copy_run, &c),
		       0);
}

/* Copy elements [first, first + n) of the cut's array in the dtype of the tensor. */
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

/* Copy bytes [off, off + n) of the body without conversion. */
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

/* Convert whole elements in a buffer, then copy the requested bytes of them. */
static int copy_converted(struct request *r)
{
	const struct dcp_view *view = r->view;
	char stored[CONVERT_BYTES], other[CONVERT_BYTES];
	uint64_t most =
		CONVERT_BYTES / DCP_MAX(DCP_MAX(view->unit, view->shown), view->t.itemsize);
	uint64_t off = r->off;
	char *dst = r->dst;
	size_t n = r->n;

	while (n) {
		uint64_t first = off / view->unit, inside = off % view->unit;
		uint64_t count = DCP_MIN(most, (inside + n + view->unit - 1) / view->unit);
		size_t bytes = DCP_MIN(n, count * view->unit - inside);
		char *from = stored, *to = other;
		int rc = copy_elements(r, first, stored, count);

		if (rc == 0)
			rc = dcp_gather_end(r->gather);
		if (rc < 0)
			return rc;
		if (view->t.cast) {
			dcp_dtype_cast(view->t.dtype, view->t.cast, to, from, count);
			from = other;
			to = stored;
		}
		if (view->widen) {
			dcp_dtype_widen(dcp_tensor_shown(&view->t), to, from, count);
			from = to;
		}
		memcpy(dst, from + inside, bytes);
		dst += bytes;
		off += bytes;
		n -= bytes;
	}
	return 0;
}

static int copy_body(void *arg)
{
	struct request *r = arg;
	int rc;

	fetch_pages(r);
	rc = r->view->convert ? copy_converted(r) : copy_stored(r, r->off, r->dst, r->n);
	if (rc == 0)
		rc = dcp_gather_end(r->gather);
	return rc < 0 ? rc : check_touched(r);
}

int dcp_view_read(const struct dcp_view *view, uint64_t off, void *buf, size_t n)
{
	const struct dcp_files_opts *opts = dcp_files_opts(view->files);
	struct dcp_gather gather;
	struct request r;
	int rc;

	start_request(&r, view);
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
	/* in this function, because the function that copies may be abandoned */
	r.gather = &gather;
	dcp_gather_begin(&gather, opts->queue, &r.io);
	rc = dcp_guard_run(copy_body, &r);
	dcp_gather_finish(&gather);
	release_touched(&r, 0);
	dcp_io_add(opts->counts, &r.io);
	return rc;
}

/* Hold the file of @b and get its mapping; 0: it is not mapped, or the request would hold too many
 * files. */
static int map_of(struct request *r, const struct dcp_backing *b, const uint8_t **map)
{
	const struct dcp_file *file;
	int rc;

	*map = b->decoded;
	if (b->number == DCP_VIEW_NO_FILE)
		return *map != NULL;
	rc = hold_more(r, b, &file);
	if (rc > 0)
		*map = file->map;
	return rc > 0 ? *map != NULL : rc;
}

/* ---- replies ---- */

/* Entries that are being filled, in the order of the body; @at: where each begins. */
struct pointing {
	struct request *r;
	struct iovec *iov;
	uint32_t n, max;
	uint64_t at[DCP_REPLY_ENTRIES];
};

static int point_at_run(void *arg, const struct dcp_run *run)
{
	struct pointing *p = arg;
	const uint8_t *map;
	uint32_t i = p->n;
	int rc;

	if (i == p->max || (i > 1 && p->r->n / (i + 1) < IOV_MIN_RUN))
		return -ECANCELED;
	rc = map_of(p->r, backing_of(p->r->view, run->piece), &map);
	if (rc <= 0)
		return rc < 0 ? rc : -ECANCELED;
	for (; i > 0 && p->at[i - 1] > run->dst; i--) {
		p->at[i] = p->at[i - 1];
		p->iov[i] = p->iov[i - 1];
	}
	p->at[i] = run->dst;
	p->iov[i] = (struct iovec){ (void *)(uintptr_t)(map + run->off), run->n };
	p->n++;
	return 0;
}

/* Move the held files of the request to the reply. */
static void lend_files(const struct request *r, struct dcp_reply *to)
{
	for (uint32_t i = 0; i < r->ntouched; i++, to->nheld++) {
		to->held[to->nheld].files = r->view->files;
		to->held[to->nheld].number = r->touched[i].number;
	}
}

/* 1: pointed at; 0: copying is better (short runs, swapped, negated, cast or widened elements,
 * files that are not mapped, or too many of them). */
static int point_at_body(const struct dcp_view *view, uint64_t off, size_t n,
			 struct dcp_reply *to)
{
	struct pointing p;
	struct request r;
	int rc, same;

	start_request(&r, view);
	r.off = off;
	r.n = n;
	p.n = 0;
	p.max = dcp_reply_room(to);
	p.r = &r;
	p.iov = to->entry + to->n;
	rc = dcp_strided_runs(&view->tiling, &view->cut, off, n, point_at_run, &p);
	same = rc > 0 ? check_touched(&r) : 0;
	if (rc <= 0 || same < 0 || r.ntouched > DCP_REPLY_FILES - to->nheld) {
		release_touched(&r, 0);
		return same < 0 ? same : DCP_MIN(rc, 0);
	}
	to->n += p.n;
	to->done += n;
	fetch_pages(&r);
	r.io.mapped += n;
	r.io.runs += p.n;
	dcp_io_add(dcp_files_opts(view->files)->counts, &r.io);
	lend_files(&r, to);
	return 1;
}

/* As point_at_body(), with the header's bytes, and nothing appended unless it returns 1. */
static int point_at(const struct dcp_view *view, uint64_t off, size_t n, struct dcp_reply *to)
{
	size_t head = off < view->header.n ? DCP_MIN(n, view->header.n - off) : 0;
	uint32_t entries = to->n;
	size_t done = to->done;
	int rc = 1;

	/* Two entries are needed, one of them for the header. Short parts of a long reply are
	 * better copied. */
	if (view->convert || dcp_reply_room(to) < 2 || (n < IOV_MIN_RUN && n < to->size))
		return 0;
	if (head)
		dcp_reply_point(to, view->header.p + off, head);
	if (n > head)
		rc = point_at_body(view, off + head - view->header.n, n - head, to);
	if (rc <= 0) {
		to->n = entries;
		to->done = done;
	}
	return rc;
}

int dcp_view_answer(const struct dcp_view *view, uint64_t off, size_t n, struct dcp_reply *r)
{
	int rc = n ? point_at(view, off, n, r) : 0;
	void *at;

	if (rc || n == 0)
		return rc;
	at = dcp_reply_buffer(r);
	rc = at ? dcp_view_read(view, off, at, n) : -ENOMEM;
	if (rc == 0)
		dcp_reply_copied(r, n);
	return rc;
}

/* ---- from file to file ---- */

struct target {
	struct request *r;
	int fd;
	uint64_t to;
};

static int copy_to_file(void *arg, const struct dcp_run *run)
{
	const struct target *t = arg;
	const struct dcp_backing *b = backing_of(t->r->view, run->piece);
	const struct dcp_file *file;
	int rc;

	if (b->number == DCP_VIEW_NO_FILE || (run->n < IOV_MIN_RUN && run->n < t->r->n))
		return -ECANCELED;
	rc = hold_more(t->r, b, &file);
	if (rc > 0)
		rc = file->fd < 0 ? 0
				  : dcp_copy_range(file->fd, run->off, t->fd, t->to + run->dst,
						   run->n);
	return rc > 0 ? 0 : rc < 0 ? rc : -ECANCELED;
}

int dcp_view_copy(const struct dcp_view *view, uint64_t off, uint64_t n, int fd, uint64_t to)
{
	struct request r;
	struct target t = { &r, fd, to };
	int rc, same;

	if (view->convert || off < view->header.n)
		return 0;
	start_request(&r, view);
	r.off = off - view->header.n;
	r.n = n;
	rc = dcp_strided_runs(&view->tiling, &view->cut, r.off, n, copy_to_file, &t);
	same = rc > 0 ? check_touched(&r) : 0;
	release_touched(&r, 0);
	dcp_io_add(dcp_files_opts(view->files)->counts, &r.io);
	return same < 0 ? same : rc;
}
