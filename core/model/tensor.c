/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/tensor.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"

const char *dcp_filter_name(uint8_t filter)
{
	static const char *const names[] = {
		[DCP_FILTER_NONE] = "",          [DCP_FILTER_ZSTD] = "zstd",
		[DCP_FILTER_LATIN1] = "latin1",  [DCP_FILTER_NEG] = "negate",
		[DCP_FILTER_CONJ] = "conjugate", [DCP_FILTER_DEFLATE] = "deflate",
		[DCP_FILTER_ZERO] = "zeros",     [DCP_FILTER_SUM] = "sum",
	};

	return filter < DCP_LEN(names) ? names[filter] : "";
}

bool dcp_filter_encodes(uint8_t filter)
{
	return filter == DCP_FILTER_ZSTD || filter == DCP_FILTER_DEFLATE ||
	       filter == DCP_FILTER_LATIN1 || filter == DCP_FILTER_SUM;
}

void dcp_stretch_tensor(const struct dcp_stretch *s, uint64_t *dims, struct dcp_piece *p,
			struct dcp_tensor *out)
{
	dims[0] = 0;
	dims[1] = s->n;
	*p = (struct dcp_piece){ .lo = &dims[0],
				 .len = &dims[1],
				 .run_n = s->n,
				 .off = s->off,
				 .nbytes = s->nbytes,
				 .file = s->file,
				 .filter = s->filter };
	*out = (struct dcp_tensor){ .dtype = DCP_DTYPE_U8,
				    .dtype_name = "U8",
				    .itemsize = 1,
				    .ndim = 1,
				    .shape = &dims[1],
				    .pieces = p,
				    .npieces = s->n ? 1 : 0 };
}

bool dcp_shape_volume(const uint64_t *shape, uint32_t ndim, uint64_t *out)
{
	uint64_t volume = 1;

	/* A zero makes the volume zero, even after dimensions whose product does not fit. */
	for (uint32_t i = 0; i < ndim; i++) {
		if (shape[i] == 0) {
			*out = 0;
			return true;
		}
	}
	for (uint32_t i = 0; i < ndim; i++)
		if (dcp_ckd_mul(&volume, volume, shape[i]))
			return false;
	*out = volume;
	return true;
}

int dcp_dims_compare(const uint64_t *a, const uint64_t *b, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++)
		if (a[k] != b[k])
			return a[k] < b[k] ? -1 : 1;
	return 0;
}

int dcp_piece_compare(const struct dcp_piece *a, const struct dcp_piece *b, uint32_t ndim)
{
	return dcp_dims_compare(a->lo, b->lo, ndim) ?: dcp_dims_compare(a->len, b->len, ndim) ?:
	       DCP_CMP(a->run_lo, b->run_lo) ?: DCP_CMP(a->run_n, b->run_n);
}

const char *dcp_dims_text(char *buf, size_t size, const uint64_t *dims, uint32_t ndim)
{
	size_t n = (size_t)snprintf(buf, size, "[");
	uint32_t d = 0;

	for (; d < ndim && n + 28 <= size; d++)
		n += (size_t)snprintf(buf + n, size - n, "%s%" PRIu64, d ? ", " : "", dims[d]);
	snprintf(buf + n, size - n, d < ndim ? ", ...]" : "]");
	return buf;
}

const char *dcp_place_text(char *buf, size_t size, const uint64_t *shape, uint32_t ndim,
			   uint64_t i)
{
	uint64_t at[DCP_MAX_NDIM];

	for (uint32_t d = ndim; d-- > 0;) {
		at[d] = shape[d] ? i % shape[d] : 0;
		i = shape[d] ? i / shape[d] : 0;
	}
	return dcp_dims_text(buf, size, at, ndim);
}

const char *dcp_box_text(char *buf, size_t size, const uint64_t *lo, const uint64_t *len,
			 uint32_t ndim)
{
	size_t n = (size_t)snprintf(buf, size, "[");

	for (uint32_t d = 0; d < ndim && n + 48 < size; d++)
		n += (size_t)snprintf(buf + n, size - n, "%s%" PRIu64 ":%" PRIu64,
				      d ? ", " : "", lo[d], lo[d] + len[d]);
	snprintf(buf + n, size - n, "]");
	return buf;
}

bool dcp_shape_nbytes(const uint64_t *shape, uint32_t ndim, uint32_t itemsize, uint64_t *out)
{
	uint64_t padded = itemsize, volume;

	for (uint32_t i = 0; i < ndim; i++)
		if (dcp_ckd_mul(&padded, padded, DCP_MAX(shape[i], 1)))
			return false;
	return padded <= INT64_MAX && dcp_shape_volume(shape, ndim, &volume) &&
	       !dcp_ckd_mul(out, volume, itemsize);
}

bool dcp_row_major(const uint64_t *shape, const uint64_t *stride, uint32_t ndim)
{
	uint64_t want = 1;

	for (uint32_t i = ndim; i-- > 0; want *= shape[i]) {
		if (shape[i] == 0)
			return true;
		if (shape[i] != 1 && stride[i] != want)
			return false;
	}
	return true;
}

bool dcp_stride_span(const uint64_t *shape, const uint64_t *stride, uint32_t ndim,
		     uint64_t *out)
{
	uint64_t last = 0, step;

	for (uint32_t i = 0; i < ndim; i++)
		if (dcp_ckd_mul(&step, shape[i] - 1, stride[i]) ||
		    dcp_ckd_add(&last, last, step))
			return false;
	return !dcp_ckd_add(out, last, 1);
}

static uint64_t end_of(uint64_t lo, uint64_t len)
{
	return lo + len < lo ? UINT64_MAX : lo + len;
}

bool dcp_box_meets(const struct dcp_box *box, uint32_t ndim, const uint64_t *lo,
		   const uint64_t *len)
{
	for (uint32_t d = 0; d < ndim; d++)
		if (lo[d] >= end_of(box->lo[d], box->len[d]) ||
		    box->lo[d] >= end_of(lo[d], len[d]) || len[d] == 0 || box->len[d] == 0)
			return false;
	return true;
}

const uint64_t dcp_origin[DCP_MAX_NDIM];

bool dcp_tensor_one_piece(struct dcp_tensor *t, struct dcp_piece *p)
{
	if (!dcp_shape_volume(t->shape, t->ndim, &p->run_n))
		return false;
	p->lo = dcp_origin;
	p->len = t->shape;
	t->pieces = p;
	t->npieces = p->run_n > 0;
	return true;
}

bool dcp_tensor_nbytes(const struct dcp_tensor *t, uint64_t *out)
{
	uint64_t n;

	if (!dcp_shape_volume(t->shape, t->ndim, &n) || dcp_ckd_mul(&n, n, t->itemsize))
		return false;
	*out = n;
	return true;
}

bool dcp_tensor_shown_nbytes(const struct dcp_tensor *t, uint64_t *out)
{
	struct dcp_tensor shown = *t;

	shown.itemsize = dcp_tensor_shown_size(t);
	return dcp_tensor_nbytes(&shown, out) && *out <= INT64_MAX;
}

/* ---- keys ---- */

void dcp_path_join(struct dcp_buf *out, const char *const *path, size_t n)
{
	for (size_t i = 0; i < n; i++)
		dcp_buf_printf(out, "%s%s", i ? "." : "", path[i]);
	dcp_buf_add(out, "", 0);
}

/* Set *key, if it is NULL, to the joined path. */
static int find_key(const char **key, const char *const *path, size_t npath,
		    struct dcp_buf *text)
{
	if (*key)
		return 0;
	dcp_path_join(text, path, npath);
	*key = text->p;
	return dcp_buf_error(text);
}

/* ---- sinks ---- */

#define EMIT(s, what, ...)                                                                     \
	for (; s; s = s->next) {                                                               \
		int rc = s->check ? s->check(s->ctx) : 0;                                      \
                                                                                               \
		if (rc < 0 || s->what)                                                         \
			return rc < 0 ? rc : s->what(s->ctx, __VA_ARGS__);                     \
	}                                                                                      \
	return 0

int dcp_emit_file(const struct dcp_sink *s, const char *name, uint32_t *number)
{
	*number = 0;
	EMIT(s, file, name, number);
}

int dcp_emit_unpacked(const struct dcp_sink *s, const char *name, uint32_t *number)
{
	*number = 0;
	EMIT(s, unpacked, name, number);
}

int dcp_emit_tensor(const struct dcp_sink *s, const struct dcp_tensor *emitted)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_tensor t = *emitted;

	if (find_key(&t.key, t.path, t.npath, &text) < 0)
		return -ENOMEM;
	if (t.error && !t.partly)
		t.npieces = t.ncopies = 0;
	EMIT(s, tensor, &t);
}

int dcp_emit_object(const struct dcp_sink *s, const struct dcp_object *emitted)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_object o = *emitted;

	if (find_key(&o.key, o.path, o.npath, &text) < 0)
		return -ENOMEM;
	EMIT(s, object, &o);
}

int dcp_emit_item(const struct dcp_sink *s, const struct dcp_object *o)
{
	EMIT(s, item, o);
}

int dcp_emit_meta(const struct dcp_sink *s, const char *name, const char *value)
{
	EMIT(s, meta, name, value);
}

int dcp_emit_sidecar(const struct dcp_sink *s, const char *name)
{
	EMIT(s, sidecar, name);
}

int dcp_emit_said(const struct dcp_sink *s, const char *file, const char *name,
		  const char *value)
{
	EMIT(s, said, file, name, value);
}

enum { PACK_PLAIN = 1, PACK_BLOCKS = 2, HAS_STRIDES = 1 << 5, HAS_RUN = 1 << 6, IS_PART = 3 };

static bool is_empty(const uint64_t *len, uint32_t ndim)
{
	for (uint32_t d = 0; d < ndim; d++)
		if (len[d] == 0)
			return true;
	return false;
}

static bool whole_box(const struct dcp_piece *p, uint32_t ndim)
{
	uint64_t volume;

	return p->run_lo == 0 && dcp_shape_volume(p->len, ndim, &volume) && p->run_n == volume;
}

static void put_all(struct dcp_buf *out, const uint64_t *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		dcp_buf_varint(out, v[i]);
}

static uint64_t end_of_packed(uint64_t lo, uint64_t len)
{
	return lo + len < lo ? UINT64_MAX : lo + len;
}

/* The smallest box that holds @n pieces. */
static void bound_pieces(const struct dcp_piece *p, size_t n, uint32_t ndim,
			 struct dcp_box *out)
{
	bool any = false;

	memset(out, 0, sizeof(*out));
	for (size_t i = 0; i < n; i++) {
		if (is_empty(p[i].len, ndim))
			continue;
		for (uint32_t d = 0; d < ndim; d++) {
			uint64_t lo = p[i].lo[d], end = end_of_packed(lo, p[i].len[d]);

			if (any) {
				end = DCP_MAX(end, end_of_packed(out->lo[d], out->len[d]));
				lo = DCP_MIN(lo, out->lo[d]);
			}
			out->lo[d] = lo;
			out->len[d] = end - lo;
		}
		any = true;
	}
}

static void put_piece(struct dcp_buf *out, const struct dcp_piece *p, uint32_t ndim)
{
	bool run = !whole_box(p, ndim);
	uint8_t enc = p->item_n ? IS_PART : p->enc;
	uint8_t flags =
		(uint8_t)(enc | (p->filter & 3) << 2 | p->swap << 4 | (p->filter & 4) << 5 |
			  (p->stride ? HAS_STRIDES : 0) | (run ? HAS_RUN : 0));

	dcp_buf_add(out, &flags, 1);
	if (p->item_n) {
		dcp_buf_add(out, &p->enc, 1);
		dcp_buf_varint(out, p->item_lo);
		dcp_buf_varint(out, p->item_n);
	}
	dcp_buf_varint(out, p->file);
	dcp_buf_varint(out, p->off);
	dcp_buf_varint(out, p->nbytes);
	put_all(out, p->lo, ndim);
	put_all(out, p->len, ndim);
	if (p->stride)
		put_all(out, p->stride, ndim);
	if (run) {
		dcp_buf_varint(out, p->run_lo);
		dcp_buf_varint(out, p->run_n);
	}
	if (p->filter != DCP_FILTER_SUM)
		return;
	dcp_buf_varint(out, (uint64_t)p->nmore << 1 | p->mean);
	for (uint32_t i = 0; i < p->nmore; i++) {
		dcp_buf_varint(out, p->more[i].file);
		dcp_buf_varint(out, p->more[i].off);
	}
}

static void put_block(struct dcp_buf *out, const struct dcp_piece *p, size_t n, uint32_t ndim)
{
	dcp_auto_buf struct dcp_buf pieces = DCP_BUF_INIT;
	struct dcp_box box;

	for (size_t i = 0; i < n; i++)
		put_piece(&pieces, &p[i], ndim);
	bound_pieces(p, n, ndim, &box);
	put_all(out, box.lo, ndim);
	put_all(out, box.len, ndim);
	dcp_buf_varint(out, pieces.n);
	dcp_buf_add(out, pieces.p, pieces.n);
	out->failed |= pieces.failed;
}

void dcp_pack_pieces(struct dcp_buf *out, const struct dcp_tensor *t)
{
	bool blocks = t->npieces > DCP_PACK_BLOCK;

	dcp_buf_add(out, &(uint8_t){ blocks ? PACK_BLOCKS : PACK_PLAIN }, 1);
	dcp_buf_varint(out, t->npieces);
	for (size_t i = 0; blocks && i < t->npieces; i += DCP_PACK_BLOCK)
		put_block(out, &t->pieces[i], DCP_MIN(t->npieces - i, DCP_PACK_BLOCK), t->ndim);
	for (size_t i = 0; !blocks && i < t->npieces; i++)
		put_piece(out, &t->pieces[i], t->ndim);
}

/* ---- and back ---- */

struct unpack {
	struct dcp_cur c;
	uint32_t ndim;
	const struct dcp_box *only; /* NULL: all */
	struct dcp_arena *arena;
	struct dcp_piece *pieces;
	size_t n;
};

static void get_all(struct dcp_cur *c, uint64_t *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		v[i] = dcp_cur_varint(c);
}

static const uint64_t *copy_dims(struct unpack *u, const uint64_t *v)
{
	uint64_t *copy = dcp_arena_alloc(u->arena, u->ndim * sizeof(*copy));

	if (copy && u->ndim)
		memcpy(copy, v, u->ndim * sizeof(*copy));
	return copy;
}

/* Does the box of a piece lie inside that of its block? */
static bool is_inside(const struct dcp_box *block, const struct dcp_box *box, uint32_t ndim)
{
	bool in = true;

	for (uint32_t d = 0; d < ndim; d++)
		in &= box->lo[d] >= block->lo[d] &&
		      end_of_packed(box->lo[d], box->len[d]) <=
			      end_of_packed(block->lo[d], block->len[d]);
	return in;
}

/* Read the head of a part of an item. It must have strides, and the item must hold the part. */
static void get_item(struct unpack *u, struct dcp_piece *p, bool strided)
{
	p->enc = dcp_cur_u8(&u->c);
	p->item_lo = dcp_cur_varint(&u->c);
	p->item_n = dcp_cur_varint(&u->c);
	if (!p->item_n || p->item_lo >= p->item_n || !strided)
		u->c.bad = true;
}

/* The other terms of a sum. False: out of memory. */
static bool get_more(struct unpack *u, struct dcp_piece *p)
{
	uint64_t n = dcp_cur_varint(&u->c);
	struct dcp_term *more;

	p->mean = n & 1;
	n >>= 1;
	if (n > dcp_cur_left(&u->c) / 2)
		u->c.bad = true;
	if (u->c.bad)
		return true;
	p->nmore = (uint32_t)n;
	p->more = more = dcp_arena_calloc(u->arena, n + 1, sizeof(*more));
	for (uint64_t i = 0; more && i < n; i++) {
		uint64_t file = dcp_cur_varint(&u->c);

		u->c.bad |= file > UINT32_MAX;
		more[i] = (struct dcp_term){ .file = (uint32_t)file,
					     .off = dcp_cur_varint(&u->c) };
	}
	return more;
}

/* The next piece, kept if it is wanted; @block: what must hold it. False when memory is out; a bad
 * blob shows in the cursor. */
static bool get_piece(struct unpack *u, const struct dcp_box *block)
{
	struct dcp_piece *p = &u->pieces[u->n];
	uint8_t flags = dcp_cur_u8(&u->c);
	uint64_t file, stride[DCP_MAX_NDIM];
	struct dcp_box box;

	p->enc = flags & 3;
	p->item_lo = p->item_n = 0;
	p->mean = false;
	p->nmore = 0;
	p->more = NULL;
	if (p->enc == IS_PART)
		get_item(u, p, flags & HAS_STRIDES);
	file = dcp_cur_varint(&u->c);
	p->filter = (uint8_t)((flags >> 2 & 3) | (flags >> 5 & 4));
	p->swap = flags >> 4 & 1;
	p->file = (uint32_t)file;
	if (p->enc > DCP_ENC_TORCH_FLAT || p->filter > DCP_FILTER_SUM || file > UINT32_MAX)
		u->c.bad = true;
	p->off = dcp_cur_varint(&u->c);
	p->nbytes = dcp_cur_varint(&u->c);
	get_all(&u->c, box.lo, u->ndim);
	get_all(&u->c, box.len, u->ndim);
	if (flags & HAS_STRIDES)
		get_all(&u->c, stride, u->ndim);
	p->run_lo = 0;
	if (flags & HAS_RUN) {
		p->run_lo = dcp_cur_varint(&u->c);
		p->run_n = dcp_cur_varint(&u->c);
	} else if (!dcp_shape_volume(box.len, u->ndim, &p->run_n)) {
		u->c.bad = true;
	}
	if (p->filter == DCP_FILTER_SUM && !get_more(u, p))
		return false;
	if (block && !is_empty(box.len, u->ndim) && !is_inside(block, &box, u->ndim))
		u->c.bad = true;
	if (u->c.bad || (u->only && !dcp_box_meets(u->only, u->ndim, box.lo, box.len)))
		return true;
	p->lo = copy_dims(u, box.lo);
	p->len = copy_dims(u, box.len);
	p->stride = flags & HAS_STRIDES ? copy_dims(u, stride) : NULL;
	u->n++;
	return p->lo && p->len && (p->stride || !(flags & HAS_STRIDES));
}

/* The head of a block whose pieces, @bytes of them, are next. */
static void get_head(struct unpack *u, struct dcp_box *box, uint64_t *bytes)
{
	get_all(&u->c, box->lo, u->ndim);
	get_all(&u->c, box->len, u->ndim);
	*bytes = dcp_cur_varint(&u->c);
}

static bool is_wanted(const struct unpack *u, const struct dcp_box *block)
{
	return !u->only || dcp_box_meets(u->only, u->ndim, block->lo, block->len);
}

/* Blocks from the first that is wanted to the last. */
struct wanted {
	const uint8_t *p; /* the head of the first */
	uint64_t at, end; /* pieces, by number */
	uint64_t n;       /* pieces in the wanted blocks */
};

/* Go over the heads of the blocks, to the end. */
static struct wanted find_wanted(struct unpack *u, uint64_t count)
{
	struct wanted w = { .n = 0 };
	struct dcp_box box;
	uint64_t bytes;

	for (uint64_t i = 0; i < count && !u->c.bad; i += DCP_PACK_BLOCK) {
		const uint8_t *head = u->c.p;

		get_head(u, &box, &bytes);
		dcp_cur_take(&u->c, bytes);
		if (!is_wanted(u, &box))
			continue;
		if (w.n == 0) {
			w.p = head;
			w.at = i;
		}
		w.end = DCP_MIN(count, i + DCP_PACK_BLOCK);
		w.n += w.end - i;
	}
	return w;
}

static bool get_block(struct unpack *u, uint64_t n)
{
	const uint8_t *from;
	struct dcp_box box;
	uint64_t bytes;

	get_head(u, &box, &bytes);
	from = u->c.p;
	if (!is_wanted(u, &box)) {
		dcp_cur_take(&u->c, bytes);
		return true;
	}
	for (uint64_t i = 0; i < n && !u->c.bad; i++)
		if (!get_piece(u, &box))
			return false;
	u->c.bad |= (uint64_t)(u->c.p - from) != bytes;
	return true;
}

static int get_blocks(struct unpack *u, uint64_t count)
{
	struct wanted w = find_wanted(u, count);
	const uint8_t *end = u->c.p;

	u->pieces = dcp_arena_calloc(u->arena, w.n + 1, sizeof(*u->pieces));
	if (!u->pieces)
		return -ENOMEM;
	if (u->c.bad)
		return 0;
	u->c.p = w.p;
	for (; w.at < w.end && !u->c.bad; w.at += DCP_PACK_BLOCK)
		if (!get_block(u, DCP_MIN(count - w.at, DCP_PACK_BLOCK)))
			return -ENOMEM;
	u->c.p = end;
	return 0;
}

static int get_plain(struct unpack *u, uint64_t count)
{
	u->pieces = dcp_arena_calloc(u->arena, count + 1, sizeof(*u->pieces));
	if (!u->pieces)
		return -ENOMEM;
	for (uint64_t i = 0; i < count && !u->c.bad; i++)
		if (!get_piece(u, NULL))
			return -ENOMEM;
	return 0;
}

static int unpack_pieces(struct unpack *u, struct dcp_err *err)
{
	size_t n = dcp_cur_left(&u->c);
	uint8_t version = dcp_cur_u8(&u->c);
	uint64_t count = dcp_cur_varint(&u->c);
	int rc;

	/* a piece takes at least 4 bytes, so a short blob cannot ask for much memory */
	if (!dcp_cur_ok(&u->c) || (version != PACK_PLAIN && version != PACK_BLOCKS) ||
	    u->ndim > DCP_MAX_NDIM || count > dcp_cur_left(&u->c) / 4)
		return dcp_fail(err, -EBADMSG, "index row: not a piece list");
	rc = version == PACK_BLOCKS ? get_blocks(u, count) : get_plain(u, count);
	if (rc < 0)
		return rc;
	if (!dcp_cur_ok(&u->c) || dcp_cur_left(&u->c))
		return dcp_fail(err, -EBADMSG,
				"index row: piece list of %zu bytes is cut or too long", n);
	return 0;
}

int dcp_unpack_part(const void *blob, size_t n, uint32_t ndim, const struct dcp_box *only,
		    struct dcp_arena *arena, struct dcp_piece **pieces, size_t *npieces,
		    struct dcp_err *err)
{
	struct unpack u = { .c = dcp_cur(blob, n), .ndim = ndim, .only = only, .arena = arena };
	int rc = unpack_pieces(&u, err);

	if (rc < 0)
		return rc;
	*pieces = u.pieces;
	*npieces = u.n;
	return 0;
}
