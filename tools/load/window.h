/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window: slots of memory that the ranks of a node share, through which chunks go.
 *
 * One member fills a slot with chunk c, and all members take what they need from it. When all have
 * said that they are done, the slot is free for chunk c + slots. Waiting ends after a time without
 * progress, when a member dies, or when any of them reports a failure.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tools/load/dcpload.h"

struct dcp_queue;
struct load_window;
struct dcpload;

/*
 * Collective over all ranks of the job: each node makes a window of @slots slots of @slot bytes, a
 * multiple of the page size. @alone: a window of this process only, not collective. -ENOMEM,
 * -EACCES, ... with the reason in @err.
 */
int load_window_create(struct dcpload *ck, uint32_t slots, uint64_t slot, bool alone,
		       struct load_window **out, struct dcpload_error *err);
/* @keep: the slots stay until the process ends, as a device may still read them. */
void load_window_free(struct load_window *w, bool keep);

/* All slots. */
void *load_window_memory(const struct load_window *w, uint64_t *n);
/* The slot of chunk @c. */
uint8_t *load_window_slot(struct load_window *w, size_t c);

/* What reads past the page cache to this slot, which this member fills; one thread at a time. */
struct dcp_queue *load_window_queue(struct load_window *w, const uint8_t *slot);
/* Why slots are not registered for that, a negative errno; 0: they are, or nothing was read so. */
int load_window_refused(const struct load_window *w);

/*
 * Why the slots that this member fills are not huge pages, a negative errno; 0: they are, if the
 * kernel has any, or slots are smaller.
 */
int load_window_small(const struct load_window *w);

/*
 * Wait until the slot of chunk @c may be filled. -ETIMEDOUT, -EOWNERDEAD (a member died),
 * -ECANCELED (some member, perhaps this one, has called load_window_fail()).
 */
int load_window_claim(struct load_window *w, size_t c);
/* Chunk @c is in its slot. */
void load_window_publish(struct load_window *w, size_t c);
/* Wait until chunk @c is in its slot. Errors as for load_window_claim(). */
int load_window_await(struct load_window *w, size_t c);
/* This member does not need chunk @c any more. */
void load_window_done(struct load_window *w, size_t c);
/* Something failed: end the waiting of all members. */
void load_window_fail(struct load_window *w);
/* After -EOWNERDEAD: the rank, in the job, of the member that died. */
uint32_t load_window_dead(const struct load_window *w);

/* Begin again with chunk 0. No member may be using the window: the caller synchronizes all members
 * before and after. */
void load_window_reset(struct load_window *w);
/*
 * Nanoseconds that this member has waited for chunks since the window was made; its bytes of
 * memory.
 */
uint64_t load_window_waited(const struct load_window *w);
uint64_t load_window_bytes(const struct load_window *w);
