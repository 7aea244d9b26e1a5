/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather: the runs of one strided descriptor, copied to where they belong.
 *
 * Out of memory, memcpy beats any read call at every length of run. Without a mapping, one
 * pread over runs and holes beats one per run until they are about 26 KB apart.
 */
#pragma once
#include <stdint.h>

struct dcp_io_counts;
struct dcp_strided;

/* Out of @src, where offset s->off of the file is, to @dst + s->dst and on. */
void dcp_gather_copy(char *dst, const uint8_t *src, const struct dcp_strided *s);

/* The same out of the file @fd. -EIO: it ends early, or cannot be read. */
int dcp_gather_read(char *dst, int fd, const struct dcp_strided *s, struct dcp_io_counts *io);
