/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both sides of a meeting share: messages, proofs, sockets. Private to comm/.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "tools/load/comm/meet.h"
#include "tools/load/dcpload.h"

struct hello {
	char magic[8];
	uint32_t abi, rank, ranks, reserved;
	uint8_t id[32];
	uint8_t nonce[32]; /* fresh for each process and meeting */
};

enum refusal {
	REFUSED_NOT,
	REFUSED_ABI,
	REFUSED_JOB,
	REFUSED_KEY,
	REFUSED_USER,
	REFUSED_COUNT,
};

struct challenge {
	char magic[8];
	uint32_t refused, abi;
	uint8_t nonce[32];
};

struct welcome {
	uint8_t proof[32];
	int32_t code; /* 0: welcome; otherwise the meeting failed: @text, @rank */
	int32_t rank;
	char text[216];
};

/* A handshake in progress. */
struct shake {
	int fd;        /* -1: none */
	int64_t since; /* start, ms */
	size_t got;    /* bytes of the expected message */
	union {
		struct hello hello;
		struct challenge challenge;
		uint8_t proof[32];
		struct welcome welcome;
		char bytes[256];
	} in;
	struct hello hello;
	struct challenge challenge;
	int step;
};

#define LOAD_HELLO_MAGIC "dcpload?"
#define LOAD_CHALLENGE_MAGIC "dcpload!"
#define LOAD_PATIENCE_MS 5000 /* limit for a handshake */

/* HMAC with the key of @m over hello and challenge of @s; @side: "rank r" or "rank 0". */
void load_proof(const struct load_meeting *m, const char *side, const struct shake *s,
		uint8_t out[32]);
bool load_proof_is(const struct load_meeting *m, const char *side, const struct shake *s,
		   const uint8_t got[32]);

/* 1: @n bytes are in s->in; 0: not yet; -ECONNRESET: the other end has closed; another errno. */
int load_shake_read(struct shake *s, size_t n);
/*
 * Send a short message, which fits the socket's buffer. A negative errno if not all of it was sent.
 */
int load_shake_send(const struct shake *s, const void *p, size_t n);
void load_shake_end(struct shake *s);

/* May the process at the other end of @fd be a rank, by whose it is? */
bool load_peer_may_join(const struct load_meeting *m, int fd);

size_t load_meet_guest_room(const struct load_meeting *m);
int load_meet_guest(const struct load_meeting *m, int64_t deadline, int *fd,
		    struct dcpload_error *err);

#define LOAD_MAX_ADDRESSES 8

/*
 * Where rank 0 may be: at most @most addresses. Resolves m->host, again and again until the
 * deadline.
 */
int load_resolve(const struct load_meeting *m, int64_t deadline, struct load_address *out,
		 size_t most, struct dcpload_error *err);

/*
 * line: one connection of the transport over TCP. In each call a frame is sent and one is received.
 */

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
	bool here;         /* LOAD_FRAME_HERE has come; a second in the same call is a fault */
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
 * Continue to receive, into @body if it is the expected frame: @n bytes of call @call. 1: complete;
 * 0: not yet; -ECONNRESET: the other end is gone; -ECANCELED: it failed, see l->why; -EPROTO: it
 * sent another frame, which is in l->in.
 */
int load_line_get(struct load_line *l, uint32_t call, void *body, uint64_t n);
