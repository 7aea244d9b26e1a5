/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http: requests to servers, many at once, through libcurl, which is opened when the first one is
 * made.
 *
 * A caller hands over a batch and waits for it; its thread runs the transfers, and connections are
 * kept for the next batch. Each request is repeated after what passes (429, 5xx, a lost connection,
 * a stall), from the byte that is missing, with growing random pauses, until nothing came for the
 * time that the configuration allows.
 *
 * A server is believed only where its answer is exactly what was asked: 206 and the Content-Range
 * of the request, or 200 for all of a file. Redirects lead to http and https only. No connection is
 * made to link-local addresses, where clouds keep credentials, but by requests that are for these.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

struct dcp_err;

/* How servers are spoken to. */
struct dcp_http_config {
	/*
	 * A variable of the environment, or NULL; core itself does not read it. NULL: none are set.
	 */
	const char *(*env)(const char *name);
	/* The user's own directory, where profiles and tokens lie; NULL: there is none. */
	const char *home;
	unsigned timeout_s; /* without a byte, after which a request fails; 0: a minute */
	unsigned stall_s;   /* without a byte, after which it is made again; 0: 20 s */
	unsigned parallel;  /* requests at a time, in all threads; 0: 64 */
};

/* Before the first request; what it points to must stay. */
void dcp_http_configure(const struct dcp_http_config *config);
const struct dcp_http_config *dcp_http_configured(void);
/* The variable @name of the environment, or NULL if it is not set or empty. */
const char *dcp_http_env(const char *name);

#define DCP_HTTP_ALL UINT64_MAX

struct dcp_http {
	/* ---- what is asked ---- */
	const char *method; /* NULL: GET */
	const char *url;
	const char *body; /* of a POST or PUT; NULL: none */
	size_t nbody;
	/* another header, "x-amz-meta-...:value" and a newline, which head() signs; NULL: none */
	const char *fixed;
	/*
	 * Append "name: value" and a newline for each header of @r. Called before every try, as
	 * signatures hold a time. NULL: none. Nothing of it is sent to another host that the server
	 * leads to.
	 */
	int (*head)(void *ctx, const struct dcp_http *r, struct dcp_buf *headers,
		    struct dcp_err *err);
	/*
	 * Is there something else to try after the answer r->status, whose body begins with
	 * r->said? True: once more.
	 */
	bool (*refused)(void *ctx, const struct dcp_http *r);
	/*
	 * Bytes of the answer, in order; the first is at @at of the file, or of the answer. 0 or a
	 * negative errno.
	 */
	int (*take)(void *ctx, uint64_t at, const char *p, size_t n);
	void *ctx;
	uint64_t off, n; /* of the file; n DCP_HTTP_ALL: all, by a request without a range */
	uint64_t size;   /* of the file; with DCP_HTTP_ALL: the most that an answer may have */
	const char *match; /* the ETag that the file has, else -ESTALE; NULL: */
	const char *since; /* the Last-Modified that it has; NULL: any */
	/*
	 * Where an earlier request for the same led. If that fails, @url is asked anew. NULL: not
	 * known.
	 */
	const char *led;
	bool plain;         /* http:// is what the user named, also to other machines */
	bool direct;        /* redirects are not followed, but are answers */
	bool login;         /* as the user's ~/.netrc says of the host, if it does */
	bool link_local;    /* it is for a server of credentials on this machine's own link */
	bool may_fail;      /* the others of its batch go on */
	unsigned tries;     /* at most; 0: as long as time allows */
	unsigned connect_s; /* for a connection; 0: 10 s */

	/* ---- what came ---- */
	/* -ECANCELED: it was given up, as another one of its batch failed, or all were stopped */
	int rc;
	/*
	 * an answer had more bytes or less than it said: if rc is negative, what was taken may be
	 * wrong
	 */
	bool unsure;
	long status;
	char *leads;          /* where the answer came from, if the server led there */
	struct dcp_buf heads; /* "name: value" and a newline each, names in lower case */
	char said[512];       /* how the body of a refusal begins */
	char why[384];        /* in words, if rc is negative */
};

/*
 * Make @n requests. 0, or what the first one that failed gave, those with may_fail left out:
 * -ENOENT (404), -EACCES (401, 403), -ESTALE (412), -EIO, -ENOSYS (built without libcurl, or it is
 * not installed), -EINTR, -ENOMEM, or what head() or take() gave. Every one is to be finished. Any
 * thread.
 */
int dcp_http_run(struct dcp_http *r, size_t n, struct dcp_err *err);
void dcp_http_finish(struct dcp_http *r);

/*
 * The value of the header @name, in lower case, of the answer. Its length is *n. NULL: it has none.
 */
const char *dcp_http_header(const struct dcp_http *r, const char *name, size_t *n);
/* The same, malloc'ed. */
char *dcp_http_header_copy(const struct dcp_http *r, const char *name);

/*
 * All of the answer, at most @most bytes, appended to @out. The request has an URL and may have the
 * rest but take().
 */
int dcp_http_get(struct dcp_http *r, size_t most, struct dcp_buf *out, struct dcp_err *err);

/*
 * From now on, what this thread asks for, or waits for, ends with -EINTR when @stop says so. It is
 * asked ten times a second. NULL: nothing stops it.
 */
void dcp_http_watch(bool (*stop)(void *ctx), void *ctx);
/* Does it say so? */
bool dcp_http_stopped(void);
bool dcp_http_watched(void);

/*
 * Since this process began: requests, of these those that were made again, bytes of bodies that
 * came.
 */
struct dcp_http_counts {
	uint64_t requests, retries, bytes;
};
struct dcp_http_counts dcp_http_counted(void);

/* "7.88.1"; NULL: requests cannot be made here, and *why says why. */
const char *dcp_http_library(const char **why);

/*
 * url: the parts of URLs, and names in them.
 */

struct dcp_buf;

/* Views into a URL. */
struct dcp_url {
	const char *scheme; /* "https" */
	size_t nscheme;
	const char *host; /* with its port */
	size_t nhost;
	const char *path; /* what follows, with its slash; NUL-terminated; may be "" */
};

/*
 * False: it has no scheme or host, or names a user, a query or a fragment, or has bytes that no URL
 * has.
 */
bool dcp_url_split(const char *text, struct dcp_url *out);

/* Append @s, with everything but A-Z a-z 0-9 - . _ ~ as %XX, and slashes unless they are @kept. */
void dcp_url_encode(struct dcp_buf *out, const char *s, size_t n, bool slashes_kept);
/* The opposite. False: a % without two digits, or a NUL. */
bool dcp_url_decode(struct dcp_buf *out, const char *s, size_t n);

/*
 * Until when a signed URL can be used (X-Amz-Date and X-Amz-Expires, those of Google, Expires):
 * CLOCK_REALTIME in seconds. 0: it does not say.
 */
int64_t dcp_url_until(const char *text);

/* Is the host, without its port, this machine's loopback? */
bool dcp_url_is_loopback(const char *host, size_t n);

/*
 * May a name of a server be a name in a directory? Not with a component that is empty, "." or "..",
 * or over 255 bytes, or with a byte that is not printed.
 */
bool dcp_url_safe_name(const char *name, size_t n);
