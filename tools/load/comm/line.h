/* SPDX-License-Identifier: Apache-2.0 */
/*
 * line: one connection of the transport over TCP. In each call a frame is sent and one is received.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "tools/load/dcpload.h"

enum load_frame_kind {
	LOAD_FRAME_DATA = 1,
	LOAD_FRAME_FAILED, /* a struct dcpload_error */
	LOAD_FRAME_HERE,   /* nothing: the other end waits, too */
};

struct load_frame {
	uint32_t kind, call;
	uint64_t n;
};

struct load_line {
	int fd; /* -1: none */
	struct load_frame out, in;
	uint64_t put, got; /* bytes of frame and body in this call */
	bool deaf;         /* sending fails; there may still be something to read */
	bool here;         /* LOAD_FRAME_HERE has come */
	char peer[64];     /* address of the other end */
	struct dcpload_error why;
};

void load_line_open(struct load_line *l, int fd);

/* Begin call @call, in which @n bytes are sent. */
void load_line_begin(struct load_line *l, uint32_t call, uint64_t n);

/* Continue to send l->out and after it @body. */
void load_line_put(struct load_line *l, const void *body);
bool load_line_has_put(const struct load_line *l);

/* Say that this end waits, too; not while a frame is being sent. */
void load_line_say_here(struct load_line *l);

/*
 * Continue to receive, into @body if it is the expected frame: @n bytes of call @call. 1: complete; 0:
 * not yet; -ECONNRESET: the other end is gone; -ECANCELED: it failed, see l->why; -EPROTO: it
 * sent another frame, which is in l->in.
 */
int load_line_get(struct load_line *l, uint32_t call, void *body, uint64_t n);
