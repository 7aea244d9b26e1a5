/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>

#include "core/base/ckd.h"
#include "core/base/text.h"
#include "core/model/geometry/tiling.h"
#include "core/store/index/write/write_int.h"

/* "4,194,304" */
static const char *grouped(uint64_t v, char out[32])
{
	char plain[24];
	int n = snprintf(plain, sizeof(plain), "%llu", (unsigned long long)v), k = 0;

	for (int i = 0; i < n; i++) {
		if (i && (n - i) % 3 == 0)
			out[k++] = ',';
		out[k++] = plain[i];
	}
	out[k] = '\0';
	return out;
}

/* Where a fault lies, for its message. */
struct place {
	const struct dcp_tensor *t;
	const struct dcp_piece *p;
	const char *file;
	struct dcp_err *err;
};

static int fail_cut(const struct place *at, uint64_t size)
{
	uint64_t end = at->p->off + at->p->nbytes;
	char has[32], wants[32], lo[32], hi[32];

	return dcp_fail_at(
		at->err, -ENODATA, at->p->off,
		"%.200s is %s bytes; metadata expects at least %s (bytes %s-%s, piece "
		"%zu of %zu): was the writer interrupted?",
		at->file, grouped(size, has), grouped(end, wants), grouped(at->p->off, lo),
		grouped(end - !!at->p->nbytes, hi), (size_t)(at->p - at->t->pieces) + 1,
		at->t->npieces);
}

static int fail_short(const struct place *at, uint64_t need)
{
	char has[32], wants[32];

	return dcp_fail_at(
		at->err, -EBADMSG, at->p->off,
		"%.200s: piece %zu of %zu has %s bytes at %llu; its elements take %s", at->file,
		(size_t)(at->p - at->t->pieces) + 1, at->t->npieces,
		grouped(at->p->nbytes, has), (unsigned long long)at->p->off,
		grouped(need, wants));
}

/* Bytes from the first element of @p to after its last, as stored; false on overflow. */
static bool span(const struct dcp_tensor *t, const struct dcp_piece *p, uint64_t *out)
{
	uint64_t n = 1, step;

	if (!p->stride)
		return !dcp_ckd_mul(out, p->run_n, t->itemsize);
	for (uint32_t d = 0; d < t->ndim; d++)
		if (dcp_ckd_mul(&step, p->len[d] - 1, p->stride[d]) || dcp_ckd_add(&n, n, step))
			return false;
	return !dcp_ckd_mul(out, n, t->itemsize);
}

/* Compressed bytes say nothing about how many come out; that is seen when they are read. */
static int check_length(const struct place *at)
{
	const struct dcp_piece *p = at->p;
	uint64_t volume, need;

	if (p->stride && (!dcp_shape_volume(p->len, at->t->ndim, &volume) || p->run_lo ||
			  p->run_n != volume))
		return dcp_fail_at(
			at->err, -EBADMSG, p->off,
			"%.200s: piece %zu of %zu holds a part of its box with strides",
			at->file, (size_t)(p - at->t->pieces) + 1, at->t->npieces);
	if (p->item_n && (!span(at->t, p, &need) || !p->stride ||
			  !dcp_range_ok(p->item_lo, need / at->t->itemsize, p->item_n)))
		return dcp_fail_at(at->err, -EBADMSG, p->off,
				   "%.200s: piece %zu of %zu is not a part of its item",
				   at->file, (size_t)(p - at->t->pieces) + 1, at->t->npieces);
	if (p->filter == DCP_FILTER_SUM) {
		if (dcp_ckd_mul(&need, p->item_n ? p->item_n : p->run_n, at->t->itemsize) ||
		    p->nbytes != need)
			return fail_short(at, need);
	}
	if (dcp_filter_encodes(p->filter) || p->filter == DCP_FILTER_ZERO)
		return 0;
	if (p->enc != DCP_ENC_PLAIN) {
		if (dcp_ckd_mul(&need, p->item_n ? p->item_n : p->run_n, at->t->itemsize))
			need = UINT64_MAX;
	} else if (!span(at->t, p, &need)) {
		need = UINT64_MAX;
	}
	return p->nbytes < need ? fail_short(at, need) : 0;
}

/* Where the piece itself lies, not the other terms of a sum. */
static int check_place(const struct dcp_tensor *t, const struct dcp_piece *p,
		       const struct dcp_index_seen *files, size_t n, struct dcp_err *err)
{
	struct place at = { .t = t, .p = p, .err = err };
	uint64_t size;
	int code;

	if (p->file >= n)
		return dcp_fail(err, -EBADMSG, "piece %zu of %zu names file %u of %zu",
				(size_t)(p - t->pieces) + 1, t->npieces, p->file, n);
	at.file = files[p->file].id.name;
	if (!dcp_range_ok(p->off, p->nbytes, INT64_MAX))
		return dcp_fail(err, -EBADMSG, "%.200s: piece %zu of %zu lies at %llu+%llu",
				at.file, (size_t)(p - t->pieces) + 1, t->npieces,
				(unsigned long long)p->off, (unsigned long long)p->nbytes);
	code = check_length(&at);
	if (code < 0)
		return code;
	if (files[p->file].error)
		return dcp_fail_at(err, -ENODATA, p->off, "%s", files[p->file].error);
	size = files[p->file].packed ? files[p->file].id.unpacked : files[p->file].id.size;
	return dcp_range_ok(p->off, p->nbytes, size) ? 0 : fail_cut(&at, size);
}

/* The other terms of a sum, as if each were the piece. */
static int check_terms(const struct dcp_tensor *t, const struct dcp_piece *p,
		       const struct dcp_index_seen *files, size_t n, struct dcp_err *err)
{
	struct dcp_piece term = *p;
	struct dcp_tensor alone = *t;
	int code = 0;

	alone.pieces = &term;
	for (uint32_t i = 0; code == 0 && i < p->nmore; i++) {
		term.off = p->more[i].off;
		term.file = p->more[i].file;
		code = check_place(&alone, &term, files, n, err);
	}
	return code;
}

static int check_piece(const struct dcp_tensor *t, const struct dcp_piece *p,
		       const struct dcp_index_seen *files, size_t n, struct dcp_err *err)
{
	int code = check_place(t, p, files, n, err);

	return code == 0 && p->nmore ? check_terms(t, p, files, n, err) : code;
}

bool dcp_index_check_copy(const struct dcp_tensor *t, const struct dcp_piece *p,
			  const struct dcp_index_seen *files, size_t n)
{
	return check_piece(t, p, files, n, NULL) == 0;
}

/* The first that is wrong by itself, or else the first whose bytes are not there. */
static int check_pieces(const struct dcp_tensor *t, const struct dcp_index_seen *files,
			size_t n, struct dcp_err *err)
{
	struct dcp_err why = { 0 };
	int first = 0;

	for (size_t i = 0; i < t->npieces; i++) {
		int code =
			t->pieces[i].run_n ? check_piece(t, &t->pieces[i], files, n, &why) : 0;

		if (code < 0 && (first == 0 || code != -ENODATA)) {
			first = code;
			*err = why;
		}
		if (code < 0 && code != -ENODATA)
			break;
	}
	return first;
}

static int check_size(const struct dcp_tensor *t, uint64_t *nbytes, struct dcp_err *err)
{
	uint32_t size = dcp_dtype_info(t->dtype)->size;

	*nbytes = 0;
	if (t->dtype != DCP_DTYPE_OTHER && t->itemsize != size)
		return dcp_fail(err, -EBADMSG, "elements of %u byte%s; %s has %u", t->itemsize,
				dcp_s(t->itemsize), dcp_dtype_info(t->dtype)->name, size);
	if (t->itemsize == 0)
		return dcp_fail(err, -EBADMSG, "the size of an element is not known");
	if (!dcp_tensor_nbytes(t, nbytes) || *nbytes > INT64_MAX) {
		*nbytes = 0;
		return dcp_fail(err, -E2BIG, "its shape has more bytes than fit in 63 bits");
	}
	return 0;
}

int dcp_index_check(const struct dcp_tensor *t, const struct dcp_index_seen *files, size_t n,
		    struct dcp_arena *scratch, uint64_t *nbytes, struct dcp_err *err)
{
	struct dcp_tiling tiling;
	int code = check_size(t, nbytes, err);

	/* Boxes and runs first: what follows multiplies their sides. */
	if (code == 0)
		code = dcp_tiling_init(&tiling, t, scratch, err);
	if (code == -ENOMEM)
		dcp_fail(err, code, "its %zu pieces need too much memory", t->npieces);
	return code < 0 ? code : check_pieces(t, files, n, err);
}
