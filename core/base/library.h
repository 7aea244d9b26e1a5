/* SPDX-License-Identifier: Apache-2.0 */
/*
 * library: shared libraries that are opened when they are asked for, so that starting costs nothing and a machine without them
 * runs the rest.
 */
#pragma once
#include <stddef.h>

/*
 * Open @library, for good, and have the addresses of its functions @names at @at; NULL: it has none of that name. -ELIBACC: it
 * cannot be opened; -ELIBBAD: it lacks some of them. @why, of @size bytes, is then the reason, about the first that is missing.
 */
int dcp_library_open(const char *library, const char *const *names, size_t n, void **at,
		     char *why, size_t size);
