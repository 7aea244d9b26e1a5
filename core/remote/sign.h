/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sign: requests to object stores, signed by AWS Signature Version 4. Pure: the time is an
 * argument.
 *
 * libcurl's own does not sort and encode the query as the scheme wants it before version 8.
 */
#pragma once
#include <stddef.h>

struct dcp_buf;

struct dcp_sign {
	const char *method;
	const char *path;  /* encoded, from its slash on */
	const char *query; /* encoded, sorted by name; "" for none; every name with its "=" */
	const char *
		/*
		 * those that are signed: "name:value" and a newline each, names in lower case,
		 * sorted
		 */
		headers;
	const char *payload; /* hexadecimal SHA-256 of the body, or UNSIGNED-PAYLOAD */
	const char *time;    /* "20150830T123600Z" */
	const char *region, *service;
	const char *key, *secret;
};

/* SHA-256 of nothing. */
#define DCP_SIGN_EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

#define DCP_SIGN_HASH 65
/* SHA-256 of a body, in hexadecimal. */
void dcp_sign_hash(const void *p, size_t n, char out[DCP_SIGN_HASH]);
/* Append the value of the header Authorization. 0 or -ENOMEM. */
int dcp_sign_v4(const struct dcp_sign *s, struct dcp_buf *out);
