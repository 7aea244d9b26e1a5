/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_version: a checkpoint of t_fake's family, a cache, and opening the one through the other.
 */
#pragma once
#include <stdbool.h>

#include "core/base/err.h"
#include "core/store/version/version.h"
#include "tests/unit/t/fake.h"
#include "tests/unit/t/index.h"
#include "tests/unit/t/parse/dir.h"

struct t_version {
	struct t_dir dir; /* run/step-1 is the checkpoint, cache/ the cache */
	char source[128], cache[128];
	struct dcp_store_opts opts;
	struct dcp_log log;
	char said[1024]; /* warnings, a line each */
	unsigned warnings;
	unsigned progress;
};

/* cmocka's setup and teardown; *state is the struct. */
int t_version_setup(void **state);
int t_version_teardown(void **state);

extern const struct dcp_found t_version_step_1;

struct dcp_version *t_version_open(struct t_version *p);
/* It serves the checkpoint, wherever its index is. */
void t_version_check(struct dcp_version *v);
/* Open, check, close; was it built? */
bool t_version_opens_built(struct t_version *p);

/* Path of the one index, which must be there. */
const char *t_version_index_path(struct t_version *p);
/* As if the checkpoint had been written a while before the index: it was just now. */
void t_version_let_time_pass(struct t_version *p);
