/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Find the bytes of pieces. A plain piece has its place; a torch.save item is opened, and its only
 * tensor is compared with the metadata; an encoded item is decoded, once, into an unlinked memory
 * file.
 */
#include "core/store/view/view_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/model/dtype.h"
#include "core/model/geometry/cut.h"
#include "core/origin/archive/archive.h"
#include "core/origin/origin.h"
#include "core/parse/parse.h"
#include "core/parse/torch/torch.h"

/*
 * DCP_FILTER_SUM: the elements are sums over several files, computed as torch adds tensors on the
 * CPU: one after the other, each result rounded to the dtype; for a mean the last result is
 * divided.
 */

enum { PART = 16 << 10 }; /* bytes of a term that are read at once */

/* Add the numbers of @term to the @nbytes at @sum. */
static int add_term(const struct dcp_view *view, const struct dcp_term *term, char *sum,
		    uint64_t nbytes, struct dcp_err *err)
{
	double part[PART / sizeof(double)];
	const struct dcp_file *file;
	struct dcp_source src;
	int rc = dcp_files_hold(view->files, term->file, true, &file, err);

	if (rc < 0)
		return rc;
	src = dcp_source_blob(&file->blob);
	for (uint64_t at = 0; rc == 0 && at < nbytes; at += PART) {
		size_t size = (size_t)DCP_MIN(nbytes - at, PART);

		rc = dcp_source_read(&src, term->off + at, part, size);
		if (rc == 0)
			dcp_dtype_add(view->emitted.dtype, sum + at, part,
				      size / view->emitted.itemsize);
	}
	if (rc == 0)
		rc = dcp_files_check(view->files, term->file, false);
	dcp_files_release(view->files, term->file);
	return rc < 0 ? dcp_fail_at(err, rc, term->off, "%s cannot be read",
				    dcp_files_name(view->files, term->file))
		      : 0;
}

/* Write the sums of piece @p of DCP_FILTER_SUM to @fd; @first is the source of terms in the piece's
 * own file. -EBADMSG, or as a read of one of the files. */
static int dcp_view_sum(const struct dcp_view *view, const struct dcp_source *first,
			const struct dcp_piece *p, int fd, struct dcp_err *err)
{
	enum dcp_dtype dtype = view->emitted.dtype;
	char *sum;
	int rc;

	if (!dcp_dtype_can_add(dtype) || p->swap)
		return dcp_fail(err, -EBADMSG, "its elements cannot be added up");
	if (!p->nbytes)
		return 0;
	rc = -posix_fallocate(fd, 0, (off_t)p->nbytes);
	if (rc < 0)
		return dcp_fail(err, rc, "no memory for a sum: %s", strerror(-rc));
	sum = mmap(NULL, p->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (sum == MAP_FAILED)
		return dcp_fail(err, -errno, "cannot map a sum: %m");
	rc = dcp_source_read(first, 0, sum, p->nbytes);
	for (uint32_t k = 0; rc == 0 && k < p->nmore; k++)
		rc = add_term(view, &p->more[k], sum, p->nbytes, err);
	if (rc == 0 && p->mean)
		dcp_dtype_divide(dtype, sum, p->nmore + 1, p->nbytes / view->emitted.itemsize);
	munmap(sum, p->nbytes);
	return rc;
}

enum {                        /* the read-ahead of common devices */
       READ_AHEAD = 16 << 20, /* two windows of the kernel's read-ahead */
       WANT_MOST = 8 << 20,   /* largest item that is requested as a whole */
       WANT_END = 4096,       /* bytes at the end of a torch.save item that identify it */
       READ_AROUND = 4 << 20, /* half a window, before the first missing page of a mapping */
};

static const char *numbers_text(char *buf, size_t size, const uint64_t *shape, uint32_t ndim)
{
	size_t n = 0;

	buf[0] = '\0';
	for (uint32_t d = 0; d < ndim && n < size; d++)
		n += (size_t)snprintf(buf + n, size - n, "%s%llu", d ? ", " : "",
				      (unsigned long long)shape[d]);
	return buf;
}

/* The item that was opened last, kept because its parts are consecutive pieces. */
struct opened {
	bool is_set;
	uint32_t file;
	uint64_t off;
	struct dcp_torch_tensor tensor;
};

/* Number of elements of the item of @p, which is all or a part of it. */
static uint64_t item_elements(const struct dcp_piece *p)
{
	return p->item_n ? p->item_n : p->run_n;
}

/* Check that the stored tensor is the piece that the metadata describes. */
static int check_stored(const struct dcp_view *view, const struct dcp_piece *p,
			const struct dcp_torch_tensor *tt, struct dcp_err *err)
{
	const struct dcp_tensor *t = &view->emitted;
	char is[128], said[128];

	if (tt->dtype != t->dtype ||
	    (t->dtype == DCP_DTYPE_OTHER && strcmp(tt->dtype_name, t->dtype_name)))
		return dcp_fail_at(err, -EBADMSG, p->off, "stored as %s, the metadata says %s",
				   tt->dtype_name,
				   t->dtype ? dcp_dtype_info(t->dtype)->name : t->dtype_name);
	if (p->enc == DCP_ENC_TORCH_FLAT || p->item_n) {
		uint64_t volume;

		if ((tt->row_major || p->item_n) &&
		    dcp_shape_volume(tt->shape, tt->ndim, &volume) &&
		    volume == item_elements(p))
			return 0;
		return dcp_fail_at(
			err, -EBADMSG, p->off,
			"stored tensor has shape [%s]%s, the metadata says %llu element%s "
			"in a row",
			numbers_text(is, sizeof(is), tt->shape, tt->ndim),
			tt->row_major ? "" : " and is transposed",
			(unsigned long long)item_elements(p), dcp_s(item_elements(p)));
	}
	if (tt->ndim != t->ndim || memcmp(tt->shape, p->len, t->ndim * sizeof(*p->len)))
		return dcp_fail_at(err, -EBADMSG, p->off,
				   "stored tensor has shape [%s], the metadata says [%s]",
				   numbers_text(is, sizeof(is), tt->shape, tt->ndim),
				   numbers_text(said, sizeof(said), p->len, t->ndim));
	return 0;
}

/* Open the tensor in @item, whose byte 0 is at @base of the backing. */
static int open_torch(const struct dcp_view *view, const struct dcp_source *item, uint64_t base,
		      struct dcp_torch_tensor *tt, struct dcp_err *err)
{
	int rc = dcp_torch_item(view->frames, item, tt, err);

	if (rc == 0)
		return dcp_fail_at(err, -EBADMSG, base, "the stored item is not a tensor");
	return rc < 0 ? rc : 0;
}

/* Convert @len steps, each of @step elements in row-major order, to the stored order of @tt. The
 * steps must lie along one dimension of @tt; @at has the position in each dimension. */
static bool convert_steps(const struct dcp_torch_tensor *tt, uint64_t step, uint64_t len,
			  uint64_t *at, uint64_t *out)
{
	uint64_t inner = 1;

	*out = 0;
	for (uint32_t d = tt->ndim; len > 1 && d-- > 0; inner *= tt->shape[d]) {
		uint64_t reach;

		if (step % inner || step / inner >= tt->shape[d])
			continue;
		*out = step / inner * tt->stride[d];
		return !dcp_ckd_mul(&reach, len - 1, step / inner) &&
		       !dcp_ckd_add(&at[d], at[d], reach) && at[d] < tt->shape[d];
	}
	return len == 1;
}

/* Compute the first element and the steps of a part of a tensor that is stored in another order. */
static int convert_strides(struct dcp_view *view, struct dcp_piece *p,
			   const struct dcp_torch_tensor *tt, struct dcp_err *err)
{
	uint32_t ndim = view->t.ndim;
	uint64_t *stride = dcp_arena_calloc(&view->arena, ndim + 1, sizeof(*stride));
	uint64_t at[DCP_MAX_NDIM], rest = p->item_lo, first = 0;

	if (!stride)
		return -ENOMEM;
	for (uint32_t d = tt->ndim; d-- > 0; rest /= tt->shape[d]) {
		at[d] = rest % tt->shape[d];
		first += at[d] * tt->stride[d];
	}
	for (uint32_t d = 0; d < ndim; d++)
		if (!convert_steps(tt, p->stride[d], p->len[d], at, &stride[d]))
			return dcp_fail_at(
				err, -ENOTSUP, p->off,
				"the stored tensor is transposed, and its rows do not "
				"follow each other as the rules need them");
	p->item_lo = first;
	p->stride = stride;
	return 0;
}

/* Select the part of a decoded item that starts at @p->off; afterwards the piece is like any
 * other. */
static int take_part(const struct dcp_view *view, struct dcp_piece *p, struct dcp_err *err)
{
	uint64_t skip;

	if (dcp_ckd_mul(&skip, p->item_lo, view->emitted.itemsize) || skip > p->nbytes)
		return dcp_fail_at(err, -EBADMSG, p->off,
				   "a part from element %llu on is not in its %llu bytes",
				   (unsigned long long)p->item_lo,
				   (unsigned long long)p->nbytes);
	p->off += skip;
	p->nbytes -= skip;
	p->item_lo = p->item_n = 0;
	return 0;
}

/* Open the torch.save item in @item (whose byte 0 is at @base of the backing) and set the piece. */
static int locate_torch(struct dcp_view *view, struct dcp_piece *p,
			const struct dcp_source *item, uint64_t base,
			const struct dcp_piece *emitted, struct opened *last,
			struct dcp_err *err)
{
	struct dcp_torch_tensor *tt = &last->tensor;
	uint64_t *stride;
	int rc = 0;

	if (!last->is_set || last->file != emitted->file || last->off != emitted->off)
		rc = open_torch(view, item, base, tt, err);
	last->is_set = rc == 0;
	last->file = emitted->file;
	last->off = emitted->off;
	if (rc == 0)
		rc = check_stored(view, p, tt, err);
	if (rc < 0)
		return rc;
	p->enc = DCP_ENC_PLAIN;
	p->off = base + tt->off;
	p->swap = tt->swap && view->t.itemsize > 1;
	p->filter = (uint8_t)tt->filter;
	p->nbytes = item->size - tt->off;
	if (p->item_n)
		return tt->row_major ? 0 : convert_strides(view, p, tt, err);
	p->stride = NULL;
	if (!tt->row_major) {
		stride = dcp_arena_calloc(&view->arena, tt->ndim, sizeof(*stride));
		if (!stride)
			return -ENOMEM;
		memcpy(stride, tt->stride, tt->ndim * sizeof(*stride));
		p->stride = stride;
	}
	return 0;
}

/* Bytes from a plain piece's offset to the end of its last element must be there. */
static int check_plain(const struct dcp_view *view, const struct dcp_piece *p,
		       struct dcp_err *err)
{
	const struct dcp_tensor *t = &view->t;
	uint64_t last = 0, need;
	bool bad = false;

	if (p->stride)
		for (uint32_t d = 0; d < t->ndim; d++) {
			uint64_t reach;

			bad |= dcp_ckd_mul(&reach, p->len[d] - 1, p->stride[d]) ||
			       dcp_ckd_add(&last, last, reach);
		}
	else
		last = p->run_n - 1;
	if (bad || dcp_ckd_add(&need, last, 1) || dcp_ckd_mul(&need, need, t->itemsize) ||
	    need > p->nbytes)
		return dcp_fail_at(err, -EBADMSG, p->off,
				   "a piece of %llu element%s needs more than its %llu byte%s",
				   (unsigned long long)p->run_n, dcp_s(p->run_n),
				   (unsigned long long)p->nbytes, dcp_s(p->nbytes));
	return 0;
}

/* As a protection from decompression bombs, limit the output to a torch.save frame with a storage
 * of twice the tensor's size. */
static int decompress_item(const struct dcp_view *view, const struct dcp_source *item,
			   const struct dcp_piece *p, int fd, uint64_t *n, struct dcp_err *err)
{
	enum dcp_codec codec =
		p->filter == DCP_FILTER_DEFLATE ? DCP_CODEC_DEFLATE : DCP_CODEC_ZSTD;
	uint64_t limit;

	if (dcp_ckd_mul(&limit, item_elements(p), 2ull * view->emitted.itemsize) ||
	    dcp_ckd_add(&limit, limit, 1 << 20))
		limit = UINT64_MAX;
	return dcp_inflate_fd(item, codec, fd, limit, NULL, n, err);
}

static int decode_latin1(const struct dcp_view *view, const struct dcp_source *item,
			 uint64_t elements, int fd, uint64_t *n, struct dcp_err *err)
{
	if (dcp_ckd_mul(n, elements, view->emitted.itemsize))
		return dcp_fail_at(err, -EBADMSG, 0, "a piece of %llu elements is too long",
				   (unsigned long long)elements);
	return dcp_latin1_decode_fd(item, fd, *n, err);
}

/* Decode a whole item into separate memory, which the view unmaps. */
static int decode_item(struct dcp_view *view, const struct dcp_source *item,
		       const struct dcp_piece *p, struct dcp_source *out, struct dcp_err *err)
{
	dcp_auto_fd int fd = memfd_create("dcpfs-item", MFD_CLOEXEC);
	uint64_t n = 0;
	void *map;
	int rc;

	for (size_t i = view->ndecoded; p->item_n && i-- > 0;) {
		const struct dcp_decoded *d = &view->decoded[i];

		if (d->file == p->file && d->off == p->off) {
			*out = dcp_source_mem(d->p, d->n);
			return 0;
		}
	}
	if (fd < 0)
		return dcp_fail(err, -errno, "no memory file: %m");
	n = p->nbytes;
	rc = p->filter == DCP_FILTER_SUM ? dcp_view_sum(view, item, p, fd, err)
	     : p->filter == DCP_FILTER_LATIN1
		     ? decode_latin1(view, item, item_elements(p), fd, &n, err)
		     : decompress_item(view, item, p, fd, &n, err);
	if (rc < 0)
		return rc;
	if (n == 0) {
		*out = dcp_source_mem("", 0);
		return 0;
	}
	map = mmap(NULL, n, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return dcp_fail(err, -errno, "cannot map a decoded item: %m");
	view->decoded[view->ndecoded++] = (struct dcp_decoded){ map, n, p->file, p->off };
	*out = dcp_source_mem(map, n);
	return 0;
}

/*
 * The kernel uses larger pieces of memory for read-ahead than for requested pages, and so needs
 * less than half the time. But read-ahead does not stop at the end of the cut, so it is used alone
 * only if the cut is longer than its reach, or ends (nearly) at the end of the file.
 */
static void free_readahead(const struct dcp_view *view, const struct dcp_piece *p,
			   struct dcp_backing *b, const struct dcp_file *file)
{
	uint64_t isz = view->t.itemsize, lo = p->off + b->first * isz,
		 end = p->off + b->end * isz;
	uint64_t little = (end - lo) / 20;

	b->free = b->free_end = 0;
	b->end = end;
	if (b->scattered || p->stride)
		return;
	b->until = end;
	if (file->size - end > little)
		end -= DCP_MIN(end, READ_AHEAD);
	if (file->map && lo > little)
		lo += READ_AROUND;
	if (end > lo && end - lo >= READ_AHEAD / 2) {
		b->free = lo;
		b->free_end = end;
	}
}

/*
 * On sources where requests are expensive, a short item is requested as a whole, since all of it is
 * read next. Of a longer item, or of a part, only both ends are requested, which tell where the
 * tensor lies.
 */
static void want_item(const struct dcp_view *view, const struct dcp_piece *p,
		      const struct dcp_blob *b)
{
	bool all = view->uncut && p->nbytes <= WANT_MOST;
	uint32_t end = (uint32_t)DCP_MIN(p->nbytes, (uint64_t)WANT_END);
	const struct dcp_read reads[] = {
		{ -1, all ? (uint32_t)p->nbytes : end, p->off, NULL, b },
		{ -1, end, p->off + p->nbytes - end, NULL, b },
	};

	if (b->ops->want)
		b->ops->want(reads, all ? 1 : 2);
}

struct from_map {
	void *to;
	const uint8_t *from;
	size_t n;
};

static int copy_mapped(void *arg)
{
	const struct from_map *c = arg;

	memcpy(c->to, c->from, c->n);
	return 0;
}

static int read_mapped(const struct dcp_source *src, uint64_t off, void *buf, size_t n)
{
	struct from_map c = { buf, (const uint8_t *)src->mem + off, n };

	return dcp_guard_run(copy_mapped, &c);
}

/*
 * Does the mapping show that @p is an item like one that was parsed before? This saves two calls,
 * and reads no page that a reader of the whole item does not need. Never if another file could
 * replace this one, because then the length of this file must be checked.
 */
static bool is_known(const struct dcp_view *view, const struct dcp_piece *p,
		     const struct dcp_file *file, struct opened *last)
{
	const struct dcp_source map = { .read = read_mapped,
					.mem = file->map,
					.size = file->size };
	struct dcp_source item;

	if (p->enc == DCP_ENC_PLAIN || dcp_filter_encodes(p->filter) || !file->map ||
	    !view->uncut || view->emitted.ncopies ||
	    !dcp_range_ok(p->off, p->nbytes, file->size))
		return false;
	if (last->is_set && last->file == p->file && last->off == p->off)
		return true; /* another piece of the item that was opened last */
	item = dcp_source_window(&map, p->off, p->nbytes);
	last->is_set = dcp_torch_known(view->frames, &item, &last->tensor);
	last->file = p->file;
	last->off = p->off;
	return last->is_set;
}

/* Locate piece @i in its open file. */
static int locate_in(struct dcp_view *view, size_t i, const struct dcp_file *file,
		     struct opened *last, struct dcp_err *err)
{
	struct dcp_piece *p = (struct dcp_piece *)(uintptr_t)&view->t.pieces[i];
	struct dcp_piece *emitted = (struct dcp_piece *)(uintptr_t)&view->emitted.pieces[i];
	bool encoded = dcp_filter_encodes(p->filter);
	struct dcp_backing *b = &view->backing[i];
	struct dcp_source whole, item, decoded;
	uint64_t size = file->size;
	int rc = 0;

	b->number = p->file;
	whole = dcp_source_blob(&file->blob);
	if (!is_known(view, p, file, last))
		size = DCP_MIN(dcp_blob_size(&file->blob), size);
	if (!dcp_range_ok(p->off, p->nbytes, size))
		return dcp_fail_at(
			err, -EIO, size, "bytes %llu to %llu wanted, the file ends at %llu",
			(unsigned long long)p->off, (unsigned long long)(p->off + p->nbytes),
			(unsigned long long)size);
	item = dcp_source_window(&whole, p->off, p->nbytes);
	if (p->enc != DCP_ENC_PLAIN && !encoded)
		want_item(view, p, &file->blob);
	if (encoded) {
		bool tail = p->filter == DCP_FILTER_DEFLATE;
		uint64_t need = item_elements(p) * view->emitted.itemsize;

		rc = decode_item(view, &item, p, &decoded, err);
		if (rc < 0)
			return rc;
		item = decoded;
		b->decoded = item.mem;
		b->number = DCP_VIEW_NO_FILE;
		p->filter = DCP_FILTER_NONE;
		p->off = tail && need <= item.size ? item.size - need : 0;
		p->nbytes = item.size - p->off;
	}
	if (p->enc != DCP_ENC_PLAIN)
		rc = locate_torch(view, p, &item, p->off, emitted, last, err);
	if (rc == 0 && p->item_n)
		rc = take_part(view, p, err);
	if (rc == 0 && p->run_n)
		rc = check_plain(view, p, err);
	if (rc == 0 && !encoded)
		*emitted = *p;
	if (rc == 0 && encoded)
		p->file =
			DCP_VIEW_NO_FILE - (uint32_t)i - 1; /* no descriptor spans two items */
	if (rc == 0 && b->number != DCP_VIEW_NO_FILE) {
		b->until = p->off + (p->stride ? p->nbytes : p->run_n * view->t.itemsize);
		if (!view->whole)
			free_readahead(view, p, b, file);
	}
	return rc;
}

/* Append the reason of the server to a message that only names what could not be read. */
static void add_reason(struct dcp_err *err, int rc)
{
	const char *why = dcp_err_noted(rc);
	size_t n = err ? strlen(err->msg) : 0;

	if (n && strcmp(why, strerror(-rc)) != 0 && !strstr(err->msg, why))
		snprintf(err->msg + n, sizeof(err->msg) - n, ": %s", why);
}

static int locate_piece(struct dcp_view *view, size_t i, struct opened *last,
			struct dcp_err *err)
{
	struct dcp_piece *p = (struct dcp_piece *)(uintptr_t)&view->t.pieces[i];
	uint32_t number = p->file, ndim = view->t.ndim;
	const struct dcp_file *file;
	char at[128];
	int rc;

	if (p->filter == DCP_FILTER_ZERO) {
		p->file =
			DCP_VIEW_NO_FILE - (uint32_t)i - 1; /* a number as for decoded items */
		return 0;
	}
	rc = dcp_files_hold(view->files, number, true, &file, err);

	if (rc < 0)
		return rc;
	rc = locate_in(view, i, file, last, err);
	if (rc < 0)
		add_reason(err, rc);
	/* A decoded item does not refer to the file any more. */
	if (rc == 0 && view->backing[i].decoded) {
		rc = dcp_files_check(view->files, number, false);
		if (rc < 0)
			dcp_fail(err, rc, "%s: it changed since it was indexed",
				 dcp_files_name(view->files, number));
	}
	dcp_files_release(view->files, number);
	if (rc < 0 && ndim)
		dcp_err_where(err, rc, "piece at [%s]",
			      numbers_text(at, sizeof(at), p->lo, ndim));
	return rc;
}

static bool same_place(const struct dcp_piece *a, const struct dcp_piece *b, uint32_t ndim)
{
	return a->run_lo == b->run_lo && a->run_n == b->run_n &&
	       memcmp(a->lo, b->lo, ndim * sizeof(*a->lo)) == 0 &&
	       memcmp(a->len, b->len, ndim * sizeof(*a->len)) == 0;
}

/* Switch piece @i to another file that holds it. False: there is none. */
static bool take_copy(struct dcp_view *view, size_t i)
{
	const struct dcp_tensor *t = &view->emitted;
	struct dcp_piece *p = (struct dcp_piece *)(uintptr_t)&view->t.pieces[i];
	struct dcp_piece *emitted = (struct dcp_piece *)(uintptr_t)&t->pieces[i];

	for (size_t k = 0; k < t->ncopies; k++)
		if (same_place(&t->copies[k], emitted, t->ndim) &&
		    !dcp_files_avoided(view->files, t->copies[k].file)) {
			*emitted = *p = t->copies[k];
			return true;
		}
	return false;
}

/* Locate piece @i in its own file, or in another file if its own cannot be read, or could not
 * earlier. */
static int locate_any(struct dcp_view *view, size_t i, struct opened *last, struct dcp_err *err)
{
	uint32_t number = view->t.pieces[i].file;
	struct dcp_err why = { 0 };
	int rc;

	if (dcp_files_avoided(view->files, number))
		take_copy(view, i);
	rc = locate_piece(view, i, last, &why);
	if (rc == -EIO && view->t.ncopies) {
		dcp_files_avoid(view->files, number);
		if (take_copy(view, i))
			rc = locate_piece(view, i, last, &why);
	}
	if (rc < 0 && err)
		*err = why;
	return rc;
}

/* Is the overlap contiguous? Then @first and @n give its elements in the stored run. */
static bool is_together(const struct dcp_meet *m, uint32_t ndim, uint64_t *first, uint64_t *n)
{
	uint64_t dense = 1;
	bool part = false;

	*first = 0;
	*n = 1;
	for (uint32_t d = ndim; d-- > 0; dense *= m->piece->len[d]) {
		if (part && m->n[d] > 1)
			return false;
		part |= m->n[d] < m->piece->len[d];
		*first += (m->lo[d] - m->piece->lo[d]) * dense;
		*n *= m->n[d];
	}
	*first -= m->piece->run_lo;
	return true;
}

static int need_piece(void *ctx, const struct dcp_meet *m)
{
	struct dcp_view *view = ctx;
	struct dcp_backing *b = &view->backing[m->piece - view->t.pieces];
	uint64_t first, n;

	if (!is_together(m, view->t.ndim, &first, &n) || (b->needed && first != b->end))
		b->scattered = true;
	if (!b->needed)
		b->first = first;
	b->end = first + n;
	b->needed = true;
	return 0;
}

/* Mark the pieces with bytes of the cut. If the cut is the whole tensor, mark all pieces, including
 * empty ones. */
static void mark_needed(struct dcp_view *view)
{
	uint64_t n = view->cut.flat_n;

	if (view->whole) {
		for (size_t i = 0; i < view->t.npieces; i++)
			view->backing[i].needed = true;
		return;
	}
	if (view->cut.flat || dcp_cut_volume(&view->cut, &n))
		dcp_meet(&view->tiling, &view->cut, 0, n, need_piece, view);
}

/* Tile only the pieces that the cut touches. That all pieces cover the tensor was proved when the
 * index was made. */
static int tile_view(struct dcp_view *view, struct dcp_err *err)
{
	struct dcp_box box;

	if (view->whole)
		return dcp_tiling_init(&view->tiling, &view->t, &view->arena, err);
	if (dcp_cut_bounds(&view->cut, &box))
		return dcp_tiling_init_part(&view->tiling, &view->t, &box, &view->arena, err);
	view->tiling.t = &view->t;
	return 0;
}

int dcp_view_locate(struct dcp_view *view, struct dcp_err *err)
{
	struct dcp_tensor *t = &view->t;
	struct opened last = { .is_set = false };
	struct dcp_piece *pieces;
	int rc;

	*t = view->emitted;
	pieces = dcp_arena_calloc(&view->arena, t->npieces, sizeof(*pieces));
	view->backing = dcp_arena_calloc(&view->arena, t->npieces, sizeof(*view->backing));
	/* A piece may be decoded from two files, one after the other. */
	view->decoded =
		dcp_arena_calloc(&view->arena, t->npieces + t->ncopies, sizeof(*view->decoded));
	if (!pieces || !view->backing || !view->decoded)
		return -ENOMEM;
	if (t->npieces)
		memcpy(pieces, t->pieces, t->npieces * sizeof(*pieces));
	t->pieces = pieces;
	rc = tile_view(view, err);
	if (rc < 0)
		return rc;
	mark_needed(view);
	for (size_t i = 0; i < t->npieces; i++) {
		view->backing[i].number = DCP_VIEW_NO_FILE;
		rc = view->backing[i].needed ? locate_any(view, i, &last, err) : 0;
		if (rc < 0)
			return dcp_err_where(err, rc, "%s",
					     dcp_files_name(view->files, pieces[i].file));
	}
	return 0;
}
