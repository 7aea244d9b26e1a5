/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_tar: tar archives for tests, header by header.
 *
 *	struct t_tar t = { 0 };
 *	t_tar_add(&t, "a/b.pt", p, n);
 *	t_tar_end(&t);
 *	... t.b.p, t.b.n; t.header[0], t.data[0] say where things came to lie ...
 *	dcp_buf_finish(&t.b);
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

struct t_tar {
	struct dcp_buf b;
	bool gnu;     /* magic, long names and base-256 sizes as GNU tar has them; else pax */
	bool base256; /* sizes in base 256 always */
	bool old;     /* no magic */
	size_t header[64], data[64];
	size_t n;
};

/* A file; what does not fit into its header stands in front, as GNU tar or pax do it. */
void t_tar_add(struct t_tar *t, const char *name, const void *p, size_t n);
/* Any header, and @n bytes padded to a block. @size is what it says, whatever @n is. */
void t_tar_raw(struct t_tar *t, char type, const char *name, uint64_t size, const void *p,
	       size_t n);
/* "17 path=...\n" */
void t_tar_record(struct dcp_buf *out, const char *name, const char *value);
/* Two blocks of zeros, padded to 10240 bytes. */
void t_tar_end(struct t_tar *t);
/* Change a byte of a header, and its checksum with it. */
void t_tar_poke(struct t_tar *t, size_t header, size_t at, const void *p, size_t n);
