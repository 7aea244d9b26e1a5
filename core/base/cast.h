/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cast: arrays of floating-point numbers of one type as those of another.
 *
 * @n counts numbers. @src and @dst may be unaligned; they may not overlap, but a cast to a
 * type that is no wider may be done in place (@dst == @src).
 *
 * To a wider type nothing is lost: bits are moved, so NaNs keep their sign and payload. To a
 * narrower one numbers are rounded to the nearest, ties to the even one, and subnormals are kept,
 * as torch's .to() does. A NaN stays a NaN of the same sign; in torch the sign depends on the
 * machine. A number that is too large becomes infinity of its sign; E4M3 has no infinity, so there
 * such numbers and infinity itself become the largest number, 448 (as in torch 2.15; older releases
 * made it a NaN).
 */
#pragma once
#include <stddef.h>

void dcp_cast_f64_to_f32(void *dst, const void *src, size_t n);

void dcp_cast_f32_to_bf16(void *dst, const void *src, size_t n);
void dcp_cast_f32_to_f16(void *dst, const void *src, size_t n);
void dcp_cast_f32_to_f8_e4m3(void *dst, const void *src, size_t n);
void dcp_cast_f32_to_f8_e5m2(void *dst, const void *src, size_t n);

void dcp_cast_bf16_to_f32(void *dst, const void *src, size_t n);
void dcp_cast_f16_to_f32(void *dst, const void *src, size_t n);
void dcp_cast_f8_e4m3_to_f32(void *dst, const void *src, size_t n);
void dcp_cast_f8_e5m2_to_f32(void *dst, const void *src, size_t n);
void dcp_cast_f8_e4m3fnuz_to_f32(void *dst, const void *src, size_t n);
void dcp_cast_f8_e5m2fnuz_to_f32(void *dst, const void *src, size_t n);
void dcp_cast_f8_e8m0_to_f32(void *dst, const void *src, size_t n);
/* Two numbers in a byte, the low nibble first; @n is even. */
void dcp_cast_f4_e2m1_to_f32(void *dst, const void *src, size_t n);
