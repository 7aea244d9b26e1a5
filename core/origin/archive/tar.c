/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An archive is blocks of 512 bytes: a header, the data padded to a whole block, the next
 * header, and at the end a block of zeros. Fields of a header, numbers in octal text:
 *
 *	  0  name      100    124  size   12    148  checksum  8    156  type  1
 *	257  "ustar\0" "00", or "ustar  \0" of GNU tar      345  prefix  155 (not GNU)
 *
 * Types L (GNU) and x (pax) hold values that do not fit into the header that follows.
 */
#include "core/origin/archive/archive.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/origin/origin.h"

enum {
	BLOCK = 512,
	NAME = 0,
	NAME_N = 100,
	SIZE = 124,
	SIZE_N = 12,
	SUM = 148,
	SUM_N = 8,
	TYPE = 156,
	MAGIC = 257,
	PREFIX = 345,
	PREFIX_N = 155,
};

struct reader {
	const struct dcp_source *src;
	struct dcp_arena *arena;
	struct dcp_err *err;
	uint64_t off; /* of the current header */
	uint8_t h[BLOCK];
	uint64_t size; /* as the current header says */
	/* given by an extra header before the header that they apply to */
	char *name;
	uint64_t next_size;
	bool has_size;
	size_t names;
	struct dcp_buf list; /* struct dcp_tar_member */
	size_t n;
};

static int fail_damaged(const struct reader *r, const char *what)
{
	return dcp_fail_at(r->err, -EBADMSG, r->off,
			   "tar header at %" PRIu64 ": %s (damaged, or not a tar archive)",
			   r->off, what);
}

static int fail_no_memory(const struct reader *r)
{
	return dcp_fail(r->err, -ENOMEM, "out of memory listing an archive");
}

/* ---- numbers ---- */

static bool read_octal(const uint8_t *p, size_t n, uint64_t *out)
{
	uint64_t v = 0;
	size_t i = 0, digits = 0;

	while (i < n && p[i] == ' ')
		i++;
	for (; i < n && p[i] >= '0' && p[i] <= '7'; i++, digits++) {
		if (v >> 61)
			return false;
		v = v << 3 | (uint64_t)(p[i] - '0');
	}
	for (; i < n; i++)
		if (p[i] && p[i] != ' ')
			return false;
	*out = v;
	return digits > 0;
}

/* The top bit means that the rest is one big-endian number; the bit after it is the sign of the
 * number. */
static bool read_base256(const uint8_t *p, size_t n, uint64_t *out)
{
	uint64_t v = p[0] & 0x3f;

	if (p[0] & 0x40)
		return false;
	for (size_t i = 1; i < n; i++) {
		if (v >> 56)
			return false;
		v = v << 8 | p[i];
	}
	*out = v;
	return true;
}

static bool read_number(const uint8_t *p, size_t n, uint64_t *out)
{
	return p[0] & 0x80 ? read_base256(p, n, out) : read_octal(p, n, out);
}

/* Old writers computed the checksum from signed bytes. */
static bool sum_is_right(const uint8_t *h)
{
	uint64_t want;
	int64_t plain = 0, with_sign = 0;

	if (!read_octal(h + SUM, SUM_N, &want))
		return false;
	for (size_t i = 0; i < BLOCK; i++) {
		uint8_t c = i >= SUM && i < SUM + SUM_N ? ' ' : h[i];

		plain += c;
		with_sign += (int8_t)c;
	}
	return want == (uint64_t)plain || (with_sign >= 0 && want == (uint64_t)with_sign);
}

/* ---- names ---- */

static const char *without_dots(const char *name)
{
	while (name[0] == '.' && name[1] == '/')
		for (name += 2; *name == '/'; name++)
			;
	return name;
}

/* Copy @n bytes, or fewer if a NUL ends them. */
static char *keep_name(struct reader *r, const char *prefix, size_t np, const char *p, size_t n)
{
	char *to;

	np = strnlen(prefix, np);
	n = strnlen(p, n);
	r->names += np + n + 2;
	to = r->names > DCP_TAR_MAX_NAMES ? NULL : dcp_arena_alloc(r->arena, np + n + 2);
	if (!to)
		return NULL;
	memcpy(to, prefix, np);
	if (np)
		to[np++] = '/';
	memcpy(to + np, p, n);
	to[np + n] = '\0';
	return to;
}

static char *name_of(struct reader *r)
{
	bool posix = memcmp(r->h + MAGIC, "ustar", 6) == 0;
	char *name = r->name;

	r->name = NULL;
	if (name)
		return name;
	return keep_name(r, (const char *)r->h + PREFIX, posix ? PREFIX_N : 0,
			 (const char *)r->h + NAME, NAME_N);
}

/* ---- what stands before a header ---- */

/* Read the data of the current header and append a NUL. */
static int read_extra(struct reader *r, struct dcp_buf *out)
{
	void *to;
	int rc;

	if (r->size > DCP_TAR_MAX_HEADER)
		return dcp_fail_at(r->err, -E2BIG, r->off,
				   "tar header at %" PRIu64 ": a name or pax header of %" PRIu64
				   " bytes, at most %u are read",
				   r->off, r->size, DCP_TAR_MAX_HEADER);
	to = dcp_buf_grow(out, (size_t)r->size);
	dcp_buf_add(out, "", 1);
	if (!to || dcp_buf_error(out))
		return fail_no_memory(r);
	out->n--;
	rc = dcp_source_read(r->src, r->off + BLOCK, out->p, out->n);
	if (rc < 0)
		return dcp_fail_at(r->err, rc, r->off, "a tar header cannot be read");
	return 0;
}

static int take_long_name(struct reader *r)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	int rc = read_extra(r, &b);

	if (rc < 0)
		return rc;
	r->name = keep_name(r, "", 0, b.p, b.n);
	return r->name ? 0 : fail_no_memory(r);
}

static bool read_decimal(const char *p, size_t n, uint64_t *out)
{
	const char *end = p + n;

	return dcp_take_number(&p, end, DCP_ANY_DIGITS, out) && p == end;
}

static bool is_word(const char *p, size_t n, const char *word)
{
	return n == strlen(word) && memcmp(p, word, n) == 0;
}

static int take_field(struct reader *r, const char *name, size_t nn, const char *p, size_t n)
{
	if (is_word(name, nn, "path")) {
		if (memchr(p, '\0', n))
			return fail_damaged(r, "a name with a NUL in it");
		r->name = keep_name(r, "", 0, p, n);
		return r->name ? 0 : fail_no_memory(r);
	}
	if (is_word(name, nn, "size")) {
		r->has_size = read_decimal(p, n, &r->next_size);
		return r->has_size ? 0 : fail_damaged(r, "a pax size that is not a number");
	}
	if (nn > 11 && memcmp(name, "GNU.sparse.", 11) == 0)
		return dcp_fail_at(r->err, -ENOTSUP, r->off, "a sparse file in a tar archive");
	return 0;
}

/* Take the records "<length> <name>=<value>\n"; a length counts its whole record. */
static int take_pax(struct reader *r)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	int rc = read_extra(r, &b);

	for (size_t at = 0; rc == 0 && at < b.n;) {
		const char *p = b.p + at, *eq, *end;
		size_t digits = strspn(p, "0123456789");
		uint64_t n;

		if (!read_decimal(p, digits, &n) || n > b.n - at || n < digits + 3 ||
		    p[digits] != ' ' || p[n - 1] != '\n')
			return fail_damaged(r, "an invalid pax header");
		end = p + n - 1;
		p += digits + 1;
		eq = memchr(p, '=', (size_t)(end - p));
		if (!eq)
			return fail_damaged(r, "an invalid pax header");
		rc = take_field(r, p, (size_t)(eq - p), eq + 1, (size_t)(end - eq - 1));
		at += n;
	}
	return rc;
}

/* ---- members ---- */

static int add_file(struct reader *r)
{
	struct dcp_tar_member m = { .off = r->off + BLOCK, .size = r->size };
	const char *name = name_of(r);

	if (!name)
		return fail_no_memory(r);
	if (*name == '/' || dcp_climbs(name))
		return dcp_fail_at(
			r->err, -EXDEV, r->off,
			"a member is called %.200s: an archive that leads outside its "
			"directory is not opened",
			name);
	m.name = without_dots(name);
	if (!*m.name)
		return fail_damaged(r, "a file without a name");
	if (m.name[strlen(m.name) - 1] == '/')
		return 0; /* a directory of the oldest writers */
	if (r->n == DCP_TAR_MAX_MEMBERS)
		return dcp_fail_at(r->err, -E2BIG, r->off, "more than %u files in an archive",
				   DCP_TAR_MAX_MEMBERS);
	r->n++;
	dcp_buf_add(&r->list, &m, sizeof(m));
	return dcp_buf_error(&r->list) ? fail_no_memory(r) : 0;
}

/* Does data follow a header of this type, and is the type allowed? */
static int look_at_type(struct reader *r, bool *has_data)
{
	char type = (char)r->h[TYPE];

	*has_data = true;
	switch (type) {
	case '\0':
	case '0':
	case '7':
		return add_file(r);
	case 'L':
		return take_long_name(r);
	case 'x':
		return take_pax(r);
	case 'g': /* for all later headers: times, owners, comments */
	case 'K': /* the target of a link */
		return 0;
	case '1':
	case '2':
	case '3':
	case '4':
	case '5':
	case '6':
	case 'V':
		*has_data = false;
		r->name = NULL;
		return 0;
	default:
		return dcp_fail_at(r->err, -ENOTSUP, r->off,
				   "tar header at %" PRIu64 ": %s (type 0x%02x)", r->off,
				   type == 'S'   ? "a sparse file"
				   : type == 'M' ? "a part of a multi-volume archive"
						 : "an unknown kind of member",
				   r->h[TYPE]);
	}
}

/* The size is that of the header, or of the pax header before it. */
static int take_size(struct reader *r)
{
	bool extra = memchr("xgLK", r->h[TYPE], 4) != NULL;

	if (!read_number(r->h + SIZE, SIZE_N, &r->size))
		return fail_damaged(r, "a size that is not a number");
	if (extra || !r->has_size)
		return 0;
	r->size = r->next_size;
	r->has_size = false;
	return 0;
}

static int take_member(struct reader *r)
{
	uint64_t behind;
	bool has_data;
	int rc;

	if (!sum_is_right(r->h))
		return fail_damaged(r, "its checksum is wrong");
	rc = take_size(r);
	if (rc < 0)
		return rc;
	if (memchr("123456V", r->h[TYPE], 7))
		r->size = 0;
	if (!dcp_range_ok(r->off + BLOCK, r->size, r->src->size))
		return dcp_fail_at(r->err, -EBADMSG, r->off,
				   "member %.100s of %" PRIu64 " bytes at %" PRIu64
				   " ends past the end of the archive, which has %" PRIu64
				   ": was it cut?",
				   r->name ? r->name : (const char *)r->h, r->size,
				   r->off + BLOCK, r->src->size);
	rc = look_at_type(r, &has_data);
	if (rc < 0)
		return rc;
	if (dcp_ckd_align(&behind, has_data ? r->size : 0, BLOCK) ||
	    dcp_ckd_add(&r->off, r->off + BLOCK, behind))
		return fail_damaged(r, "a size beyond 64 bits");
	return 0;
}

static bool is_zero(const uint8_t *h)
{
	for (size_t i = 0; i < BLOCK; i++)
		if (h[i])
			return false;
	return true;
}

static int read_all(struct reader *r)
{
	int rc = 0;

	while (rc == 0) {
		if (!dcp_range_ok(r->off, BLOCK, r->src->size))
			return dcp_fail_at(r->err, -EBADMSG, r->src->size,
					   "no end mark in the archive of %" PRIu64
					   " bytes: was it cut?",
					   r->src->size);
		rc = dcp_source_read(r->src, r->off, r->h, BLOCK);
		if (rc < 0)
			return dcp_fail_at(r->err, rc, r->off, "a tar header cannot be read");
		if (is_zero(r->h))
			return 0;
		rc = take_member(r);
	}
	return rc;
}

static int hand_over(struct reader *r, struct dcp_tar_member **out, size_t *n)
{
	struct dcp_tar_member *m = dcp_arena_calloc(r->arena, r->n, sizeof(*m));

	if (!m)
		return fail_no_memory(r);
	if (r->n)
		memcpy(m, r->list.p, r->n * sizeof(*m));
	DCP_SORT(m, r->n, dcp_by_text);
	for (size_t i = 1; i < r->n; i++)
		if (strcmp(m[i - 1].name, m[i].name) == 0)
			return dcp_fail_at(
				r->err, -EBADMSG, m[i].off,
				"two members are called %.200s: it is not known which "
				"one is meant",
				m[i].name);
	*out = m;
	*n = r->n;
	return 0;
}

int dcp_tar_list(const struct dcp_source *src, struct dcp_arena *arena,
		 struct dcp_tar_member **out, size_t *n, struct dcp_err *err)
{
	struct reader r = { .src = src, .arena = arena, .err = err };
	int rc = read_all(&r);

	if (rc == 0)
		rc = hand_over(&r, out, n);
	dcp_buf_finish(&r.list);
	return rc;
}
