/* SPDX-License-Identifier: Apache-2.0 */
/* window: the part of the source that is in memory, and opcode arguments in it. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/base/base.h"
#include "core/parse/pickle/pickle.h"

enum {
	DCP_PKL_PAD = 16,           /* readable bytes after the window */
	DCP_PKL_WINDOW = 128 << 10, /* as large as it normally gets */
	DCP_PKL_WINDOW_MIN = 4096,  /* first read after a jump; doubles from there */
};

struct dcp_pkl_win {
	const struct dcp_source *src;
	uint8_t *buf;
	const uint8_t *end;  /* after the last byte read */
	const uint8_t *safe; /* opcodes before this have 8 bytes of argument in the window */
	uint64_t base;       /* offset of buf[0] in the source */
	size_t cap;
	size_t ahead; /* size of the next sequential read */
	size_t ahead_min, ahead_max;
	struct dcp_err *err;
};

/* Returns 0 or -ENOMEM. @window: 0 for the usual size; tests give small ones. */
int dcp_pkl_win_init(struct dcp_pkl_win *w, const struct dcp_source *src, size_t window,
		     struct dcp_err *err);
void dcp_pkl_win_finish(struct dcp_pkl_win *w);

static inline uint64_t dcp_pkl_off(const struct dcp_pkl_win *w, const uint8_t *p)
{
	return w->base + (uint64_t)(p - w->buf);
}

/* Where to go on reading for offset @off; what is there is checked by dcp_pkl_win_op(). */
const uint8_t *dcp_pkl_win_seek(struct dcp_pkl_win *w, uint64_t off);

/* Called when *@p is not before safe: after it, the opcode and its fixed argument are in
 * memory. */
int dcp_pkl_win_op(struct dcp_pkl_win *w, const uint8_t **p);

/* The same for @n bytes at *@p, which the caller knows to be in the source. */
int dcp_pkl_win_need(struct dcp_pkl_win *w, const uint8_t **p, size_t n);

/* Length that the opcode at @p claims, checked against what is left behind its @head bytes. */
int dcp_pkl_win_length(struct dcp_pkl_win *w, const uint8_t *p, size_t *head, uint64_t *n);

/* Length of the line that starts @skip bytes after *@p, without its newline. */
int dcp_pkl_win_line(struct dcp_pkl_win *w, const uint8_t **p, size_t skip, size_t *n);

/* "<NAME> at byte N <message>" about the opcode at @p; returns @code. */
int dcp_pkl_win_fail(const struct dcp_pkl_win *w, const uint8_t *p, int code, const char *fmt,
		     ...) DCP_PRINTF(4, 5);

/* Refuse the opcode at @p, which is unknown or on the list of the refused. */
int dcp_pkl_win_refuse(const struct dcp_pkl_win *w, const uint8_t *p);

/* The checks on PROTO and FRAME, the same in both passes. */
int dcp_pkl_win_proto(const struct dcp_pkl_win *w, const uint8_t *p);
int dcp_pkl_win_frame(const struct dcp_pkl_win *w, const uint8_t *p);

/* By opcode: enum pickle_arg. */
extern const uint8_t dcp_pkl_arg[256];
