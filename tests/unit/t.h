/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t: what every unit test includes: cmocka, and the name of the row under test.
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

/* Say which table row is being checked; shown when an assertion after it fails. */
#define t_case(what) print_message("           %s\n", (what))

/* The message must contain @part; shows the whole message when it does not. */
#define t_assert_says(err, part)                                                               \
	do {                                                                                   \
		if (!strstr((err)->msg, (part)))                                               \
			fail_msg("message \"%s\" does not say \"%s\"", (err)->msg, (part));    \
	} while (0)
