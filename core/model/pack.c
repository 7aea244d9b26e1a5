/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/pack.h"

#include <errno.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"

enum { PACK_VERSION = 1, HAS_STRIDES = 1 << 5, HAS_RUN = 1 << 6 };

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

void dcp_pack_pieces(struct dcp_buf *out, const struct dcp_tensor *t)
{
	dcp_buf_add(out, &(uint8_t){ PACK_VERSION }, 1);
	dcp_buf_varint(out, t->npieces);
	for (size_t i = 0; i < t->npieces; i++) {
		const struct dcp_piece *p = &t->pieces[i];
		bool run = !whole_box(p, t->ndim);
		uint8_t flags = (uint8_t)(p->enc | (p->filter & 3) << 2 | p->swap << 4 |
					  (p->filter & 4) << 5 | (p->stride ? HAS_STRIDES : 0) |
					  (run ? HAS_RUN : 0));

		dcp_buf_add(out, &flags, 1);
		dcp_buf_varint(out, p->file);
		dcp_buf_varint(out, p->off);
		dcp_buf_varint(out, p->nbytes);
		put_all(out, p->lo, t->ndim);
		put_all(out, p->len, t->ndim);
		if (p->stride)
			put_all(out, p->stride, t->ndim);
		if (run) {
			dcp_buf_varint(out, p->run_lo);
			dcp_buf_varint(out, p->run_n);
		}
	}
}

static const uint64_t *get_all(struct dcp_cur *c, uint32_t n, struct dcp_arena *arena)
{
	uint64_t *v = dcp_arena_alloc(arena, n * sizeof(*v));

	if (!v)
		return NULL;
	for (uint32_t i = 0; i < n; i++)
		v[i] = dcp_cur_varint(c);
	return v;
}

/* Fields of one piece; false when memory is out. A bad blob shows in the cursor. */
static bool get_piece(struct dcp_cur *c, uint32_t ndim, struct dcp_arena *arena,
		      struct dcp_piece *p)
{
	uint8_t flags = dcp_cur_u8(c);
	uint64_t file = dcp_cur_varint(c);

	p->enc = flags & 3;
	p->filter = (uint8_t)((flags >> 2 & 3) | (flags >> 5 & 4));
	p->swap = flags >> 4 & 1;
	p->file = (uint32_t)file;
	if (p->enc > DCP_ENC_TORCH_FLAT || p->filter > DCP_FILTER_CONJ || file > UINT32_MAX)
		c->bad = true;
	p->off = dcp_cur_varint(c);
	p->nbytes = dcp_cur_varint(c);
	p->lo = get_all(c, ndim, arena);
	p->len = get_all(c, ndim, arena);
	p->stride = flags & HAS_STRIDES ? get_all(c, ndim, arena) : NULL;
	if (!p->lo || !p->len || (flags & HAS_STRIDES && !p->stride))
		return false;
	p->run_lo = 0;
	if (flags & HAS_RUN) {
		p->run_lo = dcp_cur_varint(c);
		p->run_n = dcp_cur_varint(c);
	} else if (!dcp_shape_volume(p->len, ndim, &p->run_n)) {
		c->bad = true;
	}
	return true;
}

int dcp_unpack_pieces(const void *blob, size_t n, uint32_t ndim, struct dcp_arena *arena,
		      struct dcp_piece **pieces, size_t *npieces, struct dcp_err *err)
{
	struct dcp_cur c = dcp_cur(blob, n);
	uint8_t version = dcp_cur_u8(&c);
	uint64_t count = dcp_cur_varint(&c);
	struct dcp_piece *p;

	/* a piece takes at least 4 bytes, so a short blob cannot ask for much memory */
	if (!dcp_cur_ok(&c) || version != PACK_VERSION || ndim > DCP_MAX_NDIM ||
	    count > dcp_cur_left(&c) / 4)
		return dcp_fail(err, -EBADMSG, DCP_ERR_NO_OFFSET,
				"index row: not a piece list");
	p = dcp_arena_calloc(arena, count, sizeof(*p));
	if (!p)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++)
		if (!get_piece(&c, ndim, arena, &p[i]))
			return -ENOMEM;
	if (!dcp_cur_ok(&c) || dcp_cur_left(&c))
		return dcp_fail(err, -EBADMSG, DCP_ERR_NO_OFFSET,
				"index row: piece list of %zu bytes is cut or too long", n);
	*pieces = p;
	*npieces = count;
	return 0;
}
