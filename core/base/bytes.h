/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bytes: a borrowed view, and a cursor over it that cannot read past the end; numbers in bytes;
 * arithmetic that is checked.
 *
 * Views never own. The cursor's error is sticky: once something did not fit, every
 * later read gives zero and dcp_cur_ok() is false, so a parser checks once per record.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* endian: numbers in bytes, at any alignment. */

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "dcpfs serves little-endian bytes straight from files; big-endian hosts are not supported"
#endif

#define DCP_DEFINE_LOAD(bits)                                                                  \
	static inline uint##bits##_t dcp_load_le##bits(const void *p)                          \
	{                                                                                      \
		uint##bits##_t v;                                                              \
		memcpy(&v, p, sizeof(v));                                                      \
		return v;                                                                      \
	}                                                                                      \
	static inline uint##bits##_t dcp_load_be##bits(const void *p)                          \
	{                                                                                      \
		return __builtin_bswap##bits(dcp_load_le##bits(p));                            \
	}                                                                                      \
	static inline void dcp_store_le##bits(void *p, uint##bits##_t v)                       \
	{                                                                                      \
		memcpy(p, &v, sizeof(v));                                                      \
	}

DCP_DEFINE_LOAD(16)
DCP_DEFINE_LOAD(32)
DCP_DEFINE_LOAD(64)
#undef DCP_DEFINE_LOAD

/* ckd: checked arithmetic on foreign numbers. Every function returns true on overflow (as C23's
 * stdckdint); *r is then unspecified and must not be used. */

static inline bool dcp_ckd_add(uint64_t *r, uint64_t a, uint64_t b)
{
	return __builtin_add_overflow(a, b, r);
}

static inline bool dcp_ckd_mul(uint64_t *r, uint64_t a, uint64_t b)
{
	return __builtin_mul_overflow(a, b, r);
}

/* r = a rounded up to a multiple of the power of two align. */
static inline bool dcp_ckd_align(uint64_t *r, uint64_t a, uint64_t align)
{
	if (__builtin_add_overflow(a, align - 1, r))
		return true;
	*r &= ~(align - 1);
	return false;
}

/* Is the half-open range [off, off + n) inside [0, limit)? Never overflows. */
static inline bool dcp_range_ok(uint64_t off, uint64_t n, uint64_t limit)
{
	return off <= limit && n <= limit - off;
}

struct dcp_bytes {
	const uint8_t *p;
	size_t n;
};

struct dcp_cur {
	const uint8_t *p, *end;
	bool bad;
};

static inline struct dcp_cur dcp_cur(const void *p, size_t n)
{
	return (struct dcp_cur){ p, (const uint8_t *)p + n, false };
}

static inline size_t dcp_cur_left(const struct dcp_cur *c)
{
	return (size_t)(c->end - c->p);
}

static inline bool dcp_cur_ok(const struct dcp_cur *c)
{
	return !c->bad;
}

/* The next @n bytes, or NULL (and sticky failure) when fewer are left. */
static inline const uint8_t *dcp_cur_take(struct dcp_cur *c, uint64_t n)
{
	const uint8_t *p = c->p;

	if (c->bad || n > dcp_cur_left(c)) {
		c->bad = true;
		return NULL;
	}
	c->p += n;
	return p;
}

static inline uint8_t dcp_cur_u8(struct dcp_cur *c)
{
	const uint8_t *p = dcp_cur_take(c, 1);

	return p ? *p : 0;
}

static inline uint16_t dcp_cur_le16(struct dcp_cur *c)
{
	const uint8_t *p = dcp_cur_take(c, 2);

	return p ? dcp_load_le16(p) : 0;
}

static inline uint32_t dcp_cur_le32(struct dcp_cur *c)
{
	const uint8_t *p = dcp_cur_take(c, 4);

	return p ? dcp_load_le32(p) : 0;
}

static inline uint64_t dcp_cur_le64(struct dcp_cur *c)
{
	const uint8_t *p = dcp_cur_take(c, 8);

	return p ? dcp_load_le64(p) : 0;
}

/* Unsigned LEB128 as dcp_buf_varint() writes it; longer than 64 bits is a failure. */
static inline uint64_t dcp_cur_varint(struct dcp_cur *c)
{
	uint64_t v = 0;

	for (unsigned shift = 0; shift < 64; shift += 7) {
		uint8_t b = dcp_cur_u8(c);

		if (c->bad)
			return 0;
		if (shift == 63 && b > 1)
			break;
		v |= (uint64_t)(b & 0x7f) << shift;
		if (!(b & 0x80))
			return v;
	}
	c->bad = true;
	return 0;
}
