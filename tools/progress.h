/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress: how far is it, how fast, how long still? On stderr, if that is a terminal.
 *
 * Nothing is drawn in the first half second, and what was drawn is wiped at the end: a quick
 * command shows nothing at all. Elsewhere than on a terminal it is silent, unless lines of JSON are
 * asked for.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/format/format.h"

struct progress {
	struct dcp_progress report; /* what core is given; its ctx is this struct */
	bool on, bytes;             /* a terminal; what is counted are bytes, not things */
	unsigned width;
	bool drawn;
	int64_t start_ns, last_ns;
	/*
	 * The phase that is shown: it begins where another total is reported, or less is done than
	 * before.
	 */
	uint64_t phase_total, phase_done, done; /* @phase_done: when it began */
	int64_t phase_ns;
	bool counts_bytes; /* in it */
};

/* From here on progress is a line of JSON at most each tenth of a second, wherever stderr goes. */
void progress_as_json(bool on);

/* @bytes: counts are shown as sizes. The struct must stay where it is. */
void progress_init(struct progress *p, bool bytes);
/* Wipe the line. */
void progress_finish(struct progress *p);

/*
 * The line for @done of @total, @rate a second, without any cursor movement. What does not fit in
 * @width columns is left out: the sum, the bar, the rate.
 */
void progress_line(char *buf, size_t size, unsigned width, bool bytes, const char *what,
		   uint64_t done, uint64_t total, double rate);
