/* SPDX-License-Identifier: Apache-2.0 */
/*
 * credentials: whose requests to an object store are. Looked for where Amazon's own programs look,
 * in their order: the environment, a web identity's token, profile files (keys, or a role by those
 * of another profile), the container's server, the machine's server (IMDSv2). Google's: keys or a
 * token in the environment, the machine's server.
 *
 * They are in memory only: in no message, log, URL, index or cache.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_buf;
struct dcp_err;
struct dcp_http;

enum dcp_cloud { DCP_AMAZON, DCP_GOOGLE };

struct dcp_credentials {
	char *key, *secret; /* NULL: a token alone, or none */
	char *token;        /* of a session, or alone; NULL: none */
	const char *kind;   /* "environment", "profile", ...; "none": requests are not signed */
	int64_t expires_s;  /* CLOCK_REALTIME; 0: never */
	int64_t again_s;    /* not asked for again before, while these are good */
};

/*
 * Those that requests can be made with now; @c is empty or of an earlier call, and is replaced when
 * it is about to expire, or if it was @refused. None at all is no error. What is named and cannot
 * be had: -EACCES.
 */
int dcp_credentials_renew(struct dcp_credentials *c, enum dcp_cloud cloud, bool refused,
			  struct dcp_err *err);
void dcp_credentials_finish(struct dcp_credentials *c);

/* Append the headers that @h has because of @c, and h->fixed. 0 or -ENOMEM. */
int dcp_credentials_sign(const struct dcp_credentials *c, const struct dcp_http *h,
			 const char *region, const char *service, struct dcp_buf *heads);

/* What the profile in use says of @name ("region"), malloc'ed; NULL: nothing. */
char *dcp_credentials_profile(const char *name);

/* "amazonaws.com", or as it is called in China. */
const char *dcp_amazon_domain(const char *region);

/*
 * sign: requests to object stores, signed by AWS Signature Version 4. Pure: the time is an
 * argument.
 *
 * libcurl's own does not sort and encode the query as the scheme wants it before version 8.
 */

struct dcp_buf;

struct dcp_sign {
	const char *method;
	const char *path;  /* encoded, from its slash on */
	const char *query; /* encoded, sorted by name; "" for none; every name with its "=" */
	/* those that are signed: "name:value" and a newline each, names in lower case, sorted */
	const char *headers;
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
