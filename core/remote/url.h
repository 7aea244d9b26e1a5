/* SPDX-License-Identifier: Apache-2.0 */
/*
 * url: the parts of URLs, and names in them.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
