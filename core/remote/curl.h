/* SPDX-License-Identifier: Apache-2.0 */
/*
 * curl: one transfer. What differs between libraries for HTTP; curl.c is the only file that sees
 * curl.h, curl_none.c stands in for it, and for xml.c, in builds without it.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

struct dcp_transfer;
struct dcp_transfers; /* made side by side, by one thread, on connections that are kept */

/* What a transfer is made of and calls. */
struct dcp_transfer_opts {
	const char *method, *url, *body;
	size_t nbody;
	const char *heads;  /* "name: value" and a newline each */
	const char *logins; /* a file of names and passwords for hosts (netrc); NULL: none */
	const char *authorities;     /* a file of certificates; NULL: the system's */
	unsigned stall_s, connect_s; /* connect_s 0: 10 s */
	bool link_local;             /* addresses of the link may be connected to */
	bool loopback;               /* others than this machine's may not */
	bool alone;                  /* on a new connection */
	/* A line of the head of the answer. */
	void (*line)(void *ctx, const char *p, size_t n);
	/* Bytes of its body. False: enough, the transfer ends. */
	bool (*bytes)(void *ctx, const char *p, size_t n);
	void *ctx;
};

/* How one ended. */
struct dcp_transfer_end {
	void *ctx;
	bool ok;     /* an answer came in full */
	bool passes; /* another try may do better */
	bool found;  /* the host was found */
	char why[192];
};

/* -ENOSYS with *why: there is no library. -ENOMEM. */
int dcp_transfers_create(struct dcp_transfers **out, const char **why);
void dcp_transfers_destroy(struct dcp_transfers *t);
int dcp_transfers_add(struct dcp_transfers *t, const struct dcp_transfer_opts *o,
		      struct dcp_transfer **out);
/* Stop and free it; after it ended, or before. */
void dcp_transfers_remove(struct dcp_transfers *t, struct dcp_transfer *one);
/* The status of the answer so far; 0: none. */
long dcp_transfer_status(const struct dcp_transfer *one);
/*
 * Go on, wait for at most @ms, and fill in @ends, of room for @n, with those that ended. How many.
 */
size_t dcp_transfers_run(struct dcp_transfers *t, int ms, struct dcp_transfer_end *ends,
			 size_t n);
/* NULL: there is none, and *why says why. */
const char *dcp_transfers_library(const char **why);
