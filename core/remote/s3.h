/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3: object stores (s3://, gs://): writes to buckets, the user's credentials, signatures of
 * requests, and the XML of answers. A row like the others, in s3.c, reads objects.
 *
 * Objects are written by one request, or by multipart uploads, which are invisible until they are
 * completed. Requests set no access rights of objects: the owner of the bucket decides them.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_err;
struct dcp_remote;

/* Find the bucket that @url names, and the key in the bucket, malloc'ed. No request is made. @out
 * NULL: only check the spelling of @url. -EINVAL, -ENOMEM. */
int dcp_bucket_of(const char *url, struct dcp_remote **out, char **key, struct dcp_err *err);

enum dcp_put_what {
	DCP_PUT_OBJECT,   /* @body is the object */
	DCP_PUT_BEGIN,    /* begin an upload; @got is its id */
	DCP_PUT_PART,     /* @body is part number @part (from 1) of the upload */
	DCP_PUT_COMPLETE, /* @body is the XML list of the parts; dcp_bucket_add_part() */
	DCP_PUT_ABORT,    /* no error if the upload is gone */
	DCP_PUT_DELETE,   /* delete the object; no error if it is gone */
	/* @got is DCP_BUCKET_OWN if dcpfs wrote the object; NULL: another program wrote it, or it
	 * is gone */
	DCP_PUT_LOOK,
};

/* Objects and uploads of dcpfs carry this mark, which is lost when another program writes the
 * object. */
#define DCP_BUCKET_OWN "dcpfs"

struct dcp_put {
	enum dcp_put_what what;
	const char *key;
	const char *upload;
	const char *body;
	size_t n;
	uint64_t size; /* size of the object that is completed */
	uint32_t part;
	/* put an object or complete an upload only if the key has no object, else -EEXIST */
	bool fresh;
	/* ---- the answer ---- */
	int rc;
	char *got; /* id of an upload, or tag of a part, malloc'ed */
};

/*
 * Make @n requests in parallel; a failed request does not stop the others. 0, or the error of the
 * first that failed: -ENXIO (no such bucket), -EACCES, -EEXIST, -ENOSPC, -EIO, ... A request that
 * the server has executed, but whose answer was lost, counts as done.
 */
int dcp_bucket_put(struct dcp_remote *r, struct dcp_put *puts, size_t n, struct dcp_err *err);

/* Append a part, <Part>...</Part>, to the body that completes an upload. The body begins with
 * DCP_BUCKET_PARTS and ends with DCP_BUCKET_PARTS_END. */
#define DCP_BUCKET_PARTS "<CompleteMultipartUpload>"
#define DCP_BUCKET_PARTS_END "</CompleteMultipartUpload>"
struct dcp_buf;
void dcp_bucket_add_part(struct dcp_buf *body, uint32_t part, const char *tag);

/* Call @fn for each unfinished upload (neither completed nor aborted) of a key that begins with
 * @prefix, up to a thousand. 0, -EACCES (uploads may not be listed), ..., or the result of @fn. */
typedef int dcp_upload_fn(void *ctx, const char *key, const char *upload, const char *begun);
int dcp_bucket_uploads(struct dcp_remote *r, const char *prefix, dcp_upload_fn *fn, void *ctx,
		       struct dcp_err *err);

/*
 * credentials: finds the user's credentials for object stores. For Amazon they are looked for in
 * the places and in the order of Amazon's own programs: the environment, the token of a web
 * identity, profile files (keys, or a role assumed with the keys of another profile), the server of
 * the container, the server of the machine (IMDSv2). For Google: keys or a token in the
 * environment, the server of the machine.
 *
 * Credentials are kept in memory only: they never appear in a message, log, URL, index or cache.
 */

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

/*
 * xml: parses answers of object stores, through expat, which is loaded on first use; xml.c is the
 * only file that includes expat.h.
 *
 * Documents with a DOCTYPE are refused, so that there are no entities to expand.
 */

#define DCP_XML_MAX_DEPTH 16

/* Called at the end of an element: its path, "ListBucketResult/Contents/Key", and its text. 0 or a
 * negative errno. */
typedef int dcp_xml_fn(void *ctx, const char *path, const char *text, size_t n);

/* Call @fn for each element. 0, -EBADMSG, -E2BIG (deeper than DCP_XML_MAX_DEPTH), -ENOTSUP (no
 * expat), -ENOMEM, or the result of @fn. */
int dcp_xml_each(const char *text, size_t n, dcp_xml_fn *fn, void *ctx, struct dcp_err *err);

/* Version of expat, "2.5.0"; NULL: it cannot be loaded. */
const char *dcp_xml_expat_version(void);
