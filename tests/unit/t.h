/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t: what every unit test includes: cmocka, the place of a file's tests in its program, and the
 * name of the row under test.
 *
 * Tests run in the project root, so golden files are opened as "tests/golden/...".
 */
#pragma once
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/base.h"
#include "core/base/err.h"

/*
 * The tests of one file: `T_TESTS() { ...; return cmocka_run_group_tests(...); }`. The program has
 * those of many files; each is run by the path of its file below tests/unit/, without ".c".
 */
struct t_tests {
	const char *file;
	int (*run)(void);
	const struct t_tests *next;
};
void t_tests_add(struct t_tests *tests);

#define T_TESTS()                                                                              \
	static int t_run(void);                                                                \
	__attribute__((constructor)) static void t_add(void)                                   \
	{                                                                                      \
		static struct t_tests tests = { __FILE__, t_run, NULL };                       \
                                                                                               \
		t_tests_add(&tests);                                                           \
	}                                                                                      \
	static int t_run(void)

/*
 * How often to try something at random, and the step of a loop that tries all positions: in full,
 * and a quarter of it where each costs four times as much.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define T_SLOW 4
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define T_SLOW 4
#endif
#endif
#ifndef T_SLOW
#define T_SLOW 1
#endif
#define T_ROUNDS(n) ((n) / T_SLOW)

/* Say which table row is being checked; shown when an assertion after it fails. */
#define t_case(what) print_message("           %s\n", (what))

/* The message must contain @part; shows the whole message when it does not. */
#define t_assert_says(err, part)                                                               \
	do {                                                                                   \
		if (!strstr((err)->msg, (part)))                                               \
			fail_msg("message \"%s\" does not say \"%s\"", (err)->msg, (part));    \
	} while (0)
