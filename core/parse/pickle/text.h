/* SPDX-License-Identifier: Apache-2.0 */
/* text: decimal numbers, quoted and escaped text, UTF-8. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/parse/pickle/pickle.h"

struct dcp_buf;

/* Is it UTF-8? @surrogates: those of Python's surrogatepass are allowed. */
bool dcp_pkl_utf8(const void *s, size_t n, bool surrogates);

/* Decimal digits with an optional minus sign, to two's complement that may be longer than
 * needed. */
enum { DCP_PKL_DECIMAL_BYTES = DCP_PICKLE_MAX_INT + 32 }; /* room for @le */
enum dcp_pkl_number { DCP_PKL_NUMBER_OK, DCP_PKL_NUMBER_BAD, DCP_PKL_NUMBER_LONG };
enum dcp_pkl_number dcp_pkl_decimal(const char *s, size_t n, uint8_t *le, size_t *nbytes);
bool dcp_pkl_index(const char *s, size_t n, uint64_t *out);
bool dcp_pkl_float(const char *s, size_t n, double *out);

/* Argument of STRING: quoted, backslash escapes; false when it is not well-formed. */
bool dcp_pkl_unquote(const char *s, size_t n, struct dcp_buf *out);
/* Argument of UNICODE: Latin-1 with \u and \U; the result is UTF-8 with surrogatepass. */
bool dcp_pkl_unescape(const char *s, size_t n, struct dcp_buf *out);
