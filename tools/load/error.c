/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/error.h"

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
	dcp_printable(err->text);
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
