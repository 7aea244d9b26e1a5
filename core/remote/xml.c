/* SPDX-License-Identifier: Apache-2.0 */
#include "core/remote/s3.h"

#include <errno.h>
#include <expat.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/system.h"

static struct {
	__typeof__(&XML_ParserCreate) XML_ParserCreate;
	__typeof__(&XML_ParserFree) XML_ParserFree;
	__typeof__(&XML_Parse) XML_Parse;
	__typeof__(&XML_StopParser) XML_StopParser;
	__typeof__(&XML_SetUserData) XML_SetUserData;
	__typeof__(&XML_SetElementHandler) XML_SetElementHandler;
	__typeof__(&XML_SetCharacterDataHandler) XML_SetCharacterDataHandler;
	__typeof__(&XML_SetStartDoctypeDeclHandler) XML_SetStartDoctypeDeclHandler;
	__typeof__(&XML_GetErrorCode) XML_GetErrorCode;
	__typeof__(&XML_ErrorString) XML_ErrorString;
	__typeof__(&XML_GetCurrentLineNumber) XML_GetCurrentLineNumber;
	__typeof__(&XML_ExpatVersionInfo) XML_ExpatVersionInfo;
} lib;

static const char *const functions[] = {
	/* in the order of lib */
	"XML_ParserCreate",
	"XML_ParserFree",
	"XML_Parse",
	"XML_StopParser",
	"XML_SetUserData",
	"XML_SetElementHandler",
	"XML_SetCharacterDataHandler",
	"XML_SetStartDoctypeDeclHandler",
	"XML_GetErrorCode",
	"XML_ErrorString",
	"XML_GetCurrentLineNumber",
	"XML_ExpatVersionInfo",
};

static bool is_loaded;

static void load_library(void)
{
	char why[128];

	is_loaded = dcp_library_open("libexpat.so.1", functions, DCP_LEN(functions),
				     (void **)&lib, why, sizeof(why)) == 0;
}

struct reading {
	XML_Parser parser;
	dcp_xml_fn *fn;
	void *ctx;
	struct dcp_buf path, text;
	size_t at[DCP_XML_MAX_DEPTH]; /* by open element: the end of its path */
	size_t depth;
	int rc;
};

static void stop_parser(struct reading *r, int rc)
{
	if (r->rc == 0)
		r->rc = rc;
	lib.XML_StopParser(r->parser, XML_FALSE);
}

static void XMLCALL on_start(void *ctx, const char *name, const char **attributes)
{
	struct reading *r = ctx;

	if (r->depth == DCP_XML_MAX_DEPTH) {
		stop_parser(r, -E2BIG);
		return;
	}
	r->at[r->depth++] = r->path.n;
	dcp_buf_printf(&r->path, "%s%s", r->path.n ? "/" : "", name);
	dcp_buf_reset(&r->text);
}

static void XMLCALL on_end(void *ctx, const char *name)
{
	struct reading *r = ctx;
	int rc = dcp_buf_error(&r->path) || dcp_buf_error(&r->text) ? -ENOMEM : 0;

	if (rc == 0)
		rc = r->fn(r->ctx, r->path.p, r->text.n ? r->text.p : "", r->text.n);
	if (rc < 0)
		stop_parser(r, rc);
	r->path.n = r->at[--r->depth];
	if (r->path.p)
		r->path.p[r->path.n] = '\0';
	dcp_buf_reset(&r->text);
}

static void XMLCALL on_text(void *ctx, const char *p, int n)
{
	dcp_buf_add(&((struct reading *)ctx)->text, p, (size_t)n);
}

static void XMLCALL on_doctype(void *ctx, const char *name, const char *sysid,
			       const char *pubid, int internal)
{
	stop_parser(ctx, -EBADMSG);
}

static bool is_there(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load_library);
	return is_loaded;
}

const char *dcp_xml_expat_version(void)
{
	static char text[32]; /* every thread writes the same text */
	XML_Expat_Version v;

	if (!is_there())
		return NULL;
	v = lib.XML_ExpatVersionInfo();
	snprintf(text, sizeof(text), "%d.%d.%d", v.major, v.minor, v.micro);
	return text;
}

int dcp_xml_each(const char *text, size_t n, dcp_xml_fn *fn, void *ctx, struct dcp_err *err)
{
	struct reading r = { .fn = fn, .ctx = ctx };

	if (!is_there())
		return dcp_fail(err, -ENOSYS,
				"libexpat.so.1 cannot be loaded; install libexpat1");
	if (n > INT_MAX)
		return dcp_fail(err, -E2BIG, "an answer of %zu bytes", n);
	r.parser = lib.XML_ParserCreate(NULL);
	if (!r.parser)
		return dcp_err_say(err, -ENOMEM);
	lib.XML_SetUserData(r.parser, &r);
	lib.XML_SetElementHandler(r.parser, on_start, on_end);
	lib.XML_SetCharacterDataHandler(r.parser, on_text);
	lib.XML_SetStartDoctypeDeclHandler(r.parser, on_doctype);
	if (lib.XML_Parse(r.parser, text, (int)n, 1) != XML_STATUS_OK && r.rc == 0)
		r.rc = dcp_fail(err, -EBADMSG, "the answer is not XML: line %lu: %s",
				(unsigned long)lib.XML_GetCurrentLineNumber(r.parser),
				lib.XML_ErrorString(lib.XML_GetErrorCode(r.parser)));
	else if (r.rc == -EBADMSG)
		dcp_fail(err, r.rc, "the answer has a document type, which no list has");
	lib.XML_ParserFree(r.parser);
	dcp_buf_finish(&r.path);
	dcp_buf_finish(&r.text);
	return dcp_err_say(err, r.rc);
}
