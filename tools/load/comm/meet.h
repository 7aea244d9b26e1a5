/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meet: connects the ranks, by TCP, or by a Unix socket if all ranks are on one node.
 *
 * Rank 0 listens, every other rank connects to it. Either end may be a stranger, so both sides send
 * a fresh random number and prove with it that they have the same key (HMAC-SHA256) and belong to
 * the same job. A stranger is ignored; at most it takes up a pending connection for some seconds.
 * The key itself is never sent. On one node the kernel also says which user owns the process at the
 * other end. Later messages are neither encrypted nor authenticated: this does not protect against
 * an attacker who can change packets on their way.
 *
 *	rank r -> rank 0	struct hello: magic, ABI, rank, ranks, id of the job, random number
 *	rank 0 -> rank r	struct challenge: magic, refused or not, random number
 *	rank r -> rank 0	proof of "rank r" over both
 *	rank 0 -> rank r	struct welcome: proof of "rank 0" over both; or the reason for refusing
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "tools/load/dcpload.h"
#include "tools/load/error.h"

struct load_address {
	struct sockaddr_storage at;
	socklen_t n; /* 0: none */
};

struct load_meeting {
	uint32_t rank, ranks;
	uint8_t id[32];         /* of the job: the same on all its ranks, unique */
	uint8_t key[32];        /* secret shared by the ranks */
	char host[256];         /* host name of rank 0; used only in messages if @at is set */
	struct load_address at; /* where rank 0 is, if known */
	uint16_t port, nports;  /* rank 0 listens on one of @nports ports from @port on */
	int listener;   /* rank 0: listening socket, closed by load_meet(); -1: none yet */
	int timeout_ms; /* for all ranks to connect */
	bool node;      /* all ranks are on this node and connect by a Unix socket */
	/* with @node: processes of other users may be ranks, because the user gave them @key */
	bool any_user;
	bool apart; /* ranks are on several nodes: the loopback device cannot be used */
	/* other users may know @key: listen on the addresses of @host or not at all */
	bool open;
	void *room; /* zeroed memory, load_meet_room() bytes; the caller's */
};

/* HMAC-SHA256 of @n bytes at @p with @key; makes the ids and keys of meetings. */
void load_digest(const void *key, size_t nkey, const void *p, size_t n, uint8_t out[32]);

int load_random(void *p, size_t n);

/* A socket that listens on the first free port of @nports (0: any port), on all addresses, or if
 * @only is set, on that address alone. A negative errno. */
int load_listen(const struct load_address *only, uint16_t port, uint16_t nports);

/* Sockets of this node, which have numbers like ports. */
#define LOAD_THIS_NODE                                                                         \
	{                                                                                      \
		{ .ss_family = AF_UNIX }, sizeof(sa_family_t)                                  \
	}

/* "10.0.0.7" or "fd00::7" */
void load_address_text(const struct load_address *a, char *out, size_t size);
/* Can only this node reach the address? */
bool load_address_is_loopback(const struct load_address *a);
/* @port 0: any port; a Unix socket stays as it is. */
void load_address_set_port(struct load_address *a, uint16_t port);
/* The port of an Internet address; 0: a Unix socket. */
uint16_t load_address_port(const struct load_address *a);
bool load_address_same_host(const struct load_address *a, const struct load_address *b);

/* poll() the entries of @n that have a descriptor; the other entries report nothing. @room: memory
 * for @n more entries. Returns the result of poll(), or a negative errno; after a signal 0. */
struct pollfd;
int load_poll(struct pollfd *p, size_t n, struct pollfd *room, int ms);
/* Let this process open a connection to each of @ranks ranks, if its hard limit allows it.
 * -EMFILE. */
int load_raise_limit(uint32_t ranks, struct dcpload_error *err);

/* Bytes of memory that load_meet() needs, because it allocates nothing itself. Depends on @rank,
 * @ranks and @nports. */
size_t load_meet_room(const struct load_meeting *m);

/* Connect the ranks. Rank 0 gets fd[r] for every rank r > 0, others fd[0]; non-blocking,
 * close-on-exec, -1: none. The caller closes them, also after a failure. */
int load_meet(const struct load_meeting *m, int *fd, struct dcpload_error *err);

/* secret: a random text that only the processes of one user can read, on every node that has the
 * user's home directory. */

#define LOAD_SECRET_BYTES 64

/*
 * The text in the file "secret" in @dir. The file and the directory are created if they do not
 * exist. -EPERM: the user does not own both, or others have access. Any other failure: the file can
 * be neither read nor created.
 */
int load_secret_of_user(const char *dir, char out[LOAD_SECRET_BYTES + 1],
			struct dcpload_error *err);

/* The messages and proofs of both sides of a meeting, and sockets. Private to comm/. */

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
/* Send a short message, which fits the socket's buffer. A negative errno if not all of it was
 * sent. */
int load_shake_send(const struct shake *s, const void *p, size_t n);
void load_shake_end(struct shake *s);

/* May the process at the other end of @fd be a rank, judged by its user? */
bool load_peer_may_join(const struct load_meeting *m, int fd);

size_t load_meet_guest_room(const struct load_meeting *m);
int load_meet_guest(const struct load_meeting *m, int64_t deadline, int *fd,
		    struct dcpload_error *err);

#define LOAD_MAX_ADDRESSES 8

/* The addresses at which rank 0 may be, at most @most. Resolves m->host, repeatedly until the
 * deadline. */
int load_resolve(const struct load_meeting *m, int64_t deadline, struct load_address *out,
		 size_t most, struct dcpload_error *err);

/* line: one connection of the transport over TCP. In each call a frame is sent and a frame is
 * received. */

enum load_frame_kind {
	LOAD_FRAME_DATA = 1,
	LOAD_FRAME_FAILED, /* a struct dcpload_error */
	LOAD_FRAME_HERE,   /* no body: the other end is waiting, too */
};

struct load_frame {
	uint32_t kind, call;
	uint64_t n;
};

struct load_line {
	int fd; /* -1: none */
	struct load_frame out, in;
	uint64_t put, got; /* bytes of frame and body in this call */
	bool deaf;         /* sending fails, but there may still be bytes to read */
	/* LOAD_FRAME_HERE has come; a second one in the same call is an error */
	bool here;
	char peer[64]; /* address of the other end */
	struct dcpload_error why;
};

void load_line_open(struct load_line *l, int fd);

/* Begin call @call, in which @n bytes are sent. */
void load_line_begin(struct load_line *l, uint32_t call, uint64_t n);

/* Continue to send l->out and after it @body. */
void load_line_put(struct load_line *l, const void *body);
bool load_line_has_put(const struct load_line *l);

/* Tell the other end that this end waits, too; not while a frame is being sent. */
void load_line_say_here(struct load_line *l);

/*
 * Continue to receive, into @body if it is the expected frame: @n bytes of call @call. 1: complete;
 * 0: not yet; -ECONNRESET: the other end is gone; -ECANCELED: the other end failed, see l->why;
 * -EPROTO: the other end sent a different frame, which is in l->in.
 */
int load_line_get(struct load_line *l, uint32_t call, void *body, uint64_t n);
