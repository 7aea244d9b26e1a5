/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/utf8.h"

void dcp_printable(char *s)
{
	for (char *end = s + strlen(s); s < end;) {
		size_t n = dcp_utf8_len(s, (size_t)(end - s));

		if (dcp_is_control(s, n))
			memset(s, '?', n);
		s += n ? n : 1;
	}
}

static void record(struct dcp_err *err, int code, uint64_t off, const char *fmt, va_list ap)
	DCP_PRINTF(4, 0);
static void record(struct dcp_err *err, int code, uint64_t off, const char *fmt, va_list ap)
{
	if (!err)
		return;
	err->code = code;
	err->off = off;
	vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
	dcp_printable(err->msg);
}

int dcp_fail(struct dcp_err *err, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	record(err, code, DCP_ERR_NO_OFFSET, fmt, ap);
	va_end(ap);
	return code;
}

int dcp_fail_at(struct dcp_err *err, int code, uint64_t off, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	record(err, code, off, fmt, ap);
	va_end(ap);
	return code;
}

int dcp_err_say(struct dcp_err *err, int code)
{
	if (code < 0 && err && !err->msg[0])
		dcp_fail(err, code, "%s", strerror(-code));
	return code;
}

int dcp_err_give(struct dcp_err *err, const struct dcp_err *why, int code)
{
	if (err)
		*err = *why;
	return code;
}

int dcp_err_where(struct dcp_err *err, int code, const char *fmt, ...)
{
	char where[sizeof(err->msg)], whole[2 * sizeof(err->msg) + 2];
	va_list ap;
	size_t n;

	if (!err)
		return code;
	va_start(ap, fmt);
	vsnprintf(where, sizeof(where), fmt, ap);
	va_end(ap);
	dcp_printable(where);
	n = strlen(where);
	if (strncmp(err->msg, where, n) == 0 && err->msg[n] == ':')
		return code; /* a version that is a file: said already */
	dcp_err_say(err, code);
	snprintf(whole, sizeof(whole), "%s: %s", where, err->msg);
	memcpy(err->msg, whole, sizeof(err->msg) - 1); /* a cut message is still a message */
	return code;
}
