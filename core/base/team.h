/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team: threads that share work which none of them owns: each takes the next part, by a count that
 * they have in common, until there is none.
 */
#pragma once
#include <stddef.h>

/*
 * Run @work in up to @n threads and wait for all. The first is the caller's, and gets @jobs; each
 * other gets the next job, @size bytes behind (0: they have one in common). Where no thread can be
 * started fewer do all of it.
 */
void dcp_team_run(unsigned n, void *(*work)(void *job), void *jobs, size_t size);
