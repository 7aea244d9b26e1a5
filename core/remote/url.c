/* SPDX-License-Identifier: Apache-2.0 */
#include "core/remote/http.h"

#include <string.h>
#include <strings.h>
#include <time.h>

#include "core/base/buf.h"
#include "core/base/text.h"

enum { MAX_COMPONENT = 255 };

/* Is it a host with a name or address, and with a valid port or none? */
static bool has_port(const char *host, size_t n)
{
	const char *end = host + n, *close = *host == '[' ? memchr(host, ']', n) : NULL;
	const char *at = close ? close + 1 : memchr(host, ':', n);
	uint64_t port;

	if (!at || at == end)
		return *host != '[' || close;
	return *at++ == ':' && at - 1 > host &&
	       dcp_take_number(&at, end, DCP_ANY_DIGITS, &port) && at == end && port > 0 &&
	       port <= UINT16_MAX;
}

bool dcp_url_split(const char *text, struct dcp_url *out)
{
	const char *colon = strstr(text, "://"), *host = colon ? colon + 3 : NULL;
	size_t n = host ? strcspn(host, "/") : 0;

	if (!n || colon == text)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:"
			    "[]",
			    host[i]))
			return false;
	if (!has_port(host, n))
		return false;
	*out = (struct dcp_url){ text, (size_t)(colon - text), host, n, host + n };
	for (const char *p = out->path; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 127 || *p == '?' || *p == '#')
			return false;
	return true;
}

static bool is_plain(char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || dcp_is_digit(c) ||
	       (c && strchr("-._~", c));
}

void dcp_url_encode(struct dcp_buf *out, const char *s, size_t n, bool slashes_kept)
{
	for (size_t i = 0; i < n; i++)
		if (is_plain(s[i]) || (slashes_kept && s[i] == '/'))
			dcp_buf_add(out, &s[i], 1);
		else
			dcp_buf_printf(out, "%%%02X", (unsigned char)s[i]);
}

bool dcp_url_decode(struct dcp_buf *out, const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		char c = s[i];

		if (c == '%') {
			int high = n - i > 2 ? dcp_hex_digit(s[i + 1]) : -1;
			int low = n - i > 2 ? dcp_hex_digit(s[i + 2]) : -1;

			if (high < 0 || low < 0)
				return false;
			c = (char)(high << 4 | low);
			i += 2;
		}
		if (!c)
			return false;
		dcp_buf_add(out, &c, 1);
	}
	return !dcp_buf_error(out);
}

/* The value of @name in the query, or NULL. */
static const char *find_value(const char *text, const char *name)
{
	size_t n = strlen(name);
	const char *p = strchr(text, '?');

	for (; p; p = strchr(p, '&')) {
		p++;
		if (strncasecmp(p, name, n) == 0 && p[n] == '=')
			return p + n + 1;
	}
	return NULL;
}

static bool take_digits(const char **p, size_t n, int *out)
{
	uint64_t v;

	if (!dcp_take_number(p, *p + strnlen(*p, n), (int)n, &v))
		return false;
	*out = (int)v;
	return true;
}

/* Parse "20260130T235959Z"; 0: not such a time. */
static int64_t read_time(const char *p)
{
	struct tm t = { 0 };

	if (!take_digits(&p, 4, &t.tm_year) || !take_digits(&p, 2, &t.tm_mon) ||
	    !take_digits(&p, 2, &t.tm_mday) || *p++ != 'T' || !take_digits(&p, 2, &t.tm_hour) ||
	    !take_digits(&p, 2, &t.tm_min) || !take_digits(&p, 2, &t.tm_sec))
		return 0;
	t.tm_year -= 1900;
	t.tm_mon--;
	return timegm(&t);
}

int64_t dcp_url_until(const char *text)
{
	static const char *const names[][2] = { { "X-Amz-Date", "X-Amz-Expires" },
						{ "X-Goog-Date", "X-Goog-Expires" } };
	const char *end = find_value(text, "Expires");
	uint64_t seconds;

	if (end && dcp_take_number(&end, NULL, 11, &seconds))
		return (int64_t)seconds;
	for (size_t i = 0; i < DCP_LEN(names); i++) {
		const char *from = find_value(text, names[i][0]);
		int64_t began = from ? read_time(from) : 0;

		end = find_value(text, names[i][1]);
		if (began > 0 && end && dcp_take_number(&end, NULL, 9, &seconds))
			return began + (int64_t)seconds;
	}
	return 0;
}

bool dcp_url_is_loopback(const char *host, size_t n)
{
	static const char *const names[] = { "localhost", "127.0.0.1", "[::1]" };
	const char *port = memchr(host, ']', n);

	port = memchr(port ? port : host, ':', n - (size_t)(port ? port - host : 0));
	n = port ? (size_t)(port - host) : n;
	for (size_t i = 0; i < DCP_LEN(names); i++)
		if (strlen(names[i]) == n && memcmp(names[i], host, n) == 0)
			return true;
	return false;
}

bool dcp_url_safe_name(const char *name, size_t n)
{
	for (size_t at = 0; at <= n;) {
		const char *slash = memchr(name + at, '/', n - at);
		size_t len = slash ? (size_t)(slash - name) - at : n - at;

		if (!len || len > MAX_COMPONENT || (len == 1 && name[at] == '.') ||
		    (len == 2 && name[at] == '.' && name[at + 1] == '.'))
			return false;
		for (size_t i = at; i < at + len; i++)
			if ((unsigned char)name[i] < ' ' || name[i] == 127)
				return false;
		at += len + 1;
	}
	return true;
}
