/* SPDX-License-Identifier: Apache-2.0 */
/*
 * execute: the threads of one execution of a plan, and what they share.
 */
#pragma once
#include <errno.h>
#include <stdatomic.h>

#include "tools/load/chunk.h"
#include "tools/load/window.h"

/* Reading @file gave @rc: remember what that means for another attempt (again.c). Any thread. */
static inline void load_trouble(struct dcpload_plan *p, uint32_t file, int rc)
{
	if (rc == -ESTALE || rc == -ENOENT)
		atomic_store(&p->changed, 1);
	else if (rc == -EIO)
		atomic_store(&p->lost, file + 1);
}

/* Is byte @off of the file in the page cache? */
bool load_is_cached(int fd, uint64_t off);

void load_plan_drop_chunks(struct dcpload_plan *p);

/* Collective: find which stripes of the files each rank reads, and what it sends of them. Sets
 * p->rounds and p->chunks. */
int load_make_rounds(struct dcpload_plan *p, uint64_t staging, bool slack,
		     struct dcpload_error *err);
void load_rounds_free(struct load_rounds *r);
/* Bytes of message buffers; NULL: 0. */
uint64_t load_rounds_bytes(const struct load_rounds *r);
/* The buffer for messages that come in. */
void *load_rounds_in(const struct load_rounds *r, uint64_t *n);

/* The needs that meet the current stretch; stretches come in order of file and offset. */
struct load_active {
	uint32_t *need; /* those that meet the stretch, or met an earlier one */
	size_t n, cap, next;
};

/* Copy what the needs of @p use of bytes [@lo, @hi) of @file from @src, where more bytes may follow.
 * Counts them with load_arrived(). */
int load_place_stretch(struct dcpload_plan *p, struct load_active *a, uint32_t file,
		       uint64_t lo, uint64_t hi, const uint8_t *src);

/* Read chunk @c into @slot. */
int load_fill(struct dcpload_plan *p, size_t c, uint8_t *slot, struct dcp_err *err);

/* Bytes of the buffer for what views decode, out of @staging. */
static inline uint64_t load_view_band(uint64_t staging)
{
	return DCP_MIN(staging / 4, (uint64_t)4 << 20);
}

/* Threads of a rank, as configured; by default the CPUs of the node divided by its ranks. */
uint32_t load_threads(const struct dcpload_plan *p);

/* Load every chunk through the window; by messages; or every want for itself. */
int load_by_window(struct dcpload_plan *p, struct dcpload_error *err);
int load_by_rounds(struct dcpload_plan *p, struct dcpload_error *err);
int load_by_wants(struct dcpload_plan *p, struct dcpload_error *err);

/* @n bytes of a want are in place. After the last it is complete and commit() is called. A hook's
 * error. Any thread. */
int load_arrived(struct dcpload_plan *p, uint32_t want, uint64_t n);
