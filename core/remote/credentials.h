/* SPDX-License-Identifier: Apache-2.0 */
/*
 * credentials: finds the user's credentials for object stores. For Amazon they are looked for in
 * the places and in the order of Amazon's own programs: the environment, the token of a web
 * identity, profile files (keys, or a role assumed with the keys of another profile), the server of
 * the container, the server of the machine (IMDSv2). For Google: keys or a token in the
 * environment, the server of the machine.
 *
 * Credentials are kept in memory only: they never appear in a message, log, URL, index or cache.
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
	char *token;        /* session token, or a token without keys; NULL: none */
	const char *kind;   /* "environment", "profile", ...; "none": requests are not signed */
	int64_t expires_s;  /* CLOCK_REALTIME; 0: never */
	int64_t again_s;    /* not renewed before this time while they are valid */
};

/*
 * Get credentials that are valid now. @c is empty or from an earlier call; it is replaced when it
 * is about to expire, or if the server has @refused it. It is not an error if the user has no
 * credentials. -EACCES: the configuration names credentials that cannot be obtained.
 */
int dcp_credentials_renew(struct dcp_credentials *c, enum dcp_cloud cloud, bool refused,
			  struct dcp_err *err);
void dcp_credentials_finish(struct dcp_credentials *c);

/* Append the headers that authenticate @h with @c, and h->fixed. 0 or -ENOMEM. */
int dcp_credentials_sign(const struct dcp_credentials *c, const struct dcp_http *h,
			 const char *region, const char *service, struct dcp_buf *heads);

/* The value of @name ("region") in the profile in use, malloc'ed; NULL: not set. */
char *dcp_credentials_profile(const char *name);

/* "amazonaws.com", or the domain for regions in China. */
const char *dcp_amazon_domain(const char *region);

/*
 * sign: requests to object stores, signed by AWS Signature Version 4. Pure: the time is an
 * argument.
 *
 * The signatures of libcurl are not used, because before version 8 it does not sort and encode the
 * query as the scheme requires.
 */

struct dcp_buf;

struct dcp_sign {
	const char *method;
	const char *path;  /* encoded, begins with a slash */
	const char *query; /* encoded, sorted by name; "" for none; every name with its "=" */
	/* the signed headers: "name:value" and a newline each, names in lower case, sorted */
	const char *headers;
	const char *payload; /* hexadecimal SHA-256 of the body, or UNSIGNED-PAYLOAD */
	const char *time;    /* "20150830T123600Z" */
	const char *region, *service;
	const char *key, *secret;
};

/* SHA-256 of an empty body. */
#define DCP_SIGN_EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

#define DCP_SIGN_HASH 65
/* SHA-256 of a body, in hexadecimal. */
void dcp_sign_hash(const void *p, size_t n, char out[DCP_SIGN_HASH]);
/* Append the value of the header Authorization. 0 or -ENOMEM. */
int dcp_sign_v4(const struct dcp_sign *s, struct dcp_buf *out);
