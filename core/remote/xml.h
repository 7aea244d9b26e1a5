/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xml: the answers of object stores, through expat, which is opened when the first one comes; xml.c
 * is the only file that sees expat.h.
 *
 * Documents with a document type are refused, so that there are no entities to expand.
 */
#pragma once
#include <stddef.h>

struct dcp_err;

#define DCP_XML_MAX_DEPTH 16

/*
 * An element ended: its path "ListBucketResult/Contents/Key", and the text in it. 0 or a negative
 * errno.
 */
typedef int dcp_xml_fn(void *ctx, const char *path, const char *text, size_t n);

/*
 * 0, -EBADMSG, -E2BIG (deeper than DCP_XML_MAX_DEPTH), -ENOTSUP (no expat), -ENOMEM, or what @fn
 * gave.
 */
int dcp_xml_each(const char *text, size_t n, dcp_xml_fn *fn, void *ctx, struct dcp_err *err);

/* "2.5.0"; NULL: it cannot be loaded. */
const char *dcp_xml_expat_version(void);
