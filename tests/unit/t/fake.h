/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_fake: a checkpoint family for tests of what stands above families.
 *
 * A directory with a file COMMIT is a checkpoint; one with *.shard and no COMMIT is incomplete.
 * Each line of COMMIT, "key file offset nbytes", is a tensor of bytes; with "+" for a key, the next
 * run of the tensor before it; with "=", the run before it once more.
 *
 * A program that links t_fake.c has this family and no other: it takes the place of
 * core/format/format.c.
 */
#pragma once
#include "core/format/format.h"

extern const struct dcp_format t_fake_format;

/* What load() did, and what it shall do. */
extern struct t_fake {
	_Atomic unsigned loads;
	int fail; /* return this, with a message */
	int (*emit)(const struct dcp_sink
			    *s); /* instead of what COMMIT says; its file is number 0 */
	void (*during)(void *x); /* called while loading */
	void *x;
} t_fake;
