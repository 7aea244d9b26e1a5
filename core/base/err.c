/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/text.h"

void dcp_printable(char *s, size_t size)
{
	enum { SPELLED = 4 };
	static const char hex[] = "0123456789abcdef";

	for (size_t left = strlen(s), n; left; s += n, size -= n, left -= n) {
		unsigned char c = (unsigned char)*s;

		n = dcp_utf8_shown(s, left);
		if (n)
			continue;
		if (size <= SPELLED) {
			*s = '\0';
			return;
		}
		n = SPELLED;
		left = n + DCP_MIN(left - 1, size - n - 1);
		memmove(s + n, s + 1, left - n);
		s[left] = '\0';
		memcpy(s, (char[SPELLED]){ '\\', 'x', hex[c >> 4], hex[c & 15] }, SPELLED);
	}
}

static void record_error(struct dcp_err *err, int code, uint64_t off, const char *fmt,
			 va_list ap) DCP_PRINTF(4, 0);
static void record_error(struct dcp_err *err, int code, uint64_t off, const char *fmt,
			 va_list ap)
{
	if (!err)
		return;
	err->code = code;
	err->off = off;
	vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
	dcp_printable(err->msg, sizeof(err->msg));
}

int dcp_fail(struct dcp_err *err, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	record_error(err, code, DCP_ERR_NO_OFFSET, fmt, ap);
	va_end(ap);
	return code;
}

int dcp_fail_at(struct dcp_err *err, int code, uint64_t off, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	record_error(err, code, off, fmt, ap);
	va_end(ap);
	return code;
}

static _Thread_local struct {
	int code;
	char text[256], given[256];
} note;

void dcp_err_note(int code, const char *text)
{
	note.code = text ? code : 0;
	snprintf(note.text, sizeof(note.text), "%s", text ? text : "");
}

const char *dcp_err_noted(int code)
{
	if (!code || note.code != code)
		return strerror(-code);
	memcpy(note.given, note.text, sizeof(note.given));
	note.code = 0;
	return note.given;
}

int dcp_err_say(struct dcp_err *err, int code)
{
	if (code < 0 && err && !err->msg[0])
		dcp_fail(err, code, "%s", dcp_err_noted(code));
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
	dcp_printable(where, sizeof(where));
	n = strlen(where);
	if (strncmp(err->msg, where, n) == 0 && err->msg[n] == ':')
		return code; /* the message names it already: the version is a file */
	dcp_err_say(err, code);
	snprintf(whole, sizeof(whole), "%s: %s", where, err->msg);
	memcpy(err->msg, whole, sizeof(err->msg) - 1); /* a cut message is better than none */
	return code;
}

void dcp_log(const struct dcp_log *log, enum dcp_log_level level, const char *fmt, ...)
{
	char line[1024];
	va_list ap;

	if (!log || !log->emit || level > log->max)
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	dcp_printable(line, sizeof(line));
	log->emit(log->ctx, level, line);
}
