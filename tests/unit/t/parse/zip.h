/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_zip: ZIP archives for tests, byte by byte, with the habits of torch's writer or without.
 *
 *	struct t_zip z = { .torch = true };
 *	t_zip_add(&z, "archive/data.pkl", p, n);
 *	t_zip_end(&z);
 *	... z.b.p, z.b.n; z.local[0], z.entry[0], z.eocd say where to damage it ...
 *	t_zip_free(&z);
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

struct t_zip {
	struct dcp_buf b;
	bool torch; /* data descriptors, zero local sizes, version 0, padding to align */
	bool zip64; /* every entry and the end carry zip64 fields, saturated elsewhere */
	bool no_crc;
	uint32_t align;      /* 0: 64 for torch, none else */
	const char *comment; /* of the archive */
	/* where things came to lie */
	size_t *local, *data, *entry;
	size_t n, dir, eocd64, locator, eocd;
	struct t_zip_rec *rec;
};

void t_zip_add(struct t_zip *z, const char *name, const void *p, size_t n);
void t_zip_end(struct t_zip *z);
void t_zip_free(struct t_zip *z);

/* Overwrite the little-endian number of @bytes bytes at @at. */
void t_zip_poke(struct t_zip *z, size_t at, unsigned bytes, uint64_t v);

/* One directory entry by itself, for archives too big to build. */
void t_zip_entry64(struct dcp_buf *b, const char *name, uint64_t size, uint64_t header_off);
/* zip64 end record, locator and end record behind a directory. */
void t_zip_tail64(struct dcp_buf *b, uint64_t at, uint64_t n, uint64_t dir_size, uint64_t dir);
