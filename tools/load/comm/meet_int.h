/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both sides of a meeting share: messages, proofs, sockets. Private to comm/.
 */
#pragma once
#include "tools/load/comm/meet.h"

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
/* Send a short message, which fits the socket's buffer. A negative errno if not all of it was sent. */
int load_shake_send(const struct shake *s, const void *p, size_t n);
void load_shake_end(struct shake *s);

/* May the process at the other end of @fd be a rank, by whose it is? */
bool load_peer_may_join(const struct load_meeting *m, int fd);

size_t load_meet_guest_room(const struct load_meeting *m);
int load_meet_guest(const struct load_meeting *m, int64_t deadline, int *fd,
		    struct dcpload_error *err);

#define LOAD_MAX_ADDRESSES 8

/* Where rank 0 may be: at most @most addresses. Resolves m->host, again and again until the deadline. */
int load_resolve(const struct load_meeting *m, int64_t deadline, struct load_address *out,
		 size_t most, struct dcpload_error *err);
