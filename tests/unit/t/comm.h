/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_comm: the ranks of a job as threads of this process.
 *
 * A rank whose function has returned is gone: the others get -ECONNRESET, as from a real transport.
 */
#pragma once
#include <stdint.h>

#include "tools/load/dcpload.h"

/* Run @rank of all @ranks at once; the sum of what they returned. cmocka's assertions do not work in them. */
int t_comm_run(uint32_t ranks, int (*rank)(const struct dcpload_comm *comm, void *arg),
	       void *arg);
