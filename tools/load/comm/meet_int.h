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
	uint8_t nonce[32]; /* one a process and meeting */
};

enum refusal {
	REFUSED_NOT,
	REFUSED_ABI,
	REFUSED_JOB,
	REFUSED_KEY,
	REFUSED_COUNT,
};

struct challenge {
	char magic[8];
	uint32_t refused, abi;
	uint8_t nonce[32];
};

struct welcome {
	uint8_t proof[32];
	int32_t code; /* 0: welcome; or why not, in @text, and whose fault, in @rank */
	int32_t rank;
	char text[216];
};

/* One handshake under way. */
struct shake {
	int fd;        /* -1: none */
	int64_t since; /* ms */
	size_t got;    /* of the message that is expected */
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
#define LOAD_PATIENCE_MS 5000 /* until a handshake must be over */

/* HMAC over both messages of @s by the key of @m, for @side: "rank r" or "rank 0". */
void load_proof(const struct load_meeting *m, const char *side, const struct shake *s,
		uint8_t out[32]);
bool load_proof_is(const struct load_meeting *m, const char *side, const struct shake *s,
		   const uint8_t got[32]);

/* 1: @n bytes are in s->in; 0: not yet; a negative errno: never, -ECONNRESET at the end. */
int load_shake_read(struct shake *s, size_t n);
/* A short message on a socket that has sent next to nothing: all of it, or a negative errno. */
int load_shake_send(const struct shake *s, const void *p, size_t n);
void load_shake_end(struct shake *s);

int load_meet_host(const struct load_meeting *m, int64_t deadline, int *fd,
		   struct dcpload_error *err);
int load_meet_guest(const struct load_meeting *m, int64_t deadline, int *fd,
		    struct dcpload_error *err);

/* Addresses of m->host, at most @most; asks again until the deadline. */
int load_resolve(const struct load_meeting *m, int64_t deadline, struct load_address *out,
		 size_t most, struct dcpload_error *err);
