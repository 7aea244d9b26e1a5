/* SPDX-License-Identifier: Apache-2.0 */
/*
 * execute: the three ways of the bytes, and what they share.
 */
#pragma once
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "tools/load/load.h"

/* Reading @file gave @rc: remember what that means for another attempt (again.c). Any thread. */
static inline void load_trouble(struct dcpload_plan *p, uint32_t file, int rc)
{
	if (rc == -ESTALE || rc == -ENOENT)
		atomic_store(&p->changed, 1);
	else if (rc == -EIO)
		atomic_store(&p->lost, file + 1);
}

/* The same of what a view read: it says which file in words only. */
static inline void load_trouble_of_view(struct dcpload_plan *p, int rc)
{
	if (rc != -EIO)
		load_trouble(p, 0, rc);
}

/* Are the first, middle and last of @n bytes in the page cache? Taken as all of them. */
static inline bool load_is_warm(int fd, uint64_t off, uint64_t n)
{
	return dcp_is_cached(fd, off) && dcp_is_cached(fd, off + n - 1) &&
	       dcp_is_cached(fd, off + n / 2);
}

/* A thread that reads every @step-th chunk from @first on into its slot of the window. */
struct load_filler {
	struct dcpload_plan *p;
	size_t first, step;
	/* Slots are published after a failure, too: others wait for what is made from them. */
	bool keeps_going;
	bool has_thread;
	pthread_t thread;
	struct dcp_err err;
	int rc;
};

/*
 * Fill the slot of chunk @c: 0, or why there is no more to fill; f->rc, and f->err where it could
 * not be read.
 */
int load_fill_slot(struct load_filler *f, size_t c);
/* The body of such a thread: @arg is a struct load_filler. */
void *load_fill_slots(void *arg);

/* Threads of a rank, as configured; by default the CPUs of the node divided by its ranks. */
uint32_t load_threads(const struct dcpload_plan *p);

/* Load every chunk by messages; or every want for itself. */
int load_by_rounds(struct dcpload_plan *p, struct dcpload_error *err);
int load_by_wants(struct dcpload_plan *p, struct dcpload_error *err);
