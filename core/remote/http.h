/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http: many requests to servers at once, through libcurl, which is loaded on the first request.
 *
 * A caller passes a batch and waits for it; the thread of the caller runs the transfers, and
 * connections are kept for the next batch. After a temporary failure (429, 5xx, a lost connection,
 * a stall) a request is repeated from the first missing byte, with growing random pauses, until no
 * byte came for the time that the configuration allows.
 *
 * An answer is accepted only if it is exactly what was requested: 206 with the Content-Range of the
 * request, or 200 for all of a file. Redirects are followed to http and https only. Only requests
 * for credentials connect to link-local addresses, where clouds keep credentials.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

struct dcp_err;

/* Configuration of requests. */
struct dcp_http_config {
	/* Returns a variable of the environment, or NULL if it is not set; core itself does not
	 * read the environment. NULL: no variables are set. */
	const char *(*env)(const char *name);
	/* The user's home directory, which contains profiles and tokens; NULL: there is none. */
	const char *home;
	unsigned timeout_s; /* a request fails after this time without a byte; 0: a minute */
	unsigned stall_s;   /* a request is repeated after this time without a byte; 0: 20 s */
	unsigned parallel;  /* requests at a time, over all threads; 0: 64 */
};

/* Call it before the first request; strings that @config points to must stay. */
void dcp_http_configure(const struct dcp_http_config *config);
const struct dcp_http_config *dcp_http_configured(void);
/* The variable @name of the environment, or NULL if it is not set or empty. */
const char *dcp_http_env(const char *name);

#define DCP_HTTP_ALL UINT64_MAX

struct dcp_http {
	/* ---- the request ---- */
	const char *method; /* NULL: GET */
	const char *url;
	const char *body; /* of a POST or PUT; NULL: none */
	size_t nbody;
	/* an additional header, "x-amz-meta-...:value" and a newline, which head() signs; NULL:
	 * none */
	const char *fixed;
	/*
	 * Append "name: value" and a newline for each header of @r. Called before every try,
	 * because signatures contain the time. NULL: none. These headers are not sent to another
	 * host that the server redirects to.
	 */
	int (*head)(void *ctx, const struct dcp_http *r, struct dcp_buf *headers,
		    struct dcp_err *err);
	/* Called if the server refused the request, with r->status and r->said. True: try the
	 * request once more. */
	bool (*refused)(void *ctx, const struct dcp_http *r);
	/* Bytes of the answer, in order; @at is the offset of the first byte in the file, or in the
	 * answer. 0 or a negative errno. */
	int (*take)(void *ctx, uint64_t at, const char *p, size_t n);
	void *ctx;
	/* range of the file; n DCP_HTTP_ALL: the whole file, by a request without a range */
	uint64_t off, n;
	/* size of the file; with DCP_HTTP_ALL: the largest answer that is accepted */
	uint64_t size;
	const char *match; /* the ETag that the file must have, else -ESTALE; NULL: any */
	/* the Last-Modified that the file must have, else -ESTALE; NULL: any */
	const char *since;
	/* The URL that an earlier request for the same file was redirected to. If a request to it
	 * fails, @url is used again. NULL: not known. */
	const char *led;
	/* http:// is allowed for other machines, too: the user named it */
	bool plain;
	bool direct; /* redirects are not followed; they are the answer */
	bool login;  /* log in by the user's ~/.netrc, if it names the host */
	/* the request is for a server of credentials on the link of this machine */
	bool link_local;
	bool may_fail;      /* if this request fails, the others of its batch go on */
	unsigned tries;     /* maximum number of tries; 0: as many as the time allows */
	unsigned connect_s; /* timeout of connecting; 0: 10 s */

	/* ---- the answer ---- */
	/* -ECANCELED: given up because another request of the batch failed, or all were stopped */
	int rc;
	/* an answer had more or fewer bytes than it announced: if rc is negative, bytes passed to
	 * take() may be wrong */
	bool unsure;
	long status;
	char *leads;          /* the URL that the answer came from, if the server redirected */
	struct dcp_buf heads; /* "name: value" and a newline each, names in lower case */
	char said[512];       /* the beginning of the body of a refusal */
	char why[384];        /* description of the failure, if rc is negative */
};

/*
 * Make @n requests. Returns 0, or the error of the first request without may_fail that failed:
 * -ENOENT (404), -EACCES (401, 403), -ESTALE (412), -EIO, -ENOSYS (built without libcurl, or it is
 * not installed), -EINTR, -ENOMEM, or the result of head() or take(). Call dcp_http_finish() for
 * every request. Any thread.
 */
int dcp_http_run(struct dcp_http *r, size_t n, struct dcp_err *err);
void dcp_http_finish(struct dcp_http *r);

/* The value of a header of the answer, of length *n. @name is in lower case. NULL: the answer has
 * no such header. */
const char *dcp_http_header(const struct dcp_http *r, const char *name, size_t *n);
/* The same, malloc'ed. */
char *dcp_http_header_copy(const struct dcp_http *r, const char *name);

/* Append the whole answer, at most @most bytes, to @out. The caller sets r->url, and may set all
 * other members of the request except take(). */
int dcp_http_get(struct dcp_http *r, size_t most, struct dcp_buf *out, struct dcp_err *err);

/* From now on, requests and waits of this thread end with -EINTR when @stop returns true. @stop is
 * called ten times a second. NULL: nothing stops them. */
void dcp_http_watch(bool (*stop)(void *ctx), void *ctx);
/* Does @stop of this thread return true? */
bool dcp_http_stopped(void);
bool dcp_http_watched(void);

/* Since this process began: requests, how many of them were repeated, bytes of bodies received. */
struct dcp_http_counts {
	uint64_t requests, retries, bytes;
};
struct dcp_http_counts dcp_http_counted(void);

/* Version of libcurl, "7.88.1"; NULL: requests cannot be made here, and *why is the reason. */
const char *dcp_http_library(const char **why);

/* url: splits URLs, and encodes names for them. */

struct dcp_buf;

/* Views into a URL. */
struct dcp_url {
	const char *scheme; /* "https" */
	size_t nscheme;
	const char *host; /* includes the port */
	size_t nhost;
	const char *path; /* the rest, which begins with a slash; NUL-terminated; may be "" */
};

/* False: @text has no scheme or no host, or has a user, a query, a fragment, or bytes that are
 * invalid in a URL. */
bool dcp_url_split(const char *text, struct dcp_url *out);

/* Append @s with every byte except A-Z a-z 0-9 - . _ ~ written as %XX; slashes stay if
 * @slashes_kept. */
void dcp_url_encode(struct dcp_buf *out, const char *s, size_t n, bool slashes_kept);
/* The opposite. False: a % without two digits, or a NUL. */
bool dcp_url_decode(struct dcp_buf *out, const char *s, size_t n);

/* When a signed URL expires (by X-Amz-Date and X-Amz-Expires, their counterparts of Google, or
 * Expires): CLOCK_REALTIME in seconds. 0: the URL does not say. */
int64_t dcp_url_until(const char *text);

/* Is the host, without its port, this machine's loopback? */
bool dcp_url_is_loopback(const char *host, size_t n);

/* Can a name that a server gave be used as a file name? Not if a component is empty, "." or "..",
 * or longer than 255 bytes, or has a byte that cannot be printed. */
bool dcp_url_safe_name(const char *name, size_t n);
