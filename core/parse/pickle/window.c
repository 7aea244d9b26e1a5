/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The window. A read always starts at the opcode that needs it, so an opcode and what
 * the machine wants to see of its argument are contiguous. After a jump over a payload
 * the first read is small and grows again: a file of many tensors is hardly read at all.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/endian.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/origin/source.h"
#include "core/parse/pickle/ops.h"
#include "core/parse/pickle/window.h"

#define ARG_OF(name, code, arg) [code] = PICKLE_ARG_##arg,
const uint8_t dcp_pkl_arg[256] = { PICKLE_OPS(ARG_OF) };
#undef ARG_OF

static const char *name_of(uint8_t op)
{
#define NAME_OF(name, code, arg) [code] = #name,
	static const char *const names[256] = { PICKLE_OPS(NAME_OF) };
#undef NAME_OF

	return names[op];
}

/* Bytes of argument that every opcode of that shape has. */
static size_t fixed_size(uint8_t op)
{
	static const uint8_t sizes[] = {
		[PICKLE_ARG_1] = 1,       [PICKLE_ARG_2] = 2,     [PICKLE_ARG_4] = 4,
		[PICKLE_ARG_8] = 8,       [PICKLE_ARG_LEN1] = 1,  [PICKLE_ARG_LEN4] = 4,
		[PICKLE_ARG_LEN8] = 8,    [PICKLE_ARG_GET1] = 1,  [PICKLE_ARG_GET4] = 4,
		[PICKLE_ARG_SLEN4] = 4,   [PICKLE_ARG_FRAME] = 8, [PICKLE_ARG_PROTO] = 1,
		[PICKLE_ARG_REFUSED] = 0,
	};

	return sizes[dcp_pkl_arg[op]];
}

int dcp_pkl_win_init(struct dcp_pkl_win *w, const struct dcp_source *src, size_t window,
		     struct dcp_err *err)
{
	*w = (struct dcp_pkl_win){ .src = src, .err = err };
	w->ahead_max = window ? DCP_MAX(window, 16) : DCP_PKL_WINDOW;
	w->ahead_min = DCP_MIN(w->ahead_max, DCP_PKL_WINDOW_MIN);
	w->ahead = w->ahead_max;
	if (src->size < w->ahead_max)
		w->ahead_max = w->ahead_min = w->ahead = DCP_MAX(src->size, 16);
	w->cap = w->ahead_max;
	w->buf = calloc(1, w->cap + DCP_PKL_PAD);
	w->end = w->safe = w->buf;
	return w->buf ? 0 : -ENOMEM;
}

void dcp_pkl_win_finish(struct dcp_pkl_win *w)
{
	free(w->buf);
	*w = (struct dcp_pkl_win){ 0 };
}

/* Fill the window with @n bytes from @off on, or to the end of the source. */
static int load(struct dcp_pkl_win *w, uint64_t off, size_t n)
{
	int r;

	n = (size_t)DCP_MIN((uint64_t)n, w->src->size - off);
	if (n > w->cap) {
		uint8_t *buf = calloc(1, n + DCP_PKL_PAD);

		if (!buf)
			return dcp_fail_at(w->err, -ENOMEM, off,
					   "no memory for %zu bytes of it", n);
		free(w->buf);
		w->buf = buf;
		w->cap = n;
	}
	w->base = off;
	w->end = w->safe = w->buf;
	r = dcp_source_read(w->src, off, w->buf, n);
	if (r < 0)
		return dcp_fail_at(w->err, r, off, "reading %zu bytes at byte %" PRIu64 ": %s",
				   n, off, strerror(-r));
	memset(w->buf + n, 0, DCP_PKL_PAD);
	w->end = w->buf + n;
	w->safe = n > 8 ? w->end - 8 : w->buf;
	return 0;
}

const uint8_t *dcp_pkl_win_seek(struct dcp_pkl_win *w, uint64_t off)
{
	if (off >= w->base && off - w->base <= (uint64_t)(w->end - w->buf))
		return w->buf + (off - w->base);
	w->base = off;
	w->end = w->safe = w->buf;
	w->ahead = w->ahead_min;
	return w->buf;
}

/* Is the end of the window the end of the source? */
static bool at_end(const struct dcp_pkl_win *w)
{
	return dcp_pkl_off(w, w->end) >= w->src->size;
}

int dcp_pkl_win_op(struct dcp_pkl_win *w, const uint8_t **p)
{
	uint64_t off = dcp_pkl_off(w, *p);
	size_t left, fixed;
	int r;

	if (off >= w->src->size)
		return dcp_fail_at(w->err, -EBADMSG, off,
				   "pickle ends at byte %" PRIu64 " without STOP",
				   w->src->size);
	if (!at_end(w)) {
		r = load(w, off, w->ahead);
		if (r < 0)
			return r;
		w->ahead = DCP_MIN(w->ahead * 2, w->ahead_max);
		*p = w->buf;
	}
	fixed = fixed_size(**p);
	left = (size_t)(w->end - *p) - 1;
	if (left < fixed)
		return dcp_pkl_win_fail(w, *p, -EBADMSG, "needs %zu byte%s, has %zu", fixed,
					dcp_s(fixed), left);
	return 0;
}

int dcp_pkl_win_need(struct dcp_pkl_win *w, const uint8_t **p, size_t n)
{
	int r;

	if (n <= (size_t)(w->end - *p))
		return 0;
	r = load(w, dcp_pkl_off(w, *p), DCP_MAX(n + DCP_PKL_PAD, w->ahead_max));
	if (r < 0)
		return r;
	*p = w->buf;
	if (n > (size_t)(w->end - *p))
		return dcp_pkl_win_fail(w, *p, -EBADMSG, "needs %zu byte%s, has %zu", n,
					dcp_s(n), (size_t)(w->end - *p));
	return 0;
}

int dcp_pkl_win_length(struct dcp_pkl_win *w, const uint8_t *p, size_t *head, uint64_t *n)
{
	uint64_t left;

	*head = 1 + fixed_size(*p);
	if (*head == 2)
		*n = p[1];
	else if (*head == 5)
		*n = dcp_load_le32(p + 1);
	else
		*n = dcp_load_le64(p + 1);
	if (dcp_pkl_arg[*p] == PICKLE_ARG_SLEN4 && *n > INT32_MAX)
		return dcp_pkl_win_fail(w, p, -EBADMSG, "claims a negative length, %d",
					(int)(int32_t)*n);
	left = w->src->size - dcp_pkl_off(w, p) - *head;
	if (*n > left)
		return dcp_pkl_win_fail(w, p, -EBADMSG,
					"claims %" PRIu64 " byte%s, has %" PRIu64, *n,
					dcp_s(*n), left);
	if (*p == PICKLE_LONG4 && *n > DCP_PICKLE_MAX_INT)
		return dcp_pkl_win_fail(w, p, -E2BIG,
					"is an integer of %" PRIu64 " bytes, the limit is %d",
					*n, DCP_PICKLE_MAX_INT);
	return 0;
}

int dcp_pkl_win_line(struct dcp_pkl_win *w, const uint8_t **p, size_t skip, size_t *n)
{
	size_t done = skip, want = w->ahead_max;
	const uint8_t *nl;
	int r;

	for (;;) {
		size_t have = (size_t)(w->end - *p);

		nl = have > done ? memchr(*p + done, '\n', have - done) : NULL;
		if (nl && (size_t)(nl - *p) - skip <= DCP_PICKLE_MAX_LINE) {
			*n = (size_t)(nl - *p) - skip;
			return 0;
		}
		if (nl || have > DCP_PICKLE_MAX_LINE + skip)
			return dcp_pkl_win_fail(w, *p, -E2BIG,
						"has a line of more than %d bytes",
						DCP_PICKLE_MAX_LINE);
		if (at_end(w))
			return dcp_pkl_win_fail(w, *p, -EBADMSG,
						"has a line that does not end, %zu "
						"bytes are left",
						have - DCP_MIN(have, skip));
		done = DCP_MAX(done, have);
		while (want <= have)
			want *= 2;
		r = load(w, dcp_pkl_off(w, *p), want);
		if (r < 0)
			return r;
		*p = w->buf;
	}
}

int dcp_pkl_win_fail(const struct dcp_pkl_win *w, const uint8_t *p, int code, const char *fmt,
		     ...)
{
	const char *name = name_of(*p);
	uint64_t off = dcp_pkl_off(w, p);
	char what[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	if (!name)
		return dcp_fail_at(w->err, code, off, "opcode 0x%02x at byte %" PRIu64 " %s",
				   *p, off, what);
	return dcp_fail_at(w->err, code, off, "%s at byte %" PRIu64 " %s", name, off, what);
}

int dcp_pkl_win_refuse(const struct dcp_pkl_win *w, const uint8_t *p)
{
	if (dcp_pkl_arg[*p] == PICKLE_ARG_UNKNOWN)
		return dcp_pkl_win_fail(w, p, -ENOTSUP, "is unknown");
	if (*p == PICKLE_NEXT_BUFFER || *p == PICKLE_READONLY_BUFFER)
		return dcp_pkl_win_fail(w, p, -ENOTSUP,
					"is refused: its bytes are not in the pickle");
	return dcp_pkl_win_fail(w, p, -ENOTSUP,
				"is refused: it needs the writer's extension registry");
}

int dcp_pkl_win_proto(const struct dcp_pkl_win *w, const uint8_t *p)
{
	if (p[1] <= PICKLE_HIGHEST_PROTOCOL)
		return 0;
	return dcp_pkl_win_fail(w, p, -ENOTSUP, "has protocol %u, expected at most %d", p[1],
				PICKLE_HIGHEST_PROTOCOL);
}

int dcp_pkl_win_frame(const struct dcp_pkl_win *w, const uint8_t *p)
{
	uint64_t left = w->src->size - dcp_pkl_off(w, p) - 9, n = dcp_load_le64(p + 1);

	if (n <= left)
		return 0;
	return dcp_pkl_win_fail(w, p, -EBADMSG, "claims %" PRIu64 " byte%s, has %" PRIu64, n,
				dcp_s(n), left);
}
