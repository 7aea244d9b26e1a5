/* SPDX-License-Identifier: Apache-2.0 */
/* curl: single transfers, by libcurl. curl.c is the only file that includes curl.h; in builds
 * without libcurl, curl_none.c replaces curl.c and xml.c. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

struct dcp_transfer;
/* Transfers that one thread makes in parallel, on connections that are kept */
struct dcp_transfers;

/* The input of a transfer, and its callbacks. */
struct dcp_transfer_opts {
	const char *method, *url, *body;
	size_t nbody;
	const char *heads;  /* "name: value" and a newline each */
	const char *logins; /* a file of names and passwords for hosts (netrc); NULL: none */
	const char *authorities;     /* a file of certificates; NULL: the system's */
	unsigned stall_s, connect_s; /* connect_s 0: 10 s */
	bool link_local;             /* connections to link-local addresses are allowed */
	bool loopback;               /* only loopback addresses are allowed */
	bool alone;                  /* use a new connection */
	/* A header line of the answer. */
	void (*line)(void *ctx, const char *p, size_t n);
	/* Bytes of the body of the answer. Returns false to end the transfer. */
	bool (*bytes)(void *ctx, const char *p, size_t n);
	void *ctx;
};

struct dcp_transfer_end {
	void *ctx;
	bool ok;     /* a complete answer came */
	bool passes; /* another try may succeed */
	bool found;  /* the name of the host was resolved */
	char why[192];
};

/* -ENOSYS: there is no libcurl, *why is the reason. -ENOMEM. */
int dcp_transfers_create(struct dcp_transfers **out, const char **why);
void dcp_transfers_destroy(struct dcp_transfers *t);
int dcp_transfers_add(struct dcp_transfers *t, const struct dcp_transfer_opts *o,
		      struct dcp_transfer **out);
/* Stop and free a transfer, whether it has ended or not. */
void dcp_transfers_remove(struct dcp_transfers *t, struct dcp_transfer *one);
/* The status code of the answer so far; 0: none yet. */
long dcp_transfer_status(const struct dcp_transfer *one);
/* Continue the transfers for at most @ms, and fill @ends, which has room for @n, with transfers
 * that ended. Returns their number. */
size_t dcp_transfers_run(struct dcp_transfers *t, int ms, struct dcp_transfer_end *ends,
			 size_t n);
/* Version of libcurl. NULL: there is none, and *why is the reason. */
const char *dcp_transfers_library(const char **why);
