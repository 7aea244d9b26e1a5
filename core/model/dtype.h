/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtype: element types, and their names in each ecosystem.
 *
 * One table. Names are those of safetensors, or like them (listed in fs/README.md); a framework
 * type outside the table keeps its own name and is DCP_DTYPE_OTHER: its bytes are served, its
 * numbers are not interpreted.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dcp_dtype {
	DCP_DTYPE_OTHER, /* known size, unknown meaning */
	DCP_DTYPE_F64,
	DCP_DTYPE_F32,
	DCP_DTYPE_F16,
	DCP_DTYPE_BF16,
	DCP_DTYPE_F8_E4M3,
	DCP_DTYPE_F8_E5M2,
	DCP_DTYPE_F8_E4M3FNUZ,
	DCP_DTYPE_F8_E5M2FNUZ,
	DCP_DTYPE_F8_E8M0,
	DCP_DTYPE_F4, /* two values a byte, low nibble first; shapes count bytes, as torch's do
		       */
	DCP_DTYPE_F6_E2M3, /* four values in three bytes; shapes count these triples. No document
			    * specifies the bit order, so no numbers are shown */
	DCP_DTYPE_F6_E3M2,
	DCP_DTYPE_I64,
	DCP_DTYPE_I32,
	DCP_DTYPE_I16,
	DCP_DTYPE_I8,
	DCP_DTYPE_U64,
	DCP_DTYPE_U32,
	DCP_DTYPE_U16,
	DCP_DTYPE_U8,
	DCP_DTYPE_BOOL,
	DCP_DTYPE_C32, /* two F16 */
	DCP_DTYPE_C64,
	DCP_DTYPE_C128,
};
#define DCP_DTYPE_COUNT (DCP_DTYPE_C128 + 1)

struct dcp_dtype_info {
	const char *name;        /* "BF16"; "" for OTHER */
	const char *torch;       /* "bfloat16"; NULL: torch has none */
	const char *safetensors; /* name in a safetensors header; NULL: that format has none */
	const char *npy;   /* descr of the .npy that shows these numbers: "<f4" for BF16 */
	uint8_t size;      /* bytes of one element as counted by shapes */
	uint8_t npy_size;  /* bytes written to .npy per element (F4: two floats, 8) */
	uint8_t swap_unit; /* bytes reversed together when a file is big-endian */
	bool widened;      /* .npy holds the exact values in a wider type */
	uint8_t values;    /* in one element: 1; F4 2, F6 4. In .npy and safetensors the last
			      dimension counts these */
};

/* The row of @t, never NULL; OTHER has size 0. */
const struct dcp_dtype_info *dcp_dtype_info(enum dcp_dtype t);

/* Find a type by the name in dcpfs ("BF16") or in torch ("bfloat16", also "half", "long", ...);
 * OTHER if unknown. */
enum dcp_dtype dcp_dtype_from_name(const char *name);
enum dcp_dtype dcp_dtype_from_torch(const char *name, size_t n);
enum dcp_dtype dcp_dtype_from_safetensors(const char *name, size_t n);
/* Find a type by the code in numpy without the byte order ("f4"). */
enum dcp_dtype dcp_dtype_from_numpy(const char *code, size_t n);

/*
 * Convert @n elements of @t at @src into what .npy holds at @dst (npy_size bytes each). Exact for
 * every type that is widened; a NaN keeps its sign and, if float32 has room, its payload. Plain
 * copy for the others. @src and @dst may be unaligned, not overlap.
 */
void dcp_dtype_widen(enum dcp_dtype t, void *dst, const void *src, size_t n);

/*
 * Convert numbers of @from to @to, another type. The conversion goes through float32, as in torch's
 * .to(): F64 to BF16 is rounded twice.
 *
 * To a wider type nothing is lost: bits are moved, so NaNs keep their sign and payload. To a
 * narrower one numbers are rounded to the nearest, ties to the even one, and subnormals are kept,
 * as torch's .to() does. A NaN stays a NaN of the same sign; in torch the sign depends on the
 * machine. A number that is too large becomes infinity of its sign; E4M3 has no infinity, so there
 * such numbers and infinity itself become the largest number, 448 (as in torch 2.15; older releases
 * made it a NaN).
 */
bool dcp_dtype_can_cast(enum dcp_dtype from, enum dcp_dtype to);
/* Is @t a floating-point type that can be converted? */
bool dcp_dtype_is_float(enum dcp_dtype t);
/* dcp_dtype_can_cast() must be true. @src and @dst may be unaligned; they may not overlap, but a
 * cast to a type that is no wider may be done in place (@dst == @src). */
void dcp_dtype_cast(enum dcp_dtype from, enum dcp_dtype to, void *dst, const void *src,
		    size_t n);

/* Can dcp_dtype_add() calculate with @t: F64, F32, F16 or BF16? */
bool dcp_dtype_can_add(enum dcp_dtype t);
/*
 * Add @n numbers of the type to the numbers at @sum, or divide the numbers at @sum by @by, as torch
 * does on the CPU: each result is rounded to the type. Both arrays are aligned to the type and do
 * not overlap.
 */
void dcp_dtype_add(enum dcp_dtype t, void *sum, const void *term, size_t n);
void dcp_dtype_divide(enum dcp_dtype t, void *sum, uint32_t by, size_t n);

/* Has the type a sign bit that dcp_dtype_negate() can flip (floating point and complex)? */
bool dcp_dtype_can_negate(enum dcp_dtype t);

/* Flip the sign of @n little-endian elements in place; with @imaginary only that of the second
 * half of each (complex types). */
void dcp_dtype_negate(enum dcp_dtype t, void *p, size_t n, bool imaginary);

/* The number of bytes that are reversed together when a file is big-endian, from the table; an
 * element of OTHER is one number of @itemsize bytes. 1: nothing is reversed. */
unsigned dcp_dtype_swap_unit(enum dcp_dtype t, uint32_t itemsize);

/* Reverse the bytes of each @unit (1, 2, 4, 8) in the @n bytes at @p. */
void dcp_swap(unsigned unit, void *p, size_t n);
