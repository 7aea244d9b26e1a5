/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meet: ranks find each other by TCP.
 *
 * Rank 0 listens, every other rank connects to it. What connects, or answers, may be anybody: both
 * sides send a fresh random number and prove with it that they have the same key (HMAC-SHA256) and
 * belong to the same job. Who cannot is passed over and costs at most a place among those not yet
 * known, for seconds. The key itself is never sent. What ranks say afterwards is neither
 * encrypted nor authenticated: whoever can change packets on their way is not kept out.
 *
 *	rank r -> rank 0	struct hello: magic, ABI, rank, ranks, id of the job, random number
 *	rank 0 -> rank r	struct challenge: magic, refused or not, random number
 *	rank r -> rank 0	proof of "rank r" over both
 *	rank 0 -> rank r	struct welcome: proof of "rank 0" over both; or why not
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "tools/load/error.h"

struct load_address {
	struct sockaddr_storage at;
	socklen_t n; /* 0: none */
};

struct load_meeting {
	uint32_t rank, ranks;
	uint8_t id[32];  /* of the job: all ranks have the same, no other job has */
	uint8_t key[32]; /* what strangers do not have */
	char host[256];  /* where rank 0 is: a name, or, for messages only, what @at says */
	struct load_address at; /* where rank 0 is, if known */
	uint16_t port, nports;  /* it listens on one of these */
	int listener;           /* rank 0: listens already; -1: not yet. Ours to close */
	int timeout_ms;         /* for all ranks to be there */
	bool local; /* all ranks are on this machine: nobody else need reach rank 0 */
};

/* HMAC-SHA256: ids and keys of a meeting, from words and other keys. */
void load_digest(const void *key, size_t nkey, const void *p, size_t n, uint8_t out[32]);

int load_random(void *p, size_t n);

/* A socket that listens on the first free port of @nports (0: any port); on all addresses, or, with
 * @only, on that one alone. A negative errno. */
int load_listen(const struct load_address *only, uint16_t port, uint16_t nports);

/* "10.0.0.7" or "fd00::7" */
void load_address_text(const struct load_address *a, char *out, size_t size);
bool load_address_is_loopback(const struct load_address *a);
void load_address_set_port(struct load_address *a, uint16_t port);

/*
 * Rank 0: fd[r] for every rank r > 0; others: fd[0]. Non-blocking, close-on-exec; -1 where there is
 * none. Also on a failure those that are there are the caller's to close.
 */
int load_meet(const struct load_meeting *m, int *fd, struct dcpload_error *err);
