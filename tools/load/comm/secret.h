/* SPDX-License-Identifier: Apache-2.0 */
/*
 * secret: a random text that only the processes of one user can read, on every node that has the user's home directory.
 */
#pragma once
#include <stddef.h>

#include "tools/load/error.h"

#define LOAD_SECRET_BYTES 64

/*
 * The text in the file "secret" in @dir, which is made, with the directory, when there is none. Both must be the
 * user's, and closed to others: -EPERM. Any other failure: the file can be neither read nor made.
 */
int load_secret_of_user(const char *dir, char out[LOAD_SECRET_BYTES + 1],
			struct dcpload_error *err);
