/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meet: ranks find each other, by TCP, or by a Unix socket where all of them are on one node.
 *
 * Rank 0 listens, every other rank connects to it. Either end may be a stranger, so both sides send
 * a fresh random number and prove with it that they have the same key (HMAC-SHA256) and belong to
 * the same job. A stranger is ignored; at most it takes up a pending connection for some seconds.
 * The key itself is never sent. On one node the kernel also says whose process the other end is.
 * Later messages are neither encrypted nor authenticated: this does not protect against an attacker
 * who can change packets on their way.
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

#include "tools/load/error.h"

struct load_address {
	struct sockaddr_storage at;
	socklen_t n; /* 0: none */
};

struct load_meeting {
	uint32_t rank, ranks;
	uint8_t id[32];         /* of the job: the same on all its ranks, unique */
	uint8_t key[32];        /* secret shared by the ranks */
	char host[256];         /* host name of rank 0; if @at is set, only used in messages */
	struct load_address at; /* where rank 0 is, if known */
	uint16_t port, nports;  /* it listens on one of @nports ports from @port on */
	int listener;   /* rank 0: listening socket, closed by load_meet(); -1: none yet */
	int timeout_ms; /* for all ranks to connect */
	bool node;      /* all ranks are on this node: they meet by a Unix socket */
	bool any_user; /* there, processes of other users may be ranks: the user gave them @key */
	bool apart;    /* ranks are on several nodes: the loopback device does not do */
	bool open;  /* others may know @key: listen on the addresses of @host or not at all */
	void *room; /* zeroed memory, load_meet_room() bytes; the caller's */
};

/* HMAC-SHA256 of @n bytes at @p with @key; makes the ids and keys of meetings. */
void load_digest(const void *key, size_t nkey, const void *p, size_t n, uint8_t out[32]);

int load_random(void *p, size_t n);

/* A socket that listens on the first free port of @nports (0: any port); on all addresses, or, with
 * @only, on that one alone. A negative errno. */
int load_listen(const struct load_address *only, uint16_t port, uint16_t nports);

/* Sockets of this node, which have numbers like ports. */
#define LOAD_THIS_NODE                                                                         \
	{                                                                                      \
		{ .ss_family = AF_UNIX }, sizeof(sa_family_t)                                  \
	}

/* "10.0.0.7" or "fd00::7" */
void load_address_text(const struct load_address *a, char *out, size_t size);
/* Is it reached from this node alone? */
bool load_address_is_loopback(const struct load_address *a);
/* @port 0: any port; a Unix socket stays as it is. */
void load_address_set_port(struct load_address *a, uint16_t port);
/* The port of an Internet address; 0: a Unix socket. */
uint16_t load_address_port(const struct load_address *a);
bool load_address_same_host(const struct load_address *a, const struct load_address *b);

/*
 * poll() of those of @n that have a descriptor; the others report nothing. @room: for @n more. What
 * poll() returns, or a negative errno; a signal: 0.
 */
struct pollfd;
int load_poll(struct pollfd *p, size_t n, struct pollfd *room, int ms);
/*
 * Let this process open a connection to each of @ranks ranks, if its hard limit allows it. -EMFILE.
 */
int load_raise_limit(uint32_t ranks, struct dcpload_error *err);

/*
 * Bytes of memory that load_meet() needs; it allocates none. Depends on @rank, @ranks and @nports.
 */
size_t load_meet_room(const struct load_meeting *m);

/*
 * Connect the ranks. Rank 0 gets fd[r] for every rank r > 0, others fd[0]; non-blocking,
 * close-on-exec, -1: none. The caller closes them, also after a failure.
 */
int load_meet(const struct load_meeting *m, int *fd, struct dcpload_error *err);

/*
 * secret: a random text that only the processes of one user can read, on every node that has the
 * user's home directory.
 */

#define LOAD_SECRET_BYTES 64

/*
 * The text in the file "secret" in @dir, which is made, with the directory, when there is none.
 * Both must be the user's, and closed to others: -EPERM. Any other failure: the file can be neither
 * read nor made.
 */
int load_secret_of_user(const char *dir, char out[LOAD_SECRET_BYTES + 1],
			struct dcpload_error *err);
