/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window: slots of memory that the ranks of a node share, through which chunks go.
 *
 * One member fills a slot with chunk c, all take from it what they need, and when all have
 * said that they are done chunk c + slots may be put there. Waiting is bounded: by a time without progress,
 * by the death of a member, and by a failure that any of them reports.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tools/load/dcpload.h"

struct load_window;
struct dcpload;

/*
 * Collective over all ranks of the job: each node makes one of @slots slots of @slot bytes, a multiple of the
 * page size. @alone: of this process only, and not collective. -ENOMEM, -EACCES, ... with the
 * reason in @err.
 */
int load_window_create(struct dcpload *ck, uint32_t slots, uint64_t slot, bool alone,
		       struct load_window **out, struct dcpload_error *err);
void load_window_free(struct load_window *w);

/* Where chunk number @c lies, or will. */
uint8_t *load_window_slot(struct load_window *w, size_t c);

/* To be filled with chunk @c: wait until it may be. -ETIMEDOUT, -EOWNERDEAD (a member died), -ECANCELED
 * (a member failed, or this one gave up). */
int load_window_claim(struct load_window *w, size_t c);
/* It is filled. */
void load_window_publish(struct load_window *w, size_t c);
/* Wait for it to be filled. As claim. */
int load_window_await(struct load_window *w, size_t c);
/* This member needs it no more. */
void load_window_done(struct load_window *w, size_t c);
/* Something failed: nobody is to wait any longer. */
void load_window_fail(struct load_window *w);
/* Which member died, when somebody said -EOWNERDEAD: rank of the job. */
uint32_t load_window_dead(const struct load_window *w);

/* Begin again. No member may be between claim and done: the caller sees to it that all have come to
 * a common point before and after. */
void load_window_reset(struct load_window *w);
/* Nanoseconds this member has waited, and bytes of memory. */
uint64_t load_window_waited(const struct load_window *w);
uint64_t load_window_bytes(const struct load_window *w);
