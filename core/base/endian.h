/* SPDX-License-Identifier: Apache-2.0 */
/*
 * endian: numbers in bytes, at any alignment.
 */
#pragma once
#include <stdint.h>
#include <string.h>

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
