/* SPDX-License-Identifier: Apache-2.0 */
#include "core/origin/archive/archive.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/origin/origin.h"

enum {
	SIG_LOCAL = 0x04034b50,
	SIG_ENTRY = 0x02014b50,
	SIG_EOCD = 0x06054b50,
	SIG_EOCD64 = 0x06064b50,
	SIG_LOCATOR = 0x07064b50,
	LOCAL_SIZE = 30,
	ENTRY_SIZE = 46,
	EOCD_SIZE = 22,
	EOCD64_SIZE = 56,
	LOCATOR_SIZE = 20,
	COMMENT_MAX = 0xffff,
	/* One read of this size gets the directory of a one-tensor archive and everything after
	 * it. */
	TAIL_FIRST = 4096,
	TAIL_MAX = LOCATOR_SIZE + EOCD_SIZE + COMMENT_MAX,
	ENTRY_MAX = ENTRY_SIZE + 3 * 0xffff,
	WINDOW = 1 << 18, /* more than ENTRY_MAX, so that any entry fits */
	FLAG_ENCRYPTED = 1,
	FLAG_DESCRIPTOR = 8,
};

/* A buffered range of the source, so that neighbouring records cost one read together. */
struct window {
	uint8_t *p;
	size_t cap;
	uint64_t off; /* of p[0] in the source */
	size_t n;
	uint8_t *heap; /* p, once the small buffer of the caller was too short */
};

/* The content of the end records. */
struct directory {
	uint64_t off, size, count;
	uint64_t end; /* start of the first end record; the directory must end before it */
};

/* Make room for @n bytes. If the window has to grow, its content is lost. */
static int make_room(struct window *w, size_t n)
{
	uint8_t *heap;

	if (n <= w->cap)
		return 0;
	heap = malloc(n);
	if (!heap)
		return -ENOMEM;
	free(w->heap);
	w->heap = heap;
	w->p = heap;
	w->cap = n;
	w->n = 0;
	return 0;
}

/* Read at least @want bytes at @off into the window, and as many more as fit and lie below
 * @limit. */
static int fill_window(const struct dcp_source *src, struct window *w, uint64_t off,
		       size_t want, uint64_t limit)
{
	size_t n = (size_t)DCP_MIN(limit - off, (uint64_t)WINDOW);
	int r;

	if (off >= w->off && dcp_range_ok(off - w->off, want, w->n))
		return 0;
	r = make_room(w, n);
	if (r < 0)
		return r;
	r = dcp_source_read(src, off, w->p, n);
	if (r < 0)
		return r;
	w->off = off;
	w->n = n;
	return 0;
}

/* The last record whose comment ends exactly where the source ends, or NULL. */
static const uint8_t *find_eocd(const struct window *tail)
{
	if (tail->n < EOCD_SIZE)
		return NULL;
	for (size_t at = tail->n - EOCD_SIZE + 1; at-- > 0;) {
		const uint8_t *p = tail->p + at;

		if (dcp_load_le32(p) == SIG_EOCD &&
		    dcp_load_le16(p + 20) == tail->n - at - EOCD_SIZE)
			return p;
	}
	return NULL;
}

static int read_tail(const struct dcp_source *src, struct window *tail, uint64_t *eocd_off,
		     const uint8_t **eocd, struct dcp_err *err)
{
	static const size_t spans[] = { TAIL_FIRST, TAIL_MAX };

	for (size_t i = 0; i < DCP_LEN(spans); i++) {
		size_t n = (size_t)DCP_MIN(src->size, (uint64_t)spans[i]);
		int r;

		r = make_room(tail, n);
		if (r < 0)
			return dcp_fail(err, r, "out of memory");
		tail->off = src->size - n;
		r = dcp_source_read(src, tail->off, tail->p, n);
		if (r < 0)
			return dcp_fail_at(err, r, tail->off,
					   "cannot read the end of the archive");
		tail->n = n;
		*eocd = find_eocd(tail);
		/* The locator before the record is needed, too. */
		if (*eocd &&
		    (*eocd - tail->p >= LOCATOR_SIZE || n == src->size || n == TAIL_MAX)) {
			*eocd_off = tail->off + (uint64_t)(*eocd - tail->p);
			return 0;
		}
		if (n == src->size)
			break;
	}
	return dcp_fail(err, -EBADMSG,
			"no end-of-central-directory record in the last %zu bytes: cut short, "
			"or not a zip archive",
			tail->n);
}

/* Replace the plain end record by the zip64 end record that @locator points to. */
static int read_eocd64(const struct dcp_source *src, struct window *tail,
		       const uint8_t *locator, uint64_t locator_off, struct directory *d,
		       struct dcp_err *err)
{
	uint64_t off = dcp_load_le64(locator + 8);
	uint8_t rec[EOCD64_SIZE];
	int r = 0;

	if (dcp_load_le32(locator + 4) != 0 || dcp_load_le32(locator + 16) > 1)
		return dcp_fail_at(err, -ENOTSUP, locator_off, "multi-disk archive");
	if (!dcp_range_ok(off, EOCD64_SIZE, locator_off))
		return dcp_fail_at(
			err, -EBADMSG, locator_off,
			"zip64 end record said to be at %" PRIu64 ", after its locator", off);
	if (off >= tail->off)
		memcpy(rec, tail->p + (off - tail->off), sizeof(rec));
	else
		r = dcp_source_read(src, off, rec, sizeof(rec));
	if (r < 0)
		return dcp_fail_at(err, r, off, "cannot read the zip64 end record");
	if (dcp_load_le32(rec) != SIG_EOCD64)
		return dcp_fail_at(err, -EBADMSG, off,
				   "no zip64 end record where its locator points");
	if (dcp_load_le32(rec + 16) != 0 || dcp_load_le32(rec + 20) != 0 ||
	    dcp_load_le64(rec + 24) != dcp_load_le64(rec + 32))
		return dcp_fail_at(err, -ENOTSUP, off, "multi-disk archive");
	d->count = dcp_load_le64(rec + 32);
	d->size = dcp_load_le64(rec + 40);
	d->off = dcp_load_le64(rec + 48);
	d->end = off;
	return 0;
}

/* Every field of a plain end record must equal that of the zip64 end record, or be saturated. */
static bool eocd_agrees(const uint8_t *eocd, const struct directory *d)
{
	uint64_t count = dcp_load_le16(eocd + 10);
	uint64_t size = dcp_load_le32(eocd + 12), off = dcp_load_le32(eocd + 16);

	return (count == 0xffff || count == d->count) &&
	       (size == UINT32_MAX || size == d->size) && (off == UINT32_MAX || off == d->off);
}

static int find_directory(const struct dcp_source *src, struct window *tail,
			  struct directory *d, struct dcp_err *err)
{
	const uint8_t *eocd = NULL;
	uint64_t at = 0, disks;
	bool saturated, room;
	int r = read_tail(src, tail, &at, &eocd, err);

	if (r < 0)
		return r;
	d->count = dcp_load_le16(eocd + 10);
	d->size = dcp_load_le32(eocd + 12);
	d->off = dcp_load_le32(eocd + 16);
	d->end = at;
	saturated = d->count == 0xffff || d->size == UINT32_MAX || d->off == UINT32_MAX;
	/* The last bytes of the directory may look like a locator: is there room for a locator
	 * after it? */
	room = saturated || (at >= LOCATOR_SIZE && d->off + d->size <= at - LOCATOR_SIZE);
	if (room && eocd - tail->p >= LOCATOR_SIZE &&
	    dcp_load_le32(eocd - LOCATOR_SIZE) == SIG_LOCATOR) {
		r = read_eocd64(src, tail, eocd - LOCATOR_SIZE, at - LOCATOR_SIZE, d, err);
		if (r < 0)
			return r;
		if (!eocd_agrees(eocd, d))
			return dcp_fail_at(
				err, -EBADMSG, at,
				"the two end records describe different directories");
	}
	disks = dcp_load_le16(eocd + 4) | dcp_load_le16(eocd + 6);
	if ((disks != 0 && disks != 0xffff) ||
	    dcp_load_le16(eocd + 8) != dcp_load_le16(eocd + 10))
		return dcp_fail_at(err, -ENOTSUP, at, "multi-disk archive");
	if (!dcp_range_ok(d->off, d->size, d->end))
		return dcp_fail_at(err, -EBADMSG, at,
				   "central directory at %" PRIu64 " of %" PRIu64
				   " bytes does not end before its end record at %" PRIu64,
				   d->off, d->size, d->end);
	if (d->count > d->size / ENTRY_SIZE)
		return dcp_fail_at(err, -EBADMSG, at,
				   "central directory of %" PRIu64 " bytes claims %" PRIu64
				   " members",
				   d->size, d->count);
	if (d->count > DCP_ZIP_MAX_MEMBERS)
		return dcp_fail_at(err, -E2BIG, at, "%" PRIu64 " members, more than %u",
				   d->count, DCP_ZIP_MAX_MEMBERS);
	return 0;
}

/* One directory entry; its zip64 fields have replaced the saturated numbers. */
struct entry {
	uint64_t csize, usize, header_off;
	uint32_t disk, crc32;
	uint16_t flags, method;
	size_t name_n;
};

/* A zip64 extra field has only the saturated fields, in this order: usize, csize, header offset,
 * disk. */
static bool take_zip64(struct entry *e, struct dcp_cur field)
{
	if (e->usize == UINT32_MAX)
		e->usize = dcp_cur_le64(&field);
	if (e->csize == UINT32_MAX)
		e->csize = dcp_cur_le64(&field);
	if (e->header_off == UINT32_MAX)
		e->header_off = dcp_cur_le64(&field);
	if (e->disk == 0xffff)
		e->disk = dcp_cur_le32(&field);
	return dcp_cur_ok(&field);
}

static bool take_extra(struct entry *e, struct dcp_cur extra)
{
	bool need = e->usize == UINT32_MAX || e->csize == UINT32_MAX ||
		    e->header_off == UINT32_MAX || e->disk == 0xffff;

	/* A rest shorter than a field header is padding, which some writers leave. */
	while (need && dcp_cur_left(&extra) >= 4) {
		uint16_t id = dcp_cur_le16(&extra), n = dcp_cur_le16(&extra);
		const uint8_t *p = dcp_cur_take(&extra, n);

		if (!p)
			return false;
		if (id == 1)
			return take_zip64(e, dcp_cur(p, n));
	}
	return !need;
}

static int check_entry(const struct entry *e, const struct directory *d, uint64_t at,
		       struct dcp_zip_member *m, struct dcp_err *err)
{
	uint64_t data;

	if (e->disk != 0)
		return dcp_fail_at(err, -ENOTSUP, at, "multi-disk archive");
	m->stored = e->method == 0 && !(e->flags & FLAG_ENCRYPTED);
	m->deflated = e->method == 8 && !(e->flags & FLAG_ENCRYPTED);
	if (m->stored && e->csize != e->usize)
		return dcp_fail_at(err, -EBADMSG, at,
				   "member \"%s\" is stored, but %" PRIu64
				   " bytes become %" PRIu64,
				   m->name, e->csize, e->usize);
	if (dcp_ckd_add(&data, e->header_off, LOCAL_SIZE + e->name_n) ||
	    !dcp_range_ok(data, e->csize, d->off))
		return dcp_fail_at(err, -EBADMSG, at,
				   "member \"%s\" of %" PRIu64 " bytes with header at %" PRIu64
				   " does not end before the central directory at %" PRIu64,
				   m->name, e->csize, e->header_off, d->off);
	m->header_off = e->header_off;
	m->size = e->usize;
	m->packed = e->csize;
	m->crc32 = e->crc32;
	return 0;
}

/* Parse the entry at @at; @used receives its size. The window holds at least the fixed part of the
 * entry. */
static int parse_entry(const struct dcp_source *src, struct window *w, uint64_t at,
		       const struct directory *d, struct dcp_arena *arena,
		       struct dcp_zip_member *m, size_t *used, struct dcp_err *err)
{
	const uint8_t *p = w->p + (at - w->off);
	uint16_t extra_n = dcp_load_le16(p + 30), comment_n = dcp_load_le16(p + 32);
	struct entry e = {
		.flags = dcp_load_le16(p + 8),
		.method = dcp_load_le16(p + 10),
		.crc32 = dcp_load_le32(p + 16),
		.csize = dcp_load_le32(p + 20),
		.usize = dcp_load_le32(p + 24),
		.name_n = dcp_load_le16(p + 28),
		.disk = dcp_load_le16(p + 34),
		.header_off = dcp_load_le32(p + 42),
	};
	char *name;
	int r;

	*used = ENTRY_SIZE + e.name_n + extra_n + comment_n;
	if (*used > d->off + d->size - at)
		return dcp_fail_at(err, -EBADMSG, at,
				   "directory entry of %zu bytes, but %" PRIu64 " are left",
				   *used, d->off + d->size - at);
	r = fill_window(src, w, at, *used, d->off + d->size);
	if (r < 0)
		return dcp_fail_at(err, r, at, "cannot read the central directory");
	p = w->p + (at - w->off) + ENTRY_SIZE;
	if (e.name_n == 0 || memchr(p, 0, e.name_n))
		return dcp_fail_at(err, -EBADMSG, at, "directory entry %s",
				   e.name_n ? "with a NUL in its name" : "without a name");
	name = dcp_arena_strndup(arena, (const char *)p, e.name_n);
	if (!name)
		return dcp_fail_at(err, -ENOMEM, at, "out of memory for the central directory");
	m->name = name;
	if (!take_extra(&e, dcp_cur(p + e.name_n, extra_n)))
		return dcp_fail_at(
			err, -EBADMSG, at,
			"member \"%s\" has a zip64 size or offset, but no field for it", name);
	return check_entry(&e, d, at, m, err);
}

static int walk_directory(const struct dcp_source *src, struct window *w,
			  const struct directory *d, struct dcp_arena *arena,
			  struct dcp_zip_member *m, struct dcp_err *err)
{
	uint64_t at = d->off, end = d->off + d->size;

	for (uint64_t i = 0; i < d->count; i++) {
		size_t used = 0;
		int r = 0;

		if (end - at >= ENTRY_SIZE)
			r = fill_window(src, w, at, ENTRY_SIZE, end);
		if (r < 0)
			return dcp_fail_at(err, r, at, "cannot read the central directory");
		if (end - at < ENTRY_SIZE || dcp_load_le32(w->p + (at - w->off)) != SIG_ENTRY)
			return dcp_fail_at(err, -EBADMSG, at,
					   "central directory at %" PRIu64 " claims %" PRIu64
					   " members, found %" PRIu64,
					   d->off, d->count, i);
		r = parse_entry(src, w, at, d, arena, &m[i], &used, err);
		if (r < 0)
			return r;
		at += used;
	}
	if (at != end)
		return dcp_fail_at(err, -EBADMSG, at,
				   "%" PRIu64
				   " bytes left in the central directory after its %" PRIu64
				   " members",
				   end - at, d->count);
	return 0;
}

static int list_directory(const struct dcp_source *src, struct window *w,
			  struct dcp_arena *arena, struct dcp_zip_member **out, size_t *n,
			  struct dcp_err *err)
{
	struct directory d = { 0 };
	struct dcp_zip_member *m;
	int r = find_directory(src, w, &d, err);

	if (r < 0)
		return r;
	m = dcp_arena_calloc(arena, (size_t)d.count, sizeof(*m));
	if (!m)
		return dcp_fail(err, -ENOMEM, "out of memory for %" PRIu64 " members", d.count);
	r = walk_directory(src, w, &d, arena, m, err);
	if (r < 0)
		return r;
	*out = m;
	*n = (size_t)d.count;
	return 0;
}

int dcp_zip_list(const struct dcp_source *src, struct dcp_arena *arena,
		 struct dcp_zip_member **out, size_t *n, struct dcp_err *err)
{
	uint8_t first[TAIL_FIRST];
	struct window w = { .p = first, .cap = sizeof(first) };
	int r = list_directory(src, &w, arena, out, n, err);

	free(w.heap);
	return r;
}

/* Apart from the place of the data, the local header must agree with the directory. */
static int check_local(const uint8_t *p, const struct dcp_zip_member *m, struct dcp_err *err)
{
	uint16_t flags = dcp_load_le16(p + 6);
	uint32_t csize = dcp_load_le32(p + 18), usize = dcp_load_le32(p + 22);

	if (m->stored && (dcp_load_le16(p + 8) != 0 || (flags & FLAG_ENCRYPTED)))
		return dcp_fail_at(err, -EBADMSG, m->header_off,
				   "member \"%s\" is plain in the directory, but compressed or "
				   "encrypted in its header",
				   m->name);
	if (m->deflated && (dcp_load_le16(p + 8) != 8 || (flags & FLAG_ENCRYPTED)))
		return dcp_fail_at(err, -EBADMSG, m->header_off,
				   "member \"%s\" is deflated in the directory, but not in its "
				   "header",
				   m->name);
	/* With a data descriptor the sizes come after the data and are zero here. */
	if ((flags & FLAG_DESCRIPTOR) || (usize == UINT32_MAX && csize == UINT32_MAX))
		return 0;
	if (usize != m->size && usize != UINT32_MAX)
		return dcp_fail_at(err, -EBADMSG, m->header_off,
				   "member \"%s\" has %" PRIu64
				   " bytes in the directory, %" PRIu32 " in its header",
				   m->name, m->size, usize);
	return 0;
}

int dcp_zip_data(const struct dcp_source *src, const struct dcp_zip_member *m, uint64_t *off,
		 struct dcp_err *err)
{
	size_t name_n = strlen(m->name), n = LOCAL_SIZE + name_n;
	uint8_t small[512];
	dcp_auto_free uint8_t *big = n > sizeof(small) ? malloc(n) : NULL;
	uint8_t *p = big ? big : small;
	uint64_t data;
	int r;

	if (n > sizeof(small) && !big)
		return dcp_fail(err, -ENOMEM, "out of memory");
	r = dcp_source_read(src, m->header_off, p, n);
	if (r < 0)
		return dcp_fail_at(err, r, m->header_off, "cannot read the header of \"%s\"",
				   m->name);
	if (dcp_load_le32(p) != SIG_LOCAL)
		return dcp_fail_at(err, -EBADMSG, m->header_off,
				   "no local header where the directory places \"%s\"",
				   m->name);
	if (dcp_load_le16(p + 26) != name_n || memcmp(p + LOCAL_SIZE, m->name, name_n) != 0)
		return dcp_fail_at(
			err, -EBADMSG, m->header_off,
			"the header where the directory places \"%s\" names something else",
			m->name);
	r = check_local(p, m, err);
	if (r < 0)
		return r;
	if (dcp_ckd_add(&data, m->header_off, n + dcp_load_le16(p + 28)) ||
	    !dcp_range_ok(data, m->packed, src->size))
		return dcp_fail_at(err, -EBADMSG, m->header_off,
				   "\"%s\" of %" PRIu64
				   " bytes does not end inside the archive of %" PRIu64,
				   m->name, m->packed, src->size);
	*off = data;
	return 0;
}
