/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages: what the kernel keeps in memory of a file of the file system.
 *
 * For those who have a blob's descriptor or mapping, which only this kind of source offers. Any
 * thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Is byte @off of the file in the page cache? */
bool dcp_is_cached(int fd, uint64_t off);
/* Is the page of a mapping in memory that @at lies in? Where that cannot be known, it is. */
bool dcp_is_resident(const uint8_t *at);
/* Make the kernel begin to read @n bytes at @off; do not wait. */
void dcp_bring_near(int fd, uint64_t off, uint64_t n);
/* From now on, reads by @fd bring what they ask for and no more. */
void dcp_stop_ahead(int fd);
/*
 * Copy between two files inside the kernel. 1, or 0: it cannot, and a read gives the error if there
 * is one; a part may have been copied.
 */
int dcp_copy_range(int from, uint64_t off, int fd, uint64_t to, uint64_t n);
