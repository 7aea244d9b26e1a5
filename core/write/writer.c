/* SPDX-License-Identifier: Apache-2.0 */
/* writer: runs of bytes of a file that is to be written: tensors, text, fill; and zip archives. */
#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/write/write.h"

uint64_t dcp_write_part_bytes(const struct dcp_write_tensor *t,
			      const struct dcp_write_part *part)
{
	uint64_t n = t->itemsize;

	for (uint32_t d = 0; d < part->ndim; d++)
		n *= part->shape[d];
	return n;
}

bool dcp_write_is_whole(const struct dcp_write_tensor *t, const struct dcp_write_part *part)
{
	return part->lo && part->ndim == t->ndim &&
	       !memcmp(part->shape, t->shape, t->ndim * sizeof(*t->shape));
}

uint32_t dcp_write_sets(const struct dcp_write_set *set)
{
	return set->arrays ? set->ranks : 1;
}

size_t dcp_write_part_of(const struct dcp_write_set *set, size_t tensor, uint32_t rank)
{
	const struct dcp_write_tensor *t = &set->tensors[tensor];
	size_t i;

	if (!set->arrays)
		return 0;
	DCP_BISECT(i, 0, t->nparts, t->parts[i].rank < rank);
	return i < t->nparts && t->parts[i].rank == rank ? i : SIZE_MAX;
}

const char *dcp_write_key(const struct dcp_write_set *set, size_t item)
{
	return item < set->ntensors ? set->tensors[item].key
				    : set->objects[item - set->ntensors].key;
}

/* Count @n bytes if nothing failed yet. Places are signed 64 bits in every file system. */
static bool go_on(struct dcp_writer *w, uint64_t n)
{
	if (w->rc == 0 && (dcp_ckd_add(&w->at, w->at, n) || w->at > INT64_MAX))
		w->rc = -EFBIG;
	return w->rc == 0;
}

void dcp_writer_file(struct dcp_writer *w, const char *name, bool last)
{
	w->at = 0;
	if (w->rc == 0)
		w->rc = w->sink->file(w->sink->ctx, name, last);
}

void dcp_writer_bytes(struct dcp_writer *w, const void *p, size_t n)
{
	if (n && go_on(w, n))
		w->rc = w->sink->bytes(w->sink->ctx, p, n);
}

void dcp_writer_fill(struct dcp_writer *w, char c, size_t n)
{
	char same[4096];

	memset(same, c, DCP_MIN(n, sizeof(same)));
	for (; n; n -= DCP_MIN(n, sizeof(same)))
		dcp_writer_bytes(w, same, DCP_MIN(n, sizeof(same)));
}

static size_t add_run(struct dcp_writer *w, const struct dcp_write_run *run)
{
	if (go_on(w, run->length))
		w->rc = w->sink->data(w->sink->ctx, run);
	return w->runs++;
}

size_t dcp_writer_slice(struct dcp_writer *w, size_t tensor, size_t part, uint64_t off,
			uint64_t n)
{
	return add_run(
		w, &(struct dcp_write_run){
			   .tensor = tensor, .part = part, .off = off, .n = n, .length = n });
}

size_t dcp_writer_part(struct dcp_writer *w, size_t tensor, size_t part)
{
	const struct dcp_write_tensor *t = &w->set->tensors[tensor];

	return dcp_writer_slice(w, tensor, part, 0, dcp_write_part_bytes(t, &t->parts[part]));
}

static size_t write_extra(struct dcp_writer *w, size_t extra)
{
	return dcp_writer_slice(w, w->set->ntensors + extra, 0, 0,
				w->set->extras[extra].nbytes);
}

int dcp_writer_measure(const struct dcp_writer *w, size_t tensor, size_t part, uint64_t off,
		       uint64_t n, struct dcp_buf *lengths, uint64_t *total,
		       struct dcp_err *err)
{
	*total = 0;
	if (!w->set->high)
		return -ENOTSUP;
	for (uint64_t done = 0, one; done < n; done += one) {
		uint64_t length;
		int rc;

		one = DCP_MIN(n - done, (uint64_t)DCP_WRITE_TEXT);
		rc = w->set->high(w->set->ctx, tensor, part, off + done, (size_t)one, &length,
				  err);
		if (rc < 0)
			return rc;
		length += one;
		*total += length;
		dcp_buf_add(lengths, &length, sizeof(length));
	}
	return dcp_buf_error(lengths);
}

void dcp_writer_text(struct dcp_writer *w, size_t tensor, size_t part, uint64_t off, uint64_t n,
		     const struct dcp_buf *lengths)
{
	const uint64_t *length = DCP_ITEMS(*lengths, uint64_t);

	for (uint64_t done = 0, one; done < n; done += one) {
		one = DCP_MIN(n - done, (uint64_t)DCP_WRITE_TEXT);
		add_run(w, &(struct dcp_write_run){ .tensor = tensor,
						    .part = part,
						    .off = off + done,
						    .n = one,
						    .length = *length++,
						    .text = true });
	}
}

void dcp_writer_crc32(struct dcp_writer *w, uint32_t crc, size_t run)
{
	if (go_on(w, 4))
		w->rc = w->sink->crc32(w->sink->ctx, crc, run);
}

void dcp_writer_extras(struct dcp_writer *w)
{
	for (size_t i = 0; i < w->set->nextras; i++) {
		dcp_writer_file(w, w->set->extras[i].name, false);
		write_extra(w, i);
	}
}

int dcp_write_plan(const struct dcp_write_format *f, const struct dcp_write_set *set,
		   const struct dcp_write_opts *opts, const struct dcp_write_sink *sink,
		   struct dcp_err *err)
{
	struct dcp_writer w = { .sink = sink, .set = set };
	int rc;

	if (opts->name && set->arrays)
		return dcp_fail(
			err, -EINVAL,
			"%s is the name of a file, and %u ranks have a directory of them",
			opts->name, set->ranks);
	rc = f->plan(set, opts, &w, err);
	return dcp_err_say(err, rc < 0 ? rc : w.rc);
}

/* ---- zip ---- */

enum {
	ALIGN = 64,
	NO_TIME = 0,
	NO_DATE = 0x21, /* 1980-01-01 */
	UTF8 = 0x800,
	DESCRIBED = 8, /* sizes and checksum follow the data */
	MANY = 0xffff,
	FULL = 0xffffffff, /* the number is in the zip64 field */
};

struct entry {
	uint64_t size, off; /* @off: of the local header, from the start */
	size_t name, run;   /* @name: in names; @run: of data, SIZE_MAX: there is none */
	uint32_t crc32;     /* of the bytes before it */
	uint16_t flags;
};

static void put_u16(struct dcp_buf *b, uint16_t v)
{
	dcp_buf_add(b, &v, sizeof(v)); /* hosts are little-endian: core/base/bytes.h */
}

static void put_u32(struct dcp_buf *b, uint64_t v)
{
	uint32_t v32 = (uint32_t)v;

	dcp_buf_add(b, &v32, sizeof(v32));
}

static void put_u64(struct dcp_buf *b, uint64_t v)
{
	dcp_buf_add(b, &v, sizeof(v));
}

static uint32_t clip_size(uint64_t v)
{
	return v >= FULL ? FULL : (uint32_t)v;
}

/* Put the zip64 field with the numbers that do not fit; nothing if all fit. */
static void put_zip64(struct dcp_buf *b, uint64_t size, uint64_t off)
{
	uint16_t n = (uint16_t)((size >= FULL ? 16 : 0) + (off >= FULL ? 8 : 0));

	if (n == 0)
		return;
	put_u16(b, 1);
	put_u16(b, n);
	if (size >= FULL) {
		put_u64(b, size);
		put_u64(b, size);
	}
	if (off >= FULL)
		put_u64(b, off);
}

static void emit_bytes(struct dcp_zipper *z, const struct dcp_buf *b)
{
	if (dcp_buf_error(b))
		z->rc = -ENOMEM;
	if (z->rc == 0)
		dcp_writer_bytes(z->w, b->p, b->n);
}

/* Emit the checksum of an entry as four bytes, known already or filled in later. */
static void emit_crc32(struct dcp_zipper *z, const struct entry *e)
{
	if (z->rc == 0 && e->run != SIZE_MAX)
		dcp_writer_crc32(z->w, e->crc32, e->run);
	else if (z->rc == 0)
		dcp_writer_bytes(z->w, &e->crc32, sizeof(e->crc32));
}

/* ---- entries ---- */

static void put_padding(struct dcp_buf *b, uint64_t at)
{
	size_t pad = -(at + b->n + 4) & (ALIGN - 1);

	dcp_buf_add(b, "FB", 2);
	put_u16(b, (uint16_t)pad);
	while (pad--)
		dcp_buf_add(b, "Z", 1);
}

static void put_local(struct dcp_zipper *z, const struct entry *e, const char *name, size_t n)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT, extra = DCP_BUF_INIT;
	bool torch = z->way == DCP_ZIP_TORCH, late = e->flags & DESCRIBED;

	put_zip64(&extra, e->size, torch ? e->off : 0);
	if (torch)
		put_padding(&extra, e->off + 30 + n);
	put_u32(&b, 0x04034b50);
	put_u16(&b, torch ? 0 : e->size >= FULL ? 45 : 20);
	put_u16(&b, e->flags);
	put_u16(&b, 0);
	put_u16(&b, NO_TIME);
	put_u16(&b, NO_DATE);
	if (late)
		put_u32(&b, 0);
	emit_bytes(z, &b);
	dcp_buf_reset(&b);
	if (!late)
		emit_crc32(z, e);
	put_u32(&b, late && e->size < FULL ? 0 : clip_size(e->size));
	put_u32(&b, late && e->size < FULL ? 0 : clip_size(e->size));
	put_u16(&b, (uint16_t)n);
	put_u16(&b, (uint16_t)extra.n);
	dcp_buf_add(&b, name, n);
	emit_bytes(z, &b);
	emit_bytes(z, &extra);
}

static void put_descriptor(struct dcp_zipper *z, const struct entry *e)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	bool wide = e->size >= FULL || e->off >= FULL;

	put_u32(&b, 0x08074b50);
	emit_bytes(z, &b);
	emit_crc32(z, e);
	dcp_buf_reset(&b);
	for (int i = 0; i < 2; i++) {
		if (wide)
			put_u64(&b, e->size);
		else
			put_u32(&b, e->size);
	}
	emit_bytes(z, &b);
}

void dcp_zipper_begin(struct dcp_zipper *z, struct dcp_writer *w, enum dcp_zip_way way)
{
	*z = (struct dcp_zipper){ .w = w, .way = way, .start = w->at };
}

static void add_entry(struct dcp_zipper *z, const char *name, const void *p, size_t n,
		      size_t tensor, size_t part, uint64_t nbytes)
{
	struct entry e = { .size = n + nbytes,
			   .off = z->w->at - z->start,
			   .name = z->names.n,
			   .run = SIZE_MAX,
			   .crc32 = dcp_crc32(0, n ? p : "", n),
			   .flags = UTF8 };
	size_t len = strlen(name);

	if (len >= MANY)
		z->rc = z->rc ? z->rc : -E2BIG;
	if (z->way == DCP_ZIP_TORCH && e.size)
		e.flags |= DESCRIBED;
	if (tensor != SIZE_MAX)
		e.run = z->w->runs; /* the next run */
	put_local(z, &e, name, len);
	if (z->rc)
		return;
	dcp_writer_bytes(z->w, p, n);
	if (tensor != SIZE_MAX)
		dcp_writer_part(z->w, tensor, part);
	if (e.flags & DESCRIBED)
		put_descriptor(z, &e);
	dcp_buf_add(&z->names, name, len + 1);
	dcp_buf_add(&z->entries, &e, sizeof(e));
}

void dcp_zipper_bytes(struct dcp_zipper *z, const char *name, const void *p, size_t n)
{
	add_entry(z, name, p, n, SIZE_MAX, 0, 0);
}

void dcp_zipper_part(struct dcp_zipper *z, const char *name, const void *p, size_t n,
		     size_t tensor, size_t part)
{
	const struct dcp_write_tensor *t = &z->w->set->tensors[tensor];

	add_entry(z, name, p, n, tensor, part, dcp_write_part_bytes(t, &t->parts[part]));
}

/* ---- the end ---- */

static void put_central(struct dcp_zipper *z, const struct entry *e)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT, extra = DCP_BUF_INIT;
	const char *name = z->names.p + e->name;
	bool torch = z->way == DCP_ZIP_TORCH;
	uint16_t version = torch ? 0 : e->size >= FULL || e->off >= FULL ? 45 : 20;

	put_zip64(&extra, e->size, e->off);
	put_u32(&b, 0x02014b50);
	put_u16(&b, torch ? 0 : (uint16_t)(3 << 8 | version)); /* made on Unix */
	put_u16(&b, version);
	put_u16(&b, e->flags);
	put_u16(&b, 0);
	put_u16(&b, NO_TIME);
	put_u16(&b, NO_DATE);
	emit_bytes(z, &b);
	emit_crc32(z, e);
	dcp_buf_reset(&b);
	put_u32(&b, clip_size(e->size));
	put_u32(&b, clip_size(e->size));
	put_u16(&b, (uint16_t)strlen(name));
	put_u16(&b, (uint16_t)extra.n);
	put_u16(&b, 0); /* comment */
	put_u16(&b, 0); /* disk */
	put_u16(&b, 0);
	put_u32(&b, torch ? 0 : 0600u << 16);
	put_u32(&b, clip_size(e->off));
	dcp_buf_str(&b, name);
	emit_bytes(z, &b);
	emit_bytes(z, &extra);
}

static void put_end(struct dcp_zipper *z, uint64_t n, uint64_t from, uint64_t size)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

	if (z->way == DCP_ZIP_TORCH || n >= MANY || from >= FULL || size >= FULL) {
		put_u32(&b, 0x06064b50);
		put_u64(&b, 44);
		put_u16(&b, 45);
		put_u16(&b, 45);
		put_u32(&b, 0);
		put_u32(&b, 0);
		put_u64(&b, n);
		put_u64(&b, n);
		put_u64(&b, size);
		put_u64(&b, from);
		put_u32(&b, 0x07064b50); /* place of the zip64 record */
		put_u32(&b, 0);
		put_u64(&b, from + size);
		put_u32(&b, 1);
	}
	put_u32(&b, 0x06054b50);
	put_u16(&b, 0);
	put_u16(&b, 0);
	put_u16(&b, (uint16_t)(n >= MANY ? MANY : n));
	put_u16(&b, (uint16_t)(n >= MANY ? MANY : n));
	put_u32(&b, clip_size(size));
	put_u32(&b, clip_size(from));
	put_u16(&b, 0);
	emit_bytes(z, &b);
}

int dcp_zipper_end(struct dcp_zipper *z)
{
	const struct entry *e = DCP_ITEMS(z->entries, struct entry);
	size_t n = DCP_NITEMS(z->entries, struct entry);
	uint64_t from = z->w->at - z->start;

	if (dcp_buf_error(&z->entries) || dcp_buf_error(&z->names))
		z->rc = -ENOMEM;
	for (size_t i = 0; z->rc == 0 && i < n; i++)
		put_central(z, &e[i]);
	put_end(z, n, from, z->w->at - z->start - from);
	dcp_buf_finish(&z->entries);
	dcp_buf_finish(&z->names);
	return z->rc;
}
