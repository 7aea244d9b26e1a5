/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_random: numbers that look random and are the same in every run, from a seed that the caller
 * keeps (splitmix64; any seed will do). Nothing here knows cmocka, so that fuzz targets can use it.
 */
#pragma once
#include <stdint.h>
#include <stdlib.h>

static inline uint64_t t_random64(uint64_t *seed)
{
	uint64_t z = (*seed += 0x9e3779b97f4a7c15u);

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* A number below @below; 0 when that is 0. */
static inline uint64_t t_random(uint64_t *seed, uint64_t below)
{
	uint64_t v = t_random64(seed);

	return below ? v % below : 0;
}

/* The environment's DCPFS_TEST_SEED, else @otherwise. */
static inline uint64_t t_random_seed(uint64_t otherwise)
{
	const char *given = getenv("DCPFS_TEST_SEED");

	return given ? strtoull(given, NULL, 0) : otherwise;
}
