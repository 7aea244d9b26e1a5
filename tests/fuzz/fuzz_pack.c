/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever the bytes: refused with a reason, or pieces that pack to bytes meaning the same.
 * The first byte is the number of dimensions.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/model/geometry/tiling.h"
#include "core/model/tensor.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool ok)
{
	if (!ok)
		abort();
}

static void same(const uint64_t *a, const uint64_t *b, uint32_t n)
{
	must(!a == !b);
	must(!a || n == 0 || memcmp(a, b, n * sizeof(*a)) == 0);
}

static void check(const struct dcp_tensor *t, struct dcp_arena *arena)
{
	struct dcp_buf again = DCP_BUF_INIT;
	struct dcp_piece *pieces;
	size_t n;

	dcp_pack_pieces(&again, t);
	must(dcp_unpack_part(again.p, again.n, t->ndim, NULL, arena, &pieces, &n, NULL) == 0);
	must(n == t->npieces);
	for (size_t i = 0; i < n; i++) {
		must(pieces[i].off == t->pieces[i].off &&
		     pieces[i].run_n == t->pieces[i].run_n);
		must(pieces[i].file == t->pieces[i].file);
		same(pieces[i].lo, t->pieces[i].lo, t->ndim);
		same(pieces[i].len, t->pieces[i].len, t->ndim);
		same(pieces[i].stride, t->pieces[i].stride, t->ndim);
	}
	dcp_buf_finish(&again);
}

/* Of what is near the first piece: that one, and no more than all. */
static void check_part(const uint8_t *data, size_t n, const struct dcp_tensor *all,
		       struct dcp_arena *arena)
{
	struct dcp_tensor t = *all;
	struct dcp_piece *pieces;
	struct dcp_tiling tiling;
	struct dcp_box box;
	int code;

	if (all->npieces == 0)
		return;
	for (uint32_t d = 0; d < t.ndim; d++) {
		box.lo[d] = all->pieces[0].lo[d];
		box.len[d] = all->pieces[0].len[d];
	}
	code = dcp_unpack_part(data, n, t.ndim, &box, arena, &pieces, &t.npieces, NULL);
	must(code == 0 || code == -ENOMEM);
	must(code < 0 || t.npieces <= all->npieces);
	for (uint32_t d = 0; d < t.ndim; d++) /* a part must lie in the shape */
		if (box.len[d] > t.shape[d] || box.lo[d] > t.shape[d] - box.len[d])
			return;
	t.pieces = pieces;
	if (code == 0)
		must(dcp_tiling_init_part(&tiling, &t, &box, arena, NULL) <= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_tensor t = { .shape = shape };
	struct dcp_err err = { 0 };
	struct dcp_piece *pieces;
	struct dcp_tiling tiling;
	struct dcp_arena arena;
	int code;

	if (n == 0)
		return 0;
	dcp_arena_init(&arena, 64u << 20);
	t.ndim = data[0] % (DCP_MAX_NDIM + 1);
	code = dcp_unpack_part(data + 1, n - 1, t.ndim, NULL, &arena, &pieces, &t.npieces,
			       &err);
	must(code == 0 || code == -ENOMEM || (code == -EBADMSG && *err.msg));
	if (code == 0) {
		t.pieces = pieces;
		check(&t, &arena);
		/* blobs are only half of the proof: the tiling must survive them too */
		for (uint32_t d = 0; d < t.ndim; d++)
			shape[d] = t.npieces ? pieces[0].lo[d] + pieces[0].len[d] : 1;
		code = dcp_tiling_init(&tiling, &t, &arena, &err);
		must(code <= 0);
		check_part(data + 1, n - 1, &t, &arena);
	}
	dcp_arena_finish(&arena);
	return 0;
}
