/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages: which parts of a file of the file system the kernel has in memory.
 *
 * For callers that have the descriptor or the mapping of a blob, which only the file system offers.
 * Any thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Is byte @off of the file in the page cache? */
bool dcp_is_cached(int fd, uint64_t off);
/* Is the page of a mapping that contains @at in memory? True also if that cannot be determined. */
bool dcp_is_resident(const uint8_t *at);
/* Make the kernel begin to read @n bytes at @off, without waiting. */
void dcp_bring_near(int fd, uint64_t off, uint64_t n);
/* From now on, reads through @fd cause no read-ahead. */
void dcp_stop_ahead(int fd);
/*
 * Copy between two files inside the kernel. 1: done; 0: not possible, and some bytes may have been
 * copied; the caller then reads the bytes and so gets the error, if there is one.
 */
int dcp_copy_range(int from, uint64_t off, int fd, uint64_t to, uint64_t n);
