/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pass one: from opcode to opcode without looking at values, to learn which memo entries
 * are ever fetched. What it refuses, the machine would refuse with the same words.
 */
#include <errno.h>

#include "core/base/endian.h"
#include "core/parse/pickle/pickle_int.h"

static int skip_payload(struct dcp_pkl_win *w, const uint8_t **p)
{
	uint64_t n;
	size_t head;
	int r = dcp_pkl_win_length(w, *p, &head, &n);

	if (r < 0)
		return r;
	*p = dcp_pkl_win_seek(w, dcp_pkl_off(w, *p) + head + n);
	return 0;
}

static int skip_lines(struct dcp_pkl_win *w, const uint8_t **p, int lines)
{
	size_t n, skip = 1;
	int r;

	for (; lines; lines--) {
		r = dcp_pkl_win_line(w, p, skip, &n);
		if (r < 0)
			return r;
		skip += n + 1;
	}
	*p += skip;
	return 0;
}

static int want(struct dcp_pkl_win *w, const uint8_t *p, struct dcp_pkl_memo *memo,
		struct dcp_pkl_mem *m, uint64_t idx, uint64_t start)
{
	int r = dcp_pkl_memo_want(memo, m, idx, dcp_pkl_off(w, p) - start);

	if (DCP_UNLIKELY(r < 0))
		return dcp_pkl_win_fail(w, p, r,
					"needs more memory for memo indices than the "
					"limit of %zu bytes",
					m->limit);
	return 0;
}

static int want_line(struct dcp_pkl_win *w, const uint8_t **p, struct dcp_pkl_memo *memo,
		     struct dcp_pkl_mem *m, uint64_t start)
{
	uint64_t idx;
	size_t n;
	int r = dcp_pkl_win_line(w, p, 1, &n);

	if (r < 0)
		return r;
	if (!dcp_pkl_index((const char *)*p + 1, n, &idx))
		return dcp_pkl_win_fail(w, *p, -EBADMSG, "has no memo index after it");
	r = want(w, *p, memo, m, idx, start);
	*p += 1 + n + 1;
	return r;
}

/* The less frequent shapes; 1 at STOP. */
static int step(struct dcp_pkl_win *w, const uint8_t **p, struct dcp_pkl_memo *memo,
		struct dcp_pkl_mem *m, uint64_t start)
{
	int r;

	switch (dcp_pkl_arg[**p]) {
	case PICKLE_ARG_LEN1:
	case PICKLE_ARG_LEN4:
	case PICKLE_ARG_LEN8:
	case PICKLE_ARG_SLEN4:
		return skip_payload(w, p);
	case PICKLE_ARG_GETLINE:
		return want_line(w, p, memo, m, start);
	case PICKLE_ARG_LINE:
		return skip_lines(w, p, 1);
	case PICKLE_ARG_LINE2:
		return skip_lines(w, p, 2);
	case PICKLE_ARG_FRAME:
		r = dcp_pkl_win_frame(w, *p);
		*p += 9;
		return r;
	case PICKLE_ARG_PROTO:
		r = dcp_pkl_win_proto(w, *p);
		*p += 2;
		return r;
	case PICKLE_ARG_STOP:
		return 1;
	default:
		return dcp_pkl_win_refuse(w, *p);
	}
}

int dcp_pkl_scan(struct dcp_pkl_win *w, struct dcp_pkl_mem *m, uint64_t off,
		 struct dcp_pkl_memo *memo)
{
	const uint8_t *p = dcp_pkl_win_seek(w, off);
	int r = 0;

	for (;;) {
		if (DCP_UNLIKELY(p >= w->safe)) {
			r = dcp_pkl_win_op(w, &p);
			if (r < 0)
				return r;
		}
		switch (dcp_pkl_arg[*p]) {
		case PICKLE_ARG_NONE:
			p += 1;
			break;
		case PICKLE_ARG_1:
			p += 2;
			break;
		case PICKLE_ARG_2:
			p += 3;
			break;
		case PICKLE_ARG_4:
			p += 5;
			break;
		case PICKLE_ARG_8:
			p += 9;
			break;
		case PICKLE_ARG_LEN1:
			if (DCP_LIKELY((size_t)p[1] + 2 <= (size_t)(w->end - p)))
				p += 2 + p[1];
			else
				r = skip_payload(w, &p);
			break;
		case PICKLE_ARG_GET1:
			r = want(w, p, memo, m, p[1], off);
			p += 2;
			break;
		case PICKLE_ARG_GET4:
			r = want(w, p, memo, m, dcp_load_le32(p + 1), off);
			p += 5;
			break;
		default:
			r = step(w, &p, memo, m, off);
		}
		if (DCP_UNLIKELY(r))
			return DCP_MIN(r, 0);
	}
}
