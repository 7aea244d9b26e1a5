/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xml: parses answers of object stores, through expat, which is loaded on first use; xml.c is the
 * only file that includes expat.h.
 *
 * Documents with a DOCTYPE are refused, so that there are no entities to expand.
 */
#pragma once
#include <stddef.h>

struct dcp_err;

#define DCP_XML_MAX_DEPTH 16

/*
 * Called at the end of an element: its path, "ListBucketResult/Contents/Key", and its text. 0 or a
 * negative errno.
 */
typedef int dcp_xml_fn(void *ctx, const char *path, const char *text, size_t n);

/*
 * Call @fn for each element. 0, -EBADMSG, -E2BIG (deeper than DCP_XML_MAX_DEPTH), -ENOTSUP (no
 * expat), -ENOMEM, or the result of @fn.
 */
int dcp_xml_each(const char *text, size_t n, dcp_xml_fn *fn, void *ctx, struct dcp_err *err);

/* Version of expat, "2.5.0"; NULL: it cannot be loaded. */
const char *dcp_xml_expat_version(void);
