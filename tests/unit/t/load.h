/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_load: a small checkpoint to be loaded, in three versions, and ranks that say what they found.
 */
#pragma once
#include "tests/unit/t/parse/dir.h"
#include "tools/load/dcpload.h"

/* In a rank, where cmocka's assertions do not work: a failure counts and is told. */
#define expect(what) ((what) ? 0 : (fprintf(stderr, "%d: not so: %s\n", __LINE__, #what), 1))

/* Version 1 is open: buffered, direct, and as @ck one of the two. Version 3 has other shapes. */
struct t_load {
	struct t_dir d;
	struct dcpload *ck, *buffered, *direct;
	struct dcpload_error err;
};

int t_load_setup(void **state);
int t_load_teardown(void **state);
struct dcpload_plan *t_load_plan(struct t_load *f, uint32_t flags);

/* "model.f", 16x8x8 numbers, and "model.b", 64x64 bytes, of version @seed. */
#define T_LOAD_HEADER                                                                          \
	"{\"model.f\":{\"dtype\":\"F32\",\"shape\":[16,8,8],\"data_offsets\":[0,4096]},"       \
	"\"model.b\":{\"dtype\":\"U8\",\"shape\":[64,64],\"data_offsets\":[4096,8192]}}  "
void t_load_put(const struct t_dir *d, const char *name, const char *header, unsigned seed);
/* Element @i of model.f is t_load_number(i + seed), of model.b t_load_byte(4096 + i, seed). */
float t_load_number(uint64_t i);
uint8_t t_load_byte(uint64_t i, unsigned seed);
/* A file with a tensor of @mib MiB. */
void t_load_put_large(const struct t_dir *d, const char *name, size_t mib);

#define ok(f, call)                                                                            \
	do {                                                                                   \
		int rc_ = (call);                                                              \
		if (rc_ < 0)                                                                   \
			fail_msg("%d: %s", rc_, (f)->err.text);                                \
	} while (0)

#define fails(f, call, want, says)                                                             \
	do {                                                                                   \
		assert_int_equal((call), (want));                                              \
		assert_int_equal((f)->err.code, (want));                                       \
		if (!strstr((f)->err.text, (says)))                                            \
			fail_msg("\"%s\" does not say \"%s\"", (f)->err.text, (says));         \
	} while (0)
