/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/err.h"

int load_fail(struct dcpload_error *err, int code, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return code;
	err->code = code;
	err->rank = -1;
	va_start(ap, fmt);
	vsnprintf(err->text, sizeof(err->text), fmt, ap);
	va_end(ap);
	dcp_printable(err->text, sizeof(err->text));
	return code;
}

int load_fail_err(struct dcpload_error *err, int code, const struct dcp_err *from)
{
	const char *text = from && from->msg[0] ? from->msg : strerror(-code);

	if (code >= 0)
		return code;
	if (from && from->msg[0] && from->off != DCP_ERR_NO_OFFSET && !strstr(text, "at byte"))
		return load_fail(err, code, "%s (at byte %llu)", text,
				 (unsigned long long)from->off);
	return load_fail(err, code, "%s", text);
}

int load_say(struct dcpload_error *err, int code)
{
	if (code < 0 && err && (err->code != code || !err->text[0]))
		load_fail(err, code, "%s", strerror(-code));
	return code;
}

bool load_is_lost(int code)
{
	return code == -ECONNRESET || code == -ETIMEDOUT || code == -EOWNERDEAD;
}

int load_while(struct dcpload_error *err, int code, const char *doing)
{
	if (err && load_is_lost(code)) {
		size_t n = strlen(err->text);

		snprintf(err->text + n, sizeof(err->text) - n, " while %s", doing);
	}
	return code;
}

bool load_names_rank(const struct dcpload_error *err)
{
	char name[24];
	int n = snprintf(name, sizeof(name), "rank %d ", err->rank);

	return strncmp(err->text, name, (size_t)n) == 0;
}
