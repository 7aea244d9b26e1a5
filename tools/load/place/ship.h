/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ship: the way from staging memory to a device.
 *
 * What one piece of staging memory holds for destinations on the device is a batch. Long runs are
 * copied straight to where they belong. The rest is shipped once, as it lies in the file, and a
 * kernel places it; without the kernel the host converts it first. Batches go over several lanes;
 * several are in flight at a time. What a batch brought has arrived (load_arrived) when its mark is
 * passed, and only then is its piece of staging memory free again.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "tools/load/load.h"
#include "tools/load/memory/scatter.h"

struct load_ship;

#define LOAD_SHIP_NO_CHUNK SIZE_MAX
#define LOAD_SHIP_THERE (SIZE_MAX - 1) /* nor that, and the bytes are on the device already */

/* For pieces of at most @piece bytes, @batches of them in flight; @share: bytes of host memory. */
int load_ship_create(struct dcpload_plan *p, uint64_t piece, uint32_t batches, uint64_t share,
		     struct load_ship **out, struct dcpload_error *err);
/*
 * After load_ship_drop(). @keep: copies may still run, so all that they use is kept until the
 * process ends.
 */
void load_ship_free(struct load_ship *s, bool keep);

/* Bytes of host memory that it has beyond the window; of device memory; bytes that are pinned. */
uint64_t load_ship_bytes(const struct load_ship *s);
uint64_t load_ship_device_bytes(const struct load_ship *s);
uint64_t load_ship_pinned(const struct load_ship *s);

/*
 * Pin staging memory, near the device if it is not touched yet, until the end of @s. A device that
 * cannot is slower, and load_device.why says so.
 */
void load_ship_pin(struct load_ship *s, void *p, uint64_t n);

/* Begin an execution: after what is queued on p->stream now. */
int load_ship_start(struct load_ship *s);
/* Set a destination to zero before anything else. */
int load_ship_clear(struct load_ship *s, void *p, uint64_t n);

/*
 * Begin a batch of what lies at @src and on: chunk @chunk of the window, which is done with it
 * after the batch; or LOAD_SHIP_NO_CHUNK, LOAD_SHIP_THERE. Waits when too many are in flight.
 */
int load_ship_begin(struct load_ship *s, const uint8_t *src, size_t chunk);
/*
 * Of the current batch, whose bytes are on the device already by p->gds: copy these, which the host
 * has.
 */
int load_ship_send(struct load_ship *s, const uint8_t *src, uint64_t n);
/* Add the runs of @r for want @number; its first byte is at @src. */
int load_ship_add(struct load_ship *s, uint32_t number, const struct dcp_strided *r,
		  const uint8_t *src);
/* Send it on its way. */
int load_ship_end(struct load_ship *s);
/* Take note of what has arrived; wait until all has, if @all. */
int load_ship_reap(struct load_ship *s, bool all);
/* After a failure: wait until no copy is under way. */
void load_ship_drop(struct load_ship *s);

/*
 * job: strided runs in the form that the scatter kernel takes (memory/scatter.h).
 */

/*
 * The runs of @r, whose first byte is at @src of the device, to @t; all but j->first. false: the
 * kernel cannot place them.
 */
bool load_job_make(struct load_job *j, const struct load_target *t, const struct dcp_strided *r,
		   uint64_t src);
/* Extend @j by one run that continues where its run ends, on both sides. false: it does not. */
bool load_job_extend(struct load_job *j, const struct load_target *t,
		     const struct dcp_strided *r, uint64_t src);
/* Can it place whatever goes to @t? */
bool load_job_can(const struct load_target *t);
